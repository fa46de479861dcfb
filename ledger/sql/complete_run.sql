-- Guarantees: a run is completed only by the holder of the window, in a statement that sees nothing of it unfinished.
WITH completed AS (
    UPDATE runs SET outcome = 'completed', finished_at = ledger_now()
    WHERE id = %(run_id)s AND outcome IS NULL
      AND NOT EXISTS (SELECT 1 FROM payload_parts WHERE window_id = %(window_id)s)
    RETURNING id, finished_at
), paged AS (
    UPDATE pages SET done_at = completed.finished_at FROM completed
    WHERE pages.run_id = completed.id AND pages.done_at IS NULL
), closed AS (
    UPDATE windows SET completed_at = completed.finished_at, lease_run_id = NULL, lease_until = NULL
    FROM completed WHERE windows.id = %(window_id)s
)
SELECT finished_at FROM completed
