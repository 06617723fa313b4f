//! Karmada's kinds as types, with their constants, derived names and CRD manifests. Independent of clients,
//! runtimes and servers.
//!
//! Modules are named after API groups. Serialization follows the Go types: fields with `omitempty` are omitted if
//! empty, all others are always written, so that stored objects stay equivalent. Decoding is lenient (a missing
//! required field is its zero value), because admission runs before schema validation and has its own messages.

pub mod aggregated_groups;
pub mod apps;
pub mod autoscaling;
pub mod certificate;
pub mod cluster;
pub mod config;
pub mod constants;
pub mod crd;
pub mod estimator;
pub mod keys;
pub mod modeling;
pub mod multicluster;
pub mod names;
pub mod networking;
mod object;
pub mod object_identity;
pub mod permanent_id;
pub mod policy;
pub mod propagation;
pub mod references;
pub mod remedy;
pub mod role;
pub mod search;
pub mod sink;
pub mod storage;
pub mod work;

pub use object::{Kind, Scope};
