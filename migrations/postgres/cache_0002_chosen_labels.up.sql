-- Index of objects by selected labels. The labels are configured, and stored in facts.
CREATE TABLE chosen_labels (
    collection BIGINT NOT NULL,
    key        TEXT   COLLATE "C" NOT NULL,
    value      TEXT   COLLATE "C" NOT NULL,
    record     BIGINT NOT NULL,
    PRIMARY KEY (collection, key, value, record)
);
