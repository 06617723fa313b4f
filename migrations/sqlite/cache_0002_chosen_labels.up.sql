-- Index of objects by selected labels. The labels are configured, and stored in facts.
CREATE TABLE chosen_labels (
    collection INTEGER NOT NULL,
    key        TEXT    NOT NULL,
    value      TEXT    NOT NULL,
    record     INTEGER NOT NULL,
    PRIMARY KEY (collection, key, value, record)
) WITHOUT ROWID;
