"""How configuration, clocks and the ledger's server are judged: one line each, with what to do about it."""

import hashlib
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger import checks
from ledger.checks import Check
from ledger.errors import InputError, UnavailableError
from ledger.server import ServerFacts, _skew, address_of
from ledger.settings import ApiSettings, ScheduleSettings, Settings, find_sources, load_settings
from ops import doctor

NOW = datetime(2026, 9, 17, 15, 30, tzinfo=UTC)
FACTS = ServerFacts(
    skew=timedelta(0),
    version_n=150_004,
    version="15.4",
    encoding="UTF8",
    role="ledger_app",
    database="ledger",
    durability={"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"},
    connections_max=100,
    connections_left=60,
    statement_timeout_ms=0,
    read_only="",
    temporary_tables=True,
)


def hours(*gaps: float) -> list[datetime]:
    times = [NOW]
    for gap in gaps:
        times.append(times[-1] + timedelta(hours=gap))
    return times


def find(lines: Sequence[Check], name: str) -> Check:
    (line,) = [one for one in lines if one.name == name]
    return line


def assert_mendable(line: Check, state: str, *texts: str, exit_code: int = 0) -> None:
    assert (line.state, line.exit_code) == (state, exit_code), line
    assert line.mend
    for text in texts:
        assert text in f"{line.detail} {line.mend}", line


# An error as a line


@pytest.mark.parametrize(("error", "exit_code"), [(InputError, 2), (UnavailableError, 1)])
def test_an_error_is_split_into_what_it_is_and_what_to_do(error: Any, exit_code: int) -> None:
    line = checks.of_error("table", "T", error("the table is gone; or hidden; create it"))
    assert line == Check("table", "failed", "T", "the table is gone; or hidden", "create it", exit_code)
    assert checks.of_error("table", "T", error("no advice")).mend == "no advice"
    assert checks.of_error("table", "T", error("gone; create it"), "do that").mend == "do that"


@pytest.mark.parametrize(("duration_s", "text"), [(0, "0d"), (45, "45s"), (90, "90s"), (120, "2m"), (86_400, "1d")])
def test_a_duration_is_written_as_the_settings_do(duration_s: int, text: str) -> None:
    assert checks.seconds(timedelta(seconds=duration_s)) == text


# Where the configuration comes from


def sources_of(tmp_path: Path, text: str | None, **environ: str) -> list[Check]:
    if text is not None:
        (tmp_path / "dispatch-ledger.toml").write_text(text)
    found = find_sources(environ=environ, cwd=tmp_path)
    return checks.judge_sources(found, load_settings(environ=environ, cwd=tmp_path))


def test_the_file_and_the_variables_that_go_before_it_are_named_without_their_values(tmp_path: Path) -> None:
    secret = "postgresql+psycopg://u:secret@h/d"
    (line,) = sources_of(tmp_path, "pipeline = 'p'", DISPATCH_LEDGER_LEDGER__DATABASE_URL=secret)
    assert line.state == "ok"
    assert line.subject == str(tmp_path / "dispatch-ledger.toml")
    assert "DISPATCH_LEDGER_LEDGER__DATABASE_URL" in line.detail
    assert "secret" not in line.detail


@pytest.mark.parametrize(
    ("in_file", "variable", "hidden"),
    [
        ("embedded", "postgresql://u:secret@h/d", True),
        ("postgresql://h/d", "embedded", True),
        ("embedded", "embedded", False),
        ("", "embedded", False),
        ("embedded", "", False),
    ],
)
def test_a_ledger_in_the_file_that_a_variable_hides(
    tmp_path: Path, in_file: str, variable: str, *, hidden: bool
) -> None:
    written = f"[ledger]\ndatabase_url = '{in_file}'\n"
    _, *lines = sources_of(tmp_path, written, DISPATCH_LEDGER_LEDGER__DATABASE_URL=variable)
    assert len(lines) == hidden
    for line in lines:
        assert_mendable(line, "warning", "the file another", "cron", "out of the file")
        assert "secret" not in str(line)
    assert len(sources_of(tmp_path, written)) == 1


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    (line,) = sources_of(tmp_path, None)
    assert (line.state, line.subject) == ("ok", "no file, the defaults hold")
    assert "flow full, page size 1000" in line.detail


