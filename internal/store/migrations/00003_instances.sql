-- +goose Up
CREATE TABLE vpcs (
    id         TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    cidr       TEXT NOT NULL,
    is_default BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX vpcs_default ON vpcs (project_id) WHERE is_default;

CREATE TABLE subnets (
    id         TEXT PRIMARY KEY,
    vpc_id     TEXT NOT NULL REFERENCES vpcs (id) ON DELETE CASCADE,
    project_id TEXT NOT NULL,
    cidr       TEXT NOT NULL,
    is_default BOOLEAN NOT NULL,
    -- The address that was given out last: the next search starts behind it.
    last_address TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX subnets_by_vpc ON subnets (vpc_id);

-- A card of an instance. After the instance is gone the row stays for one lease
-- time with released_at set, so that its address is not given out again at once.
CREATE TABLE interfaces (
    id           TEXT PRIMARY KEY,
    subnet_id    TEXT NOT NULL REFERENCES subnets (id) ON DELETE CASCADE,
    instance_id  TEXT NOT NULL,
    device_index BIGINT NOT NULL,
    mac          TEXT NOT NULL,
    address      TEXT NOT NULL,
    auto         BOOLEAN NOT NULL,
    released_at  BIGINT NOT NULL,
    UNIQUE (subnet_id, address),
    UNIQUE (subnet_id, mac)
);
CREATE INDEX interfaces_by_instance ON interfaces (instance_id) WHERE instance_id <> '';
CREATE INDEX interfaces_released ON interfaces (released_at) WHERE released_at <> 0;

-- What is known of the guest agent: the small row that its heartbeats write.
CREATE TABLE instance_agents (
    instance_id TEXT PRIMARY KEY REFERENCES instances (id) ON DELETE CASCADE,
    doc         TEXT NOT NULL
);

-- The data devices of an image, beside its root.
CREATE TABLE image_volumes (
    image_id     TEXT NOT NULL REFERENCES images (id) ON DELETE CASCADE,
    position     BIGINT NOT NULL,
    snapshot_id  TEXT NOT NULL,
    sha256       TEXT NOT NULL,
    format       TEXT NOT NULL,
    size_bytes   BIGINT NOT NULL,
    virtual_size BIGINT NOT NULL,
    PRIMARY KEY (image_id, position)
);
CREATE INDEX image_volumes_by_sha256 ON image_volumes (sha256);

-- An image on its way out of a stopped instance.
CREATE TABLE image_uploads (
    id          TEXT PRIMARY KEY,
    instance_id TEXT NOT NULL REFERENCES instances (id) ON DELETE CASCADE,
    node_id     TEXT NOT NULL,
    image_id    TEXT NOT NULL,
    epoch       BIGINT NOT NULL,
    doc         TEXT NOT NULL
);
CREATE INDEX image_uploads_by_node ON image_uploads (node_id);
