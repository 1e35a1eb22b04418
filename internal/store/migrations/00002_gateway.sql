-- +goose Up
-- The runner gateway. Moments are microseconds since 1970 (UTC), 0 for never.
CREATE TABLE apps (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL,
    update_mode    TEXT NOT NULL,
    update_version TEXT NOT NULL,
    hosts          BIGINT NOT NULL, -- rows in hosts, so that a list knows its total
    created_at     BIGINT NOT NULL
);
CREATE INDEX apps_by_age ON apps (created_at, id);

CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    app_id       TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    mac          BYTEA NOT NULL UNIQUE,
    name         TEXT NOT NULL,
    prefix       TEXT NOT NULL,
    permissions  TEXT NOT NULL, -- separated by spaces
    runner_host  TEXT NOT NULL,
    public_key   BYTEA,         -- of a runner key: every request is signed with it
    created_by   TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    revoked_at   BIGINT NOT NULL
);
CREATE INDEX api_keys_by_app ON api_keys (app_id, created_at, id);

-- One row per host, written by every heartbeat. What a status is derived from
-- stands in columns, so that a list can be filtered by it.
CREATE TABLE hosts (
    app_id       TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    host         TEXT NOT NULL,
    seen_at      BIGINT NOT NULL,
    success_at   BIGINT NOT NULL,
    error_at     BIGINT NOT NULL,
    poll_seconds BIGINT NOT NULL,
    protocol     BIGINT NOT NULL,
    hindered     BIGINT NOT NULL, -- 1 while blocked or low on disk
    report       TEXT NOT NULL,
    error        TEXT NOT NULL,
    last_update  TEXT NOT NULL,
    beats        BIGINT NOT NULL, -- how many heartbeats it has sent
    PRIMARY KEY (app_id, host)
);

-- Only hosts that get no work are in it, so a heartbeat of a good one costs nothing
-- here; a list of the failing among a million is short work.
CREATE INDEX hosts_failing ON hosts (app_id, host) WHERE hindered = 1 OR error_at > success_at;

-- Nonces of accepted requests. A row counts until keep_until, whole seconds since
-- 1970, and is purged some time after.
CREATE TABLE nonces (
    key_id     TEXT NOT NULL,
    nonce      TEXT NOT NULL,
    keep_until BIGINT NOT NULL,
    PRIMARY KEY (key_id, nonce)
);
CREATE INDEX nonces_by_end ON nonces (keep_until);

CREATE TABLE jobs (
    id           TEXT PRIMARY KEY,
    app_id       TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    creator      TEXT NOT NULL,
    spec         TEXT NOT NULL,
    memory_bytes BIGINT NOT NULL,
    disk_bytes   BIGINT NOT NULL,
    state        TEXT NOT NULL,
    attempt      BIGINT NOT NULL,
    epoch        BIGINT NOT NULL,
    host         TEXT NOT NULL,
    exit_code    BIGINT,
    message      TEXT NOT NULL,
    log_bytes    BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    queued_at    BIGINT NOT NULL,
    started_at   BIGINT NOT NULL,
    lease_until  BIGINT NOT NULL,
    alive_at     BIGINT NOT NULL,
    progress_at  BIGINT NOT NULL,
    finished_at  BIGINT NOT NULL,
    version      BIGINT NOT NULL
);
CREATE INDEX jobs_by_app ON jobs (app_id, created_at, id);
CREATE INDEX jobs_queued ON jobs (app_id, creator, queued_at, id) WHERE state = 'queued';
CREATE INDEX jobs_leased ON jobs (lease_until) WHERE lease_until <> 0;
CREATE INDEX jobs_on_host ON jobs (app_id, host) WHERE lease_until <> 0;
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at <> 0;

-- Whose turn it is: the creators of queued work in an app, each with the number
-- of its last turn. Whoever queues anew, or was served, goes to the end.
CREATE TABLE job_turns (
    app_id  TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    creator TEXT NOT NULL,
    turn    BIGINT NOT NULL,
    PRIMARY KEY (app_id, creator)
);
CREATE INDEX job_turns_in_order ON job_turns (app_id, turn, creator);

CREATE TABLE job_logs (
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    epoch  BIGINT NOT NULL,
    start  BIGINT NOT NULL, -- offset of the first byte
    data   BYTEA NOT NULL,
    PRIMARY KEY (job_id, epoch, start)
);
