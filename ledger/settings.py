"""The configuration: read once, checked once, frozen; also the only door to the process environment.

Sources, highest first: `DISPATCH_LEDGER_<SECTION>__<KEY>`, the two `_N1CONFIG__…` names of the dispatcher that this
product replaces, the TOML file, the defaults below. Each key is taken whole from the first source that has it (a route
table in the environment replaces the file's, it is not mixed with it). Credentials for AWS are not read here.

The file reads top down: how one value is parsed, the sections, loading, the error lines, the template of `init`.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from ledger.errors import InputError

CONFIG_NAME: Final = "dispatch-ledger.toml"
STATE_DIR_NAME: Final = ".dispatch-ledger"
ENV_PREFIX: Final = "DISPATCH_LEDGER_"
ENV_CONFIG: Final = "DISPATCH_LEDGER_CONFIG"
ENV_INHERITED: Final = {
    "dispatch.pagination_enabled": "_N1CONFIG__BookingDispatcherPaginationEnabled",
    "dispatch.page_size": "_N1CONFIG__BookingDispatcherPageSize",
}
ENV_JSON_EXAMPLES: Final = {  # the keys that are lists or tables, and how they look in the environment
    "source.group_by": '["ShopId", "MemberId"]',
    "routes": '{"Point": {"job": "RewardPoint", "queue": "reward-point"}}',
    "api.tokens": '{"ops": {"sha256": "<64 hex digits>", "role": "viewer"}}',
}

PAGE_SIZE_DEFAULT: Final = 1000
INTEGER_MAX: Final = 2_147_483_647
DURATION_MAX: Final = timedelta(days=36_500)
LEASE_MIN: Final = timedelta(milliseconds=500)
PREFIX_BYTES_MAX: Final = 256
CONFIG_BYTES_MAX: Final = 1_048_576
SHOWN_CHARS_MAX: Final = 80
SHOWN_DEPTH_MAX: Final = 4
SHOWN_BITS_MAX: Final = 1024

Flow: TypeAlias = Literal["full", "staged", "paged"]
T = TypeVar("T")


# ---- One value. A parser returns it, or raises ValueError with what is allowed. ----

_PRINTABLE = r"[^\x00-\x1f\x7f\ud800-\udfff]"
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}(:[0-9]{2}){2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})")
_CRON_ITEM = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
_CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))  # minute, hour, day, month, weekday (0 and 7 are Sunday)
_QUEUE_NAME = re.compile(r"(?=.{1,80}\Z)[A-Za-z0-9_-]+(\.fifo)?")
_DATABASE_URL = re.compile(
    r"postgresql(?:\+psycopg)?://"
    r"(?:[^:/?@\s]*(?::[^@\s]*)?@)?"  # user and password
    r"(?:\[[0-9A-Fa-f:.]+\]|[^:/?@\s]*)(?::[0-9]{1,5})?"  # host and port
    r"(?:/[^?\s]*)?(?:\?\S*)?"  # database and options
)


def _text(pattern: str, allowed: str) -> Callable[[object], str]:
    """Return a parser of text that matches `pattern` as a whole."""
    compiled = re.compile(pattern)

    def parse(value: object) -> str:
        if isinstance(value, str) and compiled.fullmatch(value):
            return value
        raise ValueError(allowed)

    return parse


def _number_text(value: object) -> str:
    """Return what may be the digits of a number; a hexadecimal one in TOML can be too long for Python to print."""
    printable = isinstance(value, str) or (isinstance(value, int) and abs(value) <= INTEGER_MAX)
    return str(value) if printable else ""


def _whole_number(least: int) -> Callable[[object], int]:
    """Return a parser of whole numbers from `least` to the largest that the ledger can hold."""

    def parse(value: object) -> int:
        text = _number_text(value)
        if re.fullmatch(r"[0-9]{1,10}", text) and least <= int(text) <= INTEGER_MAX:
            return int(text)
        raise ValueError(f"a whole number from {least} to {INTEGER_MAX}")

    return parse


def _or_none(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """Let empty text mean "none", so that the environment can take back what the file says."""
    return lambda value: None if value is None or value == "" else parse(value)


def _parse_flag(value: object) -> bool:
    text = str(value).lower() if isinstance(value, (bool, str)) else ""
    if text in {"true", "false"}:
        return text == "true"
    raise ValueError("true or false")


def _parse_lenient_flag(value: object) -> bool:
    """Only `true` switches on; whatever else is there switches off, as the replaced dispatcher has it."""
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")


def _is_lenient_flag(value: object) -> bool:
    """Say whether this means on or off to a person too."""
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in {"true", "false"})


def _readable_page_size(value: object) -> int | None:
    text = _number_text(value).strip()
    digits = re.fullmatch(r"\+?0*([0-9]{1,10})", text)
    size = int(digits[1]) if digits else 0
    return size if 1 <= size <= INTEGER_MAX else None


def _parse_lenient_page_size(value: object) -> int:
    """Return a page size from 1 to INTEGER_MAX; whatever cannot be read as one is the default, never an error."""
    return _readable_page_size(value) or PAGE_SIZE_DEFAULT


def parse_duration(value: object) -> timedelta:
    """Read a duration: `500ms`, `90s`, `10m`, `6h`, `2d`.

    Raises:
        ValueError: when it is anything else, saying what is allowed.
    """
    if isinstance(value, timedelta) and timedelta(0) <= value <= DURATION_MAX:
        return value
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    duration_ms = int(match[1]) * _UNIT_MS[match[2]] if match else -1
    if 0 <= duration_ms <= DURATION_MAX / timedelta(milliseconds=1):
        return timedelta(milliseconds=duration_ms)
    raise ValueError(f"a number and one unit, such as 500ms, 90s, 10m, 6h or 2d, at most {DURATION_MAX.days}d")


def _parse_lease(value: object) -> timedelta:
    lease = parse_duration(value)
    if lease < LEASE_MIN:
        raise ValueError("a duration of at least 500ms, such as 60s")
    return lease


def _parse_instant(value: object) -> datetime:
    try:
        if isinstance(value, str) and _INSTANT.fullmatch(value):
            value = datetime.fromisoformat(value.upper())
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # a thirteenth month, or an instant outside the years 1-9999
    raise ValueError("an RFC 3339 time with a zone, such as 2026-09-17T15:00:00Z")


def _parse_cron(value: object) -> str:
    fields = value.split() if isinstance(value, str) else []
    if len(fields) == len(_CRON_RANGES) and all(map(_is_cron_field, fields, _CRON_RANGES)):
        return " ".join(fields)
    raise ValueError(
        "five cron fields in UTC (minute 0-59, hour 0-23, day 1-31, month 1-12, weekday 0-7), each of numbers, "
        "'*', 'a-b', '*/n' and lists with ',', such as '*/20 * * * *'"
    )


def _is_cron_field(field: str, bounds: tuple[int, int]) -> bool:
    return all(_is_cron_item(item, *bounds) for item in field.split(","))


def _is_cron_item(item: str, low: int, high: int) -> bool:
    match = _CRON_ITEM.fullmatch(item)
    if not match:
        return False
    first, last, step = match.groups()
    start = low if first is None else int(first)
    end = int(last or first or high)
    steps_ok = step is None or 1 <= int(step) <= end - start  # so a step needs `*` or a range to walk over
    return low <= start <= end <= high and steps_ok


def _is_http_url(text: str, *, path_required: bool = False) -> bool:
    """Say whether this is an http(s) URL of a host, without credentials, query, fragment or blanks."""
    try:
        url = urlsplit(text)
        port_ok = url.port is None or url.port > 0
    except ValueError:
        return False
    plain = bool(re.fullmatch(r"[!-~]{1,2048}", text)) and not re.search(r"[@?#]", text)
    path_ok = not path_required or len(url.path) > 1
    return url.scheme in {"http", "https"} and bool(url.hostname) and port_ok and plain and path_ok


def _parse_endpoint(value: object) -> str:
    if isinstance(value, str) and (value == "embedded" or _is_http_url(value)):
        return value
    raise ValueError("nothing (AWS itself), 'embedded', or an http(s) URL such as http://127.0.0.1:4566")


def _parse_queue(value: object) -> str:
    if isinstance(value, str) and (_QUEUE_NAME.fullmatch(value) or _is_http_url(value, path_required=True)):
        return value
    raise ValueError("an SQS queue name (letters, digits, '_', '-', at most 80, '.fifo' if ordered) or its http(s) URL")


def _parse_database_url(value: object) -> str:
    if isinstance(value, str) and (value == "embedded" or _DATABASE_URL.fullmatch(value)):
        return value
    raise ValueError(
        "'embedded' or postgresql://USER:PASSWORD@HOST:PORT/DATABASE (special characters percent-encoded; "
        "postgresql+psycopg:// is the same)"
    )


def _parse_path(value: object) -> Path:
    if isinstance(value, (str, Path)) and re.fullmatch(f"{_PRINTABLE}+", str(value)):
        return Path(value)
    raise ValueError("the path of a folder")


def _parse_prefix(value: object) -> str:
    text = value if isinstance(value, str) and re.fullmatch(f"{_PRINTABLE}*", value) else "/"
    segments = text.split("/")
    ends_well = segments.pop() == ""
    if ends_well and not {"", ".", ".."}.intersection(segments) and len(text.encode()) <= PREFIX_BYTES_MAX:
        return text
    raise ValueError(
        "empty, or text that ends with '/' and does not start with it, without empty, '.' or '..' parts, "
        f"at most {PREFIX_BYTES_MAX} bytes, such as reward-dispatch/"
    )


def _parse_group_by(value: object) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, (list, tuple)) else ()
    named = all(isinstance(name, str) and re.fullmatch(f"{_PRINTABLE}{{1,256}}", name) for name in names)
    if names and named and len(set(names)) == len(names):
        return names
    raise ValueError('a list of one or more different attribute names, such as ["ShopId", "MemberId"]')


def _check_names(table: dict[str, T]) -> dict[str, T]:
    if all(re.fullmatch(f"{_PRINTABLE}{{1,1024}}", name) for name in table):
        return table
    raise ValueError("a table whose names are not empty and hold no control characters")


def _check_routes(table: dict[str, T]) -> dict[str, T]:
    if table:
        return _check_names(table)
    raise ValueError("a table with one or more routes, such as Point = { job = 'RewardPoint', queue = 'reward-point' }")


_parse_name = _text(f"{_PRINTABLE}{{1,256}}", "text of 1 to 256 characters, no control characters")
_parse_bucket = _text(r"[A-Za-z0-9._-]{1,255}", "an S3 bucket name (letters, digits, '.', '_', '-')")
_parse_region = _text(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)", "an AWS region such as eu-west-1")
_parse_pipeline = _text(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
)
_parse_sha256 = _text(r"[0-9A-Fa-f]{64}", "the SHA-256 of the token, 64 hex digits")

Cron: TypeAlias = Annotated[str, BeforeValidator(_parse_cron)]
Duration: TypeAlias = Annotated[timedelta, BeforeValidator(parse_duration)]
Flag: TypeAlias = Annotated[bool, BeforeValidator(_parse_flag)]
Name: TypeAlias = Annotated[str, BeforeValidator(_parse_name)]
Queue: TypeAlias = Annotated[str, BeforeValidator(_parse_queue)]
Sha256: TypeAlias = Annotated[str, BeforeValidator(_parse_sha256), AfterValidator(str.lower)]


# ---- The sections. Names and defaults are the reference; durations are timedeltas, instants aware and in UTC. ----


class Section(BaseModel):
    """A part of the configuration: frozen, and without room for unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class LedgerSettings(Section):
    """Where the ledger is. Who needs it asks `Settings.require_ledger`: a second ledger is never an accident."""

    database_url: Annotated[str | None, BeforeValidator(_or_none(_parse_database_url))] = Field(
        default=None, repr=False
    )
    bin_dir: Annotated[Path | None, BeforeValidator(_or_none(_parse_path))] = None


