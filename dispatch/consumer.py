"""A safe consumer of the dispatched jobs: take the receipt, work, complete it, and only then drop the message.

A message may come any number of times, to any number of consumers. At most one of them has its job at a time, and the
job is completed at most once. Its effect is made exactly once when it shares the receipt's transaction
(`transactional=True`), or when the outside world honours the idempotency key; nothing else can promise that.

    from dispatch.consumer import Consumer
    from ledger.settings import load_settings

    def grant(payload):
        return {"records": len(payload["records"])}

    Consumer(load_settings(), "reward-point", grant, concurrency=4).run()
"""

import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dispatch.aws.inbox import Inbox, JobObjects
from dispatch.aws.session import Session
from dispatch.children import Child
from dispatch.handlers import check_handler, check_name
from dispatch.shift import Shift, Station, Summary
from dispatch.working import InChild, InThread, InTransaction, Way
from ledger import schema
from ledger.errors import InputError
from ledger.settings import Settings
from ledger.store import Store

__all__ = ["CONCURRENCY_MAX", "DRAIN", "Consumer", "Summary"]

CONCURRENCY_MAX = 64
DRAIN = timedelta(seconds=10)


def _name(handler: Callable[..., Any]) -> str:
    return str(getattr(handler, "__qualname__", type(handler).__qualname__))


class Consumer:
    """Works the jobs of one queue, one at a time in each of a few threads.

    Args:
        settings: for AWS and the ledger.
        queue: the queue's name or URL.
        handler: what is done with a job's document: a function, or the name `module:function` of one that is called in
            child processes. What it returns, anything that JSON can say, becomes the receipt's result; an exception is
            a failed attempt.
        transactional: the function is called with a second argument, the connection of the transaction that completes
            the receipt. What it writes there is kept exactly once. It must not commit.
        concurrency: how many jobs at once, 1 to 64; each has a connection to the ledger.
        ledger_url: instead of `ledger.database_url`.
        endpoint_url: instead of `aws.endpoint_url`.
        tracebacks: whether the traceback of an exception in a child process is written to standard error.

    Raises:
        InputError: when an argument is not allowed, nothing says where the ledger is, or the queue does not exist or
            may not be used.
        UnavailableError: when SQS or the ledger do not answer, or the ledger's schema is not this version's.
    """

    def __init__(
        self,
        settings: Settings,
        queue: str,
        handler: str | Callable[..., Any],
        *,
        transactional: bool = False,
        concurrency: int = 1,
        ledger_url: str | None = None,
        endpoint_url: str | None = None,
        tracebacks: bool = False,
    ) -> None:
        self._handler = check_name(handler) if isinstance(handler, str) else check_handler(handler, _name(handler))
        if isinstance(handler, str) and transactional:
            raise InputError("a handler in a child process cannot share the receipt's transaction; give the function")
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InputError(f"a concurrency of {concurrency} is not allowed; use 1 to {CONCURRENCY_MAX}")
        self._transactional, self._concurrency, self._tracebacks = transactional, concurrency, tracebacks
        url = ledger_url or settings.require_ledger()
        if url == "embedded":
            raise InputError("a consumer needs the ledger that dispatches; set ledger.database_url to its URL")
        embedded = settings.aws.endpoint_url == "embedded"
        endpoint = endpoint_url or (None if embedded else settings.aws.endpoint_url)
        session = Session(endpoint, settings.aws.region, embedded=embedded)
        inbox = Inbox(session, queue)
        schema.require_head(url)
        self._station = Station(
            inbox=inbox,
            objects=JobObjects(session),
            ledger_url=url,
            # A claim ends a little before its message is seen again, so that who gets it then finds the job free.
            lease=timedelta(seconds=inbox.held_s * 0.9 - 0.5),
            worker=f"{socket.gethostname()[:100]}, process {os.getpid()}",
            way=self._way,
        )

    def _way(self, store: Store) -> Way:
        if isinstance(self._handler, str):
            child = Child(self._handler, tracebacks=self._tracebacks)
            child.start()  # so that all of them load the handler at the same time
            return InChild(store, child)
        return InTransaction(store, self._handler) if self._transactional else InThread(store, self._handler)

    def run(
        self,
        *,
        stop: threading.Event | None = None,
        max_messages: int | None = None,
        drain: timedelta = DRAIN,
        summary: Summary | None = None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> Summary:
        """Work until `stop` is set, or until so many messages were handled; one that comes again counts again.

        Once it is to stop, nothing more is received. A job in hand has `drain` to come to its end: a child process that
        works longer is killed, and its job handed back to the queue; a function of this process is waited for.

        Args:
            summary: where the messages are counted, for who looks at it meanwhile; a new one by default.
            on_begin: called once, when the handler is loaded and the first message is about to be received.

        Returns:
            What became of the messages: the summary.

        Raises:
            InputError: when the handler cannot be loaded, or access to the queue is denied.
        """
        if max_messages is not None and max_messages < 1:
            raise InputError(f"{max_messages} messages at most is not allowed; use 1 or more")
        shift = Shift(self._station, stop or threading.Event(), max_messages, drain, summary)
        return shift.run(self._concurrency, on_begin)
