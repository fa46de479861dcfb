"""`--json` is exactly one document on standard output, also when signals come while it is written."""

import io
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ledger.errors import CancelledError, DispatchLedgerError
from ops import cli
from ops.context import CONTEXT


class Interrupted(io.BytesIO):
    """Standard output to which a signal comes in the middle of a write."""

    def write(self, raw: Any) -> int:
        half = len(raw) // 2
        super().write(raw[:half])
        signal.raise_signal(signal.SIGTERM)
        super().write(raw[half:])
        return len(raw)


@contextmanager
def interrupted() -> Iterator[Interrupted]:
    """Standard output; SIGTERM raises, as it does before a command takes the signals over."""

    def listen(number: int, _frame: Any) -> None:
        raise CancelledError(number)

    written = Interrupted()
    before = signal.signal(signal.SIGTERM, listen)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(written, write_through=True))
            patch.setattr(CONTEXT, "told", False)
            yield written
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_waits_until_the_document_is_whole() -> None:
    with interrupted() as out:
        with pytest.raises(CancelledError):
            CONTEXT.print_json({"a": 1, "b": 2})
        assert json.loads(out.getvalue()) == {"a": 1, "b": 2}
        with pytest.raises(CancelledError):
            signal.raise_signal(signal.SIGTERM)


def test_what_goes_wrong_after_the_document_is_told_on_standard_error_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(*_: object, **__: object) -> None:
        CONTEXT.print_json({"done": True})

    monkeypatch.setattr(cli, "app", app)
    with interrupted() as out:
        assert cli.main(["doctor", "--json"]) == 143
        assert json.loads(out.getvalue()) == {"done": True}
    assert capsys.readouterr().err.startswith("error: cancelled by signal 15")


def test_what_goes_wrong_before_it_is_the_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(*_: object, **__: object) -> None:
        raise DispatchLedgerError("no such thing")

    monkeypatch.setattr(cli, "app", app)
    for _ in range(2):  # each command of a process has a document of its own
        assert cli.main(["doctor", "--json"]) == 1
        assert json.loads(capsys.readouterr().out) == {"error": "no such thing"}
