//! Generic API server over HTTPS: credentials and impersonation, access reviews, OIDC, certificates, audit, TLS serving,
//! content negotiation, calls to other servers, and the `Status` of a failed request.
//!
//! This crate depends on no kind, storage or CRD. `server/kube-apiserver` and its crates serve Kubernetes' API with it,
//! `server/` the aggregated APIs, `server/process` and `server/agent` their own listeners.

pub mod audit;
pub mod authn;
pub mod authz;
mod buffer;
mod coalesced_writes;
pub mod dropped_requests;
pub mod error;
pub mod outbound;
mod read_ahead;
pub mod regexp;
pub mod serve;
pub mod warnings;

pub use error::{Error, Result};
