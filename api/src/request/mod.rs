//! What an HTTP request says, read once: its path, its query and its headers.
//!
//! Every server and proxy of this project reads requests through this module, so that whoever authorizes a request and
//! whoever carries it out see the same resource, and no header of a client is mistaken for an identity.

mod headers;
mod info;
mod line;
mod path;
mod query;

pub use headers::{
    BEARER_SUBPROTOCOL, HOP_BY_HOP, TUNNEL_PROTOCOL, identity_value, is_identity_header, remove_hop_by_hop,
    requested_upgrade, upstream_headers,
};
pub use info::{RequestInfo, ResourcePath, verb};
pub use line::{has_valid_host, is_known_method};
pub use path::{PathError, RequestPath};
pub use query::Query;
