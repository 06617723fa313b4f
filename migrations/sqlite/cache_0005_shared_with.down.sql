DROP TABLE format;
