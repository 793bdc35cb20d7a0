// The C ABI: the function table for plugins.
#include "tensorwire.h"

const tw_table* tw_get_table() {
  static const tw_table table{
      TW_TABLE_VERSION,  sizeof(tw_table),   tw_version,           tw_settings,
      tw_arena,          tw_arena_allocate,  tw_arena_holds,       tw_arena_free,
      tw_copy,           tw_buffer_data,     tw_buffer_size,       tw_buffer_leased,
      tw_buffer_expose,  tw_buffer_release,  tw_message_count,     tw_message_segment,
      tw_message_buffer, tw_message_release, tw_metadata_each,     tw_metadata_release,
      tw_hello,          tw_parse_hello,     tw_connect,           tw_link_transport,
      tw_link_peer,      tw_link_alive,      tw_link_death,        tw_link_stats,
      tw_link_close,     tw_link_release,    tw_link_start,        tw_call_take,
      tw_call_notify,    tw_call_notify_cut, tw_call_release,      tw_call_outcome,
      tw_call_cancel,    tw_call_method,     tw_call_metadata,     tw_call_peer,
      tw_call_transport, tw_call_active,     tw_call_finish,       tw_events_create,
      tw_events_wait,    tw_events_push,     tw_events_close,      tw_events_release,
      tw_server_create,  tw_server_instance, tw_server_listen_tcp, tw_server_listen_local,
      tw_server_admit,   tw_server_next,     tw_server_stats,      tw_server_close,
      tw_server_release,
  };
  return &table;
}
