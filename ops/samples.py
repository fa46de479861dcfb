"""The seven seed records, moved to another hour, to have something to look at."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.resources import as_file, files

from dispatch.importing import read_items
from dispatch.items import Item
from ledger.instants import Window, parse_window, window_of_execute_time
from ledger.settings import Settings, SourceSettings

SEED_EXECUTE_TIME = "2026-09-17T16:01:10Z"
KEY_NAME = "Id"
_TIMES = ("BookingTimeUTC", "OrderTime")
_ROUTES = {"Point", "ECoupon"}
_NAMES_OF_PLACES = {"table", "index", "updated_at_attribute"}


def seed_items() -> Iterator[Item]:
    """Yield the seven as they are: five in their window, one a second before it, one a second after it."""
    with as_file(files("ops") / "seed" / "seven.jsonl") as seed:
        yield from read_items(seed)


def seed_items_for(window: Window) -> Iterator[Item]:
    """Yield the seven with every time moved by the same whole hours, so that their window becomes `window`."""
    later = timedelta(seconds=window.start_s - window_of_execute_time(SEED_EXECUTE_TIME).start_s)
    for item in seed_items():
        moved = {name: {"S": _moved(item[name]["S"], later)} for name in _TIMES}
        yield {**item, **moved, "BookingDateUTC": {"S": moved["BookingTimeUTC"]["S"][:10]}}


def fit(settings: Settings) -> bool:
    """Say whether these settings know the attributes and routes that the seven have."""
    theirs = settings.source.model_dump(exclude=_NAMES_OF_PLACES)
    return theirs == SourceSettings().model_dump(exclude=_NAMES_OF_PLACES) and settings.routes.keys() >= _ROUTES


def last_closed_window(now: datetime) -> Window:
    """Return the window that had ended last at `now`."""
    hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    return parse_window(_written(hour))


def _moved(text: str, later: timedelta) -> str:
    return _written(datetime.fromisoformat(text) + later)


def _written(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
