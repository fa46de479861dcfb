"""The ledger's schema and its history: upgrading, and refusing to work on one that is behind."""

from functools import cache
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlmodel import SQLModel

from ledger import tables
from ledger.errors import UnavailableError

VERSION_TABLE = "dispatch_ledger_version"
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
    return any(one.revision == revision for one in ScriptDirectory.from_config(_config()).walk_revisions())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "ledger:migrations")
    return config


@cache
def head_revision() -> str:
    """Return the revision that this version of the product needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "the package ships its migrations"
    return head


def _engine(url: str) -> Engine:
    return create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 10, "client_encoding": "utf8"})


def _reason(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def current_revision(url: str) -> str | None:
    """Return the revision of the ledger at `url`, None when it has no tables yet.

    Raises:
        UnavailableError: when the database cannot be reached.
    """
    try:
        with _engine(url).connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            return context.get_current_revision()
    except DBAPIError as error:
        raise UnavailableError(f"cannot reach the ledger: {_reason(error)}; check ledger.database_url") from None


def upgrade(url: str) -> str:
    """Bring the ledger at `url` to the newest revision; safe to repeat and to run from several processes at once.

    Returns:
        The revision it has now.

    Raises:
        UnavailableError: when the database cannot be reached.
    """
    try:
        with _engine(url).connect() as connection:
            connection.exec_driver_sql("SELECT pg_advisory_lock(%s)", (_UPGRADE_LOCK,))
            connection.commit()
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()
    except DBAPIError as error:
        raise UnavailableError(
            f"cannot upgrade the ledger: {_reason(error)}; check ledger.database_url and what its user may do"
        ) from None
    except CommandError as error:
        raise UnavailableError(f"cannot upgrade the ledger: {error}; it was made by another version") from None
    return head_revision()


def require_head(url: str) -> None:
    """Refuse to work on a ledger whose schema is behind, or ahead of this version.

    Raises:
        UnavailableError: saying which revision it has, which is needed, and how to get there.
    """
    current, head = current_revision(url), head_revision()
    if current != head:
        has = current or "no tables"
        raise UnavailableError(f"the ledger has {has}, this version needs {head}; run: dispatch-ledger db upgrade")
