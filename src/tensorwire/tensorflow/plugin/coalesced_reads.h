// SPDX-License-Identifier: Apache-2.0
// Small variables that one process reads of another in each step cross as one tensor. A pass over
// the graph of a whole session or function stacks them where they are, and takes the stack apart
// where they are used, by operations that each TensorFlow has: the other process needs nothing for
// it. The static plans of "RPC Considered Harmful" (arXiv 1805.08430), for what is ready when a
// step begins.
#pragma once

namespace tensorwire {

// For graphs that this process, as a master, divides among devices from now on. Not while another
// thread does that: TensorFlow's list of passes has no lock.
void register_coalesced_reads();

}  // namespace tensorwire
