//! Simulated member clusters and synthetic load: real API servers (`crowsnest-kube-apiserver`) and kubelets
//! (`crowsnest-kubelet`) with controllers, nodes and faults in one process. Used by `crowsnest up`, `sim` and
//! benchmarks.

pub mod error;
pub mod load;
pub mod member;

pub use error::{Error, Result};
