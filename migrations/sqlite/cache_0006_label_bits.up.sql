-- Bloom filter of the labels, see index/store/src/label_bits.rs. All bits are set in rows that were stored without it.
ALTER TABLE records ADD COLUMN label_bits INTEGER NOT NULL DEFAULT -1;
-- The index contains the filter, so that a scan for labels skips rows without reading them. It can no longer enforce
-- unique keys; each write transaction, also of format 5, looks up its keys before it adds records.
DROP INDEX records_by_key;
CREATE INDEX records_by_key ON records (collection, namespace, name, label_bits);
