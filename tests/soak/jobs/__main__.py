"""`python -m tests.soak.jobs`: hundreds of jobs over HTTP, while their workers are killed and paused at random.

Everything is real but AWS: PostgreSQL, `serve`, and several `worker` processes of the command line. In the end each job
must have ended once, each window must have been sent once, and nothing may be left over. Exits with 0, or says what
broke. The same seed makes up the same requests; the moments of the trouble are those of the machine.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ledger import schema
from ledger.embedded import embedded_postgres
from ledger.jobs import FINAL
from tests.aws_servers import World, ministack_server
from tests.fault.windows import fill, hours_ago
from tests.job_kit import make_queues
from tests.product import Product, until
from tests.rig import Rig
from tests.soak.jobs.crew import Crew, Member, Server
from tests.soak.jobs.stories import Ask, Story, Teller
from tests.soak.jobs.verdict import WATCH, all_wrong

CONSOLE = Console(highlight=False, width=120)
LEASE_S = 3.0
SETTINGS: dict[str, str | None] = {
    "dispatch.lease": f"{LEASE_S:g}s",
    "dispatch.page_size": "4",
    "reconcile.grace": "0s",
    "jobs.fast_limit": "4s",
}
_STEP_S = 0.05
_LOOK_S = 0.4
_POSTED_BY = 0.85
_PAUSE_ODDS = 0.15
_AIMED_ODDS = 0.5
_SERVE_AWAY_S = 3.0
_DRAINED_WITHIN_S = 300.0
_REST_S = 0.5
HOURS_MAX = 24 * 365


@dataclass
class Wait:
    """A request that was made, and has not been answered with a job that ended."""

    ask: Ask
    key: str
    job: str | None = None
    cancel_s: float | None = None
    repeat: bool = False


@dataclass
class Telling:
    """A story, as far as it has been told."""

    story: Story
    waits: list[Wait] = field(default_factory=list)


@dataclass
class Soak:
    """The soak as it goes on."""

    options: argparse.Namespace
    crew: Crew
    server: Server
    rig: Rig
    teller: Teller
    dice: random.Random
    began_s: float = field(default_factory=time.monotonic)
    telling: list[Telling] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    workers: list[Member] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)
    troubles: list[tuple[datetime, datetime]] = field(default_factory=list)
    trouble_s: float = 0.0
    looked_s: float = 0.0
    away_until_s: float | None = None
    ask_again_s: float = 0.0

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    # Asking

    def begin(self, story: Story) -> None:
        self._go_on(Telling(story), None)

    def _go_on(self, one: Telling, jobs: list[Any] | None) -> None:
        """Tell a story to its next requests, or to its end."""
        try:
            asked = next(one.story) if jobs is None else one.story.send(jobs)
        except StopIteration:
            self.telling = [other for other in self.telling if other is not one]
            return
        one.waits = [Wait(ask, uuid.UUID(int=self.dice.getrandbits(128)).hex, repeat=ask.twice) for ask in asked]
        if one not in self.telling:
            self.telling.append(one)

    def ask(self) -> None:
        """Post what is to be posted, cancel what is to be cancelled; what nobody answers is asked again later."""
        for wait in [wait for one in self.telling for wait in one.waits]:
            if self.now_s < self.ask_again_s:
                return
            if wait.job is None or wait.repeat:
                self._post(wait)
            elif wait.cancel_s is not None and self.now_s >= wait.cancel_s:
                self._cancel(wait)

    def _post(self, wait: Wait) -> None:
        answer = self.server.ask("POST", wait.ask.path, wait.ask.body, wait.key)
        if answer is None:
            self.did["asked in vain"] += 1
            self.ask_again_s = self.now_s + _REST_S
            return
        if wait.job is None:
            wait.job = answer["job_id"]
            self.did["posted"] += 1
            if wait.ask.cancel_after_s is not None:
                wait.cancel_s = self.now_s + wait.ask.cancel_after_s
            return
        assert answer["job_id"] == wait.job, "the same key again is the same job"
        wait.repeat = False
        self.did["posted again"] += 1

    def _cancel(self, wait: Wait) -> None:
        answer = self.server.ask("DELETE", f"/jobs/{wait.job}")
        if answer is not None:
            wait.cancel_s = None
            self.did["cancelled in time"] += answer["status"] == "cancelled"
            self.cancelled.add(str(wait.job))

    def look(self) -> None:
        """See which jobs have ended, and go on with their stories."""
        if self.now_s < self.looked_s + _LOOK_S:
            return
        self.looked_s = self.now_s
        query = "SELECT id::text FROM jobs WHERE status = ANY(%s)"
        ended = {job for (job,) in self.rig.rows(query, list(FINAL))}
        for one in list(self.telling):
            if all(wait.job in ended and not wait.repeat for wait in one.waits):
                jobs = [self.server.ask("GET", f"/jobs/{wait.job}") for wait in one.waits]
                if None not in jobs:
                    self._go_on(one, jobs)

    # Trouble

    def make_trouble(self) -> None:
        """Now and then, kill or pause a worker; wake up those whose time has come, and replace the dead."""
        for worker in self.workers:
            if worker.wakes_s is not None and self.now_s >= worker.wakes_s:
                self.wake(worker)
        if self.now_s >= self.trouble_s and (able := [one for one in self.workers if one.awake and one.has_claimed()]):
            self.trouble_s = self.now_s + self.dice.expovariate(1 / self.options.every)
            victim = self.dice.choice(able)
            if self.dice.random() < _AIMED_ODDS:
                self._aim(victim)
            began = datetime.now(UTC)
            if self.dice.random() < _PAUSE_ODDS:
                victim.send(signal.SIGSTOP)
                lasts_s = LEASE_S * self.dice.uniform(1.2, 3)
                victim.wakes_s = self.now_s + lasts_s
                self.troubles.append((began, began + timedelta(seconds=lasts_s)))
                self.did["paused"] += 1
            else:
                self.crew.kill(victim)
                self.troubles.append((began, datetime.now(UTC)))
                self.did["killed"] += 1
                self.did["killed with jobs in hand"] += bool(victim.in_hand())
        self.replace_the_dead()

    def _aim(self, victim: Member) -> None:
        """Wait until a worker has something in hand, and then a little."""
        deadline_s = self.now_s + 2
        while not victim.in_hand() and self.now_s < deadline_s:
            pause(0.01)
        pause(self.dice.expovariate(1 / 0.1))

    def wake(self, worker: Member) -> None:
        worker.wakes_s = None
        worker.send(signal.SIGCONT)

    def replace_the_dead(self) -> None:
        self.workers = [one for one in self.workers if one.alive]
        while len(self.workers) < self.options.workers:
            self.workers.append(self.crew.start("worker", "--concurrency", "2"))

    def stop_serving(self, at_s: float) -> None:
        """Stop the server once, for a while."""
        if self.away_until_s is None and self.now_s >= at_s:
            assert self.server.stop() == 143
            self.away_until_s = self.now_s + _SERVE_AWAY_S
        elif self.away_until_s and self.now_s >= self.away_until_s:
            self.server.start()
            self.away_until_s = 0.0


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@contextmanager
def set_up(options: argparse.Namespace) -> Iterator[tuple[Soak, World, list[str]]]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dl-soak-", dir="/tmp")).resolve()
        folder.chmod(0o755)  # PostgreSQL's user must get in when root runs this
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url = stack.enter_context(embedded_postgres(folder / "pg"))
        schema.upgrade(url)
        world = World(stack.enter_context(ministack_server()))
        queues = make_queues(world)
        product = stack.enter_context(Product(world, url, folder, settings={**SETTINGS, **queues}))
        rig = stack.enter_context(Rig(world, url))
        rig.tell(WATCH)
        windows = [hours_ago(hours) for hours in range(1, options.jobs // 2)]
        fill(world, *windows)
        dice = random.Random(options.seed)
        dice.shuffle(windows)
        logs = folder / "logs"
        logs.mkdir()
        crew = Crew(product._environment(None, "staged", {}, {}), logs)
        stack.callback(crew.close)
        server = Server(crew)
        server.start()
        server.wait()
        yield Soak(options, crew, server, rig, Teller(windows, dice), dice), world, list(queues.values())


def soak(one: Soak) -> None:
    """Ask for all the jobs, with trouble all the time, and let them end in peace."""
    lasts_s = one.options.minutes * 60
    stories = list(one.teller.tell(one.options.jobs))
    begun = 0
    while one.now_s < lasts_s:
        due = min(len(stories), int(len(stories) * one.now_s / (lasts_s * _POSTED_BY)) + 1)
        for story in stories[begun:due]:
            one.begin(story)
        begun = due
        one.stop_serving(lasts_s / 2)
        one.ask()
        one.look()
        one.make_trouble()
        pause(_STEP_S)
    for worker in one.workers:
        if worker.wakes_s is not None:
            one.wake(worker)
    while one.telling:
        assert one.now_s < lasts_s + _DRAINED_WITHIN_S, [wait for tale in one.telling for wait in tale.waits]
        one.replace_the_dead()
        one.ask()
        one.look()
        pause(_STEP_S)


def wait_for_the_rest(one: Soak, world: World, queues: list[str]) -> list[str]:
    """Let the jobs that follow others end, and messages of the dead come back and go; then end everybody."""
    unfinished = "SELECT count(*) FROM jobs WHERE NOT status = ANY(%s)"

    def over() -> bool:
        return not one.rig.value(unfinished, list(FINAL)) and not any(map(world.message_count, queues))

    wrong = []
    try:
        until(over, "nothing is pending, and the queues are empty", within_s=_DRAINED_WITHIN_S)
    except AssertionError as error:
        wrong.append(str(error))
    codes = [*one.crew.end(*one.workers), one.server.stop()]
    return wrong + [f"processes ended with {codes}"] * (set(codes) != {143})


def audit(crew: Crew) -> list[str]:
    member = crew.start("--json", "audit", "verify", "--from", hours_ago(HOURS_MAX))
    code = member.process.wait(300)
    return [] if code == 0 else [f"audit verify ended with {code}: {member.log.with_suffix('.out').read_text()}"]


def show(one: Soak, messages: list[Any], lasted_s: float) -> None:
    """Print what was done."""
    kinds = one.rig.rows("SELECT kind, status, count(*) FROM jobs GROUP BY 1, 2 ORDER BY 1, 2")
    statuses = Counter({status: sum(n for _, of, n in kinds if of == status) for _, status, _ in kinds})
    logged = [event for member in one.crew.everybody if "worker" in member.log.name for event in member.events()]
    let_go = Counter(str(event["outcome"]) for event in logged if event["event"] == "job let go")
    attempts = one.rig.rows(
        "SELECT (SELECT sum(attempts)::int FROM jobs), count(*) FILTER (WHERE lost), count(*) FILTER (WHERE counted) "
        "FROM soak_changes"
    )[0]
    keys = Counter(message["idempotency_key"] for message in messages)
    table = Table("", "", box=None, show_header=False, padding=(0, 2))
    rows: dict[str, Any] = {
        "seed": one.options.seed,
        "seconds": f"{lasted_s:.0f}",
        "jobs": one.rig.value("SELECT count(*) FROM jobs"),
        **{f"  {status}": count for status, count in statuses.items()},
        "by kind": ", ".join(f"{n} {kind} {status}" for kind, status, n in kinds),
        **one.did,
        "worker processes": sum("worker" in member.log.name for member in one.crew.everybody),
        "attempts": "{} counted, {} lost with their workers, {} with their leases".format(*attempts),
        "jobs by attempts": dict(one.rig.rows("SELECT attempts, count(*) FROM jobs GROUP BY 1 ORDER BY 1")),
        "returned by their workers": let_go["returned"],
        "dropped: fenced or cancelled": let_go["dropped"],
        "moved to the slow queue": one.rig.value("SELECT count(*) FROM jobs WHERE queue = 'slow' AND kind <> 'redo'"),
        "windows": len(one.teller.generations),
        "redone": sum(count > 1 for count in one.teller.generations.values()),
        "entries sent": f"{len(keys)} keys, {len(messages)} messages, at most {max(keys.values(), default=0)} a key",
        "duplicates reported": dict(
            one.rig.rows("SELECT cause, count(*) FROM findings WHERE kind = 'duplicate' GROUP BY 1 ORDER BY 1")
        ),
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    CONSOLE.print(table)


def main() -> int:
    """Run the soak; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.jobs", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=3, help="worker processes at a time")
    parser.add_argument("--every", type=float, default=2.0, help="seconds from trouble to trouble, on average")
    parser.add_argument("--seed", type=int, default=None, help="of the requests; drawn and printed by default")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to leave the logs")
    options = parser.parse_args()
    options.seed = random.randrange(10**6) if options.seed is None else options.seed
    CONSOLE.print(f"seed {options.seed}")
    os.environ |= {"AWS_EC2_METADATA_DISABLED": "true"}
    with set_up(options) as (one, world, queues):
        try:
            soak(one)
            wrong = wait_for_the_rest(one, world, queues)
            lasted_s = one.now_s
            wrong += audit(one.crew)
            found, messages = all_wrong(
                one.rig,
                world,
                one.troubles,
                cancelled=one.cancelled,
                generations=one.teller.generations,
                queues=queues,
            )
            show(one, messages, lasted_s)
        finally:
            if options.keep:
                shutil.copytree(one.crew.folder, options.keep, dirs_exist_ok=True)
    wrong += found
    for line in wrong:
        CONSOLE.print(f"BROKEN: {line}", markup=False, soft_wrap=True)
    CONSOLE.print(f"{len(wrong)} things broke" if wrong else "nothing broke")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
