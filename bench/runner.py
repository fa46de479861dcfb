"""Runs the cases, each in a fresh process and a fresh database, and takes the medians."""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from bench.machine import Database, StandIn, postgres, stand_in
from bench.plan import Case

LEDGER_TABLES = ("claims", "entries", "attempts", "open_attempts", "payload_parts", "staged_records")
_CHILD_WITHIN_S = 3600.0
_NOT_A_CASES_BUSINESS = ("DISPATCH_LEDGER_", "AWS_", "_N1CONFIG__")

Figures = dict[str, Any]


class BrokenError(Exception):
    """A measured process failed; the other figures are good all the same."""


def run(cases: Sequence[Case], rounds: int, tell: Callable[[str], None]) -> list[Figures]:
    """Run all cases round by round, so that a slow minute of the machine meets every side; returns a row for each.

    One that fails is told of, and has no row.
    """
    measured: dict[Case, list[Figures]] = defaultdict(list)
    with ExitStack() as stack:
        database = stack.enter_context(postgres())
        stand_ins = {ms: stack.enter_context(stand_in(ms)) for ms in sorted({case.latency_ms for case in cases})}
        for number in range(1, rounds + 1):
            for case in (one for one in cases if number <= one.rounds):
                try:
                    figures = _one(case, database, stand_ins[case.latency_ms])
                except BrokenError as reason:
                    tell(f"[red]round {number}  {case.name} failed:[/] {reason}")
                    continue
                measured[case].append(figures)
                tell(_line(number, case, figures))
    return [_row(case, each) for case, each in measured.items()]


def _one(case: Case, database: Database, aws: StandIn) -> Figures:
    aws.warm(case.shape.table)
    with database.fresh() as url:
        spec = {
            "subject": case.subject,
            "variant": case.variant,
            "records": case.shape.records,
            "table": case.shape.table,
            "latency_ms": case.latency_ms,
            "verify_due": case.verify_due,
            "again": False,
            "pipeline": "bench",
            "existing": case.existing,
            "database_url": url,
            "endpoint_url": aws.url,
        }
        aws_before = aws.counts(reset=True)
        if case.variant == "reconcile":
            _child({**spec, "variant": "staged"})
        tables_before, wal_before = _table_bytes(case, database, url), _wal_bytes(database)
        figures = _child(spec)
        figures["wal_bytes"] = _wal_bytes(database) - wal_before
        _check(case, figures, aws.counts())
        figures["aws_cpu_s"] = aws.counts()["cpu_s"] - aws_before["cpu_s"]
        figures["table_bytes"] = _vacuumed_bytes(case, database, url) - tables_before
        if case.again:
            figures["second_wall_s"] = _child({**spec, "again": True})["wall_s"]
            # As much again for another pipeline: what a window adds once staging and payloads have their pages.
            before = _vacuumed_bytes(case, database, url)
            _child({**spec, "pipeline": "bench-2"})
            figures["grown_bytes"] = _vacuumed_bytes(case, database, url) - before
    return figures


def _child(spec: Figures) -> Figures:
    """Measure in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_A_CASES_BUSINESS)}
    environment |= {
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    command = [sys.executable, "-m", "bench.child", json.dumps(spec)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_CHILD_WITHIN_S, check=False
    )
    if done.returncode:
        raise BrokenError(f"{spec['subject']} {spec['variant']} failed with {done.returncode}:\n{done.stderr[-4000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _check(case: Case, figures: Figures, seen: dict[str, float]) -> None:
    """Make sure that what was counted has really been sent."""
    if case.subject in {"product", "straightforward"} and case.variant not in {"reconcile", "read"}:
        sent = (seen.get("puts", 0), seen.get("messages", 0))
        assert sent == (figures["groups"],) * 2, f"{case}: {figures['groups']} groups, but {sent} objects and messages"


def _wal_bytes(database: Database) -> int:
    return int(database.ask("SELECT pg_current_wal_lsn() - '0/0'"))


def _vacuumed_bytes(case: Case, database: Database, url: str) -> int:
    database.tell("VACUUM", url)
    return _table_bytes(case, database, url)


def _table_bytes(case: Case, database: Database, url: str) -> int:
    """Return how large the tables are with their indexes: the ledger's five, or with others whatever they made."""
    query = (
        "SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0) FROM pg_class "
        "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
    )
    if case.subject in {"product", "growth"}:
        query += f" AND relname IN {LEDGER_TABLES}"
    return int(database.ask(query, url))


def _row(case: Case, each: Sequence[Figures]) -> Figures:
    """Return a case's row: medians over its rounds, then what follows from them."""
    median = {name: statistics.median(one[name] for one in each) for name in each[0]}
    row: Figures = {
        **median,
        "name": case.name,
        "records": case.shape.records,
        "latency_ms": case.latency_ms,
        "rounds": len(each),
        "one_group": case.shape.one_group,
    }
    groups, records = median["groups"], median["records"]
    if groups:
        row["groups_per_s"] = groups / median["wall_s"]
        row["cpu_ms_per_group"] = 1e3 * median["cpu_s"] / groups
        row["cpu_us_per_record"] = 1e6 * median["cpu_s"] / records
        row["records_per_s"] = records / median["wall_s"]
        row["aws_cpu_ms_per_group"] = 1e3 * median["aws_cpu_s"] / groups
    if groups and case.variant not in {"put", "decode", "read", "reconcile"}:  # those two write nothing there
        row["table_bytes_per_record"] = median["table_bytes"] / records
        row["wal_bytes_per_record"] = median["wal_bytes"] / records
    if case.again:
        row["ratio"] = median["wall_s"] / median["second_wall_s"]
        row["grown_bytes_per_record"] = median["grown_bytes"] / records
    return row


def _line(number: int, case: Case, figures: Figures) -> str:
    head = f"round {number}  {case.name:<16} {case.shape.records:>10,} records {case.latency_ms:>4.0f} ms  "
    if not figures["groups"]:
        return head + f"ratio {figures['ratio']:.2f}"
    rate, cpu = figures["groups"] / figures["wall_s"], 1e3 * figures["cpu_s"] / figures["groups"]
    tail = f"  second run {figures['second_wall_s']:.2f} s" if case.again else ""
    return head + f"{rate:>8,.0f} groups/s {cpu:6.3f} ms CPU/group  +{figures['peak_mib']:.1f} MiB{tail}"
