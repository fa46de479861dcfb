"""What `doctor` says of an installation, line by line; and the judgement of configuration, ledger and clocks. Pure."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal

import msgspec

from ledger.errors import DispatchLedgerError, InputError, UnavailableError
from ledger.instants import format_time
from ledger.server import ServerFacts
from ledger.settings import ApiSettings, ScheduleSettings, Settings, Sources

State = Literal["ok", "warning", "failed", "skipped"]

POSTGRES_LEAST = 15
# What two runs, a scheduler, a server and a worker take, and one for the person who looks at it.
CONNECTIONS_LEFT_LEAST = 10
# A large group is written in one transaction.
STATEMENT_TIMEOUT_LEAST = timedelta(seconds=60)
# `Date` has whole seconds, and an answer takes its time.
SKEW_WORTH_A_WORD = timedelta(seconds=5)
# AWS refuses a signature that is older or younger than this (S3 after 15 minutes).
SKEW_MOST = timedelta(minutes=5)
_EMPTY_TOKEN = hashlib.sha256(b"").hexdigest()


class Check(msgspec.Struct, frozen=True):
    """One line of the doctor's.

    Attributes:
        name: what kind of check, such as `index`.
        subject: what was looked at, by its own name.
        detail: what was seen; on one line.
        mend: how to mend it; None when nothing is wrong, or it was not looked at.
        exit_code: what this line alone would end the command with.
    """

    name: str
    state: State
    subject: str
    detail: str
    mend: str | None = None
    exit_code: int = 0


def ok(name: str, subject: str, detail: str) -> Check:
    """Say that nothing is wrong."""
    return Check(name, "ok", subject, detail)


def skipped(name: str, subject: str, why: str) -> Check:
    """Say that it was not looked at, and why."""
    return Check(name, "skipped", subject, why)


def warning(name: str, subject: str, detail: str, mend: str) -> Check:
    """Say what works, but may harm some day."""
    return Check(name, "warning", subject, detail, mend)


def failed(name: str, subject: str, detail: str, mend: str, exit_code: int = InputError.exit_code) -> Check:
    """Say what does not work: as it is configured (exit code 2), or just now (1)."""
    return Check(name, "failed", subject, detail, mend, exit_code)


def of_error(name: str, subject: str, error: DispatchLedgerError, mend: str | None = None) -> Check:
    """Say an error of ours as a check; its last part, after a semicolon, is what to do."""
    detail, _, advice = str(error).rpartition("; ")
    return failed(name, subject, detail or advice, mend or advice, min(error.exit_code, InputError.exit_code))


def seconds(duration: timedelta) -> str:
    """Write a duration as the settings do, in the largest unit that divides it."""
    total = int(duration.total_seconds())
    size, unit = next(
        (size, unit) for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")) if not total % size
    )
    return f"{total // size}{unit}"


# ---- Configuration ----


def judge_sources(sources: Sources, settings: Settings) -> list[Check]:
    """Say where the configuration comes from, and which values were not understood."""
    subject = str(sources.file or "no file, the defaults hold")
    detail = f"pipeline {settings.pipeline}, flow {settings.flow}, page size {settings.dispatch.page_size}"
    if sources.variables:
        detail += f"; from the environment: {', '.join(sources.variables)}"
    lines = [ok("config", subject, detail)]
    for one in sources.ignored:
        used = settings.dispatch.page_size if one.key.endswith("page_size") else "off"
        mend = f"set {one.key} to {'a whole number above 0' if one.key.endswith('page_size') else 'true or false'}"
        lines.append(warning("config", one.key, f"{one.where}: {one.shown} is not understood; it is {used}", mend))
    if sources.hides_ledger:
        detail = "the environment names this ledger, the file another: a command without the variable, as cron starts "
        detail += "it, works in that one, which knows nothing of what this one has sent"
        mend = "take the line out of the file, or write this one there"
        lines.append(warning("config", "ledger.database_url", detail, mend))
    return lines


def judge_schedule(
    schedule: ScheduleSettings, settings: Settings, times: Mapping[str, Sequence[datetime]]
) -> list[Check]:
    """Judge the cron lines by the times at which each comes next, in order; none at all when it never does."""
    covered = {
        "dispatch": ("schedule.catch_up", schedule.catch_up, "an hour is not dispatched by any run"),
        "reconcile": ("reconcile.lookback", settings.reconcile.lookback, "an hour is not looked at by any reconcile"),
        "deep_reconcile": ("reconcile.deep_lookback", settings.reconcile.deep_lookback, "days are not looked at again"),
    }
    lines = []
    for name, (key, reach, harm) in covered.items():
        subject, coming = f"schedule.{name} = {getattr(schedule, name)}", times[name]
        if not coming:
            lines.append(failed("schedule", subject, "it never comes", f"mend schedule.{name}"))
            continue
        gap = max((later - sooner for sooner, later in pairwise(coming)), default=timedelta(0))
        detail = f"next at {format_time(coming[0])}"
        if gap > reach:
            detail = f"{seconds(gap)} lie between two of its times, and {key} reaches {seconds(reach)} back: {harm}"
            lines.append(warning("schedule", subject, detail, f"let schedule.{name} come more often, or raise {key}"))
        else:
            lines.append(ok("schedule", subject, detail))
    return lines


def judge_not_before(schedule: ScheduleSettings, now: datetime) -> Check:
    """Judge from when on windows are owed."""
    since = schedule.not_before
    if since is None:
        detail = (
            f"not set: every window of the last {seconds(schedule.catch_up)} is owed, also what another dispatcher sent"
        )
        return warning(
            "not_before", "schedule.not_before", detail, "set it to the first hour that is this dispatcher's"
        )
    if since > now:
        detail = f"{format_time(since)} is still to come: until then no window is owed"
        return warning("not_before", "schedule.not_before", detail, "wait for that hour, or mend schedule.not_before")
    return ok("not_before", "schedule.not_before", f"windows from {format_time(since)} on are owed")


def judge_receipts(receipt_within: timedelta | None) -> Check:
    """Judge whether anybody waits for receipts."""
    if receipt_within is None:
        detail = "not set: a job that no consumer ever finishes is not reported"
        mend = "set reconcile.receipt_within to longer than a job may wait, once your consumers write receipts"
        return warning("receipts", "reconcile.receipt_within", detail, mend)
    return ok(
        "receipts", "reconcile.receipt_within", f"a job without a receipt after {seconds(receipt_within)} is reported"
    )


def judge_tokens(api: ApiSettings) -> Check:
    """Judge the tokens of the API; nothing of a token is in what is said."""
    if not api.tokens:
        return ok("api", "api.tokens", "none: the API is for this machine only")
    roles = Counter(token.role for token in api.tokens.values())
    detail = ", ".join(f"{count} {role}" for role, count in sorted(roles.items()))
    if any(token.sha256 == _EMPTY_TOKEN for token in api.tokens.values()):
        mend = 'make a token, and its hash with: printf %s "$TOKEN" | sha256sum'
        return failed("api", "api.tokens", "one of them is the hash of an empty token", mend)
    if len({token.sha256 for token in api.tokens.values()}) < len(api.tokens):
        mend = "give each name a token of its own"
        return warning("api", "api.tokens", f"two names have the same token ({detail})", mend)
    if not roles["approver"]:
        mend = "give somebody the role approver"
        return warning("api", "api.tokens", f"{detail}: over HTTP nobody may apply a plan or release a hold", mend)
    return ok("api", "api.tokens", detail)


# ---- Clocks ----


def judge_clock(subject: str, skew: timedelta | None) -> Check:
    """Judge how far another clock is ahead of this machine's; None when it was not told."""
    if skew is None:
        return ok("clock", subject, "not reported")
    apart = f"{abs(skew.total_seconds()):.1f} s {'ahead of' if skew > timedelta(0) else 'behind'} this machine"
    mend = "let both keep time by NTP, such as: timedatectl set-ntp true"
    if abs(skew) > SKEW_MOST:
        detail = f"{apart}; AWS refuses signatures that are {seconds(SKEW_MOST)} off"
        return failed("clock", subject, detail, mend, UnavailableError.exit_code)
    if abs(skew) > SKEW_WORTH_A_WORD:
        return warning("clock", subject, apart, mend)
    return ok("clock", subject, f"less than {seconds(SKEW_WORTH_A_WORD)} from this machine's")


