"""The product, driven through its own composition root; settings come by the environment."""

import os
from collections.abc import Mapping
from typing import Any

from bench.probe import Usage
from bench.records import INDEX, WINDOW
from dispatch.run import Cancellation
from ledger.instants import parse_window
from ledger.settings import env_name, load_settings
from ops import logs, wiring

FLOWS: Mapping[str, Mapping[str, str]] = {
    "full": {"dispatch.pagination_enabled": "false"},
    "staged": {"dispatch.pagination_enabled": "true", "dispatch.grouping": "window"},
    "paged": {"dispatch.pagination_enabled": "true", "dispatch.grouping": "page"},
}


def environment(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run as environment variables."""
    keys = {
        "pipeline": "bench",
        "ledger.database_url": spec["database_url"],
        "aws.endpoint_url": spec["endpoint_url"],
        "aws.region": "us-east-1",
        "source.table": spec["table"],
        "source.index": INDEX,
        "objects.bucket": "bench",
        "dispatch.verify_due": str(spec["verify_due"]).lower(),
        **FLOWS[spec["variant"]],
    }
    return {env_name(key): value for key, value in keys.items()}


def measure(spec: Mapping[str, Any]) -> dict[str, float]:
    """Dispatch one window; the time of a run counts, from its lease to its closed books."""
    logs.configure("error")
    usage = Usage()
    settings = load_settings(environ={**os.environ, **environment(spec)})
    with wiring.dispatcher(settings, Cancellation(), lambda _: None) as dispatcher, usage.timed():
        report = dispatcher.dispatch(parse_window(WINDOW), "manual")
    if report.error is not None:
        raise report.error
    counts = report.counts
    assert counts.evaluated == spec["records"], "the whole window was read"
    assert counts.claimed == (0 if spec["again"] else spec["records"]), "each record was claimed, and once"
    return {**usage.figures(), "groups": counts.confirmed, "records": counts.evaluated, "pages": counts.pages}
