"""What `dispatch` takes, says and answers with: documents, exit codes, error lines, windows by all their names."""

import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import drained, fill, hours_ago
from tests.product import COMMAND, Product, check_run, until
from tests.rig import FLOWS, WINDOW, Rig
from tests.wire import FaultProxy, Rule, callback, on, status

HOUR = WINDOW[:13]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


# The document


@pytest.mark.parametrize("flow", FLOWS)
def test_the_document_of_a_run(product: Product, world: World, flow: str) -> None:
    world.put_many(
        [
            booking("due1", f"{HOUR}:01:00Z"),
            booking("due2", f"{HOUR}:02:00Z"),
            booking("gone", f"{HOUR}:03:00Z", status="Rewarded"),
            booking("out", f"{HOUR[:11]}16:00:00.5Z"),
            booking("bad", f"{HOUR}:04:00Z", ShopId=None),
        ]
    )
    done = product.dispatch(WINDOW, flow=flow, dispatch__page_size="2").ended(3)
    assert done.err == ""
    assert done.out.count("\n") == 1
    counts = {"evaluated": 5, "outside": 1, "not_due": 1, "set_aside": 1, "due": 2, "claimed": 2, "already_claimed": 0}
    document = done.books(flow=flow, page_size=2, outcome="completed", cause="manual", pipeline="reward", **counts)
    assert document["window"] == {"start": WINDOW, "end": "2026-09-17T16:00:00Z"}
    assert UUID.fullmatch(document["run_id"])
    assert TIME.fullmatch(document["started_at"])
    assert TIME.fullmatch(document["finished_at"])
    assert document["started_at"] <= document["finished_at"]
    assert all(isinstance(document[name], int) for name in ("pages", "entries", "confirmed", "recovered", *counts))


def test_the_document_of_a_failed_run(product: Product, world: World) -> None:
    world.put(booking("r1", f"{HOUR}:01:00Z"))
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("SendMessageBatch"), status(403, b'{"__type": "AccessDenied", "message": "no"}')))
        done = product.dispatch(WINDOW, endpoint=wire.url).ended(1)
    document = done.books(outcome="failed", evaluated=1, due=1, claimed=1, entries=1, confirmed=0)
    assert document["error"] == done.error


def test_the_document_of_a_busy_run(product: Product, world: World) -> None:
    fill(world, WINDOW)
    with FaultProxy(world.endpoint) as wire:
        ends: list[Any] = []
        wire.rules.append(Rule(on("Query"), callback(lambda _: ends.append(product.dispatch(WINDOW))), times=1))
        product.dispatch(WINDOW, endpoint=wire.url).ended(0)
    document = ends[0].ended(4).books(outcome="busy", pages=0, evaluated=0)
    assert document["error"] == ends[0].error
    assert "try again later" in ends[0].error


@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=["table", "json"])
def test_an_error_is_one_line_and_a_traceback_only_when_asked_for(
    product: Product, world: World, arguments: tuple[str, ...]
) -> None:
    asked = ("dispatch", "--window", WINDOW, *arguments)
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("Query"), status(400, b'{"__type": "ValidationException", "message": "no"}')))
        plain = product.run(*asked, endpoint=wire.url).ended(1)
        debug = product.run("--debug", *asked, endpoint=wire.url).ended(1)
        after = product.run(*asked, "--debug", endpoint=wire.url).ended(1)
    assert "ValidationException" in plain.error
    assert "Traceback" not in plain.out
    for done in (debug, after):
        assert f"error: {plain.error}" in done.err
        assert "Traceback (most recent call last)" in done.err
        if arguments:
            done.books(outcome="failed")


def test_a_table_for_people(product: Product, world: World) -> None:
    fill(world, WINDOW)
    done = product.run("dispatch", "--window", WINDOW).ended(0)
    assert done.err == ""
    for text in (WINDOW, "completed", "evaluated", "claimed", "10", "confirmed"):
        assert text in done.out
    with pytest.raises(json.JSONDecodeError):
        json.loads(done.out)


def test_exit_2_prints_its_error_as_the_document(product: Product) -> None:
    for arguments in (("dispatch", "--json"), ("--json", "dispatch", "--no-such"), ("nonsense", "--json")):
        done = product.run(*arguments).ended(2)
        assert done.document == {"error": done.error}
    assert product.run("dispatch").ended(2).out == ""


@pytest.mark.parametrize(
    "command", ["dispatch", "init", "demo", "db upgrade", "db current", "show window", "show entry"]
)
def test_help_shows_an_example(product: Product, command: str) -> None:
    done = product.run(*command.split(), "--help").ended(0)
    assert f"Example: dispatch-ledger {command}" in " ".join(done.out.split())


