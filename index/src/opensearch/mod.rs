//! OpenSearch and Elasticsearch as the search engine.
//!
//! [`client`] sends requests to the nodes of an engine and types their errors.

pub mod client;
