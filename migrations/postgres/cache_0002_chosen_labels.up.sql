-- Objects by the labels somebody looks them up by. Which labels those are is configuration, kept in facts.
CREATE TABLE chosen_labels (
    collection BIGINT NOT NULL,
    key        TEXT   COLLATE "C" NOT NULL,
    value      TEXT   COLLATE "C" NOT NULL,
    record     BIGINT NOT NULL,
    PRIMARY KEY (collection, key, value, record)
);
