-- What each replica wants collected: whoever collects a cluster collects it for all. Several names are joined by commas,
-- an empty text means all.
CREATE TABLE interests (
    replica    TEXT NOT NULL,
    clusters   TEXT NOT NULL,
    "group"    TEXT NOT NULL,
    version    TEXT NOT NULL,
    resource   TEXT NOT NULL,
    namespaces TEXT NOT NULL,
    PRIMARY KEY (replica, clusters, "group", version, resource, namespaces)
);