@pytest.mark.parametrize("value", ["0", "-5", "many", "", "1.5", "99999999999"])
def test_a_page_size_that_fell_back_to_its_default_is_a_warning(tmp_path: Path, value: str) -> None:
    _, line = sources_of(tmp_path, None, DISPATCH_LEDGER_DISPATCH__PAGE_SIZE=value)
    assert_mendable(line, "warning", "DISPATCH_LEDGER_DISPATCH__PAGE_SIZE", repr(value), "it is 1000", "whole number")


@pytest.mark.parametrize("value", ["yes", "1", "on", ""])
def test_a_flag_that_is_off_although_it_says_something_else_is_a_warning(tmp_path: Path, value: str) -> None:
    _, line = sources_of(tmp_path, f"[dispatch]\npagination_enabled = '{value}'")
    assert_mendable(line, "warning", "dispatch-ledger.toml", repr(value), "it is off", "true or false")


def test_the_variable_that_is_used_is_the_one_that_is_named(tmp_path: Path) -> None:
    inherited = {"_N1CONFIG__BookingDispatcherPageSize": "none"}
    _, line = sources_of(tmp_path, "[dispatch]\npage_size = 5", **inherited)
    assert "_N1CONFIG__BookingDispatcherPageSize" in line.detail


@pytest.mark.parametrize("text", ["page_size = 5", "page_size = ' +7 '", "pagination_enabled = ' TRUE '", ""])
def test_what_was_understood_is_no_warning(tmp_path: Path, text: str) -> None:
    assert [one.state for one in sources_of(tmp_path, f"[dispatch]\n{text}")] == ["ok"]


# The schedule


def schedule(**times: list[datetime]) -> list[Check]:
    usual = {"dispatch": hours(1, 1), "reconcile": hours(0.3, 0.3), "deep_reconcile": hours(24, 24)}
    return checks.judge_schedule(ScheduleSettings(), Settings(), usual | times)


def test_the_next_times_are_told() -> None:
    lines = schedule()
    assert [one.state for one in lines] == ["ok"] * 3
    assert lines[0].subject == "schedule.dispatch = 1 * * * *"
    assert "2026-09-17T15:30:00Z" in lines[0].detail


def test_a_line_that_never_comes_is_a_failure() -> None:
    assert_mendable(schedule(dispatch=[])[0], "failed", "never comes", "schedule.dispatch", exit_code=2)


@pytest.mark.parametrize(
    ("name", "gap", "state", "key"),
    [
        ("dispatch", 24, "ok", ""),
        ("dispatch", 25, "warning", "schedule.catch_up"),
        ("reconcile", 6, "ok", ""),
        ("reconcile", 7, "warning", "reconcile.lookback"),
        ("deep_reconcile", 7 * 24, "ok", ""),
        ("deep_reconcile", 30 * 24, "warning", "reconcile.deep_lookback"),
    ],
)
def test_times_further_apart_than_what_is_looked_at_leave_hours_out(
    name: str, gap: float, state: str, key: str
) -> None:
    line = next(one for one in schedule(**{name: hours(1, gap)}) if f".{name} =" in one.subject)
    assert line.state == state
    assert key in line.detail
    assert (line.mend is None) == (state == "ok")


def test_real_cron_lines_are_followed_to_their_times() -> None:
    wanted = [datetime(2026, 9, 17, 16, 1, tzinfo=UTC), datetime(2026, 9, 17, 17, 1, tzinfo=UTC)]
    times = doctor._times("1 * * * *", NOW)
    assert [next(times), next(times)] == wanted
    assert list(doctor._times("0 0 31 2 *", NOW)) == []


@pytest.mark.parametrize(
    ("since", "state", "text"),
    [
        (None, "warning", "another dispatcher"),
        (NOW + timedelta(seconds=1), "warning", "still to come"),
        (NOW, "ok", "2026-09-17T15:30:00Z"),
    ],
)
def test_not_before(since: datetime | None, state: str, text: str) -> None:
    line = checks.judge_not_before(ScheduleSettings.model_validate({"not_before": since}), NOW)
    assert line.state == state
    assert text in line.detail


