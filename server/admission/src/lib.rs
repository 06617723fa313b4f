//! Admission plugins that are configured by objects: ValidatingAdmissionPolicies, MutatingAdmissionPolicies and
//! webhooks.
//!
//! An API server runs them for the kinds that it serves: `server/kube-apiserver` for the kinds in its storage,
//! `server/aggregated` for those that it stores in a control plane. [`Environment`] is the interface to the objects
//! that the plugins read. Matching, expressions and patches are pure.

pub mod environment;
pub mod policy;
pub mod webhook;

pub use environment::{Environment, ParamResource};
