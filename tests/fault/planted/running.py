"""Runs the catchers of a bug against a copy of the tree in which it is planted."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.fault.planted.planting import ROOT, Bug, plant

Outcome = Literal["caught", "missed", "invalid", "hung"]
Tier = Literal["commit", "all"]

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "build")
# Not the tests of the bugs themselves, which see every bug that is planted, and not those of house style.
_ALL = ("tests/unit", "tests/property", "tests/fault", "tests/integration", "tests/contract", "tests/e2e")
# How long the simulation goes on in tier `all`: every boundary, and as many seeds as `make faults` draws.
_AT_LENGTH = {"FAULTS_EVERY": "1", "FAULTS_SEEDS": "3000"}
_NEVER = "tests/unit/test_planted_bugs.py"
_COMMIT_MAX_S, _ALL_MAX_S, _ENDS_WITHIN_S = 300.0, 3600.0, 20.0
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True)
class Caught:
    """What came of a bug.

    Attributes:
        outcome: `caught` by a test that failed; `missed`; `invalid` when something broke before any test could tell,
            such as an import or a fixture; `hung` when the tests came to no end.
        by: the test that failed, or that could not be run.
        seconds: from the start of the tests.
    """

    name: str
    breaks: str
    outcome: Outcome
    by: str
    seconds: float


@contextmanager
def scratch_tree() -> Iterator[Path]:
    """Copy the working tree; the copy is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder) / "tree"
        shutil.copytree(ROOT, root, ignore=_LEFT_OUT, symlinks=True)
        yield root


def try_bug(bug: Bug, tier: Tier) -> Caught:
    """Plant a bug in a copy, and see which test catches it first."""
    with scratch_tree() as root:
        plant(bug, root)
        seconds = 0.0
        rounds: list[tuple[Sequence[str], float, Mapping[str, str]]] = [(bug.catchers, _COMMIT_MAX_S, {})]
        if tier == "all":
            rounds.append((_ALL, _ALL_MAX_S, _AT_LENGTH))
        for tests, within_s, at_length in rounds:
            outcome, by, took_s = run_tests(root, tests, within_s, at_length)
            seconds += took_s
            if outcome != "missed":
                break
        return Caught(bug.name, bug.breaks, outcome, by, round(seconds, 1))


def run_tests(
    root: Path, tests: Sequence[str], within_s: float, at_length: Mapping[str, str] | None = None
) -> tuple[Outcome, str, float]:
    """Run tests of a tree until the first one fails; says what came of it, by which test, and after how long."""
    report = root / "planted-report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environ |= {"PYTHONPATH": str(root), **(at_length or {})}
    began_s = time.monotonic()
    with (root / "planted-output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--ignore={_NEVER}", *tests],
            cwd=root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return "hung", "", time.monotonic() - began_s
        except BaseException:
            _end(process)
            raise
    took_s = time.monotonic() - began_s
    if code == _PASSED:
        return "missed", "", took_s
    failed, broken = read_report(report)
    if code == _FAILED and failed and not broken:
        return "caught", failed, took_s
    return "invalid", broken or f"pytest ended with {code}", took_s


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run of pytest: first so that it stops its servers, then by force."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_report(report: Path) -> tuple[str, str]:
    """Return, of a report of pytest, which test failed first, and what could not even be run."""
    failed = broken = ""
    if not report.exists():
        return failed, "no report"
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if case.find("error") is not None:
            broken = broken or name
        elif case.find("failure") is not None:
            failed = failed or name
    return failed, broken
