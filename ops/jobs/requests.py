"""What may be asked for: each kind of job with its parameters, checked before anything is written down.

The names are those of the command line's options. A window is checked again when the job is done.
"""

import hashlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, TypeVar
from uuid import UUID

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from ledger.acknowledging import TEXT_MAX
from ledger.canonical import canonical_json
from ledger.errors import InputError
from ledger.ids import new_id
from ledger.instants import Window, parse_window, window_of_execute_time
from ledger.jobs import FollowUp, Lane, NewJob
from ledger.reports import REPORTED_KINDS
from ledger.settings import parse_duration
from ledger.spans import Bounds, parse_bounds
from ledger.strict_json import exact

WINDOWS_MAX = 1000
_CHAIN_MAX = 5
# A reconcile of more windows than this goes to the slow queue at once; others move there by themselves if they must.
_QUICK_WINDOWS = 24
_QUICK_LOOKBACK = timedelta(hours=24)


def _checked(parse: Callable[[str], object]) -> AfterValidator:
    """Check a text with the parser that the command line uses; the text is kept."""

    def check(text: str) -> str:
        try:
            parse(text)
        except InputError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(check)


def bounds_of(since: str | None, until: str | None) -> Bounds:
    """Read the range that `from` and `to` name.

    Raises:
        InputError: when they name none.
    """
    try:
        return parse_bounds(since, until)
    except InputError as error:
        raise InputError(str(error).replace("--from", "from").replace("--to", "to")) from None


def _plain(text: str) -> str:
    """Refuse what no table can keep, and text that says nothing."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text) or not text.strip():
        raise ValueError("text of at least one character, without NUL and half surrogate pairs")
    return text.strip()


# How the description of the API tells of an instant.
TIME: dict[str, Any] = {"json_schema_extra": {"format": "date-time"}}
WindowName = Annotated[
    str,
    Field(max_length=80, description="A window's start, on the hour.", examples=["2026-09-17T15:00:00Z"], **TIME),
    _checked(parse_window),
]
Instant = Annotated[
    str,
    Field(max_length=80, description="RFC 3339 with a zone.", examples=["2026-09-17T16:01:10Z"], **TIME),
    _checked(window_of_execute_time),
]
Lookback = Annotated[
    str,
    Field(
        max_length=20,
        description="How far back, such as 6h.",
        examples=["6h"],
        json_schema_extra={"pattern": "^[0-9]{1,4}(ms|s|m|h|d)$"},
    ),
    _checked(parse_duration),
]
Text = Annotated[str, Field(max_length=TEXT_MAX), AfterValidator(_plain)]


def _group_text(value: Any) -> str:
    """Keep a group as JSON text, with every digit of its numbers."""
    if isinstance(value, dict | list):
        return canonical_json(exact(value)).decode()
    if isinstance(value, str):
        return value
    raise ValueError("an object of the group-by values, an array of them, or the JSON of either as text")


_GROUP_FORMS = [{"type": "object"}, {"type": "array", "items": {}}, {"type": "string"}]
Group = Annotated[str, BeforeValidator(_group_text), WithJsonSchema({"anyOf": _GROUP_FORMS})]


def _given(value: Any) -> Any:
    """Refuse a null where leaving out means all of them: it may be somebody's mistake."""
    if value is None:
        raise ValueError("null is nothing here; leave it out, or give a value")
    return value


_T = TypeVar("_T")
Optional = Annotated[_T | SkipJsonSchema[None], BeforeValidator(_given)]


def _without_null_defaults(schema: dict[str, Any]) -> None:
    for member in schema.get("properties", {}).values():
        if member.get("default", ...) is None and "anyOf" not in member:
            del member["default"]


