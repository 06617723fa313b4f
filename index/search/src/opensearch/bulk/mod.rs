//! Bulk requests with external versions: building them and reading the response item by item. Has no side effects.
//!
//! Every write carries the sequence number of its change as external version, so an engine keeps the newest one for any order
//! and number of writes. Each request begins with an `index` action on a marker document, for three reasons. A `delete`
//! with an external version makes engines create a missing index in spite of `require_alias`, except if the request also has an
//! `index` action with `require_alias` on the same name. The marker is written once in the life of an index: if an
//! engine accepts it again, the index has been replaced. Any index accepts the marker, so if it is refused, no document is the cause.
//! In indices that must not contain other documents, a guard replaces the marker: an `index` action that always conflicts.

mod request;
mod response;

pub use request::{BulkLimits, BulkRequest, DocumentChange, InvalidChange, Marker, build, check, path};
pub use response::{BulkResponse, Outcome, RequestFailure, classify_failure, parse_response};

#[cfg(test)]
mod tests;
