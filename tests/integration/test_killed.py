"""A run is killed at any transaction: the next run finishes what was begun, from the ledger alone (I6, case 14)."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from dispatch import feeders
from ledger.instants import parse_window
from tests.aws_servers import World, booking
from tests.breaking import Death, KilledError
from tests.rig import WINDOW, Rig, all_records

PIPELINES = count(1)


@pytest.fixture(scope="module")
def world(ministack: str) -> World:
    made = World(ministack)
    made.put_many(
        [
            booking("a1", "2026-09-17T15:01:00Z", member=1, order="2026-09-17T11:00:00Z"),
            booking("b1", "2026-09-17T15:02:00Z", member=2, type="ECoupon"),
            booking("a2", "2026-09-17T15:04:00Z", member=1, order="2026-09-17T10:00:00Z"),
            booking("a3", "2026-09-17T15:04:00Z", member=1, order="2026-09-17T10:00:00Z"),
            booking("x1", "2026-09-17T15:05:00Z", status="Rewarded"),
        ]
    )
    return made


@pytest.fixture(scope="module")
def rig(world: World, module_ledger_url: str) -> Iterator[Rig]:
    with Rig(world, module_ledger_url, dispatch__page_size="2") as made:
        yield made


def run_until(rig: Rig, flow: str, pipeline: str, death: Death) -> Any:
    """Run until death, or to the end; the dead run's lease has run out afterwards."""
    with rig.dispatcher(flow, pipeline=pipeline) as dispatcher:
        try:
            with pytest.MonkeyPatch.context() as patch:
                death.install(patch)
                return dispatcher.dispatch(parse_window(WINDOW), "manual")
        except KilledError:
            rig.expire_leases(pipeline)
            return None


def drain(rig: Rig, pipeline: str) -> list[Any]:
    messages = [one for queue in ("reward-point", "reward-ecoupon") for one in rig.world.messages(queue)]
    return [one for one in messages if one["pipeline"] == pipeline]


def check(rig: Rig, flow: str, pipeline: str, death: Death) -> None:
    run_until(rig, flow, pipeline, death)
    sent_before = Counter(one["idempotency_key"] for one in drain(rig, pipeline))
    report = run_until(rig, flow, pipeline, Death())
    assert report.outcome == "completed", report.error
    sent = sent_before + Counter(one["idempotency_key"] for one in drain(rig, pipeline))
    objects = rig.world.objects(f"reward-dispatch/{pipeline}/")
    assert all_records(objects) == ["a1", "a2", "a3", "b1"]
    keys = {key.rsplit("/", 1)[1].partition("-")[0] for key in objects}
    assert len(sent) == len(objects) == len(keys)
    died_in = death.seen[death.at - 1]
    unproven = ("record_answers" in died_in and not death.after) or ("mark_sending" in died_in and death.after)
    if unproven:
        assert all(1 <= times <= 2 for times in sent.values()), sent
    else:
        assert set(sent.values()) == {1}, sent
    resent = [key for key, times in sent.items() if times > 1]
    findings = rig.rows(
        "SELECT kind, cause, state, encode(subject, 'hex') FROM findings JOIN pipelines ON pipelines.id = pipeline_id "
        "WHERE name = %s",
        pipeline,
    )
    assert {row[:3] for row in findings} <= {("duplicate", "resent", "open")}
    assert set(resent) <= {row[3] for row in findings}
    assert unproven or not findings
    assert report.open_findings == len(findings)
    states = (
        "SELECT DISTINCT state FROM entry_states JOIN windows ON windows.id = window_id "
        "JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %s"
    )
    assert rig.rows(states, pipeline) == [("confirmed",)]
    outcomes = (
        "SELECT outcome FROM runs JOIN windows ON windows.id = window_id JOIN pipelines ON pipelines.id = pipeline_id "
        "WHERE name = %s ORDER BY started_at"
    )
    assert [row[0] for row in rig.rows(outcomes, pipeline)] in (
        ["completed"],
        ["failed", "completed"],
        ["completed", "completed"],
    )
    staged = (
        "SELECT 1 FROM staged_records JOIN runs ON runs.id = run_id JOIN windows ON windows.id = window_id "
        "JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %s"
    )
    assert rig.rows(staged, pipeline) == [], "also what the dead run has staged is gone"
    rig.assert_books_balance()


