"""`doctor` against real services: what is wrong is said, what is independent goes on, and nothing is written."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from copy import copy
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy.engine import make_url

from dispatch.aws import inspection
from dispatch.aws.session import Session
from dispatch.checks import CONTROL_RECEIVES, JOB_RECEIVES
from ledger import checks, clock
from ledger.checks import Check
from ledger.server import ServerFacts
from ledger.settings import ObjectsSettings, env_name
from ops import cli, doctor
from tests.aws_servers import INDEX, REGION, World, booking
from tests.conftest import MakeRig
from tests.rig import Rig
from tests.wire import Answer, FaultProxy, Rule, hang, on, rewrite_json, status

DAY_S = 86_400
NOWHERE = "http://127.0.0.1:9"
ALL = {
    "region",
    "credentials",
    "table",
    "index",
    "projection",
    "query",
    "read_again",
    "record",
    "bucket",
    "lifecycle",
    "queue",
    "visibility",
    "retention",
    "dead_letter_queue",
    "tries",
    "ledger",
    "durability",
    "connections",
    "session",
    "witness",
    "revision",
    "write",
    "clock",
}


@pytest.fixture(autouse=True)
def durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' server may forget in a crash, which doctor would warn of each time."""
    usual = checks._judge_durability

    def judge(subject: str, facts: ServerFacts) -> Check:
        return usual(subject, msgspec.structs.replace(facts, durability=dict.fromkeys(facts.durability, "on")))

    monkeypatch.setattr(checks, "_judge_durability", judge)


@pytest.fixture(autouse=True)
def shared_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read AWS's service descriptions once for all tests: that takes longer than all calls of a test."""
    monkeypatch.setattr(doctor, "Session", _session)


def _session(endpoint_url: str | None, region: str | None, *, embedded: bool) -> Session:
    if region != REGION or "AWS_ACCESS_KEY_ID" not in os.environ:
        return Session(endpoint_url, region, embedded=embedded)
    chosen = copy(_shared_session())
    chosen.endpoint_url = endpoint_url
    return chosen


@cache
def _shared_session() -> Session:
    return Session(NOWHERE, REGION)


@pytest.fixture
def proxy(ministack: str) -> Iterator[FaultProxy]:
    with FaultProxy(ministack) as wire:
        yield wire


