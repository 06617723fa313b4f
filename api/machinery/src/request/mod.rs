//! Parsing of an HTTP request: path, query and headers.
//!
//! All servers and proxies of this project parse requests with this module. Authorization and execution therefore see
//! the same resource, and no client header is mistaken for an identity.

mod headers;
mod info;
mod line;
pub mod options;
mod path;
mod query;

pub use headers::{
    BEARER_SUBPROTOCOL, HOP_BY_HOP, TUNNEL_PROTOCOL, identity_header_value, is_identity_header, remove_hop_by_hop,
    requested_upgrade, upstream_headers,
};
pub use info::{Operation, RequestInfo, ResourcePath, UnservedReason};
pub use line::{has_valid_host, is_supported_method};
pub use path::{PathError, RequestPath, is_path_segment, path_segment};
pub use query::{Query, percent_encode, query_string};

/// Maximum size in bytes of request bodies, as in kube-apiserver.
pub const MAX_REQUEST_BODY_BYTES: usize = 3 << 20;
