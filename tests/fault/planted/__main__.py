"""Plants every bug, one at a time, in a copy of the tree, and shows which test catches it first.

`python -m tests.fault.planted [--only NAME …] [--by TEST …] [--tier commit|all] [--jobs N]`. Ends with 1 when fewer
than 95 in 100 are caught by the tests that run on every commit, or, in tier `all`, when any is missed.
"""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.fault.planted.bugs import BUGS
from tests.fault.planted.planting import Bug
from tests.fault.planted.running import Caught, Tier, run_tests, scratch_tree, try_bug

_WANTED_SHARE = 0.95
_CONTROL_MAX_S = 1800.0
_KEPT = Path(__file__).parent / "caught.json"
_TELLING = threading.Lock()
CONSOLE = Console(soft_wrap=True, highlight=False)


def main() -> int:
    given = _arguments()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # which a shell's background jobs ignore, and their children
    chosen = [bug if given.by is None else replace(bug, catchers=given.by) for bug in BUGS if _is_wanted(bug, given)]
    CONSOLE.print(f"{len(chosen)} bugs; first the same tests without any")
    if not _passes_without_bugs(chosen):
        return 2
    results: list[Caught] = []

    def one(bug: Bug) -> None:
        result = try_bug(bug, given.tier)
        with _TELLING:
            results.append(result)
            CONSOLE.print(f"{result.outcome:8} {result.seconds:6.1f} s  {result.name}  {result.by}", markup=False)
            if given.json is not None:
                _keep(results, given.tier, given.json)

    with ThreadPoolExecutor(max(1, given.jobs)) as pool:
        try:
            list(pool.map(one, chosen))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            return 130
    _show(sorted(results, key=lambda one: [bug.name for bug in chosen].index(one.name)))
    return 0 if _is_enough(results, given.tier) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.planted", description=__doc__)
    names = [bug.name for bug in BUGS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="only these bugs")
    parser.add_argument("--by", nargs="+", metavar="TEST", help="see what these tests catch by themselves")
    parser.add_argument("--tier", choices=["commit", "all"], default="commit", help="which tests may catch them")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--json", type=Path, help=f"where the table goes (default: {_KEPT.name}, unless --by is given)")
    given = parser.parse_args()
    given.json = given.json or (None if given.by else _KEPT)
    return given


def _is_wanted(bug: Bug, given: argparse.Namespace) -> bool:
    return given.only is None or bug.name in given.only


def _passes_without_bugs(bugs: Sequence[Bug]) -> bool:
    """A test that fails anyway catches nothing."""
    catchers = list(dict.fromkeys(catcher for bug in bugs for catcher in bug.catchers))
    with scratch_tree() as root:
        outcome, by, took_s = run_tests(root, catchers, _CONTROL_MAX_S)
        if outcome == "missed":
            CONSOLE.print(f"they pass ({took_s:.0f} s)")
            return True
        CONSOLE.print(f"{by or outcome} fails without any bug planted; mend that first\n")
        CONSOLE.print((root / "planted-output.txt").read_text(errors="replace")[-4000:], markup=False)
        return False


def _show(results: Sequence[Caught]) -> None:
    table = Table("bug", "promise", "outcome", "caught first by", "s", title="Planted bugs")
    for one in results:
        test = one.by.rpartition("/")[2]
        table.add_row(one.name, one.breaks, one.outcome, test, f"{one.seconds:.0f}")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    caught = sum(one.outcome == "caught" for one in results)
    CONSOLE.print(f"{caught} of {len(results)} caught")


def _keep(results: Sequence[Caught], tier: Tier, path: Path) -> None:
    """Write the table down; what is known of bugs that were not planted this time stays in it."""
    before = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    known = {one["name"]: one for one in before} | {one.name: asdict(one) | {"tier": tier} for one in results}
    told = [known[bug.name] for bug in BUGS if bug.name in known]
    caught = sum(one["outcome"] == "caught" for one in told)
    document = {"bugs": len(told), "caught": caught, "results": told}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _is_enough(results: Sequence[Caught], tier: Tier) -> bool:
    caught = sum(one.outcome == "caught" for one in results)
    return caught == len(results) if tier == "all" else caught >= _WANTED_SHARE * len(results)


if __name__ == "__main__":
    sys.exit(main())
