-- Objects by the labels somebody looks them up by. Which labels those are is configuration, kept in facts.
CREATE TABLE chosen_labels (
    collection INTEGER NOT NULL,
    key        TEXT    NOT NULL,
    value      TEXT    NOT NULL,
    record     INTEGER NOT NULL,
    PRIMARY KEY (collection, key, value, record)
) WITHOUT ROWID;
