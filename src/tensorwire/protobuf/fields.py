# SPDX-License-Identifier: Apache-2.0
"""What descriptors say: which fields hold bytes, and which of them may come as views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

# google.protobuf.descriptor's: what its versions and their types know of these differs.
AnyField = Any
AnyDescriptor = Any

Path = tuple[Any, ...]
"""Names of fields, each followed by an index or a map's key where the field has several values."""


def is_repeated(field: AnyField) -> bool:
    """Maps are, too."""
    known = getattr(field, "is_repeated", None)  # since 6.31, where `label` is deprecated
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if known is None else known)


def is_map(field: AnyField) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def entry_class(field: AnyField) -> Any:
    """Of the messages that a map consists of in protobuf's format."""
    return GetMessageClass(field.message_type)


def value_field(field: AnyField) -> AnyField:
    """What describes one value: the field itself, or that of a map's entry."""
    return field.message_type.fields_by_name["value"] if is_map(field) else field


class Choice:
    """Which bytes fields come as views: those with one of these names, or any (None).

    A name is the field's own or its full one, with package and message. ``met`` collects the names
    for which there was a field.
    """

    def __init__(self, names: frozenset[str] | None) -> None:
        self.names: Final = names
        self.met: set[str] = set()

    def takes(self, field: AnyField) -> bool:
        if field.type != FieldDescriptor.TYPE_BYTES:
            return False
        if self.names is None:
            return True
        met = self.names & {field.name, field.full_name}
        self.met |= met
        return bool(met)


class Field:
    """A field that comes as views, or holds messages with such fields."""

    __slots__ = ("entry", "plan", "repeated", "step")

    def __init__(self, field: AnyField, plan: Plan | None) -> None:
        within_map = field.containing_type.GetOptions().map_entry
        self.step: Final[Path] = () if within_map else (field.name,)
        """What it adds to a path, where a value of a map has its key already."""
        self.repeated: Final = is_repeated(field)
        self.entry: Final = entry_class(field) if is_map(field) else None
        self.plan: Final = plan
        """Of the message that it holds, which is the entry for a map; None for bytes."""


Plan = dict[int, Field]
"""What to look for in a message, by the fields' numbers."""


def plan_of(message: AnyDescriptor, choice: Choice) -> Plan:
    """Empty when no message of this type can hold a view."""
    plans: dict[str, Plan] = {}

    def build(message: AnyDescriptor) -> Plan:
        plan = plans.get(message.full_name)
        if plan is None:
            plan = plans[message.full_name] = {}  # first: types may hold themselves
            for field in message.fields:
                if choice.takes(field):
                    plan[field.number] = Field(field, None)
                elif field.type == FieldDescriptor.TYPE_MESSAGE and any(
                    choice.takes(inner) for inner in _all_fields(field.message_type)
                ):
                    plan[field.number] = Field(field, build(field.message_type))
        return plan

    return build(message)


def _all_fields(message: AnyDescriptor) -> Iterator[AnyField]:
    """Of a message and of all that it may hold, at any depth."""
    seen = {message.full_name}
    waiting = [message]
    while waiting:
        for field in waiting.pop().fields:
            yield field
            kind = field.message_type
            if field.type == FieldDescriptor.TYPE_MESSAGE and kind.full_name not in seen:
                seen.add(kind.full_name)
                waiting.append(kind)
