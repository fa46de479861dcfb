"""One round: hours of bookings are dispatched, reconciled, redone and worked, in a storm, then in peace; then judged.

Everything that is drawn comes from the round's seed, each actor with dice of its own. Real processes race, so the same
seed makes up the same plan, but never quite the same round.
"""

import itertools
import json
import random
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psycopg

from tests.aws_servers import World
from tests.product import Done, Product, Running, until
from tests.soak.hands import Hand, Notes, Victim
from tests.soak.ledger import OwnPostgres, dump, query, tables
from tests.soak.oracle import Evidence, all_wrong, settled_dump
from tests.soak.plan import LEASE_S, WORKER_CALLS, WORKER_COMMITS, Trouble, draw_command, draw_trouble
from tests.soak.source import Source, keep_changing

HOURS = 4
OPERATORS = 3
WORKERS = 2
VISIBILITY_S = 3
_CHANGE_EVERY_S = 0.15
_CRASH_EVERY_S = 10.0
_STORM_S = (14.0, 22.0)
_FOREVER_S = 999.0
_REDO_AFTER, _APPLIED_ODDS, _WORKED_ODDS = 3, 0.9, 0.7
_WAITS_ODDS, _UP_WITHIN_S = 0.85, 20.0
_DRAINED_WITHIN_S = 900.0
_HIDDEN_MAX_S = 15.0
_KILLED, _ENDED_EARLY = -signal.SIGKILL, -signal.SIGTERM  # the latter before it listens to signals
_CODES = {0, 1, 3, 4, 5, 128 + signal.SIGTERM, _KILLED, _ENDED_EARLY}
_SUSPICIOUS = ("Traceback", "unexpected ", "please report it", "should be impossible", "AssertionError")
_PEACE_TRIES = 3

SETTINGS: dict[str, str | None] = {
    "dispatch.lease": f"{LEASE_S:g}s",
    "dispatch.page_size": "5",
    "reconcile.grace": "0s",
    "reconcile.orphan_grace": "0s",
    "schedule.catch_up": "6h",
}


@dataclass
class Command:
    """A command that has ended, for whoever looks for a fault."""

    words: list[str]
    trouble: str
    done: Done
    began: datetime
    ended: datetime = field(default_factory=lambda: datetime.now(UTC))

    def line(self) -> str:
        lasted_s = (self.ended - self.began).total_seconds()
        what = f"{self.began.time()} {' '.join(self.words)} [{self.trouble}]"
        return f"{what} -> {self.done.code} in {lasted_s:.2f} s\n{self.done.err}"


