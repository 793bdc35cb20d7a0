// SPDX-License-Identifier: Apache-2.0
// What ranks without common memory do: operations made of messages.
//
// All ranks of the team call the same one. Arguments and errors are as those of Fabric; roots are
// places in the team.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "collective/messages.h"

namespace tw::collective::steps {

// By dissemination: after k rounds a rank knows of 2^k others (D. Hensgen, R. Finkel, U. Manber,
// "Two algorithms for barrier synchronization", IJPP 1988).
Status barrier(Messages& messages);

// By algorithm(): broadcast, reduce, all-reduce, reduce-scatter and all-gather. Of a reduce `out`
// is written on the root alone.
Status broadcast(Messages& messages, int root, std::byte* data);
Status reduce(Messages& messages, int root, const std::byte* in, std::byte* out);
Status all_reduce(Messages& messages, const std::byte* in, std::byte* out);
Status reduce_scatter(Messages& messages, const std::byte* in, std::byte* out);
Status all_gather(Messages& messages, const std::byte* in, std::byte* out);

// By rank: the bytes for it, and those from it; nothing: no message goes that way.
using Given = std::vector<std::optional<std::span<const std::byte>>>;
using Taken = std::vector<std::optional<std::span<std::byte>>>;
// Every pair of ranks at once: all-to-all, gathers and scatter. This rank's own are not looked at.
Status exchange(Messages& messages, const Given& gives, const Taken& takes);

}  // namespace tw::collective::steps
