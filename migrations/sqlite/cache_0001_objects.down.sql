DROP TABLE facts;
DROP TABLE dictionaries;
DROP TABLE tombstones;
DROP TABLE records;
DROP TABLE collections;
