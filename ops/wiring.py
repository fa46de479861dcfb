"""The composition root: from settings to a ledger, an AWS endpoint, and a dispatcher that holds both.

What takes long to import is imported by the function that needs it: most commands look at the ledger only.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dispatch.run import Cancellation
from ledger import schema
from ledger.embedded import embedded_postgres
from ledger.facts import RunCounts
from ledger.settings import Settings
from ledger.store import Store

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher

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
        from dispatch.aws.embedded import embedded_aws

        with embedded_aws(settings.state_dir) as url:
            yield url
    else:
        yield settings.aws.endpoint_url


@contextmanager
def dispatcher(
    settings: Settings, cancellation: Cancellation, on_progress: Callable[[RunCounts], None]
) -> "Iterator[Dispatcher]":
    """Yield a dispatcher whose table, index, bucket and queues have been found, and whose ledger is ready.

    Raises:
        InputError: when one of them is missing or does not fit; the ledger has not been touched then.
        UnavailableError: when AWS or the ledger does not answer.
    """
    from dispatch.dispatcher import Dispatcher, connect_partners

    with aws_endpoint(settings) as endpoint:
        partners = connect_partners(settings, endpoint)
        with ledger(settings) as store:
            holder = f"{socket.gethostname()}, process {os.getpid()}"
            yield Dispatcher(settings, store, partners, cancellation, holder, on_progress)