# ---- The ledger ----


def judge_server(subject: str, facts: ServerFacts) -> list[Check]:
    """Judge the server, and what the role may do there."""
    return [
        _judge_version(subject, facts),
        _judge_durability(subject, facts),
        _judge_connections(subject, facts),
        _judge_session(subject, facts),
    ]


def _judge_version(subject: str, facts: ServerFacts) -> Check:
    if facts.version_n // 10_000 < POSTGRES_LEAST:
        detail = f"PostgreSQL {facts.version} is too old"
        return failed("ledger", subject, detail, f"use PostgreSQL {POSTGRES_LEAST} or newer")
    if facts.encoding != "UTF8":
        detail = f"the database is in {facts.encoding}, which cannot hold every name"
        return failed(
            "ledger", subject, detail, "make it anew: CREATE DATABASE ledger ENCODING 'UTF8' TEMPLATE template0"
        )
    return ok("ledger", subject, f"PostgreSQL {facts.version}, as {facts.role}")


def _judge_durability(subject: str, facts: ServerFacts) -> Check:
    off = [name for name, value in facts.durability.items() if value == "off"]
    if off:
        detail = (
            f"{' and '.join(off)} off: a crash of the server forgets promises that were kept, and they are sent again"
        )
        mend = "; ".join(f"ALTER SYSTEM SET {name} = on" for name in off) + "; SELECT pg_reload_conf()"
        return warning("durability", subject, detail, f"{mend}; or take it from the role or the database")
    return ok("durability", subject, ", ".join(f"{name} {value}" for name, value in facts.durability.items()))


