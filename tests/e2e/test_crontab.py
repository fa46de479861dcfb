"""The lines of deploy/crontab.example as cron runs them: in an environment that is almost empty."""

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ledger.settings import env_name
from tests.aws_servers import World, booking
from tests.fault.windows import drained, fill, hours_ago
from tests.product import Product
from tests.rig import FLOWS

EXAMPLE = Path(__file__).parents[2] / "deploy" / "crontab.example"
PLACE = "/srv/dispatch-ledger"
LINES = [
    match[1]
    for line in EXAMPLE.read_text().splitlines()
    if (match := re.fullmatch(r"(?:[*/0-9]+ +){5} *(cd .*)", line))
]
URL = env_name("ledger.database_url")


def as_cron(line: str, place: Path) -> int:
    """Run a line as cron does; gives its exit code."""
    bare = {"HOME": str(place), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    command = line.replace(PLACE, shlex.quote(str(place)))
    return subprocess.run(["/bin/sh", "-c", command], env=bare, check=False, timeout=90).returncode


def write_environment(place: Path, variables: Mapping[str, str]) -> None:
    """Write the file that the lines read."""
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    (place / "environment").write_text(text)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder that the lines go to, with the product installed."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.fixture
def installation(world: World) -> dict[str, str]:
    """All that the environment says, but for the ledger."""
    return world.environment() | {env_name(key): value for key, value in FLOWS["staged"].items()}


def test_the_example_dispatches_and_reconciles_into_the_ledger_that_it_is_told_of(
    place: Path, world: World, installation: dict[str, str], ledger_url: str, product: Product
) -> None:
    window = hours_ago(1)
    fill(world, window)
    plain = ledger_url.replace("postgresql+psycopg://", "postgresql://")
    owed = {env_name("schedule.not_before"): window}
    write_environment(place, installation | owed | {URL: plain})
    assert [as_cron(line, place) for line in LINES] == [0, 0, 0]
    assert product.run("report", "windows", "--json").document["totals"]["records"] == 10
    assert len(drained(world)) > 0
    assert not (place / ".dispatch-ledger").exists()


def test_a_ledger_that_only_one_shell_knows_is_no_reason_for_a_second_one(
    place: Path, world: World, installation: dict[str, str], product: Product
) -> None:
    """The URL was exported where `db upgrade` and `doctor` were tried; cron has the rest, and not the URL."""
    world.put(booking("r1", hours_ago(1)))
    write_environment(place, installation)
    (place / "dispatch-ledger.toml").write_text("[dispatch]\npagination_enabled = true\n")
    assert [as_cron(line, place) for line in LINES] == [2, 2, 2]
    errors = (place / "errors.log").read_text().splitlines()
    assert len(errors) == len(LINES)
    assert all(line.startswith("error: ledger.database_url is not set; ") for line in errors)
    assert not (place / ".dispatch-ledger").exists()
    assert world.objects() == {}
    assert drained(world) == []
    assert product.run("report", "windows", "--json").document["totals"]["records"] == 0


def test_without_the_file_that_a_line_reads_nothing_runs(place: Path) -> None:
    assert all(as_cron(line, place) != 0 for line in LINES)
    assert {one.name for one in place.iterdir()} == {".venv"}
