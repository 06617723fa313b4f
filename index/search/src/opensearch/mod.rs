//! OpenSearch and Elasticsearch as the search engine.
//!
//! [`client`] sends requests to the nodes of an engine and classifies their errors. [`bulk`] builds and reads bulk requests.
//! [`writer`] follows a source of changes and keeps an index behind an alias equal to it.
//!
//! [`template`] and [`document`] define the index, [`dsl`] translates conditions, [`scope`] the caller's permissions, [`order`]
//! and [`aggregations`] the order of hits and their facets. [`request`] assembles a search, [`response`] reads its response. All of
//! these are pure. The engine does not analyze text: terms are created here, for documents and queries.
//!
//! [`engine`] implements [`crate::engine::Engine`] with these modules: its writer follows the store, and its searches are
//! translated to requests.

pub mod aggregations;
pub mod bulk;
pub mod client;
pub mod document;
pub mod dsl;
mod edits;
pub(crate) mod engine;
pub mod fields;
mod model;
#[cfg(any(test, feature = "fixtures"))]
pub mod node;
pub mod order;
pub mod paths;
pub mod regex;
pub mod request;
pub mod response;
pub mod scope;
mod source;
pub mod template;
pub mod terms;
#[cfg(test)]
pub(crate) mod tests;
pub mod writer;
