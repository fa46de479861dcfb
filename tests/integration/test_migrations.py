"""The ledger's schema: from nothing to the newest, and back; the models and the migrations agree."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from ledger import schema, upgrading
from ledger.errors import UnavailableError
from ledger.store import Store, connect_arguments
from tests import ledger_kit as kit


@contextmanager
def alembic(url: str) -> Iterator[Config]:
    """Give Alembic a connection, as the product does."""
    with upgrading.engine(url).connect() as connection:
        config = upgrading.config()
        config.attributes["connection"] = connection
        yield config
        connection.commit()


def tables(url: str) -> set[str]:
    with psycopg.connect(**connect_arguments(url)) as connection:
        return {
            str(row[0]) for row in kit.ask(connection, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        }


def describe(url: str) -> list[Any]:
    """Read every column, constraint, index and storage setting."""
    columns = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity "
        "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
    )
    constraints = (
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2"
    )
    indexes = "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2"
    options = (
        "SELECT relname, relpersistence::text, reloptions::text FROM pg_class "
        "WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1"
    )
    functions = "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1"
    queries = (columns, constraints, indexes, options, functions)
    with psycopg.connect(**connect_arguments(url)) as connection:
        return [kit.ask(connection, query) for query in queries]


def test_from_nothing_to_the_newest_and_again(empty_database: str) -> None:
    assert schema.current_revision(empty_database) is None
    assert schema.upgrade(empty_database) == schema.head_revision() == schema.current_revision(empty_database)
    before = describe(empty_database)
    assert schema.upgrade(empty_database) == schema.head_revision()
    assert describe(empty_database) == before
    schema.require_head(empty_database)


def test_models_and_migrations_agree(ledger_url: str) -> None:
    with alembic(ledger_url) as config:
        command.check(config)


def test_models_and_migrations_agree_on_constraints_too(ledger_url: str, empty_database: str) -> None:
    """Autogenerate does not look at CHECK constraints and options of tables; PostgreSQL itself does."""
    with upgrading.engine(empty_database).begin() as connection:
        upgrading.TARGET.create_all(connection)
    made, migrated = describe(empty_database), describe(ledger_url)
    ours = [[row for row in rows if row[0] in upgrading._OURS] for rows in migrated]
    assert made[0] == ours[0]
    assert made[1] == ours[1]
    assert made[2] == ours[2]
    assert made[3] == ours[3]


def test_down_and_up_again(empty_database: str) -> None:
    schema.upgrade(empty_database)
    before = describe(empty_database)
    revisions = [one.revision for one in ScriptDirectory.from_config(upgrading.config()).walk_revisions()]
    for _ in revisions:
        with alembic(empty_database) as config:
            command.downgrade(config, "-1")
    assert tables(empty_database) <= {schema.VERSION_TABLE}
    assert describe(empty_database)[4] == []
    schema.upgrade(empty_database)
    assert describe(empty_database) == before


def test_an_upgraded_ledger_works(empty_database: str) -> None:
    schema.upgrade(empty_database)
    with Store(empty_database) as store:
        kit.take(store)


def test_a_ledger_that_is_not_ours_alone_keeps_the_others_tables(empty_database: str) -> None:
    with psycopg.connect(**connect_arguments(empty_database), autocommit=True) as connection:
        connection.execute("CREATE TABLE theirs (id int PRIMARY KEY, name text DEFAULT 'x')")
        connection.execute("CREATE TABLE alembic_version (version_num text)")
        connection.execute("INSERT INTO alembic_version VALUES ('theirs-1')")
    schema.upgrade(empty_database)
    assert {"theirs", "alembic_version", schema.VERSION_TABLE, "entries"} <= tables(empty_database)
    with upgrading.engine(empty_database).connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE, "include_name": upgrading.is_ours}
        )
        assert compare_metadata(context, upgrading.TARGET) == []
    with psycopg.connect(**connect_arguments(empty_database)) as connection:
        assert kit.ask(connection, "SELECT version_num FROM alembic_version") == [("theirs-1",)]


def test_three_upgrade_at_once(empty_database: str) -> None:
    start = Barrier(3, timeout=60)

    def upgrade() -> str:
        start.wait()
        return schema.upgrade(empty_database)

    with ThreadPoolExecutor(3) as pool:
        done = [future.result(120) for future in [pool.submit(upgrade) for _ in range(3)]]
    assert done == [schema.head_revision()] * 3
    schema.require_head(empty_database)


def test_a_ledger_without_tables_says_what_to_do(empty_database: str) -> None:
    with pytest.raises(UnavailableError) as refusal:
        schema.require_head(empty_database)
    assert "no tables" in str(refusal.value)
    assert schema.head_revision() in str(refusal.value)
    assert "dispatch-ledger db upgrade" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_ledger_of_another_revision_says_which(ledger_url: str) -> None:
    with psycopg.connect(**connect_arguments(ledger_url), autocommit=True) as connection:
        connection.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = 'from-the-future'")  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match=r"from-the-future.*dispatch-ledger db upgrade"):
        schema.require_head(ledger_url)


def test_an_unknown_revision_is_one_clear_line_on_upgrade(ledger_url: str) -> None:
    with psycopg.connect(**connect_arguments(ledger_url), autocommit=True) as connection:
        connection.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = 'from-the-future'")  # type: ignore[arg-type]
    with pytest.raises(UnavailableError) as refusal:
        schema.upgrade(ledger_url)
    assert "from-the-future" in str(refusal.value)


def test_a_database_that_is_not_there_is_one_clear_line(ledger_url: str) -> None:
    nowhere = ledger_url.replace("/test_", "/nowhere_")
    for ask in (schema.current_revision, schema.upgrade, schema.require_head):
        with pytest.raises(UnavailableError, match=r"ledger\.database_url") as refusal:
            ask(nowhere)
        assert "\n" not in str(refusal.value)
    with Store(nowhere) as store, pytest.raises(UnavailableError, match=r"ledger\.database_url"):
        store.transaction(lambda connection: connection.execute("SELECT 1"))


def test_a_run_on_a_ledger_without_tables_says_what_to_do(empty_database: str) -> None:
    with Store(empty_database) as store, pytest.raises(UnavailableError, match="dispatch-ledger db upgrade"):
        kit.take(store)