def test_the_console_script_is_the_same(product: Product, world: World) -> None:
    fill(world, WINDOW)
    script = (str(Path(sys.executable).with_name("dispatch-ledger")),)
    product.dispatch(WINDOW, command=script).ended(0).books(outcome="completed", claimed=10)


# Tasks and windows


TASKS = {
    "data as text": json.dumps({"Data": json.dumps({"ExecuteTime": "2026-09-18T00:01:10.6854808+08:00"})}),
    "data as an object": json.dumps({"Data": {"ExecuteTime": "2026-09-17T16:59:59.9999999Z"}}),
    "the inner object": json.dumps({"ExecuteTime": "2026-09-17t16:00:00z", "Other": 1}),
}


@pytest.mark.parametrize("form", TASKS)
def test_a_task_from_a_file_and_from_standard_input(product: Product, world: World, tmp_path: Path, form: str) -> None:
    world.put(booking("r1", f"{HOUR}:01:00Z"))
    (tmp_path / "task.json").write_text(TASKS[form])
    first = product.run("dispatch", "--task", "task.json", "--json").ended(0).books(claimed=1)
    second = product.run("dispatch", "--task", "-", "--json", stdin=TASKS[form]).ended(0).books(already_claimed=1)
    assert first["window"] == second["window"] == {"start": WINDOW, "end": "2026-09-17T16:00:00Z"}


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("2026-09-17T16:01:10Z", WINDOW),
        ("2026-09-18T00:01:10.6854808+08:00", WINDOW),
        ("2026-09-17t16:59:59.99999999999999999z", WINDOW),
        ("2026-09-17T15:59:59.977+08:00", "2026-09-17T06:00:00Z"),
        ("2026-09-17T16:00:00.006+08:00", "2026-09-17T07:00:00Z"),
        ("2026-09-17T16:30:00+00:30", WINDOW),
        ("2026-01-01T00:00:00Z", "2025-12-31T23:00:00Z"),
    ],
)
def test_execute_time(product: Product, text: str, start: str) -> None:
    done = product.run("dispatch", "--execute-time", text, "--json").ended(0)
    assert done.books(evaluated=0)["window"]["start"] == start


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-09-17", "2026-09-17T16:01:10", "2026-09-17T16:01:60Z", "2026-02-30T16:01:10Z",
     "2026-09-17T24:00:00Z",
     "0001-01-01T00:30:00Z", "2026-09-17T16:01:10+25:00", "\uff12026-09-17T16:01:10Z"],
)  # fmt: skip
def test_bad_times(product: Product, rig: Rig, text: str) -> None:
    option = {"now": "--window", "2026-09-17": "--task", "2026-02-30T16:01:10Z": "--window"}.get(text, "--execute-time")
    if option == "--task":
        done = product.run("dispatch", "--task", "-", "--json", stdin=json.dumps({"ExecuteTime": text}))
    else:
        done = product.run("dispatch", option, text, "--json")
    done.ended(2)
    assert done.document == {"error": done.error}
    assert rig.rows("SELECT 1 FROM windows") == []


@pytest.mark.parametrize(
    "task",
    ["", "null", "[]", "{}", "{", '{"Data": 7}', '{"Data": "{"}',
     '{"Data": {}}', '{"ExecuteTime": 5}', '{"Data": null}', "x" * 2_000_000, "[" * 5000],
)  # fmt: skip
def test_bad_tasks(product: Product, task: str) -> None:
    done = product.run("dispatch", "--task", "-", "--json", stdin=task).ended(2)
    assert done.document == {"error": done.error}


def test_a_task_file_that_is_not_there(product: Product, tmp_path: Path) -> None:
    for path in ("nowhere.json", str(tmp_path)):
        assert path in product.run("dispatch", "--task", path).ended(2).error


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--due", "--window", WINDOW),
        ("--window", WINDOW, "--execute-time", "2026-09-17T16:01:10Z"),
        ("--task", "-", "--due"),
        ("--window", WINDOW, "--window", "2026-09-17T14:00:00Z", "--task", "x"),
    ],
)
def test_exactly_one_of_four(product: Product, arguments: tuple[str, ...]) -> None:
    error = product.run("dispatch", *arguments).ended(2).error
    for option in ("--execute-time", "--task", "--window", "--due"):
        assert option in error


@pytest.mark.parametrize("text", ["2026-09-17T15:30:00Z", "2026-09-17T15:00:00.5Z", "2026-09-17T15:00:00+00:30"])
def test_a_window_that_does_not_start_on_the_hour(product: Product, text: str) -> None:
    assert text in product.run("dispatch", "--window", text).ended(2).error


