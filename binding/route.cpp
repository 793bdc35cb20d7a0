// SPDX-License-Identifier: Apache-2.0
// Routes, as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <exception>
#include <optional>
#include <string_view>
#include <tuple>

#include "binding.h"

namespace binding {

namespace {

struct Route {
  tw_route* handle = nullptr;
  Route(const std::optional<std::string>& required, const std::vector<std::string>& forbidden,
        const std::string& origin, const std::optional<std::vector<double>>& pauses) {
    std::vector<const char*> names;
    for (const std::string& name : forbidden) names.push_back(name.c_str());
    const tw_policy policy{required ? required->c_str() : nullptr, names.data(), names.size(),
                           origin.c_str()};
    if (pauses && pauses->size() != 5) throw nb::value_error("there are five pauses");
    tw_pauses given{};
    if (pauses)
      given = {nanos((*pauses)[0]), nanos((*pauses)[1]), nanos((*pauses)[2]), nanos((*pauses)[3]),
               nanos((*pauses)[4])};
    Untold status;
    check(tw_route_create(&policy, pauses ? &given : nullptr, &handle, &status), status);
  }
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;
  ~Route() {
    if (handle) tw_route_release(handle);
  }

  static double seconds(int64_t ns) {
    return ns == INT64_MAX ? HUGE_VAL : static_cast<double>(ns) / 1e9;
  }

  nb::object consult() {
    const tw_advice advice = tw_route_consult(handle);
    return nb::make_tuple(advice.use, advice.begin != 0, seconds(advice.retry_ns));
  }

  // What `attempt` calls Python with. An exception other than StatusError ends the attempt.
  struct Caller {
    nb::handle lacks, connect;
    std::vector<std::tuple<std::string, std::string, bool>> reasons;
    std::exception_ptr failed;

    template <class Ask>
    int ask(tw_status* why, Ask&& of_python) {
      if (failed) return fill(why, TW_INTERRUPTED, "");
      try {
        return of_python();
      } catch (nb::python_error& error) {
        failed = std::current_exception();
        if (error.matches(status_error())) {
          const nb::object args = error.value().attr("args");
          const int code = nb::cast<int>(args[0]);
          const auto details = nb::cast<std::string>(args[1]);
          failed = nullptr;
          return fill(why, code, details.c_str());
        }
      } catch (...) {
        failed = std::current_exception();
      }
      return fill(why, TW_CODE_UNAVAILABLE, "");
    }
    static int fill(tw_status* why, int code, const char* details) {
      why->code = code;
      const std::string_view all(details);
      why->details[all.copy(why->details, sizeof why->details - 1)] = '\0';
      return code;
    }
  };

  nb::object attempt(bool same_host, bool same_user, const std::vector<std::string>& addresses,
                     nb::handle lacks, nb::handle connect) {
    std::vector<const char*> texts;
    for (const std::string& address : addresses) texts.push_back(address.c_str());
    const tw_offer offer{same_host, same_user, texts.data(), texts.size()};
    Caller caller{lacks, connect, {}, nullptr};
    Untold status;
    const int result = tw_route_attempt(
        handle, &offer,
        [](void* context, const char* transport, tw_status* why) {
          auto& of = *static_cast<Caller*>(context);
          return of.ask(why, [&] {
            const nb::object lacking = of.lacks(transport);
            if (lacking.is_none()) return static_cast<int>(TW_OK);
            return Caller::fill(why, TW_CODE_UNAVAILABLE, nb::cast<std::string>(lacking).c_str());
          });
        },
        [](void* context, const char* transport, const char* address, tw_status* why) {
          auto& of = *static_cast<Caller*>(context);
          return of.ask(why, [&] {
            of.connect(transport, address);
            return static_cast<int>(TW_OK);
          });
        },
        [](void* context, const char* transport, const char* why, int32_t tried) {
          static_cast<Caller*>(context)->reasons.emplace_back(transport, why, tried != 0);
        },
        &caller, &status);
    if (caller.failed) std::rethrow_exception(caller.failed);
    if (result != TW_OK && result != TW_CODE_UNAVAILABLE && result != TW_CODE_FAILED_PRECONDITION)
      check(result, status);
    nb::list reasons;
    for (const auto& [transport, why, tried] : caller.reasons)
      reasons.append(nb::make_tuple(transport, decoded(why.c_str()), tried));
    return nb::make_tuple(result == TW_OK, result == TW_CODE_FAILED_PRECONDITION, reasons);
  }

  nb::object news() {
    tw_passed_over news{};
    if (!tw_route_news(handle, &news)) return nb::none();
    return nb::make_tuple(news.transport, decoded(news.why), seconds(news.left_ns));
  }
};

}  // namespace

void bind_route(nb::module_& m) {
  m.attr("USE_LINK") = static_cast<int>(TW_USE_LINK);
  m.attr("USE_ATTEMPT") = static_cast<int>(TW_USE_ATTEMPT);
  m.attr("USE_FALLBACK") = static_cast<int>(TW_USE_FALLBACK);
  m.attr("USE_NOTHING") = static_cast<int>(TW_USE_NOTHING);
  m.attr("ATTEMPT_WITHDRAWN") = static_cast<int>(TW_ATTEMPT_WITHDRAWN);
  m.attr("ATTEMPT_REFUSED") = static_cast<int>(TW_ATTEMPT_REFUSED);
  m.attr("ATTEMPT_UNANSWERED") = static_cast<int>(TW_ATTEMPT_UNANSWERED);
  m.attr("ATTEMPT_FINAL") = static_cast<int>(TW_ATTEMPT_FINAL);
  m.attr("ATTEMPT_UNREACHED") = static_cast<int>(TW_ATTEMPT_UNREACHED);
  nb::class_<Route>(m, "Route")
      .def(nb::init<const std::optional<std::string>&, const std::vector<std::string>&,
                    const std::string&, const std::optional<std::vector<double>>&>(),
           nb::arg("required").none(), nb::arg("forbidden"), nb::arg("origin"),
           nb::arg("pauses").none() = nb::none())
      .def("consult", &Route::consult)
      .def("attempt", &Route::attempt, nb::arg("same_host"), nb::arg("same_user"),
           nb::arg("addresses"), nb::arg("lacks"), nb::arg("connect"))
      .def(
          "linked", [](Route& r, const char* transport) { tw_route_linked(r.handle, transport); },
          nb::arg("transport"))
      .def(
          "failed",
          [](Route& r, int failure) {
            if (!tw_route_failed(r.handle, failure)) throw nb::value_error("no such failure");
          },
          nb::arg("failure"))
      .def(
          "lost", [](Route& r, const char* why) { tw_route_lost(r.handle, why); }, nb::arg("why"))
      .def(
          "pause",
          [](Route& r, int failures) { return Route::seconds(tw_route_pause(r.handle, failures)); },
          nb::arg("failures"))
      .def_prop_ro("failures", [](Route& r) { return tw_route_failures(r.handle); })
      .def_prop_ro("better_in",
                   [](Route& r) { return Route::seconds(tw_route_better_in(r.handle)); })
      .def("news", &Route::news);
}

}  // namespace binding
