"""One history: a story told in a made-up world, with a plan of what goes wrong, and what it came to in the end."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from tests.fault.sim.boundaries import Boundaries, Fault
from tests.fault.sim.crew import Crew, sharable_jobs
from tests.fault.sim.database import Database, simulated
from tests.fault.sim.oracle import Oracle, Tally, snapshot
from tests.fault.sim.records import EPOCH
from tests.fault.sim.scheduler import BEGIN, Process, Scheduler
from tests.fault.sim.world import World

QUEUES = ("reward-point", "reward-ecoupon.fifo", "dispatch-ledger-jobs", "dispatch-ledger-jobs-slow")
WINDOWS = ("2026-09-17T14:00:00Z", "2026-09-17T15:00:00Z")
_HOUR_S = 3600
_NOTHING = 50  # the product logs nothing that is critical
_DRAIN_ROUNDS_FEW, _DRAIN_ROUNDS_MAX = 10, 200


@dataclass
class Result:
    """What a history came to.

    Attributes:
        log: every step; equal for equal seeds and plans.
        first, last: the boundaries at which the story lets things go wrong.
    """

    tally: Tally
    log: list[str]
    names: list[str]
    first: int
    last: int
    met: Counter[Fault]
    outcomes: Counter[str]
    crashed_in_recovery: int
    simulated_s: float
    windows: int = 0


@dataclass
class History:
    """Tells one story.

    Attributes:
        first: the number of the boundary at which things may begin to go wrong.
        looks_again: whether, after all was judged, one more reconcile must change nothing.
        windows: the hours that must be complete in the end.
    """

    database: Database
    story: "Callable[[History], None]"
    seed: int = 0
    flow: str = "staged"
    plan: Mapping[int, Fault] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    looks_again: bool = True

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.seed)
        self.boundaries = Boundaries(self.scheduler, self.plan)
        self.world = World(self.scheduler.random, lambda: self.scheduler.now_s, lambda: self.scheduler.now)
        for name in QUEUES:
            self.world.add_queue(name)
        self.crew = Crew(self.scheduler, self.boundaries, self.world, self.database.url, self.flow, **self.settings)
        self.windows = [14, 15]
        self.first, self.last = 1, 0
        self._wrongs: list[str] = []

    def run(self) -> Result:
        """Tell it to its end, and judge it."""
        self.database.empty()
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(_NOTHING), cache_logger_on_first_use=False
        )
        with simulated(self.scheduler, self.boundaries, self.database), sharable_jobs():
            self.scheduler.spawn("story", Process("story"), self._tell)
            self.scheduler.run()
        return Result(
            tally=self._tally,
            log=self.scheduler.log,
            names=self.boundaries.names,
            first=self.first,
            last=self.last,
            met=self.boundaries.met,
            outcomes=self.crew.outcomes,
            crashed_in_recovery=self.boundaries.crashed_in_recovery,
            simulated_s=self.scheduler.now_s,
            windows=len(self.windows),
        )

    # For stories

    def wait_until(self, after_s: float) -> None:
        """Wait until so many seconds after the beginning."""
        self.scheduler.wait(after_s - self.scheduler.now_s, None)

    def write(self, identity: str, item: object, lag_s: float = 0.5) -> None:
        """Put a record into the table, or remove it; the index follows after `lag_s`."""
        self.world.table.write(identity, item, self.scheduler.now_s, lag_s)  # type: ignore[arg-type]

    def begin_faults(self) -> None:
        """From here on things may go wrong."""
        self.first = len(self.boundaries.names) + 1

    def consume(self) -> None:
        """Let consumers work both queues until the end."""
        for name in QUEUES[:2]:
            self.crew.keep_running(f"consumer of {name}", lambda name=name: self.crew.consume(name))  # type: ignore[misc]

    # The end of every story

    def _tell(self) -> None:
        self.story(self)
        self.last = len(self.boundaries.names)
        self.boundaries.stop_faults()
        self.crew.odd = False
        self.scheduler.wait(200.0, None)
        self._tidy_up()
        self._tally = self._judge()
        if self.looks_again:
            self._look_again()
        self._tally.wrongs += self._wrongs

    def _look_again(self) -> None:
        before = snapshot(self.world, self.database)
        self._reconcile()
        after = snapshot(self.world, self.database)
        changed = [name for name in before if before[name] != after[name]]
        if changed:
            self._tally.wrongs.append(f"one more reconcile changed {changed}")

    def _tidy_up(self) -> None:
        """What the schedule does once nothing goes wrong any more: dispatch, work, reconcile; once more if need be."""
        self.crew.run("dispatch", self.crew.dispatch_due)
        self.crew.run("redo", self.crew.apply_all)
        if not self.crew.stop.is_set():
            self.consume()
        self._drain(_DRAIN_ROUNDS_FEW)  # not to the end: a job may wait for what only a reconcile mends
        for _ in range(2):
            before = self._progress()
            self._reconcile()
            left = self._drain(_DRAIN_ROUNDS_MAX)
            if self._progress() == before:  # then one look was enough, and the next one must change nothing
                break
        if left:
            self._wrongs.append(f"the queues never ran empty: {left}")
        self.crew.stop.set()
        self.scheduler.wait(70.0, None)

    def _progress(self) -> tuple[int, int]:
        """Count what was sent, and what was worked."""
        ((worked,),) = self.database.ask("SELECT count(*) FROM receipts WHERE state = 'completed'")
        return sum(len(queue.taken) for queue in self.world.queues.values()), worked

    def _drain(self, rounds_max: int) -> dict[str, int]:
        """Let the queues run empty, and the jobs come to their end; returns how many of what is left after so long."""
        left: dict[str, int] = {}
        for _ in range(rounds_max):
            left = {name: len(queue.waiting) for name, queue in self.world.queues.items() if queue.waiting}
            ((unended,),) = self.database.ask("SELECT count(*) FROM jobs WHERE status IN ('pending', 'processing')")
            if not left and not unended:
                return {}
            self.scheduler.wait(30.0, None)
        return {**left, "jobs that have not ended": unended}

    def _reconcile(self) -> None:
        windows = [WINDOWS[hour - 14] for hour in self.windows]
        graces = {"reconcile.grace": "0s", "reconcile.orphan_grace": "0s"}
        self.crew.run("reconcile", lambda: self.crew.reconcile(windows, **graces))

    def _judge(self) -> Tally:
        self.database.set_time(self.scheduler.now.isoformat())
        base_s = int((BEGIN - EPOCH).total_seconds()) // _HOUR_S * _HOUR_S
        windows = [base_s + (hour - BEGIN.hour) * _HOUR_S for hour in self.windows]
        return Oracle(self.world, self.database, self.crew, windows).judge()
