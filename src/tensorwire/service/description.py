# SPDX-License-Identifier: Apache-2.0
"""What a service is: the methods of a class, their signatures, streams and checks."""

from __future__ import annotations

import collections.abc
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from tensorwire.service import checks
from tensorwire.service.checks import Check
from tensorwire.tensors.errors import PartError

if TYPE_CHECKING:
    from tensorwire.tensors import Framework

T = TypeVar("T")

_ATTRIBUTE: Final = "__tensorwire_service__"
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_ASYNC_STREAMS: Final = (collections.abc.AsyncIterator, collections.abc.AsyncGenerator)


@dataclass(frozen=True)
class Method:
    """A method of a service. Its objections name what is wrong, empty if nothing is."""

    name: str
    path: str
    signature: inspect.Signature
    """Without ``self``."""
    stream: str | None
    """The parameter whose items are streamed."""
    stream_reply: bool
    argument_checks: Mapping[str, Check]
    item_check: Check | None
    reply_check: Check | None
    doc: str | None

    def argument_objection(self, arguments: Mapping[str, Any]) -> str:
        for name, check in self.argument_checks.items():
            # An omitted argument takes its default at the server, whatever that is.
            if name not in arguments:
                continue
            kind = self.signature.parameters[name].kind
            value = arguments[name]
            try:
                if kind is inspect.Parameter.VAR_POSITIONAL:
                    for index, item in enumerate(value):
                        checks.check_within(check, item, index)
                elif kind is inspect.Parameter.VAR_KEYWORD:
                    for key, item in value.items():
                        checks.check_within(check, item, key)
                else:
                    check(value)
            except PartError as error:
                return f"argument {error.sentence(name)}"
        return ""

    def item_objection(self, item: Any, index: int) -> str:
        if self.item_check:
            try:
                checks.check_within(self.item_check, item, index)
            except PartError as error:
                return f"argument {error.sentence(str(self.stream))}"
        return ""

    def reply_objection(self, reply: Any) -> str:
        if self.reply_check:
            try:
                self.reply_check(reply)
            except PartError as error:
                return error.sentence("reply")
        return ""


@dataclass(frozen=True)
class Service:
    name: str
    framework: Framework
    methods: Mapping[str, Method]


@overload
def define(cls: type[T], /) -> type[T]: ...
@overload
def define(
    *, name: str | None = None, framework: Framework = "numpy", strict: bool = False
) -> Callable[[type[T]], type[T]]: ...
def define(
    cls: type[T] | None = None,
    /,
    *,
    name: str | None = None,
    framework: Framework = "numpy",
    strict: bool = False,
) -> type[T] | Callable[[type[T]], type[T]]:
    """Makes the public methods of a class callable from other processes; returns the class.

    Methods whose names begin with an underscore, class methods, static methods and properties are
    not served. A method that is a generator, or that is annotated to return an ``Iterator`` or
    ``Generator``, streams its reply. A parameter annotated as ``Iterator`` (at most one) is
    streamed to the server; where it is omitted, the items of its default are, and none for None.
    Arguments and results are what ``tensors.dumps`` takes. Inside an annotation,
    ``Annotated[np.ndarray, TensorSpec(shape=(None, 3), dtype="float32")]`` is checked at both ends;
    no other annotation is, unless it is strict.

    name: the service's name on the wire, by default the name of the class. framework: what tensors
    in arguments are given to the methods as. strict: annotations of arrays (``np.ndarray``, or
    ``NDArray[np.float32]``; a tensor of any framework will do), of bool, int, float, complex, str,
    bytes, and lists, tuples and dicts of these are checked at both ends, too.

    Raises ``TypeError`` for async methods, for several streamed parameters, ``*args`` and
    ``**kwargs`` of these among them, for annotations that cannot be evaluated, and for a class
    without public methods.
    """

    def decorate(cls: type[T]) -> type[T]:
        service_name = cls.__name__ if name is None else name
        if not _NAME.fullmatch(service_name):
            raise ValueError(f"a service's name is dotted identifiers, not {service_name!r}")
        methods = {
            attribute: _describe(f"/{service_name}/{attribute}", attribute, function, strict)
            for base in reversed(cls.__mro__)
            for attribute, function in vars(base).items()
            if not attribute.startswith("_") and inspect.isfunction(function)
        }
        if not methods:
            raise TypeError(f"{cls.__name__} has no public methods to serve")
        setattr(cls, _ATTRIBUTE, Service(service_name, framework, methods))
        return cls

    return decorate if cls is None else decorate(cls)


def service_of(cls: type) -> Service:
    found = getattr(cls, _ATTRIBUTE, None)
    if not isinstance(found, Service):
        raise TypeError(f"{cls.__name__} is no service: decorate it with service.define")
    return found


def _describe(path: str, name: str, function: Callable[..., Any], strict: bool) -> Method:
    where = function.__qualname__
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{where} is async: a service's methods are plain functions")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"an annotation of {where} cannot be evaluated ({error}): import the name at run time"
        ) from error
    origins = {parameter: checks.origin_of(hint) for parameter, hint in hints.items()}
    if any(origin in _ASYNC_STREAMS for origin in origins.values()):
        raise TypeError(f"{where} has an async iterator: a service's streams are plain iterators")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    streams = [p.name for p in parameters if origins.get(p.name) in checks.STREAMS]
    if len(streams) > 1:
        raise TypeError(f"{where} streams {' and '.join(streams)}: at most one parameter can be")
    for p in parameters:
        if p.name in streams and p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise TypeError(
                f"{where} streams {str(p).partition(':')[0]}: only one parameter can be"
            )
    found = {p.name: checks.checker(hints.get(p.name), strict) for p in parameters}
    stream = streams[0] if streams else None
    return Method(
        name=name,
        path=path,
        signature=signature.replace(parameters=parameters),
        stream=stream,
        stream_reply=inspect.isgeneratorfunction(function)
        or origins.get("return") in checks.STREAMS,
        argument_checks={name: check for name, check in found.items() if check and name != stream},
        item_check=found[stream] if stream else None,
        reply_check=checks.checker(hints.get("return"), strict),
        doc=function.__doc__,
    )
