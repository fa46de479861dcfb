"""Lets every run and reconcile of a rig be preceded by a dry run, which must leave no trace and must turn out right."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dispatch.aws.queues import SqsQueues
from dispatch.dispatcher import RunReport
from ledger.tables import SQLModel
from tests.aws_servers import World
from tests.rig import Rig

TABLES = sorted(SQLModel.metadata.tables)
SEQUENCES = ("pipelines", "destinations", "windows", "findings")
_TAGS_LOOKED_AT_MAX = 30
_SEND = SqsQueues.send


def everything(rig: Rig) -> dict[str, Any]:
    """Take down all that a later command, or a neighbour, could see."""
    seen: dict[str, Any] = {
        table: rig.rows(f"SELECT t::text FROM {table} AS t ORDER BY 1")
        for table in (*TABLES, "dispatch_ledger_version")
    }
    for table in SEQUENCES:
        name = rig.value("SELECT pg_get_serial_sequence(%s, 'id')", table)
        seen[name] = rig.rows(f"SELECT last_value, is_called FROM {name}")
    world = rig.world
    pages = world.s3.get_paginator("list_objects_v2").paginate(Bucket=world.bucket)
    listed = [one for page in pages for one in page.get("Contents", ())]
    seen["objects"] = [(one["Key"], one["ETag"], one["LastModified"]) for one in listed]
    seen["tags"] = [tags_of(world, one["Key"]) for one in listed[:_TAGS_LOOKED_AT_MAX]]
    seen["messages"] = [world.message_count(queue) for queue in world.queues]
    return seen


def tags_of(world: World, key: str) -> Any:
    return world.s3.get_object_tagging(Bucket=world.bucket, Key=key).get("TagSet", [])


def run_of(report: RunReport) -> dict[str, Any]:
    """Tell of a run what a dry run has to know beforehand."""
    counts = {name: getattr(report.counts, name) for name in report.counts.__struct_fields__ if name != "confirmed"}
    return counts | {
        "window": report.window,
        "flow": report.flow,
        "outcome": report.outcome,
        "error": None if report.error is None else str(report.error),
        "open_findings": report.open_findings,
    }


def windows_of(document: dict[str, Any]) -> list[Any]:
    """Tell of a reconcile what a dry run has to know beforehand, as it is, or as it would be."""
    return [
        {name: window[name] for name in ("window", "coverage", "held", "late", "left_alone", "error")}
        | {"findings": [_finding(one) for one in window["findings"]]}
        for window in document["windows"]
    ]


def _finding(one: dict[str, Any]) -> dict[str, Any]:
    told = {name: one[name] for name in ("kind", "cause", "window", "record_id", "entry_id", "object_key", "detail")}
    # Looking into a dead-letter queue would count as a receipt, so a dry run cannot tell.
    told["detail"] = {name: value for name, value in one["detail"].items() if name != "in_dead_letter_queue"}
    if "would_be" not in one:
        return told | {"state": one["state"], "repair": one["repair"]}
    assert one["repair"] is None
    return told | {"state": one["would_be"], "repair": one["would_repair"]}


def states(rig: Rig) -> dict[int, str]:
    return dict(rig.rows("SELECT id, state FROM findings"))  # type: ignore[arg-type]


def check_ids(rig: Rig, before: dict[int, str], dry: dict[str, Any], real: dict[str, Any]) -> None:
    """Check that a finding has its id and state of before, or none; and how many were closed."""
    pairs = [
        pair
        for said, done in zip(dry["windows"], real["windows"], strict=True)
        for pair in zip(said["findings"], done["findings"], strict=True)
    ]
    for said, done in pairs:
        assert said["id"] == (done["id"] if done["id"] in before else None)
        if before.get(done["id"]) in {"open", "acknowledged"}:
            assert said["state"] == before[done["id"]]
    now = states(rig)
    closed = sum(state != "closed" and now[identity] == "closed" for identity, state in before.items())
    assert dry["would_close"] == closed
    assert dry["would_repair"] == real["repaired"]


@contextmanager
def untouched(rig: Rig) -> Iterator[None]:
    """Check that nothing is written, stored, tagged or sent in the block."""
    before = everything(rig)
    yield
    after = everything(rig)
    assert after == before


def rehearse(patch: pytest.MonkeyPatch) -> None:
    """Let a dry run go before every run and every reconcile of any rig, as long as the queues are what they are."""
    run, reconcile = Rig.run, Rig.reconcile

    def is_knowable(given: dict[str, Any]) -> bool:
        return not given.get("dry_run") and "cancellation" not in given and SqsQueues.send is _SEND

    def run_twice(rig: Rig, flow: str = "staged", **given: Any) -> RunReport:
        if not is_knowable(given):
            return run(rig, flow, **given)
        with untouched(rig):
            dry = run(rig, flow, dry_run=True, **given)
        real = run(rig, flow, **given)
        assert run_of(dry) == run_of(real)
        assert (dry.dry_run, dry.counts.confirmed) == (True, 0)
        return real

    def reconcile_twice(rig: Rig, *windows: str, **given: Any) -> dict[str, Any]:
        if not is_knowable(given):
            return reconcile(rig, *windows, **given)
        with untouched(rig):
            dry = reconcile(rig, *windows, dry_run=True, **given)
        before = states(rig)
        real = reconcile(rig, *windows, **given)
        assert windows_of(dry) == windows_of(real)
        check_ids(rig, before, dry, real)
        assert (dry["dry_run"], dry["run_id"], dry["repaired"]) == (True, None, 0)
        return real

    patch.setattr(Rig, "run", run_twice)
    patch.setattr(Rig, "reconcile", reconcile_twice)