def dead_letters(world: World, name: str, *, count: int = JOB_RECEIVES) -> dict[str, str]:
    """Make a dead-letter queue that keeps messages for 14 days; gives the attributes of a queue that uses it."""
    attributes: Any = {"MessageRetentionPeriod": str(14 * DAY_S)}
    attributes |= {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    url = world.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    arn = ":".join(["arn:aws:sqs", REGION, *url.split("/")[-2:]])
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": str(count)})
    return {"RedrivePolicy": policy, "MessageRetentionPeriod": str(7 * DAY_S)}


def set_queue(world: World, queue: str, attributes: dict[str, str]) -> None:
    world.sqs.set_queue_attributes(QueueUrl=world.queue_url(queue), Attributes=attributes)  # type: ignore[arg-type]


def equip(world: World) -> dict[str, str]:
    """Make everything as it should be; gives the settings that name the control queues."""
    control = {"jobs__queue": f"jobs-{world.suffix}", "jobs__slow_queue": f"slow-{world.suffix}"}
    attributes = dead_letters(world, f"jobs-dead-{world.suffix}", count=CONTROL_RECEIVES)
    for name in control.values():
        world.sqs.create_queue(QueueName=name, Attributes=attributes)  # type: ignore[arg-type]
    for queue in world.queues:
        set_queue(world, queue, dead_letters(world, dead(world, queue)))
    return control


def dead(world: World, queue: str) -> str:
    """Name the dead-letter queue of a route's queue."""
    return f"dead-{world.queues[queue]}"


@pytest.fixture
def well(world: World, make_rig: MakeRig) -> Rig:
    """An installation in which nothing is wrong."""
    return make_rig(world, **equip(world))


def look(rig: Rig, *, endpoint: str | None = None, **settings: str) -> list[Check]:
    return doctor.examine_services(rig.settings(endpoint=endpoint, **settings))


def only(lines: list[Check], state: str) -> Check:
    """Find the one line in a state, and check that it says how to mend it."""
    (line,) = [one for one in lines if one.state == state]
    assert line.mend
    return line


def wrong(lines: list[Check]) -> list[Check]:
    return [one for one in lines if one.state in {"failed", "warning"}]


def states(lines: list[Check], *names: str) -> set[str]:
    return {one.state for one in lines if one.name in names}


# Nothing is wrong


@pytest.mark.parametrize("emulator", ["moto", "ministack"])
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_an_installation_that_is_well(
    request: pytest.FixtureRequest, make_rig: MakeRig, emulator: str, *, fifo: bool
) -> None:
    world = World(request.getfixturevalue(emulator), fifo=fifo)
    today = clock.utc_now().strftime("%Y-%m-%dT12:00:00Z")
    world.put(booking("member-4711", today))
    rig = make_rig(world, **equip(world))
    lines = look(rig)
    assert wrong(lines) == []
    assert {one.state for one in lines} == {"ok"}
    assert {one.name for one in lines} == ALL
    assert doctor.exit_code(lines) == 0
    said = json.dumps(doctor.document(lines))
    assert "member-4711" not in said
    assert "testing-secret" not in said
    identity = next(one for one in lines if one.name == "credentials").detail
    assert ("arn:aws:sts::" in identity) == (emulator == "moto"), "ministack runs without STS here"
    # and nothing was written
    assert rig.rows("SELECT 1 FROM pipelines UNION ALL SELECT 1 FROM windows UNION ALL SELECT 1 FROM runs") == []
    assert rig.rows("SELECT 1 FROM pg_sequences WHERE last_value IS NOT NULL") == []
    assert rig.rows("SELECT 1 FROM pg_class WHERE relname = 'tried'") == []
    assert world.objects() == {}
    assert [world.message_count(name) for name in world.queues] == [0, 0]


def test_a_table_without_records_has_none_to_try(well: Rig) -> None:
    lines = look(well)
    assert wrong(lines) == []
    assert [(one.name, one.state) for one in lines if one.state != "ok"] == [("record", "skipped")]


def test_an_index_of_keys_only_is_read_around(ministack: str, make_rig: MakeRig) -> None:
    world = World(ministack, projection="KEYS_ONLY")
    world.put(booking("r1", clock.utc_now().strftime("%Y-%m-%dT12:00:00Z"), ShopId=None))
    rig = make_rig(world, **equip(world))
    lines = look(rig)
    assert [(one.name, one.state) for one in wrong(lines)] == [("projection", "warning"), ("record", "warning")]
    assert "ShopId" in wrong(lines)[1].detail, "the whole record was read from the table"
    lines = look(rig, dispatch__verify_due="false")
    assert only(lines, "failed").name == "projection"
    assert doctor.exit_code(lines) == 2


# DynamoDB


@pytest.mark.parametrize(
    ("settings", "name", "texts"),
    [
        ({"source__table": "NoSuchTable"}, "table", ("NoSuchTable", "does not exist", "source.table")),
        ({"source__index": "NoSuchIndex"}, "index", ("NoSuchIndex", "source.index", "aws dynamodb update-table")),
    ],
)
def test_something_of_the_table_is_missing(
    well: Rig, settings: dict[str, str], name: str, texts: tuple[str, ...]
) -> None:
    lines = look(well, **settings)
    line = only(lines, "failed")
    assert line.name == name
    for text in texts:
        assert text in f"{line.detail} {line.mend}"
    assert states(lines, "query", "read_again", "record") == {"skipped"}
    assert states(lines, "bucket", "queue", "ledger", "revision") == {"ok"}
    assert doctor.exit_code(lines) == 2


def test_a_backfilling_index_is_refused_and_not_read(well: Rig, proxy: FaultProxy) -> None:
    """Case 23."""

    def backfill(answer: Any) -> Any:
        answer["Table"]["GlobalSecondaryIndexes"][0] |= {"IndexStatus": "CREATING", "Backfilling": True}
        return answer

    proxy.rules.append(Rule(on("DescribeTable"), rewrite_json(backfill)))
    lines = look(well, endpoint=proxy.url)
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == ("index", 2)
    assert "backfilling" in line.detail
    assert "wait" in (line.mend or "")
    assert proxy.count("Query") == 0


# S3


@pytest.mark.parametrize(
    ("bucket", "texts"),
    [("no-such-bucket", ("does not exist", "aws s3 mb s3://no-such-bucket")), ("", ("objects.bucket", "not set"))],
)
def test_a_bucket_is_missing(well: Rig, bucket: str, texts: tuple[str, ...]) -> None:
    lines = look(well, objects__bucket=bucket)
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == ("bucket", 2)
    for text in texts:
        assert text in f"{line.subject} {line.detail} {line.mend}"
    assert states(lines, "table", "queue", "ledger") == {"ok"}


def test_a_lifecycle_that_removes_objects_too_soon(well: Rig) -> None:
    rule: Any = {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 3}}
    well.world.s3.put_bucket_lifecycle_configuration(Bucket=well.world.bucket, LifecycleConfiguration={"Rules": [rule]})
    objects, witnesses = [one for one in look(well) if one.state == "warning"]
    assert (objects.name, "3d" in objects.detail) == ("lifecycle", True)
    assert (witnesses.name, "reward-dispatch/_ledger/reward/" in witnesses.subject) == ("lifecycle", True)
    assert "reward-dispatch/reward/ only" in (witnesses.mend or "")
    rule["Filter"]["Prefix"] = "reward-dispatch/reward/"
    well.world.s3.put_bucket_lifecycle_configuration(Bucket=well.world.bucket, LifecycleConfiguration={"Rules": [rule]})
    assert only(look(well), "warning").subject == objects.subject


