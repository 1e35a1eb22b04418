-- +goose Up
-- Whether the node is off, or on its way down or up again, as its state says. Such
-- nodes are few, and loops look for them every few seconds.
ALTER TABLE nodes ADD COLUMN down BOOLEAN NOT NULL DEFAULT FALSE;
CREATE INDEX nodes_down ON nodes (id) WHERE down;

-- Wake-on-LAN packets that a node of the same segment is to send.
CREATE TABLE wakes (
    id         TEXT PRIMARY KEY,
    node_id    TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE, -- to wake
    via        TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE, -- who sends
    mac        TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX wakes_by_via ON wakes (via);
CREATE INDEX wakes_by_node ON wakes (node_id);
