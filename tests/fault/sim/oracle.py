"""Says what is wrong with a history, from the made-up world and SQL alone: no function of the product is used here."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.fault.sim import records
from tests.fault.sim.crew import LEASE_S, PIPELINE, Crew
from tests.fault.sim.database import Database
from tests.fault.sim.scheduler import BEGIN
from tests.fault.sim.world import Item, World

Claimed = tuple[str, int]
_PREFIX = f"reward-dispatch/{PIPELINE}/"
_STANDING = {"open", "acknowledged"}
# What no fault may leave behind once two reconciles have looked.
_MENDED = {"missed", "unfinished", "window_not_dispatched", "missing_object"}
# Between the consistent read and the claim lies less than a lease.
_BETWEEN_S = LEASE_S + 30.0


@dataclass
class Entry:
    """A row of the ledger's entries, with what hangs on it."""

    id: str
    key: str
    window_s: int
    generation: int
    records_n: int
    void: bool
    state: str
    opened_s: float
    digest: str
    content: str
    queue: str
    job: str
    attempts: int
    claims: set[Claimed] = field(default_factory=set)

    @property
    def window(self) -> str:
        """The window's start, as it is written everywhere."""
        return f"{datetime.fromtimestamp(self.window_s, BEGIN.tzinfo):%Y-%m-%dT%H:%M:%SZ}"

    @property
    def object_key(self) -> str:
        """Where its object must lie."""
        hour = self.window[:13].replace("-", "/").replace("T", "/")
        return f"{_PREFIX}{hour}/{self.digest}/{self.content}-{self.generation}.json"


@dataclass
class Tally:
    """What a history came to.

    Attributes:
        wrongs: everything that should not be, in words.
        recovered: entries that needed more than one try.
        sent_twice: messages beyond the first of a key.
    """

    wrongs: list[str] = field(default_factory=list)
    lost: int = 0
    unexpected: int = 0
    worked_twice: int = 0
    recovered: int = 0
    sent_twice: int = 0
    occurrences: int = 0
    effects: int = 0