def test_a_ledger_that_was_put_back_and_one_that_is_not_alone(well: Rig) -> None:
    well.world.put(booking("r1", "2026-09-17T15:05:00Z"))
    well.run()
    (line,) = [one for one in look(well) if one.name == "witness"]
    assert (line.state, "the newest 1 windows" in line.detail) == ("ok", True)
    well.tell("UPDATE windows SET seq = 1")
    line = only(look(well), "failed")
    assert (line.name, "was put back to an earlier state" in line.detail) == ("witness", True)
    assert "dispatch-ledger recover --restored" in (line.mend or "")
    well.tell("UPDATE windows SET seq = 2")
    well.tell("UPDATE ledger_identity SET ledger_id = gen_random_uuid()")
    assert "was written by another ledger" in only(look(well), "failed").detail


# SQS


def test_a_queue_of_a_route_is_missing(well: Rig) -> None:
    routes = {"Point": {"job": "RewardPoint", "queue": "no-such-queue"}}
    lines = look(well, routes=json.dumps(routes))
    line = only(lines, "failed")
    assert (line.name, line.subject, line.exit_code) == ("queue", "no-such-queue", 2)
    assert "aws sqs create-queue --queue-name no-such-queue" in (line.mend or "")
    assert "routes" in (line.mend or "")
    assert {one.state for one in lines if one.subject == "no-such-queue"} == {"failed", "skipped"}


def test_a_control_queue_is_missing(well: Rig) -> None:
    lines = look(well, jobs__queue="no-such-jobs")
    line = only(lines, "warning")
    assert (line.name, line.subject) == ("queue", "no-such-jobs")
    assert "jobs.queue" in line.detail
    assert "jobs.queue" in (line.mend or "")
    assert doctor.exit_code(lines) == 0


def test_a_control_queue_whose_dead_letters_die_unseen_is_a_warning(well: Rig) -> None:
    set_queue(well.world, f"jobs-dead-{well.world.suffix}", {"MessageRetentionPeriod": str(2 * DAY_S)})
    lines = wrong(look(well))
    assert [(one.name, one.state) for one in lines] == [("dead_letter_queue", "warning")] * 2
    assert all("only serve and worker need it" in one.detail for one in lines)


