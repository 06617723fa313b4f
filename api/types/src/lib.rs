//! Karmada's kinds as types, their constants, derived names and CRD manifests. Nothing here knows a client, a runtime or a
//! server.
//!
//! A module is named after the API group it holds. Fields serialise as the group's Go types do: what Go marks
//! `omitempty` disappears when empty, what Go always writes is always written, so stored objects stay byte-compatible
//! in meaning. Decoding is lenient (a missing required field is its zero value), because admission runs before the
//! schema is checked and has to answer with its own words.

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
pub mod remedy;
pub mod role;
pub mod search;
pub mod storage;
pub mod work;

pub use object::{Kind, Scope};
