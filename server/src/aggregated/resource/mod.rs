//! Resources of the aggregated groups: routes, discovery, OpenAPI documents and tables.

pub(crate) mod discovery;
pub(crate) mod openapi;
pub(crate) mod registry;
pub(crate) mod table;
