"""The ledger against a few dozen lines of plain Python that say what it has to be, compared after every step.

Runs that come, stall, lose their window and write all the same; answers that come late, twice or never; consumers that
take jobs, and redos that replace them: in any order, with the database's answer lost wherever Hypothesis likes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ledger import outbox, receipts, runs
from ledger.canonical import content_hash, unpacked_id
from ledger.errors import BusyError, ClaimLostError, CorruptError, LeaseLostError
from ledger.facts import Destination, Entry, Group, Record, RunCounts, SendAnswer
from ledger.gathering import Gathered, Promised, begin_gathering, gather, supersede
from ledger.ids import new_id
from ledger.leases import Tenure, check_fence
from ledger.receipts import Claim, Completed, GoAhead, Held, Superseded, UnknownKey
from ledger.store import Connection, Store, connect_arguments
from tests import ledger_kit as kit

MINUTE = timedelta(minutes=1)
T = TypeVar("T")
Key = tuple[int, str, int]

# ---- What the ledger has to be ----


@dataclass
class Promise:
    """An entry."""

    entry: Entry
    records: list[Record]
    run_id: UUID
    void: bool = False
    finished: bool = False
    attempts: dict[int, str] = field(default_factory=dict)
    marked_by: dict[int, int] = field(default_factory=dict)

    @property
    def unfinished(self) -> bool:
        return not self.void and not self.finished

    @property
    def state(self) -> str:
        if self.void or self.finished:
            return "void" if self.void else "confirmed"
        return "sending" if self.attempts else "pending"


@dataclass
class Receipt:
    """A consumer's claims on a job, the last one in force."""

    state: str
    attempts: int = 0
    expired: bool = False
    tokens: list[Claim] = field(default_factory=list)


@dataclass
class Reference:
    """The ledger of one window."""

    fence: int = 0
    holder: tuple[UUID, int] | None = None
    live: bool = False
    completed: bool = False
    runs: dict[UUID, str] = field(default_factory=dict)
    claims: dict[Key, UUID] = field(default_factory=dict)
    promises: dict[UUID, Promise] = field(default_factory=dict)
    receipts: dict[bytes, Receipt] = field(default_factory=dict)

    def holds(self, tenure: Tenure) -> bool:
        return self.live and self.holder == (tenure.run_id, tenure.fence)

    def start(self, run_id: UUID) -> bool:
        """Give the window to a run, if nobody holds it; whoever held it has lost it, and is ended."""
        if self.live and self.holder is not None and self.holder[0] != run_id:
            self.runs[run_id] = "busy"
            return False
        if self.holder is None or self.holder[0] != run_id:
            self.fence += 1
        self.runs |= {other: "failed" for other, state in self.runs.items() if other != run_id and state == "running"}
        self.runs[run_id], self.holder, self.live = "running", (run_id, self.fence), True
        return True

    def give_back(self, tenure: Tenure) -> None:
        if self.holder == (tenure.run_id, tenure.fence):
            self.holder, self.live = None, False

    def claim(self, records: Sequence[Record], generation: int) -> list[Record]:
        """Return what nobody has claimed in this generation."""
        return [one for one in records if (*one.occurrence, generation) not in self.claims]

    def open(self, tenure: Tenure, entry: Entry, records: list[Record]) -> None:
        self.promises[entry.id] = Promise(entry, records, tenure.run_id)
        self.claims |= {(*one.occurrence, entry.generation): entry.id for one in records}

    def make_void(self, promise: Promise, *unless: str) -> None:
        if promise.unfinished and not set(promise.attempts.values()) & set(unless):
            promise.void = True
            self.claims = {key: owner for key, owner in self.claims.items() if owner != promise.entry.id}

    def answer(self, promise: Promise, number: int, outcome: str) -> None:
        """A true answer is kept, whoever brings it; an accepted one confirms, a refused one makes void."""
        if promise.attempts[number] == "unknown":
            promise.attempts[number] = outcome
            promise.finished |= outcome == "accepted" and not promise.void
        if outcome == "refused":
            self.make_void(promise, "accepted")

    def prove(self) -> int:
        """Whatever a consumer has taken up was sent."""
        proven = 0
        for promise in self.promises.values():
            open_attempts = [number for number, outcome in promise.attempts.items() if outcome == "unknown"]
            receipt = self.receipts.get(promise.entry.idempotency_key)
            if promise.unfinished and open_attempts and receipt is not None and receipt.attempts:
                promise.attempts[max(open_attempts)], promise.finished = "received", True
                proven += 1
        return proven

    def supersede(self, tenure: Tenure) -> None:
        """The jobs of whose records none is owed any more are not worked, unless they are being worked, or were."""
        mine = [one for one in self.promises.values() if one.run_id == tenure.run_id and one.entry.generation]
        redone = {key for key, owner in self.claims.items() if owner in {one.entry.id for one in mine}}
        replaced = {
            owner
            for key, owner in self.claims.items()
            for again in redone
            if again[:2] == key[:2] and again[2] > key[2]
        }
        last = {key[:2]: key[2] for key in sorted(self.claims)}
        owing = {owner for key, owner in self.claims.items() if last[key[:2]] == key[2]}
        for owner in replaced - owing:
            receipt = self.receipts.setdefault(self.promises[owner].entry.idempotency_key, Receipt("superseded"))
            if receipt.state == "failed" or (receipt.state == "in_work" and receipt.expired):
                receipt.state = "superseded"


