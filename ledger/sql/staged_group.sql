-- One group of a run's staged records in payload order. WITH HOLD for the same reason as all of them in order.
DECLARE {cursor} NO SCROLL CURSOR WITH HOLD FOR
SELECT record_id, booking_ns, group_key, order_key, body, fingerprint
FROM staged_records WHERE run_id = {run_id} AND group_key = {group_key}
ORDER BY order_key
