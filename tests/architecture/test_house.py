"""The house rules that no linter knows: one statement a file, small functions, commands with examples, doors kept."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ops import cli

ROOT = Path(__file__).parents[2]
PACKAGES = ("ledger", "dispatch", "reconcile", "ops")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
STATEMENTS = sorted((ROOT / "ledger" / "sql").glob("*.sql"))
LONGEST_FUNCTION = 60
# A quarter of a second each, or near it; most commands look at the ledger only.
ONLY_WHERE_USED = {
    "alembic", "apscheduler", "boto3", "botocore", "fastapi", "ministack", "obstore", "sqlalchemy", "sqlmodel",
    "uvicorn",
}  # fmt: skip


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.stem)
def test_a_statement_says_first_what_it_guarantees(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("-- ")
    assert len(first) > 30


@pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.stem)
def test_a_statement_is_used(path: Path) -> None:
    assert any(f'"{path.stem}"' in source.read_text() for source in SOURCES)


def test_sql_stands_in_the_ledger_only() -> None:
    statement = re.compile(r"\b(SELECT .* FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM)\b")
    outside = [path for path in SOURCES if "ledger" not in path.parts[len(ROOT.parts)]]
    assert outside
    assert [path.name for path in outside if statement.search(path.read_text())] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_fit_one_screen(path: Path) -> None:
    if "migrations" in path.parts:
        return
    too_long = {
        function.name: function.end_lineno - function.lineno + 1
        for function in functions(path)
        if function.end_lineno and function.end_lineno - function.lineno + 1 > LONGEST_FUNCTION
    }
    assert too_long == {}


def test_every_command_shows_an_example() -> None:
    groups = [cli.app, *(group.typer_instance for group in cli.app.registered_groups)]
    commands = [command for group in groups if group for command in group.registered_commands]
    assert len(commands) >= 8
    assert [command.callback for command in commands if not (command.epilog or "").startswith("Example: ")] == []


def test_nothing_in_the_product_waits_or_reads_the_clock_on_its_own() -> None:
    doors = {"clock.py", "settings.py", "ids.py"}
    forbidden = re.compile(r"\btime\.(sleep|time)\(|datetime\.now\(|os\.environ|os\.getenv|\brandom\.")
    assert [path.name for path in SOURCES if path.name not in doors and forbidden.search(path.read_text())] == []


def test_the_command_line_begins_without_what_only_some_commands_need() -> None:
    script = "import json, sys, ops.cli; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, cwd=ROOT)
    imported = set(json.loads(done.stdout))
    assert "psycopg" in imported
    assert imported & ONLY_WHERE_USED == set()


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest takes them for one module, and collects only the first."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []
