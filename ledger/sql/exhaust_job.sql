-- Ends a job whose workers were lost in every attempt that it has, and drops what its steps have kept; nothing happens
-- while one of them may be alive.
WITH exhausted AS (
    UPDATE jobs SET status = 'failed', finished_at = ledger_now(), expires_at = NULL,
        error = concat_ws('; before that: ', %(reason)s::text, error)
    WHERE id = %(id)s AND attempts >= %(attempts_max)s
      AND (status = 'pending' OR status = 'processing' AND expires_at <= ledger_now())
    RETURNING id, error
), dropped AS (
    DELETE FROM job_parts WHERE job_id IN (SELECT id FROM exhausted)
)
SELECT error FROM exhausted