def test_dead_letters_are_kept_for_less_time_than_their_queue_keeps_messages(well: Rig) -> None:
    """Case 23."""
    queue = well.world.queues["reward-point"]
    set_queue(well.world, dead(well.world, "reward-point"), {"MessageRetentionPeriod": str(2 * DAY_S)})
    lines = look(well)
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == ("dead_letter_queue", 2)
    assert queue in line.subject
    assert "2d" in line.detail
    assert "7d" in line.detail
    assert f"dead-{queue} --attributes MessageRetentionPeriod=1209600" in (line.mend or "")


def test_a_visibility_shorter_than_the_work(well: Rig) -> None:
    """Case 23."""
    set_queue(well.world, "reward-point", {"VisibilityTimeout": "5"})
    line = only(look(well), "warning")
    assert line.name == "visibility"
    assert "5s" in line.detail
    assert "VisibilityTimeout=" in (line.mend or "")


def test_a_queue_without_a_second_try(well: Rig) -> None:
    set_queue(well.world, "reward-ecoupon", dead_letters(well.world, dead(well.world, "reward-ecoupon"), count=1))
    line = only(look(well), "warning")
    assert (line.name, "maxReceiveCount is 1" in line.detail) == ("tries", True)


def test_a_queue_without_a_redrive_policy(well: Rig) -> None:
    set_queue(well.world, "reward-point", {"RedrivePolicy": ""})
    lines = look(well)
    assert only(lines, "warning").name == "dead_letter_queue"
    assert doctor.exit_code(lines) == 0


def follow(world: World, advice: str | None) -> None:
    """Do what a line says, command by command, in order."""
    for command in re.findall(r"aws sqs [^;]+", advice or ""):
        _, _, operation, *words = shlex.split(command)
        given = dict(zip(words[::2], words[1::2], strict=True))
        told = given.get("--attributes", "{}")
        attributes: Any = json.loads(told) if told.startswith("{") else dict(one.split("=") for one in told.split(","))
        if operation == "create-queue":
            world.sqs.create_queue(QueueName=given["--queue-name"], Attributes=attributes)
        else:
            world.sqs.set_queue_attributes(QueueUrl=given["--queue-url"], Attributes=attributes)


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_what_it_says_of_dead_letters_mends_all_of_it(ministack: str, make_rig: MakeRig, *, fifo: bool) -> None:
    """Queues without any; then with too few tries; then nothing is left to say."""
    world = World(ministack, fifo=fifo)
    control = {"jobs__queue": f"jobs-{world.suffix}", "jobs__slow_queue": f"slow-{world.suffix}"}
    for name in control.values():
        world.sqs.create_queue(QueueName=name)
    rig = make_rig(world, **control, reconcile__deep_lookback="4d")
    wanted = {**dict.fromkeys(world.queues.values(), JOB_RECEIVES), **dict.fromkeys(control.values(), CONTROL_RECEIVES)}
    lines = [one for one in look(rig) if one.state == "warning"]
    assert [one.name for one in lines] == ["dead_letter_queue"] * 4
    for one in lines:
        follow(world, one.mend)
    assert not [one for one in look(rig) if one.state in {"warning", "failed"}]
    for name, receives in wanted.items():
        url = world.queue_url(name)
        told = world.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])["Attributes"]
        policy = json.loads(told["RedrivePolicy"])
        assert int(policy["maxReceiveCount"]) == receives
        few = json.dumps({**policy, "maxReceiveCount": str(receives - 1)})
        world.sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": few})
    lines = [one for one in look(rig) if one.state == "warning"]
    assert [one.name for one in lines] == ["tries"] * 4
    for one in lines:
        follow(world, one.mend)
    assert not [one for one in look(rig) if one.state in {"warning", "failed"}]


def test_a_redrive_policy_that_names_no_queue_there_is(well: Rig) -> None:
    name = dead(well.world, "reward-point")
    well.world.sqs.delete_queue(QueueUrl=well.world.queue_url(name))
    line = only(look(well), "failed")
    assert (line.name, line.exit_code) == ("dead_letter_queue", 2)
    assert f"aws sqs create-queue --queue-name {name}" in (line.mend or "")


