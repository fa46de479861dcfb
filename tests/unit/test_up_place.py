"""What `up` makes of a configuration, in which order its parts start and end, and the seven in another hour."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from dispatch import dispatcher
from dispatch.run import Cancellation
from ledger.errors import BusyError, UnavailableError
from ledger.instants import parse_window
from ledger.settings import Settings, env_name, load_settings
from ops import cli, samples, up, wiring

REAL_AWS = "https://dynamodb.eu-west-1.amazonaws.com"
REAL_LEDGER = "postgresql+psycopg://me:secret@db.example/ledger"


def loaded(folder: Path, **keys: str) -> Settings:
    environ = {env_name(key.replace("__", ".")): value for key, value in keys.items()}
    return load_settings(environ=environ, cwd=folder)


def scene(settings: Settings) -> up.Scene:
    with up.scene_of(settings, Console(quiet=True), sampled=True) as made:
        return made


@pytest.mark.parametrize(
    ("keys", "left_alone"),
    [
        ({}, []),
        ({"aws__endpoint_url": "embedded", "ledger__database_url": "embedded", "objects__bucket": "mine"}, []),
        ({"objects__bucket": "real"}, ["objects.bucket"]),
        ({"ledger__database_url": "embedded", "objects__bucket": "real"}, ["objects.bucket"]),
        ({"aws__endpoint_url": REAL_AWS}, ["aws.endpoint_url"]),
        ({"ledger__database_url": REAL_LEDGER}, ["ledger.database_url"]),
        (
            {"ledger__database_url": REAL_LEDGER, "objects__bucket": "real"},
            ["ledger.database_url", "objects.bucket"],
        ),
    ],
)
def test_what_names_something_real_is_left_alone(tmp_path: Path, keys: dict[str, str], left_alone: list[str]) -> None:
    made = scene(loaded(tmp_path, **keys))
    assert made.left_alone == left_alone
    assert made.settings.ledger.database_url == made.settings.aws.endpoint_url == "embedded"
    assert made.home == tmp_path / ".dispatch-ledger" / ("up" if left_alone else "")
    assert made.settings.objects.bucket == keys.get("objects__bucket", "dispatch-ledger-up")


def test_the_rest_of_the_configuration_holds(tmp_path: Path) -> None:
    routes = '{"Point": {"job": "J", "queue": "https://sqs.eu-west-1.amazonaws.com/1/mine.fifo"}}'
    made = scene(loaded(tmp_path, routes=routes, dispatch__lease="7s", source__table="Mine")).settings
    assert (made.routes["Point"].queue, made.dispatch.lease.total_seconds(), made.source.table) == (
        "mine.fifo",
        7,
        "Mine",
    )
    assert made.flow == "staged"
    assert scene(loaded(tmp_path, dispatch__pagination_enabled="false")).settings.flow == "full"


def test_the_hour_to_look_at_is_owed_whatever_init_wrote(tmp_path: Path) -> None:
    made = scene(loaded(tmp_path, schedule__not_before="2999-01-01T00:00:00Z"))
    assert made.settings.schedule.not_before == made.window.start
    early = loaded(tmp_path, schedule__not_before="2020-01-01T00:00:00Z")
    assert scene(early).settings.schedule.not_before == early.schedule.not_before
    assert scene(loaded(tmp_path)).settings.schedule.not_before is None


def test_only_one_in_a_place(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    with up.scene_of(settings, Console(quiet=True), sampled=True):
        with pytest.raises(BusyError, match="already"):
            scene(settings)
        assert scene(loaded(tmp_path, objects__bucket="real")).left_alone, "another place"
    assert scene(settings)


class Recorder:
    """Parts that write down when they start and end."""

    def __init__(self, cancellation: Cancellation) -> None:
        self.seen: list[str] = []
        self.cancellation = cancellation

    def part(self, name: str, *, signal_during_start: bool = False, fails: bool = False) -> up.Part:
        @contextmanager
        def run(_: up.Scene) -> Iterator[None]:
            self.seen.append(f"+{name}")
            if fails:
                raise UnavailableError(name)
            if signal_during_start:
                self.cancellation.ask(2)
            yield
            self.seen.append(f"-{name}")

        return run


def test_a_signal_during_a_part_starts_no_other_and_ends_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(Cancellation())
    parts = [recorder.part("a"), recorder.part("b", signal_during_start=True), recorder.part("c")]
    monkeypatch.setattr(up, "PARTS", parts)
    up.play(scene(loaded(tmp_path)), recorder.cancellation)
    assert recorder.seen == ["+a", "+b", "-b", "-a"]


def test_a_signal_during_the_last_part_or_before_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(Cancellation())
    monkeypatch.setattr(up, "PARTS", [recorder.part("a"), recorder.part("b", signal_during_start=True)])
    made = scene(loaded(tmp_path))
    for expected in (["+a", "+b", "-b", "-a"], []):
        recorder.seen.clear()
        up.play(made, recorder.cancellation)
        assert recorder.seen == expected
    assert made.document["jobs"] == []


def test_a_part_that_fails_ends_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(Cancellation())

    @contextmanager
    def outer(_: up.Scene) -> Iterator[None]:
        try:
            yield
        finally:
            recorder.seen.append("-outer")

    monkeypatch.setattr(up, "PARTS", [outer, recorder.part("b", fails=True)])
    with pytest.raises(UnavailableError):
        up.play(scene(loaded(tmp_path)), recorder.cancellation)
    assert recorder.seen == ["+b", "-outer"]


@pytest.mark.parametrize("now", [None, 8], ids=["gone", "another"])
@pytest.mark.parametrize(("server", "name"), [("postgres", "PostgreSQL"), ("aws", "AWS")])
@pytest.mark.parametrize("during_start", [False, True])
def test_a_server_that_has_ended_ends_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, name: str, now: int | None, *, during_start: bool
) -> None:
    recorder, looks = Recorder(Cancellation()), [now, now, 7, 7]
    monkeypatch.setattr(up, "_LOOK_S", 0.001)
    monkeypatch.setattr(up, "postgres_pid", lambda _: 7)
    monkeypatch.setattr(up, "aws_pid", lambda _: 7)
    monkeypatch.setattr(up, f"{server}_pid", lambda _: now if during_start else looks.pop())

    @contextmanager
    def outer(scene: up.Scene) -> Iterator[None]:
        scene.postgres = scene.aws = 7
        try:
            yield
        finally:
            recorder.seen.append(f"-outer, asked to stop: {recorder.cancellation.is_asked}")

    monkeypatch.setattr(up, "PARTS", [outer, *[recorder.part("b", fails=True)] * during_start])
    with pytest.raises(UnavailableError, match=f"the embedded {name} has ended; run `dispatch-ledger up` again"):
        up.play(scene(loaded(tmp_path)), recorder.cancellation)
    assert recorder.seen[-1] == "-outer, asked to stop: True"


def test_the_seven_in_another_hour() -> None:
    """Across midnight: times and date move together; nothing else does."""
    moved = {item["Id"]["S"]: item for item in samples.seed_items_for(parse_window("2026-11-29T23:00:00Z"))}
    seed = {item["Id"]["S"]: item for item in samples.seed_items()}
    assert moved.keys() == seed.keys()
    assert (moved["R0"]["BookingTimeUTC"], moved["R0"]["BookingDateUTC"]) == (
        {"S": "2026-11-29T22:59:59Z"},
        {"S": "2026-11-29"},
    )
    assert (moved["R6"]["BookingTimeUTC"], moved["R6"]["BookingDateUTC"]) == (
        {"S": "2026-11-30T00:00:01Z"},
        {"S": "2026-11-30"},
    )
    assert moved["R3"]["OrderTime"] == {"S": "2026-11-29T23:10:00Z"}
    times = ("BookingDateUTC", "BookingTimeUTC", "OrderTime")
    for name, item in seed.items():
        kept = {key: value for key, value in item.items() if key not in times}
        assert moved[name] | kept == moved[name]


def test_the_last_closed_hour() -> None:
    for text, start in (("15:00:00", "14:00:00"), ("15:59:59", "14:00:00"), ("00:30:00", "23:00:00")):
        now = datetime.fromisoformat(f"2026-09-17T{text}").replace(tzinfo=UTC)
        assert samples.last_closed_window(now).name.endswith(f"T{start}Z")


def test_the_seven_fit_their_own_attributes_only(tmp_path: Path) -> None:
    assert samples.fit(loaded(tmp_path, source__table="Other", source__updated_at_attribute="At"))
    assert not samples.fit(loaded(tmp_path, source__status_attribute="State"))
    assert not samples.fit(loaded(tmp_path, routes='{"Point": {"job": "J", "queue": "q"}}'))


@pytest.mark.parametrize(
    ("endpoint", "refused"),
    [("", True), (REAL_AWS, True), ("http://127.0.0.1:9", False), ("http://localhost:9", False)],
)
def test_a_ledger_of_emulated_windows_serves_no_other_aws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: str, *, refused: bool
) -> None:
    """Hours that trying out has completed would pass for dispatched, and their real records would wait."""
    (tmp_path / ".dispatch-ledger").mkdir()
    wiring._mark_emulated(loaded(tmp_path, aws__endpoint_url="embedded"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(env_name("aws.endpoint_url"), endpoint)
    monkeypatch.setenv(env_name("ledger.database_url"), "embedded")
    monkeypatch.setenv(env_name("objects.bucket"), "real")
    monkeypatch.setattr(
        dispatcher, "connect_partners", lambda *_: (_ for _ in ()).throw(UnavailableError("looked for"))
    )
    assert cli.main(["dispatch", "--due"]) == (2 if refused else 1)
    assert ("emulated AWS" if refused else "looked for") in capsys.readouterr().err
