"""The server: a socket of its own, uvicorn around the application, and an end when a signal asks for it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from dispatch.lookup import Lookup
from dispatch.run import Cancellation
from ledger import clock
from ledger.errors import InputError, UnavailableError
from ledger.pool import StorePool
from ledger.settings import Settings
from ops import wiring
from ops.api.access import is_loopback
from ops.api.app import create_app
from ops.api.state import Api
from ops.jobs.sending import JobSender, relay_until

CONNECTIONS = 16
_LOOK_S = 0.1
_END_S = 5
_BACKLOG = 512
_UNTAKEN_MS = 30_000


def run(settings: Settings, cancellation: Cancellation, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until a signal asks for the end; requests in hand are then given a few seconds.

    Args:
        port: 0 for any that is free.
        ready: called with the server's URL once it takes connections.

    Raises:
        InputError: when the host is not this machine's own and there are no tokens, or the port is taken.
        UnavailableError: when the ledger does not answer at the start, or its schema is not this version's.
    """
    if not settings.api.tokens and not is_loopback(host):
        raise InputError(
            f"--host {host[:80]!r} can be reached from other machines, and api.tokens is empty; set tokens, "
            "or serve on 127.0.0.1"
        )
    with _bound(host, port) as listener, wiring.aws_endpoint(settings) as endpoint, wiring.ledger(settings) as store:
        pool = StorePool(store.url, CONNECTIONS)
        sender = JobSender(wiring.control_queues(settings, endpoint), settings.jobs)
        api = Api(settings, Lookup(settings, endpoint), pool, sender)
        try:
            _serve(api, cancellation, listener, lambda: ready(_url(listener)))
        finally:
            pool.close()


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise InputError(
            f"cannot listen on {host}, port {port}: {reason}; choose others with --host and --port"
        ) from None
    with listener:
        if hasattr(
            socket, "TCP_USER_TIMEOUT"
        ):  # each connection has it from here: a client that is gone without a word
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN_MS)
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _serve(api: Api, cancellation: Cancellation, listener: socket.socket, ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        create_app(api),
        log_config=None,
        log_level="warning",
        access_log=False,  # a path may hold a record's id
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_END_S,
        ws="none",
    )
    server = uvicorn.Server(config)
    # Not in the main thread: there uvicorn would take the signals over.
    serving = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
    relay_args = (api.stopping, api.sender, api.pool.url, api.pipeline)
    relay = threading.Thread(target=relay_until, args=relay_args, name="relay", daemon=True)
    relay.start()
    serving.start()
    told = False
    while not cancellation.asked.is_set() and serving.is_alive():
        if server.started and not told:
            ready()
            told = True
        clock.wait_s(_LOOK_S, cancellation.asked)
    api.stopping.set()
    server.should_exit = True
    serving.join()
    relay.join(timeout=_END_S)
    if not cancellation.asked.is_set():
        raise UnavailableError("the HTTP server ended by itself; its log says why")
