"""A dispatcher wired by hand to a world and a ledger, and questions to ask that ledger."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from dispatch.dispatcher import Dispatcher, Partners, RunReport, connect_partners
from dispatch.run import Cancellation
from ledger.instants import Window, parse_window
from ledger.settings import Settings, env_name, load_settings
from ledger.store import Store, connect_arguments
from tests.aws_servers import World

WINDOW = "2026-09-17T15:00:00Z"
FLOWS: Mapping[str, Mapping[str, str]] = {
    "full": {"dispatch.pagination_enabled": "false"},
    "staged": {"dispatch.pagination_enabled": "true", "dispatch.grouping": "window"},
    "paged": {"dispatch.pagination_enabled": "true", "dispatch.grouping": "page"},
}
_NOT_A_PARTNERS_BUSINESS = {"pipeline", "dispatch.pagination_enabled", "dispatch.grouping", "dispatch.page_size"}


class Rig:
    """Runs windows of one world into one ledger.

    Args:
        defaults: settings by dotted key, for every run; each run may override them.
    """

    def __init__(self, world: World, ledger_url: str, **defaults: str) -> None:
        self.world = world
        self.url = ledger_url
        self.defaults = {name.replace("__", "."): value for name, value in defaults.items()}
        self._partners: dict[tuple[object, ...], Partners] = {}
        self._reader: psycopg.Connection[tuple[Any, ...]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._reader is not None:
            self._reader.close()

    def settings(self, flow: str = "staged", *, endpoint: str | None = None, **overrides: str) -> Settings:
        """Load settings as the product does; `dispatch__page_size="2"` overrides `dispatch.page_size`."""
        keys = {**FLOWS[flow], **self.defaults, **{name.replace("__", "."): text for name, text in overrides.items()}}
        environ = {**self.world.environment(endpoint), env_name("ledger.database_url"): self.url}
        environ |= {env_name(key): value for key, value in keys.items()}
        return load_settings(environ=environ, cwd=Path(__file__).parent)

    def partners(self, settings: Settings) -> Partners:
        """Connect to the world once for all runs that see it alike: making clients takes longer than a run."""
        seen_alike = settings.model_dump_json(include={"aws", "source", "objects", "routes"})
        key = (seen_alike, settings.dispatch.lease, settings.dispatch.verify_due)
        if key not in self._partners:
            self._partners[key] = connect_partners(settings, settings.aws.endpoint_url)
        return self._partners[key]

    @contextmanager
    def dispatcher(
        self,
        flow: str = "staged",
        *,
        endpoint: str | None = None,
        cancellation: Cancellation | None = None,
        **overrides: str,
    ) -> Iterator[Dispatcher]:
        """Wire a dispatcher; its store is closed at the end of the block."""
        settings = self.settings(flow, endpoint=endpoint, **overrides)
        with Store(self.url) as store:
            yield Dispatcher(settings, store, self.partners(settings), cancellation or Cancellation(), "test:1")

    def run(
        self,
        flow: str = "staged",
        *,
        window: Window | str = WINDOW,
        endpoint: str | None = None,
        cancellation: Cancellation | None = None,
        **overrides: str,
    ) -> RunReport:
        """Dispatch one window."""
        chosen = parse_window(window) if isinstance(window, str) else window
        with self.dispatcher(flow, endpoint=endpoint, cancellation=cancellation, **overrides) as dispatcher:
            return dispatcher.dispatch(chosen, "manual")

    # What the ledger says

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Ask the ledger."""
        return self._execute(query, parameters).fetchall()

    def tell(self, statement: str, *parameters: object) -> None:
        """Change the ledger behind the product's back."""
        self._execute(statement, parameters)

    def _execute(self, statement: str, parameters: tuple[object, ...]) -> psycopg.Cursor[tuple[Any, ...]]:
        if self._reader is None:
            self._reader = psycopg.connect(**connect_arguments(self.url), autocommit=True)
        return self._reader.execute(statement, parameters or None)  # type: ignore[arg-type]

    def value(self, query: str, *parameters: object) -> Any:
        """Ask the ledger for one value."""
        ((value,),) = self.rows(query, *parameters)
        return value

    def entry_states(self) -> dict[str, int]:
        """Count the entries by state."""
        return dict(self.rows("SELECT state, count(*) FROM entries GROUP BY state"))  # type: ignore[arg-type]

    def claimed(self) -> list[str]:
        """List the record ids of all claims, in order, once a claim."""
        query = "SELECT record_id FROM claims ORDER BY record_id, booking_ns, generation"
        return [raw.decode() for (raw,) in self.rows(query)]

    def findings(self) -> list[tuple[str, str, str]]:
        """List the findings as (kind, cause, state), in order."""
        return self.rows("SELECT kind, cause, state FROM findings ORDER BY kind, cause, state")  # type: ignore[return-value]

    def finding_detail(self, kind: str) -> Any:
        """Read the detail of the one finding of a kind."""
        return json.loads(self.value("SELECT detail FROM findings WHERE kind = %s", kind))

    def assert_books_balance(self) -> None:
        """Check invariant I4 and what hangs on it, over everything that the ledger holds."""
        unbalanced = self.rows(
            "SELECT id FROM runs WHERE outcome = 'completed' AND (evaluated <> outside + not_due + set_aside + due "
            "OR due <> already_claimed + claimed)"
        )
        assert not unbalanced
        claims, records = self.rows(
            "SELECT (SELECT count(*) FROM claims), "
            "(SELECT coalesce(sum(records_n), 0) FROM entries WHERE state <> 'void')"
        )[0]
        assert claims == records
        assert not self.rows(
            "SELECT entries.id FROM entries LEFT JOIN claims ON claims.entry_id = entries.id "
            "GROUP BY entries.id, entries.records_n, entries.state "
            "HAVING count(claims.entry_id) <> CASE WHEN entries.state = 'void' THEN 0 ELSE entries.records_n END"
        )
        unfinished = self.rows("SELECT id FROM entries WHERE state IN ('pending', 'sending') ORDER BY id")
        assert self.rows("SELECT DISTINCT entry_id FROM payload_parts ORDER BY entry_id") == unfinished


def records_of(objects: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Give the record ids in each object, in payload order, by object key."""
    return {key: [one["Id"] for one in json.loads(body)["records"]] for key, body in objects.items()}


def all_records(objects: Mapping[str, bytes]) -> list[str]:
    """List the record ids in all objects, sorted, as often as they occur."""
    return sorted(one for ids in records_of(objects).values() for one in ids)
