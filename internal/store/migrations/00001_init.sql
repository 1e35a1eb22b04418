-- +goose Up
-- One text for SQLite and PostgreSQL. Moments are microseconds since 1970 (UTC),
-- 0 for never; sizes are bytes; BYTEA holds bytes in both.
CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);
-- Bumped by every change of a token, so that a cached one is never trusted longer
-- than it is valid.
INSERT INTO settings (name, value) VALUES ('auth_generation', 1);

CREATE TABLE projects (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
INSERT INTO projects (id, name, created_at) VALUES ('default', 'default', 0);

CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    mac          BYTEA NOT NULL UNIQUE,
    name         TEXT NOT NULL,
    role         TEXT NOT NULL,
    project_id   TEXT NOT NULL,
    node_id      TEXT NOT NULL,
    node_role    TEXT NOT NULL,
    node_zone    TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    revoked_at   BIGINT NOT NULL
);

CREATE TABLE nodes (
    id         TEXT PRIMARY KEY,
    state      TEXT NOT NULL,
    facts      TEXT NOT NULL,
    spec       TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

-- The small row that every heartbeat writes. revision is bumped by every change
-- of what the node record shows, desired by every change of what the node is to do.
CREATE TABLE node_liveness (
    node_id    TEXT PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    seen_at    BIGINT NOT NULL,
    sampled_at BIGINT NOT NULL,
    boot_id    TEXT NOT NULL,
    revision   BIGINT NOT NULL,
    desired    BIGINT NOT NULL,
    -- Boot id of the last sync whose consequences were drawn.
    synced_boot TEXT NOT NULL DEFAULT ''
);

-- Loops that only one of several servers may run, and until when it may.
CREATE TABLE leases (
    name   TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until  BIGINT NOT NULL
);

CREATE TABLE images (
    id           TEXT PRIMARY KEY,
    project_id   TEXT NOT NULL REFERENCES projects (id),
    name         TEXT NOT NULL,
    public       BOOLEAN NOT NULL,
    sha256       TEXT NOT NULL,
    format       TEXT NOT NULL,
    size_bytes   BIGINT NOT NULL,
    virtual_size BIGINT NOT NULL,
    tags         TEXT NOT NULL,
    state        TEXT NOT NULL,
    created_at   BIGINT NOT NULL
);
CREATE INDEX images_by_project ON images (project_id, created_at, id);
CREATE INDEX images_by_sha256 ON images (sha256);

-- User-data, once per content. refs is the number of instances that name it.
CREATE TABLE blobs (
    sha256 TEXT PRIMARY KEY,
    bytes  BYTEA NOT NULL,
    refs   BIGINT NOT NULL
);

CREATE TABLE instances (
    id             TEXT PRIMARY KEY,
    project_id     TEXT NOT NULL REFERENCES projects (id),
    image_id       TEXT NOT NULL,
    node_id        TEXT NOT NULL,
    spec           TEXT NOT NULL,
    user_data_hash TEXT NOT NULL,
    state          TEXT NOT NULL,
    message        TEXT NOT NULL,
    goal           TEXT NOT NULL,
    epoch          BIGINT NOT NULL,
    deadline       BIGINT NOT NULL,
    force_stopping BOOLEAN NOT NULL,
    root_volume_id TEXT NOT NULL,
    desired_state  TEXT NOT NULL,
    changed_at     BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    launched_at    BIGINT NOT NULL,
    terminated_at  BIGINT NOT NULL,
    version        BIGINT NOT NULL
);
CREATE INDEX instances_by_project ON instances (project_id, created_at, id);
CREATE INDEX instances_by_node ON instances (node_id) WHERE node_id <> '';
CREATE INDEX instances_by_image ON instances (image_id);
CREATE INDEX instances_by_deadline ON instances (deadline) WHERE deadline <> 0;
CREATE INDEX instances_by_blob ON instances (user_data_hash) WHERE user_data_hash <> '';
CREATE INDEX instances_unplaced ON instances (created_at, id) WHERE state = 'creating' AND node_id = '';
CREATE INDEX instances_desired ON instances (id) WHERE desired_state <> '';
CREATE INDEX instances_terminated ON instances (terminated_at) WHERE state = 'terminated';

-- Ids become DNS names, so they are unique under case folding, and for ever.
CREATE TABLE issued_ids (
    folded TEXT PRIMARY KEY
);

-- A volume is a file on its node. instance_id is empty while it is attached to
-- none; auto volumes go with their instance. state is kept, or going until the
-- node says that the file is gone.
CREATE TABLE volumes (
    id          TEXT PRIMARY KEY,
    project_id  TEXT NOT NULL REFERENCES projects (id),
    node_id     TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    device      TEXT NOT NULL,
    size_bytes  BIGINT NOT NULL,
    root        BOOLEAN NOT NULL,
    auto        BOOLEAN NOT NULL,
    snapshot_id TEXT NOT NULL,
    going       BOOLEAN NOT NULL,
    created_at  BIGINT NOT NULL
);
CREATE INDEX volumes_by_project ON volumes (project_id, created_at, id);
CREATE INDEX volumes_by_instance ON volumes (instance_id) WHERE instance_id <> '';
CREATE INDEX volumes_by_node ON volumes (node_id) WHERE node_id <> '';

-- What the platform has handed out. It is written in the transaction that places
-- the instance; free room is capacity less the sum of these rows, never a counter.
CREATE TABLE allocations (
    instance_id  TEXT NOT NULL REFERENCES instances (id) ON DELETE CASCADE,
    purpose      TEXT NOT NULL,
    node_id      TEXT NOT NULL,
    vcpus        BIGINT NOT NULL,
    memory_bytes BIGINT NOT NULL,
    disk_bytes   BIGINT NOT NULL,
    PRIMARY KEY (instance_id, purpose)
);
CREATE INDEX allocations_by_node ON allocations (node_id);

CREATE TABLE events (
    instance_id TEXT NOT NULL REFERENCES instances (id) ON DELETE CASCADE,
    id          BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    actor       TEXT NOT NULL,
    event       TEXT NOT NULL,
    state       TEXT NOT NULL,
    message     TEXT NOT NULL,
    PRIMARY KEY (instance_id, id)
);

CREATE TABLE idempotency (
    scope      TEXT NOT NULL,
    name       TEXT NOT NULL,
    request    BYTEA NOT NULL,
    answer     TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (scope, name)
);
CREATE INDEX idempotency_by_age ON idempotency (created_at);
