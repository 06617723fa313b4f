-- The oldest format whose version may come back to this database after a newer one. A step that an older version cannot live with
-- raises it; all others leave it alone.
CREATE TABLE format (shared_with INTEGER NOT NULL);
INSERT INTO format VALUES (5);
