-- What was quarantined is due again.
DROP VIEW catalog.quarantined_units;
DROP TABLE catalog.retries;
ALTER TABLE catalog.failures DROP COLUMN tries, DROP COLUMN spent, DROP COLUMN due_at, DROP COLUMN quarantined_as;
ALTER TABLE catalog.collections
    DROP COLUMN max_retries, DROP COLUMN retry_base_seconds, DROP COLUMN retry_cap_seconds, DROP COLUMN max_expiries, DROP COLUMN failure_rules;
