"""What `doctor` says of table, index, bucket and queues: what AWS tells of them goes in, lines come out. Pure."""

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from dispatch.aws.queues import MESSAGE_BYTES_MAX
from dispatch.aws.source import find_index, projection_of, read_key
from dispatch.items import Item
from ledger.checks import Check, failed, of_error, ok, seconds, skipped, warning
from ledger.errors import InputError
from ledger.instants import Window, parse_booking_ns
from ledger.settings import ReconcileSettings, SourceSettings
from ledger.witness import witness_folder

# SQS's own default, and two tries of a call of `consume`, which extends it each third while it works.
VISIBILITY_LEAST = timedelta(seconds=30)
# What maxReceiveCount should be. On a queue of dispatched jobs: as often as `consume` tries before it gives a job up.
JOB_RECEIVES = 3
# On a control queue: the ledger counts a job's attempts, and a worker puts a failed one away itself. SQS counts every
# hand-out of an id, also to a worker that finds the job taken, so its own limit must be well above that.
CONTROL_RECEIVES = 10
# A long weekend, and the day on which somebody looks.
DEAD_LETTERS_KEPT_LEAST = timedelta(days=4)
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html
RETENTION_MOST = timedelta(days=14)
# What that leaves to a queue whose dead letters keep their age.
QUEUE_KEEPS_MOST = RETENTION_MOST - DEAD_LETTERS_KEPT_LEAST
# Group values that fit beside what every message has: a few ids, escaped.
GROUP_BYTES_LEAST = 1024

# ---- DynamoDB ----


def judge_table(table: Mapping[str, Any], source: SourceSettings, *, verify_due: bool) -> list[Check]:
    """Judge what DescribeTable says: the table, its index, and what the index carries; one line each."""
    where = f"{source.table}/{source.index}"
    try:
        keys = read_key(dict(table), source)
    except InputError as error:
        why = "the table cannot be used"
        return [
            of_error("table", source.table, error),
            *(skipped(name, where, why) for name in ("index", "projection")),
        ]
    told = ", ".join(f"{name} ({kind})" for name, kind in keys.items())
    lines = [ok("table", source.table, f"{table.get('TableStatus', 'status not reported')}, key {told}")]
    try:
        index = find_index(dict(table), source)
    except InputError as error:
        mend = _create_index(source) if not _has_index(table, source.index) else None
        return [*lines, of_error("index", where, error, mend), skipped("projection", where, "the index cannot be used")]
    keyed = f"keyed by {source.date_attribute} and {source.time_attribute}"
    lines.append(ok("index", where, f"{index.get('IndexStatus', 'status not reported')}, {keyed}"))
    return [*lines, judge_projection(projection_of(index), where, verify_due=verify_due)]


def judge_projection(kind: str, where: str, *, verify_due: bool) -> Check:
    """Judge which attributes an index carries."""
    if not kind:
        return ok("projection", where, "not reported")
    if kind == "ALL":
        return ok("projection", where, "ALL attributes")
    if not verify_due:
        detail = f"{kind}, and dispatch.verify_due is off: an index copy that is sent must have all attributes"
        return failed("projection", where, detail, "set dispatch.verify_due = true, or make an index that projects ALL")
    detail = f"{kind}: what the index cannot show is read from the table, and once more right before it is claimed"
    return warning("projection", where, detail, "make an index that projects ALL, or live with the second read")


def _has_index(table: Mapping[str, Any], name: str) -> bool:
    kinds = ("GlobalSecondaryIndexes", "LocalSecondaryIndexes")
    return any(one["IndexName"] == name for kind in kinds for one in table.get(kind) or [])


