"""The HTTP API: it checks, writes down, answers; the same documents as the command line; errors that help."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import validate
from starlette.testclient import TestClient
from structlog.testing import capture_logs

import ledger.store
from dispatch.aws.control import ControlQueues
from dispatch.aws.session import Session
from dispatch.run import Cancellation
from ledger import history, jobs, reports
from ledger.errors import DispatchLedgerError, InputError
from ledger.ids import new_id
from ledger.instants import parse_window
from ledger.jobs import Held
from ledger.reports import KINDS, Wanted
from ledger.settings import load_settings
from ledger.spans import parse_bounds
from ledger.store import Store
from ops.api import health, server, state, streams
from ops.api import jobs as job_routes
from ops.context import encoded
from ops.jobs import kinds
from ops.jobs.kinds import Kind, Outcome
from ops.jobs.requests import AnyRequest
from ops.jobs.sending import JobSender
from ops.show_record import record_document
from tests.api_kit import TOKENS, check_problem, client_of, served, tokens_setting
from tests.aws_servers import World, booking
from tests.fault.windows import fill
from tests.job_kit import NOW, REQUEST, JobRig
from tests.report_kit import FROM, TO, Planter
from tests.report_kit import hour as hour_of
from tests.rig import WINDOW, Rig

V1 = "/api/v1"
REPORT = {"kind": "report", "params": {"report": "windows"}}
NOBODY = "01a22a00-0000-7000-8000-000000000000"
FUTURE = "2999-01-01T00:00:00Z"
NO_PLANS: list[tuple[dict[str, Any], str]] = [
    ({"window": FUTURE}, "has not ended yet"),
    ({"group": ["no JSON"]}, "group takes JSON such as"),
    ({"group": [{"ShopId": 1}]}, "group takes JSON such as"),
    ({"group": [[1, 2, 3], [1, 2]]}, "group takes JSON such as"),
    ({"group": [1]}, "an object of the group-by values"),
    ({"group": []}, "group"),
    ({"record": []}, "record"),
]


@pytest.fixture
def bench(rig: Rig, store: Store) -> Iterator[JobRig]:
    with JobRig(rig, store) as bench:
        yield bench


@pytest.fixture
def client(bench: JobRig, ledger_url: str) -> Iterator[TestClient]:
    with served(bench.settings, ledger_url, bench.sender) as app:
        yield client_of(app)


@pytest.fixture
def guarded(bench: JobRig, ledger_url: str) -> Iterator[dict[str, TestClient]]:
    """A server with tokens, as seen by each role."""
    settings = bench.rig.settings(api__tokens=tokens_setting())
    with served(settings, ledger_url, bench.sender) as app:
        yield {name: client_of(app, name) for name in TOKENS} | {"": client_of(app)}


def post(client: TestClient, body: Any, key: str | None = None) -> Any:
    return client.post(f"{V1}/jobs", json=body, headers={} if key is None else {"Idempotency-Key": key})


def no_aws() -> JobSender:
    """A sender whose queues cannot be reached."""
    control = ControlQueues(Session("http://127.0.0.1:9", "us-east-1"), send=timedelta(milliseconds=200), wait=NOW)
    return JobSender(control, load_settings(environ={}, cwd=Path(__file__).parent).jobs)


# Jobs


def test_asked_for_sent_done_and_looked_at(client: TestClient, bench: JobRig) -> None:
    answer = post(client, REPORT)
    assert answer.status_code == 202
    assert answer.json() == {"job_id": answer.json()["job_id"], "status": "pending"}
    place = answer.headers["location"]
    assert place == f"{V1}/jobs/{answer.json()['job_id']}"
    before = client.get(place).json()
    assert list(before)[:8] == [
        "job_id", "kind", "status", "progress", "attempts", "heartbeat_at", "result", "error",
    ]  # fmt: skip
    assert (before["status"], before["attempts"], before["result"]) == ("pending", 0, None)
    assert before["progress"] == {"done": 0, "total": None}
    assert bench.slot().step()
    after = client.get(place).json()
    assert (after["status"], after["attempts"], after["error"]) == ("completed", 1, None)
    assert after["result"]["object"]["key"].startswith("reward-dispatch/_results/")
    assert after["created_by"] == "local"


def test_fifty_posts_with_one_key_are_one_job(client: TestClient, bench: JobRig) -> None:
    start = threading.Barrier(50, timeout=60)

    def ask(_: int) -> tuple[int, str]:
        start.wait()
        answer = post(client, REPORT, "once")
        return answer.status_code, answer.json()["job_id"]

    with ThreadPoolExecutor(50) as pool:
        answers = set(pool.map(ask, range(50)))
    assert len(answers) == 1
    assert {status for status, _ in answers} == {202}
    assert bench.all() == [("report", "pending")]
    assert bench.count() == 1


def test_a_key_again_with_another_body(client: TestClient, bench: JobRig) -> None:
    first = post(client, REPORT, "k")
    assert post(client, {"params": {"report": "windows"}, "kind": "report"}, "k").json() == first.json()
    check_problem(post(client, {"kind": "report", "params": {}}, "k"), 422, "Idempotency-Key")
    assert post(client, REPORT, "other").json() != first.json()
    assert post(client, REPORT).json() != post(client, REPORT).json()
    for key in ("", "x" * 256, "a b"):
        check_problem(post(client, REPORT, key), 422, "Idempotency-Key")


def test_too_many_are_pending(bench: JobRig, ledger_url: str) -> None:
    settings = bench.rig.settings(jobs__max_depth="2")
    with served(settings, ledger_url, bench.sender) as app:
        client = client_of(app)
        kept = post(client, REPORT, "k")
        post(client, REPORT)
        refused = post(client, REPORT)
        check_problem(refused, 503, "jobs.max_depth")
        assert int(refused.headers["retry-after"]) > 0
        assert post(client, REPORT, "k").json() == kept.json(), "a repeat is no new job"
        assert bench.slot().step()
        assert post(client, REPORT, "k").json() == kept.json(), "however far it has come"
        assert post(client, REPORT).status_code == 202


def test_a_queue_that_is_down_costs_nobody_an_answer(bench: JobRig, ledger_url: str) -> None:
    down = no_aws()
    down._queues = {"fast": bench.sender.queue("fast"), "slow": bench.sender.queue("slow")}
    with served(bench.settings, ledger_url, down) as app:
        answers = [post(client_of(app), REPORT) for _ in range(3)]
    assert [one.status_code for one in answers] == [202] * 3
    assert bench.count() == 0
    bench.rig.tell("UPDATE jobs SET relay_at = ledger_now()")
    assert bench.sender.relay(bench.store, "reward") == 3
    slot = bench.slot()
    while slot.step():
        pass
    assert bench.all() == [("report", "completed")] * 3


def test_queues_that_nobody_made_cost_nobody_an_answer(bench: JobRig, ledger_url: str) -> None:
    settings = bench.rig.settings(jobs__queue="nowhere")
    with served(settings, ledger_url, JobSender(bench.sender.control, settings.jobs)) as app:
        assert post(client_of(app), REPORT).status_code == 202


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "kind"),
        ([], "body"),
        ("x", "body"),
        ({"kind": "nap"}, "kind"),
        ({"kind": "dispatch"}, "params"),
        ({"kind": "dispatch", "params": {}}, "exactly one of window, execute_time and due"),
        ({"kind": "dispatch", "params": {"due": True, "window": WINDOW}}, "exactly one"),
        ({"kind": "dispatch", "params": {"due": "yes"}}, "due"),
        ({"kind": "dispatch", "params": {"window": "2026-09-17T15:30:00Z"}}, "on the hour"),
        ({"kind": "dispatch", "params": {"window": "x" * 100}}, "window"),
        ({"kind": "dispatch", "params": {"window": FUTURE}}, "has not ended yet"),
        ({"kind": "dispatch", "params": {"execute_time": "2999-01-01T00:00:00Z"}}, "has not ended yet"),
        ({"kind": "dispatch", "params": {"window": WINDOW, "surprise": 1}}, "surprise"),
        ({"kind": "dispatch", "params": {"window": WINDOW}, "surprise": 1}, "surprise"),
        ({"kind": "reconcile", "params": {"windows": [WINDOW, FUTURE]}}, FUTURE),
        ({"kind": "reconcile", "params": {"lookback": "soon"}}, "lookback"),
        ({"kind": "reconcile", "params": {"lookback": "6h", "window": WINDOW}}, "either windows or lookback"),
        ({"kind": "reconcile", "params": {"window": WINDOW, "no_repair": True, "delete_orphans": True}}, "no_repair"),
        ({"kind": "reconcile", "params": {"release_hold": True, "reason": "x"}}, "release_hold needs"),
        ({"kind": "reconcile", "params": {"window": WINDOW, "release_hold": True}}, "reason"),
        ({"kind": "reconcile", "params": {"window": WINDOW, "release_hold": True, "reason": " "}}, "reason"),
        ({"kind": "reconcile", "params": {"window": WINDOW, "reason": "x"}}, "release_hold"),
        ({"kind": "reconcile", "params": {"windows": [WINDOW] * 1001}}, "1000"),
        ({"kind": "reconcile", "params": {"windows": []}}, "windows"),
        *(({"kind": "reconcile", "params": {name: None}}, name) for name in ("window", "windows", "lookback")),
        ({"kind": "dispatch", "params": {"due": True, "window": None}}, "leave it out"),
        ({"kind": "dispatch", "params": {"due": True, "execute_time": None}}, "leave it out"),
        ({"kind": "report", "params": {"from": None}}, "leave it out"),
        ({"kind": "report", "params": {"to": None}}, "leave it out"),
        ({"kind": "report", "params": {"report": "weather"}}, "report"),
        ({"kind": "report", "params": {"from": TO, "to": FROM}}, "not before"),
        ({"kind": "report", "params": {"since": FROM, "from": FROM}}, "since"),
        ({"kind": "redo", "params": {}}, "exactly one of plan and apply"),
        ({"kind": "redo", "params": {"plan": {"window": WINDOW}}}, "reason"),
        ({"kind": "redo", "params": {"plan": {"window": WINDOW, "reason": " "}}}, "reason"),
        ({"kind": "redo", "params": {"plan": {"window": WINDOW, "reason": "a\0b"}}}, "reason"),
        ({"kind": "redo", "params": {"apply": "x"}}, "apply"),
        *(
            ({"kind": "redo", "params": {"plan": {"window": WINDOW, "reason": "x"} | more}}, says)
            for more, says in NO_PLANS
        ),
        ({**REPORT, "follow_up": {"kind": "dispatch", "params": {}}}, "exactly one"),
        ({**REPORT, "follow_up": {"kind": "dispatch", "params": {"window": FUTURE}}}, "has not ended yet"),
    ],
)
def test_what_may_not_be_asked(client: TestClient, bench: JobRig, body: Any, says: str) -> None:
    document = check_problem(post(client, body), 422)
    assert says in json.dumps(document), document
    assert bench.all() == []


def test_too_many_in_a_row(client: TestClient) -> None:
    body: dict[str, Any] = REPORT
    for _ in range(5):
        body = {**REPORT, "follow_up": body}
    check_problem(post(client, body), 422, "in a row")
    assert post(client, body["follow_up"]).status_code == 202


def test_bodies_that_are_none(client: TestClient) -> None:
    def send(content: Any, kind: str = "application/json") -> Any:
        return client.post(f"{V1}/jobs", content=content, headers={"Content-Type": kind})

    check_problem(send(b'{"kind":'), 400, "no JSON")
    check_problem(send(b"\xff\xfe"), 400)
    check_problem(send(b""), 400, "empty")
    large = b'{"kind":"report","params":{"report":"' + b"x" * 200_000 + b'"}}'
    check_problem(send(large), 413)
    check_problem(send(large[at : at + 1000] for at in range(0, len(large), 1000)), 413)
    check_problem(send(b"[" * 100_000), 422, "more than 100 deep")
    said = json.dumps(REPORT)
    for twice in ('{"kind":"report","kind":"report"}', said.replace('"report": ', '"report": "windows", "report": ')):
        check_problem(send(twice.encode()), 400, "two members of one name")
    for coded in (said.encode("utf-16"), said.encode("utf-8-sig"), b'{"kind": NaN}', b'{"kind": "\xe9"}'):
        check_problem(send(coded), 400, "no JSON")


def test_bodies_that_say_they_are_something_else(client: TestClient, bench: JobRig) -> None:
    said = json.dumps(REPORT).encode()
    json_ = "application/json"
    for headers in (
        {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {}, {"Content-Type": ""},
        {"Content-Type": f"{json_}; charset=iso-8859-1"}, {"Content-Type": json_, "Content-Encoding": "gzip"},
    ):  # fmt: skip
        for method, path in (
            ("POST", "jobs"),
            ("POST", "redo/plans"),
            ("PUT", "receipts/x"),
            ("POST", "findings/1/ack"),
        ):
            check_problem(client.request(method, f"{V1}/{path}", content=said, headers=headers), 415, "send the body")
    assert bench.all() == []
    for kind in (json_, f"{json_}; charset=UTF-8", "Application/JSON;charset=utf8", "application/vnd.of-ours+json"):
        headers = {"Content-Type": kind, "Content-Encoding": "identity"}
        assert client.post(f"{V1}/jobs", content=said, headers=headers).status_code == 202


def test_what_is_not_there(client: TestClient) -> None:
    check_problem(client.get("/nowhere"), 404)
    check_problem(client.get(f"{V1}/jobs/{NOBODY}"), 404, NOBODY)
    check_problem(client.delete(f"{V1}/jobs/{NOBODY}"), 404, NOBODY)
    check_problem(client.get(f"{V1}/jobs/{NOBODY}/events"), 404, NOBODY)
    check_problem(client.get(f"{V1}/jobs/x"), 422)
    allowed = {
        f"{V1}/jobs": "GET, HEAD, POST",
        f"{V1}/jobs/{NOBODY}": "DELETE, GET, HEAD",
        f"{V1}/receipts/x": "PATCH, POST, PUT",
        f"{V1}/redo/plans/{NOBODY}/apply": "POST",
        f"{V1}/openapi.json": "GET, HEAD",
        "/healthz": "GET, HEAD",
    }
    for path, methods in allowed.items():
        refused = client.options(path)
        check_problem(refused, 405)
        assert refused.headers["allow"] == methods, path


def test_a_path_has_one_spelling(client: TestClient) -> None:
    for path in (f"{V1}/jobs/", f"{V1}/windows/", "/healthz/", f"{V1}/redo/plans/"):
        check_problem(client.get(path, follow_redirects=False), 404)


def test_head_is_get_without_the_body(client: TestClient, bench: JobRig) -> None:
    job = post(client, REPORT).json()["job_id"]
    for path in (f"{V1}/jobs", f"{V1}/jobs/{job}", f"{V1}/openapi.json", "/healthz", "/readyz", f"{V1}/jobs/{NOBODY}"):
        head, whole = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (whole.status_code, b""), path
        assert head.headers == whole.headers
    check_problem(client.get(f"{V1}/jobs/{NOBODY}"), 404)
    assert client.head(f"{V1}/receipts/x").status_code == 405
    events = client.head(f"{V1}/jobs/{job}/events")
    assert (events.status_code, events.content) == (200, b"")
    assert client.app.state.api.streams._value == state.STREAMS_MAX  # type: ignore[attr-defined]


def test_cancelled_in_every_state(client: TestClient, bench: JobRig) -> None:
    pending, working, done = (post(client, REPORT).json()["job_id"] for _ in range(3))
    slot = bench.slot()
    bench.rig.tell("UPDATE jobs SET status = 'cancelled', finished_at = ledger_now() WHERE id = %s", pending)
    held = Held(
        jobs.list_jobs(bench.store, "reward", jobs.Wanted(statuses=("pending",)))["jobs"][0]["job_id"], new_id()
    )
    assert isinstance(jobs.claim_job(bench.store, "reward", held, timedelta(seconds=60)), jobs.Job)
    while slot.step() and len([one for one in bench.all() if one[1] == "completed"]) < 1:
        pass
    answers = [client.delete(f"{V1}/jobs/{one}").json()["status"] for one in (pending, working, done)]
    assert sorted(answers) == ["cancelled", "cancelled", "completed"]
    for one in (pending, working, done):
        assert client.delete(f"{V1}/jobs/{one}").json() == client.get(f"{V1}/jobs/{one}").json()


def test_a_list_page_by_page(client: TestClient) -> None:
    made = [post(client, REPORT).json()["job_id"] for _ in range(3)]
    client.delete(f"{V1}/jobs/{made[0]}")
    first = client.get(f"{V1}/jobs", params={"limit": 2}).json()
    assert [one["job_id"] for one in first["jobs"]] == sorted(made, reverse=True)[:2]
    assert "result" not in first["jobs"][0]
    second = client.get(f"{V1}/jobs", params={"limit": 2, "before": first["next"]}).json()
    assert ([one["job_id"] for one in second["jobs"]], second["next"]) == (sorted(made)[:1], None)
    only = client.get(f"{V1}/jobs", params={"status": "cancelled", "kind": "report"}).json()
    assert [one["job_id"] for one in only["jobs"]] == made[:1]
    for wrong in ({"status": "lost"}, {"limit": 0}, {"limit": 201}, {"before": "x"}, {"kind": "nap"}):
        check_problem(client.get(f"{V1}/jobs", params=wrong), 422)


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def test_a_job_is_followed_to_its_end(client: TestClient, bench: JobRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "POLL_S", 0.01)
    job = post(client, REPORT).json()["job_id"]
    seen = threading.Event()
    usual = job_routes._load

    def load(*given: Any) -> Any:
        seen.set()
        return usual(*given)

    monkeypatch.setattr(job_routes, "_load", load)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(client.get, f"{V1}/jobs/{job}/events")
        assert seen.wait(60)
        bench.slot().step()
        answer = following.result(60)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert events[-1] == client.get(f"{V1}/jobs/{job}").json()
    assert events[-1]["status"] == "completed"
    assert "id: completed\n" in answer.text
    again = client.get(f"{V1}/jobs/{job}/events")
    assert [one["status"] for one in events_of(again.text)] == ["completed"]
    over = client.get(f"{V1}/jobs/{job}/events", headers={"Last-Event-ID": "completed"})
    assert (over.status_code, over.text) == (204, "")


def test_too_many_streams(client: TestClient, bench: JobRig) -> None:
    job = post(client, REPORT).json()["job_id"]
    api: state.Api = client.app.state.api  # type: ignore[attr-defined]
    for _ in range(state.STREAMS_MAX):
        assert api.streams.acquire(blocking=False)
    check_problem(client.get(f"{V1}/jobs/{job}/events"), 503, "too many streams")
    api.streams.release()
    bench.slot().step()
    for _ in range(3):
        assert client.get(f"{V1}/jobs/{job}/events").status_code == 200, "its place is given back each time"


def test_a_stream_ends_with_the_server(client: TestClient) -> None:
    job = post(client, REPORT).json()["job_id"]
    client.app.state.api.stopping.set()  # type: ignore[attr-defined]
    assert [one["status"] for one in events_of(client.get(f"{V1}/jobs/{job}/events").text)] == ["pending"]


# Redo


def test_plans_are_jobs(client: TestClient, bench: JobRig) -> None:
    groups = '[{"ShopId":1e1,"MemberId":12345678901234567890.10,"PromotionEngineId":"x"},[1,2,3]]'
    body = b'{"window":"%s","reason":"wrong amounts","group":%s,"record":["R1","\\u00e9"]}' % (
        WINDOW.encode(), groups.encode(),
    )  # fmt: skip
    answer = client.post(f"{V1}/redo/plans", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 202, answer.text
    applying = {"kind": "redo", "params": {"apply": NOBODY}}
    assert client.post(f"{V1}/jobs", json=applying).status_code == 202
    seen: list[Any] = []

    def work(task: Any) -> Outcome:
        seen.append(task.params)
        return Outcome({"plan_id": NOBODY})

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kinds.KINDS, "redo", Kind(work))
        slot = bench.slot("slow")
        assert slot.step()
        assert slot.step()
    planned = next(one.plan for one in seen if one.plan is not None)
    assert (planned.window, planned.reason, planned.record) == (WINDOW, "wrong amounts", ["R1", "\u00e9"])
    assert planned.group == ['{"MemberId":12345678901234567890.10,"PromotionEngineId":"x","ShopId":1e1}', "[1,2,3]"]
    assert [str(one.apply) for one in seen if one.plan is None] == [NOBODY]
    assert client.get(answer.headers["location"]).json()["result"] == {"plan_id": NOBODY}
    check_problem(client.post(f"{V1}/redo/plans", json={"window": WINDOW}), 422, "reason")
    for more, says in NO_PLANS:
        refused = client.post(f"{V1}/redo/plans", json={"window": WINDOW, "reason": "x"} | more)
        assert says in json.dumps(check_problem(refused, 422)), more
    check_problem(client.post(f"{V1}/redo/plans/x/apply"), 422)


def test_a_redo_over_http(client: TestClient, bench: JobRig) -> None:
    world, slot = bench.world, bench.slot("slow")
    world.put(booking("r1", "2026-09-17T15:10:00Z"))
    assert bench.rig.run().outcome == "completed"
    asked = client.post(f"{V1}/redo/plans", json={"window": WINDOW, "reason": "ticket 4711", "by": "ann"})
    assert slot.step()
    plan = client.get(asked.headers["location"]).json()["result"]
    assert client.get(f"{V1}/redo/plans/{plan['plan_id']}").json() == plan
    assert (plan["state"], plan["by"], plan["records"]) == ("planned", "ann", 1)
    assert plan["plan_id"] == asked.json()["job_id"], "a repeat of the job finds the plan that is there"
    check_problem(client.get(f"{V1}/redo/plans/{NOBODY}"), 404, NOBODY)
    check_problem(client.post(f"{V1}/redo/plans/{NOBODY}/apply"), 404, NOBODY)
    place, keyed = f"{V1}/redo/plans/{plan['plan_id']}/apply", {"Idempotency-Key": "apply"}
    taken = "UPDATE windows SET lease_run_id = gen_random_uuid(), lease_until = ledger_now() + interval '1 hour'"
    bench.rig.tell(taken)
    check_problem(client.post(place, headers=keyed), 409, "being worked on")
    bench.rig.expire_leases("reward")
    asked = client.post(place, headers=keyed)
    bench.rig.tell(taken)
    assert client.post(place, headers=keyed).json() == asked.json(), "what was accepted is not refused afterwards"
    bench.rig.expire_leases("reward")
    assert slot.step()
    applied = client.get(asked.headers["location"]).json()
    assert (applied["status"], applied["result"]["state"], applied["result"]["applied_by"]) == (
        "completed",
        "applied",
        "local",
    )
    assert [one["generation"] for one in world.messages("reward-point")] == [0, 1]
    again = client.post(f"{V1}/redo/plans/{plan['plan_id']}/apply")
    assert slot.step()
    assert client.get(again.headers["location"]).json()["result"] == applied["result"]
    assert world.messages("reward-point") == []


# What the ledger says


def test_the_same_documents_as_the_command_line(client: TestClient, planter: Planter, store: Store) -> None:
    planter.plant()
    identity = planter.find(15, "duplicate", "a")
    entry = store.transaction(lambda connection: connection.execute("SELECT id FROM entries LIMIT 1").fetchone())
    assert entry is not None
    bounds, everything = parse_bounds(FROM, TO), Wanted(KINDS, ("open",), 1000)
    api: state.Api = client.app.state.api  # type: ignore[attr-defined]

    def told_of(record_id: str) -> Any:
        return record_document(api.settings, store, api.lookup.ask(record_id))

    expected = {
        f"{V1}/windows?from={FROM}&to={TO}": reports.report_windows(store, "reward", bounds).document,
        f"{V1}/windows/{hour_of(15)}": history.window_history(store, "reward", parse_window(hour_of(15))),
        f"{V1}/windows/2020-01-01T00:00:00Z": history.window_history(
            store, "reward", parse_window("2020-01-01T00:00:00Z")
        ),
        f"{V1}/entries/{entry[0]}": history.entry_history(store, "reward", entry[0]),
        f"{V1}/records/edge": told_of("edge"),
        f"{V1}/records/%7B%22Id%22%3A%22a%2Fb%22%7D": told_of('{"Id":"a/b"}'),
        f"{V1}/records/a%0Ab%00": told_of("a\nb\0"),
        f"{V1}/findings": reports.list_findings(store, "reward", None, everything).document,
    }
    for path, document in expected.items():
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.content == encoded(document), path
    chosen = client.get(f"{V1}/findings", params={"kind": "duplicate", "window": hour_of(15), "limit": 1}).json()
    assert [one["id"] for one in chosen["findings"]] == [identity]


def test_questions_that_are_none(client: TestClient) -> None:
    for path in ("windows?from=yesterday", f"windows?from={TO}&to={FROM}", "windows/noon", "entries/x",
                 "findings?kind=odd", "findings?state=odd", "findings?limit=0", "findings?window=noon"):  # fmt: skip
        check_problem(client.get(f"{V1}/{path}"), 422)
    check_problem(client.get(f"{V1}/entries/{NOBODY}"), 404, NOBODY)


def test_nothing_is_asked_twice_or_in_vain(guarded: dict[str, TestClient], bench: JobRig) -> None:
    client = guarded["o"]
    for path, wrong in (
        ("jobs?state=pending", "query.state: there is no such parameter"),
        ("jobs?limit=1&limit=2", "query.limit: give it once"),
        ("windows?form=x", "query.form"),
        (f"jobs/{NOBODY}?x", "query.x"),
        (f"jobs/{NOBODY}/events?x=1", "query.x"),
        ("records/R1?consistent=true", "query.consistent"),
    ):
        check_problem(client.get(f"{V1}/{path}"), 422, wrong)
        assert guarded[""].get(f"{V1}/{path}").status_code == 401, "only those who may ask are told"
    check_problem(client.post(f"{V1}/jobs?dry_run=true", json=REPORT), 422, "query.dry_run")
    for name in ("Idempotency-Key", "Last-Event-ID", "Content-Type", "Authorization"):
        usual = {"Content-Type": "application/json", "Authorization": "Bearer o"}
        twice = [*usual.items(), *[(name, usual.get(name, "k"))] * (1 if name in usual else 2)]
        content = json.dumps(REPORT).encode()
        plain = TestClient(client.app, base_url="http://127.0.0.1")
        answer = plain.post(f"{V1}/jobs", content=content, headers=twice)
        check_problem(answer, 422, f"header.{name.lower()}: give it once")
    assert bench.all() == []


def test_a_finding_is_acknowledged(guarded: dict[str, TestClient], planter: Planter) -> None:
    identity, closed = planter.find(9, "duplicate", "a"), planter.find(9, "missed", "b", "closed")
    place = f"{V1}/findings/{identity}/ack"
    check_problem(guarded["v"].post(place, json={"reason": "seen"}), 403)
    check_problem(guarded["o"].post(place, json={}), 422)
    answer = guarded["o"].post(place, json={"reason": " seen "})
    assert (answer.status_code, answer.json()["acknowledged_by"]) == (200, "o")
    assert answer.json()["acknowledged_reason"] == "seen"
    assert guarded["a"].post(place, json={"reason": "again", "by": "me"}).json() == answer.json()
    check_problem(guarded["o"].post(f"{V1}/findings/{closed}/ack", json={"reason": "x"}), 409, "closed already")
    check_problem(guarded["o"].post(f"{V1}/findings/{10**30}/ack", json={"reason": "x"}), 404)
    other = planter.find(9, "duplicate", "c")
    answer = guarded["o"].post(f"{V1}/findings/{other}/ack", json={"reason": "x", "by": "me"})
    assert answer.json()["acknowledged_by"] == "me (o)"


# Who may do what


def test_nothing_without_a_token(guarded: dict[str, TestClient]) -> None:
    app: Any = guarded["v"].app
    paths = {path: methods for path, methods in app.openapi()["paths"].items() if path.startswith(V1)}
    assert len(paths) >= 12
    for template, methods in paths.items():
        path = template.replace("{finding_id}", "1").replace("{start}", WINDOW)
        path = path.replace("{record_id}", "R1").replace("{idempotency_key}", "a" * 64)
        path = path.replace("{job_id}", NOBODY).replace("{entry_id}", NOBODY).replace("{plan_id}", NOBODY)
        for method in methods:
            for client in (guarded[""], client_of(app, "wrong")):
                refused = client.request(method.upper(), path)
                check_problem(refused, 401)
                assert refused.headers["www-authenticate"].startswith("Bearer")
    broken = guarded[""].post(f"{V1}/jobs", content=b"{", headers={"Content-Type": "application/json"})
    check_problem(broken, 401)
    for header in ("Basic dg==", "Bearer", "Bearer  ", "v", "Bearer \xff"):
        check_problem(guarded[""].get(f"{V1}/jobs", headers={"Authorization": header.encode("latin-1")}), 401)
    assert guarded[""].get(f"{V1}/jobs", headers={"Authorization": "bearer v"}).status_code == 200


def test_what_each_role_may_do(guarded: dict[str, TestClient]) -> None:
    release = {"kind": "reconcile", "params": {"window": WINDOW, "release_hold": True, "reason": "looked at it"}}
    apply = {"kind": "redo", "params": {"apply": NOBODY}}
    plan = {"window": WINDOW, "reason": "x"}
    allowed = {
        "v": [("GET", "jobs", None), ("GET", "windows", None), ("GET", "findings", None), ("GET", "records/R1", None)],
        "o": [("POST", "jobs", REPORT), ("POST", "redo/plans", plan), ("DELETE", f"jobs/{NOBODY}", None),
              ("POST", "receipts/" + "a" * 64, {"worker": "w"})],
        "a": [("POST", f"redo/plans/{NOBODY}/apply", None), ("POST", "jobs", apply), ("POST", "jobs", release),
              ("POST", "jobs", {**REPORT, "follow_up": release}),
              ("POST", "jobs", {**REPORT, "follow_up": {**REPORT, "follow_up": apply}})],
    }  # fmt: skip
    rank = list(allowed)
    for role, requests in allowed.items():
        for method, path, body in requests:
            for name in rank:
                answer = guarded[name].request(method, f"{V1}/{path}", json=body)
                if rank.index(name) < rank.index(role):
                    check_problem(answer, 403, "needs the role")
                else:
                    assert answer.status_code in {200, 202, 404}, (name, path, answer.text)


def test_who_asked_is_kept(guarded: dict[str, TestClient]) -> None:
    place = post(guarded["o"], REPORT).headers["location"]
    assert guarded["v"].get(place).json()["created_by"] == "o"


def test_without_tokens_no_web_page_may_use_this_machines_server(client: TestClient) -> None:
    for host in ("evil.example", "10.0.0.1", "", "localhost.evil.example", "[", "127.0.0.1.evil.example:80"):
        check_problem(client.get(f"{V1}/jobs", headers={"Host": host}), 403, "localhost")
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "127.9.9.9"):
        assert client.get(f"{V1}/jobs", headers={"Host": host}).status_code == 200
    place = f"{V1}/redo/plans/{NOBODY}/apply"
    for origin in ("https://evil.example", "http://127.0.0.1:9999", "null", "http://["):
        check_problem(client.post(place, headers={"Origin": origin}), 403, "another site")
    for site in ("cross-site", "same-site"):
        check_problem(client.post(place, headers={"Sec-Fetch-Site": site}), 403, "another site")
    check_problem(client.post(place, headers={"Origin": "http://127.0.0.1"}), 404, NOBODY)
    for site in ("none", "same-origin"):
        check_problem(client.post(place, headers={"Sec-Fetch-Site": site}), 404, NOBODY)
    for path in ("/metrics", "/healthz", "/readyz", f"{V1}/openapi.json", "/nowhere"):
        check_problem(client.get(path, headers={"Host": "evil.example"}), 403, "localhost")


def test_with_tokens_any_host_will_do(guarded: dict[str, TestClient]) -> None:
    for path in ("/metrics", "/healthz", f"{V1}/jobs"):
        assert guarded["v"].get(path, headers={"Host": "ledger.example"}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "", "example.com"])
def test_no_other_machine_may_ask_without_tokens(bench: JobRig, host: str) -> None:
    with pytest.raises(InputError, match=r"api\.tokens is empty"):
        server.run(bench.settings, Cancellation(), host, 0, pytest.fail)


def test_a_port_that_is_taken(bench: JobRig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}: Address already in use; choose"):
            server.run(bench.settings, Cancellation(), "127.0.0.1", port, pytest.fail)


# When something is wrong inside


def test_what_nobody_expected_tells_nothing_of_the_inside(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("secret-123")

    def disagree(*_: Any) -> Any:
        raise DispatchLedgerError("secret-123")

    for wrong in (fail, disagree):
        monkeypatch.setattr("ops.show_record.record_history", wrong)
        with capture_logs() as logs:
            answer = client.get(f"{V1}/records/member-17")
        assert "secret" not in json.dumps(check_problem(answer, 500))
        assert logs
        assert "member-17" not in str(logs)


def test_a_ledger_that_does_not_answer(bench: JobRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger.store.clock, "wait_s", lambda *_: False)
    with served(bench.settings, "postgresql+psycopg://nobody@127.0.0.1:9/none", bench.sender) as app:
        client = client_of(app)
        for answer in (client.get(f"{V1}/jobs"), post(client, REPORT), client.get("/readyz")):
            check_problem(answer, 503, "ledger.database_url")
            assert answer.headers["retry-after"]
        assert client.get("/healthz").json() == {"status": "ok"}


def test_ready_only_with_the_schema_of_this_version(client: TestClient, bench: JobRig) -> None:
    assert client.get("/readyz").json() == {"status": "ready"}
    bench.rig.tell("UPDATE dispatch_ledger_version SET version_num = 'older'")
    check_problem(client.get("/readyz"), 503, "db upgrade")


# Metrics


def test_what_prometheus_is_told(client: TestClient, planter: Planter, bench: JobRig, world: World) -> None:
    planter.plant()
    planter.find(15, "duplicate", "record-no-17")
    post(client, REPORT)
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    lines = {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in answer.text.splitlines() if line[0] != "#")
    }
    assert lines['dispatch_ledger_up{source="ledger"}'] == lines['dispatch_ledger_up{source="queues"}'] == 1
    assert lines['dispatch_ledger_jobs{queue="fast",status="pending"}'] == 1
    assert lines['dispatch_ledger_job_oldest_seconds{queue="fast",status="pending"}'] >= 0
    assert lines[f'dispatch_ledger_queue_messages{{queue="{bench.name("fast")}",state="waiting"}}'] == 1
    assert lines[f'dispatch_ledger_queue_messages{{queue="{bench.name("dead")}",state="waiting"}}'] == 0
    assert lines['dispatch_ledger_findings{kind="duplicate",state="open"}'] >= 1
    assert lines["dispatch_ledger_windows_owed"] >= 23
    for kind in ("window", "job", "receipt"):
        assert lines[f'dispatch_ledger_fence_rejections_total{{kind="{kind}"}}'] == 0
    assert lines["dispatch_ledger_windows_held"] >= 1
    assert lines["dispatch_ledger_windows_behind"] == 0
    assert lines["dispatch_ledger_entries_unfinished"] == bench.rig.value(
        "SELECT count(DISTINCT entry_id) FROM payload_parts"
    )
    assert lines["dispatch_ledger_entries_unfinished"] > 0
    assert lines["dispatch_ledger_entry_oldest_unfinished_seconds"] >= 0
    assert lines["dispatch_ledger_dispatch_last_success_timestamp_seconds"] > 1.7e9
    counted = dict(bench.rig.rows("SELECT outcome, count(*) FROM all_attempts GROUP BY outcome"))
    assert counted
    assert {name: lines[f'dispatch_ledger_attempts_recent{{outcome="{name}"}}'] for name in counted} == counted
    assert "record-no-17" not in answer.text
    bench.rig.tell("UPDATE attempts SET entry_id = overlay(entry_id::text placing '01a0' from 1 for 4)::uuid")
    later = client.get("/metrics").text
    assert 'attempts_recent{outcome="accepted"}' not in later, "what was opened long ago is not counted"


def test_metrics_when_a_source_is_away(bench: JobRig, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(bench.settings, ledger_url, no_aws()) as app:
        text = client_of(app).get("/metrics").text
        assert 'dispatch_ledger_up{source="queues"} 0.0' in text
        assert 'dispatch_ledger_up{source="ledger"} 1.0' in text
        assert "dispatch_ledger_windows_owed" in text
    monkeypatch.setattr(ledger.store.clock, "wait_s", lambda *_: False)
    with served(bench.settings, "postgresql+psycopg://nobody@127.0.0.1:9/none", bench.sender) as app:
        text = client_of(app).get("/metrics").text
        assert 'dispatch_ledger_up{source="ledger"} 0.0' in text
        assert 'dispatch_ledger_up{source="queues"} 1.0' in text


# Receipts


def test_the_life_of_a_receipt(client: TestClient, bench: JobRig) -> None:
    fill(bench.world, WINDOW)
    bench.rig.run()
    keys = [bytes(key).hex() for (key,) in bench.rig.rows("SELECT idempotency_key FROM entries ORDER BY id")]
    place = f"{V1}/receipts/{keys[0]}"
    taken = client.post(place, json={"worker": "w1"})
    assert taken.status_code == 201
    claim = taken.json()["claim"]
    assert taken.json()["expires_at"].endswith("Z")
    held = client.post(place, json={"worker": "w2"})
    check_problem(held, 409, "another worker has the job")
    assert 0 < int(held.headers["retry-after"]) <= 60
    renewed = client.patch(place, json={"claim": claim, "lease_s": 600})
    assert renewed.json()["expires_at"] > taken.json()["expires_at"]
    failed = {"claim": claim, "status": "failed", "reason": "no"}
    assert client.put(place, json=failed).json()["status"] == "failed"
    assert client.put(place, json=failed).status_code == 200, "the same end again"
    again = client.post(place, json={"worker": "w2"}).json()
    assert again["attempts"] == 2
    check_problem(client.patch(place, json={"claim": claim}), 409, "no longer good")
    check_problem(client.put(place, json={"claim": claim, "status": "completed", "result": 1}), 409)
    done = client.put(place, json={"claim": again["claim"], "status": "completed", "result": {"points": [1, "é"]}})
    assert done.status_code == 200
    told = client.post(place, json={"worker": "w3"})
    assert (told.status_code, told.json()["status"], told.json()["result"]) == (200, "completed", {"points": [1, "é"]})
    exact = f"{V1}/receipts/{keys[2]}"
    claim = client.post(exact, json={"worker": "w1"}).json()["claim"]

    def put(result: str) -> Any:
        content = f'{{"claim":"{claim}","status":"completed","result":{result}}}'
        return client.put(exact, content=content, headers={"Content-Type": "application/json"})

    for none in ("NaN", "[Infinity]", '{"a":-Infinity}'):
        check_problem(put(none), 400, "is no JSON")
    check_problem(put("9" * 5000), 422, "a number has 5000 characters; 1000 are taken")
    check_problem(put("[" * 900 + "]" * 900), 422, "more than 100 deep")
    for _ in range(2):
        assert put('{"n": [1e400, 0.10000000000000000000001, 12345678901234567890, 1E-7, -0.0, -0]}').status_code == 200
    told = client.post(exact, json={"worker": "w2"})
    assert b'{"n":[1e400,0.10000000000000000000001,12345678901234567890,1E-7,-0.0,-0]}' in told.content
    other = f"{V1}/receipts/{keys[1]}"
    lost = client.post(other, json={"worker": "w1"}).json()["claim"]
    bench.rig.tell("UPDATE receipts SET expires_at = ledger_now() - interval '1 second' WHERE state = 'in_work'")
    assert client.post(other, json={"worker": "w2"}).status_code == 201
    for method in (client.patch, client.put):
        check_problem(
            method(other, json={"claim": lost} | ({"status": "failed", "reason": "x"} if method == client.put else {})),
            409,
        )
    assert 'fence_rejections_total{kind="receipt"} 4.0' in client.get("/metrics").text
    bench.rig.tell("UPDATE receipts SET state = 'superseded', expires_at = NULL WHERE state = 'in_work'")
    assert client.post(other, json={"worker": "w3"}).json() == {"status": "superseded"}


def test_receipts_of_nothing(client: TestClient) -> None:
    for key in ("a" * 64, "x", "a" * 63, "Z" * 64):
        place = f"{V1}/receipts/{key}"
        check_problem(client.post(place, json={"worker": "w"}), 404)
        check_problem(client.patch(place, json={"claim": NOBODY}), 404)
        check_problem(client.put(place, json={"claim": NOBODY, "status": "completed"}), 404)
    place = f"{V1}/receipts/{'a' * 64}"
    for body in ({}, {"worker": ""}, {"worker": "w", "lease_s": 0}, {"worker": "w", "lease_s": 1e9}, {"worker": 1},
                 {"worker": "w", "lease_s": "60"}, {"worker": "w", "lease_s": True}):  # fmt: skip
        check_problem(client.post(place, json=body), 422)
    for body in ({"claim": "x", "status": "completed"}, {"claim": NOBODY}, {"claim": NOBODY, "status": "done"},
                 {"claim": NOBODY, "status": "failed"}, {"claim": NOBODY, "status": "completed", "reason": "x"},
                 {"claim": NOBODY, "status": "failed", "reason": "x", "result": 1}):  # fmt: skip
        check_problem(client.put(place, json=body), 422)


# The description


def test_the_description_is_a_good_one(client: TestClient) -> None:
    document = client.get(f"{V1}/openapi.json").json()
    validate(document)
    assert "HTTPValidationError" not in json.dumps(document)
    examples = document["paths"][f"{V1}/jobs"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    for one in examples.values():
        assert isinstance(REQUEST.validate_python(one["value"]), AnyRequest)
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    for path in (
        "/jobs",
        "/jobs/{job_id}/events",
        "/windows/{start}",
        "/records/{record_id}",
        "/redo/plans/{plan_id}/apply",
    ):
        assert any(known == V1 + path for _, known in described), path
    assert health.router.routes
    assert client.get("/").status_code == 404, "it is free for pages"


def test_every_answer_has_a_type_and_every_example_is_of_it(client: TestClient) -> None:
    document = client.get(f"{V1}/openapi.json").json()
    examples = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                for media_type, content in answer.get("content", {}).items():
                    where = (method, path, status, media_type)
                    schema = content.get("schema")
                    assert schema or path == "/metrics", where
                    assert set(schema or {}) == {"$ref"} or "json" not in media_type, where
                    if "example" in content:
                        examples += 1
                        told = {**schema, "components": document["components"]}
                        validator = Draft202012Validator(told, format_checker=FormatChecker())
                        assert [error.message for error in validator.iter_errors(content["example"])] == [], where
    assert examples >= 15
