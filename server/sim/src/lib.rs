//! Simulated member clusters, and the load that fills them: real API servers (`crowsnest-kube-apiserver`) and kubelets
//! (`crowsnest-kubelet`) with the controllers, nodes and faults of a cluster in one process. `crowsnest up`, `sim` and benchmarks start them.

pub mod error;
pub mod load;
pub mod member;

pub use error::{Error, Result};
