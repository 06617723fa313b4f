-- The oldest format whose version may use this database at the same time as newer ones, or after them. Migrations
-- with which an older version is incompatible increase it; others leave it unchanged.
ALTER TABLE format ADD COLUMN shared_with INTEGER NOT NULL DEFAULT 6;
