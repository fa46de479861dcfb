"""Bugs in going back to the source."""

from tests.fault.planted.bugs.catchers import RECONCILE, RECONCILE_FAULTS, SOURCE
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "whole-group-sent-with-a-missed-record",
        "a missed record is sent alone, never again with the group that was sent before",
        [
            Edit(
                "reconcile/coverage.py",
                "            emit(rescan.run, _still_due(rescan, [one.occurrence for one in chunk]))\n",
                (
                    "            missed = _still_due(rescan, [one.occurrence for one in chunk])\n"
                    "            groups = {one.group_key for one in missed}\n"
                    "            pages = list(rescan.run.source.pages(rescan.run.tenure.window,"
                    " rescan.run.page_size))\n"
                    "            ids = [rescan.run.identity(item) for page in pages for item in page.items]\n"
                    "            known = [now for now in rescan.run.judge_again(ids) if isinstance(now,"
                    " Record)]\n"
                    "            mates = [now for now in known if now.group_key in groups]\n"
                    "            rescan.run.counts.due += len(mates) - len(missed)\n"
                    "            emit(rescan.run, mates)\n"
                ),
            ),
            Edit(
                "ledger/outbox.py",
                (
                    "        records = group.records if mine is None else [one for one in group.records if"
                    " _occurrence(one) in mine]\n"
                ),
                "        records = group.records\n",
            ),
        ],
        [f"{RECONCILE}::test_case_2_a_late_record_goes_alone"],
    ),
    Bug(
        "missed-without-a-consistent-read",
        "a record counts as missed only when the base table shows it due",
        [
            Edit(
                "reconcile/coverage.py",
                ("    verdicts = list(run.judge_again([one.record_id for one in records]))\n    due ="),
                ("    verdicts = list(records)\n    due ="),
            )
        ],
        [f"{RECONCILE_FAULTS}::test_a_record_that_the_index_shows_late_but_the_table_has_not"],
    ),
    Bug(
        "redispatched-within-the-grace",
        "what changed within the grace is late, not missed",
        [
            Edit(
                "reconcile/coverage.py",
                ("        if not rescan.is_late(sighting.changed_at):\n            rescan.note_missed(sighting)\n"),
                "        rescan.note_missed(sighting)\n",
            )
        ],
        [f"{RECONCILE}::test_a_young_change_is_late_not_missed"],
    ),
    Bug(
        "young-window-reconciled",
        "a window whose end, or last run, lies within the grace is left alone",
        [Edit("reconcile/reconciler.py", "        report.left_alone = self._leave_alone(window, facts)\n", "")],
        [f"{RECONCILE}::test_case_7_young_or_living_work_is_late_not_stuck"],
    ),
    Bug(
        "young-entry-recovered",
        "what was opened or tried within the grace is late, not stuck",
        [Edit("reconcile/unfinished.py", "        recover(run, quiet)\n", "        recover(run)\n")],
        [f"{RECONCILE}::test_case_7_a_young_entry_of_an_old_window_is_late_not_stuck"],
    ),
    Bug(
        "guard-ignored",
        "when too much looks missed, nothing is sent, and the window is held",
        [
            Edit(
                "reconcile/guard.py",
                "    if not rescan.options.guarded or not rescan.missed:\n",
                "    if not rescan.options.guarded or rescan.missed_n >= 0:\n",
            )
        ],
        [f"{RECONCILE}::test_more_missed_than_the_guard_allows"],
    ),
    Bug(
        "held-and-yet-sent",
        "a window that the guard holds is not repaired all the same",
        [Edit("reconcile/guard.py", "        raise held(tenure.window, reason)\n", "")],
        [f"{RECONCILE}::test_more_missed_than_the_guard_allows"],
    ),
    Bug(
        "orphans-tagged-in-a-held-window",
        "a held window refuses repair and tagging",
        [
            Edit(
                "reconcile/reconciler.py",
                "            if refusal is not None:\n                raise refusal\n",
                "",
            ),
            Edit(
                "reconcile/reconciler.py",
                "even_held=note is not None)",
                "even_held=True)",
            ),
        ],
        [f"{RECONCILE}::test_a_held_window_is_left_to_a_person"],
    ),
    Bug(
        "lost-ledger-not-noticed",
        "a window without any run that has objects already is held",
        [Edit("dispatch/witnesses.py", "        if run.objects.has_any(bucket, place):\n", "        if not place:\n")],
        [f"{RECONCILE}::test_case_24_objects_in_a_window_without_any_run"],
    ),
    Bug(
        "young-orphan-removed",
        "an unreferenced object younger than the grace is left alone",
        [
            Edit(
                "reconcile/orphans.py",
                "    old = [one for one in orphans if one.listed.modified_at <= oldest]\n",
                "    old = list(orphans)\n",
            )
        ],
        [f"{RECONCILE}::test_case_19_an_old_orphan_is_tagged_and_nothing_else"],
    ),
    Bug(
        "promised-object-tagged",
        "an object that an entry has come to refer to is no orphan",
        [Edit("reconcile/orphans.py", " or evidence.is_promised(run.store, run.tenure, key):\n", ":\n")],
        [f"{RECONCILE}::test_an_orphan_that_an_entry_refers_to_by_now_is_left_alone"],
    ),
    Bug(
        "rebuilt-with-other-content",
        "a lost object is rebuilt only when the source can still meet its hash",
        [
            Edit(
                "reconcile/rebuild.py",
                "        if content_hash(bodies) == entry.content_hash:\n",
                "        if content_hash(bodies):\n",
            )
        ],
        [f"{RECONCILE}::test_an_object_that_cannot_be_rebuilt_stays_a_finding"],
    ),
    Bug(
        "finding-not-closed",
        "a finding closes by itself when it is no longer true",
        [
            Edit(
                "ledger/sql/close_unseen.sql",
                "AND state = 'open' AND kind <> 'duplicate'",
                "AND state = 'open' AND kind = 'duplicate'",
            )
        ],
        [f"{RECONCILE}::test_a_missed_record_that_is_gone_again_is_closed"],
    ),
    Bug(
        "finding-not-closed-by-a-run",
        "a dispatch closes the findings that it proves untrue",
        [Edit("ledger/runs.py", '        connection.execute(sql("close_disproved"), tenure.key())\n', "")],
        [f"{SOURCE}::test_one_bad_record_never_sinks_its_window", f"{RECONCILE}::test_a_window_that_nobody_dispatched"],
    ),
    Bug(
        "finding-open-again-for-ever",
        "what a person has acknowledged stays acknowledged, however often it is seen",
        [
            Edit(
                "ledger/sql/upsert_findings.sql",
                (
                    "    state = CASE WHEN findings.state = 'acknowledged' AND EXCLUDED.state <> 'repaired'"
                    " THEN 'acknowledged'\n"
                    "                 ELSE EXCLUDED.state END\n"
                ),
                "    state = EXCLUDED.state\n",
            )
        ],
        [f"{RECONCILE}::test_what_a_person_has_acknowledged_stays_so_however_often_it_is_seen"],
    ),
    Bug(
        "second-reconcile-writes",
        "a second reconcile of an unchanged window writes nothing",
        [
            Edit(
                "reconcile/orphans.py",
                "    fresh = [one for one in old if not _is_as_it_was_handled(one, handled)]\n",
                "    fresh = list(old)\n",
            )
        ],
        [f"{RECONCILE}::test_case_19_an_old_orphan_is_tagged_and_nothing_else"],
    ),
    Bug(
        "repair-not-written-down",
        "a finding says that it was repaired, and how",
        [Edit("reconcile/coverage.py", "        settle_missed(rescan)\n", "        pass\n")],
        [f"{RECONCILE}::test_case_2_a_late_record_goes_alone"],
    ),
]
