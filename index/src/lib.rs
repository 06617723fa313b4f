//! The global cache: collect → store → index → watch, list, search.
//!
//! Holds the objects of all members, and of the control plane under its reserved name. Collectors write to the store,
//! the store's writer publishes changes to the tail, and the text index follows the tail. The proxy, the controllers,
//! search and the UI read the cache. Deleting the data directory loses no data.

mod cache;
pub mod check;
mod collect;
pub mod export;
mod ingest_rules;
mod list;
mod replicas;
pub mod status;
pub mod writer;

pub use cache::GlobalCache;
pub use collect::versions::is_older;
pub use crowsnest_search::authorization::ReadPermissions;
pub use crowsnest_search::{
    FacetCounts, Hit, SearchEvent, SearchRequest, SearchResponse, Searcher, SkippedCluster, Summary,
};
pub use crowsnest_store::{
    CacheId, CacheOptions, Change, ChangeKind, CollectionKey, CollectionState, DatabaseUrl, Epoch, Error, Follower,
    Gone, HistoryRetention, LabelQuery, MemberTimeouts, Object, OpenSearchOptions, Owner, PostgresOptions, Record,
    RecordKey, Seq, StoreOptions, StoredBody, StoredObject, Topic, Version, metadata_in,
};
pub use list::{ListQuery, Page, selects};
