//! OpenSearch and Elasticsearch as the search engine.
//!
//! [`client`] sends requests to the nodes of an engine and types their errors. [`bulk`] builds and reads bulk requests.

pub mod bulk;
pub mod client;
