-- +goose Up
-- The migration that an instance is in (compute.Move) as JSON, empty while it is in
-- none. The room on the other node is an allocation for the purpose "migration".
ALTER TABLE instances ADD COLUMN move TEXT NOT NULL DEFAULT '';
CREATE INDEX instances_moving ON instances (id) WHERE move <> '';

-- The latest drain of a node, as JSON (store.Drain).
CREATE TABLE drains (
    node_id TEXT PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    open    BOOLEAN NOT NULL, -- not done, cancelled or out of time
    doc     TEXT NOT NULL
);
CREATE INDEX drains_open ON drains (node_id) WHERE open;

-- What a drain makes of each instance that it found on its node, as JSON
-- (store.DrainItem). While holds is set, nobody but the drain starts the instance
-- there by itself.
CREATE TABLE drain_items (
    node_id     TEXT NOT NULL REFERENCES drains (node_id) ON DELETE CASCADE,
    instance_id TEXT NOT NULL,
    holds       BOOLEAN NOT NULL,
    doc         TEXT NOT NULL,
    PRIMARY KEY (node_id, instance_id)
);
CREATE INDEX drain_items_by_instance ON drain_items (instance_id) WHERE holds;
