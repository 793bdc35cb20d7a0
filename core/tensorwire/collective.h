// SPDX-License-Identifier: Apache-2.0
// The C ABI: groups of ranks, and collectives.
#ifndef TENSORWIRE_COLLECTIVE_H
#define TENSORWIRE_COLLECTIVE_H

#include "tensorwire/device.h"
#include "tensorwire/values.h"

#ifdef __cplusplus
extern "C" {
#endif

// Types of elements.
enum {
  TW_FLOAT64 = 0,
  TW_FLOAT32 = 1,
  TW_FLOAT16 = 2,
  TW_BFLOAT16 = 3,
  TW_FLOAT8_E4M3 = 4,
  TW_FLOAT8_E5M2 = 5,
  TW_INT8 = 6,
  TW_INT16 = 7,
  TW_INT32 = 8,
  TW_INT64 = 9,
  TW_UINT8 = 10,
  TW_UINT16 = 11,
  TW_UINT32 = 12,
  TW_UINT64 = 13,
  TW_BOOL = 14
};

// Reductions. Floats of 16 and 8 bits are added up in 32; an average of integers is cut towards 0;
// the sum of bools is "or", their product "and". NaN wins in a minimum and a maximum.
enum {
  TW_SUM = 0,
  TW_AVERAGE = 1,
  TW_PRODUCT = 2,
  TW_MIN = 3,
  TW_MAX = 4,
  TW_BIT_AND = 5,
  TW_BIT_OR = 6,
  TW_BIT_XOR = 7,
  // Of the arrays as vectors: what two ranks' have in common counts once (S. Maleki et al., MLSys
  // 2021). Of floats of 16 bits and more, which are rounded once.
  TW_ADASUM = 8
};

enum {
  TW_BARRIER = 0,
  TW_ALL_REDUCE = 1,
  TW_REDUCE = 2,
  TW_BROADCAST = 3,
  TW_ALL_GATHER = 4,
  TW_REDUCE_SCATTER = 5,
  TW_ALL_TO_ALL = 6,
  TW_GATHER = 7,
  TW_SCATTER = 8
};

// Where the ranks of a group find each other: values by key. What is in it admits to the group, so
// nobody else may reach it. Both return TW_OK, or a TW_CODE_* with a sentence in *status; get waits
// for the key, for timeout_ns at most (negative: for ever), and hands the value to `give`, once.
typedef void (*tw_give)(void* sink, const void* value, size_t size);
typedef struct tw_store {
  void* context;
  int (*set)(void* context, const char* key, const void* value, size_t size, tw_status* status);
  int (*get)(void* context, const char* key, int64_t timeout_ns, tw_give give, void* sink,
             tw_status* status);
} tw_store;

// Joins the group: returns once all ranks have come. `host`: the address at which ranks of other
// hosts reach this one; null: as TENSORWIRE_GROUP_HOST says, or 127.0.0.1. `deterministic` 1: the
// way of an operation depends on it, its bytes and type, the ranks and their hosts, and on nothing
// else; 0: as TENSORWIRE_DETERMINISTIC says. INVALID_ARGUMENT, DEADLINE_EXCEEDED (the text names
// who has not come), UNAVAILABLE, FAILED_PRECONDITION (also: ranks differ in what the group is to
// be), RESOURCE_EXHAUSTED, or an error of the store's.
int tw_group_join(const tw_store* store, int rank, int size, const char* host, int deterministic,
                  const tw_wait* wait, tw_group** out, tw_status* status);
// Leaves it. Ranks that still need something of this one get UNAVAILABLE.
void tw_group_release(tw_group* group);
int tw_group_rank(const tw_group* group);
int tw_group_size(const tw_group* group);
// How its data moves, for people: "shared memory", "messages", or "shared memory and messages";
// empty: there is one rank.
const char* tw_group_fabric(const tw_group* group);
// 1: the table of `tensorwire tune collectives` decides which ways its operations go, which all
// ranks have. 0: constants do. *why_not (null, or where the text goes, which lives as long as the
// group) says why, or why it does not decide between hosts; empty where nothing is amiss.
int tw_group_tuned(const tw_group* group, const char** why_not);
// The names of the algorithms of all-reduces by messages; null: no more.
const char* tw_algorithm(size_t index);

// How often each operation has gone which way, with the bytes that this rank gave or was given.
// `group` null: of all groups of this process, those that have ended, too.
typedef void (*tw_visit_operations)(void* context, const char* operation, const char* way,
                                    uint64_t operations, uint64_t bytes);
void tw_group_statistics(const tw_group* group, tw_visit_operations visit, void* context);
// 1: the process behind a rank of the group is gone, or has left; a group that has failed knows it,
// too. 0: as far as this process knows it is there.
int tw_group_gone(const tw_group* group, int rank);
// Ends it for all ranks; operations that are under way end with `why`.
void tw_group_abort(tw_group* group, const char* why);

// All ranks call the same operations in the same order. One that fails ends the group for all:
// ABORTED (ranks called different ones: the text says who called what), DEADLINE_EXCEEDED,
// UNAVAILABLE (a rank is gone), CANCELLED, RESOURCE_EXHAUSTED. It returns the same from then on.
// INVALID_ARGUMENT for arguments that are wrong by themselves: nothing has happened.
//
//   kind               in                        out                       count, in elements
//   TW_BARRIER         null                      null                      0
//   TW_ALL_REDUCE      the array                 the result; may be `in`   of the array
//   TW_REDUCE          the array                 the root's result         of the array
//   TW_BROADCAST       null                      the array, on each rank   of the array
//   TW_ALL_GATHER      what this rank gives      of all ranks, in order    that a rank gives
//   TW_GATHER          what this rank gives      the root's, as above      that a rank gives
//   TW_SCATTER         the root's, for each      what this rank gets       that a rank gets
//   TW_REDUCE_SCATTER  a share for each rank     this rank's share         of a share
//
// `root` is a rank, or, where an operation has none, a number on which ranks have to agree besides:
// 0, or a digest of the sizes of arrays that travel as one.
typedef struct tw_collective {
  int kind, type, op, root;
  // 1, or, in a sum or an average of floats: this rank's array is multiplied by it first.
  double factor;
  uint64_t count;
} tw_collective;
int tw_group_run(tw_group* group, const tw_collective* operation, const void* in, void* out,
                 const tw_wait* wait, tw_status* status);

// Bytes at an offset, for or from a rank.
typedef struct tw_run {
  uint64_t offset, size;
} tw_run;
// Operations of any sizes: `gives` has a run of `in` for each rank, `takes` a run of `out` from
// each, in bytes; the two do not overlap. `count` is not looked at. INVALID_ARGUMENT, which ends
// the group, when a rank gives another size than the other one takes.
//
//   kind               gives                      takes
//   TW_ALL_TO_ALL      what each rank gets        what each rank gives
//   TW_ALL_GATHER      one run, for each rank     what each rank gives
//   TW_GATHER          empty, but for the root    empty, but on the root
//   TW_SCATTER         empty, but on the root     empty, but from the root
//   TW_REDUCE_SCATTER  the shares of the ranks    null: `out` has this rank's share
int tw_group_exchange(tw_group* group, const tw_collective* operation, const void* in,
                      const tw_run* gives, void* out, const tw_run* takes, const tw_wait* wait,
                      tw_status* status);

// The same for arrays in the memory of a device; on all ranks, each with one of its own. They
// return when the result is there: nothing has to be waited for then, nor is anything in use.
// `device` null, or -1 as its ordinal and arrays of the host's: as the two above.
// FAILED_PRECONDITION: this host has no device, and nothing has happened. What fails on a device
// ends the group, INTERNAL among the codes.
int tw_group_run_on(tw_group* group, const tw_collective* operation, const tw_device* device,
                    const void* in, void* out, const tw_wait* wait, tw_status* status);
int tw_group_exchange_on(tw_group* group, const tw_collective* operation, const tw_device* device,
                         const void* in, const tw_run* gives, void* out, const tw_run* takes,
                         const tw_wait* wait, tw_status* status);

// One message to one rank, and from one, by a tag below 2^62; those of a tag in their order.
// OUT_OF_RANGE: what came has another size than `into`, and was dropped.
int tw_group_send(tw_group* group, int rank, uint64_t tag, const void* data, size_t size,
                  const tw_wait* wait, tw_status* status);
int tw_group_receive(tw_group* group, int rank, uint64_t tag, void* into, size_t size,
                     const tw_wait* wait, tw_status* status);
// From whichever rank's message is there first. Other receives with the tag that begin meanwhile
// wait for it.
int tw_group_receive_any(tw_group* group, uint64_t tag, void* into, size_t size, int* rank,
                         const tw_wait* wait, tw_status* status);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_COLLECTIVE_H
