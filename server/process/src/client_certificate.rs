//! Client of a TLS connection for handlers: its address and its verified certificate.

use std::net::IpAddr;

use crowsnest_apiserver::authn::{self, PeerCertificate};

pub use crowsnest_apiserver::authn::peer::roots;
pub use crowsnest_apiserver::authn::{ClientAuthorities as Authorities, PeerCertificate as Certificate};

/// The other end of a connection.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    pub address: Option<IpAddr>,
    /// Its certificate is one of the front proxy's, so its `X-Remote-*` headers may be believed.
    pub front_proxy: bool,
    pub certificate: PeerCertificate,
}

impl Peer {
    /// Result of authenticating a client at this address.
    pub fn new(address: Option<IpAddr>, judged: authn::Peer) -> Self {
        let authn::Peer { front_proxy, certificate } = judged;
        Self { address, front_proxy, certificate }
    }
}
