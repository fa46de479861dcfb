"""The ledger's URL means to the product what it means to SQLAlchemy, whichever of the two spellings it has."""

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import make_url

from ledger.errors import InputError
from ledger.store import connect_arguments


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
@pytest.mark.parametrize(
    "rest",
    [
        "u:p@h:5432/db",
        "u:p%40%2F@h/db",
        "u:p/a?ss@h:1/db",
        "u%25:p%zz@h/db",
        "u:@h/db",
        "@/postgres?host=%2Ftmp%2Fx&port=5432",
        "dl@/postgres?host=/tmp/x y%20&port=5",
        "h",
        "h/",
        "/db",
        "u@[::1]:5/db",
        "h/db?options=-c+search_path%3Dx&sslmode=require",
        "h/db?password=x@y",
        "/db?host=a,b&port=1,2",
    ],
)
def test_as_sqlalchemy_reads_it(rest: str, scheme: str) -> None:
    expected_url = make_url(f"postgresql+psycopg://{rest}")
    _, expected = PGDialect_psycopg().create_connect_args(expected_url)  # type: ignore[no-untyped-call]
    assert connect_arguments(f"{scheme}://{rest}") == {name: str(value) for name, value in expected.items()}


@pytest.mark.parametrize("url", ["postgres://h/db", "sqlite://", "", "postgresql+psycopg://h/d%zz"])
def test_what_cannot_be_read_is_one_line_without_the_password(url: str) -> None:
    with pytest.raises(InputError, match=r"mend ledger\.database_url") as refusal:
        connect_arguments(url.replace("//", "//u:secret@"))
    assert "\n" not in str(refusal.value)
    assert "secret" not in str(refusal.value)
