//! crowsnest-embedded
pub mod kubelet;