class Strict(BaseModel):
    """A part of a request: no unknown members, and nothing is taken for something else."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, json_schema_extra=_without_null_defaults)


class DispatchParams(Strict):
    """One window, named by its start or by an instant of the hour after it, or every window that is owed."""

    window: Optional[WindowName] = None
    execute_time: Optional[Instant] = None
    due: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.window is not None) + (self.execute_time is not None) + self.due != 1:
            raise ValueError("give exactly one of window, execute_time and due")
        return self

    @property
    def chosen(self) -> Window | None:
        """The one window; None for all that are owed."""
        if self.execute_time is not None:
            return window_of_execute_time(self.execute_time)
        return None if self.window is None else parse_window(self.window)


class ReconcileParams(Strict):
    """Windows by name, or those of a lookback; what it may do, as on the command line."""

    window: Optional[WindowName] = None
    windows: list[WindowName] = Field(default_factory=list, min_length=1, max_length=WINDOWS_MAX)
    lookback: Optional[Lookback] = None
    no_repair: bool = False
    delete_orphans: bool = False
    release_hold: bool = False
    reason: Optional[Text] = Field(default=None, description="Why held windows may go on; with release_hold.")

    @property
    def chosen(self) -> list[Window]:
        """The windows that were named, each once, in the order given."""
        named = [*([] if self.window is None else [self.window]), *self.windows]
        return list(dict.fromkeys(map(parse_window, named)))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.chosen and self.lookback is not None:
            raise ValueError("give either windows or lookback, not both")
        if self.no_repair and (self.delete_orphans or self.release_hold):
            raise ValueError("no_repair goes neither with delete_orphans nor with release_hold")
        if self.release_hold and not self.chosen:
            raise ValueError("release_hold needs the windows to release")
        if self.release_hold != (self.reason is not None):
            raise ValueError("release_hold and the reason for it go together")
        return self


class ReportParams(Strict):
    """A report of a range of windows, as a file in the bucket."""

    model_config = ConfigDict(populate_by_name=True)

    report: Literal["windows", "duplicates", "missed", "orphans", "findings"] = "windows"
    format: Literal["json", "csv", "html"] = "json"
    since: Optional[str] = Field(
        default=None, alias="from", max_length=80, description="Windows that start at this instant or later.", **TIME
    )
    until: Optional[str] = Field(
        default=None, alias="to", max_length=80, description="Windows that start before this instant.", **TIME
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        try:
            bounds_of(self.since, self.until)
        except InputError as error:
            raise ValueError(str(error)) from None
        assert self.report == "windows" or self.report in REPORTED_KINDS, "the names of the reports"
        return self


class PlanParams(Strict):
    """What a redo should send again, and why."""

    window: WindowName
    reason: Text = Field(description="Why it is sent again.", examples=["wrong amounts, ticket 4711"])
    by: Text | None = Field(default=None, description="Who wants it; the token's name by default.")
    group: list[Group] = Field(
        default_factory=list,
        min_length=1,
        max_length=1000,
        description="Only these groups: the group-by values by attribute, or in their order, or the JSON of either as "
        "text.",
    )
    record: list[Annotated[str, Field(max_length=2048)]] = Field(
        default_factory=list, min_length=1, max_length=1000, description="Only these records, by id."
    )
    include_not_due: bool = False
    include_worked: bool = False


class RedoParams(Strict):
    """A plan to make, or the id of one to apply."""

    plan: PlanParams | None = None
    apply: UUID | None = Field(default=None, strict=False)
    by: Text | None = Field(default=None, description="Who applies it; the token's name by default.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.plan is None) == (self.apply is None):
            raise ValueError("give exactly one of plan and apply")
        if self.plan is not None and self.by is not None:
            raise ValueError("who wants a plan stands in the plan")
        return self


class _Request(Strict):
    follow_up: "JobRequest | None" = Field(
        default=None, description="A job to start when this one completes, and only then."
    )


class DispatchRequest(_Request):
    """Dispatch one window, or what is owed."""

    kind: Literal["dispatch"]
    params: DispatchParams


class ReconcileRequest(_Request):
    """Reconcile windows."""

    kind: Literal["reconcile"]
    params: ReconcileParams = ReconcileParams()


class RedoRequest(_Request):
    """Make a plan of a redo, or apply one."""

    kind: Literal["redo"]
    params: RedoParams


class ReportRequest(_Request):
    """Write a report into the bucket."""

    kind: Literal["report"]
    params: ReportParams = ReportParams()


JobRequest = Annotated[DispatchRequest | ReconcileRequest | RedoRequest | ReportRequest, Field(discriminator="kind")]
Params = DispatchParams | ReconcileParams | RedoParams | ReportParams
AnyRequest = DispatchRequest | ReconcileRequest | RedoRequest | ReportRequest
for _model in (DispatchRequest, ReconcileRequest, RedoRequest, ReportRequest):
    _model.model_rebuild()

PARAMS: dict[str, type[Params]] = {
    "dispatch": DispatchParams,
    "reconcile": ReconcileParams,
    "redo": RedoParams,
    "report": ReportParams,
}


def chain(request: AnyRequest) -> Iterator[AnyRequest]:
    """Yield a request and those that follow it.

    Raises:
        InputError: when too many follow each other.
    """
    following: AnyRequest | None = request
    for _ in range(_CHAIN_MAX):
        if following is None:
            return
        yield following
        following = following.follow_up
    if following is not None:
        raise InputError(f"more than {_CHAIN_MAX} jobs in a row, the first included; ask for the rest afterwards")


def needs_approver(request: AnyRequest) -> bool:
    """Say whether this, or what follows it, applies a plan or releases a hold."""
    return any(
        (isinstance(one.params, RedoParams) and one.params.apply is not None)
        or (isinstance(one.params, ReconcileParams) and one.params.release_hold)
        for one in chain(request)
    )


def expected_lane(params: Params) -> Lane:
    """Choose the queue: what is known to take long waits with its like; a wrong guess moves by itself."""
    if isinstance(params, RedoParams):
        return "slow"
    if isinstance(params, ReconcileParams):
        long = params.lookback is not None and parse_duration(params.lookback) > _QUICK_LOOKBACK
        return "slow" if long or len(params.chosen) > _QUICK_WINDOWS else "fast"
    return "fast"


def new_job(request: AnyRequest, created_by: str, idempotency_key: str | None = None) -> NewJob:
    """Return the job that a request asks for."""
    kind, *rest = list(chain(request))
    follow_up: FollowUp | None = None
    for one in reversed(rest):
        follow_up = FollowUp(one.kind, expected_lane(one.params), msgspec.Raw(_json(one.params)), follow_up)
    asked = request.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return NewJob(
        id=new_id(),
        kind=kind.kind,
        params=_json(request.params).decode(),
        queue=expected_lane(request.params),
        created_by=created_by,
        idempotency_key=idempotency_key,
        request_hash=hashlib.sha256(canonical_json(asked)).digest() if idempotency_key is not None else None,
        follow_up=follow_up,
    )


def _json(params: Params) -> bytes:
    return canonical_json(params.model_dump(mode="json", by_alias=True, exclude_unset=True))