def test_a_window_that_has_not_ended(product: Product, rig: Rig) -> None:
    this_hour, next_hour = hours_ago(0), hours_ago(-1)
    for window in (this_hour, next_hour, "9998-01-01T00:00:00Z"):
        if window == this_hour and datetime.now(UTC).minute == 59:
            continue  # it may end in between
        done = product.dispatch(window).ended(2)
        assert window in done.error
        assert done.document == {"error": done.error}
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    if datetime.now(UTC).minute < 59:
        product.run("dispatch", "--execute-time", soon).ended(2)
    assert rig.rows("SELECT 1 FROM windows") == []


# --due


def due(product: Product, **settings: str) -> list[Any]:
    done = product.run("dispatch", "--due", "--json", **settings).ended(0)
    assert list(done.document) == ["runs"]
    return [check_run(run) for run in done.document["runs"]]


def test_due_takes_every_closed_window_oldest_first(product: Product, world: World) -> None:
    windows = [hours_ago(4), hours_ago(3), hours_ago(2), hours_ago(1)]
    fill(world, *windows, hours_ago(0))
    product.dispatch(windows[1]).ended(0)
    drained(world)
    runs = due(product, schedule__catch_up="5h")
    names = [run["window"]["start"] for run in runs]
    assert names == sorted(names)
    assert [name for name in names if name in windows] == [windows[0], windows[2], windows[3]]
    assert hours_ago(0) not in names
    assert all(run["outcome"] == "completed" for run in runs)
    assert {one["window"]["start"] for one in drained(world)} <= set(names)
    assert due(product, schedule__catch_up="5h") == []


def test_due_looks_back_as_far_as_catch_up(product: Product) -> None:
    assert len(due(product)) in {23, 24}, "catch_up is 24h by default"
    assert due(product) == []
    older = [run["window"]["start"] for run in due(product, schedule__catch_up="26h")]
    assert older in ([hours_ago(26), hours_ago(25)], [hours_ago(26), hours_ago(25), hours_ago(24)], [hours_ago(25)],
                     [hours_ago(25), hours_ago(24)])  # fmt: skip


def test_due_owes_nothing_before_not_before(product: Product) -> None:
    runs = due(product, schedule__not_before=hours_ago(2))
    assert [run["window"]["start"] for run in runs][:2] == [hours_ago(2), hours_ago(1)][: len(runs)]
    middle = hours_ago(5)[:14] + "30:00Z"
    runs = due(product, schedule__not_before=middle)
    assert [run["window"]["start"] for run in runs] == [hours_ago(4), hours_ago(3)], (
        "a window begun before it is not owed"
    )


def test_due_goes_on_after_a_window_that_failed(product: Product, world: World) -> None:
    windows = [hours_ago(3), hours_ago(2), hours_ago(1)]
    fill(world, *windows)
    with FaultProxy(world.endpoint) as wire:
        refusal = status(400, b'{"__type": "ValidationException", "message": "no"}')
        wire.rules.append(Rule(on("Query"), refusal, times=1))
        done = product.run("dispatch", "--due", "--json", endpoint=wire.url, schedule__catch_up="4h").ended(1)
    outcomes = [run["outcome"] for run in done.document["runs"]]
    assert (outcomes[0], set(outcomes[1:])) == ("failed", {"completed"})
    assert "ValidationException" in done.error
    assert [run["window"]["start"] for run in due(product, schedule__catch_up="4h")][:1] == windows[:1]


def test_due_in_words(product: Product) -> None:
    first = product.run("dispatch", "--due", schedule__catch_up="2h").ended(0)
    assert hours_ago(1) in first.out
    assert "No closed window is owed" in product.run("dispatch", "--due", schedule__catch_up="2h").ended(0).out


# Where the configuration comes from


