"""`doctor`: look at everything that a dispatch needs, change none of it, and say of each thing how to mend it.

What can be asked for independently is asked for at the same time, so that one service that is down hides nothing of the
others; within one service, what follows from an earlier failure is skipped. It ends within about a minute, whatever
does not answer.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from dispatch.aws.errors import is_denied
from dispatch.aws.inspection import Inspector
from dispatch.aws.queues import dead_letter_target
from dispatch.aws.session import NoRegionError, Session
from dispatch.aws.source import read_schema
from dispatch.checks import (
    CONTROL_RECEIVES,
    JOB_RECEIVES,
    QueueFacts,
    create_dead_letters,
    create_queue,
    judge_bucket,
    judge_control,
    judge_dead_letters,
    judge_lifecycle,
    judge_no_dead_letters,
    judge_queue,
    judge_retention,
    judge_sample,
    judge_table,
    judge_witness_lifecycle,
    judge_witnesses,
    softened,
)
from dispatch.payload import overhead_bytes
from dispatch.witnesses import read_witnesses
from ledger import checks, clock, schema, upgrading, windows
from ledger.checks import Check, failed, of_error, ok, skipped, warning
from ledger.errors import DispatchLedgerError, InputError, MissingError, UnavailableError
from ledger.facts import Destination
from ledger.instants import window_at
from ledger.server import address_of, inspect_server
from ledger.settings import Settings, Sources, find_sources, load_settings
from ledger.store import Store
from ledger.witness import window_of_key, witness_folder
from ops import wiring
from ops.schedule import trigger_of

LOG = structlog.get_logger(__name__)
# For all services together; each call has a limit of its own, far below.
PATIENCE = timedelta(seconds=60)
_TIMES_LOOKED_AT = 50
_WITNESSES_LOOKED_AT = 200
_AFTER_CONFIG = ("credentials", "table", "index", "projection", "bucket", "queue", "ledger", "revision", "clock")
_AFTER_TABLE = ("query", "read_again", "record")
_AFTER_LEDGER = ("durability", "connections", "session", "revision", "write", "clock")
_AFTER_QUEUE = ("visibility", "retention", "dead_letter_queue", "tries")

_NO_BUCKET = [
    failed("bucket", "objects.bucket", "not set", "set it to the S3 bucket that group payloads go to"),
    skipped("lifecycle", "objects.bucket", "no bucket is named"),
]

Group = Callable[[], list[Check]]


def examine(config: Path | None = None) -> list[Check]:
    """Look at everything, in a fixed order; the configuration comes from where every command takes it."""
    try:
        sources, settings = find_sources(config), load_settings(config)
    except InputError as error:
        skips = [skipped(name, "", "the configuration cannot be read") for name in _AFTER_CONFIG]
        return [of_error("config", str(config or "configuration"), error), *skips]
    return [*_examine_settings(sources, settings), *examine_services(settings)]


def exit_code(lines: Sequence[Check]) -> int:
    """Return the exit code: 2 when something is set up wrongly or missing, else 1 when something failed, else 0."""
    return max((one.exit_code for one in lines if one.state == "failed"), default=0)


def document(lines: Sequence[Check]) -> dict[str, Any]:
    """Return the document of `doctor --json`."""
    return {
        "checks": [
            {"name": one.name, "state": one.state, "subject": one.subject, "detail": one.detail, "mend": one.mend}
            for one in lines
        ],
        "failed": count(lines, "failed"),
        "warnings": count(lines, "warning"),
        "error": error_line(lines),
    }


def count(lines: Sequence[Check], state: str) -> int:
    """Count the lines in a state."""
    return sum(one.state == state for one in lines)


def error_line(lines: Sequence[Check]) -> str | None:
    """Name what failed, on one line; None when nothing did."""
    broken = [one for one in lines if one.state == "failed"]
    names = [f"{one.name} {one.subject}".strip() for one in broken]
    if not broken:
        return None
    if len(broken) == 1:
        return f"{names[0]}: {broken[0].detail}; {broken[0].mend}"
    return f"{len(names)} of {len(lines)} checks failed: {', '.join(names)}; each line says how to mend it"


# ---- The configuration alone ----


def _examine_settings(sources: Sources, settings: Settings) -> list[Check]:
    now, schedule = clock.utc_now(), settings.schedule
    lines = {"dispatch": schedule.dispatch, "reconcile": schedule.reconcile, "deep_reconcile": schedule.deep_reconcile}
    times = {name: list(islice(_times(line, now), _TIMES_LOOKED_AT)) for name, line in lines.items()}
    return [
        *checks.judge_sources(sources, settings),
        *checks.judge_schedule(schedule, settings, times),
        checks.judge_not_before(schedule, now),
        checks.judge_receipts(settings.reconcile.receipt_within),
        checks.judge_tokens(settings.api),
    ]


def _times(line: str, now: datetime) -> Iterator[datetime]:
    trigger, last = trigger_of(line), None
    while (
        coming := trigger.get_next_fire_time(last, now if last is None else last + timedelta(seconds=1))
    ) is not None:
        yield coming
        last = coming


# ---- The services ----


def examine_services(settings: Settings) -> list[Check]:
    """Look at AWS and the ledger."""
    with ExitStack() as stack:
        lines, inspector = _connect(settings, stack)
        groups: dict[str, Group] = {}
        if inspector is not None:
            groups |= {
                "credentials": lambda: _examine_identity(inspector, lines),
                "table": lambda: _examine_table(inspector, settings),
                "bucket": lambda: _examine_bucket(inspector, settings),
                "queue": lambda: _examine_queues(inspector, settings),
            }
        groups["ledger"] = lambda: _examine_ledger(settings)
        found = _at_once(groups)
        found += _at_once({"witness": lambda: [_examine_witnesses(settings, inspector, found)]})
    if inspector is None:
        return [*lines, *found]
    return [*found, checks.judge_clock("AWS", inspector.skew)]


def _connect(settings: Settings, stack: ExitStack) -> tuple[list[Check], Inspector | None]:
    """Find endpoint, region and credentials; the lines say what was found, or why nothing of AWS can be looked at."""
    embedded = settings.aws.endpoint_url == wiring.EMBEDDED
    where = settings.aws.endpoint_url or "AWS"
    skips = [skipped(name, "", "AWS cannot be asked") for name in ("table", "index", "projection", "queue")]
    skips += [skipped("bucket", "", "AWS cannot be asked")] if settings.objects.bucket else _NO_BUCKET
    try:
        endpoint = stack.enter_context(wiring.aws_endpoint(settings))
        session = Session(endpoint, settings.aws.region, embedded=embedded)
        inspector = Inspector(session)
    except NoRegionError as error:
        return [of_error("region", where, error), skipped("credentials", where, "no region is known"), *skips], None
    except UnavailableError as error:
        return [of_error("endpoint", where, error), skipped("credentials", where, "AWS cannot be asked"), *skips], None
    except DispatchLedgerError as error:
        return [of_error("credentials", where, error), *skips], None
    region = ok("region", where, session.region)
    return [region, ok("credentials", where, f"found by {session.credentials_from}")], inspector


def _examine_identity(inspector: Inspector, found: list[Check]) -> list[Check]:
    region, credentials = found
    try:
        identity = inspector.identity() or "whose they are is not reported"
    except DispatchLedgerError as error:
        return [region, of_error("credentials", credentials.subject, error)]
    return [region, ok("credentials", credentials.subject, f"{credentials.detail}: {identity}")]


def _examine_table(inspector: Inspector, settings: Settings) -> list[Check]:
    source, verify_due = settings.source, settings.dispatch.verify_due
    where = f"{source.table}/{source.index}"
    try:
        table = inspector.table(source.table)
    except DispatchLedgerError as error:
        mend = f"allow dynamodb:DescribeTable on table {source.table}" if is_denied(error) else None
        why = "the table cannot be looked at"
        skips = [skipped(name, where, why) for name in ("index", "projection", *_AFTER_TABLE)]
        return [of_error("table", source.table, error, mend), *skips]
    lines = judge_table(table, source, verify_due=verify_due)
    if any(one.state in {"failed", "skipped"} for one in lines if one.name != "projection"):
        return [*lines, *(skipped(name, where, "the index cannot be used") for name in _AFTER_TABLE)]
    return [*lines, *_examine_records(inspector, settings, table)]


def _examine_records(inspector: Inspector, settings: Settings, table: dict[str, Any]) -> list[Check]:
    source = settings.source
    table_schema = read_schema(table, source, verify_due=True)
    where = f"{source.table}/{source.index}"
    try:
        item = inspector.sample(source, clock.utc_now())
    except DispatchLedgerError as error:
        mend = f"allow dynamodb:Query on index {where}" if is_denied(error) else None
        why = "the index cannot be read"
        return [of_error("query", where, error, mend), *(skipped(name, where, why) for name in _AFTER_TABLE[1:])]
    lines = [ok("query", where, "a Query with limit 1 works")]
    try:
        whole = inspector.read_again(source, table_schema, item)
    except DispatchLedgerError as error:
        mend = f"allow dynamodb:BatchGetItem on table {source.table}" if is_denied(error) else None
        again = of_error("read_again", source.table, error, mend)
        return [*lines, again, judge_sample(item, source, whole=table_schema.projects_all)]
    lines.append(ok("read_again", source.table, "a consistent read of one key works"))
    is_whole = whole is not None or table_schema.projects_all
    return [*lines, judge_sample(item if whole is None else whole, source, whole=is_whole)]


def _examine_bucket(inspector: Inspector, settings: Settings) -> list[Check]:
    bucket, prefix = settings.objects.bucket, settings.objects.prefix
    if not bucket:
        return _NO_BUCKET
    try:
        facts = inspector.bucket(bucket, prefix)
    except DispatchLedgerError as error:
        mend = f"allow s3:ListBucket on bucket {bucket}, for every prefix" if is_denied(error) else None
        if isinstance(error, MissingError):
            mend = f"create it: aws s3 mb s3://{bucket}, or mend objects.bucket"
        return [of_error("bucket", bucket, error, mend), skipped("lifecycle", bucket, "the bucket cannot be used")]
    return [
        judge_bucket(facts, bucket, inspector.region),
        judge_lifecycle(facts, bucket, prefix, settings.reconcile.deep_lookback),
        *judge_witness_lifecycle(facts, bucket, prefix, settings.pipeline),
    ]


def _examine_queues(inspector: Inspector, settings: Settings) -> list[Check]:
    """Look at one queue after the other; once SQS does not answer, at none."""
    control = {settings.jobs.queue: "jobs.queue", settings.jobs.slow_queue: "jobs.slow_queue"}
    routed = {route.queue for route in settings.routes.values()}
    lines: list[Check] = []
    silent = False
    for name in [*sorted(routed), *(one for one in control if one not in routed)]:
        if silent:
            lines.append(skipped("queue", name, "SQS does not answer"))
            continue
        key = "routes" if name in routed else control[name]
        try:
            facts = inspector.queue(name, key)
        except DispatchLedgerError as error:
            silent = isinstance(error, UnavailableError)
            lines += _missing_queue(name, key, error)
            continue
        if name in routed:
            kept = judge_retention(facts, settings.reconcile)
            lines += [
                *judge_queue(facts, _overhead_bytes(settings, name)),
                kept,
                *_examine_dead(inspector, facts, JOB_RECEIVES),
            ]
        else:
            lines += softened([judge_control(facts), *_examine_dead(inspector, facts, CONTROL_RECEIVES)], key)
    return lines


def _missing_queue(name: str, key: str, error: DispatchLedgerError) -> list[Check]:
    mend = f"create it: {create_queue(name)}, or mend {key}" if isinstance(error, MissingError) else None
    if is_denied(error):
        mend = f"allow sqs:GetQueueUrl and sqs:GetQueueAttributes on queue {name}"
    line = of_error("queue", name, error, mend)
    if key != "routes" and not isinstance(error, UnavailableError):
        return softened([line], key)
    return [line, *(skipped(one, name, "the queue cannot be looked at") for one in _AFTER_QUEUE)]


def _examine_dead(inspector: Inspector, facts: QueueFacts, receives: int) -> list[Check]:
    """Look at where a message of this queue ends."""
    no_tries = skipped("tries", facts.name, "there is no dead-letter queue to look at")
    try:
        target = inspector.dead_letters(facts)
    except DispatchLedgerError as error:
        if not is_denied(error):
            return [of_error("dead_letter_queue", facts.name, error, _create_target(facts, error)), no_tries]
        mend = "allow sqs:GetQueueUrl and sqs:GetQueueAttributes on the dead-letter queue"
        return [warning("dead_letter_queue", facts.name, "it may not be looked at", mend), no_tries]
    if target is None:
        return [judge_no_dead_letters(facts, receives)]
    return judge_dead_letters(facts, target, receives)


def _create_target(facts: QueueFacts, error: DispatchLedgerError) -> str | None:
    if not isinstance(error, MissingError):
        return None
    _, name = dead_letter_target(facts.attributes["RedrivePolicy"])
    return f"create it: {create_dead_letters(name)}"


def _overhead_bytes(settings: Settings, queue: str) -> int:
    """Return what the largest message to a route's queue takes beside its group values."""
    bucket, prefix = settings.objects.bucket or "", settings.objects.prefix
    routes = {name: route for name, route in settings.routes.items() if route.queue == queue}
    return max(
        overhead_bytes(
            settings.pipeline,
            window_at(0),
            Destination(id=0, route=name, job=route.job, queue=queue, bucket=bucket, prefix=prefix),
        )
        for name, route in routes.items()
    )


