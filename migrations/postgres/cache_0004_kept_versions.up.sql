-- Versions are also retained for readers, up to a number per object and a total size. `bytes` is the approximate size
-- of the row.
ALTER TABLE versions ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE versions SET bytes = length(labels) + length(header) + length(body);
CREATE INDEX versions_by_key ON versions (collection, namespace, name, ended);
CREATE INDEX versions_by_size ON versions (ended, ended_at, bytes);
