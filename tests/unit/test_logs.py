"""What libraries log through the standard library comes out as a line like ours, on standard error."""

import json
import logging

import pytest

from ops import logs


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)


def test_a_library_that_warns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure("warning")
    library = logging.getLogger("some.library")
    monkeypatch.setattr(library, "propagate", False)  # past the handlers that the tests have put there
    library.warning("tried %s times", 3)
    library.info("nothing")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["library"]) == ("tried 3 times", "warning", "some.library")


def test_below_the_level_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("error")
    library = logging.getLogger("some.library")
    monkeypatch.setattr(library, "propagate", False)
    library.warning("tried again")
    try:
        int("many")
    except ValueError:
        library.exception("gave up")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], "ValueError: invalid" in line["exception"]) == ("gave up", True)