def _examine_ledger(settings: Settings) -> list[Check]:
    try:
        where = settings.require_ledger()
    except InputError as error:
        return [of_error("ledger", "", error), *(skipped(name, "", "no ledger is named") for name in _AFTER_LEDGER)]
    embedded = where == wiring.EMBEDDED
    subject = wiring.EMBEDDED if embedded else address_of(where)
    try:
        with wiring.database(settings) as url:
            inspected = inspect_server(url)
            revision = _examine_revision(url, subject, embedded=embedded)
    except DispatchLedgerError as error:
        return [
            of_error("ledger", subject, error),
            *(skipped(name, subject, "the ledger does not answer") for name in _AFTER_LEDGER),
        ]
    return [
        *checks.judge_server(subject, inspected.facts),
        revision,
        checks.judge_rights(subject, inspected.facts, inspected.missing_rights),
        checks.judge_clock(subject, inspected.facts.skew),
    ]


def _examine_witnesses(settings: Settings, inspector: Inspector | None, found: Sequence[Check]) -> Check:
    """Compare the newest windows' witnesses with the ledger: was it put back, and is it the only one?

    Args:
        found: what was seen so far; bucket and ledger are not asked in vain.
    """
    bucket, pipeline = settings.objects.bucket, settings.pipeline
    folder = witness_folder(settings.objects.prefix, pipeline)
    where = f"{bucket}/{folder}"
    states = {one.name: one.state for one in found}
    if inspector is None or not bucket or not {states.get("bucket"), states.get("revision")} <= {"ok", "warning"}:
        return skipped("witness", where, "bucket or ledger cannot be used")
    try:
        newest = inspector.newest_keys(bucket, folder, _WITNESSES_LOOKED_AT)
        with wiring.database(settings) as url, Store(url) as store:
            chosen = [window for key in newest if (window := window_of_key(folder, key)) is not None]
            origin = windows.read_origin(store, pipeline)
            places = {(bucket, settings.objects.prefix), *origin.places}
            witnesses = read_witnesses(inspector, places, pipeline, chosen)
            behind = windows.find_behind(store, pipeline, witnesses, origin.ledger_id)
    except DispatchLedgerError as error:
        return of_error("witness", where, error)
    return judge_witnesses(where, len(chosen), behind)


