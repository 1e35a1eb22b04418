-- +goose Up
-- Whether a VM has run with the volume on its node: its file is there, and where it is
-- not, data are lost and no empty one takes its place.
ALTER TABLE volumes ADD COLUMN made BOOLEAN NOT NULL DEFAULT FALSE;
