//! MVCC objects with resourceVersions, watch history and compaction behind a trait; durable in SQLite.
