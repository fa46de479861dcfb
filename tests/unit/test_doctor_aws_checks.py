"""How table, index, bucket and queues are judged by what AWS tells of them; what it does not tell is no failure."""

import copy
import json
import shlex
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch import checks
from dispatch.checks import BucketFacts, QueueFacts
from ledger.checks import Check
from ledger.settings import ReconcileSettings, SourceSettings
from tests.aws_servers import booking
from tests.unit.test_table_schema import INDEX, TABLE, changed

DAY_S = 86_400
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/"
ARN = "arn:aws:sqs:eu-west-1:123456789012:"


def judged(table: dict[str, Any], *, verify_due: bool = True) -> dict[str, Check]:
    return {one.name: one for one in checks.judge_table(table, SourceSettings(), verify_due=verify_due)}


def states(lines: dict[str, Check] | Sequence[Check]) -> list[str]:
    return [one.state for one in (lines.values() if isinstance(lines, dict) else lines)]


def mended(line: Check, state: str, *texts: str) -> Check:
    assert (line.state, line.exit_code) == (state, 2 if state == "failed" else 0), line
    assert line.mend
    for text in texts:
        assert text in f"{line.detail} {line.mend}", line
    return line


# Table, index, projection


def test_a_table_that_fits() -> None:
    lines = judged(TABLE)
    assert list(lines) == ["table", "index", "projection"]
    assert states(lines) == ["ok"] * 3
    assert lines["table"].detail == "ACTIVE, key Id (S)"


def test_a_table_that_tells_little() -> None:
    table = changed(Projection={})
    del table["TableStatus"], table["GlobalSecondaryIndexes"][0]["IndexStatus"]
    lines = judged(table)
    assert states(lines) == ["ok"] * 3
    assert "not reported" in lines["projection"].detail


@pytest.mark.parametrize("status", ["CREATING", "DELETING"])
def test_a_table_that_is_not_ready(status: str) -> None:
    lines = judged(TABLE | {"TableStatus": status})
    mended(lines["table"], "failed", status, "wait until it is ACTIVE")
    assert states(lines) == ["failed", "skipped", "skipped"]


def test_a_table_without_the_index() -> None:
    table = copy.deepcopy(TABLE)
    del table["GlobalSecondaryIndexes"]
    lines = judged(table)
    assert states(lines) == ["ok", "failed", "skipped"]
    mend = mended(lines["index"], "failed", INDEX, "it has none", "source.index").mend or ""
    words = shlex.split(mend.partition(": ")[2])
    assert words[:3] == ["aws", "dynamodb", "update-table"]
    created = json.loads(words[words.index("--global-secondary-index-updates") + 1])[0]["Create"]
    assert created["IndexName"] == INDEX
    assert [one["AttributeName"] for one in created["KeySchema"]] == ["BookingDateUTC", "BookingTimeUTC"]


@pytest.mark.parametrize(
    ("index", "text"),
    [({"Backfilling": True, "IndexStatus": "CREATING"}, "backfilling"), ({"IndexStatus": "CREATING"}, "CREATING")],
)
def test_an_index_that_does_not_show_every_record_yet(index: dict[str, Any], text: str) -> None:
    lines = judged(changed(**index))
    assert states(lines) == ["ok", "failed", "skipped"]
    assert "create" not in (mended(lines["index"], "failed", text, "wait until it is ACTIVE").mend or "")


def test_an_index_keyed_otherwise() -> None:
    keys = [
        {"AttributeName": "BookingTimeUTC", "KeyType": "HASH"},
        {"AttributeName": "BookingDateUTC", "KeyType": "RANGE"},
    ]
    mended(judged(changed(KeySchema=keys))["index"], "failed", "not keyed by", "source.date_attribute")


@pytest.mark.parametrize("kind", ["KEYS_ONLY", "INCLUDE"])
def test_a_narrow_projection_costs_a_second_read_or_does_not_work_at_all(kind: str) -> None:
    table = changed(Projection={"ProjectionType": kind})
    mended(judged(table)["projection"], "warning", kind, "once more", "ALL")
    mended(judged(table, verify_due=False)["projection"], "failed", kind, "dispatch.verify_due = true")


# A record


def sample(whole: bool = True, **changes: Any) -> Check:  # noqa: FBT001, FBT002
    return checks.judge_sample(booking("R1", "2026-09-17T15:00:00Z", **changes), SourceSettings(), whole=whole)


