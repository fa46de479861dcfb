"""The configuration: defaults, each source and its place in the order, each value's form, and the error lines."""
# ruff: noqa: E501, RUF001 - the tables keep one case, or one key, on a line, and try digits that only look like ours

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ledger.errors import InputError
from ledger.settings import (
    ENV_JSON_EXAMPLES,
    Route,
    Settings,
    Token,
    child_environment,
    env_name,
    init_template,
    known_keys,
    load_settings,
)

HASH = "0123456789abcdef" * 4
NOW = datetime(2026, 9, 17, 15, 42, 10, 5, tzinfo=UTC)

DEFAULTS: dict[str, object] = {
    "pipeline": "reward",
    "ledger.database_url": None,
    "ledger.bin_dir": None,
    "aws.endpoint_url": None,
    "aws.region": None,
    "source.table": "PromotionRewardBooking",
    "source.index": "BookingDateUTC-BookingTimeUTC-index",
    "source.date_attribute": "BookingDateUTC",
    "source.time_attribute": "BookingTimeUTC",
    "source.status_attribute": "RewardStatus",
    "source.due_status": "WaitToReward",
    "source.group_by": ("ShopId", "MemberId", "PromotionEngineId"),
    "source.order_by": "OrderTime",
    "source.route_by": "RewardType",
    "source.updated_at_attribute": None,
    "objects.bucket": None,
    "objects.prefix": "reward-dispatch/",
    "routes": {
        "Point": Route(job="RewardPoint", queue="reward-point"),
        "ECoupon": Route(job="RewardECoupon", queue="reward-ecoupon"),
    },
    "dispatch.pagination_enabled": False,
    "dispatch.page_size": 1000,
    "dispatch.grouping": "window",
    "dispatch.lease": timedelta(seconds=60),
    "dispatch.verify_due": True,
    "reconcile.lookback": timedelta(hours=6),
    "reconcile.grace": timedelta(minutes=10),
    "reconcile.orphan_grace": timedelta(hours=24),
    "reconcile.deep_lookback": timedelta(days=7),
    "reconcile.max_redispatch": 500,
    "reconcile.receipt_within": None,
    "schedule.dispatch": "1 * * * *",
    "schedule.reconcile": "*/20 * * * *",
    "schedule.deep_reconcile": "30 3 * * *",
    "schedule.not_before": None,
    "schedule.catch_up": timedelta(hours=24),
    "jobs.queue": "dispatch-ledger-jobs",
    "jobs.slow_queue": "dispatch-ledger-jobs-slow",
    "jobs.max_depth": 1000,
    "jobs.fast_limit": timedelta(seconds=60),
    "api.tokens": {},
}

