"""Stories at random: from one number follow the records, what happens to them, who runs when, and what goes wrong."""

import random
from dataclasses import dataclass
from typing import Any

from ledger.plans import Scope
from tests.fault.sim import records
from tests.fault.sim.boundaries import FAULTS, Fault
from tests.fault.sim.history import QUEUES, WINDOWS, History

# Seconds after 15:50: the hours end at -3000 and 600.
_FIRST_S, _MIDDLE_S, _LAST_S = -6600.0, -3000.0, 600.0
_BOUNDARIES = (180, 420)
_RECOVERY = 40
_LOOKS_AGAIN_EVERY = 3
# From this seed on, every history has an early crash, and one of a process that cleans up after it.
RECOVERY_SEEDS = 1_000_000
_EDGES = (_MIDDLE_S, _LAST_S, _MIDDLE_S - 0.0001, _MIDDLE_S + 0.0001)
# When the schedule's dispatch comes, a little after each hour's end; the first is long over by then.
_DISPATCHES_S = {14: 180.0, 15: 661.0}


@dataclass(frozen=True)
class Plot:
    """All that follows from a seed, before anything happens."""

    seed: int
    flow: str
    plan: dict[int, Fault]
    settings: dict[str, str]
    hours: list[int]


def plot_of(seed: int) -> Plot:
    """Draw the flow, the settings, the hours and what goes wrong; some histories know no fault but an odd world."""
    chance = random.Random(f"plot {seed}")
    flow = chance.choice(["staged", "staged", "paged", "full"])
    settings = {"dispatch.page_size": str(chance.choice([1, 2, 3, 5, 50]))}
    hours = chance.choice([[15], [15], [14, 15]])
    settings["schedule.not_before"] = f"2026-09-17T{hours[0]}:00:00Z"
    plan: dict[int, Fault] = {}
    for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4, 6])):
        at, fault = chance.randint(1, _BOUNDARIES[len(hours) - 1]), chance.choice(FAULTS)
        plan[at] = fault
        if fault.startswith("crash"):  # and once more, while somebody cleans up
            plan[-chance.randint(1, _RECOVERY)] = chance.choice(["crash_before", "crash_after"])
    if seed >= RECOVERY_SEEDS:
        plan[chance.randint(1, 90)] = chance.choice(["crash_before", "crash_after"])
        plan[-chance.randint(1, 12)] = chance.choice(["crash_before", "crash_after"])
    return Plot(seed, flow, plan, settings, hours)


def history_of(plot: Plot, database: Any) -> History:
    """Make the history that a plot describes."""
    again = plot.seed % _LOOKS_AGAIN_EVERY == 0  # a reconcile takes a fifth of a history's time
    history = History(
        database, tell, seed=plot.seed, flow=plot.flow, plan=plot.plan, settings=plot.settings, looks_again=again
    )
    history.windows = plot.hours
    return history


class _Source:
    """Books, moves, edits and cancels, as shops and members do."""

    def __init__(self, history: History, chance: random.Random) -> None:
        self.history, self.chance = history, chance
        self.ids: list[str] = []

    def _time(self, *, anywhere: bool = False) -> str:
        chance = self.chance
        if chance.random() < 0.2:
            after_s = chance.choice(_EDGES)
        else:
            first_s = _FIRST_S if 14 in self.history.windows else _MIDDLE_S
            after_s = chance.uniform(first_s - 60 * anywhere, _LAST_S + 60 * anywhere)
        return records.spelled(round(after_s, chance.choice([0, 0, 3, 6])), chance.randrange(5))

    def _lag_s(self) -> float:
        return self.chance.choice([0.0, 0.2, 0.5, 0.5, 1.0, 5.0, 40.0, 150.0])

    def _updated(self) -> dict[str, Any]:
        return (
            {"UpdatedAt": {"S": records.spelled(self.history.scheduler.now_s, 0)}} if self.chance.random() < 0.7 else {}
        )

    def book(self) -> None:
        """Add a record; few cannot be used."""
        chance = self.chance
        identity = f"R{len(self.ids):02}"
        self.ids.append(identity)
        group = chance.choice([1, 1, 1, 2, 2, 3, 4])
        item = records.make(identity, self._time(anywhere=True), group, "ECoupon" if group == 2 else "Point")
        item |= self._updated()
        if chance.random() < 0.06:
            item |= chance.choice(
                [{"MemberId": {"NULL": True}}, {"RewardType": {"S": "Voucher"}}, {"ShopId": {"S": ""}}]
            )
        if chance.random() < 0.06:
            item |= {"RewardStatus": {"S": "Cancelled"}}
        if chance.random() < 0.2:
            item |= {"OrderTime": chance.choice([{"N": "17"}, {"S": "soon"}, {"S": records.spelled(-9000.0)}])}
        self.history.write(identity, item, self._lag_s())

    def change(self) -> None:
        """Let something happen to a record."""
        chance = self.chance
        identity = chance.choice(self.ids)
        item = self.history.world.table.read(identity, self.history.scheduler.now_s)
        if item is None:
            return
        match chance.choice(["move", "move", "edit", "cancel", "wait", "mend", "remove"]):
            case "move":
                at = self._time()
                item = {**item, "BookingDateUTC": {"S": at[:10]}, "BookingTimeUTC": {"S": at}}
            case "edit":
                item = {**item, "Amount": {"N": str(chance.randint(1, 99))}}
            case "cancel":
                item = {**item, "RewardStatus": {"S": "Cancelled"}}
            case "wait":
                item = {**item, "RewardStatus": {"S": records.DUE}}
            case "mend":
                item = {**item, "MemberId": {"N": "1"}, "RewardType": {"S": "Point"}, "ShopId": {"N": "101"}}
            case "remove":
                self.history.write(identity, None, self._lag_s())
                return
        self.history.write(identity, {**item, **self._updated()}, self._lag_s())

    def run(self) -> None:
        """Do a few things, at any moment."""
        for _ in range(self.chance.randint(0, 9)):
            self.history.scheduler.wait(self.chance.expovariate(1 / 150), None)
            (self.book if self.chance.random() < 0.3 else self.change)()


