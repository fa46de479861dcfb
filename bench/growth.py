"""Does a claim cost more when the ledger has grown? The product's own open step, at few and at many existing claims."""

import statistics
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psycopg

from bench.records import record_id
from ledger import outbox, runs
from ledger.facts import Destination, Group, Record
from ledger.ids import new_id
from ledger.instants import HOUR_S, NS_PER_S, Window, parse_window
from ledger.leases import Tenure
from ledger.store import Store, connect_arguments

_BATCHES = 100
_BATCH_RECORDS = 1000
_SPREAD_S = 60 * 24 * HOUR_S  # existing claims lie around the new ones, not only before them: the harder case
_FILL_STEP = 1_000_000
_MIDDLE = parse_window("2026-09-17T15:00:00Z")
_FILL = """
INSERT INTO claims (pipeline_id, booking_ns, record_id, generation, fingerprint, entry_id)
SELECT %(pipeline_id)s, %(first_ns)s + number * %(step_ns)s, '\\xff'::bytea || uuid_send(md5(number::text)::uuid), 0,
       number, md5((number / 3)::text)::uuid
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number
ON CONFLICT DO NOTHING
"""


def _fill(connection: psycopg.Connection[Any], pipeline_id: int, already: int, existing: int) -> None:
    """Bring the table to as many claims, evenly spread over 60 days; each fill has a grid of its own."""
    step_ns = _SPREAD_S * NS_PER_S // existing
    first_ns = _MIDDLE.start_ns - _SPREAD_S * NS_PER_S // 2 + already  # off the grid of the fill before
    for first in range(already, existing, _FILL_STEP):
        last = min(first + _FILL_STEP, existing) - 1
        values = {"pipeline_id": pipeline_id, "first_ns": first_ns, "step_ns": step_ns, "first": first, "last": last}
        connection.execute(_FILL, values)
    connection.execute("VACUUM ANALYZE claims")
    connection.execute("CHECKPOINT")


def _start(store: Store, window: Window) -> Tenure:
    request = runs.RunRequest(
        run_id=new_id(),
        pipeline="bench",
        window=window,
        flow="staged",
        page_size=_BATCH_RECORDS,
        cause="manual",
        config="{}",
        holder="bench",
        lease=timedelta(hours=1),
    )
    return runs.start_run(store, request).tenure


def _group(window: Window, batch: int) -> Group:
    """Return one group of a thousand small records: nearly all that its opening costs are its claims."""
    step_ns = HOUR_S * NS_PER_S // (_BATCHES * _BATCH_RECORDS)
    first = batch * _BATCH_RECORDS
    records = [
        Record(record_id(index), window.start_ns + index * step_ns + 1, b"", b"", b"{}", index)
        for index in range(first, first + _BATCH_RECORDS)
    ]
    return Group(digest=batch.to_bytes(16, "big"), values_json=b"{}", route="Point", records=records)


def _batch_ms(store: Store, window: Window) -> float:
    """Return what opening a batch takes in the median."""
    tenure = _start(store, window)
    place = Destination(id=0, route="Point", job="RewardPoint", queue="q", bucket="bench", prefix="p/")
    by_route = outbox.destinations(store, tenure.pipeline_id, [place])
    times = []
    for batch in range(_BATCHES):
        groups = [_group(window, batch)]
        began_s = time.perf_counter()
        opened = outbox.open_entries(store, tenure, groups, by_route)
        times.append(time.perf_counter() - began_s)
        assert opened.claimed == _BATCH_RECORDS, "nobody had claimed these"
    return statistics.median(times) * 1000


def measure(spec: Mapping[str, Any]) -> dict[str, float]:
    """Measure at each number of existing claims in turn, in one database."""
    figures: dict[str, float] = {"records": spec["records"], "groups": 0}
    already = 0
    with (
        Store(spec["database_url"]) as store,
        psycopg.connect(**connect_arguments(spec["database_url"]), autocommit=True) as connection,
    ):
        pipeline_id = store.transaction(lambda inner: runs.pipeline_id(inner, "bench"))
        for number, existing in enumerate(spec["existing"]):
            _fill(connection, pipeline_id, already, existing)
            figures[f"batch_ms_at_{existing}"] = _batch_ms(store, Window(_MIDDLE.start_s + number * HOUR_S))
            already = existing
    few, *_, many = spec["existing"]
    return {
        **figures,
        "few": few,
        "many": many,
        "ratio": figures[f"batch_ms_at_{many}"] / figures[f"batch_ms_at_{few}"],
    }
