CREATE TABLE tombstones (
    seq              INTEGER PRIMARY KEY,
    id               INTEGER NOT NULL,
    collection       INTEGER NOT NULL,
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    uid              TEXT    NOT NULL,
    resource_version TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    created          INTEGER,
    deleting         INTEGER,
    changed_at       INTEGER NOT NULL,
    labels           TEXT    NOT NULL,
    header           TEXT    NOT NULL,
    dictionary       INTEGER NOT NULL,
    body             BLOB    NOT NULL
);
INSERT INTO tombstones (seq, id, collection, namespace, name, uid, resource_version, generation, created, deleting,
    changed_at, labels, header, dictionary, body)
SELECT ended, id, collection, namespace, name, uid, coalesce(ended_version, resource_version), generation, created,
    deleting, ended_at, labels, header, dictionary, body
FROM versions WHERE deleted;
DROP TABLE versions;
DELETE FROM facts WHERE name = 'trimmed';
DELETE FROM collections WHERE gone;
ALTER TABLE collections DROP COLUMN gone;