class Oracle:
    """Looks at one history after its end.

    Args:
        windows: the hours that must be complete, as seconds since 1970.
    """

    def __init__(self, world: World, database: Database, crew: Crew, windows: list[int]) -> None:
        self.world, self.database, self.crew, self.windows = world, database, crew, windows
        self.tally = Tally()
        self.entries = self._read_entries()
        self.current = world.table.current(world.now_s())
        self.effects = Counter(
            (key, identity, records.instant_ns(at), generation)
            for key, identity, at, generation in database.ask("SELECT * FROM simulated_effects")
        )
        self.sent: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for name in sorted({one.queue for one in self.entries.values()} | {"reward-point", "reward-ecoupon.fifo"}):
            for _, body in world.queues[name].taken:
                message = json.loads(body)
                self.sent[message["idempotency_key"]].append(message)

    def _read_entries(self) -> dict[str, Entry]:
        rows = self.database.ask(
            "SELECT entries.id::text, encode(entries.idempotency_key, 'hex'), windows.start_s, entries.generation, "
            "entries.records_n, entries.void_reason IS NOT NULL, entry_states.state, "
            "extract(epoch FROM entries.opened_at)::float8, "
            "encode(entries.group_digest, 'hex'), encode(entries.content_hash, 'hex'), destinations.queue, "
            "destinations.job, (SELECT count(*) FROM all_attempts WHERE entry_id = entries.id) "
            "FROM entries JOIN windows ON windows.id = entries.window_id "
            "JOIN entry_states ON entry_states.id = entries.id "
            "JOIN destinations ON destinations.id = entries.destination_id ORDER BY entries.id"
        )
        entries = {row[0]: Entry(*row) for row in rows}
        for identity, booking_ns, entry_id in self.database.ask(
            "SELECT convert_from(record_id, 'UTF8'), booking_ns, entry_id::text FROM claims"
        ):
            if entry_id in entries:
                entries[entry_id].claims.add((identity, booking_ns))
            else:
                self.wrong(f"claim of {identity} belongs to no entry")
        return entries

    def wrong(self, text: str) -> None:
        """Note something that should not be."""
        self.tally.wrongs.append(text)

    @property
    def live(self) -> list[Entry]:
        """The entries that are not void."""
        return [one for one in self.entries.values() if not one.void]

    def judge(self) -> Tally:
        """Look at everything."""
        self.tally.wrongs += self.crew.wrongs
        for (what,) in self.database.ask("SELECT what FROM simulated_wrongs"):
            self.wrong(what)
        self._look_at_ends()
        self._look_at_books()
        self._look_at_entries()
        self._look_at_due()
        self._look_at_effects()
        self._look_at_messages()
        self._look_at_objects()
        self._look_at_findings()
        return self.tally

    def _none(self, what: str, query: str) -> None:
        found = self.database.ask(query)
        if found:
            self.wrong(f"{what}: {found[:3]}")

    def _look_at_ends(self) -> None:
        """Nothing is left half-way."""
        self._none("unfinished entries", "SELECT DISTINCT entry_id FROM payload_parts")
        self._none(
            "tries without outcome, and none that was proven",
            "SELECT entry_id FROM open_attempts WHERE entry_id NOT IN (SELECT entry_id FROM attempts)",
        )
        self._none("staged records left", "SELECT run_id, record_id FROM staged_records")
        self._none("runs that never ended", "SELECT id, cause, started_at FROM runs WHERE outcome IS NULL")
        self._none("leases left", "SELECT start_s, lease_until FROM windows WHERE lease_until > ledger_now()")
        self._none("windows held", "SELECT start_s, held_reason FROM windows WHERE held_at IS NOT NULL")
        self._none("plans half-way", "SELECT id FROM plans WHERE state = 'applying'")
        self._none("receipts in work", "SELECT window_id, worker FROM receipts WHERE state = 'in_work'")
        self._none("jobs not ended", "SELECT id, kind, status FROM jobs WHERE status IN ('pending', 'processing')")
        self._none("jobs failed", "SELECT kind, error FROM jobs WHERE status = 'failed' AND attempts < 3")
        states = Counter(one.state for one in self.entries.values())
        if set(states) - {"confirmed", "void"}:
            self.wrong(f"entries end as {dict(states)}")

    def _look_at_books(self) -> None:
        """The books balance, by window and by run."""
        self._none(
            "runs whose books do not balance",
            "SELECT id, cause, evaluated, outside, not_due, set_aside, due, already_claimed, claimed FROM runs "
            "WHERE outcome = 'completed' AND (evaluated <> outside + not_due + set_aside + due "
            "OR cause <> 'reconcile' AND due <> already_claimed + claimed)",
        )
        self._none(
            "completed runs that count entries otherwise",
            "SELECT runs.id, runs.cause, runs.entries, count(entries.id) "
            "FROM runs LEFT JOIN entries ON run_id = runs.id WHERE outcome = 'completed' "
            "GROUP BY runs.id HAVING runs.entries <> count(entries.id)",
        )
        self._none(
            "coverage that is not whole",
            "SELECT start_s, verified_evaluated, verified_due, verified_claimed FROM windows "
            "WHERE verified_due <> verified_claimed",
        )
        for one in self.entries.values():
            wanted = 0 if one.void else one.records_n
            if len(one.claims) != wanted:
                self.wrong(f"entry {one.id} of {one.records_n} records has {len(one.claims)} claims, state {one.state}")
        completed = {
            start for (start,) in self.database.ask("SELECT start_s FROM windows WHERE completed_at IS NOT NULL")
        }
        for start in set(self.windows) - completed:
            self.wrong(f"window {start} was never completed")

    def _look_at_entries(self) -> None:
        """Every promise names what was true when it was made, and its object says the same."""
        for one in self.live:
            stored = self.world.objects.get(one.object_key)
            if stored is None:
                self.wrong(f"object of entry {one.id} is not at {one.object_key}")
                continue
            document = json.loads(stored.body, parse_float=str, parse_int=str)
            bodies = self._bodies_of(one)
            if bodies is not None and json.dumps(document["records"]) != json.dumps(
                [json.loads(body, parse_float=str, parse_int=str) for body in bodies]
            ):
                self.wrong(f"object of entry {one.id} holds other records, or in another order")
            if (document["idempotency_key"], document["generation"]) != (one.key, str(one.generation)):
                self.wrong(f"object of entry {one.id} belongs to {document['idempotency_key']}")
            if stored.metadata.get("idempotency-key") != one.key:
                self.wrong(f"metadata of the object of entry {one.id} names another key")
            if document["window"]["start"] != one.window or document["job"] != one.job:
                self.wrong(f"object of entry {one.id} names another window or job")

    def _bodies_of(self, one: Entry) -> list[str] | None:
        """Find which versions of its records an entry was made of: those that come to its hash."""
        choices = [self._versions(claimed, one) for claimed in sorted(one.claims)]
        for claimed, found in zip(sorted(one.claims), choices, strict=True):
            if not found:
                self.tally.unexpected += 1
                self.wrong(f"entry {one.id} claims {claimed}, which was not due like that when it was opened")
                return None
        for chosen in _each_of(choices):
            ordered = sorted(chosen, key=records.order_of)
            bodies = [records.body_of(item) for item in ordered]
            if records.content_hash(bodies) == one.content:
                if {records.group_digest(item) for item in ordered} != {one.digest}:
                    self.wrong(f"entry {one.id} mixes groups, or names another")
                if records.key_of(PIPELINE, one.window, one.digest, one.content, one.generation) != one.key:
                    self.wrong(f"key of entry {one.id} is another")
                if {records.ROUTES[item["RewardType"]["S"]] for item in ordered} != {one.job}:
                    self.wrong(f"entry {one.id} goes to job {one.job}")
                return bodies
        self.tally.unexpected += 1
        self.wrong(f"hash of entry {one.id} comes from no versions that its records had when it was opened")
        return None

    def _versions(self, claimed: Claimed, one: Entry) -> list[Item]:
        """List the contents with which a record was due at this time, a moment before the entry was opened."""
        identity, booking_ns = claimed
        opened_s = one.opened_s - BEGIN.timestamp()
        versions = self.world.table.versions.get(identity, [])
        ends = [*(later.from_s for later in versions[1:]), float("inf")]
        found = [
            version.item
            for version, end_s in zip(versions, ends, strict=True)
            if version.item is not None
            and version.from_s <= opened_s + 0.001
            and end_s >= opened_s - _BETWEEN_S
            and (records.is_due(version.item) or (one.generation > 0 and self._also_not_due))
            and records.is_usable(version.item)
            and records.instant_ns(version.item["BookingTimeUTC"]["S"]) == booking_ns
        ]
        return list({records.body_of(item): item for item in found}.values())

    @property
    def _also_not_due(self) -> bool:
        return any(scope.include_not_due for scope in self.crew.plans.values())

    def _in_scope(self, booking_ns: int) -> bool:
        return any(start * 10**9 <= booking_ns <= (start + 3600) * 10**9 for start in self.windows)

    def _look_at_due(self) -> None:
        """Everything that waits now, in an hour that is over, was promised."""
        claimed = {claim for one in self.live for claim in one.claims}
        for identity, item in self.current.items():
            booking_ns = records.instant_ns(item["BookingTimeUTC"]["S"])
            if (
                records.is_due(item)
                and records.is_usable(item)
                and booking_ns is not None
                and self._in_scope(booking_ns)
            ):
                self.tally.occurrences += 1
                if (identity, booking_ns) not in claimed:
                    self.tally.lost += 1
                    self.wrong(
                        f"{identity} waits for its reward of {item['BookingTimeUTC']['S']} and was never promised"
                    )

    def _look_at_effects(self) -> None:
        """What was promised was worked once: the last generation of each occurrence, earlier ones on wish only."""
        again = any(scope.include_worked for scope in self.crew.plans.values())
        by_claim: dict[Claimed, dict[int, Entry]] = defaultdict(dict)
        for one in self.live:
            for claim in one.claims:
                if one.generation in by_claim[claim]:
                    self.tally.unexpected += 1
                    self.wrong(f"{claim} was claimed twice in generation {one.generation}")
                by_claim[claim][one.generation] = one
        left = Counter(self.effects)
        for claim, entries in by_claim.items():
            done = {generation: left.pop((one.key, *claim, generation), 0) for generation, one in entries.items()}
            self.tally.effects += sum(done.values())
            last = max(entries)
            if done[last] == 0 and not self._was_let_go(claim, entries[last]):
                self.tally.lost += 1
                self.wrong(f"{claim} was promised in generation {last}, and never worked")
            if max(done.values()) > 1 or (sum(done.values()) > 1 and not again):
                self.tally.worked_twice += 1
                self.wrong(f"{claim} was worked {done} times, by generation")
        for effect in left:
            self.tally.unexpected += 1
            self.wrong(f"{effect} was worked, and never promised")

    def _was_let_go(self, claim: Claimed, one: Entry) -> bool:
        """Say whether a redo replaced a job when this record of it was not due any more, so that nothing was owed."""
        identity, booking_ns = claim
        query = (
            "SELECT extract(epoch FROM finished_at)::float8 FROM receipts "
            "WHERE encode(idempotency_key, 'hex') = %s AND state = 'superseded'"
        )
        for (at_s,) in self.database.ask(query, one.key):
            since_s = at_s - BEGIN.timestamp() - _BETWEEN_S
            states = [version.item for version in self.world.table.versions[identity] if version.from_s >= since_s]
            states.append(self.world.table.read(identity, since_s))
            return any(
                item is None
                or not records.is_due(item)
                or records.instant_ns(item["BookingTimeUTC"]["S"]) != booking_ns
                for item in states
            )
        return False

    def _look_at_messages(self) -> None:
        """A message for every entry; a second one only if it is known."""
        by_key = {one.key: one for one in self.live}
        explained = {
            entry_id
            for (entry_id,) in self.database.ask("SELECT entry_id::text FROM findings WHERE kind = 'duplicate'")
        }
        for key in set(self.sent) - set(by_key):
            self.tally.unexpected += 1
            self.wrong(f"a message of key {key} was sent, which no live entry has")
        for key, one in by_key.items():
            messages = self.sent.get(key, [])
            if not messages:
                self.tally.lost += 1
                self.wrong(f"entry {one.id} is {one.state}, and no message of it was ever taken")
                continue
            self.tally.recovered += one.attempts > 1
            self.tally.sent_twice += len(messages) - 1
            if len(messages) > 1 and one.id not in explained:
                self.wrong(f"entry {one.id} was sent {len(messages)} times, and nobody says so")
            for message in messages:
                wanted = (one.id, one.job, one.content, one.generation, one.object_key, one.records_n)
                has = tuple(message[name] for name in ("entry_id", "job", "content_hash", "generation"))
                if (*has, message["object"]["key"], message["records"]) != wanted:
                    self.wrong(f"a message of entry {one.id} says something else: {message}")

    def _look_at_objects(self) -> None:
        """Every object is somebody's, or is known to be nobody's."""
        keys = {one.object_key for one in self.entries.values()}  # a void one still says what its object is
        orphans = dict(self.database.ask("SELECT object_key, state FROM findings WHERE kind = 'orphan_object'"))
        for key, stored in self.world.objects.items():
            if key.startswith(_PREFIX) and key not in keys:
                if key not in orphans:
                    self.wrong(f"object {key} belongs to nobody, and nobody says so")
                elif orphans[key] == "repaired" and "dispatch-ledger:orphan" not in stored.tags:
                    self.wrong(f"object {key} is not tagged")
            elif key in keys and "dispatch-ledger:orphan" in stored.tags:
                self.wrong(f"object {key} is tagged as nobody's, and an entry refers to it")

    def _look_at_findings(self) -> None:
        """Every finding that is open is true, and what is true and lasting has its finding."""
        rows = self.database.ask(
            "SELECT kind, state, convert_from(record_id, 'UTF8'), entry_id::text FROM findings ORDER BY kind, subject"
        )
        standing = [(kind, identity, entry_id) for kind, state, identity, entry_id in rows if state in _STANDING]
        true = self._true_findings()
        for kind, identity, entry_id in standing:
            if kind in _MENDED or (kind in true and identity not in true[kind]):
                self.wrong(f"{kind} of {identity or entry_id} still stands, and is not true")
            elif kind == "duplicate" and not self._may_be_duplicate(entry_id):
                self.wrong(f"duplicate of entry {entry_id} stands, and it was tried once")
        for kind, identities in true.items():
            for identity in identities - {one for name, one, _ in standing if name == kind}:
                self.wrong(f"{kind} of {identity} is true, and there is no finding")
        self._look_at_subjects(rows)

    def _look_at_subjects(self, rows: list[tuple[Any, ...]]) -> None:
        """What findings are about is there."""
        claimed = {identity for one in self.live for identity, _ in one.claims}
        for kind, state, identity, entry_id in rows:
            if kind == "missed" and state == "repaired" and identity not in claimed:
                self.wrong(f"missed {identity} counts as repaired, and was never claimed")
            if entry_id is not None and entry_id not in self.entries:
                self.wrong(f"finding {kind} is about an entry {entry_id} that is not there")

    def _may_be_duplicate(self, entry_id: str) -> bool:
        one = self.entries.get(entry_id)
        return one is not None and (one.attempts > 1 or one.generation > 0 or len(self.sent.get(one.key, ())) > 1)

    def _true_findings(self) -> dict[str, set[str]]:
        """Work out what is unusable, has changed since, or still waits although it was worked."""
        latest: dict[Claimed, Entry] = {}
        for one in self.live:
            for claim in one.claims:
                if claim not in latest or latest[claim].generation < one.generation:
                    latest[claim] = one
        completed, superseded = self._receipts("completed"), self._receipts("superseded")
        bad: set[str] = set()
        changed: set[str] = set()
        stale: set[str] = set()
        for identity, item in self.current.items():
            at = item["BookingTimeUTC"]["S"]
            booking_ns = records.instant_ns(at)
            if not records.is_due(item) or (booking_ns is not None and not self._in_scope(booking_ns)):
                continue
            sent = None if booking_ns is None else latest.get((identity, booking_ns))
            if not records.is_usable(item):
                (bad if sent is None else changed).add(identity)
            elif sent is not None:
                if not self._was_sent_so(sent, item) or sent.key in superseded:
                    changed.add(identity)
                if sent.key in completed:
                    stale.add(identity)
        return {"bad_record": bad, "changed_after_dispatch": changed, "stale_source_status": stale}

    def _receipts(self, state: str) -> set[str]:
        query = "SELECT encode(idempotency_key, 'hex') FROM receipts WHERE state = %s"
        return {key for (key,) in self.database.ask(query, state)}

    def _was_sent_so(self, one: Entry, item: Item) -> bool:
        stored = self.world.objects.get(one.object_key)
        if stored is None:
            return True  # said elsewhere
        wanted = json.loads(records.body_of(item))
        wanted.pop("UpdatedAt", None)
        for sent in json.loads(stored.body)["records"]:
            sent.pop("UpdatedAt", None)
            if sent["Id"] == item["Id"]["S"]:
                return bool(sent == wanted)
        return False


def _each_of(choices: list[list[Item]]) -> Iterator[list[Item]]:
    """Yield every way to choose one of each; records have one or two versions that matter."""
    if not choices:
        yield []
        return
    for rest in _each_of(choices[1:]):
        for first in choices[0]:
            yield [first, *rest]


def snapshot(world: World, database: Database) -> dict[str, Any]:
    """Return all that a reconcile of unchanged windows must leave as it is."""
    of_findings = (
        "SELECT kind, cause, subject, record_id, entry_id, object_key, state, repair, detail, first_seen_at, closed_at "
        "FROM findings ORDER BY kind, subject"
    )
    return {
        "claims": database.ask("SELECT * FROM claims ORDER BY booking_ns, record_id, generation"),
        "entries": database.ask("SELECT * FROM entries ORDER BY id"),
        "attempts": database.ask("SELECT * FROM attempts ORDER BY entry_id, number"),
        "receipts": database.ask("SELECT * FROM receipts ORDER BY idempotency_key"),
        "findings": database.ask(of_findings),
        "sent": {name: len(queue.taken) for name, queue in world.queues.items()},
        "puts": world.puts,
        "tags": {key: dict(one.tags) for key, one in world.objects.items()},
    }
