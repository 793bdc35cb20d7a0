// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "base/text.h"
#include "transport/verbs/library.h"

namespace tw::verbs {
namespace {

// A receiver that is not ready is a bug of either end, because credit is counted: then the device
// tries again this often (7 would mean for ever), after 0.64 ms each.
constexpr uint8_t kNotReadyRetries = 6;
constexpr uint8_t kNotReadyTimer = 12;
constexpr uint8_t kHopLimit = 64;
// Longer requests gain nothing, and hold a lost link for longer.
constexpr size_t kLargestRequest = size_t{1} << 30;

ibv_mtu mtu_of(uint8_t code) { return static_cast<ibv_mtu>(code); }

wire::VerbsNetwork network_of(GidType type) {
  switch (type) {
    case GidType::kInfiniBand:
      return wire::VerbsNetwork::kInfiniBand;
    case GidType::kRoceV1:
      return wire::VerbsNetwork::kRoceV1;
    case GidType::kRoceV2:
      return wire::VerbsNetwork::kRoceV2;
  }
  return wire::VerbsNetwork::kRoceV2;
}

std::string where(const Rail& rail) {
  return text({rail.device, ":", static_cast<uint32_t>(rail.port.number)});
}

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::create(const OpenRail& rail, CompletionQueues& queues,
                                                     const Settings& settings, uint32_t depth,
                                                     uint32_t receives) {
  Domain& domain = *rail.domain;
  const Library& library = domain.library();
  auto share = queues.reserve(rail.domain, depth + kExtra + receives);
  if (!share) return share.status();
  std::unique_ptr<QueuePair> made(new QueuePair(rail, std::move(*share), depth));
  made->inline_bytes_ = domain.inline_bytes();
  made->mtu_ = verbs::describe(rail).mtu;
  if (settings.mtu != 0) made->mtu_ = std::min(made->mtu_, mtu_code(settings.mtu));
  made->largest_ = std::min<size_t>(
      rail.rail.port.max_message != 0 ? rail.rail.port.max_message : kLargestRequest,
      kLargestRequest);

  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = made->queue().handle();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = depth + kExtra;
  wanted.cap.max_recv_wr = receives;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  wanted.cap.max_inline_data = made->inline_bytes_;
  made->pair_ = library.create_qp(domain.handle(), &wanted);
  if (!made->pair_)
    return errno_status(Code::kResourceExhausted,
                        "cannot create a queue pair on " + where(rail.rail), errno);
  made->number_ = made->pair_->qp_num;
  std::random_device random;
  made->first_packet_ = random() & 0xff'ffff;

  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = settings.pkey_index;
  attributes.port_num = rail.rail.port.number;
  // What the peer may do is a matter of keys; none is handed out for more than it should.
  attributes.qp_access_flags =
      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
      (domain.device().atomics ? static_cast<unsigned>(IBV_ACCESS_REMOTE_ATOMIC) : 0u);
  if (const int error =
          library.modify_qp(made->pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      error != 0)
    return errno_status(Code::kUnavailable,
                        text({"cannot initialise a queue pair on ", where(rail.rail),
                              " with partition key index ", settings.pkey_index}),
                        error);
  return made;
}

wire::VerbsPair describe(const OpenRail& open) {
  wire::VerbsPair out;
  const Rail& rail = open.rail;
  out.gid = rail.gid.bytes;
  out.lid = rail.port.lid;
  out.network = network_of(rail.gid.type);
  out.mtu = std::clamp<uint8_t>(mtu_code(rail.port.mtu), 1, 5);
  out.reads_in = std::max<uint8_t>(open.domain->device().reads_served, 1);
  out.reads_out = std::max<uint8_t>(open.domain->device().reads_started, 1);
  out.bit_rate = rail.port.megabits * 1'000'000;
  return out;
}

wire::VerbsPair QueuePair::describe() const {
  wire::VerbsPair out = verbs::describe(rail_);
  out.mtu = mtu_;
  out.queue_pair = number_;
  out.first_packet = first_packet_;
  return out;
}

Status QueuePair::connect(const wire::VerbsPair& peer, const Settings& settings) {
  const Library& library = rail_.domain->library();
  const Rail& rail = rail_.rail;
  const wire::VerbsPair own = describe();

  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = mtu_of(std::min(own.mtu, peer.mtu));  // both ends must have the same
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.first_packet;
  attributes.max_dest_rd_atomic = std::min(own.reads_in, std::max<uint8_t>(peer.reads_out, 1));
  attributes.min_rnr_timer = kNotReadyTimer;
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.sl = settings.service_level;
  attributes.ah_attr.port_num = rail.port.number;
  if (needs_global_route(rail, peer.gid)) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    attributes.ah_attr.grh.sgid_index = rail.gid.index;
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = settings.traffic_class;
  }
  const auto failed = [&](const char* state, int error) {
    Gid gid = rail.gid;
    gid.bytes = peer.gid;
    return errno_status(
        Code::kUnavailable,
        text({"cannot bring the queue pair on ", where(rail), " to the state ", state,
              " towards the peer's ", gid.to_string(), " (is there a route to it?)"}),
        error);
  };
  if (const int error =
          library.modify_qp(pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
      error != 0)
    return failed("RTR", error);

  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = settings.timeout;
  attributes.retry_cnt = settings.retry_count;
  attributes.rnr_retry = kNotReadyRetries;
  attributes.sq_psn = first_packet_;
  max_reads_ = std::min(own.reads_out, std::max<uint8_t>(peer.reads_in, 1));
  attributes.max_rd_atomic = static_cast<uint8_t>(max_reads_);
  if (const int error =
          library.modify_qp(pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
      error != 0)
    return failed("RTS", error);
  return {};
}

void QueuePair::reset() {
  if (!pair_) return;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  // A device that refuses even that has to give the queue pair up altogether.
  if (rail_.domain->library().modify_qp(pair_, &attributes, IBV_QP_STATE) != 0) destroy();
  posted_.clear();
  reads_ = 0;
}

void QueuePair::destroy() {
  if (!pair_) return;
  rail_.domain->library().destroy_qp(std::exchange(pair_, nullptr));
  posted_.clear();
  reads_ = 0;
}

bool QueuePair::broken() const {
  if (!pair_) return true;
  ibv_qp_attr attributes{};
  ibv_qp_init_attr made{};
  if (rail_.domain->library().query_qp(pair_, &attributes, IBV_QP_STATE, &made) != 0) return true;
  return attributes.qp_state == IBV_QPS_ERR || attributes.qp_state == IBV_QPS_SQE;
}

Status QueuePair::post(ibv_send_wr& request, Posted what) {
  // One SEND in several is signalled: its completion tells of those before it. Everything else is
  // waited for by somebody.
  const bool signalled =
      what.kind != Posted::Kind::kSend || ++unsignalled_ >= std::max(depth_ / 8, 1u);
  if (signalled) {
    request.send_flags |= IBV_SEND_SIGNALED;
    unsignalled_ = 0;
  }
  request.wr_id = first_ + posted_.size();
  request.next = nullptr;
  ibv_send_wr* bad = nullptr;
  const int error = pair_ ? ibv_post_send(pair_, &request, &bad) : EINVAL;
  if (error != 0)
    return errno_status(Code::kUnavailable, "cannot post a request on " + where(rail_.rail), error);
  if (what.kind == Posted::Kind::kRead) ++reads_;
  bytes_ += what.bytes;
  posted_.push_back(std::move(what));
  return {};
}

Status QueuePair::post_receive(uint64_t buffer, std::byte* data, uint32_t size, uint32_t key) {
  ibv_sge piece{reinterpret_cast<uint64_t>(data), size, key};
  ibv_recv_wr request{};
  request.wr_id = kReceiveRequest | buffer;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  const int error = pair_ ? ibv_post_recv(pair_, &request, &bad) : EINVAL;
  if (error != 0)
    return errno_status(Code::kUnavailable, "cannot post a receive on " + where(rail_.rail), error);
  return {};
}

Status completion_error(const Library& library, const ibv_wc& completion, const Rail& rail) {
  const auto say = [&](Code code, const char* sentence) {
    return Status{
        code, text({sentence, " (", rail.device, ":", static_cast<uint32_t>(rail.port.number), ", ",
                    library.wc_status_str(completion.status), ")"})};
  };
  switch (completion.status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return say(Code::kUnavailable,
                 "the peer does not answer: its process has ended, or the link to it is down");
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return say(Code::kUnavailable, "the peer had no receive buffer ready for too long");
    case IBV_WC_REM_ACCESS_ERR:
      return say(Code::kPermissionDenied,
                 "the peer's device refused the access: outside of what was exposed, or without "
                 "the right to it");
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return say(Code::kUnavailable, "the peer's device could not carry out the request");
    case IBV_WC_WR_FLUSH_ERR:
      return say(Code::kUnavailable,
                 "the queue pair has stopped: the peer misused it, or a device or port failed");
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_MW_BIND_ERR:
      return say(Code::kInternal, "a request that this end's device refuses");
    default:
      return say(Code::kUnavailable, "a request to the peer failed");
  }
}

}  // namespace tw::verbs
