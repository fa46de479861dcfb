"""The simulation itself: it repeats itself, finds the shortest way to a failure, and its oracle is not blind."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.fault.sim import trial as trials
from tests.fault.sim.database import Database
from tests.fault.sim.history import History
from tests.fault.sim.oracle import Tally
from tests.fault.sim.scenarios import SCENARIOS, dispatched
from tests.fault.sim.trial import Trial, Verdict, attempt, first_difference, parse_plan, plan_text, shrink

if TYPE_CHECKING:
    from tests.fault.sim.boundaries import Fault


@pytest.mark.parametrize(
    "trial", [Trial(seed=2), Trial(seed=7), Trial(scenario="redo", plan={60: "crash_after"})], ids=str
)
def test_a_history_is_the_same_twice(simulated_database: Database, trial: Trial) -> None:
    assert first_difference(trial, simulated_database) is None


def test_histories_of_two_seeds_differ(simulated_database: Database) -> None:
    assert attempt(Trial(seed=2), simulated_database).log != attempt(Trial(seed=3), simulated_database).log


def test_a_failing_plan_shrinks_to_what_is_needed(
    simulated_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {30, 41}

    def fails(trial: Trial, database: Database) -> Verdict:
        return Verdict(trial, ["lost"] if needed <= set(trial.faults) else [])

    monkeypatch.setattr(trials, "attempt", fails)
    plan: dict[int, Fault] = {7: "pause", 30: "crash_after", 41: "error_after", 50: "late", 90: "crash_before"}
    shortest = shrink(Trial(seed=1, plan=plan), simulated_database)
    assert str(shortest) == "--seed 1 --faults 30:crash_after,41:error_after"
    assert parse_plan(plan_text(plan)) == plan


@pytest.mark.parametrize("text", ["31:melt", "crash_after", "x:late", "5"])
def test_a_plan_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no fault"):
        parse_plan(text)


# What must not be, done behind the product's back right before the oracle looks; and a word of what it must say then.


def _tell(statement: str) -> Callable[[History], None]:
    return lambda history: history.database.tell(statement)


def _payload(history: History) -> str:
    return min(key for key in history.world.objects if key.startswith("reward-dispatch/reward/"))


def _send_once_more(history: History) -> None:
    queue = history.world.queues["reward-point"]
    queue.taken.append(queue.taken[0])


def _send_what_nobody_promised(history: History) -> None:
    body = json.dumps({**json.loads(history.world.queues["reward-point"].taken[0][1]), "idempotency_key": "0" * 64})
    history.world.queues["reward-point"].taken.append((0.0, body))


def _forget_a_message(history: History) -> None:
    del history.world.queues["reward-point"].taken[0]


def _change_an_object(history: History) -> None:
    key = _payload(history)
    body = history.world.objects[key].body.replace(b'"Amount":12.5', b'"Amount":13.5')
    history.world.objects[key].body = body


def _add_an_object(history: History) -> None:
    history.world.put(f"{_payload(history)}x", b"{}", {})


def _lose_an_object(history: History) -> None:
    del history.world.objects[_payload(history)]


def _book_late(history: History) -> None:
    item = history.world.table.read("R0", history.scheduler.now_s)
    assert item is not None
    history.write("late", {**item, "Id": {"S": "late"}})


def _pay(history: History) -> None:
    item = history.world.table.read("B", history.scheduler.now_s)
    assert item is not None
    history.write("B", {**item, "RewardStatus": {"S": "Rewarded"}})


WRONGS: dict[str, tuple[Callable[[History], None], str]] = {
    "an effect is missing": (_tell("DELETE FROM simulated_effects WHERE record_id = 'R1'"), "never worked"),
    "an effect is there twice": (
        _tell("INSERT INTO simulated_effects SELECT * FROM simulated_effects WHERE record_id = 'R1'"),
        "was worked {0: 2} times",
    ),
    "an effect of nobody": (
        _tell("INSERT INTO simulated_effects VALUES ('k', 'X', '2026-09-17T14:00:00Z', 0)"),
        "never promised",
    ),
    "a claim is missing": (_tell("DELETE FROM claims WHERE record_id = 'R2'"), "claims, state confirmed"),
    "a message too many": (_send_once_more, "nobody says so"),
    "a message of nobody": (_send_what_nobody_promised, "which no live entry has"),
    "a message is missing": (_forget_a_message, "no message of it was ever taken"),
    "an object says something else": (_change_an_object, "holds other records"),
    "an object of nobody": (_add_an_object, "belongs to nobody"),
    "an object is missing": (_lose_an_object, "is not at"),
    "a record was not read": (_book_late, "was never promised"),
    "a finding is not true": (_pay, "bad_record of B still stands"),
    "an entry is half-way": (
        _tell("INSERT INTO payload_parts SELECT window_id, id, 0, '' FROM entries LIMIT 1"),
        "unfinished entries",
    ),
    "a fence goes back": (_tell("UPDATE windows SET fence = fence - 1"), "fence of a window went"),
    "a lease is left": (
        _tell("UPDATE windows SET lease_run_id = gen_random_uuid(), fence = fence + 1, lease_until = '2027-01-01'"),
        "leases left",
    ),
    "a run never ended": (
        _tell("UPDATE runs SET outcome = NULL, finished_at = NULL WHERE cause = 'schedule'"),
        "never ended",
    ),
}


@pytest.mark.parametrize("name", WRONGS)
def test_the_oracle_is_not_blind(simulated_database: Database, name: str) -> None:
    tamper, word = WRONGS[name]

    class Tampered(History):
        def _judge(self) -> Tally:
            self.database.set_time(self.scheduler.now.isoformat())
            tamper(self)
            return super()._judge()

    history = Tampered(simulated_database, dispatched, flow=SCENARIOS["staged"][0])
    wrongs = history.run().tally.wrongs
    assert any(word in one for one in wrongs), wrongs


def test_the_oracle_sees_a_reconcile_that_writes(simulated_database: Database) -> None:
    class Restless(History):
        def _reconcile(self) -> None:
            super()._reconcile()
            self.database.tell("UPDATE findings SET first_seen_at = first_seen_at + interval '1 second'")

    wrongs = Restless(simulated_database, dispatched).run().tally.wrongs
    assert wrongs == ["one more reconcile changed ['findings']"]
