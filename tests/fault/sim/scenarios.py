"""Six small stories, to be broken at every boundary in every way; each is small enough to be checked by eye."""

from collections.abc import Callable

from ledger.plans import Scope
from tests.fault.sim import records
from tests.fault.sim.history import WINDOWS, History

# The story begins at 15:50; its hour is the one from 14:00.
_HOUR_S = -6600.0


def plant(history: History) -> None:
    """Put a small window into the table: three groups in two queues, and what must be left out."""
    at = [_HOUR_S + one for one in (0.0, 300.0, 1200.25, 2400.0, 2400.0, 3000.0, 3599.9999, 3600.0, 3600.0)]
    for number, after_s in enumerate(at):
        group = (1, 1, 2, 1, 3, 2, 1, 3, 3)[number]
        route = "ECoupon" if group == 2 else "Point"
        history.write(f"R{number}", records.make(f"R{number}", records.spelled(after_s, number % 5), group, route))
    paid = records.make("P", records.spelled(_HOUR_S + 60), status="Rewarded")
    history.write("P", paid)
    broken = records.make("B", records.spelled(_HOUR_S + 90))
    history.write("B", {**broken, "MemberId": {"NULL": True}})
    history.scheduler.wait(5.0, None)
    history.windows = [14]


def dispatched(history: History) -> None:
    """A window is dispatched; who is killed is started again."""
    plant(history)
    history.begin_faults()
    history.crew.run("dispatch", history.crew.dispatch_due, again=4)


def reconciled(history: History) -> None:
    """A window was dispatched, and the world has moved since: late, moved, edited, lost, orphaned, half sent."""
    plant(history)
    crew, world = history.crew, history.world
    history.write("H", records.make("H", records.spelled(_HOUR_S + 500), 4))
    history.boundaries.crash_next = "SendMessageBatch"
    crew.run("dispatch", crew.dispatch_due)
    history.scheduler.wait(70.0, None)
    crew.run("dispatch", crew.dispatch_due)
    history.write("L", records.make("L", records.spelled(_HOUR_S + 700), 1))
    history.write("R3", records.make("R3", records.spelled(_HOUR_S + 100), 1))
    history.write("R1", records.make("R1", records.spelled(_HOUR_S + 300, 1), 1, Amount={"N": "13"}))
    history.write("C", records.make("C", records.spelled(_HOUR_S + 900), 2, "ECoupon", status="Cancelled"))
    lost = next(key for key, stored in sorted(world.objects.items()) if b'"R8"' in stored.body)
    del world.objects[lost]
    world.put(lost.rsplit("/", 1)[0] + f"/{'0' * 64}-0.json", b"{}", {})
    history.scheduler.wait(90.0, None)
    history.begin_faults()
    crew.run("reconcile", lambda: crew.reconcile([WINDOWS[0]]), again=4)


def redone(history: History) -> None:
    """A window was dispatched and partly worked, and a person wants it sent again."""
    plant(history)
    crew = history.crew
    crew.run("dispatch", crew.dispatch_due)
    crew.keep_running("consumer", lambda: crew.consume("reward-point"))
    history.scheduler.wait(90.0, None)
    history.begin_faults()
    crew.run("redo", lambda: crew.redo(WINDOWS[0], Scope()))
    crew.run("redo", crew.apply_all, again=4)


def worked_by_jobs(history: History) -> None:
    """Somebody asks for a dispatch that a reconcile follows; workers do both, and consumers work what was sent."""
    plant(history)
    crew = history.crew
    history.begin_faults()
    crew.keep_running("worker", lambda: crew.work("fast"))
    crew.keep_running("relay", crew.relay)
    crew.keep_running("consumer", lambda: crew.consume("reward-point"))
    follow = {"kind": "reconcile", "params": {"windows": [WINDOWS[0]]}}
    crew.run("post", lambda: crew.post("dispatch", {"window": WINDOWS[0]}, follow_up=follow), again=1)
    history.scheduler.wait(400.0, None)


SCENARIOS: dict[str, tuple[str, Callable[[History], None]]] = {
    "staged": ("staged", dispatched),
    "paged": ("paged", dispatched),
    "full": ("full", dispatched),
    "reconcile": ("staged", reconciled),
    "redo": ("staged", redone),
    "jobs": ("paged", worked_by_jobs),
}
