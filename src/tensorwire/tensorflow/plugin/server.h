// SPDX-License-Identifier: Apache-2.0
// The protocol "grpc+tensorwire": TensorFlow's own gRPC server, whose tensors travel by tensorwire
// wherever the peer has it too.
#pragma once

namespace tensorwire {

inline constexpr char kProtocol[] = "grpc+tensorwire";

// Makes the protocol known to TensorFlow.
void register_server();

}  // namespace tensorwire