def _examine_revision(url: str, subject: str, *, embedded: bool) -> Check:
    try:
        current = schema.current_revision(url)
    except DispatchLedgerError as error:
        return of_error("revision", subject, error)
    known = current is not None and upgrading.is_known(current)
    return checks.judge_revision(subject, current, schema.head_revision(), embedded=embedded, known=known)


def _at_once(groups: dict[str, Group]) -> list[Check]:
    """Do them at the same time; one that takes too long, or breaks, is a failed line, and the others stand."""
    answers: dict[str, list[Check]] = {}
    threads = [threading.Thread(target=_answer, args=(name, groups[name], answers), daemon=True) for name in groups]
    for thread in threads:
        thread.start()
    end_s = clock.monotonic_s() + PATIENCE.total_seconds()
    for thread in threads:
        thread.join(max(0.0, end_s - clock.monotonic_s()))
    silent = f"no answer within {checks.seconds(PATIENCE)}"
    mend = "check the network, aws.endpoint_url and ledger.database_url"
    late = {name: [failed(name, "", silent, mend, UnavailableError.exit_code)] for name in groups}
    return [line for name in groups for line in answers.get(name, late[name])]


def _answer(name: str, group: Group, answers: dict[str, list[Check]]) -> None:
    try:
        answers[name] = group()
    except Exception as error:
        mend = "please report it, with what the log says"
        detail = f"unexpected {type(error).__name__}: {error}"
        answers[name] = [failed(name, "", detail, mend, UnavailableError.exit_code)]
        LOG.exception("check broke", check=name)
