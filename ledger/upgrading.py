"""The history of the ledger's schema, and the upgrade to its newest revision, by Alembic."""

from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlmodel import SQLModel

from ledger import tables
from ledger.errors import UnavailableError
from ledger.store import connect_arguments, reason_of

TARGET = SQLModel.metadata
_OURS = {
    row.__tablename__
    for row in vars(tables).values()
    if isinstance(row, type) and issubclass(row, SQLModel) and hasattr(row, "__table__")
}
# Any constant will do, as long as every version of the product takes the same one.
_UPGRADE_LOCK = 0x6C656467_6572


def is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    """Say whether autogenerate should look at this object; a shared database may hold tables of others."""
    return kind != "table" or name in _OURS


def table_names() -> set[str]:
    """Return the names of the ledger's tables."""
    return {str(name) for name in _OURS}


def is_known(revision: str) -> bool:
    """Say whether a revision is in this version's history."""
    return any(one.revision == revision for one in ScriptDirectory.from_config(config()).walk_revisions())


def config() -> Config:
    """Return Alembic's configuration: where the revisions are."""
    made = Config()
    made.set_main_option("script_location", "ledger:migrations")
    return made


def engine(url: str) -> Engine:
    """Return SQLAlchemy's way to the ledger at `url`, which is read here as everywhere else in the product."""

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(connect_timeout=10, client_encoding="utf8", **connect_arguments(url))

    return create_engine("postgresql+psycopg://", poolclass=NullPool, creator=connect)


def upgrade(url: str) -> None:
    """Bring the ledger at `url` to the newest revision; safe to repeat and to run from several processes at once.

    Raises:
        UnavailableError: when the database cannot be reached, or another version has made its schema.
    """
    try:
        with engine(url).connect() as connection:
            connection.exec_driver_sql("SELECT pg_advisory_lock(%s)", (_UPGRADE_LOCK,))
            connection.commit()
            prepared = config()
            prepared.attributes["connection"] = connection
            command.upgrade(prepared, "head")
            connection.commit()
    except DBAPIError as error:
        raise UnavailableError(
            f"cannot upgrade the ledger: {reason_of(error.orig)}; check ledger.database_url and what its user may do"
        ) from None
    except CommandError as error:
        raise UnavailableError(f"cannot upgrade the ledger: {error}; it was made by another version") from None
