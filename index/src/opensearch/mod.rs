//! OpenSearch and Elasticsearch as the search engine.
//!
//! [`client`] sends requests to the nodes of an engine and types their errors. [`bulk`] builds and reads bulk requests.
//! [`writer`] follows a source of changes and keeps an index behind an alias equal to it.

pub mod bulk;
pub mod client;
pub mod writer;