def test_a_queue_that_tells_nothing_of_itself_is_no_failure(well: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(on("GetQueueAttributes"), rewrite_json(lambda answer: answer | {"Attributes": {}})))
    lines = look(well, endpoint=proxy.url)
    assert states(lines, "queue", "visibility", "retention") == {"ok"}
    routed = [one for one in lines if one.subject in well.world.queues.values() and one.state == "ok"]
    assert [one.name for one in routed] == ["queue", "visibility", "retention"] * 2
    assert all("not reported" in one.detail for one in routed)
    assert doctor.exit_code(lines) == 0


# Rights


DENIED = b'{"__type": "com.amazonaws.any#AccessDeniedException", "message": "not you; ask somebody"}'


@pytest.mark.parametrize(
    ("operation", "name", "action"),
    [
        ("DescribeTable", "table", "dynamodb:DescribeTable"),
        ("Query", "query", "dynamodb:Query"),
        ("BatchGetItem", "read_again", "dynamodb:BatchGetItem"),
        ("HEAD bucket", "bucket", "s3:ListBucket"),
        ("GET bucket?list-type", "bucket", "s3:ListBucket"),
    ],
)
def test_a_right_that_is_missing_is_named(well: Rig, proxy: FaultProxy, operation: str, name: str, action: str) -> None:
    s3 = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    proxy.rules.append(Rule(on(operation), status(403, s3) if "bucket" in operation else status(400, DENIED)))
    lines = look(well, endpoint=proxy.url)
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == (name, 2)
    assert f"allow {action} on " in (line.mend or "")
    assert states(lines, "queue", "ledger") == {"ok"}


def test_queues_that_may_not_be_looked_at(well: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(on("GetQueueAttributes"), status(403, DENIED)))
    failed = [one for one in look(well, endpoint=proxy.url) if one.state == "failed"]
    assert {one.subject for one in failed} == set(well.world.queues.values())
    assert all("sqs:GetQueueAttributes" in (one.mend or "") for one in failed)


def test_a_dead_letter_queue_that_may_not_be_looked_at_is_a_warning(well: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(lambda asked: b"QueueOwnerAWSAccountId" in asked.body, status(403, DENIED)))
    lines = look(well, endpoint=proxy.url)
    assert states(lines, "dead_letter_queue") == {"warning"}
    assert doctor.exit_code(lines) == 0


def test_credentials_that_are_refused(well: Rig, proxy: FaultProxy) -> None:
    body = b"<ErrorResponse><Error><Code>ExpiredToken</Code><Message>too old</Message></Error></ErrorResponse>"
    proxy.rules.append(Rule(lambda asked: b"GetCallerIdentity" in asked.body, status(403, body)))
    line = only(look(well, endpoint=proxy.url), "failed")
    assert (line.name, line.exit_code) == ("credentials", 2)
    assert "ExpiredToken" in line.detail