# For each key: a text for the environment, and the value that it stands for.
OVERRIDES: dict[str, tuple[str, object]] = {
    "pipeline": ("coupons.2", "coupons.2"),
    "ledger.database_url": ("postgresql+psycopg://u:p@h:5432/db", "postgresql+psycopg://u:p@h:5432/db"),
    "ledger.bin_dir": ("/opt/pg/bin", Path("/opt/pg/bin")),
    "aws.endpoint_url": ("http://127.0.0.1:4566", "http://127.0.0.1:4566"),
    "aws.region": ("eu-west-1", "eu-west-1"),
    "source.table": ("T", "T"),
    "source.index": ("I", "I"),
    "source.date_attribute": ("D", "D"),
    "source.time_attribute": ("Z", "Z"),
    "source.status_attribute": ("S", "S"),
    "source.due_status": ("Due now", "Due now"),
    "source.group_by": ('["A", "B"]', ("A", "B")),
    "source.order_by": ("O", "O"),
    "source.route_by": ("R", "R"),
    "source.updated_at_attribute": ("U", "U"),
    "objects.bucket": ("my-bucket", "my-bucket"),
    "objects.prefix": ("", ""),
    "routes": ('{"X": {"job": "J", "queue": "q.fifo"}}', {"X": Route(job="J", queue="q.fifo")}),
    "dispatch.pagination_enabled": ("true", True),
    "dispatch.page_size": ("7", 7),
    "dispatch.grouping": ("page", "page"),
    "dispatch.lease": ("500ms", timedelta(milliseconds=500)),
    "dispatch.verify_due": ("False", False),
    "reconcile.lookback": ("2d", timedelta(days=2)),
    "reconcile.grace": ("0s", timedelta(0)),
    "reconcile.orphan_grace": ("1h", timedelta(hours=1)),
    "reconcile.deep_lookback": ("30d", timedelta(days=30)),
    "reconcile.max_redispatch": ("0", 0),
    "reconcile.receipt_within": ("90m", timedelta(minutes=90)),
    "schedule.dispatch": ("5 * * * *", "5 * * * *"),
    "schedule.reconcile": ("0,30 * * * *", "0,30 * * * *"),
    "schedule.deep_reconcile": ("0 4 * * 1-5", "0 4 * * 1-5"),
    "schedule.not_before": ("2026-09-17T15:00:00+08:00", datetime(2026, 9, 17, 7, tzinfo=UTC)),
    "schedule.catch_up": ("48h", timedelta(days=2)),
    "jobs.queue": ("fast", "fast"),
    "jobs.slow_queue": ("https://sqs.eu-west-1.amazonaws.com/1/slow", "https://sqs.eu-west-1.amazonaws.com/1/slow"),
    "jobs.max_depth": ("1", 1),
    "jobs.fast_limit": ("5s", timedelta(seconds=5)),
    "api.tokens": (
        json.dumps({"ops": {"sha256": HASH.upper(), "role": "approver"}}),
        {"ops": Token(sha256=HASH, role="approver")},
    ),
}
NO_DEFAULT = [key for key, value in DEFAULTS.items() if value is None]

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load with this text as the default file (or without any), in an environment of its own."""

    def load_text(text: str | bytes | None = None, environ: Mapping[str, str] | None = None) -> Settings:
        if text is not None:
            (tmp_path / "dispatch-ledger.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_settings(environ=environ or {}, cwd=tmp_path)

    return load_text


def value_of(settings: Settings, key: str) -> object:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def toml_of(key: str, literal: str) -> str:
    section, _, name = key.rpartition(".")
    return f"[{section}]\n{name} = {literal}\n" if section else f"{name} = {literal}\n"


def refusal(call: Callable[[], object]) -> str:
    """The line that a call is refused with, which has to be one line without a cause that could show more."""
    with pytest.raises(InputError) as caught:
        call()
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    line = str(error.args[0])
    assert "\n" not in line
    assert "\n" not in str(error)
    return line


# ---- defaults and the walk over every key ----


def test_the_reference_and_the_model_know_the_same_keys() -> None:
    assert sorted(known_keys()) == sorted(DEFAULTS) == sorted(OVERRIDES)


@pytest.mark.parametrize("key", known_keys())
def test_defaults_are_the_reference(key: str, load: Load) -> None:
    assert value_of(Settings(), key) == DEFAULTS[key]
    assert value_of(load(), key) == DEFAULTS[key]


def test_defaults_pass_their_own_checks() -> None:
    assert Settings.model_validate(Settings().model_dump()) == Settings()


@pytest.mark.parametrize("key", known_keys())
def test_every_key_from_the_environment(key: str, load: Load) -> None:
    text, value = OVERRIDES[key]
    settings = load(environ={env_name(key): text})
    assert value_of(settings, key) == value
    unchanged = [other for other in known_keys() if other != key]
    assert all(value_of(settings, other) == DEFAULTS[other] for other in unchanged)


@pytest.mark.parametrize("key", known_keys())
def test_the_environment_goes_before_the_file(key: str, load: Load, tmp_path: Path) -> None:
    (tmp_path / "dispatch-ledger.toml").write_text(init_template(NOW, bucket="from-file"))
    text, value = OVERRIDES[key]
    assert value_of(load(environ={env_name(key): text}), key) == value


@pytest.mark.parametrize("key", [key for key in known_keys() if key not in ENV_JSON_EXAMPLES])
def test_every_plain_key_from_the_file(key: str, load: Load) -> None:
    text, value = OVERRIDES[key]
    assert value_of(load(toml_of(key, json.dumps(text))), key) == value


def test_lists_and_tables_from_the_file(load: Load) -> None:
    settings = load(
        f"""
        pipeline = "p"
        [source]
        group_by = ["A", "B"]
        [routes.X]
        job = "J"
        queue = "q"
        [api.tokens.ci]
        sha256 = "{HASH}"
        role = "viewer"
        """
    )
    assert settings.source.group_by == ("A", "B")
    assert settings.routes == {"X": Route(job="J", queue="q")}
    assert settings.api.tokens == {"ci": Token(sha256=HASH, role="viewer")}


def test_every_list_and_table_is_json_in_the_environment() -> None:
    assert {key for key, value in DEFAULTS.items() if isinstance(value, (tuple, dict))} == set(ENV_JSON_EXAMPLES)


def test_a_table_replaces_the_lower_source_as_a_whole(load: Load) -> None:
    settings = load('[routes]\nY = { job = "J", queue = "q" }', {env_name("routes"): OVERRIDES["routes"][0]})
    assert list(settings.routes) == ["X"]


@pytest.mark.parametrize("key", NO_DEFAULT)
def test_empty_text_takes_an_optional_value_back(key: str, load: Load) -> None:
    file = toml_of(key, json.dumps(OVERRIDES[key][0]))
    assert value_of(load(file, {env_name(key): ""}), key) is None


URL = "postgresql://me@db.example/ledger"


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({}, None),
        ({"aws.endpoint_url": "http://127.0.0.1:4566"}, None),
        ({"aws.endpoint_url": "embedded"}, "embedded"),
        ({"aws.endpoint_url": "embedded", "ledger.database_url": URL}, URL),
        ({"ledger.database_url": "embedded"}, "embedded"),
        ({"ledger.database_url": URL}, URL),
        ({"ledger.database_url": ""}, None),
        ({"ledger.database_url": "", "aws.endpoint_url": "embedded"}, "embedded"),
    ],
)
def test_where_the_ledger_is_goes_without_saying_beside_the_emulated_aws_only(
    keys: dict[str, str], where: str | None, load: Load
) -> None:
    settings = load(environ={env_name(key): value for key, value in keys.items()})
    if where is None:
        assert refusal(settings.require_ledger).startswith("ledger.database_url is not set")
    else:
        assert settings.require_ledger() == where


NOT_SET = "ledger.database_url is not set"
TO_MEND = (
    "; set it to the URL of the ledger's PostgreSQL, or to 'embedded' to mean one that the product runs itself beside the "
    "config file"
)


def test_who_names_no_ledger_is_told_when_there_is_no_file(load: Load, tmp_path: Path) -> None:
    assert refusal(load().require_ledger) == f"{NOT_SET}, and there is no dispatch-ledger.toml in {tmp_path}{TO_MEND}"
    assert refusal(load("[aws]\n").require_ledger) == NOT_SET + TO_MEND
    other = tmp_path / "other.toml"
    other.write_text("")
    (tmp_path / "dispatch-ledger.toml").unlink()
    named = (load_settings(other, {}, tmp_path), load_settings(None, {"DISPATCH_LEDGER_CONFIG": str(other)}, tmp_path))
    assert [refusal(one.require_ledger) for one in named] == [NOT_SET + TO_MEND] * 2
    assert refusal(Settings().require_ledger) == NOT_SET + TO_MEND


def test_settings_are_frozen() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.dispatch.page_size = 5  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.pipeline = "x"  # type: ignore[misc]


def test_repr_shows_no_secret(load: Load) -> None:
    environ = {"DISPATCH_LEDGER_LEDGER__DATABASE_URL": "postgresql+psycopg://u:hunter2@h/db"}
    environ["DISPATCH_LEDGER_API__TOKENS"] = OVERRIDES["api.tokens"][0]
    shown = repr(load(environ=environ))
    assert "hunter2" not in shown
    assert HASH not in shown


# ---- the lenient keys ----

ON = ["true", "TRUE", "True", "tRuE", " true", "true ", "\ttrue\n", " \r\n TRUE \t"]
OFF = [
    "",
    " ",
    "false",
    "1",
    "yes",
    "on",
    "y",
    "t",
    "truee",
    "tr ue",
    '"true"',
    "0",
    "enabled",
    "[true]",
    "null",
    "\x00",
]


@pytest.mark.parametrize(
    "name", [env_name("dispatch.pagination_enabled"), "_N1CONFIG__BookingDispatcherPaginationEnabled"]
)
@pytest.mark.parametrize(("text", "on"), [(text, True) for text in ON] + [(text, False) for text in OFF])
def test_pagination_from_the_environment(text: str, on: object, name: str, load: Load) -> None:
    assert load(environ={name: text}).dispatch.pagination_enabled is on
    assert load("[dispatch]\npagination_enabled = true", {name: text}).dispatch.pagination_enabled is on


@pytest.mark.parametrize(
    ("literal", "on"),
    [
        ("true", True),
        ('" True "', True),
        ("false", False),
        ('"false"', False),
        ("1", False),
        ("1.0", False),
        ('""', False),
        ("[true]", False),
        ("{ on = true }", False),
        ("2026-09-17", False),
        ("2026-09-17T15:00:00Z", False),
        ("inf", False),
    ],
)
def test_pagination_from_the_file(literal: str, on: object, load: Load) -> None:
    assert load(toml_of("dispatch.pagination_enabled", literal)).dispatch.pagination_enabled is on


PAGE_SIZES = [
    ("1", 1), ("250", 250), ("+250", 250), (" 250 ", 250), ("\t250\n", 250), ("007", 7), ("2147483647", 2147483647),
    ("0" * 5000 + "12", 12), ("+0000000000000000012", 12),
    ("2147483648", 1000), ("99999999999999999999", 1000), ("9" * 5000, 1000),
    ("0", 1000), ("+0", 1000), ("-0", 1000), ("-5", 1000), ("", 1000), (" ", 1000), ("+", 1000), ("++5", 1000), ("+ 5", 1000),
    ("1,000", 1000), ("1_0", 1000), ("1.5", 1000), ("1.0", 1000), ("1e3", 1000), ("0x10", 1000), ("ten", 1000), ("5 0", 1000),
    ("٥", 1000), ("²", 1000), ("５", 1000), ("true", 1000), ("[5]", 1000),
]  # fmt: skip


@pytest.mark.parametrize("name", [env_name("dispatch.page_size"), "_N1CONFIG__BookingDispatcherPageSize"])
@pytest.mark.parametrize(("text", "size"), PAGE_SIZES)
def test_page_size_from_the_environment(text: str, size: int, name: str, load: Load) -> None:
    assert load(environ={name: text}).dispatch.page_size == size
    assert load("[dispatch]\npage_size = 77", {name: text}).dispatch.page_size == size


@pytest.mark.parametrize(
    ("literal", "size"),
    [
        ("25", 25),
        ("+25", 25),
        ('" 25 "', 25),
        ("2147483647", 2147483647),
        ("2147483648", 1000),
        ("0", 1000),
        ("-3", 1000),
        ("25.0", 1000),
        ("nan", 1000),
        ("true", 1000),
        ("[25]", 1000),
        ("{ a = 25 }", 1000),
        ("2026-09-17", 1000),
        ('""', 1000),
    ],
)
def test_page_size_from_the_file(literal: str, size: int, load: Load) -> None:
    assert load(toml_of("dispatch.page_size", literal)).dispatch.page_size == size


@pytest.mark.parametrize(
    ("environ", "on", "size"),
    [
        ({}, True, 30),
        (
            {"_N1CONFIG__BookingDispatcherPaginationEnabled": "false", "_N1CONFIG__BookingDispatcherPageSize": "20"},
            False,
            20,
        ),
        (
            {"_N1CONFIG__BookingDispatcherPaginationEnabled": "junk", "_N1CONFIG__BookingDispatcherPageSize": "junk"},
            False,
            1000,
        ),
        (
            {
                "_N1CONFIG__BookingDispatcherPaginationEnabled": "false",
                "_N1CONFIG__BookingDispatcherPageSize": "20",
                "DISPATCH_LEDGER_DISPATCH__PAGINATION_ENABLED": "true",
                "DISPATCH_LEDGER_DISPATCH__PAGE_SIZE": "10",
            },
            True,
            10,
        ),
        (
            {
                "_N1CONFIG__BookingDispatcherPaginationEnabled": "true",
                "_N1CONFIG__BookingDispatcherPageSize": "20",
                "DISPATCH_LEDGER_DISPATCH__PAGINATION_ENABLED": "",
                "DISPATCH_LEDGER_DISPATCH__PAGE_SIZE": "",
            },
            False,
            1000,
        ),
    ],
)
def test_the_first_source_present_decides_even_when_unreadable(
    environ: dict[str, str], on: object, size: int, load: Load
) -> None:
    dispatch = load("[dispatch]\npagination_enabled = true\npage_size = 30", environ).dispatch
    assert (dispatch.pagination_enabled, dispatch.page_size) == (on, size)


@pytest.mark.parametrize(
    ("enabled", "grouping", "flow"),
    [("no", "window", "full"), ("no", "page", "full"), ("true", "window", "staged"), ("true", "page", "paged")],
)
def test_the_flow(enabled: str, grouping: str, flow: str, load: Load) -> None:
    environ = {env_name("dispatch.pagination_enabled"): enabled, env_name("dispatch.grouping"): grouping}
    assert load(environ=environ).flow == flow


# ---- the forms of values ----

GOOD: dict[str, list[tuple[str, object]]] = {
    "reconcile.lookback": [
        ("500ms", timedelta(milliseconds=500)), ("90s", timedelta(seconds=90)), ("10m", timedelta(minutes=10)),
        ("6h", timedelta(hours=6)), ("2d", timedelta(days=2)), ("0s", timedelta(0)), ("0ms", timedelta(0)), ("36500d", timedelta(days=36500)),
    ],
    "schedule.not_before": [
        ("2026-09-17T15:00:00Z", datetime(2026, 9, 17, 15, tzinfo=UTC)),
        ("2026-09-17t15:00:00z", datetime(2026, 9, 17, 15, tzinfo=UTC)),
        ("2026-09-17 15:00:00.25-01:30", datetime(2026, 9, 17, 16, 30, 0, 250000, tzinfo=UTC)),
        ("2026-09-17T16:01:10.6854808+08:00", datetime(2026, 9, 17, 8, 1, 10, 685480, tzinfo=UTC)),
    ],
    "schedule.dispatch": [
        ("* * * * *", "* * * * *"), ("0-10/5 0,12 1-31 */2 7", "0-10/5 0,12 1-31 */2 7"), (" 1  2 3\t4 5 ", "1 2 3 4 5"), ("*/59 * * * 0", "*/59 * * * 0"),
    ],
    "aws.endpoint_url": [(url, url) for url in ("embedded", "https://host", "http://host:1/path", "http://[::1]:4566", "http://h/")],
    "ledger.database_url": [
        (f"{scheme}://{rest}", f"{scheme}://{rest}")
        for scheme in ("postgresql", "postgresql+psycopg")
        for rest in ("", "/db", "h", "h:1/db", "u@h/db", "u:p%40x@h/db?sslmode=require", "u:p/w?d@h", "[::1]:5432/db", "/db?host=/run/pg")
    ],
    "objects.prefix": [(text, text) for text in ("", "a/", "a/b.c/", "é/", "x" * 255 + "/", "..a/")],
    "pipeline": [(text, text) for text in ("a", "A.b_c-9", "9", "x" * 64)],
    "jobs.queue": [(text, text) for text in ("q", "Q_-9", "q.fifo", "x" * 80, "x" * 75 + ".fifo", "http://localhost:4566/0/q.fifo")],
    "jobs.max_depth": [("1", 1), ("010", 10), ("2147483647", 2147483647)],
    "reconcile.max_redispatch": [("0", 0), ("500", 500)],
    "dispatch.verify_due": [("true", True), ("TRUE", True), ("false", False), ("False", False)],
    "objects.bucket": [(text, text) for text in ("b", "my.bucket-1", "Old_Bucket")],
    "source.group_by": [('["A"]', ("A",)), ('["A", "a", "b c"]', ("A", "a", "b c"))],
}  # fmt: skip

BAD: dict[str, list[str]] = {
    "pipeline": ["", ".a", "-a", "a b", "a/b", "é", "x" * 65, "a\n"],
    "ledger.database_url": [
        "sqlite:///x.db", "postgres://h/db", "postgresql+asyncpg://h/db", "postgresql+psycopg2://h/db",
        "postgresql+psycopg:/h", "embeded", "Embedded", "postgresql+psycopg://h:port/db", "postgresql+psycopg://h/d b", "postgresql+psycopg://u:p@w@h/db",
    ],
    "ledger.bin_dir": ["a\nb"],
    "aws.endpoint_url": ["host:4566", "ftp://h", "http://", "http:///x", "http://h:99999", "http://h:0", "http://h:x", "http://u:p@h", "http://h?x", "http://h h", "none", "Embedded", "http://[::1"],
    "aws.region": ["eu west", "-eu", "eu-", "x" * 64],
    "source.table": ["", "a\tb", "x" * 257],
    "source.due_status": ["", "\x7f", "\ud800"],
    "source.updated_at_attribute": ["\x01"],
    "source.group_by": ["[]", '["A", "A"]', '["A", ""]', "[1]", '"A"', "A", "A,B", "", "{}", "null", "[[]]", "[" * 100000, '["A"', '["\\ud800"]'],
    "objects.bucket": ["a b", "s3://b", "a/b", "x" * 256],
    "objects.prefix": ["/", "/a/", "a", "a/b", "a//b/", "./", "a/../", "x" * 256 + "/", "é" * 128 + "/", "a\n/"],
    "routes": [
        "", "{}", "[]", "x", "null", '{"P": "q"}', '{"P": {}}', '{"P": {"job": "J"}}', '{"P": {"queue": "q"}}', '{"P": {"job": "", "queue": "q"}}',
        '{"P": {"job": "J", "queue": "a b"}}', '{"P": {"job": "J", "queue": 5}}', '{"P": {"job": 5, "queue": "q"}}', '{"": {"job": "J", "queue": "q"}}',
        '{"P": {"job": "J", "queue": "q", "que": "q"}}', json.dumps({"P": {"job": "x" * 257, "queue": "q"}}), '{"a\\nb": {"job": "J", "queue": "q"}}',
    ],
    "dispatch.grouping": ["", "Window", "pages", "full"],
    "dispatch.lease": ["499ms", "0s", "", "60", "1h30m"],
    "dispatch.verify_due": ["", "1", "yes", " true"],
    "reconcile.lookback": ["", "5", "-5s", "+5s", "1h30m", "5 s", " 5s", "5s ", "5S", "1.5h", "5w", "ms", "٥s", "36501d", "999999999999d", "9" * 5000 + "s", "PT5S", "5s\n"],
    "reconcile.receipt_within": ["0", "soon"],
    "reconcile.max_redispatch": ["", "-1", "1.0", "+1", "2147483648", "x", " 1", "9" * 5000],
    "jobs.max_depth": ["0", "-1", "", "1e3", "٥"],
    "jobs.queue": ["", "a b", "a.b", ".fifo", "x" * 81, "x" * 76 + ".fifo", "arn:aws:sqs:eu-west-1:1:q", "http://h", "http://h/", "ftp://h/q", "q.fifo.fifo"],
    "schedule.not_before": [
        "now", "2026-09-17", "2026-09-17T15:00:00", "2026-09-17T15:00Z", "2026-13-17T15:00:00Z", "2026-09-17T24:00:01Z", "2026-09-17T15:00:60Z",
        "2026-09-17T15:00:00+0800", "0001-01-01T00:00:00+08:00", "9999-12-31T23:59:59-08:00", "0000-01-01T00:00:00Z", "20260917T150000Z", "２026-09-17T15:00:00Z",
    ],
    "schedule.dispatch": [
        "", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * 0 *", "* * * * 8", "@hourly",
        "*/0 * * * *", "*/60 * * * *", "5/10 * * * *", "10-5 * * * *", "1, * * * *", "a * * * *", "1-2-3 * * * *", "-1 * * * *", "1.5 * * * *", "* * * * mon", "٥ * * * *",
    ],
    "api.tokens": [
        "", "[]", "x", '{"a": "b"}', '{"a": {}}', json.dumps({"a": {"sha256": HASH}}), json.dumps({"a": {"sha256": HASH, "role": "root"}}),
        json.dumps({"a": {"sha256": HASH[1:], "role": "viewer"}}), json.dumps({"a": {"sha256": "g" + HASH[1:], "role": "viewer"}}),
        json.dumps({"a": {"sha256": HASH, "role": "viewer", "x": 1}}), json.dumps({"": {"sha256": HASH, "role": "viewer"}}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("key", "text", "value"), [(key, *pair) for key, pairs in GOOD.items() for pair in pairs])
def test_good_values(key: str, text: str, value: object, load: Load) -> None:
    assert value_of(load(environ={env_name(key): text}), key) == value


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in BAD.items() for text in texts])
def test_bad_values_in_the_environment(key: str, text: str, load: Load) -> None:
    line = refusal(lambda: load(environ={env_name(key): text}))
    assert line.startswith(f"environment variable {env_name(key)}: ")
    assert re.search(rf": (unknown key )?{re.escape(key)}(\.\S+)? (=|is missing in) ", line)
    assert re.search(r"; (use \S|did you mean \S|known here: \S|it is required)", line)
    assert len(line) < 500


PLAIN_BAD = [  # control characters are TOML's own affair
    (key, text) for key, texts in BAD.items() if key not in ENV_JSON_EXAMPLES for text in texts if text.isprintable()
]


@pytest.mark.parametrize(("key", "text"), PLAIN_BAD)
def test_bad_values_in_the_file(key: str, text: str, load: Load, tmp_path: Path) -> None:
    line = refusal(lambda: load(toml_of(key, json.dumps(text, ensure_ascii=False))))
    assert line.startswith(f"{tmp_path / 'dispatch-ledger.toml'}: {key} = ")
    assert "; use " in line


@pytest.mark.parametrize(
    "literal", ["5", "-1", "5.0", "true", "[]", "{}", "2026-09-17", "2026-09-17T15:00:00", "15:00:00", "nan"]
)
@pytest.mark.parametrize(
    "key", [key for key in known_keys() if key not in {"dispatch.pagination_enabled", "dispatch.page_size"}]
)
def test_the_wrong_type_in_the_file(key: str, literal: str, load: Load) -> None:
    fits = {
        ("jobs.max_depth", "5"), ("reconcile.max_redispatch", "5"), ("dispatch.verify_due", "true"), ("api.tokens", "{}"),
    }  # fmt: skip
    if (key, literal) in fits:
        assert value_of(load(toml_of(key, literal)), key) == tomllib.loads(f"x = {literal}")["x"]
    else:
        assert f": {key} = " in refusal(lambda: load(toml_of(key, literal)))


def test_not_before_as_a_toml_time(load: Load) -> None:
    settings = load("[schedule]\nnot_before = 2026-09-17T15:00:00+08:00")
    assert settings.schedule.not_before == datetime(2026, 9, 17, 7, tzinfo=UTC)
    assert settings.schedule.not_before.tzinfo is UTC


# ---- the error lines ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[dispatch]\nlease = '100ms'", "dispatch.lease = '100ms' is not allowed; use a duration of at least 500ms, such as 60s"),
        ("[dispatch]\nlease = 60", "dispatch.lease = 60 is not allowed; use a number and one unit, such as 500ms, 90s, 10m, 6h or 2d, at most 36500d"),
        ("[dispatch]\ngrouping = 'x'", "dispatch.grouping = 'x' is not allowed; use 'window' or 'page'"),
        ("[jobs]\nmax_depth = 0", "jobs.max_depth = 0 is not allowed; use a whole number from 1 to 2147483647"),
        ("[dispatch]\nleese = '60s'", "unknown key dispatch.leese = '60s'; did you mean dispatch.lease?"),
        ("[dispatch]\nPageSize = 5", "unknown key dispatch.PageSize = 5; did you mean dispatch.page_size?"),
        ("[dispatch]\nzzz = 1", "unknown key dispatch.zzz = 1; known here: pagination_enabled, page_size, grouping, lease, verify_due"),
        ("[dispach]\nlease = '60s'", "unknown key dispach = {'lease': '60s'}; did you mean dispatch?"),
        ("piplin = 'x'", "unknown key piplin = 'x'; did you mean pipeline?"),
        ("page_size = 5", "unknown key page_size = 5; did you mean dispatch.page_size?"),
        ("[source]\nprefix = 'a/'", "unknown key source.prefix = 'a/'; did you mean objects.prefix?"),
        ("dispatch = 5", "dispatch = 5 is not allowed; use a table"),
        ("[[routes]]\njob = 'x'", "routes = [{'job': 'x'}] is not allowed; use a table"),
        ("[routes]", "routes = {} is not allowed; use a table with one or more routes, such as Point = { job = 'RewardPoint', queue = 'reward-point' }"),
        ("[routes]\nP = 'q'", "routes.P = 'q' is not allowed; use a table"),
        ("[routes.P]\njob = 'J'", "routes.P.queue is missing in {'job': 'J'}; it is required"),
        ("[routes.P]\njob = 'J'\nque = 'q'", "unknown key routes.P.que = 'q'; did you mean routes.P.queue?"),
        ('[routes."a b\\n"]\njob = 1\nqueue = "q"', 'routes."a b\\n".job = 1 is not allowed; use text of 1 to 256 characters, no control characters'),
        ("[api.tokens.ci]\nsha256 = 'plain'\nrole = 'viewer'", "api.tokens.ci.sha256 = '***' is not allowed; use the SHA-256 of the token, 64 hex digits"),
        (f"[api.tokens.ci]\nsha256 = '{HASH}'\nrole = 'admin'", "api.tokens.ci.role = 'admin' is not allowed; use 'viewer', 'operator' or 'approver'"),
        (f"[api.tokens.ci]\nsha256 = '{HASH}'\nrole = '{HASH}'", "api.tokens.ci.role = '***' is not allowed; use 'viewer', 'operator' or 'approver'"),
        ("[api.tokens.ci]\ntoken = 'plain'", "unknown key api.tokens.ci.token = '***'; known here: sha256, role"),
        ("[aws]\nsecret_access_key = 'plain'", "unknown key aws.secret_access_key = '***'; known here: endpoint_url, region"),
        ("[apis.tokens.ci]\nsha256 = 'plain'", "unknown key apis = {'tokens': '***'}; did you mean api?"),
    ],
)  # fmt: skip
def test_the_line_for_the_file(text: str, expected: str, load: Load, tmp_path: Path) -> None:
    assert refusal(lambda: load(text)) == f"{tmp_path / 'dispatch-ledger.toml'}: {expected}"


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("DISPATCH_LEDGER_DISPATCH__LEESE", "1s", "unknown key dispatch.leese = '1s'; did you mean DISPATCH_LEDGER_DISPATCH__LEASE?"),
        ("DISPATCH_LEDGER_DISPATCH_LEASE", "1s", "unknown key dispatch_lease = '1s'; did you mean DISPATCH_LEDGER_DISPATCH__LEASE?"),
        ("DISPATCH_LEDGER_dispatch__lease", "1s", "unknown key dispatch.lease = '1s'; did you mean DISPATCH_LEDGER_DISPATCH__LEASE?"),
        ("DISPATCH_LEDGER_LEASE", "1s", "unknown key lease = '1s'; did you mean DISPATCH_LEDGER_DISPATCH__LEASE?"),
        ("DISPATCH_LEDGER_PIPLINE", "x", "unknown key pipline = 'x'; did you mean DISPATCH_LEDGER_PIPELINE?"),
        ("DISPATCH_LEDGER_ZZZ", "x", "unknown key zzz = 'x'; the names are DISPATCH_LEDGER_<SECTION>__<KEY>, in upper case"),
        ("DISPATCH_LEDGER_", "", "unknown key \"\" = ''; the names are DISPATCH_LEDGER_<SECTION>__<KEY>, in upper case"),
        ("DISPATCH_LEDGER_API_TOKEN", "plain", "unknown key api_token = '***'; did you mean DISPATCH_LEDGER_API__TOKENS?"),
        ("DISPATCH_LEDGER_DATABASE_URL", "postgres://u:pw@h/d", "unknown key database_url = 'postgres://***@h/d'; did you mean DISPATCH_LEDGER_LEDGER__DATABASE_URL?"),
        ("DISPATCH_LEDGER_API__TOKENS", '{"a": ', "api.tokens = '***' is not allowed; use JSON such as {\"ops\": {\"sha256\": \"<64 hex digits>\", \"role\": \"viewer\"}}"),
        ("DISPATCH_LEDGER_SOURCE__GROUP_BY", "A,B", "source.group_by = 'A,B' is not allowed; use JSON such as [\"ShopId\", \"MemberId\"]"),
        ("DISPATCH_LEDGER_SOURCE__GROUP_BY", "[]", 'source.group_by = [] is not allowed; use a list of one or more different attribute names, such as ["ShopId", "MemberId"]'),
    ],
)  # fmt: skip
def test_the_line_for_the_environment(variable: str, text: str, expected: str, load: Load) -> None:
    assert refusal(lambda: load(environ={variable: text})) == f"environment variable {variable}: {expected}"


@pytest.mark.parametrize(
    "variable", ["DISPATCH_LEDGER_SOURCE", "DISPATCH_LEDGER_DISPATCH", "DISPATCH_LEDGER_API__TOKENS__CI"]
)
def test_a_whole_section_or_a_deeper_part_is_no_variable(variable: str, load: Load) -> None:
    assert f"environment variable {variable}: unknown key " in refusal(lambda: load(environ={variable: "{}"}))


def test_other_variables_are_left_alone(load: Load) -> None:
    environ = {
        "dispatch_ledger_pipeline": "x",
        "DISPATCH_LEDGE": "x",
        "XDISPATCH_LEDGER_A": "x",
        "_N1CONFIG__Other": "x",
    }
    assert load(environ=environ) == load()


def test_the_environment_does_not_mend_a_section_that_is_no_table(load: Load) -> None:
    line = refusal(lambda: load("dispatch = 5", {"DISPATCH_LEDGER_DISPATCH__LEASE": "60s"}))
    assert "dispatch = 5 is not allowed" in line


def test_the_place_is_the_source_that_decides(load: Load, tmp_path: Path) -> None:
    file = "[dispatch]\nlease = '1'\n[jobs]\nmax_depth = 'x'"
    assert "environment variable DISPATCH_LEDGER_DISPATCH__LEASE" in refusal(
        lambda: load(file, {"DISPATCH_LEDGER_DISPATCH__LEASE": "2"})
    )
    assert "dispatch-ledger.toml: jobs.max_depth" in refusal(
        lambda: load(file, {"DISPATCH_LEDGER_DISPATCH__LEASE": "2s"})
    )


def test_a_number_too_long_to_print(load: Load) -> None:
    literal = "0x" + "f" * 5000
    assert load(toml_of("dispatch.page_size", literal)).dispatch.page_size == 1000
    assert load(toml_of("dispatch.pagination_enabled", literal)).dispatch.pagination_enabled is False
    for key in ("jobs.max_depth", "pipeline", "jobs.unknown", "routes.P"):
        line = refusal(lambda key=key: load(toml_of(key, literal)))  # type: ignore[misc]
        assert f"{key} = 'a number with very many digits'" in line


def test_long_values_are_shortened(load: Load) -> None:
    line = refusal(lambda: load(toml_of("pipeline", json.dumps("y" * 5000))))
    assert "'" + "y" * 76 + "... is not allowed" in line
    deep = "{ a = " * 40 + "1" + " }" * 40
    assert len(refusal(lambda: load(f"zzz = {deep}"))) < 400


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://user:hunter2@host:5432/db", "'postgres://***@host:5432/db'"),
        ("postgres://user:hunter2@x@host/db", "'postgres://***@host/db'"),
        ("postgres://user:a/hunter2@host/db", "'postgres://***@host/db'"),
        ("postgres://user:a?hunter2@host/db", "'postgres://***@host/db'"),
        ("postgres://user:a://hunter2@host/db", "'postgres://***@host/db'"),
        ("postgres://hunter2@host", "'postgres://***@host'"),
        ("postgres://user:hunter2", "'postgres://user:***'"),
        ("postgres:///db?user=u&password=hunter2", "'postgres:///db?***'"),
        ("user:hunter2@host/db", "'***@host/db'"),
        ("host=h user=u password='a hunter2'", "'host=h user=u password=***'"),
        ("host=h PASSWORD = hunter2", "'host=h PASSWORD =***'"),
        ("a\nb:hunter2@h", "'***@h'"),
        ("sqlite:///ledger.db", "'sqlite:///ledger.db'"),
        ("postgres://localhost:5432/db", "'postgres://localhost:5432/db'"),
    ],
)  # fmt: skip
def test_a_password_is_never_shown(url: str, shown: str, load: Load) -> None:
    key = "ledger.database_url"
    for call in (
        lambda: load(environ={env_name(key): url}),
        lambda: load(toml_of(key, json.dumps(url))),
        lambda: load(f"database_url = {json.dumps(url)}"),
    ):
        line = refusal(call)
        assert "hunter2" not in line
        assert f"database_url = {shown}" in line
    assert "hunter2" not in refusal(lambda: load(f"[aws]\nlist = [{{ x = {json.dumps(url)} }}]"))


# ---- the file ----


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a = [\n", r"line 2, column 1, the end of the file"),
        (b"[dispatch]\nlease = \n", r"line 2, column 9"),
        (b"[dispatch]\nlease = '60s'\nlease = '70s'\n", r"line 3"),
        (b"[dispatch]\n[dispatch]\n", r"line 2"),
        (b"x = '''\nabc", r"line 2, column 4"),
        (b"ok = 1\nname = '\xff'\n", r"byte 0xff in line 2 is not UTF-8 text"),
        (b"\xff\xfea\x00", r"byte 0xff in line 1 is not UTF-8 text"),
        (b"x = " + b"[" * 20000, r"nested too deeply|line 1"),
        (b"x = " + b"9" * 5000, r"digits"),
    ],
)
def test_a_broken_file(content: bytes, expected: str, load: Load, tmp_path: Path) -> None:
    line = refusal(lambda: load(content))
    assert line.startswith(f"{tmp_path / 'dispatch-ledger.toml'}: not a valid TOML file: ")
    assert re.search(expected, line)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xef\xbb\xbfpipeline = 'reward'\r\n"])
def test_a_file_that_says_nothing_new(content: bytes, load: Load) -> None:
    assert load(content) == load()


def test_a_file_without_bound_is_refused(load: Load) -> None:
    assert "larger than" in refusal(lambda: load(b"#" * 1_048_577))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    line = refusal(lambda: load_settings(tmp_path, {}, tmp_path))
    assert line.startswith(f"{tmp_path}: cannot read the config file: ")
    (tmp_path / "dispatch-ledger.toml").mkdir()
    assert "cannot read" in refusal(lambda: load_settings(None, {}, tmp_path))


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    line = refusal(lambda: load_settings(Path("x.toml"), {}, tmp_path))
    assert line == f"{tmp_path / 'x.toml'}: cannot read the config file: Permission denied"


@pytest.mark.parametrize("name", ["nope.toml", "no/such/folder.toml"])
def test_a_named_file_has_to_be_there(name: str, tmp_path: Path) -> None:
    for call in (
        lambda: load_settings(Path(name), {}, tmp_path),
        lambda: load_settings(None, {"DISPATCH_LEDGER_CONFIG": name}, tmp_path),
    ):
        line = refusal(call)
        assert line.startswith(f"{tmp_path / name}: no such config file")
        assert "dispatch-ledger init" in line


def test_a_default_file_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "dispatch-ledger.toml").symlink_to(tmp_path / "gone")
    assert "no such config file" in refusal(lambda: load_settings(None, {}, tmp_path))


def test_which_file_is_read_and_where_the_state_is(tmp_path: Path) -> None:
    for name in ("argument", "variable", "default"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dispatch-ledger.toml").write_text(f'pipeline = "{name}"')
    cwd = tmp_path / "default"
    environ = {"DISPATCH_LEDGER_CONFIG": str(tmp_path / "variable" / "dispatch-ledger.toml")}
    cases: list[tuple[Path | None, dict[str, str], str]] = [
        (tmp_path / "argument" / "dispatch-ledger.toml", environ, "argument"),
        (Path("../argument/dispatch-ledger.toml"), environ, "argument"),
        (None, environ, "variable"),
        (None, {"DISPATCH_LEDGER_CONFIG": ""}, "default"),
        (None, {}, "default"),
    ]
    for config, variables, expected in cases:
        settings = load_settings(config, variables, cwd)
        assert settings.pipeline == expected
        assert settings.state_dir.is_absolute()
        assert settings.state_dir.resolve() == tmp_path / expected / ".dispatch-ledger"


def test_without_a_file_the_state_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(None, {}, tmp_path).state_dir == tmp_path / ".dispatch-ledger"
    monkeypatch.chdir(tmp_path)
    assert load_settings(None, {}).state_dir == tmp_path / ".dispatch-ledger"
    assert not (tmp_path / ".dispatch-ledger").exists()


def test_the_state_folder_is_no_key(load: Load) -> None:
    assert "unknown key state_dir" in refusal(lambda: load("state_dir = 'x'"))


# ---- the process environment ----


def test_the_process_environment_is_read_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DISPATCH_LEDGER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DISPATCH_LEDGER_PIPELINE", "from-process")
    assert load_settings(cwd=tmp_path).pipeline == "from-process"


def test_child_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_NAME", "before")
    child = child_environment(A_NAME="after", ANOTHER="x")
    assert (child["A_NAME"], child["ANOTHER"], os.environ["A_NAME"]) == ("after", "x", "before")
    assert "ANOTHER" not in os.environ
    assert child["PATH"] == os.environ["PATH"]


# ---- the template ----


def uncommented(template: str) -> str:
    """The template with every "# key = value" and "# [table]" line switched on."""
    return re.sub(r"^# (?=[A-Za-z_]+ = |\[)", "", template, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("now", "hour"),
    [
        (NOW, datetime(2026, 9, 17, 15, tzinfo=UTC)),
        (datetime(2026, 1, 1, 3, 59, 59, tzinfo=timezone(timedelta(hours=5, minutes=30))), datetime(2025, 12, 31, 22, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_the_template_loads(now: datetime, hour: datetime, load: Load) -> None:
    settings = load(init_template(now))
    assert settings.schedule.not_before == hour
    assert settings.flow == "staged"
    assert settings.objects.bucket is None
    assert settings.require_ledger() == "embedded"
    changed = {"ledger.database_url", "schedule.not_before", "dispatch.pagination_enabled"}
    assert {key for key in known_keys() if value_of(settings, key) != DEFAULTS[key]} == changed


def test_the_template_names_every_key_with_its_default(load: Load) -> None:
    text = uncommented(init_template(NOW))
    document = tomllib.loads(text)
    written = {f"{name}.{key}" for name, table in document.items() if isinstance(table, dict) for key in table}
    assert set(known_keys()) - {"pipeline", "routes"} <= written
    assert {"pipeline", "routes"} <= set(document)
    settings = load(text)
    shown = {key for key in known_keys() if value_of(settings, key) != DEFAULTS[key]}
    assert shown == {*NO_DEFAULT, "dispatch.pagination_enabled"}


def test_the_template_explains_every_key() -> None:
    lines = init_template(NOW).splitlines()
    for number, line in enumerate(lines):
        if re.match(r"(# )?[a-z_]+ = ", line):
            block = []
            while number and lines[number]:
                number -= 1  # noqa: PLW2901
                block.append(lines[number])
            assert any(re.match(r"# (?![a-z_]+ = )\S", above) for above in block), line


def test_the_template_takes_a_bucket(load: Load) -> None:
    assert load(init_template(NOW, bucket="reward-objects")).objects.bucket == "reward-objects"
    assert '\nbucket = "reward-objects"\n' in init_template(NOW, bucket="reward-objects")
    assert "objects.bucket = 'a\"b' is not allowed" in refusal(lambda: init_template(NOW, bucket='a"b'))


def test_the_template_needs_an_aware_instant() -> None:
    with pytest.raises(ValueError, match="aware"):
        init_template(NOW.replace(tzinfo=None))
