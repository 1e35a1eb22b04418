-- +goose Up
-- Who has joined, or asks to, by node id: the machine's public key and what the
-- join token bound it to. A node that was set up with an operator's token has none.
-- Moments are microseconds; expires_at is 0 for one that was admitted.
CREATE TABLE node_joins (
    node_id    TEXT PRIMARY KEY,
    key_id     TEXT NOT NULL UNIQUE, -- the key's fingerprint
    public_key BYTEA NOT NULL,
    state      TEXT NOT NULL,        -- compute.JoinState
    token_id   TEXT NOT NULL,
    machine_id TEXT NOT NULL,
    boot_id    TEXT NOT NULL,
    hostname   TEXT NOT NULL,
    node_role  TEXT NOT NULL,
    node_zone  TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    seen_at    BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX node_joins_by_state ON node_joins (state, node_id);

-- Of a join token: how many more machines it admits, and whether an operator has to
-- approve each. Of a credential: the fingerprint of the key that it was given to.
ALTER TABLE tokens ADD COLUMN uses_left BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN approve BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
CREATE INDEX tokens_by_node ON tokens (node_id);
