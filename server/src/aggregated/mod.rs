//! The aggregated API server: `cluster.karmada.io` (clusters, status, proxy), `search.karmada.io` (registries, cache, proxying)
//! and `search.crowsnest.io` (queries, what the cache says of itself). Reached through the control plane's aggregation layer, or directly with a bearer token.
//!
//! Order of a request, outermost first: panic → authenticate → authorise → route. Handlers take a request apart, call one function
//! and map its result.

mod cache;
pub(crate) mod discovery;
pub(crate) mod fleet_status;
mod fleetwide;
mod forward;
pub(crate) mod identity;
mod openapi;
pub(crate) mod reply;
mod route;
mod search;
pub(crate) mod server;
pub(crate) mod shared;
pub(crate) mod stored;
mod table;
