"""What stands before every command, and how a command speaks to people and to programs."""

import getpass
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from ledger.canonical import canonical_json
from ledger.settings import Settings, load_settings

_PIPE_WIDTH = 160


@dataclass
class Context:
    """What stands before the command: which configuration, and for whom to print."""

    config: Path | None = None
    json: bool = False
    debug: bool = False

    def settings(self) -> Settings:
        """Read the configuration; an InputError names what is wrong with it."""
        return load_settings(self.config)

    @property
    def console(self) -> Console:
        """Where people read; everything goes to standard error when a program reads standard output."""
        console = Console(stderr=self.json, soft_wrap=False, highlight=False)
        if not console.is_terminal:  # nobody's window is as narrow as the default of a pipe
            console.width = max(console.width, _PIPE_WIDTH)
        return console

    def print_json(self, document: object) -> None:
        """Write the one JSON document."""
        sys.stdout.buffer.write(encoded(document) + b"\n")
        sys.stdout.flush()


CONTEXT = Context()


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
