"""The task that starts a job, in each of its forms, and everything else refused in one line."""

import json

import pytest

from dispatch.task import parse_task
from ledger.errors import InputError

TIME = "2026-09-17T16:01:10.6854808+08:00"
WINDOW = "2026-09-17T07:00:00Z"


@pytest.mark.parametrize(
    "task",
    [
        {"Data": json.dumps({"ExecuteTime": TIME})},
        {"Data": {"ExecuteTime": TIME}},
        {"ExecuteTime": TIME},
        {"Data": json.dumps({"ExecuteTime": TIME, "Other": [1]}), "Id": 7, "Name": None},
        {"ExecuteTime": TIME, "Data": None},
    ],
)
@pytest.mark.parametrize("prefix", ["", "\ufeff", " \n"])
def test_the_forms_of_a_task(task: object, prefix: str) -> None:
    assert parse_task((prefix + json.dumps(task)).encode()).name == WINDOW
    assert parse_task((prefix + json.dumps(task, indent=2) + "\n").encode()).name == WINDOW


def test_the_example_of_the_contract() -> None:
    raw = rb'{"Data": "{\"ExecuteTime\": \"2026-09-17T16:01:10.6854808+08:00\"}"}'
    assert parse_task(raw).name == WINDOW


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"  \n",
        b"null",
        b"[]",
        b"42",
        b'"2026-09-17T16:01:10Z"',
        b"{}",
        b"{",
        b'{"Data": }',
        b'{"Data": null}',
        b'{"Data": 5}',
        b'{"Data": []}',
        b'{"Data": ""}',
        b'{"Data": "not json"}',
        b'{"Data": "[]"}',
        b'{"Data": "{}"}',
        b'{"Data": {}}',
        b'{"data": {"ExecuteTime": "2026-09-17T16:01:10Z"}}',
        b'{"ExecuteTime": null}',
        b'{"ExecuteTime": 1789000000}',
        b'{"ExecuteTime": ""}',
        b'{"ExecuteTime": "2026-09-17T16:01:10"}',
        b'{"ExecuteTime": "yesterday"}',
        b'{"ExecuteTime": ["2026-09-17T16:01:10Z"]}',
        b"\xff\xfe{}",
        b'{"ExecuteTime": "\xff"}',
        b'{"ExecuteTime": "2026-09-17T16:01:10Z"} trailing',
        b'{"Data": {"Data": {"Data": {"Data": {"ExecuteTime": "2026-09-17T16:01:10Z"}}}}}',
        b"[" * 100_000,
        b'{"Data": "\\ud800"}',
    ],
)
def test_anything_else_is_refused_in_one_line(raw: bytes) -> None:
    with pytest.raises(InputError) as refusal:
        parse_task(raw)
    assert refusal.value.exit_code == 2
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500
