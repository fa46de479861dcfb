"""What fault tests work with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws_servers import World
from tests.fault.sim.database import Database
from tests.product import Product


@pytest.fixture
def product(world: World, ledger_url: str, tmp_path: Path) -> Iterator[Product]:
    """The command line, set up for the test's world and ledger, with a short lease."""
    with Product(world, ledger_url, tmp_path, settings={"dispatch.lease": "2s", "dispatch.page_size": "4"}) as product:
        yield product


@pytest.fixture(scope="module")
def simulated_database(module_ledger_url: str) -> Iterator[Database]:
    """A ledger for one simulated history after another."""
    database = Database(module_ledger_url)
    yield database
    database.close()
