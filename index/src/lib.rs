//! The global cache: collect → store → index → watch, list, search.
//!
//! Owns the records of all member objects (and of the control plane, under its reserved name): collectors fill the
//! store, the store's writer feeds the tail, the text index follows. Read by the proxy, the controllers, search and the
//! UI. Deleting its data directory loses nothing.

pub mod check;
mod collect;
pub mod error;
pub mod export;
#[cfg(test)]
mod fixtures;
pub mod format;
mod index;
pub mod ingest;
mod kept;
mod list;
pub mod metrics;
pub mod opensearch;
pub mod options;
#[cfg(test)]
#[path = "../tests/support/postgres.rs"]
mod postgres_server;
pub mod query;
pub mod record;
mod replicas;
pub mod rights;
pub mod search;
pub mod status;
pub mod store;
pub mod tail;
pub mod text;
pub mod writer;

pub use collect::versions::is_older;
pub use error::{Error, Gone};
pub use index::Index;
pub use list::{ListQuery, Page, selects};
pub use options::{DatabaseUrl, History, IndexOptions, OpenSearchOptions, Patience, PostgresOptions, StoreOptions};
pub use record::metadata_in;
pub use record::{
    CacheId, Change, CollectionKey, CollectionState, Happened, Object, Owner, Record, RecordKey, Seq, Version,
};
pub use replicas::Epoch;
pub use rights::Reader;
pub use search::{Answer, FacetCounts, Hit, SearchEvent, SearchRequest, Skipped, Summary};
pub use tail::{Follower, Topic};
