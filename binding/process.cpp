// SPDX-License-Identifier: Apache-2.0
// What all links of the process share: settings, host, tracing, the audit trail, and the end.
#include "binding.h"

namespace binding {

void bind_process(nb::module_& m) {
  m.def("function_table", [] { return reinterpret_cast<uintptr_t>(tw_get_table()); });
  m.def("settings", [] {
    nb::dict dict;
    Untold status;
    check(tw_settings(visit_record, &dict, &status), status);
    return dict;
  });
  m.def("each_setting", [] {
    nb::list list;
    tw_each_setting(
        [](void* context, const tw_setting* setting) {
          nb::dict row;
          row["variable"] = setting->variable;
          row["name"] = setting->name;
          row["alias_of"] = setting->alias_of ? nb::cast(setting->alias_of) : nb::none();
          row["default"] = setting->fallback;
          row["permitted"] = setting->permitted;
          row["help"] = setting->help;
          static_cast<nb::list*>(context)->append(row);
        },
        &list);
    return list;
  });
  m.def("link_tuning", [] {
    Untold status;
    check(tw_link_tuning(&status), status);
  });
  m.def("threshold_ranges", [] {
    nb::list ranges;
    uint64_t lowest, highest;
    for (int i = 0; tw_threshold_range(i, &lowest, &highest); ++i)
      ranges.append(nb::make_tuple(lowest, highest));
    return ranges;
  });
  m.def(
      "read_setting",
      [](const std::string& variable) {
        std::string value(4096, '\0');
        Untold status;
        for (;;) {
          const int code = tw_read_setting(variable.c_str(), value.data(), value.size(), &status);
          if (code != TW_CODE_OUT_OF_RANGE) {
            check(code, status);
            return decoded(value.c_str());
          }
          value.resize(value.size() * 2);  // the kernel's limit for a variable ends this
        }
      },
      nb::arg("variable"));
  m.def(
      "choose_policy",
      [](const std::string& transport, const std::string& forbid) {
        nb::object chosen;
        Untold status;
        check(tw_choose_policy(
                  transport.c_str(), forbid.c_str(),
                  [](void* context, const tw_policy* found, const tw_refusal* refusals,
                     size_t count) {
                    nb::list forbidden;
                    for (size_t i = 0; i < found->count; ++i) forbidden.append(found->forbidden[i]);
                    nb::dict refused;
                    for (size_t i = 0; i < count; ++i)
                      refused[refusals[i].way] = decoded(refusals[i].why);
                    *static_cast<nb::object*>(context) =
                        nb::make_tuple(found->required, forbidden, decoded(found->origin), refused);
                  },
                  &chosen, &status),
              status);
        return chosen;
      },
      nb::arg("transport"), nb::arg("forbid"));
  m.def("host", [] {
    nb::dict dict;
    tw_host(visit_record, &dict);
    return dict;
  });
  m.def("transports", [] {
    nb::list list;
    tw_each_transport(
        [](void* context, const tw_transport* each) {
          static_cast<nb::list*>(context)->append(
              nb::make_tuple(each->name, each->local != 0, each->lends != 0));
        },
        &list);
    return list;
  });
  m.def(
      "transport_why_not",
      [](const std::string& name) -> nb::object {
        Untold status;
        const int result = without_gil([&] { return tw_transport_why_not(name.c_str(), &status); });
        if (result == TW_OK) return nb::none();
        return decoded(status.details);
      },
      nb::arg("name"));
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    const NoGil nogil;
    tw_shut_down();
  }));
  m.def(
      "trace",
      [](size_t events) {
        Untold status;
        check(tw_trace(events, &status), status);
      },
      nb::arg("events"));
  m.def("incidents", [] {
    nb::dict dict;
    Untold status;
    const auto visit = [](void* out, const char* kind, const char* reason, uint64_t count) {
      (*static_cast<nb::dict*>(out))[nb::make_tuple(kind, reason)] = count;
    };
    check(tw_incidents(visit, &dict, &status), status);
    return dict;
  });
  m.def("audit_next", []() -> nb::object {
    const tw_wait wait = wait_forever();
    tw_audit_line line{};
    Untold status;
    const int result = without_gil([&] { return tw_audit_next(&wait, &line, &status); });
    if (result == TW_CODE_UNAVAILABLE) return nb::none();
    check(result, status);
    return nb::make_tuple(line.kind, line.reason, decoded(line.peer), decoded(line.details),
                          line.more);
  });
  m.def("audit_close", tw_audit_close);
}

}  // namespace binding
