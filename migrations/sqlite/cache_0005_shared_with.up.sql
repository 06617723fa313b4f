-- The oldest format whose version may use this database after a newer one. Migrations with which an older version is
-- incompatible increase it; others leave it unchanged.
CREATE TABLE format (shared_with INTEGER NOT NULL);
INSERT INTO format VALUES (5);