def test_without_credentials_the_ledger_is_looked_at_all_the_same(well: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = well.settings()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    lines = doctor.examine_services(settings)
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == ("credentials", 2)
    assert "AWS_ACCESS_KEY_ID" in (line.mend or "")
    assert states(lines, "table", "index", "projection", "bucket", "queue") == {"skipped"}
    lines = doctor.examine_services(settings.model_copy(update={"objects": ObjectsSettings()}))
    assert states(lines, "bucket") == {"failed"}, "for that, nobody has to be asked"
    assert states(lines, "ledger", "revision", "write") == {"ok"}


def test_without_a_region(well: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    lines = look(well, aws__region="")
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == ("region", 2)
    assert "aws.region" in (line.mend or "")


# Nobody answers


def test_when_aws_does_not_answer_each_service_is_asked_once_more_and_no_further(
    well: Rig, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "CALL", timedelta(seconds=0.1))
    proxy.rules.append(Rule(lambda _: True, hang(600)))
    lines = look(well, endpoint=proxy.url)
    failed = [one for one in lines if one.state == "failed"]
    assert [one.name for one in failed] == ["table", "bucket", "queue"]
    assert {one.exit_code for one in failed} == {1}
    assert all("aws.endpoint_url" in (one.mend or "") for one in failed)
    assert states(lines, "ledger", "revision", "write") == {"ok"}
    assert "not reported" in next(one for one in lines if one.name == "clock" and one.subject == "AWS").detail
    assert len(proxy.log) == 4 * inspection.TRIES
    assert doctor.exit_code(lines) == 1


def test_when_the_ledger_does_not_answer_aws_is_looked_at_all_the_same(well: Rig) -> None:
    url = "postgresql+psycopg://ann:secret@127.0.0.1:9/ledger"
    lines = look(well, ledger__database_url=url)
    line = only(lines, "failed")
    assert (line.name, line.subject, line.exit_code) == ("ledger", "127.0.0.1:9/ledger", 1)
    assert "ledger.database_url" in (line.mend or "")
    assert "secret" not in str(lines)
    assert states(lines, "revision", "write", "durability", "connections") == {"skipped"}
    assert states(lines, "table", "index", "bucket", "queue") == {"ok"}


@pytest.mark.parametrize("config", [None, "[dispatch]\npagination_enabled = true\n"])
def test_a_ledger_that_is_not_named_is_a_line_beside_all_others(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], config: str | None
) -> None:
    monkeypatch.delenv(env_name("ledger.database_url"))
    if config is not None:
        (here / "dispatch-ledger.toml").write_text(config)
    before = sorted(here.iterdir())
    assert cli.main(["doctor", "--json"]) == 2
    out, err = capfd.readouterr()
    document = json.loads(out)
    (line,) = [one for one in document["checks"] if one["state"] == "failed"]
    assert line["name"] == "ledger"
    assert line["detail"].startswith("ledger.database_url is not set")
    assert (f"there is no dispatch-ledger.toml in {here}" in line["detail"]) == (config is None)
    assert line["mend"].startswith("set it to the URL")
    assert err == f"error: ledger: {line['detail']}; {line['mend']}\n" == f"error: {document['error']}\n"
    found = {one["name"]: one["state"] for one in document["checks"] if one["subject"] != "AWS"}
    well_known = {"table", "index", "bucket", "queue"}
    left_out = {"durability", "connections", "session", "revision", "write", "clock"}
    assert {found[name] for name in well_known} == {"ok"}
    assert {found[name] for name in left_out} == {"skipped"}
    assert sorted(here.iterdir()) == before


# Clocks


@pytest.mark.parametrize(("ahead_s", "state"), [(60, "warning"), (-3600, "failed")])
def test_a_clock_that_is_wrong(well: Rig, proxy: FaultProxy, ahead_s: int, state: str) -> None:
    def shifted(_request: Any, forward: Any, _closing: Any) -> Answer:
        answer: Answer = forward()
        moment = clock.utc_now() + timedelta(seconds=ahead_s)
        kept = [one for one in answer.headers if one[0].lower() != "date"]
        told = [*kept, ("Date", moment.strftime("%a, %d %b %Y %H:%M:%S GMT"))]
        return Answer(answer.status, told, answer.body, answer.reason)

    proxy.rules.append(Rule(lambda _: True, shifted))
    line = only(look(well, endpoint=proxy.url), state)
    assert (line.name, line.subject) == ("clock", "AWS")
    assert ("ahead of" if ahead_s > 0 else "behind") in line.detail


# The ledger


def test_a_schema_that_is_behind(well: Rig, empty_database: str) -> None:
    lines = look(well, ledger__database_url=empty_database)
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == ("revision", 1)
    assert "no tables" in line.detail
    assert line.mend == "run: dispatch-ledger db upgrade"


def test_a_schema_of_a_later_version(well: Rig) -> None:
    well.tell("UPDATE dispatch_ledger_version SET version_num = '9999'")
    line = only(look(well), "failed")
    assert (line.name, line.exit_code) == ("revision", 1)
    assert "newer" in (line.mend or "")


@pytest.fixture
def reader(well: Rig) -> Iterator[str]:
    """The ledger's URL as a role that may only read."""
    role = f"reader_{well.world.suffix}"
    well.tell(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 5")
    well.tell(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    well.tell(f"REVOKE SELECT ON runs FROM {role}")
    yield make_url(well.url).set(username=role).render_as_string(hide_password=False)
    well.tell(f"DROP OWNED BY {role}")
    well.tell(f"DROP ROLE {role}")


def test_a_role_that_may_only_read(well: Rig, reader: str) -> None:
    lines = look(well, ledger__database_url=reader)
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == ("write", 2)
    assert "DELETE, INSERT, UPDATE on claims" in line.detail
    assert "GRANT SELECT, INSERT, UPDATE, DELETE" in (line.mend or "")
    assert "DELETE, INSERT, SELECT, UPDATE on runs" in line.detail
    assert only(lines, "warning").name == "connections"


def test_a_role_that_may_not_even_see_the_revision(well: Rig, reader: str) -> None:
    well.tell(f"REVOKE SELECT ON dispatch_ledger_version FROM reader_{well.world.suffix}")
    failed = [one for one in look(well, ledger__database_url=reader) if one.state == "failed"]
    assert [one.name for one in failed] == ["revision", "write"]
    assert "permission denied" in failed[0].detail


def test_a_role_whose_transactions_are_read_only_and_short(well: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # what is durable is looked at here
    role = make_url(well.url).username
    database = make_url(well.url).database
    for setting in ("default_transaction_read_only = on", "statement_timeout = 500", "synchronous_commit = off"):
        well.tell(f"ALTER ROLE {role} IN DATABASE {database} SET {setting}")
    lines = look(well)
    line = only(lines, "failed")
    assert (line.name, line.exit_code) == ("write", 2)
    assert "read only" in line.detail
    assert [one.name for one in lines if one.state == "warning"] == ["durability", "session"]


# The command


@pytest.fixture
def here(well: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and an environment that name the installation."""
    for name, value in well.world.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(env_name("ledger.database_url"), well.url)
    for key, value in well.defaults.items():
        monkeypatch.setenv(env_name(key), value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_prints_a_line_a_check(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "dispatch-ledger.toml").write_text("[dispatch]\npage_size = 'many'\n")
    assert cli.main(["doctor"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    *lines, total = out.splitlines()
    assert len(lines) == int(total.split()[0])
    assert sum(line.startswith("warning") for line in lines) == 3
    assert "3 warnings" in total
    (paging,) = [line for line in lines if "'many' is not understood" in line]
    assert "To mend it: set dispatch.page_size" in paging
    assert any(line.startswith("ok      index") and INDEX in line for line in lines)


def test_the_command_answers_with_one_document(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(env_name("source.table"), "NoSuchTable")
    assert cli.main(["doctor", "--json"]) == 2
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert list(document) == ["checks", "failed", "warnings", "error"]
    assert all(list(one) == ["name", "state", "subject", "detail", "mend"] for one in document["checks"])
    assert {one["state"] for one in document["checks"]} == {"ok", "warning", "failed", "skipped"}
    for one in document["checks"]:
        assert (one["mend"] is not None) == (one["state"] in {"failed", "warning"}), one
    assert (document["failed"], document["warnings"]) == (1, 2)
    assert err == f"error: {document['error']}\n"
    assert "table NoSuchTable" in document["error"]


@pytest.mark.parametrize(
    ("arguments", "text", "detail"),
    [((), "pipelin = 'a'", "unknown key pipelin"), (("--config", "gone.toml"), "", "no such config file")],
)
def test_a_configuration_that_cannot_be_read(
    here: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str, detail: str
) -> None:
    (here / "dispatch-ledger.toml").write_text(text)
    assert cli.main(["doctor", "--json", *arguments]) == 2
    document = json.loads(capfd.readouterr().out)
    first, *others = document["checks"]
    assert (first["name"], first["state"]) == ("config", "failed")
    assert detail in f"{first['detail']} {first['mend']}"
    assert detail in document["error"]
    assert {one["state"] for one in others} == {"skipped"}
    assert document["failed"] == 1
