"""Handlers for child processes of a consumer; what they do depends on the id of the job's first record."""

import os
import signal
import time
from pathlib import Path
from typing import Any

PLACE = "the folder in HANDLERS_PLACE, where they leave their traces"


def grant(payload: Any) -> Any:
    place, name = Path(os.environ["HANDLERS_PLACE"]), payload["records"][0]["Id"]
    match name:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raises":
            raise ValueError("raises of 2001")
        case "exits":
            raise SystemExit(3)
        case "waits":
            (place / "begun").write_text(str(os.getpid()))
            while not (place / "go").exists():
                time.sleep(0.01)
    with (place / "effects").open("a") as effects:
        effects.write(f"{name}:{os.getpid()}\n")
    print("what a handler prints does not go to standard output")  # noqa: T201
    return {"printed": True}


def nothing(payload: Any) -> Any:
    return len(payload["records"])


async def slowly(payload: Any) -> Any:
    return payload
