//! The aggregated API server: `cluster.karmada.io` (clusters, status, proxy, attach), `search.karmada.io` (registries, cache, proxying),
//! `search.crowsnest.io` (queries, state of the cache), `propagation.crowsnest.io` (explanations, plans),
//! `access.crowsnest.io` (access reviews), `metrics.k8s.io` and `custom.metrics.k8s.io` (of all members). Reached through the control plane's aggregation layer, or directly with a bearer token.
//!
//! Order of a request: `request::middleware`. What is served: `resource::registry`.

mod access_crowsnest_io;
pub mod admission;
mod cluster_karmada_io;
mod custom_metrics_k8s_io;
mod forwarding;
pub mod in_process;
mod metrics_k8s_io;
mod propagation_crowsnest_io;
pub mod request;
pub mod resource;
pub mod search_crowsnest_io;
mod search_karmada_io;
pub mod server;
pub mod stored;
