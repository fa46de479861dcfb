"""`scheduler`: what is owed is dispatched once, however many schedulers there are, and a signal ends it."""

import signal
from collections import Counter

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import DUE, drained, fill, hours_ago
from tests.product import Product, until
from tests.rig import Rig

NEVER = "0 0 31 2 *"


@pytest.fixture(autouse=True)
def quiet_lines(product: Product) -> None:
    """The jobs run at the start, and then not again while a test lasts."""
    product.settings |= {"schedule.dispatch": NEVER, "schedule.reconcile": NEVER, "schedule.deep_reconcile": NEVER}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_case_17_the_missed_hours_are_caught_up_at_the_start(
    product: Product, world: World, rig: Rig, number: int, code: int
) -> None:
    windows = [hours_ago(hours) for hours in (4, 3, 2, 1)]
    fill(world, *windows)
    running = product.start("scheduler", "--json", schedule__catch_up="4h", reconcile__grace="0s")
    done = "SELECT count(*) FROM windows WHERE completed_at IS NOT NULL"
    expected = 3 if rig.value("SELECT extract(minute FROM ledger_now()) > 0") else 4
    until(lambda: rig.value(done) >= expected, "the hours are caught up")
    until(
        lambda: rig.value("SELECT count(*) FROM runs WHERE cause = 'reconcile' AND outcome = 'completed'"), "reconcile"
    )
    found = "SELECT kind FROM findings JOIN windows ON windows.id = window_id WHERE completed_at IS NOT NULL"
    assert rig.rows(found) == [], "the first reconcile comes after the first dispatch"
    running.signal(number)
    ended = running.done().ended(code)
    assert {one["job"] for one in ended.document["jobs"]} == {"dispatch", "reconcile"}
    assert all(one["ran"] == 1 and not one["failed"] for one in ended.document["jobs"])
    started = rig.rows("SELECT start_s FROM runs JOIN windows ON windows.id = window_id WHERE cause = 'schedule' "
                       "ORDER BY started_at")  # fmt: skip
    assert started == sorted(set(started)), "each once, oldest first"
    assert len(drained(world)) == 5 * len(started)
    assert rig.value("SELECT count(*) FROM windows WHERE lease_until IS NOT NULL") == 0


def test_case_18_two_schedulers_and_a_person_for_the_same_hour(product: Product, world: World, rig: Rig) -> None:
    """Whoever is first works; the others are busy, or find nothing owed any more."""
    window = hours_ago(1)
    for attempt in range(10):
        pipeline = f"race-{attempt}"
        world.put_many(booking(f"r{at}", f"{window[:13]}:{at + 1:02d}:00Z", member=at) for at in range(5))
        options = {"pipeline": pipeline, "schedule__not_before": window}
        schedulers = [product.start("scheduler", **options) for _ in range(2)]
        person = product.start("dispatch", "--due", "--json", **options)
        person.done().ended(0) if attempt % 2 else person.done()
        named = "FROM windows JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %s"
        until(lambda: rig.rows(f"SELECT 1 {named} AND completed_at IS NOT NULL", pipeline), "one of them completes it")  # noqa: B023
        for scheduler in schedulers:
            scheduler.signal(signal.SIGTERM)
            scheduler.done().ended(143)
        outcomes = Counter(
            row[0]
            for row in rig.rows(
                f"SELECT outcome FROM runs WHERE cause <> 'reconcile' AND window_id IN (SELECT windows.id {named})",
                pipeline,
            )
        )
        assert outcomes["completed"] == 1, outcomes
        assert set(outcomes) <= {"completed", "busy"}
        assert len(drained(world)) == 5


def test_a_job_that_fails_is_told_of_and_does_not_end_the_scheduler(product: Product, world: World, rig: Rig) -> None:
    running = product.start("scheduler", schedule__catch_up="2h", reconcile__grace="0s")
    until(lambda: rig.value("SELECT count(*) FROM runs"), "it has begun")
    world.dynamodb.delete_table(TableName=world.table)
    product.settings["schedule.dispatch"] = "* * * * *"
    assert running.running
    running.signal(signal.SIGTERM)
    done = running.done().ended(143)
    assert "dispatch" in done.out


@pytest.mark.parametrize(("key", "line"), [("schedule.dispatch", "61 * * * *"), ("schedule.reconcile", "hourly")])
def test_a_line_that_is_none(product: Product, key: str, line: str) -> None:
    product.settings[key] = line
    assert key in product.run("scheduler").ended(2).error


def test_a_table_that_is_missing_at_the_start(product: Product) -> None:
    assert "nowhere" in product.run("scheduler", source__table="nowhere").ended(2).error


def test_a_scheduler_dispatches_only_when_asked(product: Product, world: World, rig: Rig) -> None:
    """A signal in the middle of a run ends it cancelled; the next scheduler finishes it."""
    window = hours_ago(1)
    fill(world, window)
    world.put_many(booking(f"m{at}", f"{window[:13]}:40:00Z", member=at) for at in range(40))
    running = product.start("scheduler", schedule__not_before=window, dispatch__page_size="1")
    until(lambda: rig.value("SELECT count(*) FROM pages"), "it reads")
    running.signal(signal.SIGTERM)
    running.done().ended(143)
    assert rig.value("SELECT count(*) FROM windows WHERE lease_until IS NOT NULL") == 0
    again = product.start("scheduler", schedule__not_before=window)
    until(lambda: rig.value("SELECT count(*) FROM windows WHERE completed_at IS NOT NULL"), "the next one completes it")
    again.signal(signal.SIGTERM)
    again.done().ended(143)
    assert sum(one["records"] for one in drained(world)) == DUE + 40
    rig.assert_books_balance()
