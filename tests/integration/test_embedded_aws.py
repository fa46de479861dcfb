"""The life of the embedded AWS: started by the first, shared, stopped by the last, and what it keeps."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatch.aws import embedded
from dispatch.aws.embedded import embedded_aws
from ledger.errors import UnavailableError
from tests.aws_servers import World, booking, client, ministack_server

CLIENT = """
import sys
from pathlib import Path
from dispatch.aws.embedded import embedded_aws
with embedded_aws(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""

Join = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """Start client processes; each prints the URL and leaves when its stdin is closed."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CLIENT, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    yield
    left = [int(cwd.parent.name) for cwd in Path("/proc").glob("[0-9]*/cwd") if str(tmp_path) in link_of(cwd)]
    for pid in left:  # none, unless a test has failed
        os.kill(pid, signal.SIGKILL)
    assert not left


def link_of(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def url_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def leave(process: "subprocess.Popen[str]") -> int:
    process.communicate(timeout=30)
    return process.returncode


def server(state_dir: Path) -> embedded._Server | None:
    return embedded._recorded(state_dir / "aws")


def running(state_dir: Path) -> embedded._Server:
    found = server(state_dir)
    assert found is not None
    assert embedded._runs(found)
    assert embedded._answers(found)
    return found


def fill(url: str) -> World:
    world = World(url, "")
    world.put(booking("R0", "2026-09-17T15:30:00.5Z", amount=7))
    world.s3.put_object(Bucket=world.bucket, Key="a/b", Body=b"x", Metadata={"sha256": "y"})
    world.sqs.send_message(QueueUrl=world.queue_url("reward-point"), MessageBody='{"n": 1}')
    return world


def queue_depth(url: str) -> int:
    sqs = client("sqs", url)
    queue = sqs.create_queue(QueueName="reward-point")["QueueUrl"]  # idempotent: the queue is there
    names = ["ApproximateNumberOfMessages"]
    return int(sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"][names[0]])


@contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        holder.listen()
        yield


@pytest.mark.parametrize("port_taken", [False, True])
def test_keeps_items_objects_and_messages_from_one_start_to_the_next(tmp_path: Path, *, port_taken: bool) -> None:
    with embedded_aws(tmp_path) as first:
        fill(first)
    stopped = server(tmp_path)
    assert stopped is not None
    with taken(stopped.port if port_taken else 0), embedded_aws(tmp_path) as second:
        assert (second != first) is port_taken
        item = client("dynamodb", second).get_item(TableName="PromotionRewardBooking", Key={"Id": {"S": "R0"}})["Item"]
        assert item == booking("R0", "2026-09-17T15:30:00.5Z", amount=7)
        stored = client("s3", second).get_object(Bucket="bookings", Key="a/b")
        assert (stored["Body"].read(), stored["Metadata"]) == (b"x", {"sha256": "y"})
        assert queue_depth(second) == 1


def test_others_attach_and_only_the_last_one_out_stops_it(tmp_path: Path, join: Join) -> None:
    starter = join()
    url = url_of(starter)
    started = running(tmp_path)
    with embedded_aws(tmp_path) as attached, embedded_aws(tmp_path) as again:
        assert attached == again == url
        assert leave(starter) == 0
        assert running(tmp_path) == started
    assert not embedded._runs(started)


def test_the_starter_need_not_be_the_one_that_stops_it(tmp_path: Path, join: Join) -> None:
    with embedded_aws(tmp_path) as url:
        other = join()
        assert url_of(other) == url
    started = running(tmp_path)
    assert leave(other) == 0
    assert not embedded._runs(started)


def test_many_at_once_start_one(tmp_path: Path, join: Join) -> None:
    clients = [join() for _ in range(4)]
    assert len({url_of(each) for each in clients}) == 1
    started = running(tmp_path)
    assert [leave(each) for each in clients] == [0] * 4
    assert not embedded._runs(started)


def test_a_killed_starter_leaves_a_server_to_attach_to(tmp_path: Path, join: Join) -> None:
    starter = join()
    url = url_of(starter)
    started = running(tmp_path)
    starter.kill()
    starter.wait(10)
    with embedded_aws(tmp_path) as attached:
        assert attached == url
        assert running(tmp_path) == started
    assert not embedded._runs(started)


def test_a_killed_server_is_replaced_with_what_the_last_stop_wrote(tmp_path: Path) -> None:
    with embedded_aws(tmp_path) as first:
        fill(first)
    with embedded_aws(tmp_path) as second:
        client("s3", second).put_object(Bucket="bookings", Key="late", Body=b"written at once")
        killed = running(tmp_path)
        os.kill(killed.pid, signal.SIGKILL)
        assert embedded._within(5, lambda: not embedded._runs(killed))
        with embedded_aws(tmp_path) as third:
            assert third == second  # whoever still has the old URL can go on
            assert running(tmp_path).pid != killed.pid
            assert client("dynamodb", third).scan(TableName="PromotionRewardBooking")["Count"] == 1
            assert queue_depth(third) == 1
            assert client("s3", third).list_objects_v2(Bucket="bookings")["KeyCount"] == 2


def test_a_mute_server_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded_aws(tmp_path):
        mute = running(tmp_path)
        os.kill(mute.pid, signal.SIGSTOP)
        with monkeypatch.context() as bounds:
            for name in ("_READY_WITHIN_S", "_STOP_WITHIN_S", "_HEALTH_TIMEOUT_S"):
                bounds.setattr(embedded, name, 0.2)
            assert embedded._attach(tmp_path / "aws") is None
        assert not embedded._runs(mute)
        with embedded_aws(tmp_path):
            assert running(tmp_path).pid != mute.pid


def test_a_stranger_with_the_recorded_pid_and_port_is_left_alone(tmp_path: Path) -> None:
    with ministack_server() as stranger:  # same program, same health endpoint, another start
        home = tmp_path / "aws"
        home.mkdir()
        port = int(stranger.rpartition(":")[2])
        bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            embedded._record(home, embedded._Server(bystander.pid, port, "dispatch-ledger-aws-0123456789abcdef"))
            with embedded_aws(tmp_path) as url:
                assert url != stranger
            assert bystander.poll() is None
        finally:
            bystander.communicate(b"\n")
        assert client("dynamodb", stranger).list_tables()["TableNames"] == []


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b'{"pid": 1}', b'{"pid": 0, "port": 4566, "token": ""}'])
def test_a_broken_record_is_no_record(tmp_path: Path, record: bytes) -> None:
    home = tmp_path / "aws"
    home.mkdir()
    (home / "server.json").write_bytes(record)
    assert embedded._attach(home) is None


def test_a_failed_start_names_the_log_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(embedded, "_options", lambda port: ["--no-such-option"])
        with pytest.raises(UnavailableError, match=r"ministack\.log"), embedded_aws(tmp_path):
            pass
    assert "--no-such-option" in (tmp_path / "aws" / "ministack.log").read_text()
    with embedded_aws(tmp_path):
        running(tmp_path)


def test_an_error_inside_the_block_stops_it_too(tmp_path: Path) -> None:
    def use() -> None:
        with embedded_aws(tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    stopped = server(tmp_path)
    assert stopped is not None
    assert not embedded._runs(stopped)


def test_a_busy_start_lock_is_waited_for_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LOCK_WITHIN_S", 0.05)
    (tmp_path / "aws").mkdir()
    with (
        embedded._start_lock(tmp_path / "aws"),
        pytest.raises(UnavailableError, match=r"start\.lock"),
        embedded_aws(tmp_path),
    ):
        pass
