"""Inside a child process of a consumer: loads the handler, then works one job after another.

Light on imports, because every child pays for them.
"""

import importlib
import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from dispatch.jobs import decode_document
from ledger.errors import InputError
from ledger.results import encode_result

READY, DONE, FAILED = b"r", b"d", b"f"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


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
        InputError: when its module cannot be imported, or has no such function.
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
    if inspect.iscoroutinefunction(function):
        raise InputError(f"handler {handler}: an async function cannot be called here; give a plain one")
    return function  # type: ignore[no-any-return]


def said(error: BaseException) -> str:
    """Return what an exception says, whatever it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception whose text cannot be made
        return type(error).__name__


def result_or_note(result: Any) -> bytes:
    """Return a handler's result as JSON. One that cannot be kept is replaced by a note: the work has been done."""
    try:
        return encode_result(result)
    except ValueError as reason:
        return encode_result({"left_out": str(reason)})


def main() -> None:
    """Begin as a process of its own; the arguments are those of `dispatch.children`."""
    _, _, jobs, life, handler, folder, tracebacks = sys.argv
    for descriptor in (jobs, life):
        os.set_inheritable(int(descriptor), False)
    with suppress(OSError):  # a closed standard error
        os.dup2(2, 1)  # standard output is the parent's
    threading.Thread(target=_end_with_parent, args=(int(life),), name="parent", daemon=True).start()
    sys.path.insert(0, folder)
    serve(connection.Connection(int(jobs)), handler, tracebacks=tracebacks == "1")


def serve(jobs: "connection.Connection[bytes, bytes]", handler: str, *, tracebacks: bool) -> None:
    """Answer every document that comes with what the handler made of it, until the parent is gone.

    Args:
        tracebacks: whether the traceback of an exception is written to standard error.
    """
    try:
        function = load_handler(handler)
    except InputError as error:
        if tracebacks:
            traceback.print_exception(error)
        jobs.send_bytes(FAILED + str(error).encode("utf-8", "backslashreplace"))
        return
    jobs.send_bytes(READY)
    while True:
        try:
            body = jobs.recv_bytes()
        except EOFError:
            return
        jobs.send_bytes(_answer(function, body, tracebacks=tracebacks))


def _answer(function: Callable[[Any], Any], body: bytes, *, tracebacks: bool) -> bytes:
    try:
        result = function(decode_document(body))
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the next job may be a good one
        if tracebacks:
            traceback.print_exception(error)
        return FAILED + said(error).encode("utf-8", "backslashreplace")
    return DONE + result_or_note(result)


def _end_with_parent(life: int) -> None:
    """End this process, whatever it does, when nobody holds the other end of a pipe any more."""
    os.read(life, 1)
    os._exit(1)
