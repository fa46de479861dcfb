"""Every boundary of six small stories, broken in four ways; `make faults` takes all of them, these tests some."""

import os

import pytest

from tests.fault.sim.boundaries import EXHAUSTIVE, Fault
from tests.fault.sim.database import Database
from tests.fault.sim.scenarios import SCENARIOS
from tests.fault.sim.trial import Trial, attempt

# A prime, so that the boundaries of a batch, which come in fives and tens, are all met in the end.
EVERY = int(os.environ.get("FAULTS_EVERY", "13"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_story_in_which_nothing_goes_wrong(simulated_database: Database, scenario: str) -> None:
    verdict = attempt(Trial(scenario=scenario), simulated_database)
    assert verdict.wrongs == []
    assert verdict.result is not None
    assert verdict.result.tally.effects >= verdict.result.tally.occurrences > 5
    assert verdict.result.tally.sent_twice == 0


@pytest.mark.parametrize("fault", EXHAUSTIVE)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_story_broken_at_its_boundaries(simulated_database: Database, scenario: str, fault: Fault) -> None:
    whole = attempt(Trial(scenario=scenario), simulated_database).result
    assert whole is not None
    first = whole.first + EXHAUSTIVE.index(fault) * EVERY // len(EXHAUSTIVE)
    for at in range(first, whole.last + 1, EVERY):
        trial = Trial(scenario=scenario, plan={at: fault})
        verdict = attempt(trial, simulated_database)
        assert verdict.wrongs == [], f"{trial} ({whole.names[at - 1]})"
        assert verdict.result is not None
        assert verdict.result.met[fault] == 1, f"{trial} was never reached"
