"""The soak of real processes stays alive: one short round of it, with a fixed seed, is right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scratch import short_folder
from tests.soak.hands import Notes
from tests.soak.ledger import OwnPostgres
from tests.soak.round import forget, play, prepared

SEED, STORM_S = 20, 6.0


@pytest.fixture
def folder() -> Iterator[Path]:
    made = short_folder()
    yield made
    forget(made)


def test_a_short_round_of_the_soak_is_right(folder: Path, ministack: str, tmp_path: Path) -> None:
    notes = Notes()
    with OwnPostgres(folder) as postgres, prepared(SEED, ministack, postgres, tmp_path, notes) as one:
        play(one, STORM_S)
        if one.wrong:
            one.keep(tmp_path / "kept")
    assert one.wrong == [], f"kept in {tmp_path}"
    assert notes.did["kills -9 of commands"] + notes.did["kills -9 of consumers"] > 0
    assert notes.did["effects"] >= notes.did["entries"] > 0
