"""One thing to try: a scenario broken at one boundary, or a story drawn from a seed; and what makes it fail."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from tests.fault.sim.boundaries import FAULTS, Fault
from tests.fault.sim.database import Database
from tests.fault.sim.history import History, Result
from tests.fault.sim.scenarios import SCENARIOS
from tests.fault.sim.stories import history_of, plot_of

Plan = Mapping[int, Fault]


def plan_text(plan: Plan) -> str:
    """Write a plan as it is given on the command line: `31:crash_after,-4:error_before`; see `Boundaries`."""
    return ",".join(f"{at}:{fault}" for at, fault in sorted(plan.items()))


def parse_plan(text: str) -> dict[int, Fault]:
    """Read a plan.

    Raises:
        ValueError: naming what is no fault.
    """
    plan: dict[int, Fault] = {}
    for part in filter(None, text.split(",")):
        at, _, name = part.partition(":")
        if not at.removeprefix("-").isdecimal() or name not in FAULTS:
            raise ValueError(f"{part!r} is no fault; write such as 31:crash_after, with one of {', '.join(FAULTS)}")
        plan[int(at)] = name
    return plan


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        scenario: the name of a small story; None for one that is drawn from the seed.
        plan: what goes wrong; None for what the seed says.
    """

    scenario: str | None = None
    seed: int = 0
    plan: Plan | None = None

    def __str__(self) -> str:
        what = f"--scenario {self.scenario}" if self.scenario else f"--seed {self.seed}"
        return what if self.plan is None else f"{what} --faults {plan_text(self.plan) or 'none'}"

    @property
    def faults(self) -> Plan:
        """What goes wrong in it."""
        if self.plan is not None:
            return self.plan
        return {} if self.scenario else plot_of(self.seed).plan

    def history(self, database: Database) -> History:
        """Make the history; it can be told once."""
        if self.scenario is not None:
            flow, story = SCENARIOS[self.scenario]
            # What a fault before an effect leaves, the same fault after the effect before it leaves, too.
            again = not self.faults or any(fault.endswith("after") for fault in self.faults.values())
            return History(database, story, flow=flow, plan=self.faults, looks_again=again)
        return history_of(replace(plot_of(self.seed), plan=dict(self.faults)), database)

    def without(self, at: int) -> Self:
        """Return the same with one fault less."""
        return replace(self, plan={one: fault for one, fault in self.faults.items() if one != at})


@dataclass
class Verdict:
    """What came of a trial.

    Attributes:
        wrongs: what should not be; empty when all is well.
        log: the steps, also of a history that broke off.
    """

    trial: Trial
    wrongs: list[str]
    log: list[str] = field(default_factory=list)
    result: Result | None = None


def attempt(trial: Trial, database: Database) -> Verdict:
    """Tell one history, and judge it; also an error that nobody foresaw is a verdict."""
    history = trial.history(database)
    try:
        result = history.run()
    except Exception as error:  # noqa: BLE001 - whatever the product or the simulation raises is what was found
        return Verdict(trial, [f"{type(error).__name__}: {error}"], history.scheduler.log)
    return Verdict(trial, result.tally.wrongs, result.log, result)


def shrink(trial: Trial, database: Database) -> Trial:
    """Leave out every fault that is not needed for the history to go wrong."""
    smaller = True
    while smaller:
        smaller = False
        for at in sorted(trial.faults, reverse=True):
            fewer = trial.without(at)
            if attempt(fewer, database).wrongs:
                trial, smaller = fewer, True
                break
    return trial


def first_difference(trial: Trial, database: Database) -> str | None:
    """Tell a history twice; returns the first step in which the two differ, None when there is none."""
    one, other = (attempt(trial, database).log for _ in range(2))
    if one == other:
        return None
    at = next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), -1)
    left, right = (log[at] if at < len(log) else "the end" for log in (one, other))
    return f"step {at}: {left!r}, then {right!r}"
