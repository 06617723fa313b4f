DROP INDEX versions_by_size;
DROP INDEX versions_by_key;
ALTER TABLE versions DROP COLUMN bytes;
DELETE FROM facts WHERE name = 'trimmed';
