//! Bulk requests with external versions: building them and reading the answer item by item. Pure.
//!
//! Every write carries the sequence number of its change as external version, so an engine keeps the newest one for any order
//! and number of writes. Each request begins with an `index` action on a marker document, for three reasons. Engines create a
//! missing index for a `delete` with an external version, in spite of `require_alias`, unless another action of the request
//! on the same name is an `index` with `require_alias`. The marker is written once in the life of an index: an engine that
//! accepts it again writes to another index. Any index accepts the marker, so if it is refused, no document is the cause.
//! In indices that must not contain other documents, a guard replaces the marker: an `index` action that always conflicts.

mod request;
mod response;

pub use request::{BulkLimits, BulkRequest, DocumentChange, InvalidChange, Marker, build, check, path};
pub use response::{BulkResponse, Outcome, RequestFailure, classify_failure, parse_response};

#[cfg(test)]
mod tests;
