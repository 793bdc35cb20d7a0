// SPDX-License-Identifier: Apache-2.0
#include "collective/steps/steps.h"

namespace tw::collective::steps {

Status barrier(Messages& messages) {
  const Team& team = messages.team();
  for (int k = 1; k < team.size(); k *= 2) {
    if (Status status = messages.send(team.after(k), {}); !status.ok()) return status;
    if (auto there = messages.receive(team.before(k), 0); !there) return there.status();
  }
  return messages.finish();
}

}  // namespace tw::collective::steps
