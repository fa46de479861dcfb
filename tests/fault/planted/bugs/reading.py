"""Bugs in reading a window: pages, cursors, bounds, instants, and what is read again."""

from tests.fault.planted.bugs.catchers import INSTANTS, INVARIANTS, ITEMS, JUDGING, KILLED, QUEUES, SOURCE, WINDOWS
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "stop-at-an-empty-page",
        "an empty page with a key goes on",
        [
            Edit(
                "dispatch/aws/source.py",
                'following = answer["LastEvaluatedKey"] or None',
                'following = (answer["LastEvaluatedKey"] or None) if answer["Items"] else None',
            )
        ],
        [f"{SOURCE}::test_empty_pages_with_a_key_go_on_and_an_empty_key_ends"],
    ),
    Bug(
        "last-evaluated-key-ignored",
        "every page is read, not the first alone",
        [Edit("dispatch/aws/source.py", 'following = answer["LastEvaluatedKey"] or None', "following = None")],
        [f"{SOURCE}::test_the_cursor_is_carried_from_page_to_page"],
    ),
    Bug(
        "stale-cursor-resumed",
        "a run reads its window from the first page; saved cursors are evidence, no place to resume",
        [
            Edit(
                "ledger/runs.py",
                "def finish_page(",
                (
                    "def cursor_left(store: Store, tenure: Tenure) -> Any:\n"
                    "    query = (\n"
                    '        "SELECT pages.next_json FROM pages JOIN runs ON runs.id = pages.run_id WHERE'
                    ' runs.window_id = %s "\n'
                    '        "AND runs.id <> %s ORDER BY runs.started_at DESC, pages.number DESC LIMIT 1"\n'
                    "    )\n"
                    "    row = store.transaction(\n"
                    "        lambda connection: connection.execute(query, (tenure.window_id,"
                    " tenure.run_id)).fetchone()\n"
                    "    )\n"
                    "    return msgspec.json.decode(row[0]) if row and row[0] else None\n"
                    "\n"
                    "\n"
                    "def finish_page("
                ),
            ),
            Edit(
                "dispatch/feeders.py",
                "    for page in run.source.pages(run.tenure.window, run.page_size):\n",
                (
                    "    run.source.left_at = runs.cursor_left(run.store, run.tenure)\n"
                    "    for page in run.source.pages(run.tenure.window, run.page_size):\n"
                ),
            ),
            Edit(
                "dispatch/aws/source.py",
                "            cursor: dict[str, Any] | None = None\n",
                '            cursor: dict[str, Any] | None = self.__dict__.pop("left_at", None)\n',
            ),
        ],
        [f"{QUEUES}::test_cancelled_on_page_two_of_five"],
    ),
    Bug(
        "page-keys-in-circles",
        "a page key that comes a second time fails the run, instead of passing for the end of the window",
        [
            Edit(
                "dispatch/aws/source.py",
                ("                    if key in seen:\n                        raise CorruptError(\n"),
                (
                    "                    if key in seen:\n"
                    "                        return\n"
                    "                        raise CorruptError(\n"
                ),
            )
        ],
        [f"{SOURCE}::test_a_key_that_repeats_stops_the_run"],
    ),
    Bug(
        "end-not-inclusive",
        "a window holds both its ends, as instants",
        [
            Edit(
                "dispatch/judging.py",
                "not rules.window.start_ns <= booking_ns <= rules.window.end_ns:",
                "not rules.window.start_ns <= booking_ns < rules.window.end_ns:",
            )
        ],
        [f"{JUDGING}::test_both_ends_are_inside"],
    ),
    Bug(
        "midnight-end-dropped",
        "a window that ends at midnight asks for its last instant on the next date",
        [
            Edit(
                "dispatch/aws/source.py",
                "return [QueryRange(start[:10], start[:-1], _HIGHEST), QueryRange(end[:10], _LOWEST, end)]",
                "return [QueryRange(start[:10], start[:-1], _HIGHEST)]",
            )
        ],
        [WINDOWS, f"{SOURCE}::test_the_window_that_ends_at_midnight"],
    ),
    Bug(
        "lower-bound-with-a-zone",
        "the bounds enclose every spelling, also `+00:00`, which sorts below `Z`",
        [
            Edit(
                "dispatch/aws/source.py",
                "        return [QueryRange(start[:10], start[:-1], end)]",
                "        return [QueryRange(start[:10], start, end)]",
            )
        ],
        [WINDOWS],
    ),
    Bug(
        "fraction-rounded",
        "an instant keeps every digit; nothing is rounded to microseconds",
        [Edit("ledger/instants.py", 'int(fraction.ljust(9, "0"))', 'round(int(fraction.ljust(9, "0")), -3)')],
        [f"{INSTANTS}::test_a_booking_time", WINDOWS],
    ),
    Bug(
        "execute-time-rounded",
        "the window of an execute time comes from its instant, never from a rounded one",
        [
            Edit(
                "ledger/instants.py",
                (
                    "        seconds, _ = parse_instant(text)\n"
                    "    except ValueError as reason:\n"
                    '        raise InputError(f"ExecuteTime'
                ),
                (
                    "        seconds, fraction = parse_instant(text)\n"
                    '        seconds += fraction >= "5"\n'
                    "    except ValueError as reason:\n"
                    '        raise InputError(f"ExecuteTime'
                ),
            )
        ],
        [WINDOWS],
    ),
    Bug(
        "unsorted-set",
        "one record has one canonical JSON, whatever order its sets came in",
        [
            Edit(
                "dispatch/items.py",
                ("        return sorted(content, key=canonical_json)\n    raise"),
                ("        return list(content)\n    raise"),
            )
        ],
        [f"{ITEMS}::test_a_set_has_one_order_whatever_order_it_came_in"],
    ),
    Bug(
        "verify-due-skipped",
        "each record is read again from the base table right before it is claimed",
        [Edit("dispatch/verify.py", "    if not run.verify_due:\n", "    if run is not None:\n")],
        [f"{SOURCE}::test_a_record_that_changes_between_read_and_send_is_not_sent"],
    ),
    Bug(
        "index-copy-sent",
        "the base table's copy is judged, hashed and sent, not the index's",
        [Edit("dispatch/verify.py", "due.append((before, now))", "due.append((before, before))")],
        [
            f"{SOURCE}::test_a_record_that_moved_inside_the_window_is_sent_once_at_its_new_time",
            f"{SOURCE}::test_the_index_shows_the_old_time_and_the_table_has_the_new_one",
        ],
    ),
    Bug(
        "reads-again-eventually",
        "what is read again from the base table is read consistently",
        [Edit("dispatch/aws/source.py", '"ConsistentRead": True', '"ConsistentRead": False')],
        [f"{SOURCE}::test_reads_are_consistent_on_the_table_and_never_on_the_index"],
    ),
    Bug(
        "staging-of-others-kept",
        "what dead runs have staged is discarded",
        [Edit("dispatch/dispatcher.py", "            staging.discard_others(self.store, started.tenure)\n", "")],
        [f"{KILLED}::test_killed_at_any_transaction[staged-after-commit]"],
    ),
    Bug(
        "staging-of-others-read",
        "what another run has staged is never read",
        [Edit("ledger/sql/staged_in_order.sql", "WHERE run_id = {run_id}", "WHERE {run_id}::uuid IS NOT NULL")],
        [f"{INVARIANTS}::test_what_the_run_of_another_window_has_staged_is_never_read"],
    ),
]
