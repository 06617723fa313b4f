-- Cache of member objects, shared by replicas: the tables of ../sqlite, and additional ones for several writers and
-- readers. All data can be rebuilt from the members, so dropping the schema only costs the time for that.
--
-- Keys are COLLATE "C", so that their order is byte order, as in SQLite and in lists of Kubernetes. Bodies are
-- already compressed, so STORAGE EXTERNAL disables Postgres' compression.

-- The sequence number of the newest change. Transactions that write changes, or change a claim, lock this row first
-- and hold the lock until they commit, so that sequence numbers grow in commit order, without gaps.
CREATE TABLE counter (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
    seq BIGINT  NOT NULL
) WITH (fillfactor = 10);
INSERT INTO counter (seq) VALUES (0);

CREATE TABLE collections (
    id               BIGINT  PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    cluster          TEXT    COLLATE "C" NOT NULL,
    "group"          TEXT    COLLATE "C" NOT NULL,
    version          TEXT    COLLATE "C" NOT NULL,
    resource         TEXT    COLLATE "C" NOT NULL,
    kind             TEXT    NOT NULL DEFAULT '',
    namespaced       BOOLEAN NOT NULL DEFAULT false,
    scope            TEXT    NOT NULL DEFAULT '',
    resource_version TEXT    NOT NULL DEFAULT '',
    complete         BOOLEAN NOT NULL DEFAULT false,
    heard_at         BIGINT  NOT NULL DEFAULT 0,
    -- The error because of which it is not synchronized, as reported by the replica that collects it.
    trouble          TEXT,
    -- No longer collected. The row is kept, since versions refer to it.
    gone             BOOLEAN NOT NULL DEFAULT false,
    touched_at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (cluster, "group", version, resource)
) WITH (fillfactor = 50);

-- No foreign key to collections, since it would be checked for every row, and collections are never deleted.
CREATE TABLE records (
    id               BIGINT PRIMARY KEY,
    collection       BIGINT NOT NULL,
    namespace        TEXT   COLLATE "C" NOT NULL,
    name             TEXT   COLLATE "C" NOT NULL,
    seq              BIGINT NOT NULL,
    uid              TEXT   NOT NULL,
    resource_version TEXT   NOT NULL,
    generation       BIGINT NOT NULL,
    created          BIGINT,
    deleting         BIGINT,
    changed_at       BIGINT NOT NULL,
    labels           TEXT   NOT NULL,
    header           TEXT   NOT NULL,
    dictionary       BIGINT NOT NULL,
    body             BYTEA  NOT NULL
);
ALTER TABLE records ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX records_by_key ON records (collection, namespace, name);
CREATE UNIQUE INDEX records_by_seq ON records (seq);

-- Previous versions of records. Together with the records, they are the change log: change n is the record or version
-- with seq n, or the deletion of the version with ended = n. The latter is also the object's state before the change.
-- Objects that are only created have no rows here.
CREATE TABLE versions (
    -- The change that replaced or deleted it.
    ended            BIGINT  PRIMARY KEY,
    ended_at         BIGINT  NOT NULL,
    -- True if it was deleted, at resourceVersion ended_version if known.
    deleted          BOOLEAN NOT NULL,
    ended_version    TEXT,
    id               BIGINT  NOT NULL,
    collection       BIGINT  NOT NULL,
    namespace        TEXT    COLLATE "C" NOT NULL,
    name             TEXT    COLLATE "C" NOT NULL,
    seq              BIGINT  NOT NULL,
    uid              TEXT    NOT NULL,
    resource_version TEXT    NOT NULL,
    generation       BIGINT  NOT NULL,
    created          BIGINT,
    deleting         BIGINT,
    changed_at       BIGINT  NOT NULL,
    labels           TEXT    NOT NULL,
    header           TEXT    NOT NULL,
    dictionary       BIGINT  NOT NULL,
    body             BYTEA   NOT NULL
);
ALTER TABLE versions ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX versions_by_seq ON versions (seq);
CREATE INDEX versions_deleted ON versions (ended) WHERE deleted;

CREATE TABLE dictionaries (
    id         BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    kind       TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    dictionary BYTEA  NOT NULL
);

CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- Heartbeats of replicas, by the clock of the database server.
CREATE TABLE replicas (
    id        TEXT        PRIMARY KEY,
    heartbeat TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

-- Which replica collects a cluster. The epoch grows with every claim and must never be reused, so rows are not
-- deleted.
CREATE TABLE claims (
    cluster TEXT   COLLATE "C" PRIMARY KEY,
    -- NULL if no replica has claimed the cluster.
    replica TEXT,
    epoch   BIGINT NOT NULL
);
