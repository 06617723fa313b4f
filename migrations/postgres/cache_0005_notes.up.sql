-- State of the controllers about objects, so that they need not read them from members after a restart. It can be
-- rebuilt.
CREATE TABLE notes (
    cluster   TEXT NOT NULL,
    "group"   TEXT NOT NULL,
    version   TEXT NOT NULL,
    resource  TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    note      TEXT NOT NULL,
    PRIMARY KEY (cluster, "group", version, resource, namespace, name)
);
