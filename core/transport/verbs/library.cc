// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/library.h"

#include <dlfcn.h>

#include <fstream>

#include "base/text.h"

namespace tw::verbs {
#ifdef TENSORWIRE_VERBS
namespace {

std::optional<std::string> read_attribute(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  return line;
}

// Finds the functions of an opened library, and notes the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <class F>
  void find(F*& function, const char* name) {
    maybe_find(function, name);
    if (!function && !missing) missing = name;
  }
  template <class F>
  void maybe_find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library_, name));
  }

  const char* missing = nullptr;

 private:
  void* const library_;
};

}  // namespace

Result<Library> Library::load(const char* soname) {
  // Never closed: its providers leave state behind.
  void* const opened = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    return Status{Code::kFailedPrecondition,
                  text({"RDMA needs ", soname,
                        ", which is not on this host (install libibverbs1 and ibverbs-providers on "
                        "Debian and Ubuntu, rdma-core on others): ",
                        dlerror()})};
  }
  Finder in(opened);
  Library library;
  in.find(library.get_device_list, "ibv_get_device_list");
  in.find(library.free_device_list, "ibv_free_device_list");
  in.find(library.get_device_name, "ibv_get_device_name");
  in.find(library.open_device, "ibv_open_device");
  in.find(library.close_device, "ibv_close_device");
  in.find(library.query_device, "ibv_query_device");
  in.find(library.compat_query_port, "ibv_query_port");
  in.find(library.query_gid, "ibv_query_gid");
  in.find(library.get_async_event, "ibv_get_async_event");
  in.find(library.ack_async_event, "ibv_ack_async_event");
  in.find(library.alloc_pd, "ibv_alloc_pd");
  in.find(library.dealloc_pd, "ibv_dealloc_pd");
  in.find(library.reg_mr, "ibv_reg_mr");
  in.find(library.dereg_mr, "ibv_dereg_mr");
  in.find(library.create_comp_channel, "ibv_create_comp_channel");
  in.find(library.destroy_comp_channel, "ibv_destroy_comp_channel");
  in.find(library.create_cq, "ibv_create_cq");
  in.find(library.destroy_cq, "ibv_destroy_cq");
  in.find(library.get_cq_event, "ibv_get_cq_event");
  in.find(library.ack_cq_events, "ibv_ack_cq_events");
  in.find(library.create_qp, "ibv_create_qp");
  in.find(library.modify_qp, "ibv_modify_qp");
  in.find(library.query_qp, "ibv_query_qp");
  in.find(library.destroy_qp, "ibv_destroy_qp");
  in.find(library.wc_status_str, "ibv_wc_status_str");
  in.find(library.event_type_str, "ibv_event_type_str");
  in.find(library.fork_init, "ibv_fork_init");
  in.maybe_find(library.query_gid_ex, "_ibv_query_gid_ex");
  in.maybe_find(library.is_fork_initialized, "ibv_is_fork_initialized");
  library.attribute = read_attribute;
  if (in.missing) {
    return Status{Code::kFailedPrecondition,
                  text({"RDMA needs a newer ", soname, ": this host's has no ", in.missing,
                        " (update libibverbs1 on Debian and Ubuntu, rdma-core on others)"})};
  }
  return library;
}

Result<const Library*> Library::get() {
  static const Result<Library> library = load("libibverbs.so.1");
  if (!library) return library.status();
  return &library.value();
}

int Library::port(ibv_context* context, uint8_t number, ibv_port_attr* out) const {
  *out = {};
  // As the header's ibv_query_port, which would name a symbol to link to.
  const verbs_context* const extended = verbs_get_ctx(context);
  const size_t known = sizeof(verbs_context) - offsetof(verbs_context, query_port);
  if (extended && extended->sz >= known && extended->query_port)
    return extended->query_port(context, number, out, sizeof *out);
  return compat_query_port(context, number, reinterpret_cast<_compat_ibv_port_attr*>(out));
}

#else

Result<const Library*> Library::get() {
  return Status{
      Code::kFailedPrecondition,
      "RDMA is not in this build of tensorwire: it was built where infiniband/verbs.h was "
      "missing (install libibverbs-dev on Debian and Ubuntu, rdma-core-devel on others, "
      "and build again)"};
}

#endif
}  // namespace tw::verbs
