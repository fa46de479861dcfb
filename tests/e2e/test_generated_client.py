"""The API as others use it: a client with types generated from its description, and a consumer that knows only HTTP."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import foreign_consumer
from tests.api_kit import tokens_setting
from tests.aws_servers import World, booking
from tests.described import BASE, Client
from tests.fault.windows import fill
from tests.job_kit import make_queues
from tests.product import COMMAND, Product
from tests.rig import WINDOW, Rig

RECEIPT = f"{BASE}/receipts/{{idempotency_key}}"
JOB = f"{BASE}/jobs/{{job_id}}"
TO = "2026-09-17T16:00:00Z"


@pytest.fixture
def client(product: Product, world: World, tmp_path: Path) -> Iterator[Client]:
    """A client of a server in a process of its own, with a worker in another."""
    product.settings |= make_queues(world) | {"reconcile.grace": "0s", "api.tokens": tokens_setting()}
    product.start("worker")
    with product.start("serve", "--port", "0", "--json", command=COMMAND) as running:
        assert isinstance(running.process, subprocess.Popen)
        assert running.process.stdout is not None
        url = json.loads(running.process.stdout.readline())["url"]
        with Client(url, tmp_path, "a") as client:
            yield client


def test_a_generated_client_and_a_foreign_consumer(client: Client, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    world.put(booking("bad", "2026-09-17T15:30:00Z", shop=None))  # type: ignore[arg-type]
    dispatched = dispatch(client)
    assert (dispatched.outcome.value, dispatched.due, dispatched.set_aside) == ("completed", 10, 1)
    look_around(client, rig)
    problems(client)
    redo(client, consume(client, world))
    superseded(client, rig)
    everything_was_seen(client)


def dispatch(client: Client) -> Any:
    """Ask for a dispatch, twice under one key, and follow it to its end."""
    types = client.types
    request = types.DispatchRequest(kind="dispatch", params=types.DispatchParams(window=WINDOW))
    key = {"Idempotency-Key": "hour-15"}
    accepted = client.ask("POST", f"{BASE}/jobs", request, headers=key)
    assert client.ask("POST", f"{BASE}/jobs", request, headers=key).job_id == accepted.job_id
    job = followed(client, accepted.job_id)
    assert job.kind.value == "dispatch"
    place = f"{BASE}/jobs/{accepted.job_id}/events"
    assert client.http.get(place, headers={"Last-Event-ID": "completed"}).status_code == 204
    client.seen["GET", f"{JOB}/events", 204] += 1
    return job.result


def followed(client: Client, job_id: Any) -> Any:
    """Follow a job by its events; the last one is what the job is now."""
    events = [(name, client.read_as("Job", data)) for name, data in client.follow(f"{JOB}/events", job_id=job_id)]
    assert all(name == job.status.value for name, job in events)
    assert events[-1][0] == "completed", events[-1]
    assert client.ask("GET", JOB, job_id=job_id) == events[-1][1]
    return events[-1][1]


def look_around(client: Client, rig: Rig) -> None:
    """Read everything that can be read, and let a job be cancelled and a finding be acknowledged."""
    report = client.ask("GET", f"{BASE}/windows", params={"from": WINDOW, "to": TO})
    assert [(one.state.value, one.entries, one.open_findings) for one in report.windows] == [("dispatched", 5, 1)]
    story = client.ask("GET", f"{BASE}/windows/{{start}}", start=WINDOW)
    assert story.totals.confirmed == len(story.entries) == 5
    assert client.ask("GET", f"{BASE}/windows/{{start}}", start="2026-09-17T14:00:00Z").state.value == "not_dispatched"
    entry = client.ask("GET", f"{BASE}/entries/{{entry_id}}", entry_id=story.entries[0].entry_id)
    assert entry.sends[0].outcome.value == "accepted"
    assert len(entry.occurrences) == entry.records
    for name, reason in (("a1", "dispatched"), ("x1", "not_due"), ("nobody", "gone")):
        record = client.ask("GET", f"{BASE}/records/{{record_id}}", record_id=f"{WINDOW[:13]}-{name}")
        assert record.reason.value == reason
    (finding,) = client.ask("GET", f"{BASE}/findings").findings
    assert (finding.kind.value, finding.cause) == ("bad_record", "missing_attribute")
    note = client.types.Acknowledgement(reason="a test record")
    noted = client.ask("POST", f"{BASE}/findings/{{finding_id}}/ack", note, finding_id=finding.id)
    assert (noted.acknowledged_by, noted.state.value) == ("a", "acknowledged")
    report_request = client.types.ReportRequest(kind="report")
    job_id = client.ask("POST", f"{BASE}/jobs", report_request).job_id
    assert followed(client, job_id).result.object.key.endswith(f"{job_id}.json")
    assert client.ask("DELETE", JOB, job_id=job_id).status.value == "completed", "it had ended"
    page = client.ask("GET", f"{BASE}/jobs", params={"limit": 1})
    assert page.jobs[0].job_id == job_id
    assert client.ask("GET", f"{BASE}/jobs", params={"before": page.next, "limit": 1}).next is None
    for path in ("/healthz", "/readyz"):
        client.ask("GET", path)


def problems(client: Client) -> None:
    """What is refused is a problem of the generated type, and says where it is."""
    nobody = "01a22a00-0000-7000-8000-000000000000"
    assert client.ask("GET", JOB, job_id=nobody).detail.startswith(f"no job {nobody}")
    wrong = client.ask("GET", f"{BASE}/findings", params={"limit": 0})
    assert (wrong.status, wrong.errors[0].where) == (422, "query.limit")
    types = client.types
    another = types.ReconcileRequest(kind="reconcile", params=types.ReconcileParams(window=WINDOW))
    assert client.ask("POST", f"{BASE}/jobs", another, headers={"Idempotency-Key": "hour-15"}).status == 422
    for token, status in (("nobody's", 401), ("v", 403)):
        refused = client.ask("POST", f"{BASE}/jobs", another, headers={"Authorization": f"Bearer {token}"})
        assert (refused.status, type(refused)) == (status, types.Problem)


def consume(client: Client, world: World) -> int:
    """Let the consumer work two jobs, and read what it was answered; gives how many records it has worked."""
    told = {
        "api": f"{client.http.base_url}".rstrip("/") + BASE,
        "token": "o",
        "endpoint": world.endpoint,
        "queue": world.queue_url("reward-point"),
    }
    script = str(foreign_consumer.__file__)
    done = subprocess.run([sys.executable, "-I", script, json.dumps(told)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    worked = 0
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for one in answers:
        answer = client.read(one["method"], RECEIPT, one["status"], one["type"], one["body"])
        if one["status"] == 409:
            assert isinstance(answer, client.types.Problem)
            assert (answer.expires_at is None) == (one["method"] != "POST"), "who waits is told until when"
            assert (one["retry_after"] is None) == (one["method"] != "POST")
        elif isinstance(answer, client.types.DoNotWork):
            worked += answer.root.result["points"]
    assert len([one for one in answers if one["status"] == 201]) == 3
    return worked


def redo(client: Client, worked: int) -> None:
    """Plan what was not worked, and apply it."""
    wanted = client.types.PlanParams(window=WINDOW, reason="wrong amounts, ticket 4711", by="ann")
    plans = f"{BASE}/redo/plans"
    plan = followed(client, client.ask("POST", plans, wanted).job_id).result
    assert (plan.jobs, plan.already_worked, plan.state.value) == (3, worked, "planned")
    assert client.ask("GET", f"{plans}/{{plan_id}}", plan_id=plan.plan_id) == plan
    applied = followed(client, client.ask("POST", f"{plans}/{{plan_id}}/apply", plan_id=plan.plan_id).job_id).result
    assert isinstance(applied, client.types.Applied)
    assert (applied.state.value, applied.run.confirmed, applied.reconcile.open) == ("applied", 3, worked)
    assert {one.kind.value for one in applied.reconcile.windows[0].findings if one.state.value == "open"} == {
        "stale_source_status"
    }
    assert client.ask("GET", f"{plans}/{{plan_id}}", plan_id=plan.plan_id).state.value == "applied"
    story = client.ask("GET", f"{BASE}/windows/{{start}}", start=WINDOW)
    assert [one.state.value for one in story.plans] == ["applied"]


def superseded(client: Client, rig: Rig) -> None:
    """A message of a job that the redo has replaced is not worked any more."""
    (key,) = rig.rows("SELECT encode(idempotency_key, 'hex') FROM receipts WHERE state = 'superseded' LIMIT 1")[0]
    answer = client.ask("POST", RECEIPT, client.types.Take(worker="late"), idempotency_key=key)
    assert isinstance(answer.root, client.types.ReplacedByRedo)


def everything_was_seen(client: Client) -> None:
    """Check that every successful answer that is described was read above; metrics are for Prometheus."""
    described = {
        (method.upper(), path, int(status))
        for path, methods in client.document["paths"].items()
        for method, operation in methods.items()
        for status in operation["responses"]
        if status.startswith("2") and path != "/metrics"
    }
    assert described - set(client.seen) == set()
    assert {status for _, _, status in client.seen} >= {401, 403, 404, 409, 422}
