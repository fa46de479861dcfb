"""Alembic's way in: the product hands over its connection; a developer's command line makes one from the settings."""

from alembic import context
from sqlalchemy import Connection, create_engine

from ledger.schema import TARGET, is_ours
from ledger.settings import load_settings


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=TARGET,
        include_name=is_ours,
        version_table="dispatch_ledger_version",
        compare_server_default=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with create_engine(load_settings().ledger.database_url).connect() as own:
        _run(own)
        own.commit()
