-- The fingerprints of the claims in a range of booking times, eight bytes each, big end first: one value is read many
-- times faster than a row each. NULL where there are too many, or where a redo repeated one.
SELECT string_agg(int8send(fingerprint), '')
FROM (
    SELECT fingerprint, generation FROM claims
    WHERE booking_ns BETWEEN %(first_ns)s AND %(last_ns)s AND pipeline_id = %(pipeline_id)s
    LIMIT %(limit)s
) AS nearby
HAVING count(*) < %(limit)s AND max(generation) = 0
