-- Guarantees: what the server, the database and the role of this session say of themselves; nothing is changed.
SELECT
    clock_timestamp(),
    current_setting('server_version_num')::int,
    split_part(current_setting('server_version'), ' ', 1),
    pg_encoding_to_char(base.encoding),
    current_user::text,
    current_database()::text,
    current_setting('synchronous_commit'),
    current_setting('fsync'),
    current_setting('full_page_writes'),
    current_setting('max_connections')::int,
    least(
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
            - coalesce(current_setting('reserved_connections', true)::int, 0)
            - (SELECT sum(numbackends) FROM pg_stat_database),
        CASE WHEN base.datconnlimit >= 0
            THEN base.datconnlimit - (SELECT numbackends FROM pg_stat_database WHERE datid = base.oid) END,
        CASE WHEN me.rolconnlimit >= 0
            THEN me.rolconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user) END
    )::int,
    (SELECT reset_val::int FROM pg_settings WHERE name = 'statement_timeout'),
    CASE
        WHEN pg_is_in_recovery() THEN 'it is a standby'
        WHEN current_setting('transaction_read_only') = 'on' THEN 'its transactions are read only'
        ELSE ''
    END,
    has_database_privilege(current_database(), 'TEMPORARY')
FROM pg_database AS base, pg_roles AS me
WHERE base.datname = current_database() AND me.rolname = current_user
