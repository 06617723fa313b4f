//! The words of Crowsnest: Karmada-compatible kinds, names and keys as types, quantities, selectors, constants and the
//! CRD manifests. Every other crate speaks these words; nothing here knows a client, a runtime or a server.
//!
//! A module is named after the API group it holds. Fields serialise as the group's Go types do: what Go marks
//! `omitempty` disappears when empty, what Go always writes is always written, so stored objects stay byte-compatible
//! in meaning. Decoding is lenient (a missing required field is its zero value), because admission runs before the
//! schema is checked and has to answer with its own words.

pub mod addresses;
pub mod apps;
pub mod autoscaling;
pub mod certificate;
pub mod cluster;
pub mod config;
pub mod constants;
pub mod crd;
pub mod duration;
pub mod estimator;
pub mod field;
pub mod json_patch;
pub mod jsonpath;
pub mod list_options;
pub mod modeling;
pub mod multicluster;
pub mod names;
pub mod nesting;
pub mod networking;
mod object;
pub mod policy;
pub mod print;
pub mod quantity;
pub mod rbac;
pub mod refusal;
pub mod remedy;
pub mod request;
pub mod search;
pub mod selector;
pub mod storage;
pub mod taints;
pub mod user;
pub mod work;

pub use object::{Kind, Scope};
