// SPDX-License-Identifier: Apache-2.0
// The C ABI: the table of its functions.
#ifndef TENSORWIRE_TABLE_H
#define TENSORWIRE_TABLE_H

#include "tensorwire/call.h"
#include "tensorwire/collective.h"
#include "tensorwire/device.h"
#include "tensorwire/memory.h"
#include "tensorwire/peer.h"
#include "tensorwire/process.h"
#include "tensorwire/route.h"
#include "tensorwire/server.h"

#ifdef __cplusplus
extern "C" {
#endif

// For plugins that are built on the user's machine and must not link to a runtime of their own (two
// would be two arenas). A plugin refuses a table of another version than the one it was built for,
// or a smaller one. The version changes with each change of a function or type that is in use;
// entries are only added at the end.
enum { TW_TABLE_VERSION = 18 };

// All functions, by name and in the order of the table.
#define TW_TABLE(ENTRY)                              \
  ENTRY(runtime_version, tw_version)                 \
  ENTRY(settings, tw_settings)                       \
  ENTRY(arena, tw_arena)                             \
  ENTRY(arena_allocate, tw_arena_allocate)           \
  ENTRY(arena_holds, tw_arena_holds)                 \
  ENTRY(arena_free, tw_arena_free)                   \
  ENTRY(copy, tw_copy)                               \
  ENTRY(buffer_data, tw_buffer_data)                 \
  ENTRY(buffer_size, tw_buffer_size)                 \
  ENTRY(buffer_leased, tw_buffer_leased)             \
  ENTRY(buffer_expose, tw_buffer_expose)             \
  ENTRY(buffer_release, tw_buffer_release)           \
  ENTRY(message_count, tw_message_count)             \
  ENTRY(message_segment, tw_message_segment)         \
  ENTRY(message_buffer, tw_message_buffer)           \
  ENTRY(message_release, tw_message_release)         \
  ENTRY(metadata_each, tw_metadata_each)             \
  ENTRY(metadata_release, tw_metadata_release)       \
  ENTRY(hello, tw_hello)                             \
  ENTRY(parse_hello, tw_parse_hello)                 \
  ENTRY(connect, tw_connect)                         \
  ENTRY(peer_transport, tw_peer_transport)           \
  ENTRY(peer_address, tw_peer_address)               \
  ENTRY(peer_alive, tw_peer_alive)                   \
  ENTRY(peer_death, tw_peer_death)                   \
  ENTRY(peer_stats, tw_peer_stats)                   \
  ENTRY(peer_close, tw_peer_close)                   \
  ENTRY(link_release, tw_link_release)               \
  ENTRY(peer_start, tw_peer_start)                   \
  ENTRY(call_take, tw_call_take)                     \
  ENTRY(call_notify, tw_call_notify)                 \
  ENTRY(call_release, tw_call_release)               \
  ENTRY(call_outcome, tw_call_outcome)               \
  ENTRY(call_cancel, tw_call_cancel)                 \
  ENTRY(call_method, tw_call_method)                 \
  ENTRY(call_metadata, tw_call_metadata)             \
  ENTRY(call_peer, tw_call_peer)                     \
  ENTRY(call_transport, tw_call_transport)           \
  ENTRY(call_active, tw_call_active)                 \
  ENTRY(call_finish, tw_call_finish)                 \
  ENTRY(events_create, tw_events_create)             \
  ENTRY(events_wait, tw_events_wait)                 \
  ENTRY(events_push, tw_events_push)                 \
  ENTRY(events_close, tw_events_close)               \
  ENTRY(events_release, tw_events_release)           \
  ENTRY(server_create, tw_server_create)             \
  ENTRY(server_instance, tw_server_instance)         \
  ENTRY(server_listen_tcp, tw_server_listen_tcp)     \
  ENTRY(server_listen_local, tw_server_listen_local) \
  ENTRY(server_admit, tw_server_admit)               \
  ENTRY(server_next, tw_server_next)                 \
  ENTRY(server_stats, tw_server_stats)               \
  ENTRY(server_close, tw_server_close)               \
  ENTRY(server_release, tw_server_release)           \
  ENTRY(host, tw_host)                               \
  ENTRY(buffer_separate, tw_buffer_separate)         \
  ENTRY(shut_down, tw_shut_down)                     \
  ENTRY(trace, tw_trace)                             \
  ENTRY(incidents, tw_incidents)                     \
  ENTRY(audit_next, tw_audit_next)                   \
  ENTRY(audit_close, tw_audit_close)                 \
  ENTRY(allocate, tw_allocate)                       \
  ENTRY(publish, tw_publish)                         \
  ENTRY(published, tw_published)                     \
  ENTRY(buffer_readonly, tw_buffer_readonly)         \
  ENTRY(message_size, tw_message_size)               \
  ENTRY(message_copy, tw_message_copy)               \
  ENTRY(message_leased, tw_message_leased)           \
  ENTRY(post, tw_post)                               \
  ENTRY(message_posted, tw_message_posted)           \
  ENTRY(peer_trace, tw_peer_trace)                   \
  ENTRY(call_receive, tw_call_receive)               \
  ENTRY(call_sendable, tw_call_sendable)             \
  ENTRY(call_ended, tw_call_ended)                   \
  ENTRY(call_time_left, tw_call_time_left)           \
  ENTRY(call_send, tw_call_send)                     \
  ENTRY(call_end_send, tw_call_end_send)             \
  ENTRY(call_initial, tw_call_initial)               \
  ENTRY(call_agent, tw_call_agent)                   \
  ENTRY(call_drop_if_over, tw_call_drop_if_over)     \
  ENTRY(call_send_initial, tw_call_send_initial)     \
  ENTRY(call_reply, tw_call_reply)                   \
  ENTRY(peer_expose, tw_peer_expose)                 \
  ENTRY(peer_conceal, tw_peer_conceal)               \
  ENTRY(peer_region, tw_peer_region)                 \
  ENTRY(peer_access, tw_peer_access)                 \
  ENTRY(access_wait, tw_access_wait)                 \
  ENTRY(access_ended, tw_access_ended)               \
  ENTRY(access_release, tw_access_release)           \
  ENTRY(peer_immediate, tw_peer_immediate)           \
  ENTRY(peer_send, tw_peer_send)                     \
  ENTRY(peer_receive, tw_peer_receive)               \
  ENTRY(receive_wait, tw_receive_wait)               \
  ENTRY(receive_ended, tw_receive_ended)             \
  ENTRY(receive_cancel, tw_receive_cancel)           \
  ENTRY(receive_release, tw_receive_release)         \
  ENTRY(server_introduce, tw_server_introduce)       \
  ENTRY(server_refuse, tw_server_refuse)             \
  ENTRY(server_active, tw_server_active)             \
  ENTRY(server_trace, tw_server_trace)               \
  ENTRY(encode_welcome, tw_encode_welcome)           \
  ENTRY(decode_welcome, tw_decode_welcome)           \
  ENTRY(events_descriptor, tw_events_descriptor)     \
  ENTRY(route_create, tw_route_create)               \
  ENTRY(route_release, tw_route_release)             \
  ENTRY(route_consult, tw_route_consult)             \
  ENTRY(route_pause, tw_route_pause)                 \
  ENTRY(route_attempt, tw_route_attempt)             \
  ENTRY(route_linked, tw_route_linked)               \
  ENTRY(route_failed, tw_route_failed)               \
  ENTRY(route_lost, tw_route_lost)                   \
  ENTRY(route_failures, tw_route_failures)           \
  ENTRY(route_better_in, tw_route_better_in)         \
  ENTRY(route_news, tw_route_news)                   \
  ENTRY(link_counters, tw_link_counters)             \
  ENTRY(memory_counters, tw_memory_counters)         \
  ENTRY(each_setting, tw_each_setting)               \
  ENTRY(read_setting, tw_read_setting)               \
  ENTRY(choose_policy, tw_choose_policy)             \
  ENTRY(call_process, tw_call_process)               \
  ENTRY(peer_share, tw_peer_share)                   \
  ENTRY(peer_release, tw_peer_release)               \
  ENTRY(peer_caller, tw_peer_caller)                 \
  ENTRY(peer_agent, tw_peer_agent)                   \
  ENTRY(peer_pid, tw_peer_pid)                       \
  ENTRY(peer_notify_gone, tw_peer_notify_gone)       \
  ENTRY(server_peers, tw_server_peers)               \
  ENTRY(server_notify_peers, tw_server_notify_peers) \
  ENTRY(group_join, tw_group_join)                   \
  ENTRY(group_release, tw_group_release)             \
  ENTRY(group_rank, tw_group_rank)                   \
  ENTRY(group_size, tw_group_size)                   \
  ENTRY(group_fabric, tw_group_fabric)               \
  ENTRY(group_abort, tw_group_abort)                 \
  ENTRY(group_run, tw_group_run)                     \
  ENTRY(group_exchange, tw_group_exchange)           \
  ENTRY(group_send, tw_group_send)                   \
  ENTRY(group_receive, tw_group_receive)             \
  ENTRY(each_transport, tw_each_transport)           \
  ENTRY(transport_why_not, tw_transport_why_not)     \
  ENTRY(group_receive_any, tw_group_receive_any)     \
  ENTRY(group_statistics, tw_group_statistics)       \
  ENTRY(group_gone, tw_group_gone)                   \
  ENTRY(group_tuned, tw_group_tuned)                 \
  ENTRY(device_count, tw_device_count)               \
  ENTRY(group_run_on, tw_group_run_on)               \
  ENTRY(group_exchange_on, tw_group_exchange_on)     \
  ENTRY(shared_create, tw_shared_create)             \
  ENTRY(shared_data, tw_shared_data)                 \
  ENTRY(shared_size, tw_shared_size)                 \
  ENTRY(shared_release, tw_shared_release)           \
  ENTRY(peer_mapped, tw_peer_mapped)                 \
  ENTRY(peer_why_not_mapped, tw_peer_why_not_mapped) \
  ENTRY(peer_access_mapped, tw_peer_access_mapped)   \
  ENTRY(peer_fence, tw_peer_fence)                   \
  ENTRY(peer_flush, tw_peer_flush)                   \
  ENTRY(peer_prepare, tw_peer_prepare)               \
  ENTRY(batch_size, tw_batch_size)                   \
  ENTRY(batch_runs, tw_batch_runs)                   \
  ENTRY(batch_release, tw_batch_release)             \
  ENTRY(batch_start, tw_batch_start)                 \
  ENTRY(peer_wait_word, tw_peer_wait_word)           \
  ENTRY(peer_change_word, tw_peer_change_word)       \
  ENTRY(quota_create, tw_quota_create)               \
  ENTRY(quota_leased, tw_quota_leased)               \
  ENTRY(quota_release, tw_quota_release)             \
  ENTRY(link_tuning, tw_link_tuning)                 \
  ENTRY(threshold_range, tw_threshold_range)         \
  ENTRY(shared_wait_any, tw_shared_wait_any)         \
  ENTRY(shared_nudge, tw_shared_nudge)               \
  ENTRY(shared_nudges, tw_shared_nudges)             \
  ENTRY(algorithm, tw_algorithm)                     \
  ENTRY(peer_unary_into, tw_peer_unary_into)         \
  ENTRY(quota_copied, tw_quota_copied)               \
  ENTRY(call_details, tw_call_details)               \
  ENTRY(server_limit_unread, tw_server_limit_unread) \
  ENTRY(copy_all, tw_copy_all)                       \
  ENTRY(trim, tw_trim)

typedef struct tw_table {
  uint32_t version;
  uint32_t size;  // bytes of the table
#define TW_TABLE_FIELD(name, function) __typeof__(&function) name;
  TW_TABLE(TW_TABLE_FIELD)
#undef TW_TABLE_FIELD
} tw_table;

const tw_table* tw_get_table(void);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_TABLE_H