# ---- The ledger as it is, driven at random ----


class Forgetful(Store):
    """A connection that loses the answer to a commit when it is told to."""

    lose = False

    def _transact(self, work: Callable[[Connection], T]) -> T:
        done = super()._transact(work)
        if self.lose:
            self.lose = False
            self.close()
            raise psycopg.OperationalError("the answer to the commit was lost")
        return done


class Ledger(RuleBasedStateMachine):
    """One window of a shared ledger."""

    store: ClassVar[Forgetful]
    reader: ClassVar[psycopg.Connection[Any]]

    def __init__(self) -> None:
        super().__init__()
        self.store.lose = False
        self.reference = Reference()
        self.pipeline = f"p-{new_id()}"
        self.tenures: list[Tenure] = []
        self.requests: list[runs.RunRequest] = []
        self.routes: dict[str, Destination] = {}
        self.tries: list[tuple[UUID, int]] = []
        self.begin()
        window = self.tenures[0].window
        self.records = [kit.record(f"r{n}", window, n // 2, group=1 + n % 2) for n in range(5)]
        self.open(self.tenures[0], self.records[:3])

    def begin(self) -> None:
        self.requests.append(kit.request(pipeline=self.pipeline))
        self.start(self.requests[-1])
        self.routes = self.routes or kit.routes(self.store, self.tenures[0])

    def start(self, request: runs.RunRequest) -> None:
        if not self.reference.start(request.run_id):
            with pytest.raises(BusyError):
                runs.start_run(self.store, request)
            return
        tenure = runs.start_run(self.store, request).tenure
        assert (tenure.run_id, tenure.fence) == self.reference.holder
        if tenure not in self.tenures:
            self.tenures.append(tenure)

    def rows(self, query: str, *parameters: object) -> list[Any]:
        return self.reader.execute(query, parameters).fetchall()  # type: ignore[arg-type]

    def fenced(self, tenure: Tenure, write: Callable[[], T]) -> T | None:
        """Write with the lease, or be refused; None when refused."""
        if self.reference.holds(tenure):
            return write()
        with pytest.raises(LeaseLostError):
            write()
        return None

    def drawn_promise(self, data: st.DataObject) -> Promise:
        return self.reference.promises[data.draw(st.sampled_from(list(self.reference.promises)))]

    def tenure(self, data: st.DataObject) -> Tenure:
        """Draw a tenure: mostly one that holds the window, else one that may be over."""
        stale = data.draw(st.sampled_from([False, False, False, True]))
        if not stale and not self.reference.live:
            self.begin()
        if stale:  # most often the one that has run out, and that nobody has followed
            return data.draw(st.sampled_from([*self.tenures, *self.tenures[-1:] * 3]))
        return data.draw(st.sampled_from([one for one in self.tenures if self.reference.holds(one)]))

    # Runs and their leases

    @rule(
        data=st.data(),
        how=st.sampled_from(["taken over", "taken over", "asked for", "asked for again", "run out", "run out"]),
    )
    def the_window_changes_hands(self, data: st.DataObject, how: str) -> None:
        """Its lease runs out, and another run gets it; or one that asks although it is taken does not."""
        if how in {"taken over", "run out"} and self.reference.live:
            kit.expire(self.store, self.tenures[-1])
            self.reference.live = False
        if how in {"taken over", "asked for"}:
            self.begin()
        elif how == "asked for again":
            self.start(data.draw(st.sampled_from(self.requests)))

    @rule()
    def the_next_answer_is_lost(self) -> None:
        self.store.lose = True

    @rule(data=st.data())
    def a_run_fails(self, data: st.DataObject) -> None:
        tenure, reference = data.draw(st.sampled_from(self.tenures)), self.reference
        runs.end_run(self.store, tenure, "failed", "broke", RunCounts())
        if reference.runs[tenure.run_id] == "running":
            reference.runs[tenure.run_id] = "failed"
        reference.give_back(tenure)

    @rule(data=st.data())
    def a_run_completes(self, data: st.DataObject) -> None:
        tenure, reference = self.tenure(data), self.reference

        def complete() -> object:
            return runs.complete_run(self.store, tenure, RunCounts())

        if reference.runs[tenure.run_id] == "completed":
            complete()  # it says so once more, and changes nothing
        elif reference.holds(tenure) and any(one.unfinished for one in reference.promises.values()):
            with pytest.raises(CorruptError, match="unfinished"):
                complete()
        elif self.fenced(tenure, complete):
            reference.runs[tenure.run_id], reference.completed = "completed", True
            reference.give_back(tenure)

    # Entries on their way

    @rule(data=st.data())
    def records_are_opened(self, data: st.DataObject) -> None:
        tenure = self.tenure(data)
        chosen = data.draw(st.lists(st.sampled_from(self.records), min_size=1, unique_by=lambda one: one.record_id))
        self.open(tenure, chosen)

    def open(self, tenure: Tenure, records: list[Record]) -> None:
        groups = self.grouped(records)
        opened = self.fenced(tenure, lambda: outbox.open_entries(self.store, tenure, groups, self.routes))
        if opened is not None:
            self.check_opened(tenure, opened, groups, 0)

    def grouped(self, records: list[Record]) -> list[Group]:
        odd, even = ([one for one in records if int(one.record_id[1]) % 2 == rest] for rest in (0, 1))
        return [kit.group(members, number) for number, members in ((1, odd), (2, even)) if members]

    def check_opened(self, tenure: Tenure, opened: outbox.Opened, groups: Sequence[Group], generation: int) -> None:
        """What is opened holds what was claimed, in order, and nothing else."""
        ours = [(group, self.reference.claim(group.records, generation)) for group in groups]
        wanted = [(group, records) for group, records in ours if records]
        assert opened.claimed == sum(len(records) for _, records in wanted)
        by_group = {entry.group_digest: entry for entry in opened.entries}
        assert len(by_group) == len(opened.entries) == len(wanted)
        for group, records in wanted:
            entry, bodies = by_group[group.digest], [one.body for one in records]
            assert (entry.generation, entry.records_n) == (generation, len(records))
            assert entry.content_hash == content_hash(bodies)
            assert opened.bodies[entry.id] == b",".join(bodies)
            self.reference.open(tenure, entry, records)

    @precondition(lambda self: self.reference.promises)
    @rule(data=st.data(), behind=st.sampled_from([0, 0, 1]))
    def an_entry_is_marked(self, data: st.DataObject, behind: int) -> None:
        """By a view of it that may be old: then somebody else has tried it meanwhile, and nothing is marked."""
        tenure, promise = self.tenure(data), self.drawn_promise(data)
        self.mark(tenure, promise, max(0, len(promise.attempts) - behind))

    def mark(self, tenure: Tenure, promise: Promise, seen: int) -> None:
        again = promise.attempts.get(seen + 1) == "unknown" and promise.marked_by.get(seen + 1) == tenure.fence
        view = kit.uploaded(msgspec.structs.replace(promise.entry, attempts=seen))
        marked = self.fenced(tenure, lambda: outbox.mark_sending(self.store, tenure, [view]))
        if marked is None:
            return
        fresh = promise.unfinished and seen == len(promise.attempts)
        assert [one.attempts for one in marked] == ([seen + 1] if fresh or again else [])
        if fresh:
            promise.attempts[seen + 1], promise.marked_by[seen + 1] = "unknown", tenure.fence
            self.tries.append((promise.entry.id, seen + 1))

    @precondition(lambda self: self.tries)
    @rule(data=st.data(), outcome=st.sampled_from(["accepted", "accepted", "failed", "unknown", "refused"]))
    def a_try_is_answered(self, data: st.DataObject, outcome: str) -> None:
        """By whoever made it, with the lease or without, for the first time or once more."""
        entry_id, number = data.draw(st.sampled_from(self.tries))
        self.answer(self.tenure(data), self.reference.promises[entry_id], number, outcome)

    def answer(self, tenure: Tenure, promise: Promise, number: int, outcome: str) -> None:
        if outcome == "refused" and promise.entry.generation:
            outcome = "failed"  # what a refused redo gives back has tests of its own
        known = promise.attempts[number]
        told: Any = {"unknown": outcome, "received": "unknown"}.get(known, known)
        view = msgspec.structs.replace(promise.entry, attempts=number)
        answer = SendAnswer(told, message_id="m" if told == "accepted" else None)
        assert outbox.record_answers(self.store, tenure, [(view, answer)]) == (told == "accepted")
        self.reference.answer(promise, number, told)

    @precondition(lambda self: self.reference.live and any(one.unfinished for one in self.reference.promises.values()))
    @rule(data=st.data())
    def an_entry_is_sent(self, data: st.DataObject) -> None:
        """As it should go: marked by the run that holds the window, and taken by the queue."""
        (tenure,) = [one for one in self.tenures if self.reference.holds(one)]
        unfinished = [one for one in self.reference.promises.values() if one.unfinished]
        promise = data.draw(st.sampled_from(unfinished))
        self.mark(tenure, promise, len(promise.attempts))
        self.answer(tenure, promise, len(promise.attempts), "accepted")

    @precondition(lambda self: self.reference.promises)
    @rule(data=st.data())
    def an_entry_is_made_void(self, data: st.DataObject) -> None:
        tenure, promise = self.tenure(data), self.drawn_promise(data)

        def make_void() -> bool:
            outbox.void_entries(self.store, tenure, [promise.entry], "no longer due")
            return True

        if self.fenced(tenure, make_void):
            self.reference.make_void(promise, "accepted", "unknown")

    @rule(data=st.data())
    def what_was_received_is_proven(self, data: st.DataObject) -> None:
        tenure, held = self.tenure(data), self.store.lose
        proven = self.fenced(tenure, lambda: outbox.prove_received(self.store, tenure))
        if proven is not None:
            expected = self.reference.prove()
            assert proven == expected or (held and proven == 0)  # its count is lost with the answer

    @precondition(lambda self: self.reference.promises)
    @rule(data=st.data())
    def a_group_is_redone(self, data: st.DataObject) -> None:
        """In a generation above all of its records', with the jobs that it replaces superseded, in one transaction."""
        tenure, promise = self.tenure(data), self.drawn_promise(data)
        self.store.lose = False  # a plan's state tells a repeat of this one, and there is no plan here
        records = [one for one in promise.records if self.claims_of(one)]
        if not records or promise.unfinished:
            return
        generation = 1 + max(max(self.claims_of(one)) for one in records)
        groups = self.grouped(records)

        def seen(record: Record) -> Promised:
            return Promised(
                *record.occurrence,
                generation=generation - 1,
                entry_id=promise.entry.id,
                group_digest=promise.entry.group_digest,
                here=True,
                unfinished=False,
                receipts="",
            )

        def work(connection: Connection) -> outbox.Opened:
            check_fence(connection, tenure)
            begin_gathering(connection)
            gather(connection, [Gathered(seen(one), one) for one in records])
            ids = [new_id() for _ in groups]
            opened = outbox.open_in(connection, tenure, ids, groups, self.routes, generation)
            supersede(connection, tenure, "replaced")
            return opened

        opened = self.fenced(tenure, lambda: self.store.transaction(work))
        if opened is not None:
            assert opened.claimed == len(records)
            self.check_opened(tenure, opened, groups, generation)
            self.reference.supersede(tenure)

    def claims_of(self, record: Record) -> list[int]:
        return [key[2] for key in self.reference.claims if key[:2] == record.occurrence]

    # Consumers

    @precondition(lambda self: self.reference.promises)
    @rule(data=st.data())
    def a_consumer_asks(self, data: st.DataObject) -> None:
        key = self.drawn_promise(data).entry.idempotency_key
        known = self.reference.receipts.get(key)
        promised = any(one.entry.idempotency_key == key and not one.void for one in self.reference.promises.values())
        taken = receipts.take(self.store, self.pipeline, key, "w", MINUTE)
        if known is not None and known.state in {"completed", "superseded"}:
            assert isinstance(taken, Completed if known.state == "completed" else Superseded)
        elif known is not None and known.state == "in_work" and not known.expired:
            assert isinstance(taken, Held)
        elif not promised:
            assert taken == UnknownKey()
        else:
            assert isinstance(taken, GoAhead)
            receipt = self.reference.receipts.setdefault(key, Receipt("in_work"))
            receipt.state, receipt.expired, receipt.attempts = "in_work", False, receipt.attempts + 1
            receipt.tokens.append(taken.claim)
            assert taken.attempts == receipt.attempts

    @precondition(lambda self: any(one.tokens for one in self.reference.receipts.values()))
    @rule(data=st.data(), state=st.sampled_from(["completed", "failed", "in_work"]))
    def a_consumer_writes(self, data: st.DataObject, state: str) -> None:
        """It ends its job, or renews its claim; also one that has lost the job does so, and is refused."""
        taken = [one for one in self.reference.receipts.values() if one.tokens]
        receipt = data.draw(st.sampled_from(taken))
        token = data.draw(st.sampled_from(receipt.tokens))
        write: dict[str, Callable[[], object]] = {
            "completed": lambda: receipts.complete(self.store, token, "done"),
            "failed": lambda: receipts.fail(self.store, token, "broke"),
            "in_work": lambda: receipts.heartbeat(self.store, token, MINUTE),
        }
        repeated = receipt.state == state != "in_work"
        if token == receipt.tokens[-1] and (receipt.state == "in_work" or repeated):
            write[state]()
            receipt.state, receipt.expired = state, False
        else:
            with pytest.raises(ClaimLostError):
                write[state]()

    @precondition(lambda self: any(one.state == "in_work" for one in self.reference.receipts.values()))
    @rule(data=st.data())
    def a_consumer_is_gone(self, data: st.DataObject) -> None:
        working = [key for key, one in self.reference.receipts.items() if one.state == "in_work"]
        key = data.draw(st.sampled_from(working))
        self.rows(
            "UPDATE receipts SET expires_at = ledger_now() - interval '1 second' FROM pipelines "
            "WHERE pipelines.id = pipeline_id AND name = %s AND idempotency_key = %s RETURNING 1",
            self.pipeline,
            key,
        )
        self.reference.receipts[key].expired = True

    # Both say the same

    @invariant()
    def the_window_is_as_it_should_be(self) -> None:
        reference, tenure = self.reference, self.tenures[0]
        window = (
            "SELECT fence, coalesce(lease_until > ledger_now(), false), completed_at IS NOT NULL FROM windows "
            "WHERE id = %s"
        )
        assert self.rows(window, tenure.window_id) == [(reference.fence, reference.live, reference.completed)]
        outcomes = "SELECT id, coalesce(outcome, 'running') FROM runs WHERE window_id = %s"
        assert dict(self.rows(outcomes, tenure.window_id)) == reference.runs
        claims = "SELECT booking_ns, record_id, generation, entry_id FROM claims WHERE pipeline_id = %s"
        found = self.rows(claims, tenure.pipeline_id)
        assert {(ns, unpacked_id(raw), generation): owner for ns, raw, generation, owner in found} == reference.claims
        self.check_entries(tenure)
        self.check_receipts(tenure)

    def check_entries(self, tenure: Tenure) -> None:
        promises = self.reference.promises
        states = self.rows("SELECT id, state, attempts FROM entry_states WHERE window_id = %s", tenure.window_id)
        assert {row[0]: row[1:] for row in states} == {
            one.entry.id: (one.state, len(one.attempts)) for one in promises.values()
        }
        tries = "SELECT entry_id, number, outcome FROM all_attempts WHERE entry_id = ANY(%s::uuid[])"
        assert sorted(self.rows(tries, list(promises))) == sorted(
            (one.entry.id, number, outcome) for one in promises.values() for number, outcome in one.attempts.items()
        )
        bodies = "SELECT entry_id, records_json FROM payload_parts WHERE window_id = %s"
        assert dict(self.rows(bodies, tenure.window_id)) == {
            one.entry.id: b",".join(record.body for record in one.records)
            for one in promises.values()
            if one.unfinished
        }
        found = "SELECT entry_id FROM findings WHERE window_id = %s AND kind = 'duplicate' AND state = 'open'"
        reported = {row[0] for row in self.rows(found, tenure.window_id)}
        sent_twice = {one.entry.id for one in promises.values() if list(one.attempts.values()).count("accepted") > 1}
        assert sent_twice <= reported

    def check_receipts(self, tenure: Tenure) -> None:
        query = "SELECT idempotency_key, state, attempts FROM receipts WHERE pipeline_id = %s"
        found = {row[0]: row[1:] for row in self.rows(query, tenure.pipeline_id)}
        assert found == {key: (one.state, one.attempts) for key, one in self.reference.receipts.items()}


def test_the_ledger_is_what_the_reference_says(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.store._FIRST_DELAY_S", 0.001)
    with Forgetful(ledger_url) as store, psycopg.connect(**connect_arguments(ledger_url), autocommit=True) as reader:
        Ledger.store, Ledger.reader = store, reader
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Ledger,
            settings=settings(
                max_examples=50,
                stateful_step_count=30,
                deadline=None,
                database=None,
                phases=[Phase.generate],  # to make a story shorter would take minutes
                suppress_health_check=list(HealthCheck),
            ),
        )
