"""The planted bugs still fit the product: each can be planted, changes it, and names tests that exist."""

from collections import Counter
from pathlib import Path

import pytest

from tests.fault.planted.bugs import BUGS
from tests.fault.planted.planting import ROOT, Bug, Edit, MovedOnError, plant, planted
from tests.fault.planted.running import read_report

BUGS_LEAST = 45


def test_there_are_enough_of_them_each_with_a_name_of_its_own() -> None:
    assert len(BUGS) >= BUGS_LEAST
    assert [name for name, times in Counter(bug.name for bug in BUGS).items() if times > 1] == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted_and_names_its_catchers(bug: Bug) -> None:
    for file, text in planted(bug).items():
        assert text != (ROOT / file).read_text(encoding="utf-8")
        assert file.split("/")[0] in {"ledger", "dispatch", "reconcile", "ops"}
    assert bug.catchers
    for catcher in bug.catchers:
        file, _, test = catcher.partition("[")[0].partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8") if test else (ROOT / file).is_file(), catcher


@pytest.mark.parametrize(
    "edit",
    [
        Edit("ledger/runs.py", "no such text", ""),
        Edit("ledger/runs.py", "store", "shop"),
        Edit("ledger/runs.py", "def finish_page(", "def finish_page("),
        Edit("ledger/runs.py", "def finish_page(", "def finish_page(("),
    ],
    ids=["is not there", "is there often", "changes nothing", "is no Python"],
)
def test_a_bug_that_does_not_fit_says_so(edit: Edit) -> None:
    with pytest.raises(MovedOnError, match="bug made-up"):
        planted(Bug("made-up", "nothing", [edit], []))


def test_nothing_is_planted_in_the_working_tree(tmp_path: Path) -> None:
    bug = Bug("made-up", "nothing", [Edit("ledger/runs.py", "def finish_page(", "def finish_no_page(")], [])
    with pytest.raises(AssertionError, match="never into the working tree"):
        plant(bug, ROOT)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "runs.py").write_text("def finish_page():\n    pass\n", encoding="utf-8")
    plant(bug, tmp_path)
    assert (tmp_path / "ledger" / "runs.py").read_text(encoding="utf-8").startswith("def finish_no_page(")


@pytest.mark.parametrize(
    ("inside", "failed", "broken"),
    [
        ("", "", ""),
        ("<failure/>", "tests/unit/test_a.py::test_b[1-2]", ""),
        ("<error/>", "", "tests/unit/test_a.py::test_b[1-2]"),
        ("<skipped/>", "", ""),
    ],
)
def test_a_test_that_fails_is_told_from_one_that_cannot_be_run(
    tmp_path: Path, inside: str, failed: str, broken: str
) -> None:
    report = tmp_path / "report.xml"
    case = f'<testcase classname="tests.unit.test_a" name="test_b[1-2]">{inside}</testcase>'
    report.write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>", encoding="utf-8")
    assert read_report(report) == (failed, broken)


def test_without_a_report_nothing_was_run(tmp_path: Path) -> None:
    assert read_report(tmp_path / "none.xml") == ("", "no report")
