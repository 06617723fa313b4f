//! Kubernetes API machinery without kinds of its own: names and keys, selectors, quantities, requests, field errors, JSON
//! patches, printed columns and RBAC rules.
//!
//! Nothing here knows Karmada, a client, a runtime or a server. Everything is pure; a module names the part of
//! `k8s.io/apimachinery` or `k8s.io/apiserver` whose rules and wording it keeps.

pub mod addresses;
pub mod duration;
pub mod field;
pub mod json_patch;
pub mod jsonpath;
pub mod list_options;
pub mod names;
pub mod nesting;
pub mod printers;
pub mod quantity;
pub mod rbac;
pub mod refusal;
pub mod request;
pub mod selector;
pub mod taints;
pub mod user;
