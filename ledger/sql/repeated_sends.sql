-- Of these entries, those whose idempotency key more than one try may have carried to the queue, with the first's age.
-- A void entry of the same key counts too: one of its tries may have had no answer.
SELECT entries.id, count(*) FILTER (WHERE attempts.outcome = 'accepted'),
       extract(epoch FROM ledger_now() - min(attempts.marked_at))::float8
FROM entries
JOIN entries AS twins ON twins.idempotency_key = entries.idempotency_key
JOIN attempts ON attempts.entry_id = twins.id AND attempts.outcome IN ('unknown', 'accepted')
WHERE entries.id = ANY(%(ids)s::uuid[])
GROUP BY entries.id
HAVING count(*) > 1
