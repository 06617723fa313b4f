-- The oldest format whose version may go on with this database beside the newer ones, or come back to it. A step that an older version
-- cannot live with raises it; all others leave it alone.
ALTER TABLE format ADD COLUMN shared_with INTEGER NOT NULL DEFAULT 6;
