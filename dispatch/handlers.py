"""What a handler is, and what it may give back. Light on imports, because every child process pays for them."""

import functools
import importlib
import inspect
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ledger.errors import InputError
from ledger.results import encode_result

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_WRAPPERS_MAX = 100
_KINDS = (
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.iscoroutinefunction, "an async function"),
    (inspect.isgeneratorfunction, "a generator function (it has a yield)"),
    (inspect.isclass, "a class"),
)
_LATER: tuple[tuple[Any, str], ...] = (
    (AsyncGenerator, "an async generator; its body has not run"),
    (Generator, "a generator; its body has not run"),
    (Future, "a Future; nobody knows whether its work was done"),
    (Coroutine, "a coroutine; its body has not run"),
    (Awaitable, "an awaitable; nobody has awaited it"),
    ((map, filter), "a map or filter; its function has not run"),
)


class NotRunError(Exception):
    """A handler returned, and its work is still to be done; says so in a sentence."""


@dataclass(frozen=True)
class Result:
    """What a handler returned.

    Attributes:
        json: what the receipt keeps.
        left_out: why that is a note in its place, without anything that is in it; else None.
    """

    json: bytes
    left_out: str | None = None


def check_name(handler: str) -> str:
    """Return a handler's name, `module:function`.

    Raises:
        InputError: when it is none.
    """
    if not _NAME.fullmatch(handler):
        raise InputError(f"{handler[:80]!r} does not name a handler; write module:function, such as rewards:grant")
    return handler


def load_handler(handler: str) -> Callable[[Any], Any]:
    """Import a handler.

    Raises:
        InputError: when its module cannot be imported, or has no such function, or it is one that is not run by a call.
    """
    module_name, _, name = check_name(handler).partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # a module may do anything while it is imported
        raise InputError(
            f"handler {handler}: module {module_name} cannot be imported ({said(error)}); put it on PYTHONPATH or into "
            "the working directory, and mend it"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"handler {handler}: module {module_name} has no function {name}")
    return check_handler(function, handler)


def check_handler(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a handler whose body runs when it is called.

    Raises:
        InputError: when it is, or wraps, a generator function, an async function or a class.
    """
    for layer in _layers(function):
        for is_one, kind in _KINDS:
            if is_one(layer):
                raise InputError(
                    f"handler {name}: it is, or wraps, {kind}, so a call does not do its work; give a plain function "
                    "that does the work and returns its result"
                )
    return function


def _layers(function: Any) -> list[Any]:
    """Return a function and what it wraps: partial functions, decorated ones, the `__call__` of an object."""
    layers = [function]
    while len(layers) < _WRAPPERS_MAX:
        last = layers[-1]
        if isinstance(last, functools.partial):
            layers.append(last.func)
        elif callable(wrapped := getattr(last, "__wrapped__", None)):
            layers.append(wrapped)
        elif inspect.isclass(last) or inspect.isroutine(last):
            break
        else:
            layers.append(type(last).__call__)
    return layers


def said(error: BaseException) -> str:
    """Return what an exception says, whatever it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception whose text cannot be made
        return type(error).__name__


def end_copy(own: int) -> None:
    """End this process when this is not its id: it is a copy of the one that began, and came back from the handler."""
    if os.getpid() != own:
        with suppress(OSError):
            os.write(2, b"handler: a copy of its process, made with os.fork(), came back from it and was ended\n")
        os._exit(1)


def result_of(returned: Any) -> Result:
    """Return what is kept of what a handler returned; a note when it cannot be kept, since the work has been done.

    Raises:
        NotRunError: when the work has not been done: it is, or holds, a generator, a coroutine, a Future or the like.
    """
    try:
        return Result(encode_result(returned))
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything
        _refuse_later(returned)
        reason = str(error) if type(error) is ValueError else "the result cannot be written as JSON"
        return Result(encode_result({"left_out": reason}), reason)


def _refuse_later(returned: Any) -> None:
    """Look for work that is still to be done in what was returned, and in what plain containers it holds."""
    left, seen = [returned], {id(returned)}
    while left:
        value = left.pop()
        for kinds, told in _LATER:
            if isinstance(value, kinds):
                if inspect.iscoroutine(value):
                    value.close()  # else Python warns of it once more
                raise NotRunError(f"the handler returned {told}")
        for member in _members(value):
            if id(member) not in seen:
                seen.add(id(member))
                left.append(member)


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from dict.values(value)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
