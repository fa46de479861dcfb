"""What stands before every command, and how a command speaks to people and to programs."""

import getpass
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rich.console import Console

from ledger.canonical import canonical_json
from ledger.settings import Settings, load_settings

_PIPE_WIDTH = 160


@dataclass
class Context:
    """What stands before the command: which configuration, and for whom to print.

    Attributes:
        told: whether the one JSON document was written.
    """

    config: Path | None = None
    json: bool = False
    debug: bool = False
    told: bool = False

    def settings(self, *, own_ledger: bool = False) -> Settings:
        """Read the configuration; an InputError names what is wrong with it, before anything is asked or made.

        Args:
            own_ledger: the command brings a ledger of its own, so none has to be named.
        """
        settings = load_settings(self.config)
        if not own_ledger:
            settings.require_ledger()
        return settings

    @property
    def console(self) -> Console:
        """Where people read; everything goes to standard error when a program reads standard output."""
        console = Console(stderr=self.json, soft_wrap=False, highlight=False)
        if not console.is_terminal:  # nobody's window is as narrow as the default of a pipe
            console.width = max(console.width, _PIPE_WIDTH)
        return console

    def print_json(self, document: object) -> None:
        """Write the one JSON document; a signal that comes meanwhile waits until it is whole."""
        raw = encoded(document) + b"\n"
        with _signals_wait():
            self.told = True
            sys.stdout.buffer.write(raw)
            sys.stdout.flush()

    def end_at_once(self, number: int, document: Callable[[], object] | None) -> NoReturn:
        """End the process inside a signal handler: the one document if none was written, one line, and nothing else.

        Args:
            number: the signal.
            document: makes the command's document as far as it has come; the error's own by default.
        """
        text = f"ended at once by a second signal {number}; what was in hand is left, and the next run finishes it"
        with suppress(Exception):  # nothing may keep it from ending
            if self.json and not self.told:
                raw = encoded({"error": text} if document is None else document())
                os.write(sys.stdout.fileno(), raw + b"\n")
        with suppress(Exception):
            os.write(sys.stderr.fileno(), f"error: {text}\n".encode())
        os._exit(128 + number)


CONTEXT = Context()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let SIGINT and SIGTERM do what they do at the end of the block, not in it."""
    if threading.current_thread() is not threading.main_thread():  # no handler runs here
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: Any) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def encoded(document: object) -> bytes:
    """Return a document as JSON, whatever the ids in it are made of."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # an id with a lone surrogate, which is written as its escape
        return canonical_json(document)


def say_error(message: str) -> None:
    """Write the one line on standard error that says what went wrong."""
    with suppress(OSError):  # nobody can read it then
        sys.stderr.write(f"error: {' '.join(message.split())}\n")
        sys.stderr.flush()


def show_traceback(error: BaseException) -> None:
    """Print where an error comes from, when `--debug` asks for it."""
    if CONTEXT.debug:
        traceback.print_exception(error)


def user_name() -> str:
    """Return who runs this, by the name that the machine knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"
