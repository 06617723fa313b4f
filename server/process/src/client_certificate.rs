//! The client of a connection, as handlers receive it: its address and its verified certificate.

use std::net::IpAddr;

use crowsnest_apiserver::authn::{self, PeerCertificate};

pub use crowsnest_apiserver::authn::peer::parse_roots;
pub use crowsnest_apiserver::authn::{ClientAuthorities as Authorities, PeerCertificate as Certificate};

/// The client of a connection.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    pub address: Option<IpAddr>,
    /// True if the certificate is a front proxy's, so that its `X-Remote-*` headers are trusted.
    pub is_front_proxy: bool,
    pub certificate: PeerCertificate,
}

impl Peer {
    /// The client at this address with the result of its authentication.
    pub fn new(address: Option<IpAddr>, peer: authn::Peer) -> Self {
        let authn::Peer { is_front_proxy, certificate } = peer;
        Self { address, is_front_proxy, certificate }
    }
}
