"""The servers that tests share: one PostgreSQL and one emulator of each kind for every worker process of pytest."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import structlog

from ledger import schema
from ledger.store import Store
from tests.aws_servers import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, World, ministack_server, moto_server
from tests.quick_postgres import named, quick_postgres, tell
from tests.report_kit import Planter
from tests.rig import Rig

TEMPLATE = "template_ledger"

MakeRig = Callable[..., Rig]


def pytest_runtest_teardown() -> None:
    """A command that ran in this process has sent its logs to streams that only its test had."""
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def aws_credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Credentials that open nothing, and none of the machine's own."""
    nowhere = str(tmp_path_factory.mktemp("aws") / "none")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_CONFIG_FILE", nowhere)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A server of this worker's own; yields the URL of a database nobody works in."""
    with quick_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def template(postgres: str) -> str:
    """The name of a migrated database to copy."""
    tell(postgres, f"CREATE DATABASE {TEMPLATE}")
    schema.upgrade(named(postgres, TEMPLATE))
    return TEMPLATE


@pytest.fixture
def empty_database(postgres: str) -> Iterator[str]:
    """The URL of a database without tables."""
    yield from _database(postgres, "template0")


@pytest.fixture
def ledger_url(postgres: str, template: str) -> Iterator[str]:
    """The URL of a fresh ledger."""
    yield from _database(postgres, template)


@pytest.fixture
def store(ledger_url: str) -> Iterator[Store]:
    """A connection to a fresh ledger."""
    with Store(ledger_url) as opened:
        yield opened


@pytest.fixture
def planter(store: Store) -> Planter:
    """Plants windows, entries and findings in a fresh ledger."""
    return Planter(store)


@pytest.fixture(scope="module")
def module_ledger_url(postgres: str, template: str) -> Iterator[str]:
    """The URL of a ledger for all tests of a module; each uses a pipeline of its own."""
    yield from _database(postgres, template)


def _database(postgres: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    tell(postgres, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield named(postgres, name)
    tell(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(scope="session")
def ministack() -> Iterator[str]:
    with ministack_server() as url:
        yield url


@pytest.fixture
def world(ministack: str) -> World:
    """A booking table, a bucket and two queues of the test's own."""
    return World(ministack)


@pytest.fixture
def make_rig(ledger_url: str) -> Iterator[MakeRig]:
    """Make rigs for worlds of the test's own choice; they share the test's ledger."""
    with ExitStack() as stack:

        def make(world: World, **defaults: str) -> Rig:
            return stack.enter_context(Rig(world, ledger_url, **defaults))

        yield make


@pytest.fixture
def rig(world: World, make_rig: MakeRig) -> Rig:
    """The usual: one world, one ledger."""
    return make_rig(world)
