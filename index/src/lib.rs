//! The global cache: collect → store → index → watch, list, search.
//!
//! Owns the records of all member objects (and of the control plane, under its reserved name): collectors fill the
//! store, the store's writer publishes to the tail, the text index follows it. Read by the proxy, the controllers,
//! search and the UI. The data directory may be deleted without data loss.

pub mod check;
mod collect;
pub mod export;
mod index;
mod kept;
mod list;
mod replicas;
pub mod status;
pub mod writer;

pub use collect::versions::is_older;
pub use crowsnest_search::authorization::Reader;
pub use crowsnest_search::{Answer, FacetCounts, Hit, SearchEvent, SearchRequest, Searcher, Skipped, Summary};
pub use crowsnest_store::{
    CacheId, Change, ChangeKind, CollectionKey, CollectionState, DatabaseUrl, Epoch, Error, Follower, Gone, History,
    IndexOptions, MemberTimeouts, Object, OpenSearchOptions, Owner, PostgresOptions, Record, RecordKey, Seq,
    StoreOptions, Topic, Version, metadata_in,
};
pub use index::Index;
pub use list::{ListQuery, Page, selects};
