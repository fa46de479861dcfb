"""A copy of a whole ledger, made and put back in its place: what a backup is, to try out what a restore does."""

from psycopg import Connection, sql

from ledger.store import Store, connect_arguments

_ELSEWHERE = "postgres"  # PostgreSQL's own database, since nobody may be in the one that is copied


def keep_copy(store: Store) -> str:
    """Copy a ledger as it is now; returns the copy's name, for `put_back`. Nobody else may use the ledger meanwhile."""
    name = _name(store)
    copy = f"{name}_copy"
    store.close()
    with _elsewhere(store) as connection:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(create.format(sql.Identifier(copy), sql.Identifier(name)))
    return copy


def put_back(store: Store, copy: str) -> None:
    """Put a copy in the ledger's place: what the ledger has learned since is gone, and so is the copy's own name."""
    name = _name(store)
    store.close()
    with _elsewhere(store) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        connection.execute(rename.format(sql.Identifier(copy), sql.Identifier(name)))


def _name(store: Store) -> str:
    return str(connect_arguments(store.url)["dbname"])


def _elsewhere(store: Store) -> Connection:
    return Connection.connect(**connect_arguments(store.url) | {"dbname": _ELSEWHERE}, autocommit=True)
