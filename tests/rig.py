"""A dispatcher wired by hand to a world and a ledger, and questions to ask that ledger."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import msgspec
import psycopg

from dispatch.dispatcher import Dispatcher, Partners, RunReport, connect_partners
from dispatch.dry_run import DryDispatcher, dry_partners
from dispatch.run import Cancellation
from ledger.acknowledging import parse_note
from ledger.canonical import unpacked_id
from ledger.dry_run import DryStore
from ledger.ids import new_id
from ledger.instants import Window, parse_window
from ledger.plans import Scope, plan_document
from ledger.settings import Settings, env_name, load_settings
from ledger.store import Store, connect_arguments
from ops import wiring
from reconcile.adopt import adopt_objects, adoption_document
from reconcile.reconciler import report_document
from reconcile.redo import Applied, apply_plan, make_plan, scope_of_group
from reconcile.rescan import Options
from reconcile.restored import Word, decide, decided_document, recover_restored
from tests.aws_servers import World
from tests.quick_postgres import named, tell

WINDOW = "2026-09-17T15:00:00Z"
RELEASE = parse_note("ann", "looked at it, ticket 4711")
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
        dry_run: bool = False,
        **overrides: str,
    ) -> Iterator[Dispatcher]:
        """Wire a dispatcher; its store is closed at the end of the block."""
        settings = self.settings(flow, endpoint=endpoint, **overrides)
        partners, cancellation = self.partners(settings), cancellation or Cancellation()
        if dry_run:
            with DryStore(self.url, settings.pipeline) as dry:
                yield DryDispatcher(settings, dry, dry_partners(partners, dry), cancellation, "test:1")
            return
        with Store(self.url) as store:
            yield Dispatcher(settings, store, partners, cancellation, "test:1")

    def run(
        self,
        flow: str = "staged",
        *,
        window: Window | str = WINDOW,
        endpoint: str | None = None,
        cancellation: Cancellation | None = None,
        dry_run: bool = False,
        **overrides: str,
    ) -> RunReport:
        """Dispatch one window, or say what that would do."""
        chosen = parse_window(window) if isinstance(window, str) else window
        given: dict[str, Any] = {"endpoint": endpoint, "cancellation": cancellation, "dry_run": dry_run, **overrides}
        with self.dispatcher(flow, **given) as dispatcher:
            return dispatcher.dispatch(chosen, "manual")

    def reconcile(
        self,
        *windows: str,
        endpoint: str | None = None,
        cancellation: Cancellation | None = None,
        release_hold: bool = False,
        repair: bool = True,
        delete_orphans: bool = False,
        dry_run: bool = False,
        **overrides: str,
    ) -> dict[str, Any]:
        """Reconcile windows without any grace, unless a setting says otherwise; gives the document."""
        defaults = {"reconcile__grace": "0s", "reconcile__orphan_grace": "0s"}
        given: dict[str, Any] = {"endpoint": endpoint, "cancellation": cancellation, "dry_run": dry_run}
        with self.dispatcher(**(given | defaults | overrides)) as dispatcher:
            chosen = dispatcher.settings.reconcile
            options = Options(chosen, chosen.grace, repair=repair, delete_orphans=delete_orphans)
            wanted = [parse_window(one) for one in windows or (WINDOW,)]
            report = wiring.reconciler(dispatcher, options).reconcile(wanted, release=RELEASE if release_hold else None)
            return _decoded(report_document(report))  # type: ignore[no-any-return]

    def plan(self, window: str = WINDOW, *, groups: Sequence[str] = (), by: str = "ann", **wanted: Any) -> Any:
        """Plan a redo; gives the document. Groups are JSON; what else is wanted is a part of the scope."""
        settings = {name: wanted.pop(name) for name in list(wanted) if "__" in name or name == "pipeline"}
        with self.dispatcher(**settings) as dispatcher:
            digests = tuple(scope_of_group(one, dispatcher.settings.source.group_by) for one in groups)
            note = parse_note(by, "ticket 4711")
            made = make_plan(dispatcher, parse_window(window), Scope(groups=digests, **wanted), note)
            return _decoded(plan_document(dispatcher.store, made))

    def apply(self, plan: Any, **settings: str) -> Applied:
        """Apply a plan; its document is as the command line prints it."""
        with self.dispatcher(**settings) as dispatcher:
            applied = apply_plan(dispatcher, UUID(plan["plan_id"]), "bob")
            applied.document = _decoded(applied.document)
            return applied

    def adopt(self) -> dict[str, Any]:
        """Adopt the stored objects; gives the document."""
        with self.dispatcher() as dispatcher:
            return adoption_document(adopt_objects(dispatcher))

    def recover(self, **settings: str) -> dict[str, Any]:
        """Do what `recover --restored` does; gives the document."""
        with self.dispatcher(**settings) as dispatcher:
            return adoption_document(recover_restored(dispatcher))

    def decide(self, word: Word, window: str = WINDOW, **settings: str) -> dict[str, Any]:
        """Say what the adopted jobs of a window are; gives the document."""
        with self.dispatcher(**settings) as dispatcher:
            return decided_document(decide(dispatcher, parse_window(window), word, RELEASE))

    # Copies of the whole ledger

    def back_up(self) -> str:
        """Copy the ledger as it is, with everything in it; returns the copy's name. Whoever is connected is cut off."""
        copy = f"copy_{new_id().hex[-12:]}"
        self._copy(self.database, copy)
        return copy

    def put_back(self, copy: str) -> None:
        """Put a copy in the ledger's place, under everybody's feet."""
        self._close()
        tell(named(self.url, "postgres"), f'DROP DATABASE "{self.database}" WITH (FORCE)')
        self._copy(copy, self.database)

    @property
    def database(self) -> str:
        """The name of the ledger's database."""
        return str(connect_arguments(self.url)["dbname"])

    def _copy(self, source: str, copy: str) -> None:
        self._close()
        place = named(self.url, "postgres")
        cut_off = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname"
        tell(place, f"{cut_off} = '{source}'")
        tell(place, f'CREATE DATABASE "{copy}" TEMPLATE "{source}"')

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def expire_leases(self, pipeline: str) -> None:
        """Let the leases of dead runs run out."""
        self.tell(
            "UPDATE windows SET lease_until = ledger_now() - interval '1 second' FROM pipelines "
            "WHERE pipelines.id = pipeline_id AND name = %s AND lease_until IS NOT NULL",
            pipeline,
        )

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
        return dict(self.rows("SELECT state, count(*) FROM entry_states GROUP BY state"))  # type: ignore[arg-type]

    def claimed(self) -> list[str]:
        """List the record ids of all claims, in order, once a claim."""
        query = "SELECT record_id FROM claims ORDER BY record_id, booking_ns, generation"
        return [unpacked_id(raw) for (raw,) in self.rows(query)]

    def findings(self) -> list[tuple[str, str, str]]:
        """List the findings as (kind, cause, state), in order."""
        return self.rows("SELECT kind, cause, state FROM findings ORDER BY kind, cause, state")  # type: ignore[return-value]

    def finding_detail(self, kind: str) -> Any:
        """Read the detail of the one finding of a kind."""
        return json.loads(self.value("SELECT detail FROM findings WHERE kind = %s", kind))

    def events(self) -> list[dict[str, Any]]:
        """List what was decided about windows, in order."""
        found = self.rows("SELECT event, by, reason FROM events ORDER BY id")
        return [{"event": event, "by": by, "reason": reason} for event, by, reason in found]

    def assert_books_balance(self) -> None:
        """Check invariant I4 and what hangs on it, over everything that the ledger holds."""
        unbalanced = self.rows(
            "SELECT id FROM runs WHERE outcome = 'completed' AND (evaluated <> outside + not_due + set_aside + due "
            "OR (due <> already_claimed + claimed AND cause <> 'reconcile'))"
        )
        assert not unbalanced
        claims, records = self.rows(
            "SELECT (SELECT count(*) FROM claims), "
            "(SELECT coalesce(sum(records_n), 0) FROM entries WHERE void_reason IS NULL)"
        )[0]
        assert claims == records
        assert not self.rows(
            "SELECT entries.id FROM entries LEFT JOIN claims ON claims.entry_id = entries.id "
            "GROUP BY entries.id "
            "HAVING count(claims.entry_id) <> CASE WHEN void_reason IS NULL THEN records_n ELSE 0 END"
        )
        finished = "SELECT id FROM entries EXCEPT SELECT entry_id FROM payload_parts"
        sent = "SELECT entry_id FROM attempts WHERE outcome IN ('accepted', 'vouched')"
        void = "SELECT id FROM entries WHERE void_reason IS NOT NULL"
        assert not self.rows(f"({finished}) EXCEPT ({sent}) EXCEPT ({void})"), "what is finished was sent or is void"
        assert not self.rows(f"({sent}) INTERSECT SELECT entry_id FROM payload_parts"), "what was sent is finished"
        assert not self.rows(f"({void}) INTERSECT SELECT entry_id FROM payload_parts"), "what is void is finished"


def _decoded(document: Any) -> Any:
    return json.loads(msgspec.json.encode(document))


def records_of(objects: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Give the record ids in each object, in payload order, by object key."""
    return {key: [one["Id"] for one in json.loads(body)["records"]] for key, body in objects.items()}


def all_records(objects: Mapping[str, bytes]) -> list[str]:
    """List the record ids in all objects, sorted, as often as they occur."""
    return sorted(one for ids in records_of(objects).values() for one in ids)
