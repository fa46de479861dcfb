-- Cancels a job that has not ended; its worker, if it has one, sees it at its next heartbeat and is fenced from now on.
WITH cancelled AS (
    UPDATE jobs SET status = 'cancelled', finished_at = ledger_now(), expires_at = NULL
    WHERE id = %(id)s AND pipeline_id = (SELECT id FROM pipelines WHERE name = %(pipeline)s)
      AND status IN ('pending', 'processing')
    RETURNING id
)
DELETE FROM job_parts WHERE job_id IN (SELECT id FROM cancelled)
