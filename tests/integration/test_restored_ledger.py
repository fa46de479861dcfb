"""A ledger that has forgotten: a backup put back, a replica promoted too early, a second ledger under the same name."""

import json
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest

from dispatch.aws.objects import S3Objects
from dispatch.aws.queues import SqsQueues
from ledger import windows
from ledger.acknowledging import parse_note
from ledger.errors import GuardError, UnavailableError
from ledger.facts import SendAnswer
from ledger.instants import parse_window
from ledger.store import Store
from reconcile.reconciler import Reconciler
from tests.aws_servers import World, booking
from tests.fault.windows import drained
from tests.quick_postgres import named, tell
from tests.rig import WINDOW, Rig

NEXT, BEFORE = "2026-09-17T16:00:00Z", "2026-09-17T14:00:00Z"
AT = "2026-09-17T15:%02d:00Z"
KEY = f"reward-dispatch/_ledger/reward/{WINDOW}.json"


def grow(world: World, *ids: str, member: int = 1, minute: int = 1) -> None:
    world.put_many(booking(one, AT % (minute + at), member=member) for at, one in enumerate(ids))


def keys(messages: list[Any]) -> set[str]:
    return {one["idempotency_key"] for one in messages}


def held_now(rig: Rig, window: str = WINDOW) -> tuple[str, str] | None:
    query = "SELECT held_kind, held_reason FROM windows WHERE start_s = %s AND held_at IS NOT NULL"
    found = rig.rows(query, parse_window(window).start_s)
    return found[0] if found else None  # type: ignore[return-value]


@pytest.fixture
def put_back(world: World, rig: Rig) -> Iterator[list[Any]]:
    """A window with one group sent, copied, and another group sent since; then the copy is put back."""
    grow(world, "r1")
    assert rig.run().outcome == "completed"
    copy = rig.back_up()
    grow(world, "r2", member=2, minute=5)
    assert rig.run().counts.claimed == 1
    sent = drained(world)
    assert len(sent) == 2
    rig.put_back(copy)
    yield sent
    tell(named(rig.url, "postgres"), f'DROP DATABASE "{copy}"')


# Case 27: whoever comes first finds out, and sends nothing


def test_a_run_of_a_forgotten_window_holds_it(world: World, rig: Rig, put_back: list[Any]) -> None:
    report = rig.run()
    assert report.outcome == "held"
    assert isinstance(report.error, GuardError)
    assert "was put back to an earlier state" in str(report.error)
    assert "dispatch-ledger recover --restored" in str(report.error)
    assert drained(world) == []
    assert rig.claimed() == ["r1"]
    kind, reason = held_now(rig) or ("", "")
    assert (kind, "this ledger has only come to" in reason) == ("behind", True)
    assert rig.run().outcome == "held"
    assert rig.rows("SELECT event, by FROM events") == [("held", None)]


def test_a_reconcile_that_comes_first_holds_it_too(world: World, rig: Rig, put_back: list[Any]) -> None:
    assert rig.reconcile()["windows"][0]["held"]
    assert (held_now(rig) or ("",))[0] == "behind"
    assert drained(world) == []
    assert rig.claimed() == ["r1"]


def test_due_holds_it_too(world: World, rig: Rig, put_back: list[Any]) -> None:
    rig.tell("UPDATE windows SET completed_at = NULL")
    with rig.dispatcher(schedule__not_before=WINDOW, schedule__catch_up="36500d") as dispatcher:
        reports = {one.window.name: one.outcome for one in islice(dispatcher.dispatch_due("schedule"), 2)}
    # The next hour shares the records on the hour with it; those of a neighbour that waits for a person are not known.
    assert reports == {WINDOW: "held", NEXT: "held"}
    assert held_now(rig, NEXT) is None
    assert drained(world) == []
    assert rig.claimed() == ["r1"]


def test_a_group_that_has_grown_since_is_not_sent_under_another_key(world: World, rig: Rig) -> None:
    grow(world, "r1", "r2")
    copy = rig.back_up()
    assert rig.run().counts.entries == 1
    rig.put_back(copy)
    grow(world, "r3", minute=9)
    assert rig.run().outcome == "held"
    assert len(drained(world)) == 1
    assert rig.recover()["entries"] == 1
    assert rig.decide("sent")["released"]
    assert rig.run().counts.claimed == 1
    assert [one["records"] for one in drained(world)] == [1]
    rig.assert_books_balance()


