-- Cache of member objects. All data can be rebuilt from the members, so the file may be deleted.

-- One row per cluster and resource: a collection, and the state of its synchronization.
CREATE TABLE collections (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    cluster          TEXT    NOT NULL,
    "group"          TEXT    NOT NULL,
    version          TEXT    NOT NULL,
    resource         TEXT    NOT NULL,
    kind             TEXT    NOT NULL DEFAULT '',
    namespaced       INTEGER NOT NULL DEFAULT 0,
    -- The collected namespaces. If others are needed, the collection is listed again.
    scope            TEXT    NOT NULL DEFAULT '',
    resource_version TEXT    NOT NULL DEFAULT '',
    complete         INTEGER NOT NULL DEFAULT 0,
    -- Unix milliseconds.
    heard_at         INTEGER NOT NULL DEFAULT 0,
    UNIQUE (cluster, "group", version, resource)
);

CREATE TABLE records (
    -- The seq of the object's first change. It is never reused, so the text index can delete by it.
    id               INTEGER PRIMARY KEY,
    collection       INTEGER NOT NULL REFERENCES collections (id),
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    seq              INTEGER NOT NULL,
    uid              TEXT    NOT NULL,
    resource_version TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    -- Unix seconds. NULL if the object has no creationTimestamp.
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

-- Deleted objects in their last state.
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

-- Dictionaries for compressed bodies, which refer to them. Old ones are kept while they are used.
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
