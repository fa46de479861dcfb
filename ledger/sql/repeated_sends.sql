-- Of these entries, those of which more than one try may have reached the queue, with the age of the first.
SELECT attempts.entry_id, count(*) FILTER (WHERE attempts.outcome = 'accepted'),
       extract(epoch FROM ledger_now() - min(attempts.marked_at))::float8
FROM attempts
WHERE attempts.entry_id = ANY(%(ids)s::uuid[]) AND attempts.outcome IN ('unknown', 'accepted')
GROUP BY attempts.entry_id
HAVING count(*) > 1