def _create_index(source: SourceSettings) -> str:
    date, time = source.date_attribute, source.time_attribute
    keys = [{"AttributeName": date, "KeyType": "HASH"}, {"AttributeName": time, "KeyType": "RANGE"}]
    create = {"IndexName": source.index, "KeySchema": keys, "Projection": {"ProjectionType": "ALL"}}
    types = [{"AttributeName": name, "AttributeType": "S"} for name in (date, time)]
    command = _command(
        "aws dynamodb update-table",
        table_name=source.table,
        attribute_definitions=_json(types),
        global_secondary_index_updates=_json([{"Create": create}]),
    )
    return f"mend source.index, or create it (on a provisioned table with its throughput): {command}"


def judge_sample(item: Item | None, source: SourceSettings, *, whole: bool) -> Check:
    """Judge one record that the index shows; nothing of what it holds is told.

    Args:
        whole: whether the item has all its attributes, and not only those that the index carries.
    """
    where = f"one record of {source.table}"
    if item is None:
        return skipped("record", where, "the index shows none for yesterday, today and tomorrow")
    try:
        parse_booking_ns(item[source.time_attribute]["S"])
    except (KeyError, ValueError) as reason:
        detail = (
            f"its {source.time_attribute} cannot be read: {reason if isinstance(reason, ValueError) else 'no text'}"
        )
        mend = "mend source.time_attribute, or write RFC 3339 in Z or +00:00; such records become bad_record findings"
        return warning("record", where, detail, mend)
    wanted = (source.status_attribute, *source.group_by, source.route_by) if whole else ()
    lacking = [name for name in wanted if name not in item]
    if lacking:
        mend = "mend source.status_attribute, source.group_by or source.route_by, unless it is that record's own fault"
        return warning("record", where, f"it has no {', '.join(lacking)}", mend)
    return ok("record", where, f"{source.time_attribute} can be read" + ("; every attribute needed is there" * whole))


# ---- S3 ----


class BucketFacts(msgspec.Struct, frozen=True):
    """What S3 says of a bucket.

    Attributes:
        region: None when it is not told.
        rules: its lifecycle; None when it is not told.
    """

    region: str | None
    rules: list[dict[str, Any]] | None


def judge_bucket(facts: BucketFacts, bucket: str, region: str) -> Check:
    """Judge where a bucket is."""
    if facts.region is None:
        return ok("bucket", bucket, "it can be listed; its region is not reported; PutObject was not tried")
    if facts.region != region:
        detail = f"it is in {facts.region}, table and queues in {region}: each object crosses regions, and is paid for"
        return warning("bucket", bucket, detail, f"use a bucket in {region}")
    return ok("bucket", bucket, f"in {facts.region}, it can be listed; PutObject was not tried")


def judge_lifecycle(facts: BucketFacts, bucket: str, prefix: str, deep_lookback: timedelta) -> Check:
    """Judge whether the bucket removes objects that a job or a reconcile still needs."""
    where = f"{bucket}/{prefix}"
    if facts.rules is None:
        return ok("lifecycle", where, "not reported")
    needed = max(deep_lookback, RETENTION_MOST)
    early = [days for rule in facts.rules if (days := _expires_after(rule, prefix)) is not None and days < needed]
    if early:
        detail = f"a rule removes objects after {seconds(min(early))}, while a job or a reconcile may need them"
        return warning(
            "lifecycle", where, detail, f"let no rule for this prefix expire objects before {seconds(needed)}"
        )
    return ok("lifecycle", where, f"no rule removes objects before {seconds(needed)}")


def _expires_after(rule: Mapping[str, Any], prefix: str) -> timedelta | None:
    """Return when a rule removes objects under a prefix; None when it does not, or only those with a tag."""
    chosen = rule.get("Filter") or {}
    both = chosen.get("And") or {}
    tagged = chosen.get("Tag") or both.get("Tags")
    theirs = chosen.get("Prefix") or both.get("Prefix") or rule.get("Prefix") or ""
    days = (rule.get("Expiration") or {}).get("Days")
    meant = theirs.startswith(prefix) or prefix.startswith(theirs)
    if rule.get("Status") != "Enabled" or tagged or days is None or not meant:
        return None
    return timedelta(days=int(days))


