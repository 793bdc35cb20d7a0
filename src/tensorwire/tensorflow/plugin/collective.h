// SPDX-License-Identifier: Apache-2.0
// Where TensorFlow's collectives come by. They go by groups of ranks, where all members of a
// collective can do that (group.h). Of those that stay with TensorFlow's own algorithms (ring,
// tree), buffers of other workers are fetched over a link, or by TensorFlow's own RecvBuf where
// there is none.
#pragma once

#include <memory>
#include <string>

#include "peers.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tensorwire {

// `workers`: lives as long as anybody receives, or asks a worker, through it. TensorFlow's default
// cache does not: it goes when the server's cluster is defined anew. `host`: the name by which the
// cluster knows this worker's host.
std::unique_ptr<tensorflow::CollectiveExecutorMgrInterface> make_collective_manager(
    const tensorflow::ConfigProto& config, const tensorflow::WorkerEnv* environment,
    const SharedWorkerCache& workers, const std::string& worker_name, const std::string& host);

}  // namespace tensorwire
