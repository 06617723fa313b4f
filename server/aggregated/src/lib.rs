//! The aggregated API server. Clients reach it through the control plane's aggregation layer, or directly with a bearer
//! token. It serves these groups:
//!
//! - `cluster.karmada.io`: clusters, status, proxy and attach
//! - `search.karmada.io`: registries, cache and proxying
//! - `search.crowsnest.io`: queries and the state of the cache
//! - `propagation.crowsnest.io`: explanations and plans
//! - `access.crowsnest.io`: access reviews
//! - `metrics.k8s.io` and `custom.metrics.k8s.io`: metrics of all members
//!
//! See `request::middleware` for the order in which a request is processed, and `resource::registry` for the resources.

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