class AwsSettings(Section):
    """Where DynamoDB, S3 and SQS are; without an endpoint, AWS itself."""

    endpoint_url: Annotated[str | None, BeforeValidator(_or_none(_parse_endpoint))] = None
    region: Annotated[str | None, BeforeValidator(_or_none(_parse_region))] = None


class SourceSettings(Section):
    """The table of bookings, its index, and the attributes that steer the dispatch."""

    table: Name = "PromotionRewardBooking"
    index: Name = "BookingDateUTC-BookingTimeUTC-index"
    date_attribute: Name = "BookingDateUTC"
    time_attribute: Name = "BookingTimeUTC"
    status_attribute: Name = "RewardStatus"
    due_status: Name = "WaitToReward"
    group_by: Annotated[tuple[str, ...], BeforeValidator(_parse_group_by)] = ("ShopId", "MemberId", "PromotionEngineId")
    order_by: Name = "OrderTime"
    route_by: Name = "RewardType"
    updated_at_attribute: Annotated[str | None, BeforeValidator(_or_none(_parse_name))] = None


class ObjectsSettings(Section):
    """Where the payload of a group goes. The bucket is checked by those who need one."""

    bucket: Annotated[str | None, BeforeValidator(_or_none(_parse_bucket))] = None
    prefix: Annotated[str, BeforeValidator(_parse_prefix)] = "reward-dispatch/"


