-- The cache of member objects. Nothing here is the home of truth: deleting the file only costs a refill.

-- One row per (cluster, resource): what one collector follows, and how far it got.
CREATE TABLE collections (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    cluster          TEXT    NOT NULL,
    "group"          TEXT    NOT NULL,
    version          TEXT    NOT NULL,
    resource         TEXT    NOT NULL,
    kind             TEXT    NOT NULL DEFAULT '',
    namespaced       INTEGER NOT NULL DEFAULT 0,
    -- Which namespaces were asked for; another wish means another list.
    scope            TEXT    NOT NULL DEFAULT '',
    resource_version TEXT    NOT NULL DEFAULT '',
    complete         INTEGER NOT NULL DEFAULT 0,
    -- Unix milliseconds.
    heard_at         INTEGER NOT NULL DEFAULT 0,
    UNIQUE (cluster, "group", version, resource)
);

CREATE TABLE records (
    -- The seq of the object's first change: never used again, so the text index can delete by it.
    id               INTEGER PRIMARY KEY,
    collection       INTEGER NOT NULL REFERENCES collections (id),
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    seq              INTEGER NOT NULL,
    uid              TEXT    NOT NULL,
    resource_version TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    -- Unix seconds, NULL where the object has none.
    created          INTEGER,
    deleting         INTEGER,
    -- Unix milliseconds.
    changed_at       INTEGER NOT NULL,
    labels           TEXT    NOT NULL,
    -- JSON: owners, printed columns and cells.
    header           TEXT    NOT NULL,
    dictionary       INTEGER NOT NULL,
    body             BLOB    NOT NULL
);
CREATE UNIQUE INDEX records_by_key ON records (collection, namespace, name);
CREATE UNIQUE INDEX records_by_seq ON records (seq);

-- Deleted objects, as they were last.
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

-- Bodies name the dictionary they were packed with; old ones stay until nothing needs them.
CREATE TABLE dictionaries (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    kind       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    dictionary BLOB    NOT NULL
);

CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
