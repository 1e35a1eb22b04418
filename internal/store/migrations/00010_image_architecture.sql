-- +goose Up
-- The architecture of the nodes that an image runs on; empty: it was not said.
ALTER TABLE images ADD COLUMN architecture TEXT NOT NULL DEFAULT '';
