"""Tells histories in which things go wrong, and says what came of them: `python -m tests.fault.sim --help`."""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.fault.sim.database import Database
from tests.fault.sim.runner import Shows, Sum, boundary_trials, run_all, seed_trials
from tests.fault.sim.scenarios import SCENARIOS
from tests.fault.sim.server import TEMPLATE, simulated_postgres
from tests.fault.sim.trial import Trial, attempt, parse_plan, shrink
from tests.quick_postgres import named, tell

SEEDS = 3000
_TITLES = {
    "histories": "histories",
    "windows": "windows of an hour",
    "boundaries": "boundaries passed",
    "occurrences": "record occurrences due in the end",
    "effects": "effects",
    "recovered": "jobs that took more than one try",
    "sent_twice": "messages beyond the first of a job",
    "crashed_in_recovery": "histories with a crash during recovery",
    "told twice": "histories told twice, with equal logs",
    "lost": "lost",
    "unexpected": "unexpected",
    "worked_twice": "worked twice",
}


class _Line(Shows):
    def __init__(self, console: Console) -> None:
        self._console, self._told = console, 0

    def __call__(self, so_far: Sum) -> None:
        """Say once in a while how far it has come."""
        if so_far.numbers["histories"] >= self._told + 500:
            self._told = so_far.numbers["histories"]
            self._console.print(f"{self._told} histories, {len(so_far.failures)} went wrong")


def table_of(done: Sum) -> Table:
    """Show what it came to."""
    table = Table("what", "number", title="The simulation", show_lines=False)
    table.columns[1].justify = "right"
    for name, title in _TITLES.items():
        table.add_row(title, f"{done.numbers[name]:,}")
    table.add_row("hours simulated", f"{done.simulated_s / 3600:,.0f}")
    for fault, number in sorted(done.faults.items()):
        table.add_row(f"fault: {fault.replace('_', ' ')}", f"{number:,}")
    return table


def document_of(done: Sum) -> dict[str, object]:
    """Return the figures for programs."""
    return {
        **{name: done.numbers[name] for name in _TITLES},
        "simulated_hours": round(done.simulated_s / 3600),
        "faults": dict(sorted(done.faults.items())),
        "failures": done.failures,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many stories to draw (default %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default %(default)s)")
    parser.add_argument("--minutes", type=float, help="draw stories for so long instead of a number of them")
    parser.add_argument("--no-boundaries", action="store_true", help="leave out the scenarios broken at every boundary")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at once (default: cores)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    one = parser.add_argument_group("one history")
    one.add_argument("--seed", type=int, help="tell only the story of this seed, and show its steps")
    one.add_argument("--scenario", choices=sorted(SCENARIOS), help="tell only this scenario, and show its steps")
    one.add_argument("--faults", help="what goes wrong instead, such as 31:crash_after,40:error_before, or none")
    one.add_argument("--shrink", action="store_true", help="leave out every fault that is not needed for it to fail")
    return parser.parse_args()


def _one(options: argparse.Namespace, url: str, console: Console) -> int:
    plan = None if options.faults is None else parse_plan("" if options.faults == "none" else options.faults)
    database = Database(named(url, TEMPLATE))
    try:
        trial = Trial(options.scenario, options.seed or 0, plan)
        if options.shrink:
            trial = shrink(trial, database)
        verdict = attempt(trial, database)
    finally:
        database.close()
    for line in verdict.log:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    for wrong in verdict.wrongs:
        console.print(f"wrong: {wrong}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"{trial}: {'went wrong' if verdict.wrongs else 'all is well'}", soft_wrap=True, markup=False)
    return bool(verdict.wrongs)


def _many(options: argparse.Namespace, url: str, console: Console) -> int:
    done, show = Sum(), _Line(console)
    if not options.no_boundaries:
        tell(url, f"CREATE DATABASE counted TEMPLATE {TEMPLATE}")
        counted = Database(named(url, "counted"))
        trials = list(boundary_trials(counted))
        counted.close()
        done.add(run_all(url, trials, options.processes, None, show))
        console.print(f"{len(SCENARIOS)} scenarios, broken at every boundary: {len(trials)} histories")
    seeds = seed_trials(options.first, None if options.minutes is not None else options.seeds)
    if not done.broken_off:
        done.add(run_all(url, seeds, options.processes, options.minutes, show))
    console.print(table_of(done))
    if done.broken_off:
        console.print("Broken off; these are the figures until then.")
    for failure in done.failures:
        console.print(failure, soft_wrap=True, markup=False, highlight=False)
    if options.json:
        options.json.write_text(json.dumps(document_of(done), indent=2) + "\n")
    return 130 if done.broken_off and not done.failures else bool(done.failures)


def main() -> int:
    """Run what was asked for; 1 when any history went wrong."""
    options, console = _options(), Console(highlight=False)
    for number in (signal.SIGINT, signal.SIGTERM):  # either ends the server that it has started
        signal.signal(number, signal.default_int_handler)
    with simulated_postgres() as url:
        if options.seed is not None or options.scenario:
            return _one(options, url, console)
        return _many(options, url, console)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets must not make two histories of one seed differ
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.fault.sim", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
