"""A wire to PostgreSQL that kills, stops and cuts at one COMMIT of the product's own transactions, or falls silent.

It reads the client's side of the protocol, message by message. Commits of connections that only renew the lease are
not counted, since they depend on the time that a run takes. The product must be given `url`, which speaks plain TCP.
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from ledger.store import connect_arguments

_RENEWAL = b"only the holder's lease grows"
_COMMITS = {(b"Q", b"COMMIT\0"), (b"P", b"\0COMMIT\0")}
_CHUNK = 1 << 16

BEFORE, AFTER = "before", "after"


@dataclass
class Fault:
    """What happens at one COMMIT.

    Args:
        at: which commit: its number, from 1, or a statement of its transaction, of which the first commit is meant.
        when: `before` the server gets it, or `after` it took effect.
        act: called on a thread of the wire (it may kill or stop the client): before the server gets the commit, or,
            when nothing is cut, after it took effect and before the client gets the answer.
        cut: whether the connection is cut, so that the client never sees the answer; if not, the answer goes on.
    """

    at: int | bytes
    when: str = AFTER
    act: Callable[[], Any] = lambda: None
    cut: bool = True
    reached: threading.Event = field(default_factory=threading.Event)

    def is_at(self, commits: list[bytes]) -> bool:
        """Say whether the last of these commits is the one."""
        if isinstance(self.at, int):
            return len(commits) == self.at
        return not self.reached.is_set() and self.at in commits[-1]


@dataclass
class _Wire:
    client: socket.socket
    server: socket.socket
    renews: bool = False
    text: bytes = b""
    swallow: bool = False
    act: Callable[[], Any] | None = None

    def close(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class PgProxy:
    """The wire, as a context manager.

    Attributes:
        commits: of each counted commit so far, what was said in its transaction.
        fault: the one fault to come.
    """

    def __init__(self, ledger_url: str, fault: Fault | None = None) -> None:
        arguments = connect_arguments(ledger_url)
        self._path = f"{arguments['host']}/.s.PGSQL.{arguments['port']}"
        self._database = arguments["dbname"]
        self._user = arguments["user"]
        self.fault = fault
        self.commits: list[bytes] = []
        self.gone = False
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._wires: list[_Wire] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        """Where the product is sent to."""
        port = self._listener.getsockname()[1]
        options = "sslmode=disable&gssencmode=disable"
        return f"postgresql+psycopg://{self._user}@127.0.0.1:{port}/{self._database}?{options}"

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.speak()
        self.cut_all()
        for thread in list(self._threads):
            thread.join(10)

    def leave(self) -> None:
        """Be gone from now on: every connection is cut, and new ones are refused."""
        self.gone = True
        self.cut_all()

    def come_back(self) -> None:
        """Be there again."""
        self.gone = False

    def fall_silent(self) -> None:
        """Take everything from now on, also new connections, and answer nothing: so does a server that hangs."""
        self._flows.clear()

    def speak(self) -> None:
        """Answer again, also what was asked meanwhile."""
        self._flows.set()

    def cut_all(self) -> None:
        """Cut every connection; new ones are taken."""
        for wire in list(self._wires):
            wire.close()

    def _spawn(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="pg-proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.gone:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                server.connect(self._path)
            except OSError:
                client.close()
                server.close()
                continue
            wire = _Wire(client, server)
            self._wires.append(wire)
            self._spawn(self._upwards, wire)
            self._spawn(self._downwards, wire)

    def _downwards(self, wire: _Wire) -> None:
        """Carry the server's answers to the client."""
        with suppress(OSError):
            while data := wire.server.recv(_CHUNK):
                if wire.swallow:
                    break  # the commit has been answered, so it took effect; nobody shall hear of it
                act, wire.act = wire.act, None
                if act is not None:
                    act()
                self._flows.wait()
                wire.client.sendall(data)
        wire.close()

    def _upwards(self, wire: _Wire) -> None:
        """Carry the client's messages to the server."""
        with suppress(OSError):
            reader = wire.client.makefile("rb", buffering=_CHUNK)
            with reader:
                head = reader.read(4)
                if len(head) < 4:
                    wire.close()
                    return
                wire.server.sendall(head + reader.read(struct.unpack("!I", head)[0] - 4))
                while len(head := reader.read(5)) == 5:
                    body = reader.read(struct.unpack("!I", head[1:])[0] - 4)
                    if not self._passes(wire, head[:1], body):
                        return
                    wire.server.sendall(head + body)
        if not wire.swallow:
            wire.close()

    def _passes(self, wire: _Wire, kind: bytes, body: bytes) -> bool:
        wire.renews = wire.renews or _RENEWAL in body
        if (kind, body) not in _COMMITS:
            wire.text += body[:2000] if kind in {b"Q", b"P"} else b""
            return True
        if wire.renews:
            return True
        with self._lock:
            self.commits.append(wire.text)
            wire.text = b""
            fault = self.fault if self.fault and self.fault.is_at(self.commits) else None
        return fault is None or self._strike(wire, fault)

    def _strike(self, wire: _Wire, fault: Fault) -> bool:
        fault.reached.set()
        if not fault.cut:
            wire.act = fault.act
            return True
        fault.act()
        if fault.when == BEFORE:
            wire.close()
            return False
        wire.swallow = True
        return True
