-- +goose Up
-- What a node may still have of an instance or a volume that is its no longer: it is
-- told to remove it until it says that nothing of it is left.
CREATE TABLE departures (
    node_id TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    id      TEXT NOT NULL,
    volume  BOOLEAN NOT NULL,
    epoch   BIGINT NOT NULL, -- of an instance: above that of all it was ever told there
    since   BIGINT NOT NULL,
    PRIMARY KEY (node_id, id)
);

-- The image that a volume which was carried from another node stands on, as JSON;
-- empty where it stands on its instance's image, or on none.
ALTER TABLE volumes ADD COLUMN base TEXT NOT NULL DEFAULT '';
ALTER TABLE volumes ADD COLUMN base_sha256 TEXT NOT NULL DEFAULT '';
CREATE INDEX volumes_by_base ON volumes (base_sha256) WHERE base_sha256 <> '';
