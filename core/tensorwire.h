// SPDX-License-Identifier: Apache-2.0
// The C ABI of the tensorwire runtime: the one door for the Python binding, framework plugins and
// foreign code.
//
// Handles are opaque and counted; each tw_*_release gives one reference back. All functions may be
// called from any thread, and none calls back except through tw_wait, visitors and tw_owner.
//
// Results: TW_OK is success, a positive number a TW_CODE_* whose sentence is in *status (which may
// be null), and TW_INTERRUPTED means that tw_wait.interrupted asked to give up.
//
// Memory: no function throws. One that has no memory for its work gives RESOURCE_EXHAUSTED; one
// without a status gives null or 0, and nothing was done. Visits stop early, and may have begun.
// What closes or releases does its work nevertheless: a link to which that cannot be told is lost.
//
// Waiting: each function that may wait takes a tw_wait. It waits no longer than timeout_ns
// (negative: for ever), and calls interrupted(context), with no lock held, on each signal and at
// least every quarter of a second.
//
// Memory to send is only read, and may be written or freed once the function has returned, unless
// it is lent with a tw_owner or kept by a tw_keeper.
//
// Fork: handles made before fork() fail with FAILED_PRECONDITION in the child, and releasing them
// does nothing there.
#ifndef TENSORWIRE_H
#define TENSORWIRE_H

#include "tensorwire/call.h"
#include "tensorwire/collective.h"
#include "tensorwire/device.h"
#include "tensorwire/memory.h"
#include "tensorwire/peer.h"
#include "tensorwire/process.h"
#include "tensorwire/route.h"
#include "tensorwire/server.h"
#include "tensorwire/table.h"
#include "tensorwire/values.h"

#endif  // TENSORWIRE_H
