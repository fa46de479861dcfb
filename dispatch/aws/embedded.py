"""An emulated AWS on this machine (DynamoDB, S3, SQS), shared by every process that uses the same state folder.

The first process in starts ministack, later ones attach to it, the last one out stops it:

1. `start.lock` (exclusive) is held while anybody starts, attaches or leaves, so these never overlap.
2. `clients.lock` (shared) is held by each user for as long as it stays. Who can turn it exclusive is the last one.
3. `server.json` names the running server: process, port, and a token that stands in the server's command line and in
   its health answer. A process without the token is a stranger with a reused number: neither trusted nor killed.

The operating system drops the locks of a killed process, so nothing has to be cleaned up after one.
"""

import fcntl
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from ledger.errors import UnavailableError
from ledger.settings import child_environment

_HOST = "127.0.0.1"
_SERVICES = "dynamodb,s3,sqs"
# Queues are stored under URLs with this port (answers carry the caller's Host instead). With the real port, a start on
# another one would make CreateQueue open a second, empty queue of the same name.
_NAMED_PORT = "4566"
_MARK = "dispatch-ledger-aws-"
_READY_WITHIN_S = 30.0
_STOP_WITHIN_S = 60.0  # the emulator writes its whole state while it stops
_KILL_WITHIN_S = 5.0
_AT_ONCE_WITHIN_S = 2.0
_VISIBLE_WITHIN_S = 5.0
_PORT_WITHIN_S = 0.5
_LOCK_WITHIN_S = _READY_WITHIN_S + _STOP_WITHIN_S + _KILL_WITHIN_S
_HEALTH_TIMEOUT_S = 2.0
_POLL_S = 0.02
_START_ATTEMPTS = 3  # another process may take the chosen port before the server binds it


@dataclass(frozen=True, slots=True)
class _Server:
    """One start of the emulator, as `server.json` records it."""

    pid: int
    port: int
    token: str


@contextmanager
def embedded_aws(state_dir: Path) -> Iterator[str]:
    """Run the emulator for as long as the block lasts, together with whoever else uses the same folder.

    Tables with their items, buckets with their objects, and queues with their messages survive a stop and the next
    start; they are kept in `<state_dir>/aws`. Objects are written at once, tables and queues only when the server is
    stopped in order: after a kill -9 of the server they are back at what its last orderly stop had written. The port
    stays the same from one start to the next while nobody else takes it.

    Args:
        state_dir: the folder that the sharing goes by; created when missing.

    Yields:
        The endpoint URL of all three services, on loopback, ready to be used.

    Raises:
        UnavailableError: the emulator did not start within 30 s (its log is named), or another process has kept the
            start lock for too long.
    """
    home = (state_dir / "aws").resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (home / "clients.lock").open("ab") as clients:
        with _start_lock(home):
            fcntl.flock(clients, fcntl.LOCK_SH)
            server = _attach(home) or _start(home)
        try:
            yield f"http://{_HOST}:{server.port}"
        finally:
            _leave(home, clients)


def end_aws_at_once(state_dir: Path) -> None:
    """End the emulator of `state_dir` without waiting for its users, within 2 s; what it has not written is lost.

    For a process that must not wait any more; every other one leaves the block of `embedded_aws`.
    """
    server = _recorded((state_dir / "aws").resolve())
    if server is not None and _runs(server):
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
        _within(_AT_ONCE_WITHIN_S, lambda: not _runs(server))


def aws_pid(state_dir: Path) -> int | None:
    """Return the process id of the living emulator of `state_dir`, if there is one; asks the system, not it."""
    server = _recorded((state_dir / "aws").resolve())
    return server.pid if server is not None and _runs(server) else None


def _leave(home: Path, clients: IO[bytes]) -> None:
    """Give up this process's share, and stop the server when it was the last one."""
    with _start_lock(home):
        if _try_lock(clients):
            server = _recorded(home)
            if server is not None:
                _stop(server)
        fcntl.flock(clients, fcntl.LOCK_UN)


@contextmanager
def _start_lock(home: Path) -> Iterator[None]:
    """Be the only process that starts, attaches or leaves."""
    with (home / "start.lock").open("ab") as lock:
        if not _within(_LOCK_WITHIN_S, lambda: _try_lock(lock)):
            raise UnavailableError(f"another process has held {home / 'start.lock'} for {_LOCK_WITHIN_S:.0f} s; end it")
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


