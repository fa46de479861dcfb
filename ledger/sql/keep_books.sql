-- Guarantees: the books of a run are written while it lasts, and stand as they are once it has ended.
UPDATE runs SET pages = %(pages)s, evaluated = %(evaluated)s, outside = %(outside)s, not_due = %(not_due)s,
    set_aside = %(set_aside)s, due = %(due)s, already_claimed = %(already_claimed)s, claimed = %(claimed)s,
    entries = %(entries)s, confirmed = %(confirmed)s, recovered = %(recovered)s
WHERE id = %(run_id)s AND outcome IS NULL
