"""The wires of one actor of a soak, and what befalls the process at their end."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from tests.fault.pg_wire import AFTER, BEFORE, Fault, PgProxy
from tests.product import Running
from tests.soak.plan import LEASE_S, Trouble
from tests.wire import Action, Answer, Closing, FaultProxy, Forward, Request, Rule, anything, on

_STARTED_WITHIN_S = 20.0
ENDS_WITHIN_S = 90.0


@dataclass
class Notes:
    """What has been seen on all wires; written by their threads.

    Attributes:
        did: how often what was done.
        accepted: of each idempotency key, how many sends the queue has accepted.
        messages: the messages that were ever received: the queue's own id, and the body.
    """

    did: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, times: int = 1) -> None:
        with self.lock:
            self.did[what] += times

    def see(self, request: Request, answer: Answer) -> None:
        """Note what an answer of the queue tells."""
        operation = request.operation.rpartition(".")[2]
        if answer.status != 200 or operation not in {"SendMessageBatch", "ReceiveMessage"}:
            return
        told = json.loads(answer.body)
        with self.lock:
            if operation == "SendMessageBatch":
                bodies = {one["Id"]: json.loads(one["MessageBody"]) for one in request.json()["Entries"]}
                self.accepted.update(bodies[one["Id"]]["idempotency_key"] for one in told.get("Successful", []))
            for one in told.get("Messages") or [] if operation == "ReceiveMessage" else []:
                self.messages[one["MessageId"]] = json.loads(one["Body"])


class WatchedProxy(FaultProxy):
    """A wire to AWS that notes what the queues answer, whether or not the product gets to hear it."""

    def __init__(self, upstream: str, notes: Notes) -> None:
        super().__init__(upstream)
        self.notes = notes

    def decide(self, request: Request) -> Action:
        action = super().decide(request)
        return lambda request, forward, closing: action(request, partial(self._watch, request, forward), closing)

    def _watch(self, request: Request, forward: Forward) -> Answer:
        answer = forward()
        self.notes.see(request, answer)
        return answer


@dataclass
class Victim:
    """A process that something may befall."""

    notes: Notes
    trouble: Trouble
    running: Running | None = None
    started: threading.Event = field(default_factory=threading.Event)
    awake: threading.Event = field(default_factory=threading.Event)
    slept_s: float | None = None

    def begin(self, running: Running) -> None:
        self.running = running
        self.started.set()

    def _process(self) -> Running:
        assert self.started.wait(_STARTED_WITHIN_S), "the process is known a moment after its start"
        assert self.running is not None
        return self.running

    def kill(self, *_: object) -> None:
        self._process().kill()

    def pause(self, *_: object) -> None:
        self._process().signal(signal.SIGSTOP)
        self.slept_s = time.monotonic()

    def terminate(self, *_: object) -> None:
        self._process().signal(signal.SIGTERM)

    @property
    def asleep(self) -> bool:
        return self.slept_s is not None and not self.awake.is_set()

    def wake_after(self, lasts_s: float) -> None:
        """Let a paused one go on when it has been for so long."""
        if self.slept_s is None or self.awake.is_set():
            return
        slept_s = time.monotonic() - self.slept_s
        if slept_s >= lasts_s:
            if self._process().running:
                self._process().signal(signal.SIGCONT)
                self.notes.count("pauses beyond the lease", int(slept_s > LEASE_S))
            self.awake.set()


class Faults(Fault):
    """Faults at several commits, one after another: from a number on, or from the first ones of what they do."""

    def __init__(self, trouble: Trouble, count: int, **more: Any) -> None:
        super().__init__(trouble.at if isinstance(trouble.at, int) else trouble.at.encode(), **more)
        self.skip, self.left = trouble.skip if isinstance(trouble.at, str) else 0, count

    def is_at(self, commits: list[bytes]) -> bool:
        if isinstance(self.at, bytes) and self.at in commits[-1] and self.skip > 0:
            self.skip -= 1
            return False
        begins = len(commits) == self.at if isinstance(self.at, int) else self.at in commits[-1]
        if self.left and (begins or self.reached.is_set()):
            self.left -= 1
            return True
        return False


class Hand:
    """Runs processes of the product, one after another, each over these wires and with its own trouble."""

    def __init__(self, endpoint: str, ledger_url: str, notes: Notes) -> None:
        self.notes = notes
        self.aws = WatchedProxy(endpoint, notes)
        self.database = PgProxy(ledger_url)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.aws)
        self._stack.enter_context(self.database)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, start: Callable[[], Running], trouble: Trouble, over: threading.Event, stays_s: float) -> Victim:
        """Start a process and let its trouble come; returns when it has ended.

        Args:
            over: when set, no more trouble comes, and nobody stays.
            stays_s: after so long a process that has not ended is killed or told to end.
        """
        victim = Victim(self.notes, trouble)
        lost = self.database.lost
        self._arm(victim)
        victim.begin(start())
        try:
            self._attend(victim, over, stays_s)
        finally:
            self.disarm()
            victim.wake_after(0)
            self.notes.count("lost commit answers", self.database.lost - lost)
        return victim

    def disarm(self) -> None:
        self.aws.rules, self.database.fault = [], None

    def _attend(self, victim: Victim, over: threading.Event, stays_s: float) -> None:
        trouble, running = victim.trouble, victim._process()
        act = {"kill": victim.kill, "pause": victim.pause, "terminate": victim.terminate}.get(trouble.what)
        began_s = time.monotonic()
        begun = trouble.where != "time" or act is None
        left = False
        while running.running:
            now_s = time.monotonic() - began_s
            if now_s > ENDS_WITHIN_S:
                raise AssertionError(_say_stuck(running))
            if not begun and now_s >= trouble.start_s and act is not None and not over.is_set():
                begun = True
                act()
            if over.is_set():
                self.disarm()
            victim.wake_after(LEASE_S * 1.05 if over.is_set() else trouble.lasts_s)
            if not left and not victim.asleep and (now_s > stays_s or over.is_set()) and stays_s < ENDS_WITHIN_S:
                left = True
                (victim.terminate if trouble.after else victim.kill)()
            threading.Event().wait(0.01)

    def _arm(self, victim: Victim) -> None:
        trouble = victim.trouble
        self.aws.rules, self.database.fault = [], None
        self.database.commits.clear()
        by_name = isinstance(trouble.at, str)
        rule = partial(
            Rule,
            on(trouble.at) if isinstance(trouble.at, str) else anything,
            skip=trouble.skip if by_name else int(trouble.at) - 1,
        )
        match trouble.what, trouble.where:
            case "lose commits", _:
                self.database.fault = Faults(trouble, trouble.count, when=AFTER)
            case "drop answers", _:
                self.aws.rules = [rule(self._drop, times=trouble.count)]
            case ("nothing", _) | (_, "time"):
                pass
            case what, "call":
                self.aws.rules = [rule(_at_call(victim, what), times=1)]
            case "kill", "commit":
                self.database.fault = Faults(trouble, 1, when=AFTER if trouble.after else BEFORE, act=victim.kill)
            case what, "commit":
                act = victim.pause if what == "pause" else victim.terminate
                self.database.fault = Faults(trouble, 1, act=act, cut=False)

    def _drop(self, request: Request, forward: Forward, closing: Closing) -> Answer | None:
        forward()
        self.notes.count("dropped AWS answers")
        return None


def _say_stuck(running: Running) -> str:
    """Say what a process does that does not end."""
    running.signal(signal.SIGUSR1)  # a consumer of the soak then writes where its threads are; others end
    threading.Event().wait(1)
    running.kill()
    _, told = running.process.communicate()
    return f"a process still ran after {ENDS_WITHIN_S} s: {running.process.args}\n{told[-6000:]}"


def _at_call(victim: Victim, what: str) -> Action:
    """Act at a call: before it takes effect or after; of a pause, the call may also come as late as the process."""
    act = {"kill": victim.kill, "pause": victim.pause, "terminate": victim.terminate}[what]
    trouble = victim.trouble

    def action(request: Request, forward: Forward, closing: Closing) -> Answer | None:
        if trouble.after:
            answer = forward()
            act()
            return answer
        act()
        if what == "kill":
            return None
        if trouble.late:
            victim.awake.wait(ENDS_WITHIN_S if what == "pause" else 0)
        return forward()

    return action
