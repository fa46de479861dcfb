"""Any order of takes, heartbeats, ends, expiries and redos: one worker at a time, one completion, true counts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ledger import receipts
from ledger.errors import ClaimLostError, UnknownKeyError
from ledger.ids import new_id
from ledger.receipts import Claim, Completed, GoAhead, Held, Superseded
from ledger.store import Store
from tests.report_kit import Planter

MINUTE = timedelta(minutes=1)
WORKERS = st.sampled_from(["w1", "w2", "w3"])


@dataclass
class Model:
    """What a receipt must be."""

    state: str = "none"
    attempts: int = 0
    expired: bool = False
    said: object = None
    claims: list[Claim] = field(default_factory=list)


class ReceiptLife(RuleBasedStateMachine):
    """One job of a shared ledger."""

    store: ClassVar[Store]
    keys: ClassVar[Iterator[bytes]]

    def __init__(self) -> None:
        super().__init__()
        self.key = next(self.keys)
        self.model = Model()
        self.tell("DELETE FROM receipts WHERE idempotency_key = %s")  # Hypothesis may have used the job before

    def tell(self, statement: str) -> None:
        self.store.transaction(lambda connection: connection.execute(statement, (self.key,)))  # type: ignore[arg-type]

    def ends(self, token: Claim, call: Any, state: str, said: object) -> None:
        """End by any claim that there ever was: only the last one may, and only once, or in the same words."""
        model = self.model
        mine = bool(model.claims) and token == model.claims[-1]
        allowed = mine and (model.state == "in_work" or (model.state, model.said) == (state, said))
        if not allowed:
            with pytest.raises(ClaimLostError):
                call(self.store, token, said)
            return
        call(self.store, token, said)
        model.state, model.said = state, said

    @rule(worker=WORKERS)
    def take(self, worker: str) -> None:
        model, taken = self.model, receipts.take(self.store, "reward", self.key, worker, MINUTE)
        free = model.state in {"none", "failed"} or (model.state == "in_work" and model.expired)
        expected = {"completed": Completed, "superseded": Superseded, "in_work": Held}
        assert isinstance(taken, GoAhead if free else expected[model.state])
        if isinstance(taken, GoAhead):
            assert taken.attempts == model.attempts + 1
            model.claims.append(taken.claim)
            model.state, model.attempts, model.expired = "in_work", model.attempts + 1, False

    @precondition(lambda self: self.model.claims)
    @rule(data=st.data(), result=st.sampled_from([None, 1]))
    def complete(self, data: st.DataObject, result: object) -> None:
        self.ends(data.draw(st.sampled_from(self.model.claims)), receipts.complete, "completed", result)

    @precondition(lambda self: self.model.claims)
    @rule(data=st.data(), reason=st.sampled_from(["broke", "lost"]))
    def fail(self, data: st.DataObject, reason: str) -> None:
        self.ends(data.draw(st.sampled_from(self.model.claims)), receipts.fail, "failed", reason)

    @precondition(lambda self: self.model.claims)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        model, token = self.model, data.draw(st.sampled_from(self.model.claims))
        if model.state == "in_work" and token == model.claims[-1]:
            receipts.heartbeat(self.store, token, MINUTE)
            model.expired = False
        else:
            with pytest.raises(ClaimLostError):
                receipts.heartbeat(self.store, token, MINUTE)

    @precondition(lambda self: not self.model.claims)
    @rule()
    def end_what_was_never_taken(self) -> None:
        with pytest.raises(UnknownKeyError):
            receipts.complete(self.store, Claim("reward", self.key, new_id()), None)

    @precondition(lambda self: self.model.state == "in_work")
    @rule()
    def run_out(self) -> None:
        self.tell("UPDATE receipts SET expires_at = ledger_now() - interval '1 second' WHERE idempotency_key = %s")
        self.model.expired = True

    @precondition(lambda self: self.model.state in {"in_work", "failed"})
    @rule()
    def redo(self) -> None:
        self.tell("UPDATE receipts SET state = 'superseded', expires_at = NULL WHERE idempotency_key = %s")
        self.model.state = "superseded"

    @invariant()
    def ledger_agrees(self) -> None:
        query = "SELECT state, attempts FROM receipts WHERE idempotency_key = %s"
        found = self.store.transaction(lambda connection: connection.execute(query, (self.key,)).fetchall())
        assert found == ([(self.model.state, self.model.attempts)] if self.model.claims else [])


def test_the_life_of_a_receipt(store: Store, planter: Planter) -> None:
    jobs = planter.dispatch(10, (1,) * 10)
    ReceiptLife.store, ReceiptLife.keys = store, cycle([entry.idempotency_key for entry in jobs])
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        ReceiptLife, settings=settings(max_examples=40, stateful_step_count=20, deadline=None, database=None)
    )
