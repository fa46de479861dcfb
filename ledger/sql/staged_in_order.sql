-- A run's staged records in group and payload order. WITH HOLD: the sorted rows go to a temporary file at once, so that
-- no snapshot stays open while they are sent.
DECLARE {cursor} NO SCROLL CURSOR WITH HOLD FOR
SELECT record_id, booking_ns, group_key, order_key, body, fingerprint
FROM staged_records WHERE run_id = {run_id}
ORDER BY group_key, order_key