def test_receipts_that_nobody_waits_for() -> None:
    assert_mendable(checks.judge_receipts(None), "warning", "reconcile.receipt_within")
    assert checks.judge_receipts(timedelta(hours=2)).state == "ok"


def tokens(*pairs: tuple[str, str]) -> Check:
    named = {
        f"n{at}": {"sha256": hashlib.sha256(text.encode()).hexdigest(), "role": role}
        for at, (text, role) in enumerate(pairs)
    }
    return checks.judge_tokens(ApiSettings.model_validate({"tokens": named}))


def test_tokens_are_judged_and_not_told() -> None:
    assert tokens().state == "ok"
    fine = tokens(("a", "viewer"), ("b", "approver"))
    assert (fine.state, fine.detail) == ("ok", "1 approver, 1 viewer")
    assert_mendable(tokens(("a", "operator")), "warning", "approver")
    assert_mendable(tokens(("a", "operator"), ("a", "approver")), "warning", "same token")
    assert_mendable(tokens(("", "approver")), "failed", "empty token", exit_code=2)
    assert hashlib.sha256(b"a").hexdigest() not in str(tokens(("a", "operator"), ("a", "approver")))


# Clocks


@pytest.mark.parametrize(
    ("skew_s", "state", "exit_code"),
    [
        *((skew_s, "ok", 0) for skew_s in (0, 5, -5)),
        *((skew_s, "warning", 0) for skew_s in (6, -6, 300)),
        *((skew_s, "failed", 1) for skew_s in (301, -301)),
    ],
)
def test_a_clock(skew_s: float, state: str, exit_code: int) -> None:
    line = checks.judge_clock("AWS", timedelta(seconds=skew_s))
    assert (line.state, line.exit_code) == (state, exit_code)
    if state != "ok":
        assert ("ahead of" if skew_s > 0 else "behind") in line.detail
        assert "NTP" in (line.mend or "")


def test_a_clock_that_is_not_told_is_no_failure() -> None:
    assert checks.judge_clock("AWS", None) == Check("clock", "ok", "AWS", "not reported")


@pytest.mark.parametrize(("now_s", "skew_s"), [(0, 0), (1, 0), (2, 0), (5, 3), (-4, -4)])
def test_the_time_of_the_answer_is_not_taken_for_skew(now_s: int, skew_s: int) -> None:
    told = NOW + timedelta(seconds=now_s)
    assert _skew(told, NOW, NOW + timedelta(seconds=2)) == timedelta(seconds=skew_s)


# The ledger


def server(**changes: Any) -> list[Check]:
    return checks.judge_server("db", msgspec.structs.replace(FACTS, **changes))


def test_a_server_that_is_right() -> None:
    lines = server()
    assert [one.state for one in lines] == ["ok"] * 4
    assert "PostgreSQL 15.4, as ledger_app" in find(lines, "ledger").detail


def test_a_server_that_is_too_old() -> None:
    line = find(server(version_n=140_012, version="14.12"), "ledger")
    assert_mendable(line, "failed", "14.12", "PostgreSQL 15 or newer", exit_code=2)


def test_a_database_in_another_encoding() -> None:
    assert_mendable(find(server(encoding="LATIN1"), "ledger"), "failed", "LATIN1", "UTF8", exit_code=2)


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_server_that_may_forget(name: str) -> None:
    line = find(server(durability=FACTS.durability | {name: "off"}), "durability")
    assert_mendable(line, "warning", f"{name} off", f"ALTER SYSTEM SET {name} = on")


@pytest.mark.parametrize("value", ["local", "remote_write", "remote_apply"])
def test_other_ways_to_commit_are_fine(value: str) -> None:
    assert find(server(durability=FACTS.durability | {"synchronous_commit": value}), "durability").state == "ok"


