// SPDX-License-Identifier: Apache-2.0
#include "transport/kind.h"

#include "transport/tcp/tcp.h"

namespace tw::tcp {
namespace {

// The connection is the transport.
class TcpSetup final : public Setup {
 public:
  TcpSetup(const Settings& settings, bool same_host) : settings_(settings), same_host_(same_host) {}

  Result<Next> go_on(int) override { return Next::kDone; }
  Result<Made> become(Fd socket) override {
    auto transport = TcpTransport::create(std::move(socket), same_host_, settings_);
    if (!transport) return transport.status();
    return Made{std::move(*transport), {}};
  }

 private:
  const Settings& settings_;
  const bool same_host_;
};

class TcpKind final : public Kind {
 public:
  explicit TcpKind(const TransportEnvironment& environment) : settings_{environment.settings} {}

  std::string_view name() const override { return "tcp"; }
  uint16_t code() const override { return 2; }
  Socket socket() const override { return Socket::kTcp; }

  Result<std::unique_ptr<Setup>> offer(const Meeting& meeting) override {
    return std::unique_ptr<Setup>(new TcpSetup(settings_, meeting.same_host));
  }
  Result<std::unique_ptr<Setup>> accept(const Meeting& meeting) override { return offer(meeting); }

  Status read_settings() override { return tw::read_settings(kSettings, settings_); }
  void each_setting(const VisitSetting& visit) const override {
    tw::each_setting(kSettings, settings_, visit);
  }

  Facts facts() override { return {{"congestion_same_host", same_host_congestion(settings_)}}; }

 private:
  Settings settings_;
};

}  // namespace

std::unique_ptr<Kind> make_kind(const TransportEnvironment& environment) {
  return std::make_unique<TcpKind>(environment);
}

}  // namespace tw::tcp
