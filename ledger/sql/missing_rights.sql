-- Guarantees: each of these tables that exists, with the rights that the role of this session lacks on it.
SELECT named.name, array_agg(needed.privilege ORDER BY needed.privilege)
FROM unnest(%(tables)s::text[]) AS named (name)
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed (privilege)
WHERE to_regclass(named.name) IS NOT NULL
    AND NOT has_table_privilege(to_regclass(named.name), needed.privilege)
GROUP BY named.name
