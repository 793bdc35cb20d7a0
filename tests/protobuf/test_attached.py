# SPDX-License-Identifier: Apache-2.0
"""``Attached``: what goes where, what is read back, and the message that it stands for."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import EncodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.protobuf.conftest import Generated

from tensorwire.protobuf import LARGE, Attached


@pytest.fixture(scope="module")
def everything(code: Generated) -> Any:
    return code.everything.Everything


def test_every_kind_of_place(everything: Any) -> None:
    attached = Attached(everything(name="n", blobs=[{"name": "a"}, {"name": "b"}]))
    attached["data"] = b"data"
    attached["maybe"] = b"maybe"
    attached["parts"] = [b"p0", b"", b"p2"]
    attached["blob", "data"] = b"blob"
    attached["blobs", 1, "data"] = b"blobs1"
    attached["table"] = {"x": b"tx", "": b"empty key"}
    attached["table", "y"] = b"ty"
    attached["numbered", -4, "data"] = b"numbered"
    attached["chosen"] = b"chosen"
    attached["inner", "inner", "parts"] = [b"deep"]
    attached["pair", True, "blob", "data"] = b"deeper"

    plain = everything(
        name="n",
        data=b"data",
        maybe=b"maybe",
        parts=[b"p0", b"", b"p2"],
        blob={"data": b"blob"},
        blobs=[{"name": "a"}, {"name": "b", "data": b"blobs1"}],
        table={"x": b"tx", "": b"empty key", "y": b"ty"},
        numbered={-4: {"data": b"numbered"}},
        chosen=b"chosen",
        inner={"inner": {"parts": [b"deep"]}},
        pair={True: {"blob": {"data": b"deeper"}}},
    )
    assert attached.plain() == plain
    assert attached.message.WhichOneof("choice") == "chosen"
    assert attached["data"] == b"data"
    assert attached["parts"] == [b"p0", b"", b"p2"]
    assert attached["parts", -1] == b"p2"
    assert attached["table"] == {"x": b"tx", "": b"empty key", "y": b"ty"}
    assert attached["blobs", -2, "data"] == b""
    assert attached["numbered", -4, "data"] == b"numbered"
    # The same of a message that nothing is attached to.
    inside = Attached(plain)
    assert inside["pair", True, "blob", "data"] == b"deeper"
    assert inside["table", "y"] == b"ty"
    assert inside["parts"] == [b"p0", b"", b"p2"]
    assert inside.plain() == plain
    assert inside.plain() is not plain


def test_empty_and_absent(everything: Any) -> None:
    attached = Attached(everything())
    assert attached["maybe"] == b""
    assert attached["inner", "inner", "data"] == b""
    assert attached["parts"] == []
    assert attached["table"] == {}
    assert not attached.message.HasField("inner"), "reading makes nothing"
    assert attached.segments() == [b""]
    attached["maybe"] = b""
    attached["blob", "data"] = b""
    attached["chosen"] = np.empty(0)
    plain = attached.plain()
    assert plain == everything(maybe=b"", blob={}, chosen=b"")
    assert plain.HasField("blob")
    assert plain.HasField("maybe")
    assert plain.WhichOneof("choice") == "chosen"


def test_attaching_again_replaces(everything: Any) -> None:
    attached = Attached(everything(data=b"inside", parts=[b"a", b"b"], table={"x": b"1"}))
    attached["data"] = b"first"
    attached["data"] = b"second"
    attached["parts", 0] = b"c"
    assert attached["parts"] == [b"c", b"b"]
    attached["parts"] = [b"d"]
    attached["table", "x"] = b"2"
    attached["table"] = {"y": b"3"}
    attached["chosen"] = b"4"
    assert attached.plain() == everything(
        data=b"second", parts=[b"d"], table={"y": b"3"}, chosen=b"4"
    )
    attached["parts"] = []
    assert attached.plain().parts == []


def test_memory_of_all_kinds(everything: Any) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    attached = Attached(everything())
    attached["parts"] = [
        array,
        array.T,
        array[::2],
        array[0, ::-2],
        bytearray(b"abc"),
        memoryview(b"defg")[1:3],
        np.float64(1.5),
        array.astype(">f4"),
    ]
    strided = (array, array.T, array[::2], array[0, ::-2])
    expected = [item.tobytes() for item in strided]
    expected += [b"abc", b"ef", np.float64(1.5).tobytes(), array.astype(">f4").tobytes()]
    assert attached["parts"] == expected
    assert attached.plain().parts == expected
    array[0, 0] = 7  # until it is sent
    assert attached["parts", 0] == array.tobytes()


def test_memory_of_elements_that_no_tensor_has(everything: Any) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_double))

    words = np.array([b"abc", b"d"], "S3")
    records = np.array([(1, 2.5), (3, 4.5)], [("a", "<i4"), ("b", "<f8")])
    dates = np.array([(1, "2020-01-01")], [("a", "<i4"), ("b", "<M8[D]")])
    letters = memoryview(b"abcdef").cast("c")
    given: list[Any] = [words, words[::-1], words[:0], records, records[::-1], records["b"], dates]
    given += [letters, letters[::2], Pair(1, 2.5), (Pair * 0)()]
    attached = Attached(everything())
    attached["parts"] = given
    expected = [bytes(item.tobytes()) for item in (*given[:7], letters, letters[::2])]
    assert attached.plain().parts == [*expected, bytes(Pair(1, 2.5)), b""]
    attached["data"] = records
    records["a"][0] = 7  # until it is sent
    assert attached["data"] == records.tobytes()


def test_large_buffers_are_segments(everything: Any) -> None:
    array, half = np.ones(LARGE, np.uint8), np.zeros(LARGE // 2, np.uint8)
    attached = Attached(everything(name="n"))
    attached["parts"] = [array, half, array]
    segments: Any = attached.segments()
    assert len(segments) == 4
    assert (len(segments[1]), len(segments[3])) == (LARGE, LARGE)
    assert np.shares_memory(np.frombuffer(segments[1], np.uint8), array), "nothing was copied"
    assert everything.FromString(b"".join(segments)) == attached.plain()


def test_views_cannot_be_written(everything: Any) -> None:
    attached = Attached(everything())
    attached["data"] = np.zeros(3)
    assert attached["data"].readonly
    assert attached["maybe"].readonly


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("nothing", KeyError, "Everything has no field 'nothing'"),
        ((), KeyError, "empty"),
        (3, KeyError, "has no field 3"),
        (("blob", "nothing"), KeyError, "Blob has no field 'nothing'"),
        ("name", TypeError, "Everything.name is not of the type bytes"),
        ("blob", TypeError, "not of the type bytes"),
        ("blobs", TypeError, "not of the type bytes"),
        ("numbered", TypeError, "not of the type bytes"),
        (("data", "data"), TypeError, "holds no message"),
        (("parts", "x"), TypeError, "integer"),
        (("parts", 2), IndexError, "has 2 values, none at 2"),
        (("parts", -3), IndexError, "none at -3"),
        (("blobs", 0, "data"), IndexError, "has 0 values"),
    ],
)
def test_wrong_places(everything: Any, path: Any, error: type[Exception], says: str) -> None:
    attached = Attached(everything(parts=[b"a", b"b"]))
    with pytest.raises(error, match=says):
        attached[path]
    with pytest.raises(error, match=says):
        attached[path] = b""
    assert attached.plain().parts == [b"a", b"b"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("chosen_blob", "data"), object()),
        (("chosen_blob", "nosuch"), b"x"),
        (("chosen_blob", "name"), b"x"),
        (("chosen_blob", "data", "more"), b"x"),
        ("chosen", object()),
        ("parts", [b"x", object()]),
        ("table", {"x": b"x", "y": object()}),
        ("table", {"x": b"x", 7: b"x"}),
        ("table", {"x": b"x", None: b"x"}),
        (("table", 7), b"x"),
        (("numbered", 1, "data"), object()),
        (("numbered", "x", "data"), b"x"),
        (("numbered", 1 << 40, "data"), b"x"),
        (("numbered", 1, "nosuch"), b"x"),
        (("inner", "numbered", None, "data"), b"x"),
        (("inner", "parts", 0), b"x"),
    ],
)
def test_what_is_refused_changes_nothing(everything: Any, path: Any, value: Any) -> None:
    message = everything(text="precious", parts=[b"one"], table={"k": b"v"})
    attached = Attached(message)
    before = everything()
    before.CopyFrom(message)
    with pytest.raises((KeyError, TypeError, IndexError, ValueError)):
        attached[path] = value
    assert message == before
    assert attached.plain() == before


def test_keys_are_those_that_the_map_makes_of_them(everything: Any) -> None:
    attached = Attached(everything())
    attached["table", b"one"] = b"1"
    assert bytes(attached["table", "one"]) == b"1"
    assert attached.plain() == everything(table={"one": b"1"})
    attached["table"] = {b"two": b"2"}
    assert attached.plain() == everything(table={"two": b"2"})
    assert b"".join(map(bytes, attached.segments())) == attached.plain().SerializeToString()


def test_missing_keys(everything: Any) -> None:
    attached = Attached(everything())
    with pytest.raises(KeyError, match="has no key 'none'"):
        attached["table", "none"]
    with pytest.raises(KeyError, match="has no key 7"):
        attached["numbered", 7, "data"]
    assert attached.message == everything()


def test_wrong_memory(everything: Any) -> None:
    attached = Attached(everything(parts=[b"a"], table={"x": b"b"}))
    wrong: Any
    records = np.zeros(2, [("a", "O")])
    masked = np.ma.masked_array([b"a"], [True])
    for wrong in ("text", 5, None, [b"list"], np.array([object()]), records, np.str_("s"), masked):
        with pytest.raises(TypeError):
            attached["data"] = wrong
        with pytest.raises(TypeError):
            attached["parts", 0] = wrong
    with pytest.raises(TypeError, match="attach a list of buffers"):
        attached["parts"] = np.zeros((2, 3))
    with pytest.raises(TypeError, match="attach a dict of buffers"):
        attached["table"] = [b"a"]
    with pytest.raises(TypeError):
        attached["table"] = {"y": b"c", "z": 5}
    with pytest.raises(TypeError, match="protobuf message"):
        Attached(b"bytes")  # type: ignore[type-var]
    assert attached.plain() == everything(parts=[b"a"], table={"x": b"b"})


def test_messages_that_were_changed_since(everything: Any) -> None:
    def attached() -> Any:
        made = Attached(everything(blobs=[{}]))
        made["chosen"] = b"a"
        made["parts"] = [b"b"]
        made["table"] = {"x": b"c"}
        made["blobs", 0, "data"] = b"d"
        return made

    changes: Any = (
        (lambda m: m.ClearField("chosen"), "chosen"),
        (lambda m: setattr(m, "text", "t"), "chosen"),
        (lambda m: m.parts.pop(), "parts"),
        (lambda m: m.table.clear(), "table"),
        (lambda m: m.blobs.pop(), "blobs"),
        (lambda m: setattr(m, "chosen", b"e"), "chosen was attached, and set"),
        (lambda m: m.table.update(x=b"e"), "was attached, and set"),
    )
    for change, says in changes:
        made = attached()
        change(made.message)
        with pytest.raises(ValueError, match=says):
            made.segments()
    made = attached()
    made.message.name = "changed"
    made.message.parts.append(b"inside")
    assert made["parts"] == [b"b", b"inside"]
    assert made.plain().name == "changed"
    assert made.plain().parts == [b"b", b"inside"]


def test_detaching(everything: Any) -> None:
    attached = Attached(everything())
    attached["chosen"] = b"a"
    attached["chosen_blob", "data"] = b"b"
    with pytest.raises(ValueError, match=r"chosen has left the message .* detach"):
        attached.plain()
    del attached["chosen"]
    attached["parts"] = [b"c", b"d"]
    del attached["parts", 0]
    assert attached.plain() == everything(chosen_blob={"data": b"b"}, parts=[b"", b"d"])
    del attached["parts"]
    for wrong in ("parts", ("chosen_blob", "name"), "none"):
        with pytest.raises(KeyError, match="nothing is attached"):
            del attached[wrong]
    del attached["chosen_blob"]
    assert attached.plain() == attached.message == everything(chosen_blob={}, parts=[b"", b""])


def test_detaching_counts_from_the_end_as_attaching_does(everything: Any) -> None:
    message = everything(parts=[b"", b""])
    attached = Attached(message)
    attached["parts", -1] = b"a"
    assert attached["parts", -1] == b"a"
    del attached["parts", -1]
    assert attached.plain() == everything(parts=[b"", b""])
    attached["parts", -2] = b"b"
    attached["parts", 1] = b"c"
    with pytest.raises(KeyError, match="nothing is attached"):
        del attached["parts", -3]
    del attached["parts", -2]
    assert attached.plain().parts == [b"", b"c"]
    del message.parts[:]
    del attached["parts", 1]  # where there is nothing any more
    assert attached.plain() == everything()


def test_required_fields_and_what_this_side_does_not_know(code: Generated) -> None:
    old, newer = code.old.Old, code.old.Newer
    with pytest.raises(EncodeError, match="data"):
        Attached(old()).segments()
    assert Attached(old()).plain() == old()
    attached = Attached(old.FromString(newer(data=b"", more=b"unknown").SerializeToString()))
    attached["data"] = b"known"
    sent = newer.FromString(b"".join(attached.segments()))
    assert sent == newer(data=b"known", more=b"unknown")
    with pytest.raises(TypeError, match="holds no message"):
        attached["group", "data"] = b"groups are left to protobuf"


def test_a_message_of_more_than_2_gib_is_refused(everything: Any) -> None:
    attached = Attached(everything())
    attached["parts"] = [bytes(1 << 20)] * 2048
    with pytest.raises(ValueError, match="2 GiB"):
        attached.segments()


def test_repr(everything: Any) -> None:
    attached = Attached(everything())
    attached["parts"] = [b"abc", b"d"]
    assert repr(attached) == "<Attached test.everything.Everything: 2 buffers of 4 bytes>"


paths = st.sampled_from(
    [
        ("data",),
        ("maybe",),
        ("parts", 0),
        ("parts", 1),
        ("blob", "data"),
        ("blobs", 0, "data"),
        ("table", "x"),
        ("numbered", 3, "data"),
        ("chosen",),
        ("chosen_blob", "data"),
        ("inner", "parts", 0),
        ("inner", "inner", "table", ""),
        ("pair", False, "chosen"),
    ]
)


def assign(message: Any, path: tuple[Any, ...], value: bytes) -> None:
    """What users of protobuf write."""
    *way, last = path
    for step in way:
        message = getattr(message, step) if hasattr(message, "DESCRIPTOR") else message[step]
    if hasattr(message, "DESCRIPTOR"):
        setattr(message, last, value)
        message.SetInParent()
    else:
        message[last] = value


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(places=st.dictionaries(paths, st.binary(max_size=5), max_size=6), inside=st.booleans())
def test_attaching_is_assigning(
    everything: Any, places: dict[tuple[Any, ...], bytes], inside: bool
) -> None:
    def start() -> Any:
        message = everything(parts=[b"a", b"b"], blobs=[{}], inner={"parts": [b"c"]})
        if inside:
            message.MergeFrom(everything(name="n", data=b"d", number=1.5, floats=[1, 2], fixed=3))
        return message

    for path in [path for path in places if path[0].startswith("chosen")][1:]:
        del places[path]  # of a oneof
    attached, plain = Attached(start()), start()
    for path, value in places.items():
        attached[path] = value
        assign(plain, path, value)
    assert attached.plain() == plain
    assert everything.FromString(b"".join(attached.segments())) == plain
    for path, value in places.items():
        assert attached[path] == value
