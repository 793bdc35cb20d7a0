// SPDX-License-Identifier: Apache-2.0
// libibverbs, found at run time. The only file that includes <infiniband/verbs.h>: without that
// header the runtime is built without the rest of this folder.
#pragma once

#ifdef TENSORWIRE_VERBS
#include <infiniband/verbs.h>
#endif

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace tw::verbs {

// The functions that <infiniband/verbs.h> has not inline. The inline ones (ibv_post_send,
// ibv_post_recv, ibv_poll_cq, ibv_req_notify_cq, ibv_alloc_mw, ibv_dealloc_mw, ibv_inc_rkey) go
// through the context's own table. A test fills in functions of its own.
struct Library {
  // The system's, loaded at the first call and kept. FAILED_PRECONDITION: built without the header,
  // no libibverbs.so.1, or one without a function that is needed; says what to install.
  static Result<const Library*> get();
  // The same for a library of another name.
  static Result<Library> load(const char* soname);

#ifdef TENSORWIRE_VERBS
  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  const char* (*get_device_name)(ibv_device* device) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* out) = nullptr;
  // Call port() instead, which knows of newer fields.
  int (*compat_query_port)(ibv_context* context, uint8_t port,
                           _compat_ibv_port_attr* out) = nullptr;
  int (*query_gid)(ibv_context* context, uint8_t port, int index, ibv_gid* out) = nullptr;
  int (*get_async_event)(ibv_context* context, ibv_async_event* out) = nullptr;
  void (*ack_async_event)(ibv_async_event* event) = nullptr;

  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* domain) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd* domain, void* data, size_t size, int access) = nullptr;
  int (*dereg_mr)(ibv_mr* region) = nullptr;

  ibv_comp_channel* (*create_comp_channel)(ibv_context* context) = nullptr;
  int (*destroy_comp_channel)(ibv_comp_channel* channel) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int depth, void* tag, ibv_comp_channel* channel,
                       int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* queue) = nullptr;
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** queue, void** tag) = nullptr;
  void (*ack_cq_events)(ibv_cq* queue, unsigned count) = nullptr;

  ibv_qp* (*create_qp)(ibv_pd* domain, ibv_qp_init_attr* attributes) = nullptr;
  int (*modify_qp)(ibv_qp* pair, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*query_qp)(ibv_qp* pair, ibv_qp_attr* out, int mask, ibv_qp_init_attr* made) = nullptr;
  int (*destroy_qp)(ibv_qp* pair) = nullptr;

  const char* (*wc_status_str)(ibv_wc_status status) = nullptr;
  const char* (*event_type_str)(ibv_event_type type) = nullptr;
  int (*fork_init)() = nullptr;

  // Null in older libraries.
  int (*query_gid_ex)(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* out,
                      uint32_t flags, size_t entry_size) = nullptr;
  ibv_fork_status (*is_fork_initialized)() = nullptr;

  // First line of a file below /sys; nothing when there is no such file.
  std::optional<std::string> (*attribute)(const std::string& path) = nullptr;

  // 0 or an error number.
  int port(ibv_context* context, uint8_t number, ibv_port_attr* out) const;
#endif
};

}  // namespace tw::verbs
