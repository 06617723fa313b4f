-- Previous versions of records, including deleted ones, as in ../postgres.
CREATE TABLE versions (
    -- The change that replaced or deleted it.
    ended            INTEGER PRIMARY KEY,
    ended_at         INTEGER NOT NULL,
    -- True if it was deleted, at resourceVersion ended_version if known.
    deleted          INTEGER NOT NULL,
    ended_version    TEXT,
    id               INTEGER NOT NULL,
    collection       INTEGER NOT NULL,
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    seq              INTEGER NOT NULL,
    uid              TEXT    NOT NULL,
    resource_version TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    created          INTEGER,
    deleting         INTEGER,
    changed_at       INTEGER NOT NULL,
    -- Approximate size of the row.
    bytes            INTEGER NOT NULL,
    labels           TEXT    NOT NULL,
    header           TEXT    NOT NULL,
    dictionary       INTEGER NOT NULL,
    body             BLOB    NOT NULL
);
INSERT INTO versions (ended, ended_at, deleted, ended_version, id, collection, namespace, name, seq, uid, resource_version,
    generation, created, deleting, changed_at, bytes, labels, header, dictionary, body)
SELECT seq, changed_at, 1, resource_version, id, collection, namespace, name, seq, uid, resource_version,
    generation, created, deleting, changed_at, length(labels) + length(header) + length(body), labels, header,
    dictionary, body
FROM tombstones WHERE collection IN (SELECT id FROM collections);
DROP TABLE tombstones;

CREATE INDEX versions_by_key ON versions (collection, namespace, name, ended);
CREATE INDEX versions_by_size ON versions (ended, ended_at, bytes);
CREATE INDEX versions_deleted ON versions (ended) WHERE deleted;

-- No longer collected. The row is kept, since versions refer to it.
ALTER TABLE collections ADD COLUMN gone INTEGER NOT NULL DEFAULT 0;
