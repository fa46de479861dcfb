"""One thread at a time, on a clock that only moves when the scheduler says so: the same seed gives the same history.

Each actor is a thread. It runs until its next boundary (a call to AWS, a transaction, a wait) and there hands the turn
to whichever actor the seed chooses. When none can run, the clock jumps to the next moment at which one can.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

BEGIN = datetime(2026, 9, 17, 15, 50, tzinfo=UTC)
STEPS_MAX = 20_000
_HANG_S = 60.0


class CrashError(BaseException):
    """The process that this happens in is gone; nothing may catch it."""


class StuckError(AssertionError):
    """The history does not come to an end."""


@dataclass
class Process:
    """What dies, or stands still, as one.

    Attributes:
        paused_until_s: it stands still until then, as after SIGSTOP.
        recovering: whether it was started after another one had been killed.
    """

    name: str
    dead: bool = False
    paused_until_s: float = 0.0
    recovering: bool = False
    at_death: list[Callable[[], None]] = field(default_factory=list)

    def kill(self) -> None:
        """Let it be gone: what it held open is closed, as the kernel would."""
        self.dead = True
        for close in self.at_death:
            close()
        self.at_death.clear()


class Actor:
    """One thread of one process.

    Attributes:
        wake: an event that ends its wait early.
        keeps_turn: whether it must not be interrupted: it holds locks in the database.
    """

    def __init__(self, scheduler: "Scheduler", name: str, process: Process, body: Callable[[], Any]) -> None:
        self.name, self.process = name, process
        self.until_s: float | None = None
        self.wake: threading.Event | None = None
        self.awaits: Actor | None = None
        self.over = False
        self.keeps_turn = False
        self.error: BaseException | None = None
        self._scheduler, self._body = scheduler, body
        self._turn = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def ready_at_s(self, now_s: float) -> float:
        """When it can go on; infinity when only somebody else can say."""
        process, wake, awaits = self.process, self.wake, self.awaits
        if process.dead:
            return now_s
        ready_s = self.until_s
        if (wake is not None and wake.is_set()) or (awaits is not None and awaits.over):
            ready_s = now_s
        elif ready_s is None:
            ready_s = now_s if awaits is None else float("inf")
        return max(process.paused_until_s, ready_s)

    def take_turn(self) -> None:
        """Go on; only for whoever has the turn."""
        if not self._thread.is_alive() and not self.over:
            self._thread.start()
        self._turn.release()

    def await_turn(self) -> None:
        """Stand still until it is this actor's turn."""
        if not self._turn.acquire(timeout=_HANG_S):
            raise StuckError(f"{self.name} never got its turn")

    def _run(self) -> None:
        self.await_turn()
        LOCAL.actor = self
        try:
            if not self.process.dead:
                self._body()
        except CrashError:
            pass
        except BaseException as error:  # noqa: BLE001 - the scheduler raises it where the history is told
            self.error = error
        self.over = True
        self._scheduler.pass_turn(self)


class _Local(threading.local):
    actor: Actor | None = None


LOCAL = _Local()


class Scheduler:
    """Decides who runs and what time it is.

    Attributes:
        log: every step, in order; two histories of one seed are the same when their logs are.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.steps = 0
        self.log: list[str] = []
        self._actors: list[Actor] = []
        self._ended = threading.Event()
        self._trouble: BaseException | None = None

    @property
    def now(self) -> datetime:
        """The time in this world."""
        return BEGIN + timedelta(seconds=self.now_s)

    @property
    def actor(self) -> Actor:
        """The one that has the turn."""
        assert LOCAL.actor is not None, "only actors live in this world"
        return LOCAL.actor

    def spawn(self, name: str, process: Process, body: Callable[[], Any]) -> Actor:
        """Add an actor; it begins when it gets the turn."""
        actor = Actor(self, name, process, body)
        self._actors.append(actor)
        return actor

    def note(self, what: str) -> None:
        """Write a line into the history."""
        self.log.append(f"{self.now_s:.3f} {self.actor.name} {what}")

    def run(self) -> None:
        """Let all actors run until none is left."""
        first = self._choose()
        if first is not None:
            first.take_turn()
            if not self._ended.wait(_HANG_S * 10):
                raise StuckError("the simulation hangs")
        if self._trouble is not None:
            raise self._trouble

    def pause(self, seconds: float = 0.0) -> None:
        """Let time pass, and others run; a boundary inside a transaction only lets time pass."""
        actor = self.actor
        if actor.keeps_turn:
            self.now_s += seconds
        else:
            actor.until_s = self.now_s + seconds
            self._yield(actor)
        self.check_alive()

    def wait(self, seconds: float, wake: threading.Event | None) -> bool:
        """Wait in this world's time; returns whether it was woken."""
        actor = self.actor
        self.check_alive()
        if actor.keeps_turn:
            self.now_s += seconds
        else:
            actor.until_s, actor.wake = self.now_s + max(0.0, seconds), wake
            self._yield(actor)
            actor.wake = None
        self.check_alive()
        return wake is not None and wake.is_set()

    def join(self, other: Actor, seconds: float | None = None) -> None:
        """Wait for another actor to end."""
        actor = self.actor
        if actor.process.dead:
            return
        actor.until_s = None if seconds is None else self.now_s + seconds
        actor.awaits = other
        self._yield(actor)
        actor.awaits = None
        self.check_alive()

    def check_alive(self) -> None:
        """End the actor whose process is gone."""
        if self.actor.process.dead:
            raise CrashError

    def pass_turn(self, actor: Actor) -> None:
        """Hand the turn on for good."""
        self._actors.remove(actor)
        if actor.error is not None:
            self._trouble = self._trouble or actor.error
            self._ended.set()
            return
        following = self._choose()
        if following is None:
            self._ended.set()
        else:
            following.take_turn()

    def _yield(self, actor: Actor) -> None:
        following = self._choose()
        assert following is not None, "at least this one is there"
        if following is not actor:
            following.take_turn()
            actor.await_turn()
        actor.until_s = None

    def _choose(self) -> Actor | None:
        """Choose among those that can run now; when none can, let the time of the first one come."""
        if not self._actors or self._trouble is not None:
            return None
        self.steps += 1
        if self.steps > STEPS_MAX:
            self._trouble = StuckError(f"no end after {STEPS_MAX} steps: {[one.name for one in self._actors]}")
            return None
        first_s, can = float("inf"), []
        for one in self._actors:
            ready_s = one.ready_at_s(self.now_s)
            if ready_s <= self.now_s:
                can.append(one)
            elif ready_s < first_s:
                first_s = ready_s
        if not can:
            if first_s == float("inf"):
                self._trouble = StuckError(f"all wait for each other: {[one.name for one in self._actors]}")
                return None
            self.now_s = first_s
            can = [one for one in self._actors if one.ready_at_s(first_s) <= first_s]
        return can[0] if len(can) == 1 else self.random.choice(can)


class SimThread:
    """Stands in for `threading.Thread` where the product starts one: an actor of the same process."""

    def __init__(self, scheduler: Scheduler, target: Callable[..., Any], name: str, args: tuple[Any, ...] = ()) -> None:
        self._scheduler = scheduler
        self._name, self._body = name, lambda: target(*args)
        self._actor: Actor | None = None

    def start(self) -> None:
        """Begin, at some moment from now on."""
        me = self._scheduler.actor
        self._actor = self._scheduler.spawn(f"{me.name}/{self._name}", me.process, self._body)

    def is_alive(self) -> bool:
        """Say whether it is still running."""
        return self._actor is not None and not self._actor.over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._actor is not None and not self._actor.over:
            self._scheduler.join(self._actor, timeout)