def judge_witness_lifecycle(facts: BucketFacts, bucket: str, prefix: str, pipeline: str) -> list[Check]:
    """Judge whether the bucket removes what shows that a ledger was put back to an earlier state; no line when not."""
    folder = witness_folder(prefix, pipeline)
    removed = [days for rule in facts.rules or [] if (days := _expires_after(rule, folder)) is not None]
    if not removed:
        return []
    detail = (
        f"a rule removes witnesses after {seconds(min(removed))}: then nothing shows any more that the ledger was put "
        "back to an earlier state"
    )
    return [warning("lifecycle", f"{bucket}/{folder}", detail, f"let the rule hold for {prefix}{pipeline}/ only")]


def judge_witnesses(where: str, looked_at: int, behind: Mapping[Window, str]) -> Check:
    """Judge whether this ledger knows what the witnesses beside the objects say.

    Args:
        behind: the windows where it does not, with the reason.
    """
    if not looked_at:
        return ok("witness", where, "no window has one yet")
    if not behind:
        return ok("witness", where, f"this ledger knows all that those of the newest {looked_at} windows say")
    window, reason = next(iter(sorted(behind.items())))
    detail = f"{len(behind)} of the newest {looked_at} windows are behind, first {window}: {reason}"
    mend = (
        "when a backup was put back: dispatch-ledger recover --restored; when two ledgers work under one pipeline and "
        "prefix, let only one go on"
    )
    return failed("witness", where, detail, mend)


# ---- SQS ----


class QueueFacts(msgspec.Struct, frozen=True):
    """What SQS says of a queue; an attribute that is not in `attributes` was not told."""

    name: str
    url: str
    attributes: dict[str, str]

    @property
    def fifo(self) -> bool:
        """Whether it is one by its name, which is what a dispatch goes by."""
        return self.name.endswith(".fifo")

    def duration(self, attribute: str) -> timedelta | None:
        """Return an attribute that is told in seconds; None when it was not told."""
        told = self.attributes.get(attribute)
        return None if told is None else timedelta(seconds=int(told))


def judge_queue(facts: QueueFacts, overhead_bytes: int) -> list[Check]:
    """Judge a queue that is there, without its dead-letter queue.

    Args:
        overhead_bytes: what a message takes beside its group values, at the most.
    """
    return [_judge_kind(facts, overhead_bytes), _judge_visibility(facts)]


def judge_control(facts: QueueFacts) -> Check:
    """Judge a control queue. A worker says itself for how long a message is hidden, and the ledger knows every job."""
    if facts.fifo:
        return failed("queue", facts.name, "it is a FIFO queue; job ids need a standard one", "name a standard queue")
    return ok("queue", facts.name, "standard; SendMessage was not tried")


def _judge_kind(facts: QueueFacts, overhead_bytes: int) -> Check:
    told = facts.attributes.get("FifoQueue")
    if told is not None and (told == "true") != facts.fifo:
        detail = f"FifoQueue is {told}, but its name says otherwise, and a dispatch goes by the name"
        return failed("queue", facts.name, detail, "name a FIFO queue NAME.fifo, and no other so")
    kind = "FIFO" if facts.fifo else "standard"
    limit = facts.attributes.get("MaximumMessageSize")
    if limit is None:
        return ok("queue", facts.name, f"{kind}; MaximumMessageSize is not reported; SendMessage was not tried")
    room = min(int(limit), MESSAGE_BYTES_MAX) - overhead_bytes
    if room < GROUP_BYTES_LEAST:
        detail = f"MaximumMessageSize is {limit}: that leaves {max(0, room)} bytes for group values"
        mend = set_attribute(facts, "MaximumMessageSize", str(MESSAGE_BYTES_MAX))
        return failed("queue", facts.name, detail, mend) if room <= 2 else warning("queue", facts.name, detail, mend)
    key = "; encrypted with a key of yours, whose use was not tried" if facts.attributes.get("KmsMasterKeyId") else ""
    return ok("queue", facts.name, f"{kind}, messages up to {int(limit):,} bytes{key}; SendMessage was not tried")