def test_a_record_that_can_be_used() -> None:
    line = sample()
    assert line.state == "ok"
    assert "R1" not in str(line)
    assert checks.judge_sample(None, SourceSettings(), whole=True).state == "skipped"


@pytest.mark.parametrize("time", ["2026-09-17 15:00", "2026-09-17T15:00:00+08:00", {"N": "5"}, None])
def test_a_record_whose_time_cannot_be_read(time: Any) -> None:
    mended(sample(BookingTimeUTC=time), "warning", "BookingTimeUTC", "source.time_attribute")


def test_a_record_that_lacks_what_is_needed() -> None:
    lacking = {"ShopId": None, "RewardType": None}
    mended(sample(**lacking), "warning", "no ShopId, RewardType", "source.group_by")
    assert sample(whole=False, **lacking).state == "ok"


# Bucket


def test_a_bucket() -> None:
    assert checks.judge_bucket(BucketFacts("eu-west-1", []), "b", "eu-west-1").state == "ok"
    assert "not reported" in checks.judge_bucket(BucketFacts(None, []), "b", "eu-west-1").detail
    mended(checks.judge_bucket(BucketFacts("us-east-1", []), "b", "eu-west-1"), "warning", "us-east-1", "eu-west-1")


def rule(days: int | None, **chosen: Any) -> dict[str, Any]:
    expiration = {} if days is None else {"Expiration": {"Days": days}}
    return {"Status": "Enabled", **expiration, **chosen}


@pytest.mark.parametrize(
    ("rules", "state"),
    [
        ([], "ok"),
        (None, "ok"),
        ([rule(13)], "warning"),
        ([rule(14)], "ok"),
        ([rule(365), rule(1, Filter={"Prefix": "reward-dispatch/"})], "warning"),
        ([rule(1, Prefix="reward-dispatch/reward/")], "warning"),
        ([rule(1, Filter={"Prefix": "other/"})], "ok"),
        ([rule(1, Filter={"Tag": {"Key": "dispatch-ledger:orphan"}})], "ok"),
        ([rule(1, Filter={"And": {"Prefix": "reward-dispatch/", "Tags": [{"Key": "k"}]}})], "ok"),
        ([rule(1, Filter={"And": {"Prefix": "reward-dispatch/"}})], "warning"),
        ([rule(1, Status="Disabled")], "ok"),
        ([rule(None, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1})], "ok"),
    ],
)
def test_a_lifecycle_that_removes_what_is_still_needed(rules: list[dict[str, Any]] | None, state: str) -> None:
    line = checks.judge_lifecycle(BucketFacts("r", rules), "b", "reward-dispatch/", timedelta(days=7))
    assert line.state == state
    if state == "warning":
        mended(line, "warning", "before 14d")


def test_a_longer_deep_lookback_needs_objects_for_longer() -> None:
    facts = BucketFacts("r", [rule(20)])
    assert checks.judge_lifecycle(facts, "b", "p/", timedelta(days=30)).state == "warning"


# Queues


def queue(name: str = "q", **attributes: str | int) -> QueueFacts:
    told = {"QueueArn": ARN + name} | {key: str(value) for key, value in attributes.items()}
    return QueueFacts(name, URL + name, told)


def first(facts: QueueFacts, overhead_bytes: int = 700) -> Check:
    return checks.judge_queue(facts, overhead_bytes)[0]


def visibility(facts: QueueFacts) -> Check:
    return checks.judge_queue(facts, 0)[1]


@pytest.mark.parametrize(
    ("name", "attributes", "state", "text"),
    [
        ("q", {"MaximumMessageSize": 262_144}, "ok", "standard, messages up to 262,144 bytes"),
        ("q.fifo", {"MaximumMessageSize": 262_144, "FifoQueue": "true"}, "ok", "FIFO"),
        ("q.fifo", {"MaximumMessageSize": 262_144}, "ok", "FIFO"),
        ("q", {}, "ok", "not reported"),
        ("q", {"MaximumMessageSize": 9999, "KmsMasterKeyId": "alias/k"}, "ok", "key of yours"),
        ("q", {"FifoQueue": "true"}, "failed", "FifoQueue is true"),
        ("q.fifo", {"FifoQueue": "false"}, "failed", "FifoQueue is false"),
        ("q", {"MaximumMessageSize": 1724}, "ok", "1,724"),
        ("q", {"MaximumMessageSize": 1723}, "warning", "1023 bytes"),
        ("q", {"MaximumMessageSize": 702}, "failed", "2 bytes"),
        ("q", {"MaximumMessageSize": 100}, "failed", "0 bytes"),
    ],
)
def test_a_queue(name: str, attributes: dict[str, Any], state: str, text: str) -> None:
    line = first(queue(name, **attributes))
    assert line.state == state
    assert text in line.detail
    if state == "ok":
        assert "SendMessage was not tried" in line.detail
    else:
        mended(line, state)


