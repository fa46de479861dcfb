"""`python -m bench`: measure, show, and keep the figures."""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console

from bench import chart, plan, report, runner

HERE = Path(__file__).parent
_QUICK_RECORDS = (10_000,)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a first look in two minutes")
    parser.add_argument("--only", nargs="+", default=[], choices=plan.NAMES, metavar="NAME", help=", ".join(plan.NAMES))
    parser.add_argument("--latency", nargs="+", type=float, default=[0, 20], metavar="MS", help="added to each call")
    parser.add_argument("--records", nargs="+", type=int, help="sizes of the windows (10000 100000 1000000)")
    parser.add_argument("--repeat", type=int, help="rounds (3); what takes long is done once all the same")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "latest.json", metavar="PATH")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmark.md and docs/benchmark.svg")
    return parser.parse_args()


def main() -> None:
    """Run the benchmark."""
    options = _options()
    console = _console()
    about, began_s = report.machine(), time.monotonic()
    records = options.records or (_QUICK_RECORDS if options.quick else (10_000, 100_000, 1_000_000))
    if float(about["load before"]) > 0.5:
        console.print(
            f"[yellow]the machine is not idle (load {about['load before']}): figures will be worse, ratios shaky[/]"
        )
    cases = plan.cases(plan.sizes(records, quick=options.quick), options.latency, options.only)
    rounds = options.repeat or (1 if options.quick else 3)
    measured = runner.run(cases, rounds, console.print)
    rows = report.Rows(measured)
    report.print_tables(rows, console)
    _keep(options.json, {"machine": about, "rows": rows.all, "targets": [vars(one) for one in report.targets(rows)]})
    if options.write_docs:
        docs = HERE.parent / "docs"
        (docs / "benchmark.md").write_text(report.page(rows, about), encoding="utf-8")
        (docs / "benchmark.svg").write_text(chart.draw(rows), encoding="utf-8")
    console.print(f"{time.monotonic() - began_s:.0f} s; figures in {options.json}")


def _console() -> Console:
    """Return a console wide enough for the tables; a narrow terminal breaks its lines by itself."""
    return Console(highlight=False, width=max(140, Console().width))


def _keep(path: Path, document: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