def tell(history: History) -> None:
    """One hour or two fall due; the schedule runs, is killed and runs again, while the source goes on changing."""
    chance = random.Random(f"story {history.seed}")
    crew, scheduler = history.crew, history.scheduler
    crew.odd = chance.random() < 0.7
    source = _Source(history, chance)
    for _ in range(chance.randint(1, 14)):
        source.book()
    history.wait_until(chance.choice([1.0, 30.0, 160.0]))
    changing = crew.start("source", source.run)
    if chance.random() < 0.6:
        history.consume()
    by_jobs = chance.random() < 0.2
    if by_jobs:
        crew.keep_running("worker", lambda: crew.work("fast"))
        crew.keep_running("slow worker", lambda: crew.work("slow"))
        crew.keep_running("relay", crew.relay)
    for hour in history.windows:
        history.wait_until(_DISPATCHES_S[hour])
        _dispatch(history, chance, by_jobs=by_jobs)
        if chance.random() < 0.7:
            scheduler.wait(chance.choice([1.0, 70.0, 130.0]), None)
            _reconcile(history, chance, by_jobs=by_jobs)
        if chance.random() < 0.25:
            scheduler.wait(chance.choice([5.0, 90.0]), None)
            scope = Scope(include_worked=chance.random() < 0.3, include_not_due=chance.random() < 0.2)
            window = WINDOWS[chance.choice(history.windows[: history.windows.index(hour) + 1]) - 14]
            crew.run("redo", lambda scope=scope, window=window: crew.redo(window, scope))  # type: ignore[misc]
    crew.join(changing)
    if by_jobs:
        _await_jobs(history)


def _dispatch(history: History, chance: random.Random, *, by_jobs: bool) -> None:
    crew = history.crew
    if by_jobs:
        follow = {"kind": "reconcile", "params": {"lookback": "2h"}} if chance.random() < 0.5 else None
        crew.run(
            "post", lambda: crew.post("dispatch", {"due": True}, **({"follow_up": follow} if follow else {})), again=1
        )
    crowd = [crew.start("dispatch", crew.dispatch_due) for _ in range(chance.choice([1, 1, 1, 2, 3]) - by_jobs)]
    if chance.random() < 0.2:
        crowd.append(crew.start("reconcile", crew.reconcile))
    killed = [crew.join(one) for one in crowd]
    for _ in range(chance.choice([0, 1, 2])):
        if any(killed):
            history.scheduler.wait(chance.choice([1.0, 20.0, 65.0]), None)
            killed = [crew.join(crew.start("dispatch", crew.dispatch_due))]


def _reconcile(history: History, chance: random.Random, *, by_jobs: bool) -> None:
    crew = history.crew
    if by_jobs and chance.random() < 0.5:
        crew.run("post", lambda: crew.post("reconcile", {"lookback": "2h"}), again=1)
        return
    crew.run("reconcile", crew.reconcile, again=chance.choice([0, 1]))


def _await_jobs(history: History) -> None:
    """Wait until the jobs have ended, for a while; what is left ends with the story."""
    for _ in range(20):
        if not any(history.world.queues[name].waiting for name in QUEUES[2:]):
            return
        history.scheduler.wait(30.0, None)
