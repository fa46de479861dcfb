"""The first reconcile waits for the first dispatch, and for nothing else."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

from dispatch.run import Cancellation
from ledger.settings import Settings
from ops import schedule, wiring

Work = Callable[[Any], str]


class Jobs:
    """Jobs without a ledger, that write down in which order they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.cancellation = Cancellation()
        self.summary = schedule.Summary()
        self.dispatched = threading.Event()

    def job(self, name: str, meanwhile: Callable[[], None] = lambda: None) -> schedule._Job:
        def work(_: Any) -> str:
            meanwhile()
            self.ran.append(name)
            return "done"

        console = Console(quiet=True)
        return schedule._Job(name, work, Settings(), self.cancellation, console, self.summary, self.dispatched)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(wiring, "dispatcher", nothing)
    return Jobs()


@pytest.mark.parametrize("fails", [False, True])
def test_reconcile_follows_the_first_dispatch_even_one_that_fails(jobs: Jobs, *, fails: bool) -> None:
    reconcile = threading.Thread(target=jobs.job("reconcile"))

    def meanwhile() -> None:
        reconcile.start()
        reconcile.join(0.3)  # it would have run by now, if it did not wait
        jobs.ran.append("dispatching")
        if fails:
            raise ValueError("no")

    jobs.job("dispatch", meanwhile)()
    reconcile.join(10)
    assert jobs.ran == ["dispatching", *([] if fails else ["dispatch"]), "reconcile"]
    jobs.job("reconcile")()
    assert jobs.summary.ran == {"dispatch": 1, "reconcile": 2}
    assert jobs.summary.failed == ({"dispatch": 1} if fails else {})


def test_one_that_waits_when_the_end_is_asked_for_does_not_run(jobs: Jobs) -> None:
    waiting = threading.Thread(target=jobs.job("reconcile"))
    waiting.start()
    jobs.cancellation.ask(15)
    waiting.join(10)
    assert not waiting.is_alive()
    assert jobs.ran == []