def test_a_control_queue_carries_ids_and_needs_no_order() -> None:
    assert checks.judge_control(queue(VisibilityTimeout=0, MaximumMessageSize=1024)).state == "ok"
    mended(checks.judge_control(queue("q.fifo")), "failed", "standard")


@pytest.mark.parametrize(("timeout_s", "state"), [(None, "ok"), (30, "ok"), (29, "warning"), (0, "warning")])
def test_visibility(timeout_s: int | None, state: str) -> None:
    line = visibility(queue(**({} if timeout_s is None else {"VisibilityTimeout": timeout_s})))
    assert line.state == state
    if state == "warning":
        mended(line, "warning", f"aws sqs set-queue-attributes --queue-url {URL}q --attributes VisibilityTimeout=60")


@pytest.mark.parametrize(
    ("days", "state", "texts"),
    [
        (None, "ok", ["not reported"]),
        (7, "ok", []),
        (4, "warning", ["reconcile.deep_lookback (7d)", "MessageRetentionPeriod=604800"]),
        (0.1, "warning", ["reconcile.lookback (6h) and reconcile.deep_lookback (7d)"]),
    ],
)
def test_how_long_a_job_waits(days: float | None, state: str, texts: list[str]) -> None:
    facts = queue(**({} if days is None else {"MessageRetentionPeriod": int(days * DAY_S)}))
    line = checks.judge_retention(facts, ReconcileSettings())
    assert line.state == state
    for text in texts:
        assert text in f"{line.detail} {line.mend}"


def test_what_mends_the_one_does_not_break_the_other() -> None:
    facts = queue(MessageRetentionPeriod=7 * DAY_S)
    assert checks.judge_retention(facts, ReconcileSettings()).state == "ok"
    target = queue("dead", MessageRetentionPeriod=14 * DAY_S)
    assert states(checks.judge_dead_letters(facts, target, checks.JOB_RECEIVES)) == ["ok", "ok"]
    facts = queue(MessageRetentionPeriod=864_000)
    assert checks.judge_retention(facts, ReconcileSettings()).state == "ok"
    target = queue("dead", MessageRetentionPeriod=14 * DAY_S)
    assert states(checks.judge_dead_letters(facts, target, checks.JOB_RECEIVES)) == ["ok", "ok"]


def test_no_queue_keeps_a_job_for_longer_than_sqs_does() -> None:
    settings = ReconcileSettings(deep_lookback=timedelta(days=60))
    assert checks.judge_retention(queue(MessageRetentionPeriod=14 * DAY_S), settings).state == "ok"


# Dead letters


def policy(count: object = 5, target: str = "dead") -> str:
    return json.dumps({"deadLetterTargetArn": ARN + target, "maxReceiveCount": count})


def dead(kept_d: float | None, dead_d: float | None, *, fifo: bool = False) -> Check:
    def with_days(name: str, days: float | None) -> QueueFacts:
        return queue(name + ".fifo" * fifo, **({} if days is None else {"MessageRetentionPeriod": int(days * DAY_S)}))

    facts = with_days("q", kept_d)
    return checks.judge_dead_letters(facts, with_days("dead", dead_d), checks.JOB_RECEIVES)[0]


@pytest.mark.parametrize(
    ("kept_d", "dead_d", "fifo", "state"),
    [
        (4, 14, False, "ok"),
        (4, 5, False, "ok"),
        (4, 4, False, "warning"),
        (14, 14, False, "warning"),
        (4, 3.9, False, "failed"),
        (14, 4, False, "failed"),
        (1, 2, False, "warning"),
        (None, 4, False, "ok"),
        (4, None, False, "ok"),
        (4, 4, True, "ok"),
        (14, 7, True, "warning"),
        (1, 2, True, "warning"),
    ],
)
def test_for_how_long_dead_letters_are_kept(
    kept_d: float | None,
    dead_d: float | None,
    fifo: bool,  # noqa: FBT001
    state: str,
) -> None:
    line = dead(kept_d, dead_d, fifo=fifo)
    assert line.state == state, line
    if state != "ok":
        mended(line, state, "MessageRetentionPeriod=")


