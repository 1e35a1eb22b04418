-- +goose Up
-- What the operator has asked of a node beside its settings, each as JSON:
-- maintenance (compute.Maintenance), the latest power action (compute.PowerAction)
-- and the machine that the node is bound to (compute.Identity).
ALTER TABLE nodes ADD COLUMN maintenance TEXT NOT NULL DEFAULT '{}';
ALTER TABLE nodes ADD COLUMN power TEXT NOT NULL DEFAULT '{}';
ALTER TABLE nodes ADD COLUMN identity TEXT NOT NULL DEFAULT '{}';
-- The state of a node follows from these.
ALTER TABLE nodes DROP COLUMN state;