class Route(Section):
    """What becomes of a record with one route value: the name of its job, and the queue (name or URL)."""

    job: Name
    queue: Queue


class DispatchSettings(Section):
    """How a window is dispatched."""

    pagination_enabled: Annotated[bool, BeforeValidator(_parse_lenient_flag)] = False
    page_size: Annotated[int, BeforeValidator(_parse_lenient_page_size)] = PAGE_SIZE_DEFAULT
    grouping: Literal["window", "page"] = "window"
    lease: Annotated[timedelta, BeforeValidator(_parse_lease)] = timedelta(seconds=60)
    verify_due: Flag = True


class ReconcileSettings(Section):
    """How far a reconcile looks back, what it leaves alone, and when it asks a person."""

    lookback: Duration = timedelta(hours=6)
    grace: Duration = timedelta(minutes=10)
    orphan_grace: Duration = timedelta(hours=24)
    deep_lookback: Duration = timedelta(days=7)
    max_redispatch: Annotated[int, BeforeValidator(_whole_number(0))] = 500
    receipt_within: Annotated[timedelta | None, BeforeValidator(_or_none(parse_duration))] = None


class ScheduleSettings(Section):
    """When the paired jobs run (cron, UTC), and which windows are owed at all."""

    dispatch: Cron = "1 * * * *"
    reconcile: Cron = "*/20 * * * *"
    deep_reconcile: Cron = "30 3 * * *"
    not_before: Annotated[datetime | None, BeforeValidator(_or_none(_parse_instant))] = None
    catch_up: Duration = timedelta(hours=24)


