-- Of these entries, those whose idempotency key more than one try may have carried to the queue, with the first's age.
-- A void entry of the same key counts too: one of its tries may have had no answer.
SELECT same_promises.entry_id, count(*) FILTER (WHERE outcome <> 'unknown'),
       extract(epoch FROM ledger_now() - min(marked_at))::float8
FROM same_promises
JOIN all_attempts ON all_attempts.entry_id = same_promises.same_id AND outcome IN ('unknown', 'accepted', 'received', 'vouched')
WHERE same_promises.entry_id = ANY(%(ids)s::uuid[])
GROUP BY same_promises.entry_id
HAVING count(*) > 1
