ALTER TABLE format DROP COLUMN shared_with;