class JobsSettings(Section):
    """The control queues of long-running jobs, and their limits."""

    queue: Queue = "dispatch-ledger-jobs"
    slow_queue: Queue = "dispatch-ledger-jobs-slow"
    max_depth: Annotated[int, BeforeValidator(_whole_number(1))] = 1000
    fast_limit: Duration = timedelta(seconds=60)


class Token(Section):
    """A bearer token of the API: the SHA-256 of its text (lower-case hex), and what its holder may do."""

    sha256: Sha256 = Field(repr=False)
    role: Literal["viewer", "operator", "approver"]


class ApiSettings(Section):
    """Who may use the HTTP API; without tokens it is for the own machine only."""

    tokens: Annotated[dict[str, Token], AfterValidator(_check_names)] = Field(default={}, repr=False)


_ROUTES = {
    "Point": Route(job="RewardPoint", queue="reward-point"),
    "ECoupon": Route(job="RewardECoupon", queue="reward-ecoupon"),
}


class Settings(Section):
    """The whole configuration. `Settings()` is the defaults; `load_settings` reads a file and the environment."""

    pipeline: Annotated[str, BeforeValidator(_parse_pipeline)] = "reward"
    ledger: LedgerSettings = LedgerSettings()
    aws: AwsSettings = AwsSettings()
    source: SourceSettings = SourceSettings()
    objects: ObjectsSettings = ObjectsSettings()
    routes: Annotated[dict[str, Route], AfterValidator(_check_routes)] = Field(default=_ROUTES)
    dispatch: DispatchSettings = DispatchSettings()
    reconcile: ReconcileSettings = ReconcileSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    jobs: JobsSettings = JobsSettings()
    api: ApiSettings = ApiSettings()
    _state_dir: Path = PrivateAttr(default=Path(STATE_DIR_NAME))
    _has_file: bool = PrivateAttr(default=True)

    def model_post_init(self, context: Any, /) -> None:
        """Take from the validation context what belongs to the file, and is no key in it."""
        if isinstance(context, Mapping):
            self._state_dir = context.get("state_dir", self._state_dir)
            self._has_file = context.get("has_file", self._has_file)

    @property
    def flow(self) -> Flow:
        """The flow that these keys choose; a run keeps it to its end."""
        if not self.dispatch.pagination_enabled:
            return "full"
        return "staged" if self.dispatch.grouping == "window" else "paged"

    @property
    def state_dir(self) -> Path:
        """The folder where embedded services keep their data: beside the config file, else in the working directory."""
        return self._state_dir

    def require_ledger(self) -> str:
        """Return where the ledger is: `embedded`, or a URL. Only beside the emulated AWS does it go without saying.

        Raises:
            InputError: nothing says where it is. Taking another one would send again what the right one knows as sent.
        """
        where = self.ledger.database_url or ("embedded" if self.aws.endpoint_url == "embedded" else None)
        if where is not None:
            return where
        no_file = "" if self._has_file else f", and there is no {CONFIG_NAME} in {self.state_dir.parent}"
        raise InputError(
            f"ledger.database_url is not set{no_file}; set it to the URL of the ledger's PostgreSQL, or to 'embedded' "
            "to mean one that the product runs itself beside the config file"
        )


