"""What the ledger's server says of itself, for `doctor`. Nothing is kept of what is tried."""

from datetime import datetime, timedelta
from typing import LiteralString

import msgspec
import psycopg

from ledger import clock, upgrading
from ledger.store import Connection, Store, connect_arguments, sql, translate

# A question that takes longer than this is not answered: https://www.postgresql.org/docs/current/runtime-config-client.html
_LIMITS: LiteralString = "SET statement_timeout = '5s'; SET lock_timeout = '5s'"
_TRIED: LiteralString = "CREATE TEMPORARY TABLE tried (nothing integer) ON COMMIT DROP"


class ServerFacts(msgspec.Struct, frozen=True):
    """What the server, the database and the role say of themselves.

    Attributes:
        skew: how far its clock is ahead of this machine's.
        version_n: such as 180006 for 18.6.
        durability: the settings that a promise kept through a crash depends on, as the server spells them.
        connections_left: for this role, in this database.
        statement_timeout_ms: as the role has it by default; 0 is off.
        read_only: why nothing can be written; empty when it can.
        temporary_tables: whether the role may make them.
    """

    skew: timedelta
    version_n: int
    version: str
    encoding: str
    role: str
    database: str
    durability: dict[str, str]
    connections_max: int
    connections_left: int
    statement_timeout_ms: int
    read_only: str
    temporary_tables: bool


class Inspected(msgspec.Struct, frozen=True):
    """The server, and the rights that its role lacks, by table; a table that does not exist is not among them."""

    facts: ServerFacts
    missing_rights: dict[str, list[str]]


def inspect_server(url: str) -> Inspected:
    """Ask the server about itself; one write is tried, and taken back. It answers or fails within about half a minute.

    Raises:
        UnavailableError: when it cannot be reached, or does not answer in time.
    """
    try:
        with Store(url).connect() as connection:
            connection.execute(_LIMITS)
            facts = _facts(connection)
            if not facts.read_only and facts.temporary_tables:
                _try_to_write(connection)
            return Inspected(facts, _missing_rights(connection))
    except psycopg.Error as error:
        raise translate(error) from error


def _facts(connection: Connection) -> ServerFacts:
    asked_at = clock.utc_now()
    row = connection.execute(sql("server_facts")).fetchone()
    answered_at = clock.utc_now()
    assert row is not None, "a session has a database and a role"
    now, version_n, version, encoding, role, database, synchronous_commit, fsync, full_page_writes, *rest = row
    durability = {"fsync": fsync, "full_page_writes": full_page_writes, "synchronous_commit": synchronous_commit}
    skew = _skew(now, asked_at, answered_at)
    return ServerFacts(skew, version_n, version, encoding, role, database, durability, *rest)


def _skew(now: datetime, asked_at: datetime, answered_at: datetime) -> timedelta:
    """Return how far a clock is ahead; what may be the time of the answer alone counts as nothing."""
    if asked_at <= now <= answered_at:
        return timedelta(0)
    return now - (answered_at if now > answered_at else asked_at)


def _try_to_write(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute(_TRIED)
        connection.execute("INSERT INTO tried VALUES (1)")


def _missing_rights(connection: Connection) -> dict[str, list[str]]:
    tables = sorted(upgrading.table_names())
    return dict(connection.execute(sql("missing_rights"), {"tables": tables}).fetchall())


def address_of(url: str) -> str:
    """Return which database a URL names, without user, password and options."""
    named = connect_arguments(url)
    port = f":{named['port']}" if named.get("port") else ""
    return f"{named.get('host') or 'the host that the driver takes by default'}{port}/{named.get('dbname', '')}"