def test_config_before_and_after_the_command_and_by_the_environment(
    product: Product, world: World, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("a", "b", "c", "here"):
        path = tmp_path / ("dispatch-ledger.toml" if name == "here" else f"elsewhere/{name}.toml")
        path.write_text(f'pipeline = "from-{name}"\n')
    asked = ("dispatch", "--window", WINDOW, "--json")
    variable: dict[str, str | None] = {"DISPATCH_LEDGER_CONFIG": "elsewhere/c.toml"}
    product.run(*asked).ended(0).books(pipeline="from-here")
    product.run("--config", "elsewhere/a.toml", *asked).ended(0).books(pipeline="from-a")
    product.run(*asked, "--config", "elsewhere/b.toml").ended(0).books(pipeline="from-b")
    product.run(*asked, "--config=elsewhere/b.toml").ended(0).books(pipeline="from-b")
    product.run(*asked, environ=variable).ended(0).books(pipeline="from-c")
    product.run(*asked, "--config", "elsewhere/a.toml", environ=variable).ended(0).books(pipeline="from-a")
    product.run(*asked, pipeline="from-env", environ=variable).ended(0).books(pipeline="from-env")
    for missing in ("nowhere.toml", "elsewhere"):
        assert missing in product.run(*asked, "--config", missing).ended(2).error


@pytest.mark.parametrize(
    ("enabled", "size", "flow", "page_size"),
    [
        ("true", "7", "staged", 7),
        ("  TRUE ", " 12 ", "staged", 12),
        ("yes", "0", "full", 1000),
        ("", "-5", "full", 1000),
        ("True", "many", "staged", 1000),
        (None, None, "full", 1000),
    ],
)
def test_the_two_inherited_names_are_lenient(
    product: Product, enabled: str | None, size: str | None, flow: str, page_size: int
) -> None:
    nothing: dict[str, str | None] = {"dispatch__pagination_enabled": None, "dispatch__page_size": None}
    inherited = {
        "_N1CONFIG__BookingDispatcherPaginationEnabled": enabled,
        "_N1CONFIG__BookingDispatcherPageSize": size,
    }
    done = product.dispatch(WINDOW, environ=inherited, **nothing).ended(0)
    done.books(flow=flow, page_size=page_size)


def test_the_own_names_come_before_the_inherited_ones_and_those_before_the_file(
    product: Product, tmp_path: Path
) -> None:
    (tmp_path / "dispatch-ledger.toml").write_text("[dispatch]\npagination_enabled = true\npage_size = 3\n")
    nothing: dict[str, str | None] = {"dispatch__pagination_enabled": None, "dispatch__page_size": None}
    product.dispatch(WINDOW, **nothing).ended(0).books(flow="staged", page_size=3)
    inherited: dict[str, str | None] = {
        "_N1CONFIG__BookingDispatcherPaginationEnabled": "false",
        "_N1CONFIG__BookingDispatcherPageSize": "4",
    }
    product.dispatch(WINDOW, environ=inherited, **nothing).ended(0).books(flow="full", page_size=4)
    nothing = {"dispatch__pagination_enabled": "true", "dispatch__page_size": "5"}
    product.dispatch(WINDOW, environ=inherited, **nothing).ended(0).books(flow="staged", page_size=5)


# init


def test_init_writes_a_file_that_dispatch_uses(product: Product, world: World, tmp_path: Path) -> None:
    before = hours_ago(0)
    done = product.run("init").ended(0)
    after = hours_ago(0)
    path = tmp_path / "dispatch-ledger.toml"
    assert "dispatch-ledger.toml" in done.out
    written = tomllib.loads(path.read_text())
    assert written["dispatch"]["pagination_enabled"] is True
    hour = written["schedule"]["not_before"]
    assert str(hour if isinstance(hour, str) else hour.strftime("%Y-%m-%dT%H:%M:%SZ")) in {before, after}
    fill(world, WINDOW)
    nothing: dict[str, str | None] = dict.fromkeys(
        ("dispatch__pagination_enabled", "dispatch__grouping", "dispatch__page_size")
    )
    product.dispatch(WINDOW, **nothing).ended(0).books(flow="staged", page_size=1000, claimed=10)


def test_init_overwrites_nothing(product: Product, tmp_path: Path) -> None:
    (tmp_path / "dispatch-ledger.toml").write_text("mine = true\n")
    done = product.run("init", "--json").ended(2)
    assert "dispatch-ledger.toml exists already" in done.document["error"]
    assert (tmp_path / "dispatch-ledger.toml").read_text() == "mine = true\n"
    other = product.run("init", "--config", "other.toml", "--json").ended(0)
    assert (tmp_path / "other.toml").exists()
    assert other.document == {"config": "other.toml"}
    assert "no/such" in product.run("init", "--config", "no/such/place.toml").ended(2).error


# db


def test_db_current_and_upgrade(product: Product, empty_database: str) -> None:
    product.ledger_url = empty_database
    before = product.run("db", "current", "--json").ended(1)
    assert before.document["current"] is None
    upgraded = product.run("db", "upgrade", "--json").ended(0)
    assert upgraded.document["current"] == upgraded.document["head"] == before.document["head"]
    assert product.run("db", "upgrade").ended(0).err == ""
    assert product.run("db", "current").ended(0).err == ""
    product.dispatch(WINDOW).ended(0)


# A reader that goes away


@pytest.mark.parametrize("arguments", [("--json",), ()], ids=["json", "table"])
def test_a_closed_pipe_is_no_traceback(product: Product, world: World, arguments: tuple[str, ...]) -> None:
    fill(world, WINDOW)
    environ = product._environment(None, "staged", {}, {})
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, "dispatch", "--window", WINDOW, *arguments],
            stdout=writing, stderr=subprocess.PIPE, text=True, cwd=product.cwd, env=environ, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("\n") <= 1
    until(lambda: len(drained(world)) == 5, "the work is done all the same", within_s=5)
