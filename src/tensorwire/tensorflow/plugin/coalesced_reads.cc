// SPDX-License-Identifier: Apache-2.0
#include "coalesced_reads.h"

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "statistics.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// After TensorFlow's own passes, whose clusters of XLA and functions are then as they will be.
constexpr int kPhase = std::numeric_limits<int>::max();

// In bytes. Up to here two copies cost less than a tensor's own way (decision 30).
constexpr int64_t kLargest = 64 << 10;

// Of one stack, in bytes: the first tensors are used while others are still on their way, and who
// keeps one of them keeps no more than that.
constexpr int64_t kLargestStack = 4 << 20;

// What every TensorFlow that may be at the other end has kernels of Pack and Unpack for.
constexpr tf::DataTypeSet kTypes =
    tf::ToSet(tf::DT_BOOL) | tf::ToSet(tf::DT_HALF) | tf::ToSet(tf::DT_BFLOAT16) |
    tf::ToSet(tf::DT_FLOAT) | tf::ToSet(tf::DT_DOUBLE) | tf::ToSet(tf::DT_COMPLEX64) |
    tf::ToSet(tf::DT_COMPLEX128) | tf::ToSet(tf::DT_INT8) | tf::ToSet(tf::DT_INT16) |
    tf::ToSet(tf::DT_INT32) | tf::ToSet(tf::DT_INT64) | tf::ToSet(tf::DT_UINT8) |
    tf::ToSet(tf::DT_UINT16) | tf::ToSet(tf::DT_UINT32) | tf::ToSet(tf::DT_UINT64);

// What is stacked has one type and one shape.
struct Value {
  tf::DataType type;
  std::vector<int64_t> shape;

  int64_t elements() const { return tf::TensorShape(shape).num_elements(); }
  bool operator<(const Value& other) const {
    return std::tie(type, shape) < std::tie(other.type, other.shape);
  }
};

bool has_control_input(const tf::Node& node) {
  for (const tf::Edge* edge : node.in_edges())
    if (edge->IsControlEdge() && !edge->src()->IsSource()) return true;
  return false;
}

// What the variable holds whose handle this is.
std::optional<Value> held(const tf::Node& handle) {
  tf::DataType type;
  tf::PartialTensorShape shape;
  if (handle.type_string() == "VarHandleOp") {
    if (!tf::GetNodeAttr(handle.attrs(), "dtype", &type).ok() ||
        !tf::GetNodeAttr(handle.attrs(), "shape", &shape).ok())
      return std::nullopt;
  } else if (handle.IsArg()) {
    // Of a function: TensorFlow says what the handles are that it is called with.
    std::vector<tf::DataType> types;
    std::vector<tf::PartialTensorShape> shapes;
    if (!tf::GetNodeAttr(handle.attrs(), "_handle_dtypes", &types).ok() ||
        !tf::GetNodeAttr(handle.attrs(), "_handle_shapes", &shapes).ok() || types.size() != 1 ||
        shapes.size() != 1)
      return std::nullopt;
    type = types[0];
    shape = shapes[0];
  } else {
    return std::nullopt;
  }
  tf::TensorShape known;
  if (!shape.AsTensorShape(&known)) return std::nullopt;
  const auto sizes = known.dim_sizes();
  return Value{type, {sizes.begin(), sizes.end()}};
}

// What the node outputs, where that is the value of a variable, and nothing has to come first:
// neither an update nor anything of another machine. So all such values are ready when a step
// begins, none is dead, and none is in a loop.
std::optional<Value> value_of(const tf::Node& node) {
  if (has_control_input(node)) return std::nullopt;
  const tf::Node* from = nullptr;
  if (node.type_string() != "ReadVariableOp" && !node.IsIdentity()) return std::nullopt;
  if (!node.input_node(0, &from).ok()) return std::nullopt;
  if (!node.IsIdentity()) return has_control_input(*from) ? std::nullopt : held(*from);
  if (from->assigned_device_name() != node.assigned_device_name()) return std::nullopt;
  // Not through a chain of them, which may have any length; TensorFlow's optimizer leaves none.
  return from->IsIdentity() ? std::nullopt : value_of(*from);
}

