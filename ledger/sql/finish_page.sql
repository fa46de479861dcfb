-- Guarantees: a page counts as done only in a statement that sees nothing of its window unfinished.
UPDATE pages SET done_at = ledger_now()
WHERE run_id = %(run_id)s AND number = %(number)s AND done_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM payload_parts WHERE window_id = %(window_id)s)
