"""A reconcile dies, or loses an answer, at any of its transactions: the next one ends with everything explained."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from dispatch.aws.queues import SqsQueues
from ledger.facts import SendAnswer
from ledger.instants import parse_window
from reconcile.reconciler import Reconciler
from reconcile.rescan import Options
from tests.aws_servers import World, booking
from tests.breaking import Break, Death, KilledError, LostAnswer
from tests.rig import WINDOW, Rig, all_records

PIPELINES = count(1)
AT = "2026-09-17T15:%02d:00Z"
DUE = ["late", "lost", "sent", "stuck", "unsent"]
TRANSACTIONS_MAX = 80


@pytest.fixture(scope="module")
def world(ministack: str) -> World:
    made = World(ministack)
    made.put_many(booking(one, AT % at, member=at) for at, one in enumerate(DUE, 1))
    return made


@pytest.fixture(scope="module")
def rig(world: World, module_ledger_url: str) -> Iterator[Rig]:
    settings = {"dispatch__page_size": "2", "reconcile__grace": "0s", "reconcile__orphan_grace": "0s"}
    with Rig(world, module_ledger_url, **settings) as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.store._FIRST_DELAY_S", 0.001)
    monkeypatch.setattr("dispatch.emit._FIRST_DELAY_S", 0.001)


def drain(rig: Rig, pipeline: str) -> list[Any]:
    messages = [one for queue in ("reward-point", "reward-ecoupon") for one in rig.world.messages(queue)]
    return [one for one in messages if one["pipeline"] == pipeline]


def troubled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Counter[str]]:
    """Make a window with one of each: missed, not sent, send unknown, object gone, orphan. Gives what was sent."""
    pipeline, world = f"broken-{next(PIPELINES)}", rig.world
    world.delete("late")
    with monkeypatch.context() as patch:
        usual = SqsQueues.send

        def send(queues: SqsQueues, queue: Any, messages: Any, before_call: Any) -> list[SendAnswer]:
            answers = usual(queues, queue, [one for one in messages if '"MemberId":5' not in one.body], before_call)
            given = iter(answers)
            told = [
                SendAnswer("failed", error="down") if '"MemberId":5' in one.body else next(given) for one in messages
            ]
            return [
                SendAnswer("unknown", error="no answer") if '"MemberId":4' in one.body else answer
                for one, answer in zip(messages, told, strict=True)
            ]

        patch.setattr(SqsQueues, "send", send)
        assert rig.run(pipeline=pipeline).outcome == "failed"
    # An earlier run has completed the window, as far as the ledger knows.
    rig.tell(
        "UPDATE windows SET completed_at = ledger_now() FROM pipelines WHERE pipelines.id = pipeline_id AND name = %s",
        pipeline,
    )
    place = f"reward-dispatch/{pipeline}/2026/09/17/15/"
    gone = next(key for key, body in world.objects(place).items() if b'"lost"' in body)
    world.s3.delete_object(Bucket=world.bucket, Key=gone)
    world.s3.put_object(Bucket=world.bucket, Key=f"{place}orphan.json", Body=b"{}")
    world.put(booking("late", AT % 1, member=1))
    return pipeline, Counter(one["idempotency_key"] for one in drain(rig, pipeline))


def reconcile(rig: Rig, pipeline: str, broken: Break) -> Any:
    """Reconcile until it breaks off, or to the end; a dead run's lease has run out afterwards."""
    with rig.dispatcher(pipeline=pipeline) as dispatcher:
        chosen = dispatcher.settings.reconcile
        try:
            with pytest.MonkeyPatch.context() as patch:
                broken.install(patch)
                return Reconciler(dispatcher, Options(chosen, chosen.grace)).reconcile_window(parse_window(WINDOW))
        except KilledError:
            rig.expire_leases(pipeline)
            return None


def findings_of(rig: Rig, pipeline: str) -> list[tuple[Any, ...]]:
    query = (
        "SELECT kind, coalesce(cause, ''), findings.state, coalesce(repair, '') FROM findings "
        "JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %s ORDER BY 1, 2, 3, 4"
    )
    return [_told_apart_no_more(*row) for row in rig.rows(query, pipeline)]


def _told_apart_no_more(kind: str, cause: str, state: str, repair: str) -> tuple[str, str, str, str]:
    """Level what depends on where it broke off: whether an entry had been tried, whether a repair could be noted."""
    if (kind, state) == ("missing_object", "closed"):
        return kind, cause, "repaired", "rebuilt"
    return kind, "send_unknown" if cause == "not_sent" else cause, state, repair


EXPECTED = {
    ("duplicate", "resent", "open", ""),
    ("missed", "unknown", "repaired", "redispatched"),
    ("missing_object", "", "repaired", "rebuilt"),
    ("orphan_object", "", "repaired", "tagged"),
    ("unfinished", "send_unknown", "repaired", "completed"),
}


def check(rig: Rig, monkeypatch: pytest.MonkeyPatch, broken: Break) -> None:
    pipeline, sent = troubled(rig, monkeypatch)
    reconcile(rig, pipeline, broken)
    report = reconcile(rig, pipeline, Death())
    assert report.error is None, report.error
    sent += Counter(one["idempotency_key"] for one in drain(rig, pipeline))
    assert set(findings_of(rig, pipeline)) == EXPECTED
    twice = {key for key, times in sent.items() if times > 1}
    assert max(sent.values()) <= 4, "two by the dispatch, one by each reconcile"
    reported = {
        key
        for (key,) in rig.rows(
            "SELECT encode(subject, 'hex') FROM findings JOIN pipelines ON pipelines.id = pipeline_id "
            "WHERE name = %s AND kind = 'duplicate'",
            pipeline,
        )
    }
    assert twice <= reported
    objects = rig.world.objects(f"reward-dispatch/{pipeline}/")
    assert all_records({key: body for key, body in objects.items() if "orphan" not in key}) == DUE
    assert len(sent) == len(DUE)
    before = findings_of(rig, pipeline)
    last = reconcile(rig, pipeline, Death())
    assert (last.error, findings_of(rig, pipeline), drain(rig, pipeline)) == (None, before, [])
    rig.assert_books_balance()


def points(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    pipeline, _ = troubled(rig, monkeypatch)
    whole = Death()
    assert reconcile(rig, pipeline, whole).error is None
    drain(rig, pipeline)
    assert 20 < len(whole.seen) < TRANSACTIONS_MAX
    return whole.points


@pytest.mark.parametrize("after", [True, False], ids=["after-commit", "before-commit"])
@pytest.mark.parametrize("kind", [Death, LostAnswer])
def test_broken_off_at_any_transaction(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, kind: type[Break], *, after: bool
) -> None:
    for at in points(rig, monkeypatch):
        broken = kind(at, after)
        try:
            check(rig, monkeypatch, broken)
        except AssertionError as error:
            error.add_note(f"broken off in {broken.where} (transaction {at})")
            raise
