-- What the controllers remember of objects, so that a restart need not ask members again. Losing it costs work, no truth.
CREATE TABLE notes (
    cluster   TEXT NOT NULL,
    "group"   TEXT NOT NULL,
    version   TEXT NOT NULL,
    resource  TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    note      TEXT NOT NULL,
    PRIMARY KEY (cluster, "group", version, resource, namespace, name)
) WITHOUT ROWID;
