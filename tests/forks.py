"""Processes of the product without the time that its imports take: one server has imported them, and forks.

A forked process is as real as any other: it has a process id, signals stop and kill it, its streams are files of its
own, and it ends only when its threads have. It knows nothing of the process that runs the tests, since the server is a
new one. What it cannot show is how an interpreter begins and ends: `tests/e2e/test_start.py` shows that of every
command.

The server runs as `python -m tests.forks FD`. For each process it is sent the words, the environment, the folder, and
four file descriptors: the three standard streams, and one on which a keeper tells the process id and how it ended.
"""

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

from tests.impatience import shorten_delays

COMMAND_LINE = "ops.main"
PRELOADED = ("ledger", "dispatch", "reconcile", "ops")
_ROOT = Path(__file__).parents[1]
_NUMBER = struct.Struct("i")
_ASKING = threading.Lock()


class Forked:
    """A process that was forked, to be used as a `subprocess.Popen` is.

    Args:
        entry: the module whose `main` is the process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        stdin: str | None = None,
        *,
        impatient: bool = False,
        entry: str = COMMAND_LINE,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        ends, telling = os.pipe()
        with tempfile.TemporaryFile() as given:
            given.write((stdin or "").encode())
            given.seek(0)
            order = json.dumps([list(arguments), dict(environment), str(cwd), impatient, entry]).encode()
            _ask_server(order, [given.fileno(), self._out.fileno(), self._err.fileno(), telling])
        os.close(telling)
        self.pid = _read_number(ends)
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, args=(ends,), daemon=True).start()

    def _await_end(self, ends: int) -> None:
        self.returncode = _read_number(ends)
        os.close(ends)
        self._ended.set()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; any number of threads may."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it as the kernel does."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; returns what was written on standard output and standard error."""
        self.wait(timeout)
        return self._written(self._out), self._written(self._err)

    @staticmethod
    def _written(file: IO[bytes]) -> str:
        file.seek(0)
        return io.TextIOWrapper(io.BytesIO(file.read()), encoding="utf-8").read()

    def close(self) -> None:
        """Let go of the files."""
        self._out.close()
        self._err.close()


# In the tests' process


def _read_number(file: int) -> int:
    raw = os.read(file, _NUMBER.size)
    assert raw, "the keeper tells the id, and how it ended"
    number: int = _NUMBER.unpack(raw)[0]
    return number


@cache
def _server() -> socket.socket:
    """Start the server of this process, which ends when this one does: its socket is closed then."""
    ours, theirs = socket.socketpair()
    environment = dict(os.environ) | {"PYTHONPATH": str(_ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env=environment,
        cwd=_ROOT,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait(10)

    atexit.register(end)
    return ours


def _ask_server(order: bytes, files: list[int]) -> None:
    with _ASKING:
        server = _server()
        socket.send_fds(server, [_NUMBER.pack(len(order))], files)
        server.sendall(order)


# In the server


def _serve(control: socket.socket) -> None:
    for package in PRELOADED:
        for module in pkgutil.walk_packages([str(_ROOT / package)], f"{package}."):
            if ".migrations" not in module.name:  # Alembic runs those
                importlib.import_module(module.name)
    assert threading.active_count() == 1, "a fork would leave the other threads behind"
    gc.collect()
    gc.freeze()  # what is never looked at again is never copied
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then let go of the socket
    while True:
        header, files, _, _ = socket.recv_fds(control, _NUMBER.size, 4)
        _bury_keepers()
        if not header:
            return
        order = _read(control, _NUMBER.unpack(header)[0])
        if os.fork() == 0:
            control.close()
            _keep(order, files)
        for file in files:
            os.close(file)


def _bury_keepers() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _read(control: socket.socket, size: int) -> bytes:
    order = b""
    while len(order) < size:
        part = control.recv(size - len(order))
        assert part, "the whole order comes"
        order += part
    return order


def _keep(order: bytes, files: list[int]) -> None:
    """Fork the process, tell its id, wait for its end, tell that; the process itself returns from here."""
    *streams, telling = files
    pid = os.fork()
    if pid == 0:
        os.close(telling)
        _become(order, streams)
    for stream in streams:
        os.close(stream)
    os.write(telling, _NUMBER.pack(pid))
    _, status = os.waitpid(pid, 0)
    os.write(telling, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _become(order: bytes, streams: list[int]) -> NoReturn:
    """Be the command line, or what else is the entry, as the interpreter would begin it."""
    arguments, environment, cwd, impatient, entry = json.loads(order)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["dispatch-ledger", *arguments]
    sys.modules["__main__"].__package__ = None  # as of a script: the command's name in the help comes from here
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    time.tzset()
    if impatient:
        shorten_delays()
    code = importlib.import_module(entry).main()
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does: it waits for threads
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the rest of the interpreter's end would copy what is shared with the server, only to drop it


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
