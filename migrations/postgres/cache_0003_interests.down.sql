DROP TABLE interests;
