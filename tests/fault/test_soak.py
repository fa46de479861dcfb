"""The soak of real processes stays alive: one short round of it, with a fixed seed, is right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scratch import short_folder
from tests.soak.hands import Notes
from tests.soak.ledger import OwnPostgres
from tests.soak.round import forget, play, prepared

SEED, STORM_S = 20, 6.0
# Real processes race, so it is left to chance which of these a round of a few seconds meets.
TROUBLES = ("kills -9 of commands", "kills -9 of consumers", "lost commit answers", "dropped AWS answers")


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
    assert sum(notes.did[trouble] for trouble in TROUBLES) > 0
    assert notes.did["entries"] > 0
    assert notes.did["effects"] > 0, "of those that no redo has replaced"
