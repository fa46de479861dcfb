"""Inside a child process of a consumer: loads the handler, then works one job after another.

Each request comes with a token, and its answer carries it back, so an answer is never taken for that of another job. A
copy that the handler makes of this process with `os.fork()` has no part in this: its end of the channel is closed, and
it is ended when it comes back from the handler.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any, NoReturn

from dispatch.handlers import NotRunError, end_copy, load_handler, result_of, said
from dispatch.jobs import UnfitError, decode_document
from ledger.errors import InputError
from ledger.results import bounded_reason

READY, DONE, LEFT_OUT, FAILED = b"r", b"d", b"l", b"f"
TOKEN_BYTES = 16
LOADING = bytes(TOKEN_BYTES)
"""The token of the first answer, which says whether the handler was loaded."""
ANSWER_BYTES_MAX = 128 * 1024
_TEXT_CHARS_MAX = 10_000


def main() -> None:
    """Begin as a process of its own; the arguments are those of `dispatch.children`."""
    _, _, jobs, life, handler, folder, tracebacks = sys.argv
    for descriptor in (jobs, life):
        os.set_inheritable(int(descriptor), False)
    with suppress(OSError):  # a closed standard error
        os.dup2(2, 1)  # standard output is the parent's
    threading.Thread(target=_end_with_parent, args=(int(life),), name="parent", daemon=True).start()
    sys.path.insert(0, folder)
    channel: connection.Connection[bytes, bytes] = connection.Connection(int(jobs))
    os.register_at_fork(after_in_child=lambda: _let_go(channel))
    serve(channel, handler, tracebacks=tracebacks == "1")


def _let_go(channel: "connection.Connection[bytes, bytes]") -> None:
    """Close a copy's end of the channel: the parent sees the death of the process itself, and nobody reads its jobs."""
    with suppress(OSError):
        channel.close()


def serve(jobs: "connection.Connection[bytes, bytes]", handler: str, *, tracebacks: bool) -> None:
    """Answer every document that comes with what the handler made of it, until the parent is gone.

    Args:
        tracebacks: whether the traceback of an exception is written to standard error.
    """
    own = os.getpid()
    try:
        function = load_handler(handler)
    except InputError as error:
        end_copy(own)
        if tracebacks:
            traceback.print_exception(error)
        jobs.send_bytes(FAILED + LOADING + _text(str(error)[:_TEXT_CHARS_MAX]))
        return
    end_copy(own)
    jobs.send_bytes(READY + LOADING)
    while True:
        end_copy(own)
        try:
            token, body = jobs.recv_bytes(), jobs.recv_bytes()
        except EOFError:
            return
        kind, answer = _answer(function, body, own, tracebacks=tracebacks)
        jobs.send_bytes(kind + token + answer)


def _answer(function: Callable[[Any], Any], body: bytes, own: int, *, tracebacks: bool) -> tuple[bytes, bytes]:
    try:
        document = decode_document(body)
    except UnfitError as error:
        return FAILED, _text(f"the job could not be read in the handler's process ({error})")
    try:
        returned = function(document)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the next job may be a good one
        end_copy(own)
        if tracebacks:
            traceback.print_exception(error)
        return FAILED, _text(bounded_reason(said(error)))
    end_copy(own)
    try:
        result = result_of(returned)
    except NotRunError as error:
        return FAILED, _text(str(error))
    return (DONE if result.left_out is None else LEFT_OUT), result.json


def _text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _end_with_parent(life: int) -> NoReturn:
    """End this process and its group, whatever they do, when nobody holds the other end of a pipe any more."""
    os.read(life, 1)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
