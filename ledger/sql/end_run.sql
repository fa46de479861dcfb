-- Guarantees: a run ends once; its books are kept as far as they got.
UPDATE runs SET outcome = %(outcome)s, error = %(error)s, finished_at = ledger_now(), pages = %(pages)s,
    evaluated = %(evaluated)s, outside = %(outside)s, not_due = %(not_due)s, set_aside = %(set_aside)s, due = %(due)s,
    already_claimed = %(already_claimed)s, claimed = %(claimed)s, entries = %(entries)s, confirmed = %(confirmed)s,
    recovered = %(recovered)s
WHERE id = %(run_id)s AND outcome IS NULL
