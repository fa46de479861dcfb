"""The servers that tests share: one PostgreSQL and one emulator of each kind for every worker process of pytest."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
import structlog
from sqlalchemy.engine import make_url

from ledger import schema
from ledger.embedded import embedded_postgres
from ledger.store import Store, connect_arguments
from tests.aws_servers import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, World, ministack_server, moto_server
from tests.report_kit import Planter
from tests.rig import Rig
from tests.scratch import short_folder

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
    """A server of this worker's own; yields the URL of a database nobody works in.

    It may lose everything in a crash of the machine: no test needs it after that, and each commit and each new database
    take a tenth of the time.
    The product's own embedded server is as safe as PostgreSQL can be; the tests that crash one start that.
    """
    folder = short_folder()
    try:
        with embedded_postgres(folder) as url:
            for name in ("fsync", "synchronous_commit", "full_page_writes"):
                _tell(url, f"ALTER SYSTEM SET {name} = off")
            _tell(url, "SELECT pg_reload_conf()")
            yield url
    finally:
        shutil.rmtree(folder)


def _named(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)


def _tell(url: str, statement: str) -> None:
    with psycopg.connect(**connect_arguments(url), autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def template(postgres: str) -> str:
    """The name of a migrated database to copy."""
    _tell(postgres, f"CREATE DATABASE {TEMPLATE}")
    schema.upgrade(_named(postgres, TEMPLATE))
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
    _tell(postgres, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield _named(postgres, name)
    _tell(postgres, f"DROP DATABASE {name} WITH (FORCE)")


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
