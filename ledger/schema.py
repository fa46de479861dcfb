"""Which schema the ledger has: refusing to work on one that is behind. The upgrade itself is in ledger/upgrading.py."""

import psycopg
from psycopg import errors, sql

from ledger.errors import UnavailableError
from ledger.store import Connection, Store, reason_of

VERSION_TABLE = "dispatch_ledger_version"
# The newest file of ledger/migrations/versions; reading it from there would take Alembic, and a quarter of a second.
_HEAD = "0002"


def head_revision() -> str:
    """Return the revision that this version of the product needs."""
    return _HEAD


def current_revision(url: str) -> str | None:
    """Return the revision of the ledger at `url`, None when it has no tables yet.

    Raises:
        UnavailableError: when the database cannot be reached.
    """
    try:
        with Store(url).connect() as connection:
            return _revision(connection)
    except errors.UndefinedTable:
        return None
    except psycopg.Error as error:
        raise UnavailableError(f"cannot reach the ledger: {reason_of(error)}; check ledger.database_url") from None


def _revision(connection: Connection) -> str | None:
    query = sql.SQL("SELECT version_num FROM {}").format(sql.Identifier(VERSION_TABLE))
    return " and ".join(row[0] for row in connection.execute(query).fetchall()) or None


def upgrade(url: str) -> str:
    """Bring the ledger at `url` to the newest revision; safe to repeat and to run from several processes at once.

    Returns:
        The revision it has now.

    Raises:
        UnavailableError: when the database cannot be reached.
    """
    from ledger import upgrading  # noqa: PLC0415 - Alembic takes a third of a second, and is hardly ever needed

    upgrading.upgrade(url)
    return head_revision()


def require_head(url: str) -> None:
    """Refuse to work on a ledger whose schema is behind, or ahead of this version.

    Raises:
        UnavailableError: saying which revision it has, which is needed, and how to get there.
    """
    _require(current_revision(url))


def require_head_of(store: Store) -> None:
    """Do as `require_head`, on a connection that is there already."""
    _require(store.transaction(_revision))


def _require(current: str | None) -> None:
    head = head_revision()
    if current != head:
        has = current or "no tables"
        raise UnavailableError(f"the ledger has {has}, this version needs {head}; run: dispatch-ledger db upgrade")