def test_dead_letters_that_die_unseen_say_so_and_how_to_mend_it() -> None:
    mended(dead(4, 1), "failed", "1d", "4d", "keep the age they had", f"--queue-url {URL}dead", "=1209600")
    mended(dead(14, 14), "warning", "keep the age they had", f"--queue-url {URL}q ", "=864000")
    mended(dead(14, 7, fifo=True), "warning", "begins anew", f"--queue-url {URL}dead.fifo")


@pytest.mark.parametrize(
    ("count", "wanted", "state", "text"),
    [
        (1, 3, "warning", "no second try"),
        (2, 3, "warning", "2 tries, of the 3"),
        (3, 3, "ok", "3"),
        ("5", 3, "ok", "5"),
        (None, 3, "ok", "not reported"),
        (3, 10, "warning", "3 tries, of the 10"),
        (9, 10, "warning", "9 tries"),
        (10, 10, "ok", "10"),
    ],
)
def test_how_many_tries_a_job_has(count: object, wanted: int, state: str, text: str) -> None:
    facts = queue(RedrivePolicy=policy(count))
    line = checks.judge_dead_letters(facts, queue("dead"), wanted)[1]
    assert line.state == state
    assert text in line.detail
    if state == "warning":
        words = shlex.split(mended(line, "warning").mend or "")
        redrive = json.loads(json.loads(words[-1])["RedrivePolicy"])
        assert redrive == {"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": str(wanted)}


@pytest.mark.parametrize("receives", [checks.JOB_RECEIVES, checks.CONTROL_RECEIVES])
@pytest.mark.parametrize(("name", "target"), [("q", "q-dead"), ("q.fifo", "q-dead.fifo"), (URL + "q", "q-dead")])
def test_a_queue_without_a_redrive_policy(name: str, target: str, receives: int) -> None:
    facts = queue(name, QueueArn=ARN + name.rpartition("/")[2])
    line = mended(checks.judge_no_dead_letters(facts, receives), "warning", "no redrive policy")
    first, then = (line.mend or "").split("; then: ")
    assert first == f"create its dead-letter queue first: {checks.create_dead_letters(target)}"
    words = shlex.split(then)
    assert words[:3] == ["aws", "sqs", "set-queue-attributes"]
    wanted = {"deadLetterTargetArn": ARN + target, "maxReceiveCount": str(receives)}
    assert json.loads(json.loads(words[-1])["RedrivePolicy"]) == wanted


def test_the_documentation_gives_the_same_numbers() -> None:
    docs = Path(__file__).parents[2] / "docs"
    said = {
        "how-to/jobs-over-http.md": f"`maxReceiveCount` be {checks.CONTROL_RECEIVES} or more",
        "how-to/write-a-consumer.md": f"`maxReceiveCount` of {checks.JOB_RECEIVES}",
        "how-to/check-an-installation.md": (
            f"Less than {checks.JOB_RECEIVES} is a warning, of the control queues less than {checks.CONTROL_RECEIVES}"
        ),
        "reference/cli.md": (
            f"`maxReceiveCount` below {checks.JOB_RECEIVES}, of `jobs.queue` and `jobs.slow_queue` below "
            f"{checks.CONTROL_RECEIVES}, is a warning"
        ),
    }
    for page, words in said.items():
        assert words in " ".join((docs / page).read_text().split()), page


def test_what_only_some_commands_need_is_never_a_failure() -> None:
    lines = checks.softened([dead(4, 1), dead(4, 14)], "jobs.queue")
    assert states(lines) == ["warning", "ok"]
    assert [one.exit_code for one in lines] == [0, 0]
    assert "jobs.queue" in lines[0].detail
    assert "=1209600" in (lines[0].mend or "")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("q", "aws sqs create-queue --queue-name q"),
        (URL + "q", "aws sqs create-queue --queue-name q"),
        ("q.fifo", "aws sqs create-queue --queue-name q.fifo --attributes FifoQueue=true"),
    ],
)
def test_the_command_that_creates_a_queue(name: str, command: str) -> None:
    assert checks.create_queue(name) == command


def test_a_dead_letter_queue_is_made_to_keep_messages_for_long() -> None:
    keeps = "aws sqs create-queue --queue-name d.fifo --attributes FifoQueue=true,MessageRetentionPeriod=1209600"
    assert checks.create_dead_letters("d.fifo") == keeps