@dataclass
class Round:
    """A round as it goes on.

    Attributes:
        over: set when the storm is.
        plans, fresh_plans: ids of redo plans that were made, and those that nobody has tried to apply.
        wrong: what was found wrong, one line each.
    """

    seed: int
    world: World
    url: str
    product: Product
    source: Source
    notes: Notes
    postgres: OwnPostgres
    over: threading.Event = field(default_factory=threading.Event)
    plans: list[str] = field(default_factory=list)
    fresh_plans: list[str] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def dice(self, actor: str) -> random.Random:
        return random.Random(f"{self.seed} {actor}")

    @property
    def windows(self) -> list[str]:
        return [hour.strftime("%Y-%m-%dT%H:%M:%SZ") for hour in self.source.hours]

    # Storm

    def operate(self, hand: Hand, dice: random.Random) -> None:
        """Run one command after another, each with its trouble."""
        for number in itertools.count():
            if self.over.is_set():
                return
            self.await_postgres(dice)
            words = self._draw(dice, redo=number >= _REDO_AFTER)
            trouble, began = draw_trouble(dice, 0.7), datetime.now(UTC)
            victim = hand.run(partial(self._start, hand, words), trouble, self.over, _FOREVER_S)
            self._note(words, victim, began)

    def _draw(self, dice: random.Random, *, redo: bool) -> list[str]:
        """Draw a command; a plan that was just made is mostly applied before it is out of date."""
        if self.fresh_plans and dice.random() < _APPLIED_ODDS:
            return ["redo", "apply", self.fresh_plans.pop()]
        words = draw_command(dice, self.windows, self.plans, redo=redo)
        if words[-1] == "--record":
            words.append(dice.choice(sorted(self.source.histories)))
        if words[-1] == "--group":
            groups: list[str] = []
            with suppress(psycopg.Error):  # it may be down
                groups = [group for (group,) in query(self.url, _GROUPS, words[3])]
            return [*words, dice.choice(groups)] if groups else ["dispatch", "--window", words[3]]
        return words

    def await_postgres(self, dice: random.Random) -> None:
        """Mostly, begin nothing while PostgreSQL is down: it would end at once."""
        if dice.random() < _WAITS_ODDS:
            self.postgres.is_up.wait(_UP_WITHIN_S)

    def _start(self, hand: Hand, words: list[str]) -> Running:
        return self.product.start(*words, "--json", endpoint=hand.aws.url, ledger__database_url=hand.database.url)

    def _note(self, words: list[str], victim: Victim, began: datetime) -> None:
        assert victim.running is not None
        done = victim.running.done()
        self.commands.append(Command(words, str(victim.trouble), done, began))
        self.notes.count("commands")
        self.notes.count("kills -9 of commands", done.code == _KILLED)
        if done.code not in _CODES or any(word in done.err for word in _SUSPICIOUS):
            self.wrong.append(f"{' '.join(words)} ended with {done.code}: {done.err[-1500:]}")
        if words[:2] == ["redo", "plan"] and done.code in {0, 3} and done.document["jobs"]:
            self.plans.append(done.document["plan_id"])
            self.fresh_plans.append(done.document["plan_id"])

    def consume(self, hand: Hand, dice: random.Random) -> None:
        """Keep a consumer at work; each is killed or told to end after a while."""
        while not self.over.is_set():
            self.await_postgres(dice)
            trouble, began = draw_trouble(dice, 2.0, WORKER_CALLS, WORKER_COMMITS), datetime.now(UTC)
            victim = hand.run(partial(self._start_worker, hand), trouble, self.over, dice.uniform(2, 6))
            assert victim.running is not None
            done = victim.running.done()
            self.commands.append(Command(["worker"], str(trouble), done, began))
            self.notes.count("consumers")
            self.notes.count("kills -9 of consumers", done.code == _KILLED)
            if done.code not in {0, 1, _KILLED, _ENDED_EARLY} or any(word in done.err for word in _SUSPICIOUS):
                self.wrong.append(f"a consumer ended with {done.code}: {done.err[-1500:]}")

    def _start_worker(self, hand: Hand) -> Running:
        return self.product.start(
            *self.world.queues.values(),
            endpoint=hand.aws.url,
            ledger__database_url=hand.database.url,
            entry="tests.soak.worker",
        )

    def crash(self, dice: random.Random) -> None:
        """Stop PostgreSQL at once, now and then."""
        while not self.over.wait(dice.uniform(0.3, 2 * _CRASH_EVERY_S)):
            self.postgres.crash(dice, self.notes)

    def storm(self, lasts_s: float) -> None:
        """Let everybody loose, and wait until the last one has ended."""
        with ExitStack() as stack:
            todo: list[Callable[[], None]] = [
                partial(keep_changing, self.source, _CHANGE_EVERY_S, self.over),
                partial(self.crash, self.dice("crash")),
            ]
            for what, act, number in (("operator", self.operate, OPERATORS), ("worker", self.consume, WORKERS)):
                for place in range(number):
                    hand = stack.enter_context(Hand(self.world.endpoint, self.url, self.notes))
                    todo.append(partial(act, hand, self.dice(f"{what} {place}")))
            threads = [threading.Thread(target=self._guarded, args=(one,), daemon=True) for one in todo]
            for thread in threads:
                thread.start()
            try:
                self.over.wait(lasts_s)
            except BaseException:
                self.abort()
                raise
            finally:
                self.over.set()
                for thread in threads:
                    thread.join()
        self.notes.count("changes of the source", self.source.changes)

    aborted: bool = False

    def abort(self) -> None:
        """Let the storm end at once, and nobody wait for anything."""
        self.aborted = True
        self.over.set()
        for one in list(self.product.started):
            one.signal(signal.SIGKILL)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException:  # noqa: BLE001 - told at the end of the round
            if not self.aborted:
                self.wrong.append(f"an actor failed: {traceback.format_exc()}")
            self.over.set()

    # Peace

    def make_peace(self, hand: Hand) -> None:
        """Let the product finish everything by itself, and look whether it then rests."""
        dice = self.dice("peace")
        self.await_leases()
        for (plan,) in query(self.url, "SELECT id::text FROM plans WHERE state = 'applying'"):
            self.do(hand, "redo", "apply", plan)
        workers = [self._start_worker(hand) for _ in range(WORKERS)]
        if dice.random() < 0.7:
            self.do(hand, "dispatch", "--due")
        else:
            for window in self.windows:
                self.do(hand, "dispatch", "--window", window)
            self.do(hand, "dispatch", "--due")  # the hour may have ended meanwhile
        self.reconcile(hand)
        self.redo(hand, dice)
        self.await_work()
        self._dismiss(workers, dice)
        self.reconcile(hand)
        before, calls = settled_dump(self.url), len(hand.aws.log)
        self.reconcile(hand)
        if differences := set(before) ^ set(settled_dump(self.url)):
            self.wrong.append(f"a further reconcile wrote: {sorted(differences)[:6]}")
        wrote = {one.operation for one in hand.aws.log[calls:]} - _LOOKS
        if wrote:
            self.wrong.append(f"a further reconcile did {sorted(wrote)}")

    def await_leases(self) -> None:
        """Wait until no dead process has a window."""
        held = "SELECT 1 FROM windows WHERE lease_until > ledger_now()"
        until(lambda: not query(self.url, held), "the leases of the dead have ended", within_s=4 * LEASE_S)

    def redo(self, hand: Hand, dice: random.Random) -> None:
        """Redo one window, killed on the way; what was begun has to be finished, what was not may be out of date."""
        words = ["redo", "plan", "--window", dice.choice(self.windows), "--reason", "soak"]
        planned = self.do(hand, *words, *["--include-worked"] * (dice.random() < _WORKED_ODDS))
        if planned is None or not planned.document["jobs"]:
            return
        apply = ["redo", "apply", planned.document["plan_id"]]
        trouble = Trouble("kill", "commit", at=dice.randrange(1, 16), after=dice.random() < 0.5)
        began = datetime.now(UTC)
        self._note(apply, hand.run(partial(self._start, hand, apply), trouble, threading.Event(), _FOREVER_S), began)
        self.await_leases()
        self.do(hand, *apply, codes={0, 3, 5})

    def reconcile(self, hand: Hand) -> None:
        """Reconcile whatever windows there are."""
        known = {start for (start,) in query(self.url, _KNOWN_WINDOWS)}
        words = [word for window in sorted(known | set(self.windows)) for word in ("--window", window)]
        self.do(hand, "reconcile", *words)

    def do(self, hand: Hand, *words: str, codes: Collection[int] = (0, 3)) -> Done | None:
        """Run one command in peace; it has to succeed, on a busy machine not at once."""
        for _ in range(_PEACE_TRIES):
            began = datetime.now(UTC)
            done = self.product.run(
                *words, "--json", endpoint=hand.aws.url, ledger__database_url=hand.database.url, dispatch__lease="30s"
            )
            self.commands.append(Command(list(words), "peace", done, began))
            if done.code in codes:
                return done
            self.notes.count("tried again in peace")
        self.wrong.append(f"in peace, {' '.join(words)} ended with {done.code}: {done.err[-1500:]}")
        return None

    def await_work(self) -> None:
        """Wait until all jobs are worked, and the queues empty.

        A repeat whose job is in work when it comes is put off for minutes; the round does not wait for that.
        """

        def is_empty() -> bool:
            return not any(map(self.world.message_count, self.world.queues.values()))

        until(lambda: is_empty() or not query(self.url, _UNWORKED), "all is worked", within_s=_DRAINED_WITHIN_S)
        with suppress(AssertionError):
            until(is_empty, "the queues are empty", within_s=_HIDDEN_MAX_S)
        self.notes.count("repeats put off", sum(map(self.world.message_count, self.world.queues.values())))

    def _dismiss(self, workers: list[Running], dice: random.Random) -> None:
        for one in workers:
            if dice.random() < 0.7:
                one.kill()  # idle; who is told to end waits for its receive
                continue
            one.signal(signal.SIGTERM)
            if one.done().code not in {0, _ENDED_EARLY}:
                self.wrong.append("a consumer in peace did not end well")

    # Judgement

    def judge(self) -> None:
        """Compare what is left with what must be."""
        evidence = Evidence(self.url, self.world, self.source, self.notes, self.windows)
        self.wrong += all_wrong(evidence)

    def keep(self, folder: Path) -> None:
        """Keep everything that may help to understand the round."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "wrong.txt").write_text("\n".join(self.wrong) + "\n")
        (folder / "commands.txt").write_text("\n".join(one.line() for one in list(self.commands)))
        (folder / "source.jsonl").write_text(self.source.dump())
        (folder / "messages.json").write_text(json.dumps(self.notes.messages, indent=1))
        with suppress(Exception):
            for name in tables(self.url):
                (folder / f"{name}.tsv").write_text("\n".join(dump(self.url, name)) + "\n")
        for key, body in self.world.objects().items():
            place = folder / "objects" / key
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(body)


# What a look does that changes nothing; it counts the window on, and says so in its witness.
_LOOKS = {
    "GET witness",
    "PUT witness",
    "AmazonSQS.GetQueueUrl",
    "AmazonSQS.GetQueueAttributes",
    "DynamoDB_20120810.DescribeTable",
    "DynamoDB_20120810.Query",
    "DynamoDB_20120810.BatchGetItem",
    "GET bucket?list-type",
    "GET bucket?location",
    "HEAD bucket",
    "GET object",
    "HEAD object",
    "GET object?tagging",
}
_UNWORKED = (
    "SELECT 1 FROM entries LEFT JOIN receipts USING (idempotency_key) WHERE void_reason IS NULL "
    "AND coalesce(state, '') NOT IN ('completed', 'superseded') LIMIT 1"
)
_GROUPS = (
    "SELECT DISTINCT group_json FROM entries JOIN windows ON windows.id = window_id "
    "WHERE start_s = extract(epoch FROM %s::timestamptz) AND void_reason IS NULL ORDER BY 1"
)
_KNOWN_WINDOWS = (
    "SELECT to_char(to_timestamp(start_s) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM windows "
    "WHERE start_s + 3600 <= extract(epoch FROM ledger_now())"
)


@contextmanager
def prepared(seed: int, endpoint: str, postgres: OwnPostgres, folder: Path, notes: Notes) -> Iterator[Round]:
    """Make up a round: a world, a ledger and bookings of its own; nothing of it is left at the end."""
    dice = random.Random(f"{seed} set-up")
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    hours = [now - timedelta(hours=back) for back in range(HOURS, 0, -1)]
    world = World(endpoint, fifo=dice.random() < 0.2)
    for queue in world.queues.values():
        url = world.queue_url(queue)
        world.sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": str(VISIBILITY_S)})
    source = Source(world, hours, random.Random(f"{seed} source"))
    source.fill(groups=dice.randrange(3, 9))
    name = f"round_{seed}"
    postgres.start()
    ledger_url = postgres.create(name)
    settings = SETTINGS | {"schedule.not_before": hours[0].strftime("%Y-%m-%dT%H:%M:%SZ")}
    (flow,) = dice.choices(["staged", "paged", "full"], [7, 2, 1])
    try:
        with Product(world, None, folder, flow, settings) as product:
            yield Round(seed, world, ledger_url, product, source, notes, postgres)
    finally:
        with suppress(Exception):
            postgres.drop(name)


def play(one: Round, storm_s: float | None = None) -> None:
    """Play a round to its end; what is wrong is noted in it."""
    (low, high), dice = _STORM_S, one.dice("storm")
    one.storm(dice.uniform(low, high) if storm_s is None else storm_s)
    if one.aborted:
        return
    try:
        with Hand(one.world.endpoint, one.url, one.notes) as hand:
            one.make_peace(hand)
        one.judge()
    except AssertionError as error:
        one.wrong.append(f"no peace: {error}")


def warm_up(folder: Path) -> None:
    """Start the process that all others are forked from."""
    with Product(None, None, folder) as product:
        product.run("--help").ended(0)


def forget(folder: Path) -> None:
    """Remove a folder and what is in it."""
    shutil.rmtree(folder, ignore_errors=True)
