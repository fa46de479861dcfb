"""`up`: everything embedded, found from a second terminal, and gone when it ends, whenever the signal comes."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.settings import env_name
from ledger.store import connect_arguments
from tests.product import COMMAND, Product, Running, until
from tests.scratch import short_folder

BARE: dict[str, str | None] = dict.fromkeys(
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL")
)
REPOSITORY = str(Path(__file__).parents[2])


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the server's user may enter too, when root runs the tests."""
    folder = short_folder("dl-up-")
    yield folder
    for pid in at_work_in(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


@pytest.fixture
def bare(place: Path) -> Iterator[Product]:
    """The command line with nothing configured, in the place."""
    with Product(None, None, place) as product:
        yield product


def at_work_in(place: Path) -> list[int]:
    """List the processes that work in the place, by their working directory and their words."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            traces = [str((process / "cwd").readlink()), (process / "cmdline").read_text(errors="replace")]
        except OSError:
            continue
        if any(str(place) in trace for trace in traces) and process.name != str(os.getpid()):
            found.append(int(process.name))
    return found


def start(product: Product, *arguments: str) -> Running:
    """Start it as a shell does, with the terminal's signals for its whole group."""
    # the name of the repository, so that a place that is no repository finds the product
    environ = BARE | {"PYTHONPATH": REPOSITORY}
    return product.start("up", *arguments, command=("setsid", *COMMAND), environ=environ)


def ctrl_c(running: Running) -> None:
    os.killpg(running.process.pid, signal.SIGINT)


def said(running: Running) -> list[str]:
    """Read what it says before the first job."""
    assert running.process.stdout is not None
    lines = []
    for line in running.process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("Ctrl-C"):
            return lines
    raise AssertionError(lines)


def second_terminal(place: Path, line: str = "env -0") -> str:
    """Run a line in a shell that was pointed at it as it says."""
    file = place / ".dispatch-ledger" / "up.env"
    environ = {name: value for name, value in os.environ.items() if name not in BARE} | {"PYTHONPATH": REPOSITORY}
    done = subprocess.run(
        ["/bin/sh", "-c", f". {file} && {line}"], cwd=place, env=environ, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    return done.stdout


def test_it_dispatches_and_a_second_terminal_sees_it(bare: Product, place: Path) -> None:
    with start(bare) as running:
        lines = said(running)
        assert any("7 seed records" in line for line in lines)
        (window,) = {line.split()[-1] for line in lines if "show window" in line}
        environ = dict(one.split("=", 1) for one in second_terminal(place).split("\0") if one)
        query = (
            "SELECT count(*) FROM windows WHERE completed_at IS NOT NULL "
            "AND start_s = extract(epoch FROM %s::timestamptz)"
        )
        with psycopg.connect(**connect_arguments(environ[env_name("ledger.database_url")]), autocommit=True) as ledger:
            until(lambda: ledger.execute(query, (window,)).fetchone() == (1,), "the hour is dispatched")

        here: dict[str, Any] = {"environ": BARE | {"PYTHONPATH": REPOSITORY}, "ledger__database_url": "embedded"}
        there: dict[str, Any] = {"environ": environ}
        report = bare.run("report", "windows", "--json", **here).ended(0).document
        assert report == bare.run("report", "windows", "--json", **there).ended(0).document
        assert (
            report["windows"][-1] | {"window": window, "state": "dispatched", "confirmed": 3, "records": 4}
            == (report["windows"][-1])
        )
        put = lines[next(at for at, line in enumerate(lines) if "record of your own" in line) + 1]
        second_terminal(place, put)
        sent = bare.run("dispatch", "--window", window, "--json", **there).ended(0)
        sent.books(flow="staged", due=5, claimed=1, already_claimed=4, confirmed=1)

        refused = bare.run("up", **here).ended(4)
        assert "already" in refused.error
        assert "up.env" in refused.error
        ctrl_c(running)
        running.done().ended(130)
    assert at_work_in(place) == []
    assert not (place / ".dispatch-ledger" / "up.env").exists()


def test_a_server_that_is_killed_ends_all_of_it_with_a_word(bare: Product, place: Path) -> None:
    with start(bare) as running:
        said(running)
        pid_file = place / ".dispatch-ledger" / "pg" / "postmaster.pid"
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        done = running.done().ended(1)
    assert done.err.splitlines()[-1].startswith("error: the embedded PostgreSQL has ended; run `dispatch-ledger up`")
    assert "Traceback" not in done.err
    assert at_work_in(place) == []


STEPS = {"initdb": "pg.init-*/base/1/*", "the emulator starts": "aws/server.json"}


@pytest.mark.parametrize("step", STEPS)
def test_ctrl_c_during_the_start(bare: Product, place: Path, step: str) -> None:
    with start(bare, "--json") as running:
        until(lambda: list((place / ".dispatch-ledger").glob(STEPS[step])), step)
        ctrl_c(running)
        done = running.done().ended(130)
    assert done.document["jobs"] == []
    assert at_work_in(place) == []


@pytest.mark.parametrize("step", ["initdb", "all of it runs"])
def test_a_second_signal_leaves_nothing_and_the_next_time_works(bare: Product, place: Path, step: str) -> None:
    with start(bare) as running:
        if step in STEPS:
            until(lambda: list((place / ".dispatch-ledger").glob(STEPS[step])), step)
        else:
            said(running)
        ctrl_c(running)
        ended = False
        while not ended:  # the second may come before the first was looked at, and merge with it
            ctrl_c(running)
            try:
                ended = running.process.wait(0.05) == 130
            except subprocess.TimeoutExpired:
                continue
        assert ended
    assert at_work_in(place) == []
    if step != "all of it runs":
        return
    with start(bare) as again:
        assert any("7 seed records" in line for line in said(again)), "what the emulator had not written is there anew"
        again.signal(signal.SIGTERM)
        again.done().ended(143)
    assert at_work_in(place) == []
