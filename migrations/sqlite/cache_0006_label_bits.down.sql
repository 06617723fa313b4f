DROP INDEX records_by_key;
CREATE UNIQUE INDEX records_by_key ON records (collection, namespace, name);
ALTER TABLE records DROP COLUMN label_bits;
