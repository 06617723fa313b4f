//! Kubernetes API machinery: names and keys, selectors, quantities, requests, field errors, JSON patches, printed columns
//! and RBAC rules.
//!
//! This crate defines no API kinds, and has no client, no runtime and no server. Its functions are pure. Rules and
//! messages are those of Kubernetes' `apimachinery` and `apiserver`.

pub mod addresses;
pub mod content_negotiation;
pub mod differences;
pub mod duration;
pub mod field;
pub mod http_headers;
pub mod json_patch;
pub mod jsonpath;
pub mod list_options;
pub mod names;
pub mod nesting;
pub mod printers;
pub mod quantity;
pub mod rbac;
pub mod references;
pub mod request;
pub mod response_error;
pub mod secret_copies;
pub mod selector;
pub mod status;
pub mod taints;
pub mod unstructured;
pub mod url;
pub mod user;
pub mod webhook;
pub mod yaml;
