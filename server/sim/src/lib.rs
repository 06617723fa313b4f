//! The home setup built on `crowsnest-kube-apiserver`: the embedded control plane and simulated member clusters.

pub mod controlplane;
pub mod error;
pub mod kubelet;
pub mod load;
pub mod member;

pub use error::{Error, Result};
