//! Authentication: client certificates and their authorities, ID tokens, signed tokens, front-proxy headers,
//! impersonation, TLS serving.
//!
//! Decisions depend on the request, its connection and the configuration only; no stored object is read.

pub mod authority;
pub mod bearer;
pub mod certificate;
pub mod impersonation;
pub mod oidc;
pub mod peer;
pub mod request_header;
mod rsa;
pub mod serving;
mod sign;
pub mod token;

use crowsnest_apimachinery::user::UserInfo;

pub use authority::{Authority, Credentials, renew};
pub use crowsnest_api::certificate::{FRONT_PROXY, SigningRequest};
pub use oidc::Oidc;
pub use peer::{ClientAuthorities, Peer, PeerCertificate};
pub use serving::{ServingCertificates, Tls};
pub use token::{Algorithm, TokenSigner};

/// User of an in-process client. A request extension, which requests from the network cannot set.
#[derive(Debug, Clone)]
pub struct InProcessUser(pub UserInfo);
