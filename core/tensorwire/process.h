// SPDX-License-Identifier: Apache-2.0
// The C ABI: the process: facts and counters, settings, traces, the audit trail.
#ifndef TENSORWIRE_PROCESS_H
#define TENSORWIRE_PROCESS_H

#include "tensorwire/values.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- facts and counters ----

enum { TW_NUMBER = 0, TW_TEXT = 1, TW_RECORD = 2, TW_LIST = 3 };

// A value; of a record or a list those within. Good as long as the visit.
typedef struct tw_fact {
  const char* name;  // in a record; else empty
  int32_t kind;
  int64_t number;
  const char* text;
  const struct tw_fact* facts;
  size_t count;
} tw_fact;
typedef void (*tw_visit_fact)(void* context, const tw_fact* fact);

enum { TW_COUNTER = 0, TW_GAUGE = 1 };  // only ever grows; may fall, too

typedef struct tw_label {
  const char* name;  // null: none
  const char* value;
} tw_label;

// What a number means. Several share a metric if they differ in their labels.
typedef struct tw_counter {
  const char* name;    // in statistics
  const char* metric;  // ends with the unit where that is bytes
  const char* unit;
  const char* help;  // of the metric: a sentence
  int32_t kind;
  int32_t by_size;  // the metric has one for each tw_size_class, of which this is the sum
  tw_label labels[2];
} tw_counter;

// Of each link, and of the memory of this process. Static; values come in the same order.
const tw_counter* tw_link_counters(size_t* count);
const tw_counter* tw_memory_counters(size_t* count);

typedef struct tw_size_class {
  uint64_t upto;  // bytes of payload, at most
  uint64_t messages_sent, bytes_sent, messages_received, bytes_received;
} tw_size_class;

// The sizes at which messages of a link change their protocol.
enum { TW_COALESCE_BYTES = 0, TW_EAGER_BYTES = 1, TW_CHUNK_BYTES = 2, TW_THRESHOLDS = 3 };
typedef struct tw_threshold {
  const char* name;  // as the setting's: static
  uint64_t bytes;
  const char* source;  // static: default, table, online, environment or argument
} tw_threshold;
// What one may be, in bytes. 0: there is none of this number.
int tw_threshold_range(int threshold, uint64_t* lowest, uint64_t* highest);

// Of one link. Good as long as the visit.
typedef struct tw_statistics {
  const char* transport;
  const char* peer;
  const char* crowded_reason;   // why a segment was last pushed for want of room; null: none was
  const char* unshared_reason;  // why memory of the arena was last pushed; null: none was
  const uint64_t* values;
  size_t count;
  const tw_size_class* classes;  // the last one without a limit: UINT64_MAX
  size_t class_count;
  tw_threshold thresholds[TW_THRESHOLDS];
  const char* unmapped_reason;  // why a region was last not mapped; null: none was
} tw_statistics;
typedef void (*tw_visit_statistics)(void* context, const tw_statistics* statistics);

// ---- process ----

const char* tw_version(void);
// What this host offers: one record.
void tw_host(tw_visit_fact visit, void* context);

// A transport. Good as long as the visit.
typedef struct tw_transport {
  const char* name;
  int32_t local;  // for processes of one user on one host
  int32_t lends;  // large segments stay in the sender's arena until the receiver has read them
} tw_transport;
typedef void (*tw_visit_transport)(void* context, const tw_transport* transport);
// Those that a link's is chosen among, best first.
void tw_each_transport(tw_visit_transport visit, void* context);
// Ok, or why this process cannot have links by the transport, and what to do about it. NOT_FOUND:
// there is none of this name.
int tw_transport_why_not(const char* name, tw_status* status);

// Joins the runtime's threads. Nothing of the runtime may be used afterwards. For the end of the
// interpreter.
void tw_shut_down(void);

// ---- settings ----

// A setting. Good as long as the visit.
typedef struct tw_setting {
  const char* variable;  // of the environment
  const char* name;      // among the settings in force; empty: whoever needs it reads it anew
  const char* alias_of;  // the variable that this one is another name of; null: it is none
  const char* fallback;  // what it is where nobody sets it
  const char* permitted;
  const char* help;  // what for
} tw_setting;
typedef void (*tw_visit_setting)(void* context, const tw_setting* setting);

// All that there are.
void tw_each_setting(tw_visit_setting visit, void* context);
// Those in force: one record of numbers and texts. INVALID_ARGUMENT: one is wrong.
int tw_settings(tw_visit_fact visit, void* context, tw_status* status);
// Ok where links use the table that TENSORWIRE_LINK_TUNING names, or there is none.
// INVALID_ARGUMENT: it is not as it should be, and none is used.
int tw_link_tuning(tw_status* status);
// What one holds now, as it is meant; empty: it is not set, or it is another name of one that is,
// and has no effect. INVALID_ARGUMENT: it is wrong. NOT_FOUND: it is no setting. OUT_OF_RANGE:
// `room` is too small.
int tw_read_setting(const char* variable, char* value, size_t room, tw_status* status);

// ---- traces ----

// A protocol step of a link: MESSAGE, MAP, EAGER, DATA, RTS, READ, READ_DONE, FIN, CREDIT,
// ABORT, GOAWAY, SEND (docs/trace.md).
typedef struct tw_trace_event {
  int64_t time_ns;   // of CLOCK_MONOTONIC
  const char* step;  // static
  int32_t sent;      // by this end; 0: received
  uint32_t segment;
  uint64_t stream, message, bytes, id;
} tw_trace_event;
typedef void (*tw_visit_event)(void* context, const tw_trace_event* event);

// Has all links, those of now and those to come, forget what they have noted and keep their last
// `events` steps from now on; 0: none.
int tw_trace(size_t events, tw_status* status);

// ---- audit ----

// What peers did wrong. kind and reason are among a few fixed words (docs/metrics.md).
typedef void (*tw_visit_incident)(void* context, const char* kind, const char* reason,
                                  uint64_t count);
// Visits each reason with the number of its incidents in this process.
int tw_incidents(tw_visit_incident visit, void* context, tw_status* status);

// A line for a log. Of each reason, only some incidents get one.
typedef struct tw_audit_line {
  const char* kind;    // static
  const char* reason;  // static
  uint64_t more;       // incidents of this reason without a line since the last one
  char peer[256];      // an address as gRPC writes it
  char details[1020];  // a sentence; bytes in it may be of a peer's choice
} tw_audit_line;
// The next line, for one thread. DEADLINE_EXCEEDED; UNAVAILABLE once closed and all is told.
int tw_audit_next(const tw_wait* wait, tw_audit_line* out, tw_status* status);
void tw_audit_close(void);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_PROCESS_H