@pytest.mark.parametrize("after", [True, False], ids=["after-commit", "before-commit"])
@pytest.mark.parametrize("flow", ["full", "staged", "paged"])
def test_killed_at_any_transaction(rig: Rig, flow: str, *, after: bool) -> None:
    whole = Death()
    check_pipeline = f"killed-{next(PIPELINES)}"
    report = run_until(rig, flow, check_pipeline, whole)
    assert report.outcome == "completed"
    drain(rig, check_pipeline)
    for at in range(1, len(whole.seen) + 1):
        death = Death(at, after)
        try:
            check(rig, flow, f"killed-{next(PIPELINES)}", death)
        except AssertionError as error:
            error.add_note(f"killed in {death.seen[at - 1]} (transaction {at})")
            raise


def test_nothing_is_stored_or_sent_before_it_is_promised(rig: Rig) -> None:
    """Killed right before the promise is committed: there is no object and no message that the ledger does not know."""
    pipeline, whole = f"killed-{next(PIPELINES)}", Death()
    run_until(rig, "staged", f"{pipeline}-count", whole)
    drain(rig, f"{pipeline}-count")
    opened = next(n for n, name in enumerate(whole.seen, 1) if "open_entries" in name)
    run_until(rig, "staged", pipeline, Death(opened, after=False))
    assert rig.world.objects(f"reward-dispatch/{pipeline}/") == {}
    assert drain(rig, pipeline) == []


@pytest.mark.parametrize("after", [True, False], ids=["after-commit", "before-commit"])
def test_killed_at_any_transaction_of_a_streamed_group(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    monkeypatch.setattr(feeders, "BATCH_RECORDS_MAX", 2)
    whole = Death()
    pipeline = f"killed-{next(PIPELINES)}"
    run_until(rig, "staged", pipeline, whole)
    drain(rig, pipeline)
    assert any("open_streamed" in name for name in whole.seen)
    for at in range(1, len(whole.seen) + 1):
        death = Death(at, after)
        try:
            check(rig, "staged", f"killed-{next(PIPELINES)}", death)
        except AssertionError as error:
            error.add_note(f"killed in {death.seen[at - 1]} (transaction {at})")
            raise


def test_killed_in_the_recovery_of_a_killed_run(rig: Rig) -> None:
    """Whichever transaction of the recovering run is the last one: the third run ends it."""
    for at in range(1, 30):
        pipeline = f"killed-{next(PIPELINES)}"
        whole = Death()
        if run_until(rig, "staged", f"{pipeline}-count", whole) and at == 1:
            drain(rig, f"{pipeline}-count")
        opened = next(n for n, name in enumerate(whole.seen, 1) if "open_entries" in name)
        run_until(rig, "staged", pipeline, Death(opened, after=True))
        death = Death(at, after=True)
        ended = run_until(rig, "staged", pipeline, death)
        if ended is not None:
            assert at > 5
            return
        report = run_until(rig, "staged", pipeline, Death())
        assert report.outcome == "completed", (at, report.error)
        sent = Counter(one["idempotency_key"] for one in drain(rig, pipeline))
        unproven = "mark_sending" in death.seen[at - 1]
        assert len(sent) == 2
        assert unproven or set(sent.values()) == {1}, death.seen[at - 1]
        assert all_records(rig.world.objects(f"reward-dispatch/{pipeline}/")) == ["a1", "a2", "a3", "b1"]
        rig.assert_books_balance()
    pytest.fail("the recovery never ended")


@pytest.mark.parametrize("next_one", ["reconcile", "full", "paged", "staged"])
def test_whoever_takes_the_window_next_discards_what_a_dead_run_has_staged(rig: Rig, next_one: str) -> None:
    """Found by the soak of real processes, seed 700: nobody dispatched that window again, and the rows stayed."""
    watched, pipeline = Death(), f"killed-{next(PIPELINES)}"
    run_until(rig, "staged", f"{pipeline}-watched", watched)
    pages = [at for at, name in enumerate(watched.seen, 1) if "stage_page" in name]
    run_until(rig, "staged", pipeline, Death(pages[-1]))
    staged = (
        "SELECT count(*) FROM staged_records JOIN runs ON runs.id = run_id JOIN windows ON windows.id = window_id "
        "JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %s"
    )
    assert rig.value(staged, pipeline) > 0
    if next_one == "reconcile":
        rig.reconcile(pipeline=pipeline)
    else:
        rig.run(next_one, pipeline=pipeline)
    assert rig.value(staged, pipeline) == 0