def _judge_connections(subject: str, facts: ServerFacts) -> Check:
    detail = f"{max(0, facts.connections_left)} of {facts.connections_max} connections are left"
    if facts.connections_left < CONNECTIONS_LEFT_LEAST:
        mend = "raise max_connections, the limit of the role or the database, or end what holds connections"
        return warning("connections", subject, detail, mend)
    return ok("connections", subject, detail)


def _judge_session(subject: str, facts: ServerFacts) -> Check:
    timeout = timedelta(milliseconds=facts.statement_timeout_ms)
    if timedelta(0) < timeout < STATEMENT_TIMEOUT_LEAST:
        detail = f"statement_timeout is {facts.statement_timeout_ms} ms: a large group is written in one statement"
        return warning("session", subject, detail, f"ALTER ROLE {facts.role} SET statement_timeout = 0")
    return ok("session", subject, f"statement_timeout {seconds(timeout) if timeout else 'off'}")


def judge_revision(subject: str, current: str | None, head: str, *, embedded: bool, known: bool) -> Check:
    """Judge the schema's revision.

    Args:
        embedded: whether the product runs the server, and so upgrades it by itself.
        known: whether this version has that revision in its history.
    """
    has = current or "no tables"
    if current == head:
        return ok("revision", subject, f"{has}, which is this version's")
    detail = f"it has {has}, this version needs {head}"
    if current is not None and not known:
        mend = "use the version of dispatch-ledger that made it, or a newer one"
        return failed("revision", subject, detail, mend, UnavailableError.exit_code)
    if embedded:
        return ok("revision", subject, f"{detail}: the next command that needs it upgrades it")
    return failed("revision", subject, detail, "run: dispatch-ledger db upgrade", UnavailableError.exit_code)


def judge_rights(subject: str, facts: ServerFacts, missing: Mapping[str, Sequence[str]]) -> Check:
    """Judge whether the role can write: `missing` are the rights it lacks, by table."""
    if facts.read_only:
        detail = f"it cannot be written to: {facts.read_only}"
        return failed(
            "write", subject, detail, "name the primary server in ledger.database_url, with a role that writes"
        )
    if not facts.temporary_tables:
        mend = f"GRANT TEMPORARY ON DATABASE {facts.database} TO {facts.role}"
        return failed("write", subject, f"{facts.role} may not make temporary tables, which redo needs", mend)
    if missing:
        lacks = "; ".join(f"{', '.join(rights)} on {table}" for table, rights in sorted(missing.items()))
        mend = f"as the owner: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {facts.role}"
        return failed("write", subject, f"{facts.role} lacks {lacks}", mend)
    return ok("write", subject, "no table is closed to the role; a write was tried and taken back")