def _judge_visibility(facts: QueueFacts) -> Check:
    visible_after = facts.duration("VisibilityTimeout")
    if visible_after is None:
        return ok("visibility", facts.name, "VisibilityTimeout is not reported")
    if visible_after < VISIBILITY_LEAST:
        detail = f"a job that is not done within {seconds(visible_after)} is given to a second consumer"
        mend = f"set it above the time that a job takes, and not below {seconds(VISIBILITY_LEAST)}: " + set_attribute(
            facts, "VisibilityTimeout", "60"
        )
        return warning("visibility", facts.name, detail, mend)
    return ok("visibility", facts.name, f"{seconds(visible_after)} for a job, or between two of its heartbeats")


def judge_retention(facts: QueueFacts, reconcile: ReconcileSettings) -> Check:
    """Judge how long a job waits against how far back a reconcile looks."""
    kept = facts.duration("MessageRetentionPeriod")
    if kept is None:
        return ok("retention", facts.name, "MessageRetentionPeriod is not reported")
    reaches = {"reconcile.lookback": reconcile.lookback, "reconcile.deep_lookback": reconcile.deep_lookback}
    short = [f"{key} ({seconds(reach)})" for key, reach in reaches.items() if kept < min(reach, RETENTION_MOST)]
    if short:
        reach = " and ".join(short)
        detail = f"a job that nobody has worked vanishes after {seconds(kept)}, sooner than {reach} looks back"
        wanted = min(max(reaches.values()), RETENTION_MOST)
        return warning("retention", facts.name, detail, _keep_for(facts, wanted))
    return ok("retention", facts.name, f"a job waits for up to {seconds(kept)}")


def judge_no_dead_letters(facts: QueueFacts, receives: int) -> Check:
    """Judge a queue without a redrive policy.

    Args:
        receives: what its maxReceiveCount should be, `JOB_RECEIVES` or `CONTROL_RECEIVES`.
    """
    detail = "it has no redrive policy: a job that always fails comes again until it expires, and is gone then"
    arn = facts.attributes.get("QueueArn") or f"arn:aws:sqs:REGION:ACCOUNT:{facts.name.rpartition('/')[2]}"
    target = f"{arn.removesuffix('.fifo')}-dead{'.fifo' * facts.fifo}"
    create = create_dead_letters(target.rpartition(":")[2])
    mend = f"create its dead-letter queue first: {create}; then: {_set_redrive(facts, target, receives)}"
    return warning("dead_letter_queue", facts.name, detail, mend)


def judge_dead_letters(facts: QueueFacts, target: QueueFacts, receives: int) -> list[Check]:
    """Judge a queue's redrive policy, and the dead-letter queue that it names.

    Args:
        receives: what its maxReceiveCount should be, at the least.
    """
    return [_judge_kept(facts, target), _judge_receives(facts, receives)]


