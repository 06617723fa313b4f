-- Resources that each replica needs. The replica that claims a cluster collects them for all replicas. Multiple names
-- are separated by commas; an empty string means all.
CREATE TABLE interests (
    replica    TEXT NOT NULL,
    clusters   TEXT NOT NULL,
    "group"    TEXT NOT NULL,
    version    TEXT NOT NULL,
    resource   TEXT NOT NULL,
    namespaces TEXT NOT NULL,
    PRIMARY KEY (replica, clusters, "group", version, resource, namespaces)
);
