"""Alembic's way in: the product hands over its connection; a developer's command line makes one from the settings."""

from alembic import context
from sqlalchemy import Connection

from ledger.schema import VERSION_TABLE
from ledger.settings import load_settings
from ledger.upgrading import TARGET, engine, is_ours


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=TARGET,
        include_name=is_ours,
        version_table=VERSION_TABLE,
        compare_server_default=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with engine(load_settings().require_ledger()).connect() as own:
        _run(own)
        own.commit()
