"""`serve` and `worker` as processes: asked for over HTTP, done by another process, also when that one is killed."""

import http.client
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from ledger import runs
from ledger.instants import parse_window
from ledger.store import connect_arguments
from tests.aws_servers import World
from tests.fault.pg_wire import AFTER, Fault, PgProxy
from tests.fault.windows import check_window, drained, fill, jobs
from tests.job_kit import make_queues
from tests.product import COMMAND, Product, Running, until
from tests.rig import WINDOW, Rig


@pytest.fixture(autouse=True)
def queues(product: Product, world: World) -> None:
    product.settings |= make_queues(world) | {"dispatch.lease": "1s"}


@contextmanager
def serving(product: Product, *arguments: str, **settings: str) -> Iterator[tuple[Running, int]]:
    """Start a server on a port of its own choice; it is ready then."""
    with product.start("serve", "--port", "0", "--json", *arguments, command=COMMAND, **settings) as running:
        assert isinstance(running.process, subprocess.Popen)
        assert running.process.stdout is not None
        line = running.process.stdout.readline()
        assert line, running.done()
        yield running, int(json.loads(line)["url"].rpartition(":")[2])


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, headers | ({"Content-Type": "application/json"} if raw else {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def end(running: Running, number: int = signal.SIGTERM) -> Any:
    running.signal(number)
    return running.done()


def test_killed_in_the_middle_another_worker_completes_it_once(product: Product, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    follow_up = {"kind": "reconcile", "params": {"window": WINDOW}}
    with serving(product) as (server, port):
        body = {"kind": "dispatch", "params": {"window": WINDOW}, "follow_up": follow_up}
        status, accepted = ask(port, "POST", "/api/v1/jobs", body)
        assert (status, accepted["status"]) == (202, "pending")
        with closing(blocked(rig)) as lock:
            worker = product.start("worker", "--queue", "fast", dispatch__page_size="1")
            until(lambda: rig.value("SELECT count(*) FROM runs WHERE outcome IS NULL"), "it works on the window")
            worker.kill()
            lock.rollback()
        second = product.start("worker", "--json", reconcile__grace="0s")
        place = f"/api/v1/jobs/{accepted['job_id']}"
        job = until(lambda: done(port, place), "the job is completed")
        assert job["attempts"] == 2
        until(lambda: ended(port) == ["completed", "completed"], "the reconcile that follows it, too")
        ended_worker = end(second).ended(143)
        assert ended_worker.document["jobs"]["completed"] == 2
        end(server, signal.SIGINT).ended(130)
    check_window(rig, WINDOW, "staged", drained(world), world.objects("reward-dispatch/reward/"))
    assert len(jobs("staged")) == rig.value("SELECT count(*) FROM entries")


def done(port: int, place: str) -> Any:
    _, job = ask(port, "GET", place)
    assert job["status"] in {"pending", "processing", "completed"}, job
    return job if job["status"] == "completed" else None


def ended(port: int) -> list[str]:
    return [one["status"] for one in ask(port, "GET", "/api/v1/jobs")[1]["jobs"]]


def blocked(rig: Rig) -> Any:
    """Keep everybody else from claiming records, until the transaction ends."""
    connection = psycopg.connect(**connect_arguments(rig.url))
    connection.execute("LOCK TABLE claims IN ACCESS EXCLUSIVE MODE")
    return connection


def test_a_worker_that_is_asked_to_end_gives_its_job_back(product: Product, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    with serving(product) as (server, port):
        _, accepted = ask(port, "POST", "/api/v1/jobs", {"kind": "dispatch", "params": {"window": WINDOW}})
        worker = product.start("worker", "--json", "--queue", "fast", dispatch__page_size="1")
        with closing(blocked(rig)) as lock:
            until(lambda: rig.value("SELECT count(*) FROM runs WHERE outcome IS NULL"), "it works on the window")
            worker.signal(signal.SIGTERM)
            lock.rollback()
        assert worker.done().ended(143).document["jobs"]["returned"] == 1
        _, job = ask(port, "GET", f"/api/v1/jobs/{accepted['job_id']}")
        assert (job["status"], job["attempts"]) == ("pending", 0)
        end(server).ended(143)


def test_the_server_is_killed_before_it_answers_and_the_window_is_busy_then(
    product: Product, world: World, rig: Rig, ledger_url: str
) -> None:
    fill(world, WINDOW)
    asked: Any = ("POST", "/api/v1/jobs", {"kind": "dispatch", "params": {"window": WINDOW}})
    with PgProxy(ledger_url) as wire, serving(product, ledger__database_url=wire.url) as (first, port):
        wire.fault = Fault(b"INSERT INTO jobs", AFTER, act=first.kill, cut=False)
        with pytest.raises(ConnectionError):
            ask(port, *asked, **{"Idempotency-Key": "once"})
    with serving(product) as (server, port):
        status, accepted = ask(port, *asked, **{"Idempotency-Key": "once"})
        assert (status, rig.value("SELECT count(*) FROM jobs")) == (202, 1), "what was written down is not doubled"
        rig.tell("UPDATE jobs SET relay_at = ledger_now()")
        with rig.dispatcher() as dispatcher:
            runs.start_run(dispatcher.store, dispatcher.request(parse_window(WINDOW), "manual"))
        worker = product.start("worker", "--json", "--queue", "fast")
        gone_back = "SELECT started_at IS NOT NULL AND status = 'pending' FROM jobs"
        until(lambda: rig.value(gone_back), "a worker met the busy window, and gave the job back")
        place = f"/api/v1/jobs/{accepted['job_id']}"
        assert ask(port, "GET", place)[1]["attempts"] in {0, 1}, "one while it tries again"
        rig.expire_leases("reward")
        assert until(lambda: done(port, place), "the job is completed")["attempts"] == 1
        assert end(worker).ended(143).document["jobs"]["returned"] >= 1
        end(server).ended(143)
    check_window(rig, WINDOW, "staged", drained(world), world.objects("reward-dispatch/reward/"))
