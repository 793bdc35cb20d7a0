// SPDX-License-Identifier: Apache-2.0
// How long the plugin believes what it knows of the way to a worker, and who asks anew.
#include "belief.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace tensorwire {
namespace {

using std::chrono::seconds;

// Tells a Belief, on a clock of its own, what happens.
class Story {
 public:
  Story& at(int second) {
    now_ = Belief::Clock::time_point(std::chrono::hours(1) + seconds(second));
    return *this;
  }
  // Somebody needs the way, of which this is known; `expected`: what is to be done.
  Story& nothing(const std::string& expected) { return needs(Belief::Known::kNothing, expected); }
  Story& way(const std::string& expected) { return needs(Belief::Known::kWay, expected); }
  Story& refusal(const std::string& expected) { return needs(Belief::Known::kRefusal, expected); }
  // What came of asking.
  Story& linked() {
    return tell([&] { belief_.linked(Belief::Clock::time_point::max()); });
  }
  Story& stand_in() {
    return tell([&] { belief_.linked(now_ + seconds(60)); });
  }
  Story& declined() {
    return tell([&] { belief_.declined(now_); });
  }
  Story& unanswered() {
    return tell([&] { belief_.unanswered(now_); });
  }
  Story& unreached(int times = 1) {
    for (; times > 0; --times) belief_.unreached(now_);
    return *this;
  }
  // It is believed for so long, and then one asks.
  void believed_for(int until) { at(until - 1).way("use").at(until).way("use, ask").way("use"); }

 private:
  Story& needs(Belief::Known known, const std::string& expected) {
    const Belief::Advice advice = belief_.consult(known, now_);
    CHECK((advice.use ? "use" : "wait") + std::string(advice.ask ? ", ask" : "") == expected);
    return *this;
  }
  template <class Telling>
  Story& tell(Telling telling) {
    telling();
    return *this;
  }

  Belief belief_;
  Belief::Clock::time_point now_{std::chrono::hours(1)};
};

TEST_CASE("belief: of those that know nothing, one asks and all wait") {
  Story().nothing("wait, ask").nothing("wait").nothing("wait");
}

TEST_CASE("belief: a link is used for as long as it lives, and asked for anew once it has died") {
  Story().nothing("wait, ask").linked().way("use").at(999'999).way("use");
  Story()
      .nothing("wait, ask")
      .linked()
      .way("use")
      .nothing("wait, ask")
      .nothing("wait")
      .linked()
      .way("use");
}

TEST_CASE("belief: a link that stands in for another is used while one asks for the other") {
  Story().stand_in().at(59).way("use").at(60).way("use, ask").way("use").at(99).way("use");
  Story().stand_in().at(60).way("use, ask").unanswered().way("use").at(61).way("use, ask");
  Story().stand_in().at(60).way("use, ask").linked().at(9999).way("use");
  // It dies meanwhile: the answer is waited for.
  Story().stand_in().at(60).way("use, ask").nothing("wait").linked().way("use");
}

TEST_CASE("belief: gRPC, because the worker has nothing else") {
  Story()
      .declined()
      .at(29)
      .way("use")
      .at(30)
      .way("use, ask")
      .way("use")
      .declined()
      .at(59)
      .way("use")
      .at(60)
      .way("use, ask");
}

TEST_CASE("belief: without a transport that is required, whoever comes later waits for news") {
  Story().declined().at(29).refusal("use").at(30).refusal("wait, ask").refusal("wait");
}

TEST_CASE("belief: how long it is believed that there is no link") {
  Story().unreached().believed_for(30);
  Story().unreached(2).believed_for(60);
  Story().unreached(3).believed_for(120);
  Story().unreached(4).believed_for(240);
  Story().unreached(5).believed_for(300);
  Story().unreached(40).believed_for(300);
  Story().unreached(5).linked().unreached().believed_for(30);
  Story().unreached(5).declined().unreached().believed_for(30);
  Story().unreached().unanswered().unreached().believed_for(60);
  Story().unreached(5).unanswered().believed_for(1);
}

}  // namespace
}  // namespace tensorwire
