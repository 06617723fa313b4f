//! Client of a TLS connection for handlers: its address and its verified certificate.

use std::net::IpAddr;

use crowsnest_apiserver::authn::{self, PeerCertificate};

pub(crate) use crowsnest_apiserver::authn::peer::roots;
pub(crate) use crowsnest_apiserver::authn::{ClientAuthorities as Authorities, PeerCertificate as Certificate};

/// The other end of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    pub(crate) address: Option<IpAddr>,
    /// Its certificate is one of the front proxy's, so its `X-Remote-*` headers may be believed.
    pub(crate) front_proxy: bool,
    pub(crate) certificate: PeerCertificate,
}

impl Peer {
    /// Result of authenticating a client at this address.
    pub(crate) fn new(address: Option<IpAddr>, judged: authn::Peer) -> Self {
        let authn::Peer { front_proxy, certificate } = judged;
        Self { address, front_proxy, certificate }
    }
}
