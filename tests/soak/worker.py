"""A consumer of all queues it is given, in a process of its own; each effect is a row in the receipt's transaction."""

import faulthandler
import os
import random
import signal
import sys
import threading
from typing import Any

from dispatch.consumer import Consumer
from ledger.errors import DispatchLedgerError
from ledger.settings import load_settings
from ops import logs

EFFECTS = """
CREATE SCHEMA soak;
CREATE TABLE soak.effects (
    key text NOT NULL, worker integer NOT NULL, records text[] NOT NULL, made_at timestamptz DEFAULT clock_timestamp());
"""
_DICE = random.Random()
_LOOK_S = 0.1


def grant(payload: dict[str, Any], connection: Any) -> dict[str, int]:
    """Make the effect, now and then slowly."""
    threading.Event().wait(_DICE.choice([0, 0, 0.02, 0.2]))
    records = [f"{one['Id']}@{one['BookingTimeUTC']}" for one in payload["records"]]
    connection.execute(
        "INSERT INTO soak.effects (key, worker, records) VALUES (%s, %s, %s)",
        (payload["idempotency_key"], os.getpid(), records),
    )
    return {"granted": len(records)}


def main() -> int:
    """Work until SIGTERM."""
    _DICE.seed(os.getpid())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logs.configure("info")
    settings = load_settings()
    failed: list[BaseException] = []

    def work(queue: str) -> None:
        try:
            Consumer(settings, queue, grant, transactional=True).run(stop=stop)
        except DispatchLedgerError as error:
            sys.stderr.write(f"error: {error}\n")
            failed.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(queue,)) for queue in sys.argv[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(_LOOK_S)  # a signal may come to another thread, and this one hears of it when it looks
    return 1 if failed else 0