def _judge_kept(facts: QueueFacts, target: QueueFacts) -> Check:
    """Judge for how long a dead letter is kept.

    In a standard queue it keeps the age that it had: what is older than the dead-letter queue keeps is gone at once.
    In a FIFO queue its age begins anew. Source: "Setting-up dead-letter queue retention" in the SQS developer guide.
    """
    where = f"{facts.name} to {target.name}"
    kept, before = target.duration("MessageRetentionPeriod"), facts.duration("MessageRetentionPeriod")
    if kept is None or before is None:
        return ok("dead_letter_queue", where, "it exists; MessageRetentionPeriod is not reported")
    mend = _keep_for(target, RETENTION_MOST) if kept < RETENTION_MOST else _keep_for(facts, QUEUE_KEEPS_MOST)
    compared = f"it keeps messages for {seconds(kept)}, their queue for {seconds(before)}"
    if not facts.fifo and kept < before:
        detail = f"{compared}; they keep the age they had, so the old ones are gone before anybody sees them"
        return failed("dead_letter_queue", where, detail, mend)
    if not facts.fifo and kept == before:
        detail = f"{compared}; they keep the age they had, so what waited long is gone soon after it comes"
        return warning("dead_letter_queue", where, detail, mend)
    if facts.fifo and kept < before:
        detail = f"{compared}; their age begins anew there, but a person has less time than a consumer had"
        return warning("dead_letter_queue", where, detail, mend)
    if kept < DEAD_LETTERS_KEPT_LEAST:
        detail = (
            f"it keeps messages for {seconds(kept)}, less than the {seconds(DEAD_LETTERS_KEPT_LEAST)} of a long weekend"
        )
        return warning("dead_letter_queue", where, detail, mend)
    waiting = target.attributes.get("ApproximateNumberOfMessages", "an unknown number of")
    return ok("dead_letter_queue", where, f"{compared}; {waiting} dead letters wait")


def _judge_receives(facts: QueueFacts, receives: int) -> Check:
    try:
        policy = json.loads(facts.attributes["RedrivePolicy"])
        count, target = int(policy["maxReceiveCount"]), str(policy["deadLetterTargetArn"])
    except (KeyError, TypeError, ValueError):
        return ok("tries", facts.name, "maxReceiveCount is not reported")
    if count < receives:
        again = (
            "there is no second try"
            if count == 1
            else f"there are {count} tries, of the {receives} that it should have"
        )
        detail = f"maxReceiveCount is {count}: {again}, and SQS also counts a receive that no consumer has seen"
        return warning("tries", facts.name, detail, _set_redrive(facts, target, receives))
    return ok("tries", facts.name, f"maxReceiveCount is {count}")


def softened(lines: Sequence[Check], key: str) -> list[Check]:
    """Turn failures into warnings: only `serve` and `worker` need what `key` names."""
    return [
        warning(one.name, one.subject, f"{one.detail}; only serve and worker need it ({key})", one.mend or "")
        if one.state == "failed"
        else one
        for one in lines
    ]


# ---- Commands that mend ----


def set_attribute(facts: QueueFacts, name: str, value: str) -> str:
    """Return the command that sets one attribute of a queue."""
    return _command("aws sqs set-queue-attributes", queue_url=facts.url, attributes=f"{name}={value}")


def _keep_for(facts: QueueFacts, duration: timedelta) -> str:
    return set_attribute(facts, "MessageRetentionPeriod", str(int(duration.total_seconds())))


def _set_redrive(facts: QueueFacts, target: str, receives: int) -> str:
    """Return the command that gives a queue its redrive policy."""
    policy = _json({"deadLetterTargetArn": target, "maxReceiveCount": str(receives)})
    attributes = _json({"RedrivePolicy": policy})
    return _command("aws sqs set-queue-attributes", queue_url=facts.url, attributes=attributes)


def create_dead_letters(name: str) -> str:
    """Return the command that creates a dead-letter queue, which keeps messages for as long as SQS allows."""
    return create_queue(name, MessageRetentionPeriod=str(int(RETENTION_MOST.total_seconds())))


def create_queue(name: str, **attributes: str) -> str:
    """Return the command that creates a queue; a FIFO queue by its name."""
    given = ({"FifoQueue": "true"} if name.endswith(".fifo") else {}) | attributes
    extra = {"attributes": ",".join(f"{key}={value}" for key, value in given.items())} if given else {}
    return _command("aws sqs create-queue", queue_name=name.rpartition("/")[2], **extra)


def _command(words: str, **options: str) -> str:
    return " ".join([words, *(f"--{name.replace('_', '-')} {shlex.quote(value)}" for name, value in options.items())])


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
