"""Every call to the outside is a numbered boundary, and at each one something can go wrong."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar, get_args

from tests.fault.sim.scheduler import CrashError, Process, Scheduler

Fault = Literal["crash_before", "crash_after", "error_before", "error_after", "late", "pause"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
EXHAUSTIVE: tuple[Fault, ...] = ("crash_before", "crash_after", "error_before", "error_after")
T = TypeVar("T")

PAUSE_S = 75.0
LOST_S = 5.0
LATE_S = 30.0
_LATENCY_S = 0.02
_NOBODY = Process("the wire")


class Boundaries:
    """Counts the boundaries, and breaks those that the plan names.

    Args:
        plan: which fault at which number, from 1; a negative number counts only the boundaries of processes that were
            started after another one had been killed, so that a crash during recovery can be wished for.

    Attributes:
        names: of all boundaries passed, in order.
        met: the faults that were reached.
        crash_next: a story's own wish: the process that comes to a boundary of this name next dies after its effect.
        crashed_in_recovery: how many crashes hit a process that was cleaning up after another crash.
    """

    def __init__(self, scheduler: Scheduler, plan: Mapping[int, Fault]) -> None:
        self.scheduler, self.plan = scheduler, dict(plan)
        self.names: list[str] = []
        self.met: Counter[Fault] = Counter()
        self.crashed_in_recovery = 0
        self.crash_next: str | None = None
        self._recovering = 0

    def stop_faults(self) -> None:
        """Let nothing go wrong any more."""
        self.plan.clear()

    def arrive(self, name: str) -> Fault | None:
        """Come to a boundary: others may run first; returns what is to go wrong at it."""
        scheduler = self.scheduler
        scheduler.pause(_LATENCY_S)
        self.names.append(name)
        self._recovering += scheduler.actor.process.recovering
        fault = self.plan.get(len(self.names))
        if fault is None and scheduler.actor.process.recovering:
            fault = self.plan.get(-self._recovering)
        self.met.update([fault] if fault else [])
        if self.crash_next == name:
            self.crash_next, fault = None, "crash_after"
        scheduler.note(f"{len(self.names)} {name}{f' {fault}' if fault else ''}")
        if fault == "pause":
            scheduler.actor.process.paused_until_s = scheduler.now_s + PAUSE_S
            scheduler.pause()
        return fault

    def crash(self) -> None:
        """Kill the process that stands at this boundary."""
        process = self.scheduler.actor.process
        self.crashed_in_recovery += process.recovering
        process.kill()
        raise CrashError

    def call(
        self,
        name: str,
        effect: Callable[[], T],
        *,
        refused: Callable[[int], Exception],
        lost: Callable[[], Exception],
        may_be_late: bool = False,
    ) -> T:
        """Call somebody outside.

        Args:
            effect: what the call does there.
            refused: makes the error of a call that did nothing.
            lost: makes the error of a call whose answer was lost.
            may_be_late: whether the effect may come long after the caller has given up.
        """
        fault = self.arrive(name)
        match fault:
            case "crash_before":
                self.crash()
            case "error_before":
                raise refused(len(self.names))
            case "late" if may_be_late:
                self._do_later(effect)
                self.scheduler.pause(LOST_S)
                raise lost()
        done = effect()
        match fault:
            case "crash_after":
                self.crash()
            case "error_after" | "late":
                self.scheduler.pause(LOST_S)
                raise lost()
        return done

    def _do_later(self, effect: Callable[[], object]) -> None:
        def body() -> None:
            self.scheduler.wait(LATE_S, None)
            effect()

        self.scheduler.spawn(f"late {len(self.names)}", _NOBODY, body)