def known_keys() -> tuple[str, ...]:
    """Return every key of the configuration, dotted, in the order of the reference."""
    keys: list[str] = []
    for name in Settings.model_fields:
        section = _section(name)
        keys += [f"{name}.{key}" for key in section.model_fields] if section else [name]
    return tuple(keys)


def env_name(key: str) -> str:
    """Return the environment variable that overrides this dotted key."""
    return ENV_PREFIX + key.upper().replace(".", "__")


def _section(name: str) -> type[Section] | None:
    field = Settings.model_fields.get(name)
    annotation = field.annotation if field else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


# ---- Loading: read the file, read the environment, lay one over the other, check. ----


def load_settings(
    config: Path | None = None, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Settings:
    """Read the configuration.

    Args:
        config: the file that was asked for; else `DISPATCH_LEDGER_CONFIG`, else `dispatch-ledger.toml` in `cwd`. Only
            that last one may be missing.
        environ: the environment to read, instead of the process's.
        cwd: the folder that relative names start from, instead of the working directory.

    Raises:
        InputError: the file cannot be read, a key is unknown, or a value is not allowed. One line.
    """
    path, document, overrides = _gathered(config, environ, cwd)
    try:
        return Settings.model_validate(
            _overlaid(document or {}, overrides),
            context={"state_dir": path.absolute().parent / STATE_DIR_NAME, "has_file": document is not None},
        )
    except ValidationError as error:
        refusal = _refusal(error, path, overrides)
    raise refusal  # outside the handler: the chain of causes would print the values that the line masks


class Ignored(NamedTuple):
    """A value that a lenient key did not understand, and did not refuse either; `shown` is shortened."""

    key: str
    where: str
    shown: str


class Sources(NamedTuple):
    """Where the configuration comes from.

    Attributes:
        file: the file that was read; None when there is none, and the defaults hold.
        variables: the environment variables that go before it, in order.
        ignored: values of lenient keys that stand for something else than they say.
        hides_ledger: whether a variable names the ledger, and the file another one.
    """

    file: Path | None
    variables: tuple[str, ...]
    ignored: tuple[Ignored, ...]
    hides_ledger: bool


def find_sources(
    config: Path | None = None, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Sources:
    """Say where the configuration that `load_settings` reads comes from; takes and raises what that does."""
    path, document, overrides = _gathered(config, environ, cwd)
    dispatch = _table(_overlaid(document or {}, overrides), "dispatch")
    ignored = [
        Ignored(key, overrides[key].variable if key in overrides else str(path), _shown(key, dispatch[name]))
        for key, name, understood in _LENIENT
        if name in dispatch and not understood(dispatch[name])
    ]
    variables = sorted(one.variable for one in overrides.values())
    in_file, chosen = _table(document or {}, "ledger").get("database_url"), overrides.get("ledger.database_url")
    hides = bool(in_file and chosen and chosen.value not in {"", in_file})
    return Sources(None if document is None else path, tuple(variables), tuple(ignored), hides)


def _table(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section as it is written; what is no table is refused elsewhere."""
    given = document.get(name)
    return given if isinstance(given, dict) else {}


_LENIENT: Final = (
    ("dispatch.pagination_enabled", "pagination_enabled", _is_lenient_flag),
    ("dispatch.page_size", "page_size", lambda value: _readable_page_size(value) is not None),
)


def child_environment(**extra: str) -> dict[str, str]:
    """Return a copy of this process's environment with `extra` added, for a process to be started."""
    return {**os.environ, **extra}


class Override(NamedTuple):
    """A key's value from the environment, and the variable that it came from."""

    variable: str
    value: object


def _gathered(
    config: Path | None, environ: Mapping[str, str] | None, cwd: Path | None
) -> tuple[Path, dict[str, Any] | None, dict[str, Override]]:
    """Read what there is: the file's path, its document (None without a file), what the environment overrides."""
    environ = os.environ if environ is None else environ
    named = config or environ.get(ENV_CONFIG)
    path = (cwd or Path.cwd()) / (named or CONFIG_NAME)
    document = _read_file(path) if named or os.path.lexists(path) else None
    return path, document, _read_environment(environ)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such config file; write one with `dispatch-ledger init`, or name another"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot read the config file: {reason}") from None
    if len(content) > CONFIG_BYTES_MAX:
        raise InputError(f"{path}: the config file is larger than {CONFIG_BYTES_MAX} bytes")
    return _parse_toml(content, path)


def _parse_toml(content: bytes, path: Path) -> dict[str, Any]:
    try:
        text = content.decode("utf-8-sig")
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        reason = f"byte 0x{content[error.start]:02x} in line {line} is not UTF-8 text"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        lines = text.split("\n")
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}, the end of the file"
        reason = str(error).replace("at end of document", end)
    raise InputError(f"{path}: not a valid TOML file: {reason}")


def _read_environment(environ: Mapping[str, str]) -> dict[str, Override]:
    """Return the keys that the environment sets; the product's own name for a key goes before the inherited one."""
    names = {env_name(key): key for key in known_keys()}
    for variable in sorted(environ):
        if variable.startswith(ENV_PREFIX) and variable not in names and variable != ENV_CONFIG:
            raise _unknown_variable(variable, environ[variable])
    inherited = {variable: key for key, variable in ENV_INHERITED.items()}
    return {
        key: Override(variable, _parse_variable(variable, key, environ[variable]))
        for variable, key in (inherited | names).items()
        if variable in environ
    }


def _parse_variable(variable: str, key: str, text: str) -> object:
    """Return a list or a table from its JSON, and any other value as the text that it is."""
    if key not in ENV_JSON_EXAMPLES:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _bad_value(
            f"environment variable {variable}", key, text, f"JSON such as {ENV_JSON_EXAMPLES[key]}"
        ) from None


def _overlaid(document: Mapping[str, Any], overrides: Mapping[str, Override]) -> dict[str, Any]:
    """Return the document with each override in its place; the document stays as it is."""
    merged = {name: dict(value) if isinstance(value, dict) else value for name, value in document.items()}
    for key, override in overrides.items():
        section, _, name = key.rpartition(".")
        table = merged.setdefault(section, {}) if section else merged
        if isinstance(table, dict):  # else the file has a plain value in a section's place, which the check refuses
            table[name] = override.value
    return merged


# ---- The error lines: where, the key, the value (shortened, secrets masked), and what is allowed. ----

_SECRET_KEY = re.compile(r"secret|passw|token|credential|access_?key|api_?key|sha256", re.IGNORECASE)
_ALLOWED = {"model_type": "a table", "dict_type": "a table"}  # pydantic's own error types, in the user's words


def _refusal(error: ValidationError, path: Path, overrides: Mapping[str, Override]) -> InputError:
    """Return one of these errors as one line; an unknown key first, since a misspelt one is also missed elsewhere."""
    first = min(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    parts = tuple(str(part) for part in first["loc"])
    source = overrides.get(".".join(parts[:2])) or overrides.get(parts[0])
    where = f"environment variable {source.variable}" if source else str(path)
    key = _dotted(parts)
    if first["type"] == "extra_forbidden":
        return _unknown_key(where, parts, first["input"])
    if first["type"] == "missing":
        return InputError(f"{where}: {key} is missing in {_shown(_dotted(parts[:-1]), first['input'])}; it is required")
    cause = first.get("ctx", {})
    allowed = cause.get("error") or cause.get("expected") or _ALLOWED.get(first["type"]) or first["msg"]
    return _bad_value(where, key, first["input"], str(allowed))


def _bad_value(where: str, key: str, value: object, allowed: str) -> InputError:
    return InputError(f"{where}: {key} = {_shown(key, value)} is not allowed; use {allowed}")


def _unknown_key(where: str, parts: tuple[str, ...], value: object) -> InputError:
    beside = {name: _dotted((*parts[:-1], name)) for name in _names_beside(parts)}
    key = _dotted(parts)
    near = _nearest(key, known_keys(), cutoff=0.8)
    near = near or _nearest(parts[-1], beside, cutoff=0.6) or _nearest_tail(parts[-1])
    hint = f"did you mean {beside.get(near, near)}?" if near else f"known here: {', '.join(beside)}"
    return InputError(f"{where}: unknown key {key} = {_shown(key, value)}; {hint}")


def _unknown_variable(variable: str, value: str) -> InputError:
    key = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")
    near = _nearest(key, known_keys(), cutoff=0.6) or _nearest_tail(key)
    hint = f"did you mean {env_name(near)}?" if near else f"the names are {ENV_PREFIX}<SECTION>__<KEY>, in upper case"
    key = _dotted(key.split("."))
    return InputError(f"environment variable {variable}: unknown key {key} = {_shown(key, value)}; {hint}")


def _nearest(key: str, known: Iterable[str], *, cutoff: float) -> str | None:
    plain = {name.replace(".", "_"): name for name in known}
    close = difflib.get_close_matches(key.lower().replace(".", "_"), plain, n=1, cutoff=cutoff)
    return plain[close[0]] if close else None


def _nearest_tail(key: str) -> str | None:
    """Return the one key of this name in any section: it may stand in the wrong one."""
    tail = key.rpartition(".")[2]
    same = [known for known in known_keys() if known.rpartition(".")[2] == tail]
    return same[0] if len(same) == 1 else None


def _names_beside(parts: tuple[str, ...]) -> Iterable[str]:
    if len(parts) == 1:
        return Settings.model_fields
    if parts[0] == "routes":
        return Route.model_fields
    if parts[:2] == ("api", "tokens"):
        return Token.model_fields
    section = _section(parts[0])
    return section.model_fields if section else ()


def _dotted(parts: Iterable[str]) -> str:
    """Return the key as TOML would write it: a part that is no bare key stands in quotes."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part) for part in parts)


def _shown(key: str, value: object) -> str:
    """Return the value for an error line: at most SHOWN_CHARS_MAX characters, without any secret."""
    is_role = key.endswith(".role") and isinstance(value, str) and re.fullmatch("[A-Za-z]{1,16}", value)
    text = repr(value if is_role else _masked(key, value, SHOWN_DEPTH_MAX))
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "..."


def _masked(key: str, value: object, depth: int) -> object:
    if _SECRET_KEY.search(key) or depth == 0:
        return "***"
    if isinstance(value, dict):
        return {name: _masked(str(name), item, depth - 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(key, item, depth - 1) for item in value]
    if isinstance(value, int) and value.bit_length() > SHOWN_BITS_MAX:
        return "a number with very many digits"  # so many that Python refuses to print them
    return _masked_text(value) if isinstance(value, str) else value


def _masked_text(text: str) -> str:
    """Hide what may be a password: before an `@`, after `user:` without a host, in URL options, after `password=`."""
    scheme = match[0] if (match := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text)) else ""
    rest = re.sub(r".+@", "***@", text.removeprefix(scheme), flags=re.DOTALL)
    if scheme:
        rest = re.sub(r"\?.*", "?***", rest, flags=re.DOTALL)
        rest = re.sub(r"^([^/:@]*):(?![0-9]{1,5}(?:/|\?|$)).*", r"\1:***", rest, flags=re.DOTALL)
    rest = re.sub(r"(passw\w*\s*[=:]).*", r"\1***", rest, flags=re.IGNORECASE | re.DOTALL)
    return scheme + rest


# ---- The file that `init` writes. ----


def init_template(now: datetime, *, bucket: str | None = None) -> str:
    """Return the text of a first config file: every key explained, paging on, what came before `now` not owed.

    Args:
        now: an aware instant; the hour that it is in, in UTC, becomes `schedule.not_before`.
        bucket: `objects.bucket`, when it is known already.

    Raises:
        InputError: this cannot be the name of a bucket.
    """
    if now.tzinfo is None:
        raise ValueError("init_template needs an aware instant")
    hour = now.astimezone(UTC).strftime("%Y-%m-%dT%H:00:00Z")
    text = files("ops").joinpath("templates", CONFIG_NAME).read_text(encoding="utf-8")
    text = text.replace("1970-01-01T00:00:00Z", hour)
    return text if bucket is None else text.replace('# bucket = "my-bucket"', f'bucket = "{_checked_bucket(bucket)}"')


def _checked_bucket(bucket: str) -> str:
    try:
        return _parse_bucket(bucket)
    except ValueError as error:
        refusal = _bad_value("init", "objects.bucket", bucket, str(error))
    raise refusal
