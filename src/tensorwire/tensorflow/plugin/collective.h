// Where TensorFlow's collectives (ring, tree) come by: buffers of other workers are fetched over a
// link, or by TensorFlow's own RecvBuf where there is none.
#pragma once

#include <memory>

#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tensorwire {

std::unique_ptr<tensorflow::CollectiveExecutorMgrInterface> make_collective_manager(
    const tensorflow::ConfigProto& config, const tensorflow::WorkerEnv* environment,
    tensorflow::WorkerCacheInterface* workers, const std::string& worker_name);

}  // namespace tensorwire