@pytest.mark.parametrize(("left", "state"), [(10, "ok"), (9, "warning"), (-3, "warning")])
def test_connections_left(left: int, state: str) -> None:
    line = find(server(connections_left=left), "connections")
    assert line.state == state
    assert f"{max(0, left)} of 100" in line.detail


@pytest.mark.parametrize(("timeout_ms", "state"), [(0, "ok"), (59_999, "warning"), (60_000, "ok")])
def test_a_statement_timeout(timeout_ms: int, state: str) -> None:
    line = find(server(statement_timeout_ms=timeout_ms), "session")
    assert line.state == state
    if state == "warning":
        assert_mendable(line, "warning", "ALTER ROLE ledger_app SET statement_timeout = 0")


@pytest.mark.parametrize(
    ("current", "embedded", "known", "state", "mend"),
    [
        ("0001", False, True, "ok", None),
        (None, False, False, "failed", "run: dispatch-ledger db upgrade"),
        ("0000", False, True, "failed", "run: dispatch-ledger db upgrade"),
        ("0009", False, False, "failed", "use the version of dispatch-ledger that made it, or a newer one"),
        (None, True, False, "ok", None),
        ("0000", True, True, "ok", None),
        ("0009", True, False, "failed", "use the version of dispatch-ledger that made it, or a newer one"),
    ],
)
def test_a_revision(current: str | None, embedded: bool, known: bool, state: str, mend: str | None) -> None:  # noqa: FBT001
    line = checks.judge_revision("db", current, "0001", embedded=embedded, known=known)
    assert (line.state, line.mend) == (state, mend)
    assert line.exit_code == (1 if state == "failed" else 0)


def rights(missing: dict[str, list[str]] | None = None, **changes: Any) -> Check:
    return checks.judge_rights("db", msgspec.structs.replace(FACTS, **changes), missing or {})


def test_rights() -> None:
    assert rights().state == "ok"
    assert_mendable(rights(read_only="it is a standby"), "failed", "standby", "primary", exit_code=2)
    assert_mendable(rights(temporary_tables=False), "failed", "GRANT TEMPORARY ON DATABASE ledger", exit_code=2)
    line = rights({"windows": ["INSERT", "UPDATE"], "claims": ["DELETE"]})
    assert_mendable(line, "failed", "DELETE on claims; INSERT, UPDATE on windows", "TO ledger_app", exit_code=2)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql+psycopg://u:secret@db.example:5433/ledger?password=secret", "db.example:5433/ledger"),
        ("postgresql+psycopg://u@/ledger?host=/run/pg", "/run/pg/ledger"),
        ("postgresql+psycopg://", "the host that the driver takes by default/"),
    ],
)
def test_the_address_of_a_database_has_no_secret_in_it(url: str, address: str) -> None:
    assert address_of(url) == address


# All lines together


@pytest.mark.parametrize(("codes", "worst"), [([], 0), ([1], 1), ([2, 1], 2), ([1, 1], 1)])
def test_the_exit_code_is_the_worst_of_what_failed(codes: list[int], worst: int) -> None:
    lines = [checks.ok("a", "", ""), checks.warning("b", "", "", "c")]
    lines += [checks.failed("d", "", "", "e", code) for code in codes]
    assert doctor.exit_code(lines) == worst
    document = doctor.document(lines)
    assert (document["failed"], document["warnings"]) == (len(codes), 1)
    assert (document["error"] is None) == (not codes)


def test_a_group_that_breaks_leaves_the_others_standing(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> list[Check]:
        raise RuntimeError("no such thing")

    lines = doctor._at_once({"a": breaks, "c": lambda: [checks.ok("c", "", "fine")]})
    assert [(one.name, one.state, one.exit_code) for one in lines] == [("a", "failed", 1), ("c", "ok", 0)]
    assert "RuntimeError: no such thing" in lines[0].detail


def test_a_group_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def waits() -> list[Check]:
        never.wait()
        return []

    monkeypatch.setattr(doctor, "PATIENCE", timedelta(0))
    (line,) = doctor._at_once({"a": waits})
    never.set()
    assert (line.name, line.state, line.exit_code) == ("a", "failed", 1)
    assert "no answer" in line.detail