def _try_lock(file: IO[bytes]) -> bool:
    """Take the exclusive lock, unless another open file holds one."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _attach(home: Path) -> _Server | None:
    """Find the running server; one that no longer answers is stopped, so that the caller can start another."""
    server = _recorded(home)
    if server is None or not _runs(server):
        return None
    if _becomes_ready(server):
        return server
    _stop(server)
    return None


def _start(home: Path) -> _Server:
    """Start a server and wait until it answers."""
    for port in _ports(home):
        server = _launch(home, port)
        try:
            if _becomes_ready(server):
                return server
            if _runs(server):
                break  # alive but mute for the whole bound: another port would not help
        finally:
            if not _answers(server):
                _stop(server)
    raise UnavailableError(f"the embedded AWS did not start; its log {_log(home)} says why")


def _ports(home: Path) -> Iterator[int]:
    """Yield the ports to try: first the one of the last start, so that URLs kept by users stay true."""
    last = _recorded(home)
    # A process that was killed just now loses its command line before its sockets.
    again = last is not None and _within(_PORT_WITHIN_S, lambda: _is_free(last.port))
    yield last.port if last is not None and again else _free_port()
    for _ in range(_START_ATTEMPTS - 1):
        yield _free_port()


def _launch(home: Path, port: int) -> _Server:
    """Start the process, out of reach of the terminal's Ctrl-C, and record it."""
    token = f"{_MARK}{secrets.token_hex(8)}"
    temporary = home / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = child_environment(
        BIND_HOST=_HOST,
        GATEWAY_PORT=_NAMED_PORT,
        SERVICES=_SERVICES,
        PERSIST_STATE="1",
        STATE_DIR=str(home / "state"),
        S3_PERSIST="1",
        S3_DATA_DIR=str(home / "state" / "s3"),
        LOG_LEVEL="WARNING",
        TMPDIR=str(temporary),
        MINISTACK_EDITION=token,  # comes back in the health answer
        AUTH="false",
        USE_SSL="0",
        SFTP_ENABLED="0",
        IOT_MTLS_ENABLED="0",  # would listen on a fixed port
        DOCKER_HOST=f"unix://{home / 'no-docker.sock'}",  # at its start it removes containers that it takes for its own
    )
    environment.pop("MINISTACK_HOST", None)  # would replace the caller's host in queue URLs
    with _log(home).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and constants
            [sys.executable, "-P", "-X", token, "-m", "hypercorn", *_options(port), "ministack.app:app"],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Whoever stops the server, its parent has to reap it.
    threading.Thread(target=process.wait, name="embedded-aws-reaper", daemon=True).start()
    server = _Server(process.pid, port, token)
    try:
        _record(home, server)
        # For a moment after exec the command line is still empty: a process in that moment must not pass for ended.
        _within(_VISIBLE_WITHIN_S, lambda: _runs(server) or process.poll() is not None)
    except BaseException:
        process.kill()
        raise
    return server


def _options(port: int) -> list[str]:
    """Serve in one process, on loopback, as `python -m ministack` would; that command binds its named port only."""
    return ["--workers", "0", "--bind", f"{_HOST}:{port}", "--keep-alive", "75", "--log-level", "WARNING"]


def _stop(server: _Server) -> None:
    """End the server: it is asked to write its state and go, and killed when it does not."""
    for number, limit_s in ((signal.SIGTERM, _STOP_WITHIN_S), (signal.SIGKILL, _KILL_WITHIN_S)):
        if not _runs(server):
            return
        with suppress(ProcessLookupError):
            os.kill(server.pid, number)
        if _within(limit_s, lambda: not _runs(server)):
            return


def _becomes_ready(server: _Server) -> bool:
    """Wait until the server answers; False when it ends or stays mute."""
    _within(_READY_WITHIN_S, lambda: _answers(server) or not _runs(server))
    return _answers(server)


def _answers(server: _Server) -> bool:
    """Ask the port for its health, and check that it is this very server that answers."""
    with closing(http.client.HTTPConnection(_HOST, server.port, timeout=_HEALTH_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", "/_ministack/health")
            health = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return False
    return isinstance(health, dict) and health.get("edition") == server.token


def _runs(server: _Server) -> bool:
    """Tell whether the recorded process is alive and still the one that was started."""
    return server.token in _command_line(server.pid)


def _command_line(pid: int) -> str:
    """Read a process's command line; empty when there is none, or only a zombie."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except OSError:
            return ""
    command = ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)]  # macOS has no /proc
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 - constants and a number


def _recorded(home: Path) -> _Server | None:
    """Read what the last start wrote down; a missing or broken record is none."""
    try:
        record = json.loads((home / "server.json").read_bytes())
        server = _Server(int(record["pid"]), int(record["port"]), str(record["token"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    # kill(0) and kill(-1) reach far more than one process, and an empty token stands in every command line.
    sound = server.pid > 1 and 0 < server.port < 1 << 16 and server.token.startswith(_MARK)
    return server if sound else None


def _record(home: Path, server: _Server) -> None:
    """Write down the running server, whole or not at all."""
    draft = home / "server.json.new"
    draft.write_text(json.dumps(asdict(server)))
    draft.replace(home / "server.json")


def _log(home: Path) -> Path:
    return home / "ministack.log"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _within(limit_s: float, condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds; False when it does not within the limit."""
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(_POLL_S)
    return True
