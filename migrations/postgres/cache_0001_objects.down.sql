DROP TABLE claims;
DROP TABLE replicas;
DROP TABLE facts;
DROP TABLE dictionaries;
DROP TABLE versions;
DROP TABLE records;
DROP TABLE collections;
DROP TABLE counter;
