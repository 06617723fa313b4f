//! The aggregated API server: `cluster.karmada.io` (clusters, status, proxy, attach), `search.karmada.io` (registries, cache, proxying)
//! `search.crowsnest.io` (queries, what the cache says of itself), `propagation.crowsnest.io` (explanations, plans), `metrics.k8s.io`
//! and `custom.metrics.k8s.io` (of all members). Reached through the control plane's aggregation layer, or directly with a bearer token.
//!
//! Order of a request: `edge`. Handlers take a request apart, call one function and map its result.

mod attach;
pub(crate) mod audited;
pub(crate) mod cache;
pub(crate) mod discovery;
pub(crate) mod edge;
mod explain;
pub(crate) mod fleet_status;
mod fleetwide;
mod forward;
pub(crate) mod identity;
mod index;
pub(crate) mod limits;
pub(crate) mod local;
mod metrics;
mod openapi;
pub(crate) mod reply;
mod request_context;
pub(crate) mod route;
mod search;
pub(crate) mod server;
pub(crate) mod shared;
pub(crate) mod stored;
mod table;
pub(crate) mod traced;
