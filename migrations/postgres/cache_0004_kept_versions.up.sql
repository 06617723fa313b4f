-- Old versions are kept for readers too, so many for each object and so many bytes of all.
-- About what the row takes.
ALTER TABLE versions ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE versions SET bytes = length(labels) + length(header) + length(body);
CREATE INDEX versions_by_key ON versions (collection, namespace, name, ended);
CREATE INDEX versions_by_size ON versions (ended, ended_at, bytes);
