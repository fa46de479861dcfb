"""What a user would pick instead for the queueing half: job queues in PostgreSQL, each with its uniqueness on.

Only putting the jobs in is timed: no reading, no objects. The groups are the product's, one job each.
"""

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import procrastinate
import psycopg
from pgqueuer.db import PsycopgDriver
from pgqueuer.queries import Queries

from bench.probe import Usage
from bench.records import Shape, item_json
from ledger.store import connect_arguments

_AT_ONCE = 1000
_GROUP_BY = ("ShopId", "MemberId", "PromotionEngineId")

Job = tuple[str, dict[str, Any]]
"""A key that makes it unique, and its message."""


def _jobs(records: int) -> list[Job]:
    shape = Shape(records)
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for index in range(records):
        item = json.loads(item_json(index, shape))
        groups[tuple(item[name]["N"] for name in _GROUP_BY)].append(item["Id"]["S"])
    return [_job(dict(zip(_GROUP_BY, group, strict=True)), members) for group, members in groups.items()]


def _job(group: dict[str, str], members: list[str]) -> Job:
    key = hashlib.sha256(json.dumps([group, members]).encode()).hexdigest()
    place = {"bucket": "bench", "key": f"reward-dispatch/bench/2026/09/17/15/{key[:32]}/{key}-0.json"}
    return key, {"group": group, "object": place, "idempotency_key": key, "records": len(members)}


def _procrastinate(url: str, jobs: list[Job], usage: Usage) -> None:
    """One call a job: each has a lock of its own, and a call for many can only give them all the same."""
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(kwargs=connect_arguments(url)))
    task = app.task(name="reward")(lambda **_: None)
    with app.open():
        app.schema_manager.apply_schema()
        with usage.timed():
            for key, message in jobs:
                task.configure(queueing_lock=key).defer(**message)


async def _pgqueuer(url: str, jobs: list[Job], usage: Usage) -> None:
    """A thousand jobs a call."""
    connection = await psycopg.AsyncConnection.connect(**connect_arguments(url), autocommit=True)
    async with connection, PsycopgDriver(connection) as driver:
        queries = Queries(driver)
        await queries.install()
        with usage.timed():
            for at in range(0, len(jobs), _AT_ONCE):
                part = jobs[at : at + _AT_ONCE]
                await queries.enqueue(
                    ["reward"] * len(part),
                    [json.dumps(message).encode() for _, message in part],
                    [0] * len(part),
                    dedupe_key=[key for key, _ in part],
                    on_conflict="skip",
                )


def measure(spec: Mapping[str, Any]) -> dict[str, float]:
    """Put a job in for each group."""
    jobs = _jobs(spec["records"])
    usage = Usage()
    if spec["variant"] == "procrastinate":
        _procrastinate(spec["database_url"], jobs, usage)
    else:
        asyncio.run(_pgqueuer(spec["database_url"], jobs, usage))
    return {**usage.figures(), "groups": len(jobs), "records": spec["records"]}
