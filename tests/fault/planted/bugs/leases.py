"""Bugs in the right to work on a window."""

from tests.fault.planted.bugs.catchers import CLOCK_AFTER_LOCKS, CLOCKS, INVARIANTS, QUEUES, RECONCILE, REDO
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "fence-not-checked",
        "whoever has lost its lease can open, mark or complete nothing any more",
        [
            Edit(
                "ledger/leases.py",
                "    if row is None:\n        raise tenure.lost()\n    reason, kind = row\n",
                "    reason, kind = row or (None, None)\n",
            )
        ],
        [f"{INVARIANTS}::test_a_taken_over_tenure_can_write_nothing_more_but_a_true_answer"],
    ),
    Bug(
        "fence-without-run",
        "a fence belongs to one run, also where a restored ledger has counted it a second time",
        [Edit("ledger/sql/check_fence.sql", "lease_run_id = %(run_id)s AND fence", "fence")],
        [f"{INVARIANTS}::test_a_tenure_of_before_a_restore_is_over"],
    ),
    Bug(
        "fence-not-raised",
        "each take-over has a higher fence",
        [Edit("ledger/sql/acquire_lease.sql", "ELSE fence + 1 END", "ELSE fence END")],
        [f"{INVARIANTS}::test_a_taken_over_tenure_can_write_nothing_more_but_a_true_answer"],
    ),
    Bug(
        "ended-lease-still-good",
        "a lease that ran out is over, although nobody has taken the window",
        [Edit("ledger/sql/check_fence.sql", "FROM held WHERE lease_until > ledger_now()", "FROM held")],
        [f"{INVARIANTS}::test_a_lease_that_ran_out_is_over_although_nobody_took_the_window"],
    ),
    Bug(
        "live-lease-taken",
        "a window that a live run works on is busy; nobody recovers in the middle of it",
        [
            Edit(
                "ledger/sql/acquire_lease.sql",
                ("\n  AND (lease_until IS NULL OR lease_until <= ledger_now() OR lease_run_id = %(run_id)s)"),
                "",
            )
        ],
        [f"{INVARIANTS}::test_only_one_of_many_gets_a_window"],
    ),
    Bug(
        "lease-given-back-by-the-dead",
        "only the holder gives a window back",
        [Edit("ledger/sql/release_lease.sql", " AND lease_run_id = %(run_id)s AND fence = %(fence)s", "")],
        [f"{INVARIANTS}::test_a_taken_over_tenure_can_write_nothing_more_but_a_true_answer"],
    ),
    Bug(
        "lease-on-the-process-clock",
        "leases are counted on the database's clock, whatever the machines' clocks say",
        [
            Edit(
                "ledger/sql/acquire_lease.sql",
                "lease_until = ledger_now() + %(lease)s",
                "lease_until = %(now)s + %(lease)s",
            ),
            Edit("ledger/sql/acquire_lease.sql", "lease_until <= ledger_now()", "lease_until <= %(now)s"),
            Edit(
                "ledger/runs.py",
                'parameters["only_owed"] = request.only_owed',
                'parameters |= {"only_owed": request.only_owed, "now": clock.utc_now()}',
            ),
        ],
        [f"{CLOCKS}::test_a_clock_that_jumps_back_keeps_a_lease_and_ahead_ends_it"],
    ),
    Bug(
        "clock-read-before-a-wait",
        "a lease is looked at by a clock that is read once its row is free",
        [
            Edit(
                "ledger/sql/check_fence.sql",
                "AND fence = %(fence)s FOR SHARE",
                "AND fence = %(fence)s AND lease_until > ledger_now() FOR SHARE",
            ),
            Edit(
                "ledger/sql/check_fence.sql",
                "FROM held WHERE lease_until > ledger_now()",
                "FROM held",
            ),
        ],
        [f"{CLOCK_AFTER_LOCKS}::test_a_lease_that_runs_out_while_its_fence_is_waited_for"],
    ),
    Bug(
        "lease-rest-not-looked-at",
        "before each call to a queue the lease must outlive the call",
        [
            Edit(
                "dispatch/run.py",
                ("        self.cancellation.check()\n        self.keeper.require_s(self.sqs.call.total_seconds())\n"),
                "        self.cancellation.check()\n",
            )
        ],
        [f"{QUEUES}::test_a_lease_that_ends_before_a_call_would_sends_nothing"],
    ),
    Bug(
        "true-answer-thrown-away",
        "what the queue has taken is confirmed by whoever knows it, with the lease or without",
        [
            Edit(
                "ledger/outbox.py",
                '        connection.execute(sql("record_answers"), parameters)\n',
                (
                    "        check_fence(connection, tenure)\n"
                    '        connection.execute(sql("record_answers"), parameters)\n'
                ),
            )
        ],
        [f"{INVARIANTS}::test_a_taken_over_tenure_can_write_nothing_more_but_a_true_answer"],
    ),
    Bug(
        "held-window-dispatched",
        "a held window refuses dispatch until a person has released it",
        [Edit("ledger/sql/acquire_lease.sql", ("\n  AND (held_at IS NULL OR %(even_held)s)"), "")],
        [f"{RECONCILE}::test_case_24_objects_in_a_window_without_any_run", f"{REDO}::test_a_held_window"],
    ),
]
