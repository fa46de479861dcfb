-- Counts the tries of all pipelines to send entries that were opened in the last hour, by outcome; ids sort by time, so
-- only that part of the key is read.
SELECT outcome, count(*) AS attempts FROM all_attempts WHERE entry_id >= %(since)s GROUP BY outcome
