-- +goose Up
-- Groups of instances with a rule about where they stand.
CREATE TABLE placement_groups (
    id         TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    level      TEXT NOT NULL,
    strict     BOOLEAN NOT NULL,
    partitions BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (project_id, name)
);
CREATE INDEX placement_groups_by_project ON placement_groups (project_id, created_at, id);

ALTER TABLE instances ADD COLUMN placement_group_id TEXT NOT NULL DEFAULT '';
CREATE INDEX instances_by_group ON instances (placement_group_id) WHERE placement_group_id <> '';

-- An allocation without a node is what a waiting instance has asked for: it counts
-- for its project, and for no node.
ALTER TABLE allocations ADD COLUMN project_id TEXT NOT NULL DEFAULT '';
ALTER TABLE allocations ADD COLUMN group_id TEXT NOT NULL DEFAULT '';
ALTER TABLE allocations ADD COLUMN group_partition BIGINT NOT NULL DEFAULT 0;
UPDATE allocations SET project_id = (SELECT i.project_id FROM instances i WHERE i.id = allocations.instance_id);
CREATE INDEX allocations_by_project ON allocations (project_id);
CREATE INDEX allocations_by_group ON allocations (group_id) WHERE group_id <> '';

-- Units of countable labels that an allocation holds.
CREATE TABLE allocation_countables (
    instance_id TEXT NOT NULL,
    purpose     TEXT NOT NULL,
    label       TEXT NOT NULL,
    node_id     TEXT NOT NULL,
    units       BIGINT NOT NULL,
    PRIMARY KEY (instance_id, purpose, label),
    FOREIGN KEY (instance_id, purpose) REFERENCES allocations (instance_id, purpose) ON DELETE CASCADE
);
CREATE INDEX allocation_countables_by_node ON allocation_countables (node_id, label) WHERE node_id <> '';

-- What a project may hold; NULL is without a limit.
CREATE TABLE project_quotas (
    project_id   TEXT PRIMARY KEY REFERENCES projects (id) ON DELETE CASCADE,
    instances    BIGINT,
    vcpus        BIGINT,
    memory_bytes BIGINT,
    disk_bytes   BIGINT
);

-- Since when each finding that follows from a node's facts and wishes stands.
ALTER TABLE nodes ADD COLUMN standing TEXT NOT NULL DEFAULT '{}';

-- The number of each node's last change that placement has to see, and of the last
-- one of more than what is allocated there. Whoever draws a number holds the row of
-- settings until its commit, so numbers are in the order of commits; a deleted node
-- keeps its row.
CREATE TABLE placement_changes (
    node_id TEXT PRIMARY KEY,
    seq     BIGINT NOT NULL,
    record  BIGINT NOT NULL
);
CREATE INDEX placement_changes_in_order ON placement_changes (seq);
INSERT INTO settings (name, value) VALUES ('placement_seq', 1);