bool is_cpu_of(const std::string& device, tf::DeviceNameUtils::ParsedName* parsed) {
  return tf::DeviceNameUtils::ParseFullName(device, parsed) && parsed->has_type &&
         parsed->type == tf::DEVICE_CPU;
}

// Whether what goes from one to the other leaves the process, between processors' memories.
bool crosses(const std::string& from, const std::string& to) {
  if (from == to) return false;
  tf::DeviceNameUtils::ParsedName a, b;
  return is_cpu_of(from, &a) && is_cpu_of(to, &b) && !tf::DeviceNameUtils::IsSameAddressSpace(a, b);
}

bool is_small(const Value& value) {
  if (!kTypes.Contains(value.type)) return false;
  const int64_t elements = value.elements();
  return elements > 0 && elements <= kLargest / tf::DataTypeSize(value.type);
}

// From a device to another one.
using Stacked = std::tuple<std::string, std::string, Value>;
using Reads = std::vector<tf::Node*>;

std::map<Stacked, Reads> small_reads(const tf::Graph& graph) {
  std::map<Stacked, Reads> found;
  for (tf::Node* node : graph.op_nodes()) {
    const std::string& from = node->assigned_device_name();
    std::optional<Value> value;
    for (const tf::Edge* edge : node->out_edges()) {
      const std::string& to = edge->dst()->assigned_device_name();
      if (edge->IsControlEdge() || !crosses(from, to)) continue;
      if (!value) value = value_of(*node);
      if (!value || !is_small(*value)) break;
      Reads& reads = found[{from, to, *value}];
      if (reads.empty() || reads.back() != node) reads.push_back(node);
    }
  }
  return found;
}

absl::Status coalesce(tf::Graph* graph, const std::string& from, const std::string& to,
                      absl::Span<tf::Node* const> reads) {
  const std::vector<tf::NodeBuilder::NodeOut> values(reads.begin(), reads.end());
  tf::Node *stack, *apart;
  absl::Status status = tf::NodeBuilder(graph->NewName("tensorwire/coalesced"), "Pack")
                            .Input(values)
                            .Attr("axis", 0)
                            .Device(from)
                            .AssignedDevice(from)
                            .Finalize(graph, &stack);
  if (!status.ok()) return status;
  status = tf::NodeBuilder(graph->NewName("tensorwire/reads"), "Unpack")
               .Input(stack)
               .Attr("num", static_cast<int64_t>(reads.size()))
               .Attr("axis", 0)
               .Device(to)
               .AssignedDevice(to)
               .Finalize(graph, &apart);
  if (!status.ok()) return status;
  for (size_t i = 0; i < reads.size(); ++i) {
    std::vector<const tf::Edge*> there;
    for (const tf::Edge* edge : reads[i]->out_edges())
      if (!edge->IsControlEdge() && edge->dst()->assigned_device_name() == to)
        there.push_back(edge);
    for (const tf::Edge* edge : there) {
      status = graph->UpdateEdge(apart, static_cast<int>(i), edge->dst(), edge->dst_input());
      if (!status.ok()) return status;
    }
  }
  count(statistics().coalesced_reads, reads.size());
  return absl::OkStatus();
}

class CoalescedReads final : public tf::GraphOptimizationPass {
 public:
  absl::Status Run(const tf::GraphOptimizationPassOptions& options) override {
    if (!options.graph || !*options.graph) return absl::OkStatus();
    tf::Graph* const graph = options.graph->get();
    for (const auto& [stacked, reads] : small_reads(*graph)) {
      const auto& [from, to, value] = stacked;
      const absl::Span<tf::Node* const> all = reads;
      const size_t most = kLargestStack / (value.elements() * tf::DataTypeSize(value.type));
      for (size_t at = 0; at < all.size(); at += most) {
        const auto some = all.subspan(at, most);
        if (some.size() < 2) continue;
        if (absl::Status status = coalesce(graph, from, to, some); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

void register_coalesced_reads() {
  auto pass = std::make_unique<CoalescedReads>();
  pass->set_name("tensorwire_coalesced_reads");
  tf::OptimizationPassRegistry::Global()->Register(
      tf::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, kPhase, std::move(pass));
}

}  // namespace tensorwire
