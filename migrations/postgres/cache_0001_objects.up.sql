-- The cache of member objects, shared by replicas; the tables of ../sqlite, and what several writers and followers need
-- on top. Nothing here is the home of truth: dropping the schema only costs a refill.
--
-- Keys are COLLATE "C", so that their order is byte order, as in SQLite and in Kubernetes' own lists. Bodies come packed
-- already: STORAGE EXTERNAL keeps Postgres from trying to pack them again.

-- The seq of the newest change. Whoever writes changes, or moves a claim, locks this row first and holds it to its commit:
-- that makes seqs grow in commit order and leaves no gaps.
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
    -- Why it is not followed now, as the replica that collects it says.
    trouble          TEXT,
    -- Nobody collects it any more. The row stays: old versions name it.
    gone             BOOLEAN NOT NULL DEFAULT false,
    touched_at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (cluster, "group", version, resource)
) WITH (fillfactor = 50);

-- No foreign key to collections: it would be checked row by row, and collections are never deleted.
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

-- What records were before. Together with the records it is the change log: change n is the record or version whose seq
-- is n, or the deletion of the version that ended with n; the version that ended with n is what the object was before.
-- An object that is only ever added costs nothing here.
CREATE TABLE versions (
    -- The change that ended it.
    ended            BIGINT  PRIMARY KEY,
    ended_at         BIGINT  NOT NULL,
    -- It ended by being deleted, with this resourceVersion if the member told one.
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

-- Who is alive, by this database's clock.
CREATE TABLE replicas (
    id        TEXT        PRIMARY KEY,
    heartbeat TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

-- Which replica collects a cluster. The epoch grows with every claim and is never used again, so the row stays.
CREATE TABLE claims (
    cluster TEXT   COLLATE "C" PRIMARY KEY,
    -- NULL: nobody.
    replica TEXT,
    epoch   BIGINT NOT NULL
);
