"""What is asked for in a soak of jobs: small stories about a window, each a generator of requests.

A story yields the requests that it makes at the same time, and gets the jobs as they ended. What fails because its
workers were killed is asked for again, as a person would.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Job = dict[str, Any]
Asked = Sequence["Ask"]
Story = Generator[Asked, list[Job], None]
Step = Generator[Asked, list[Job], Job]
_TRIES_MAX = 5
_CANCELLED_WITHIN_S = 4.0


@dataclass(frozen=True)
class Ask:
    """One request for a job.

    Attributes:
        twice: whether it is posted again under the same idempotency key.
        cancel_after_s: when to cancel it, in seconds; None for never.
    """

    path: str
    body: dict[str, Any] | None
    twice: bool = False
    cancel_after_s: float | None = None


def dispatch(window: str, follow_up: dict[str, Any] | None = None, **how: Any) -> Ask:
    body = {"kind": "dispatch", "params": {"window": window}}
    return Ask("/jobs", body | ({} if follow_up is None else {"follow_up": follow_up}), **how)


def reconcile(*windows: str) -> dict[str, Any]:
    return {"kind": "reconcile", "params": {"windows": list(windows)}}


def report(name: str, form: str) -> dict[str, Any]:
    return {"kind": "report", "params": {"report": name, "format": form}}


def completed(ask: Ask) -> Step:
    """Ask until the job completes."""
    for _ in range(_TRIES_MAX):
        (job,) = yield [ask]
        if job["status"] == "completed":
            return job
    message = f"not completed in {_TRIES_MAX} jobs: {ask}"
    raise AssertionError(message)


@dataclass
class Teller:
    """Makes up stories, the same ones for the same seed.

    Attributes:
        generations: how often each window is to be sent in all, once everything has ended.
        quiet: windows that are dispatched and reconciled only, so that anybody may reconcile them at any time.
    """

    windows: list[str]
    dice: random.Random
    generations: dict[str, int] = field(default_factory=dict)
    quiet: list[str] = field(default_factory=list)

    def tell(self, jobs: int) -> Iterator[Story]:
        """Yield stories of about so many jobs in all; each window is in one of them."""
        kinds = {
            self.with_followers: (30, 3),
            self.at_once: (15, 2),
            self.cancelled: (15, 2),
            self.redone: (20, 4),
            self.looked_at: (15, 1),
            self.reported: (10, 1),
            self.owed: (2, 1),
        }
        told = 0
        while told < jobs and self.windows:
            (kind,) = self.dice.choices(list(kinds), [weight for weight, _ in kinds.values()])
            told += kinds[kind][1]
            yield kind()

    def _window(self, *, quiet: bool = True) -> str:
        window = self.windows.pop()
        self.generations[window] = 1
        if quiet:
            self.quiet.append(window)
        return window

    def _again(self) -> bool:
        return self.dice.random() < 0.2

    def with_followers(self) -> Story:
        window = self._window()
        follow_up = reconcile(window) | {"follow_up": report("windows", "csv")}
        yield from completed(dispatch(window, follow_up, twice=self._again()))

    def at_once(self) -> Story:
        """Two jobs meet in one window."""
        window = self._window()
        jobs = yield [dispatch(window), dispatch(window)]
        if "completed" not in {job["status"] for job in jobs}:
            yield from completed(dispatch(window))

    def cancelled(self) -> Story:
        window = self._window()
        yield [dispatch(window, reconcile(window), cancel_after_s=self.dice.uniform(0, _CANCELLED_WITHIN_S))]
        yield from completed(dispatch(window, twice=self._again()))

    def redone(self) -> Story:
        window = self._window(quiet=False)
        yield from completed(dispatch(window))
        plan = {"window": window, "reason": "soak"}
        planned = yield from completed(Ask("/redo/plans", plan, twice=self._again()))
        apply = f"/redo/plans/{planned['result']['plan_id']}/apply"
        self.generations[window] = 2
        if self.dice.random() < 0.5:
            yield [Ask(apply, None, cancel_after_s=self.dice.uniform(0, _CANCELLED_WITHIN_S))]
        first = yield from completed(Ask(apply, None, twice=self._again()))
        again = yield from completed(Ask(apply, None))
        assert first["result"] == again["result"], "a plan is applied once"

    def looked_at(self) -> Story:
        if self.quiet:
            chosen = self.dice.sample(self.quiet, min(len(self.quiet), self.dice.randint(1, 8)))
            yield from completed(Ask("/jobs", reconcile(*chosen), twice=self._again()))

    def reported(self) -> Story:
        name = self.dice.choice(["windows", "duplicates", "missed", "orphans", "findings"])
        yield from completed(Ask("/jobs", report(name, self.dice.choice(["json", "csv", "html"]))))

    def owed(self) -> Story:
        yield from completed(Ask("/jobs", {"kind": "dispatch", "params": {"due": True}}))
