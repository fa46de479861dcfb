"""The composition root: from settings to a ledger, an AWS endpoint, and a dispatcher that holds both."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from dispatch.aws.embedded import embedded_aws
from dispatch.dispatcher import Dispatcher, Partners, connect_partners
from dispatch.dry_run import DryDispatcher, dry_partners
from dispatch.run import Cancellation
from ledger import schema
from ledger.dry_run import DryStore
from ledger.embedded import embedded_postgres
from ledger.facts import RunCounts
from ledger.settings import Settings
from ledger.store import Store
from reconcile.dry_run import DryReconciler
from reconcile.reconciler import Reconciler
from reconcile.rescan import Options

EMBEDDED = "embedded"


@contextmanager
def database(settings: Settings) -> Iterator[str]:
    """Yield the URL of the ledger's database, started first when it is embedded; its schema is not looked at."""
    if settings.ledger.database_url == EMBEDDED:
        with embedded_postgres(settings.state_dir, settings.ledger.bin_dir) as url:
            yield url
    else:
        yield settings.ledger.database_url


@contextmanager
def ledger(settings: Settings) -> Iterator[Store]:
    """Yield the ledger; an embedded one is upgraded by itself, any other must be at this version's schema.

    Raises:
        UnavailableError: when it cannot be reached, or its schema is not this version's.
    """
    with database(settings) as url:
        if settings.ledger.database_url == EMBEDDED:
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
        with embedded_aws(settings.state_dir) as url:
            yield url
    else:
        yield settings.aws.endpoint_url


@contextmanager
def dispatcher(
    settings: Settings, cancellation: Cancellation, on_progress: Callable[[RunCounts], None]
) -> Iterator[Dispatcher]:
    """Yield a dispatcher whose table, index, bucket and queues have been found, and whose ledger is ready.

    Raises:
        InputError: when one of them is missing or does not fit; the ledger has not been touched then.
        UnavailableError: when AWS or the ledger does not answer.
    """
    with _partners_and_ledger(settings) as (partners, store):
        yield Dispatcher(settings, store, partners, cancellation, _holder(), on_progress)


@contextmanager
def dry_dispatcher(
    settings: Settings, cancellation: Cancellation, on_progress: Callable[[RunCounts], None]
) -> Iterator[DryDispatcher]:
    """Yield a dispatcher that only says what it would do; errors are those of `dispatcher`."""
    with _partners_and_ledger(settings) as (partners, store), DryStore(store.url, settings.pipeline) as dry:
        readers = dry_partners(partners, dry)
        with structlog.contextvars.bound_contextvars(dry_run=True):
            yield DryDispatcher(settings, dry, readers, cancellation, _holder(), on_progress)


def reconciler(dispatcher: Dispatcher, options: Options) -> Reconciler:
    """Return a reconciler with a dispatcher's partners; one that only says what it would do, if the dispatcher does."""
    if isinstance(dispatcher, DryDispatcher):
        return DryReconciler(dispatcher, options)
    return Reconciler(dispatcher, options)


@contextmanager
def _partners_and_ledger(settings: Settings) -> Iterator[tuple[Partners, Store]]:
    with aws_endpoint(settings) as endpoint:
        partners = connect_partners(settings, endpoint)
        with ledger(settings) as store:
            yield partners, store


def _holder() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"
