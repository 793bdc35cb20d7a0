// SPDX-License-Identifier: Apache-2.0
// Facts, statistics and protocol steps as dicts and tuples.
#include "binding.h"

namespace binding {

namespace {

nb::object value_of(const tw_fact& fact) {
  if (fact.kind == TW_NUMBER) return made(PyLong_FromLongLong(fact.number));
  if (fact.kind == TW_TEXT) return made(PyUnicode_FromString(fact.text));
  if (fact.kind == TW_LIST) {
    nb::list list;
    for (size_t i = 0; i < fact.count; ++i) list.append(value_of(fact.facts[i]));
    return list;
  }
  nb::dict record;
  for (size_t i = 0; i < fact.count; ++i) record[fact.facts[i].name] = value_of(fact.facts[i]);
  return record;
}

}  // namespace

// One protocol step, as a tuple in a list.
void visit_event(void* context, const tw_trace_event* event) {
  const nb::tuple step =
      nb::make_tuple(event->time_ns, event->sent ? "sent" : "received", event->step, event->stream,
                     event->message, event->segment, event->bytes, event->id);
  PyList_Append(static_cast<PyObject*>(context), step.ptr());
}

void visit_record(void* context, const tw_fact* record) {
  *static_cast<nb::dict*>(context) = nb::cast<nb::dict>(value_of(*record));
}

void put_values(nb::dict& into, const tw_counter* counters, const uint64_t* values, size_t count) {
  for (size_t i = 0; i < count; ++i) into[counters[i].name] = values[i];
}

nb::dict dict_of(const tw_statistics& found) {
  nb::dict stats;
  stats["transport"] = found.transport;
  stats["peer"] = decoded(found.peer);
  size_t known;
  put_values(stats, tw_link_counters(&known), found.values, found.count);
  if (found.crowded_reason) stats["crowded_reason"] = decoded(found.crowded_reason);
  if (found.unshared_reason) stats["unshared_reason"] = decoded(found.unshared_reason);
  if (found.unmapped_reason) stats["unmapped_reason"] = decoded(found.unmapped_reason);
  nb::dict classes;
  for (size_t i = 0; i < found.class_count; ++i) {
    const tw_size_class& each = found.classes[i];
    nb::dict counted;
    counted["messages_sent"] = each.messages_sent;
    counted["bytes_sent"] = each.bytes_sent;
    counted["messages_received"] = each.messages_received;
    counted["bytes_received"] = each.bytes_received;
    classes[each.upto == UINT64_MAX ? "inf" : std::to_string(each.upto).c_str()] = counted;
  }
  stats["classes"] = classes;
  nb::dict thresholds;
  for (const tw_threshold& each : found.thresholds)
    thresholds[each.name] = nb::make_tuple(each.bytes, each.source);
  stats["thresholds"] = thresholds;
  return stats;
}

void visit_stats(void* context, const tw_statistics* found) {
  *static_cast<nb::dict*>(context) = dict_of(*found);
}

nb::list declared(const tw_counter* counters, size_t count) {
  nb::list list;
  for (size_t i = 0; i < count; ++i) {
    const tw_counter& each = counters[i];
    nb::dict labels;
    for (const tw_label& label : each.labels)
      if (label.name) labels[label.name] = label.value;
    nb::dict row;
    row["name"] = each.name;
    row["metric"] = each.metric;
    row["unit"] = each.unit;
    row["kind"] = each.kind == TW_COUNTER ? "counter" : "gauge";
    row["help"] = each.help;
    row["labels"] = labels;
    row["by_size"] = each.by_size != 0;
    list.append(row);
  }
  return list;
}

}  // namespace binding