def test_entries_that_were_only_opened_in_the_copy_may_have_been_sent(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy was made between opening and marking: all that it knows of the jobs is that they were opened."""
    grow(world, "r1")
    copies: list[str] = []
    usual = S3Objects.put_many

    def copying(*given: Any) -> Any:
        copies.append(rig.back_up())
        return usual(*given)

    with monkeypatch.context() as patch:
        patch.setattr(S3Objects, "put_many", copying)
        assert rig.run().outcome == "completed"
    assert rig.run().outcome == "completed"  # one more run, so that the copy is behind
    sent = drained(world)
    rig.put_back(copies[0])
    rig.tell("UPDATE windows SET lease_run_id = NULL, lease_until = NULL")
    assert rig.entry_states() == {"pending": 1}
    assert rig.run().outcome == "held"
    document = rig.recover()
    assert (document["entries"], document["windows"][0]["suspected"]) == (0, 1)
    assert rig.entry_states() == {"sending": 1}
    assert rig.decide("sent")["vouched"] == 1
    assert rig.entry_states() == {"confirmed": 1}
    assert rig.run().counts.claimed == 0
    assert drained(world) == []
    assert len(sent) == 1


def test_a_lease_alone_counts(world: World, rig: Rig) -> None:
    """A run that opens nothing may still send what another has left."""
    grow(world, "r1")
    rig.run()
    copy = rig.back_up()
    assert rig.run().counts.entries == 0
    rig.put_back(copy)
    assert rig.run().outcome == "held"


@pytest.mark.parametrize("flow", ["paged", "staged"])
def test_each_opening_counts(world: World, rig: Rig, flow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a group that is streamed, and of a redo; and the witness keeps up."""
    monkeypatch.setattr("dispatch.feeders.BATCH_RECORDS_MAX", 1)
    world.put_many(booking(f"r{at}", AT % at, member=at % 2) for at in range(1, 5))
    rig.run(flow, dispatch__page_size="1")
    before = rig.value("SELECT seq FROM windows")
    assert before == 1 + rig.value("SELECT count(*) FROM entries")
    assert world.witnesses()[KEY]["seq"] == before
    assert rig.apply(rig.plan(records=("r1",))).error is None
    assert rig.value("SELECT seq FROM windows") == before + 3  # the redo's run, its opening, and its reconcile
    assert world.witnesses()[KEY]["seq"] == before + 3


def test_what_is_left_of_before_is_not_forgotten_in_one_piece(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that opens nothing, but sends what another has left, counts on from one send to the next."""
    world.put_many(booking(f"r{at}", AT % at, member=at) for at in range(1, 4))
    usual, copies = SqsQueues.send, []

    def copying(*given: Any) -> Any:
        copies.append(rig.back_up())
        return usual(*given)

    with monkeypatch.context() as patch:
        patch.setattr("dispatch.emit._SEND_TRIES_MAX", 1)
        patch.setattr(SqsQueues, "send", lambda *given: [SendAnswer("failed", error="down") for _ in given[2]])
        assert rig.run().outcome == "failed"
    with monkeypatch.context() as patch:
        patch.setattr("dispatch.emit.SENT_AT_ONCE_MAX", 1)
        patch.setattr(SqsQueues, "send", copying)
        assert rig.run().counts.recovered == 3
    assert len(drained(world)) == 3
    for copy, outcome, sent_again in zip(copies, ("held", "held", "completed"), (0, 0, 1), strict=True):
        rig.put_back(copy)
        rig.expire_leases("reward")
        assert rig.run().outcome == outcome
        assert len(drained(world)) == sent_again, "only the one that was being sent when it was copied"


def test_what_could_not_be_compared_stays_to_be_compared(
    world: World, rig: Rig, put_back: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that fail before they have read the witness must not count the window on until it seems to be in front."""
    with monkeypatch.context() as patch:

        def down(*_: object) -> None:
            raise UnavailableError("S3 is down")

        patch.setattr(S3Objects, "fetch", down)
        for _ in range(6):
            assert rig.run().outcome == "failed"
    assert rig.run().outcome == "held"
    assert drained(world) == []


# A second ledger under the same name


def second(world: World, rig: Rig) -> Rig:
    """A ledger of its own, with the same pipeline, bucket and prefix."""
    copy = f"second_{rig.database}"
    tell(named(rig.url, "postgres"), f'CREATE DATABASE "{copy}" TEMPLATE template_ledger')
    other = Rig(world, named(rig.url, copy))
    other.tell("UPDATE ledger_identity SET ledger_id = gen_random_uuid()")
    return other


def test_a_second_ledger_sends_nothing_of_what_the_first_has_sent(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    with second(world, rig) as other:
        report = other.run()
        assert report.outcome == "held"
        assert "another ledger" in str(report.error)
        assert other.claimed() == []
        assert other.rows("SELECT held_kind FROM windows") == [("behind",)]
    assert len(drained(world)) == 1
    assert rig.run().outcome == "completed"


def test_of_two_ledgers_the_one_that_a_person_trusts_goes_on(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    with second(world, rig) as other:
        assert other.recover()["entries"] == 1
        decided = other.decide("sent")
        assert (decided["entries"], decided["vouched"], decided["released"]) == (0, 1, True)
        grow(world, "r2", minute=7)
        assert other.run().counts.claimed == 1
        assert len(drained(world)) == 2
        assert rig.run().outcome == "held"
        assert rig.reconcile()["windows"][0]["held"]
    assert drained(world) == []


def test_two_ledgers_that_begin_at_the_same_moment(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read that there is no witness; only one can be the first to write it."""
    grow(world, "r1")
    with second(world, rig) as other:
        usual, nested = S3Objects.put_if, []

        def late(self: S3Objects, *given: Any) -> str:
            if not nested:
                nested.append(None)
                nested.append(other.run().outcome)
            return usual(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(S3Objects, "put_if", late)
            report = rig.run()
        assert (report.outcome, nested[1]) == ("held", "completed")
        assert "another ledger" in str(report.error)
    assert len(drained(world)) == 1
    assert rig.claimed() == []


# The neighbours, with which a window shares the records on the hour


@pytest.mark.parametrize("beside", [BEFORE, NEXT])
def test_a_neighbour_that_is_behind_is_held_and_waited_for(world: World, rig: Rig, beside: str) -> None:
    on_the_hour = max(WINDOW, beside)
    world.put(booking("edge", on_the_hour))
    copy = rig.back_up()
    assert rig.run(window=beside).counts.claimed == 1
    rig.put_back(copy)
    report = rig.run()
    assert report.outcome == "held"
    assert f"window {WINDOW} waits for window {beside}" in str(report.error)
    assert (held_now(rig, beside) or ("",))[0] == "behind"
    assert held_now(rig) is None
    assert len(drained(world)) == 1
    assert rig.recover()["entries"] == 1
    assert rig.run().counts.already_claimed == 1  # what was forgotten is known again; the neighbour still waits
    assert (held_now(rig, beside) or ("",))[0] == "adopted"
    assert drained(world) == []


def test_a_neighbour_that_is_worked_on_right_now_holds_nothing(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put_many([booking("a", AT % 1), booking("b", "2026-09-17T16:05:00Z")])
    outcomes: list[str] = []
    usual = SqsQueues.send

    def meanwhile(*given: Any) -> Any:
        if not outcomes:
            outcomes.append("")
            outcomes.append(rig.run(window=NEXT).outcome)
        return usual(*given)

    with monkeypatch.context() as patch:
        patch.setattr(SqsQueues, "send", meanwhile)
        assert rig.run().outcome == "completed"
    assert outcomes[1] == "completed"


# Put back, or overtaken, while a run goes on


def test_a_ledger_put_back_under_a_runs_feet(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put_many([booking("r1", AT % 1, member=1), booking("r2", AT % 2, member=2)])
    usual = SqsQueues.send

    def sending(*given: Any) -> Any:
        rig.tell("UPDATE windows SET seq = seq - 1")
        return usual(*given)

    with monkeypatch.context() as patch:
        patch.setattr(SqsQueues, "send", sending)
        report = rig.run("paged", dispatch__page_size="1")
    assert report.outcome == "held"
    assert "while the run was going on" in str(report.error)
    assert len(drained(world)) == 1
    assert (held_now(rig) or ("",))[0] == "behind"


@pytest.mark.parametrize("cause", ["dispatch", "reconcile", "redo"])
def test_a_run_whose_last_opening_was_forgotten_does_not_complete(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """It opens nothing after that, so that only its end can tell."""
    grow(world, "r1")
    if cause != "dispatch":
        rig.run()
    if cause == "reconcile":
        grow(world, "r2", member=2, minute=5)
    usual = SqsQueues.send

    def sending(*given: Any) -> Any:
        rig.tell("UPDATE windows SET seq = seq - 1")
        return usual(*given)

    plan = rig.plan() if cause == "redo" else None
    with monkeypatch.context() as patch:
        patch.setattr(SqsQueues, "send", sending)
        if cause == "dispatch":
            assert rig.run().outcome == "held"
        elif cause == "reconcile":
            assert rig.reconcile()["windows"][0]["held"]
        else:
            applied = rig.apply(plan)
            assert (applied.document["state"], applied.document["run"]["outcome"]) == ("applying", "held")
    assert (held_now(rig) or ("",))[0] == "behind"


def test_a_plan_that_was_put_back_after_it_was_applied_has_no_run(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(world, "r1")
    rig.run()
    plan = rig.plan()
    usual = Reconciler.reconcile

    def after_put_back(*given: Any, **named: Any) -> Any:
        rig.tell("UPDATE plans SET state = 'applying', ended_at = NULL")
        rig.tell("UPDATE runs SET outcome = NULL, finished_at = NULL WHERE cause = 'redo'")
        return usual(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Reconciler, "reconcile", after_put_back)
        assert rig.apply(plan).document["run"] is None


def test_a_run_that_is_overtaken_beside_the_objects_marks_nothing_more(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(world, "r1")
    usual = S3Objects.put_many

    def overtaken(self: S3Objects, *given: Any) -> Any:
        witness = world.witnesses()[KEY] | {"seq": 99, "run_id": "01a22e87-0f9b-75ac-b15e-23a7d7f45818"}
        world.s3.put_object(Bucket=world.bucket, Key=KEY, Body=json.dumps(witness).encode())
        return usual(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr("dispatch.emit.at_once", lambda do, steps, _: [do(one) for one in reversed(steps)][::-1])
        patch.setattr(S3Objects, "put_many", overtaken)
        assert rig.run().outcome == "held"
    assert drained(world) == []
    assert rig.entry_states() == {"pending": 1}


def test_a_stalled_run_that_lost_its_lease_holds_nothing(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run has taken over and written further; that is no forgetting, and no hold."""
    grow(world, "r1")
    usual, outcomes = S3Objects.put_many, []

    def stalled(self: S3Objects, *given: Any) -> Any:
        if not outcomes:
            outcomes.append("")
            rig.expire_leases("reward")
            outcomes.append(rig.run().outcome)
        return usual(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr("dispatch.emit.at_once", lambda do, steps, _: [do(one) for one in reversed(steps)][::-1])
        patch.setattr(S3Objects, "put_many", stalled)
        report = rig.run()
    assert outcomes[1] == "completed"
    assert report.outcome == "failed"
    assert "lost its lease" in str(report.error)
    assert held_now(rig) is None
    assert len(drained(world)) == 1
    assert rig.run().outcome == "completed"


def test_a_write_whose_answer_was_lost_is_known_again(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has taken it, the client repeats it, and the condition does not hold any more: own run, own number."""
    grow(world, "r1")
    usual = S3Objects.put_if

    def twice(self: S3Objects, *given: Any) -> str:
        usual(self, *given)
        return usual(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(S3Objects, "put_if", twice)
        assert rig.run().outcome == "completed"
    assert len(drained(world)) == 1
    assert rig.run().outcome == "completed"


def test_a_late_write_of_a_dead_run_is_written_over(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lands between this run's look and its own write, and says less."""
    grow(world, "r1")
    rig.run()
    usual, lost = S3Objects.put_if, []

    def after_a_late_one(self: S3Objects, *given: Any) -> str:
        late = world.witnesses()[KEY] | {"at": "2026-01-01T00:00:00Z"}
        lost.append(late["seq"])
        world.s3.put_object(Bucket=world.bucket, Key=KEY, Body=json.dumps(late).encode())
        return usual(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(S3Objects, "put_if", after_a_late_one)
        report = rig.run()
    assert report.outcome == "completed"
    assert lost == [2, 2]
    witness = world.witnesses()[KEY]
    assert (witness["run_id"], witness["seq"]) == (str(report.run_id), 3)


def test_a_witness_that_others_write_all_the_time_ends_the_run(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(world, "r1")
    rig.run()
    usual, number = S3Objects.put_if, count()

    def after_another(self: S3Objects, *given: Any) -> str:
        late = world.witnesses()[KEY] | {"at": str(next(number))}
        world.s3.put_object(Bucket=world.bucket, Key=KEY, Body=json.dumps(late).encode())
        return usual(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(S3Objects, "put_if", after_another)
        report = rig.run()
    assert report.outcome == "failed"
    assert "written by others all the time" in str(report.error)
    assert held_now(rig) is None


# Witnesses that are gone, elsewhere, or broken


def test_a_witness_that_was_deleted_is_made_again_when_nothing_is_missing(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    world.s3.delete_object(Bucket=world.bucket, Key=KEY)
    assert rig.run().outcome == "completed"
    assert world.witnesses()[KEY]["seq"] == rig.value("SELECT seq FROM windows")


def test_without_a_witness_an_object_that_nobody_refers_to_holds_the_window(
    world: World, rig: Rig, put_back: list[Any]
) -> None:
    world.s3.delete_object(Bucket=world.bucket, Key=KEY)
    report = rig.run()
    assert report.outcome == "held"
    assert "its witness is gone, and no entry refers to the object" in str(report.error)
    assert rig.recover()["entries"] == 1
    assert rig.decide("sent")["released"]
    assert rig.run().counts.claimed == 0
    assert drained(world) == []


def test_without_a_witness_an_orphan_that_was_seen_before_holds_nothing(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    strange = f"reward-dispatch/reward/2026/09/17/15/{'0' * 32}/{'0' * 64}-0.json"
    world.s3.put_object(Bucket=world.bucket, Key=strange, Body=b"{}")
    rig.reconcile()
    world.s3.delete_object(Bucket=world.bucket, Key=KEY)
    assert rig.run().outcome == "completed"


def test_recover_looks_at_objects_where_witnesses_are_gone(world: World, rig: Rig, put_back: list[Any]) -> None:
    world.s3.delete_object(Bucket=world.bucket, Key=KEY)
    assert rig.recover()["entries"] == 1
    assert (held_now(rig) or ("",))[0] == "adopted"


@pytest.mark.parametrize("moved", [{"objects__prefix": "elsewhere/"}, {"objects__bucket": "another"}])
def test_a_changed_place_is_no_blind_spot(world: World, rig: Rig, moved: dict[str, str]) -> None:
    if "objects__bucket" in moved:
        moved = {"objects__bucket": f"{world.bucket}-2"}
        world.s3.create_bucket(Bucket=moved["objects__bucket"])
    grow(world, "r1")
    rig.run()
    copy = rig.back_up()
    grow(world, "r2", minute=5)
    rig.run()
    assert len(drained(world)) == 2
    rig.put_back(copy)
    report = rig.run(**moved)
    assert report.outcome == "held"
    assert f"s3://{world.bucket}/{KEY}" in str(report.error)
    assert rig.recover(**moved)["entries"] == 1
    assert rig.decide("sent", **moved)["released"]
    assert rig.run(**moved).counts.claimed == 0
    assert drained(world) == []
    query = "SELECT DISTINCT prefix, bucket FROM destinations JOIN entries ON destination_id = destinations.id"
    assert rig.rows(query) == [("reward-dispatch/", world.bucket)]


def test_a_bucket_of_before_that_does_not_exist_any_more_is_no_trouble(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    rig.tell(
        "INSERT INTO destinations (pipeline_id, route, job, queue, bucket, prefix) "
        "SELECT pipeline_id, route, job, queue, 'no-such-bucket-any-more', prefix FROM destinations LIMIT 1"
    )
    assert rig.run().outcome == "completed"
    assert rig.run(window=NEXT).outcome == "completed"


def test_a_witness_that_is_none_stops_everything(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    world.s3.put_object(Bucket=world.bucket, Key=KEY, Body=b"{}")
    report = rig.run()
    assert report.outcome == "failed"
    assert f"s3://{world.bucket}/{KEY} is not a witness" in str(report.error)


def test_a_ledger_of_before_begins_to_write_witnesses(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    world.s3.delete_object(Bucket=world.bucket, Key=KEY)
    rig.tell("UPDATE windows SET seq = 0")
    grow(world, "r2", minute=5)
    assert rig.run().counts.claimed == 1
    assert world.witnesses()[KEY]["seq"] == rig.value("SELECT seq FROM windows") == 2


def test_what_a_witness_says(world: World, rig: Rig) -> None:
    grow(world, "r1")
    report = rig.run()
    (witness,) = world.witnesses().values()
    assert witness == {
        "seq": rig.value("SELECT seq FROM windows"),
        "ledger_id": str(rig.value("SELECT ledger_id FROM ledger_identity")),
        "run_id": str(report.run_id),
        "at": witness["at"],
    }
    assert witness["at"].endswith("Z")


# Getting out


def test_the_way_out_what_was_sent_is_taken_on_a_persons_word(world: World, rig: Rig, put_back: list[Any]) -> None:
    for _ in range(2):
        document = rig.recover()
        assert held_now(rig) is not None
    assert document["entries"] == 0
    assert (held_now(rig) or ("",))[0] == "adopted"
    assert rig.entry_states() == {"confirmed": 1, "sending": 1}
    assert rig.run().outcome == "held"
    decided = rig.decide("sent")
    assert (decided["vouched"], decided["to_be_sent_again"], decided["released"]) == (1, 0, True)
    assert held_now(rig) is None
    assert rig.entry_states() == {"confirmed": 2}
    assert rig.rows("SELECT outcome, error FROM attempts WHERE outcome = 'vouched'") == [
        ("vouched", "sent, on the word of ann: looked at it, ticket 4711")
    ]
    grow(world, "r3", member=3, minute=30)
    assert rig.run().counts.claimed == 1
    assert len(drained(world)) == 1
    assert rig.reconcile()["open"] == 0
    rig.assert_books_balance()
    assert [one["event"] for one in rig.events()] == ["held", "adopted", "vouched", "released"]
    assert rig.decide("sent")["released"] is False


def test_the_way_out_what_is_unknown_is_sent_again_under_its_old_key(
    world: World, rig: Rig, put_back: list[Any]
) -> None:
    rig.recover()
    decided = rig.decide("unknown")
    assert (decided["vouched"], decided["to_be_sent_again"], decided["released"]) == (0, 1, True)
    assert rig.run().counts.recovered == 1
    again = drained(world)
    assert len(again) == 1
    assert keys(again) < keys(put_back)
    assert rig.findings() == [("duplicate", "resent", "open")]


def test_released_by_a_reconcile_what_was_adopted_is_unknown(world: World, rig: Rig, put_back: list[Any]) -> None:
    rig.recover()
    document = rig.reconcile(release_hold=True)
    assert not document["windows"][0]["held"]
    assert keys(drained(world)) < keys(put_back)
    assert rig.events()[-1] == {"event": "released", "by": "ann", "reason": "looked at it, ticket 4711"}
    assert rig.run().outcome == "completed"


@pytest.mark.parametrize("found_out", [True, False])
def test_nothing_is_released_before_it_is_adopted(
    world: World, rig: Rig, put_back: list[Any], *, found_out: bool
) -> None:
    if found_out:
        rig.run()
    else:
        hold(rig, WINDOW)
    (window,) = rig.reconcile(release_hold=True)["windows"]
    assert window["held"]
    assert "dispatch-ledger recover --restored" in window["error"]
    assert drained(world) == []
    assert (held_now(rig) or ("",))[0] == "behind"


def test_decided_at_once_it_is_adopted_first(world: World, rig: Rig, put_back: list[Any]) -> None:
    decided = rig.decide("sent")
    assert (decided["entries"], decided["vouched"], decided["released"]) == (1, 1, True)
    assert rig.run().counts.claimed == 0
    assert drained(world) == []


def test_recover_leaves_alone_what_has_forgotten_nothing(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    rig.run(window=NEXT)
    assert rig.recover() == {"windows": [], "entries": 0, "error": None}
    assert held_now(rig) is None
    assert rig.decide("sent")["released"] is False


def test_recover_of_a_window_that_is_worked_on_goes_on_with_the_others(world: World, rig: Rig) -> None:
    world.put_many([booking("a", AT % 1), booking("b", "2026-09-17T17:05:00Z")])
    later = "2026-09-17T17:00:00Z"
    copy = rig.back_up()
    rig.run()
    rig.run(window=later)
    rig.put_back(copy)
    assert rig.run().outcome == "held"
    rig.tell(
        "UPDATE windows SET lease_run_id = gen_random_uuid(), lease_until = ledger_now() + interval '1 hour' "
        "WHERE start_s = %s",
        parse_window(WINDOW).start_s,
    )
    document = rig.recover()
    assert "being worked on" in document["error"]
    assert {one["window"]: one["entries"] for one in document["windows"]} == {WINDOW: 0, later: 1}


def test_killed_in_the_middle_of_an_adoption_it_stays_held_and_is_finished_by_a_repeat(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = rig.back_up()
    world.put_many(booking(f"r{at}", AT % at, member=at) for at in range(1, 4))
    rig.run()
    sent = drained(world)
    rig.put_back(copy)
    usual, adopted = S3Objects.untag, []

    def dies(self: S3Objects, *given: str) -> None:
        adopted.append(given)
        if len(adopted) == 2:
            raise KeyboardInterrupt
        usual(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(S3Objects, "untag", dies)
        with pytest.raises(KeyboardInterrupt):
            rig.recover()
    assert (held_now(rig) or ("",))[0] == "adopting"
    assert rig.reconcile(release_hold=True)["windows"][0]["held"]
    assert rig.run().outcome == "held"
    assert rig.recover()["entries"] == 1
    assert rig.decide("sent")["vouched"] == len(sent) == 3
    assert rig.run().counts.claimed == 0
    assert drained(world) == []


def test_a_redo_that_was_forgotten_still_replaces_what_it_replaced(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    copy = rig.back_up()
    assert rig.apply(rig.plan()).error is None
    assert len(drained(world)) == 2
    rig.put_back(copy)
    assert rig.recover()["entries"] == 1
    assert rig.rows("SELECT state FROM receipts") == [("superseded",)]
    assert rig.decide("sent")["released"]
    assert rig.rows("SELECT generation FROM claims ORDER BY 1") == [(0,), (1,)]


def test_a_lost_ledger_is_the_same_story(world: World, rig: Rig) -> None:
    copy = rig.back_up()
    grow(world, "r1")
    rig.run()
    rig.put_back(copy)
    rig.tell("UPDATE ledger_identity SET ledger_id = gen_random_uuid()")
    assert rig.run().outcome == "held"
    assert rig.adopt()["entries"] == 1
    assert rig.decide("sent")["vouched"] == 1
    grow(world, "r2", minute=4)
    assert rig.run().counts.claimed == 1
    assert len(drained(world)) == 2


# Plans: receipts may be forgotten without any run


def test_after_a_restore_a_sent_job_without_a_receipt_counts_as_worked(
    world: World, rig: Rig, put_back: list[Any]
) -> None:
    assert rig.plan()["already_worked"] == 0
    rig.recover()
    rig.decide("sent")
    plan = rig.plan()
    assert (plan["jobs"], plan["records"], plan["already_worked"]) == (0, 0, 2)
    assert rig.plan(include_worked=True)["records"] == 2
    grow(world, "r3", member=3, minute=30)
    rig.run()
    later = rig.plan()
    assert (later["jobs"], later["records"], later["already_worked"]) == (1, 1, 2)


def test_receipts_may_be_forgotten_where_nothing_else_is(world: World, rig: Rig) -> None:
    """No run has come since the copy was made; only the person who put it back can say so."""
    grow(world, "r1")
    rig.run()
    assert rig.plan()["already_worked"] == 0
    assert rig.recover()["windows"] == []
    plan = rig.plan()
    assert (plan["records"], plan["already_worked"]) == (0, 1)


def test_a_job_sent_again_as_unknown_may_have_been_worked_before(world: World, rig: Rig, put_back: list[Any]) -> None:
    """Its receipt is forgotten, and a queue that knows its key, or a consumer outside, drops the repeat."""
    rig.recover()
    assert rig.decide("unknown")["to_be_sent_again"] == 1
    assert rig.run().counts.recovered == 1
    assert len(drained(world)) == 1
    plan = rig.plan()
    assert (plan["records"], plan["already_worked"]) == (0, 2)


def test_a_plan_of_before_the_restore_is_out_of_date(world: World, rig: Rig) -> None:
    grow(world, "r1")
    rig.run()
    plan = rig.plan()
    copy = rig.back_up()
    rig.run()
    rig.put_back(copy)
    rig.recover()
    rig.decide("sent")
    applied = rig.apply(plan)
    assert applied.document["state"] == "stale"
    assert len(drained(world)) == 1


# Held by a person


def hold(rig: Rig, *chosen: str) -> list[str]:
    with Store(rig.url) as store:
        note = parse_note("ann", "a backup was put back")
        held = windows.hold_by_person(store, "reward", [parse_window(one) for one in chosen], note)
        return [one.name for one in held]


def test_what_a_person_holds_is_left_alone_until_it_is_released(world: World, rig: Rig) -> None:
    grow(world, "r1")
    assert hold(rig, WINDOW, NEXT) == [WINDOW, NEXT]
    assert hold(rig, WINDOW) == []
    report = rig.run()
    assert report.outcome == "held"
    assert "a backup was put back" in str(report.error)
    assert f"reconcile --window {WINDOW} --release-hold --reason TEXT" in str(report.error)
    assert rig.recover()["windows"] == []
    with pytest.raises(GuardError, match="--release-hold"):
        rig.decide("sent")
    assert rig.reconcile(release_hold=True)["open"] == 1
    assert rig.run().counts.claimed == 1
    assert rig.events() == [
        {"event": "held", "by": "ann", "reason": "a backup was put back"},
        {"event": "held", "by": "ann", "reason": "a backup was put back"},
        {"event": "released", "by": "ann", "reason": "looked at it, ticket 4711"},
    ]


@pytest.mark.parametrize("step", ["put_many", "send"])
def test_a_run_ends_when_a_person_holds_its_window(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world.put_many([booking("r1", AT % 1, member=1), booking("r2", AT % 2, member=2)])
    owner = S3Objects if step == "put_many" else SqsQueues
    usual = getattr(owner, step)

    def meanwhile(*given: Any) -> Any:
        hold(rig, WINDOW)
        return usual(*given)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, meanwhile)
        report = rig.run("paged", dispatch__page_size="1")
    assert report.outcome == "held"
    assert "a backup was put back" in str(report.error)
    assert len(drained(world)) == (step == "send")
    rig.reconcile(release_hold=True)
    rig.run()
    assert sorted(rig.claimed()) == ["r1", "r2"]
    assert rig.entry_states() == {"confirmed": 2}


# A dry run reads and writes nothing


def test_a_dry_run_says_that_it_would_be_held(world: World, rig: Rig, put_back: list[Any]) -> None:
    before = world.witnesses()
    report = rig.run(dry_run=True)
    assert report.outcome == "held"
    assert "was put back to an earlier state" in str(report.error)
    assert rig.reconcile(dry_run=True)["windows"][0]["held"]
    assert held_now(rig) is None
    assert rig.events() == []
    assert world.witnesses() == before


def test_a_dry_run_beside_a_real_one_is_not_fooled(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its looks at the witness and at the ledger, others go on; whatever it reads then is no forgetting."""
    grow(world, "r1")
    rig.run()
    usual = S3Objects.fetch

    def meanwhile(self: S3Objects, *given: str) -> Any:
        answer = usual(self, *given)
        if not calls:
            calls.append(None)
            rig.run()
        return answer

    calls: list[None] = []
    with monkeypatch.context() as patch:
        patch.setattr(S3Objects, "fetch", meanwhile)
        assert rig.run(dry_run=True).outcome == "completed"
    assert calls
    assert world.witnesses()[KEY]["seq"] == rig.value("SELECT seq FROM windows")
