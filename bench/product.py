"""The product, driven through its own composition root; settings come by the environment."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from bench.probe import Usage
from bench.records import INDEX, RECORDS_PER_GROUP, WINDOW
from dispatch import witnesses
from dispatch.dispatcher import Dispatcher, connect_partners
from dispatch.run import Cancellation
from ledger import outbox
from ledger.instants import parse_window
from ledger.settings import env_name, load_settings
from ops import logs, wiring
from reconcile.reconciler import Reconciler
from reconcile.rescan import Options

FLOWS: Mapping[str, Mapping[str, str]] = {
    "full": {"dispatch.pagination_enabled": "false"},
    "staged": {"dispatch.pagination_enabled": "true", "dispatch.grouping": "window"},
    "paged": {"dispatch.pagination_enabled": "true", "dispatch.grouping": "page"},
}
BLIND = "staged-blind"


def environment(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run as environment variables."""
    keys = {
        "pipeline": spec["pipeline"],
        "ledger.database_url": spec["database_url"],
        "aws.endpoint_url": spec["endpoint_url"],
        "aws.region": "us-east-1",
        "source.table": spec["table"],
        "source.index": INDEX,
        "objects.bucket": "bench",
        "dispatch.verify_due": str(spec["verify_due"]).lower(),
        **FLOWS.get(spec["variant"], FLOWS["staged"]),
    }
    return {env_name(key): value for key, value in keys.items()}


def reconcile(spec: Mapping[str, Any]) -> dict[str, float]:
    """Reconcile a window that was dispatched before and has not changed; nothing may be found."""
    logs.configure("error")
    usage = Usage()
    settings = load_settings(environ={**os.environ, **environment(spec)})
    with wiring.dispatcher(settings, Cancellation(), lambda _: None) as dispatcher:
        options = Options(settings.reconcile, grace=timedelta())
        with usage.timed():
            report = Reconciler(dispatcher, options).reconcile_window(parse_window(WINDOW))
    if report.error is not None:
        raise report.error
    counts = report.counts
    assert counts.evaluated == counts.already_claimed == spec["records"], "everything was read, and was claimed"
    assert report.findings == [], report.findings[:3]
    return {**usage.figures(), "groups": _groups(counts.evaluated), "records": counts.evaluated}


def read(spec: Mapping[str, Any]) -> dict[str, float]:
    """Read and decode the window's pages as the product does, and look at nothing: what a reconcile cannot save."""
    usage = Usage()
    settings = load_settings(environ={**os.environ, **environment(spec)})
    wiring.collect_rarely()
    source = connect_partners(settings, settings.aws.endpoint_url).source
    with usage.timed():
        records = sum(len(page.items) for page in source.pages(parse_window(WINDOW), settings.dispatch.page_size))
    assert records == spec["records"], "the whole window was read"
    return {**usage.figures(), "groups": _groups(records), "records": records}


def _leave_out_witnesses() -> None:
    """Let a run keep how far its window has come in no place at all; the difference is what that costs."""
    outbox.raise_seq = lambda *_: None  # type: ignore[assignment]
    working: Any = Dispatcher.working
    working.__wrapped__.__defaults__ = (lambda _: None,)
    witnesses.RunWitness.land = lambda _: None  # type: ignore[method-assign, assignment]


def _groups(records: int) -> int:
    """Return how many groups so many records make, about: rates are shown for groups."""
    return round(records / RECORDS_PER_GROUP)


def measure(spec: Mapping[str, Any]) -> dict[str, float]:
    """Do what the variant says: a flow, `reconcile` or `read`."""
    return {"reconcile": reconcile, "read": read}.get(spec["variant"], dispatch)(spec)


def dispatch(spec: Mapping[str, Any]) -> dict[str, float]:
    """Dispatch one window; the time of a run counts, from its lease to its closed books."""
    logs.configure("error")
    usage = Usage()
    settings = load_settings(environ={**os.environ, **environment(spec)})
    if spec["variant"] == BLIND:
        _leave_out_witnesses()
    with wiring.dispatcher(settings, Cancellation(), lambda _: None) as dispatcher, usage.timed():
        report = dispatcher.dispatch(parse_window(WINDOW), "manual")
    if report.error is not None:
        raise report.error
    counts = report.counts
    assert counts.evaluated == spec["records"], "the whole window was read"
    assert counts.claimed == (0 if spec["again"] else spec["records"]), "each record was claimed, and once"
    return {**usage.figures(), "groups": counts.confirmed, "records": counts.evaluated, "pages": counts.pages}
