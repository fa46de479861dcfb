"""The composition root: from settings to a ledger, an AWS endpoint, and a dispatcher that holds both.

What takes long to import is imported by the function that needs it: most commands look at the ledger only.
"""

import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from dispatch.run import Cancellation
from ledger import schema
from ledger.embedded import embedded_postgres
from ledger.errors import InputError
from ledger.facts import RunCounts
from ledger.settings import Settings
from ledger.store import Store

if TYPE_CHECKING:
    from dispatch.aws.control import ControlQueues
    from dispatch.dispatcher import Dispatcher, Partners
    from dispatch.dry_run import DryDispatcher
    from reconcile.reconciler import Reconciler
    from reconcile.rescan import Options

EMBEDDED = "embedded"
_EMULATED_MARK = "emulated"  # a file in the state folder: its ledger holds windows of the emulated AWS
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
# Whoever asks for a job over HTTP waits this long for its id to be sent, at most.
_SEND = timedelta(seconds=2)
_POLL = timedelta(seconds=10)


@contextmanager
def database(settings: Settings) -> Iterator[str]:
    """Yield the URL of the ledger's database, started first when it is embedded; its schema is not looked at.

    Raises:
        InputError: when nothing says where it is.
    """
    where = settings.require_ledger()
    if where == EMBEDDED:
        with embedded_postgres(settings.state_dir, settings.ledger.bin_dir) as url:
            yield url
    else:
        yield where


@contextmanager
def ledger(settings: Settings) -> Iterator[Store]:
    """Yield the ledger; an embedded one is upgraded by itself, any other must be at this version's schema.

    Raises:
        InputError: when nothing says where it is.
        UnavailableError: when it cannot be reached, or its schema is not this version's.
    """
    with database(settings) as url:
        if settings.require_ledger() == EMBEDDED:
            if schema.current_revision(url) != schema.head_revision():
                schema.upgrade(url)
        else:
            schema.require_head(url)
        with Store(url) as store:
            yield store


@contextmanager
def aws_endpoint(settings: Settings) -> Iterator[str | None]:
    """Yield the endpoint of all AWS services, None for AWS itself; the emulator is started when it is embedded."""
    if settings.aws.endpoint_url == EMBEDDED:
        from dispatch.aws.embedded import embedded_aws

        with embedded_aws(settings.state_dir) as url:
            yield url
    else:
        yield settings.aws.endpoint_url


def collect_rarely() -> None:
    """Look for garbage in cycles less often. Pages of records have none, and looking takes a quarter of the time."""
    gc.set_threshold(50_000, 20, 20)


@contextmanager
def dispatcher(
    settings: Settings, cancellation: Cancellation, on_progress: Callable[[RunCounts], None]
) -> "Iterator[Dispatcher]":
    """Yield a dispatcher whose table, index, bucket and queues have been found, and whose ledger is ready.

    Raises:
        InputError: when one of them is missing or does not fit, or nothing says where the ledger is, or the embedded
            one holds windows of the emulated AWS while these settings name another; no ledger has been touched then.
        UnavailableError: when AWS or the ledger does not answer.
    """
    from dispatch.dispatcher import Dispatcher

    collect_rarely()
    with _partners_and_ledger(settings) as (partners, store):
        _mark_emulated(settings)
        yield Dispatcher(settings, store, partners, cancellation, holder(), on_progress)


@contextmanager
def dry_dispatcher(
    settings: Settings, cancellation: Cancellation, on_progress: Callable[[RunCounts], None]
) -> Iterator["DryDispatcher"]:
    """Yield a dispatcher that only says what it would do; errors are those of `dispatcher`."""
    from dispatch.dry_run import DryDispatcher, dry_partners
    from ledger.dry_run import DryStore

    with _partners_and_ledger(settings) as (partners, store), DryStore(store.url, settings.pipeline) as dry:
        readers = dry_partners(partners, dry)
        with structlog.contextvars.bound_contextvars(dry_run=True):
            yield DryDispatcher(settings, dry, readers, cancellation, holder(), on_progress)


def reconciler(dispatcher: "Dispatcher", options: "Options") -> "Reconciler":
    """Return a reconciler with a dispatcher's partners; one that only says what it would do, if the dispatcher does."""
    from dispatch.dry_run import DryDispatcher
    from reconcile.dry_run import DryReconciler
    from reconcile.reconciler import Reconciler

    if isinstance(dispatcher, DryDispatcher):
        return DryReconciler(dispatcher, options)
    return Reconciler(dispatcher, options)


@contextmanager
def _partners_and_ledger(settings: Settings) -> Iterator[tuple["Partners", Store]]:
    from dispatch.dispatcher import connect_partners

    _keep_apart(settings)
    with aws_endpoint(settings) as endpoint:
        partners = connect_partners(settings, endpoint)
        with ledger(settings) as store:
            yield partners, store


def _keep_apart(settings: Settings) -> None:
    """Refuse to dispatch from real tables with a ledger in which trying out has already completed their hours."""
    where, here = settings.require_ledger(), settings.aws.endpoint_url
    mark = settings.state_dir / _EMULATED_MARK
    is_other = here is None or (here != EMBEDDED and urlsplit(here).hostname not in _LOOPBACK)
    if is_other and where == EMBEDDED and mark.exists():
        raise InputError(
            f"the embedded ledger in {settings.state_dir} holds windows of the emulated AWS, which would pass for "
            f"dispatched in {here or 'AWS'}: set aws.endpoint_url to 'embedded' to work with those, else move that "
            "folder away or set ledger.database_url"
        )


def _mark_emulated(settings: Settings) -> None:
    if settings.aws.endpoint_url == EMBEDDED == settings.require_ledger():
        (settings.state_dir / _EMULATED_MARK).touch()


def holder() -> str:
    """Name this machine and process, for a person who wonders who holds something."""
    return f"{socket.gethostname()}, process {os.getpid()}"


def control_queues(settings: Settings, endpoint: str | None) -> "ControlQueues":
    """Return the client of the queues that carry the ids of long-running jobs.

    Raises:
        InputError: when no region or no credentials are known.
    """
    from dispatch.aws.control import ControlQueues
    from dispatch.aws.session import Session

    session = Session(endpoint, settings.aws.region, embedded=settings.aws.endpoint_url == EMBEDDED)
    return ControlQueues(session, send=_SEND, wait=_POLL)
