"""What is measured: the list of cases, from the options of the command line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.records import Shape

FLOWS = ("staged", "paged", "full")
NAMES = (
    *FLOWS,
    "staged-blind",
    "straight-window",
    "straight-paged",
    "verify-staged",
    "verify-paged",
    "one-group",
    "again-staged",
    "again-paged",
    "reconcile",
    "read",
    "procrastinate",
    "pgqueuer",
    "copy",
    "put",
    "decode",
    "growth",
)


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        subject: the module of `bench` that does it, and `variant` the way it does it.
        rounds: how often at the most; what takes long is done once.
        again: whether the window is dispatched a second time, and that is what counts.
        existing: how many claims there are before (growth only).
    """

    name: str
    subject: str
    variant: str
    shape: Shape
    latency_ms: float = 0.0
    verify_due: bool = False
    rounds: int = 99
    again: bool = False
    existing: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, int, float]:
        return self.name, self.shape.records, self.latency_ms


@dataclass(frozen=True)
class Sizes:
    """How many records each kind of case gets. The yardstick is slow, so it gets few: its rate does not depend on them.

    Attributes:
        product: windows for the product, smallest first.
        slowed: the same with latency.
        product_full: the largest window that is read into memory as a whole.
        straight, straight_once, straight_slowed: windows for the yardstick: each round, once, and with latency.
        side: windows for everything else.
    """

    product: tuple[int, ...]
    slowed: tuple[int, ...]
    product_full: int
    straight: int
    straight_once: int
    straight_slowed: int
    side: int
    existing: tuple[int, int]


def sizes(records: Sequence[int], *, quick: bool) -> Sizes:
    """Return the sizes for these windows."""
    ordered = tuple(sorted(records))
    if quick:
        least = ordered[0]
        return Sizes(ordered, (least,), least, min(least, 2000), 0, min(least, 500), least, (10_000, 200_000))
    middle = [one for one in ordered if one <= 100_000] or [ordered[0]]
    return Sizes(
        product=ordered,
        slowed=tuple(middle),
        product_full=middle[-1],
        straight=min(ordered[0], 10_000),
        straight_once=middle[-1] if len(middle) > 1 else 0,
        straight_slowed=min(ordered[0], 2000),
        side=middle[-1],
        existing=(100_000, 10_000_000),
    )


def cases(wanted: Sizes, latencies: Sequence[float], only: Sequence[str]) -> list[Case]:
    """List the cases in the order of a round, sides alternating."""
    found: list[Case] = []
    if 0 in latencies:
        found += [*_without_latency(wanted), *_sides(wanted)]
    for latency in latencies:
        if latency:
            found += [replace(case, latency_ms=latency) for case in _with_latency(wanted)]
    return [case for case in found if not only or case.name in only]


def _flow(name: str, records: int) -> Case:
    return Case(name, "product", name, Shape(records), rounds=99 if records <= 10_000 else 1)


def _blind(records: int) -> Case:
    return Case("staged-blind", "product", "staged-blind", Shape(records))


def _straight(form: str, records: int, rounds: int = 99) -> Case:
    return Case(f"straight-{form}", "straightforward", form, Shape(records), rounds=rounds)


def _without_latency(wanted: Sizes) -> Iterator[Case]:
    yield _blind(wanted.product[0])
    for number, records in enumerate(wanted.product):
        for flow in FLOWS:
            if flow != "full" or records <= wanted.product_full:
                yield _flow(flow, records)
        if number == 0:
            yield _straight("window", wanted.straight)
            yield _straight("paged", wanted.straight)
    if wanted.straight_once:
        yield _straight("window", wanted.straight_once, rounds=1)


def _with_latency(wanted: Sizes) -> Iterator[Case]:
    yield _blind(wanted.slowed[0])
    for number, records in enumerate(wanted.slowed):
        yield _flow("staged", records)
        yield _flow("paged", records)
        if number == 0:
            yield _straight("window", wanted.straight_slowed, rounds=1)
            yield _straight("paged", wanted.straight_slowed, rounds=1)
            yield Case("put", "floors", "put", Shape(records))


def _sides(wanted: Sizes) -> Iterator[Case]:
    few, side = wanted.product[0], wanted.side
    for name in ("procrastinate", "pgqueuer"):
        yield Case(name, "neighbours", name, Shape(few))
    for name in ("copy", "put", "decode"):
        yield Case(name, "floors", name, Shape(side))
    for flow in ("staged", "paged"):
        yield Case(f"verify-{flow}", "product", flow, Shape(side), verify_due=True, rounds=1)
        yield Case(f"again-{flow}", "product", flow, Shape(side), again=True, rounds=1)
    for records in (side, wanted.product[-1]) if side != wanted.product[-1] else (side,):
        yield Case("reconcile", "product", "reconcile", Shape(records), rounds=1 if records > side else 99)
        yield Case("read", "product", "read", Shape(records), rounds=1 if records > side else 99)
    yield Case("one-group", "product", "staged", Shape(wanted.product[-1], one_group=True), rounds=1)
    yield Case("growth", "growth", "", Shape(wanted.existing[-1]), existing=wanted.existing, rounds=1)
