//! Serving certificates of a listener: the default one, and others selected by SNI. Both can be replaced while it
//! serves; open connections keep the certificate of their handshake.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::verify_server_name;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::{ClientAuthorities, Credentials};
use crate::error::{Error, Result};

/// Serving certificates of a listener. Written by the tasks that issue or reload certificates, read by each
/// handshake.
#[derive(Debug)]
pub struct ServingCertificates {
    own: ArcSwap<CertifiedKey>,
    named: ArcSwap<Vec<Arc<CertifiedKey>>>,
}

impl ServingCertificates {
    pub fn new(own: &Credentials) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { own: ArcSwap::from_pointee(certified(own)?), named: ArcSwap::default() }))
    }

    /// Replaces the default certificate.
    pub fn replace(&self, own: &Credentials) -> Result<()> {
        self.own.store(Arc::new(certified(own)?));
        Ok(())
    }

    /// Replaces the certificates selected by SNI; the first one with a matching name is used.
    pub fn name(&self, named: &[Credentials]) -> Result<()> {
        let named = named.iter().map(|one| certified(one).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        self.named.store(Arc::new(named));
        Ok(())
    }

    fn for_name(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let named = self.named.load();
        let found = name.and_then(|name| named.iter().find(|key| covers(key, name)).cloned());
        found.unwrap_or_else(|| self.own.load_full())
    }
}

impl ResolvesServerCert for ServingCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.for_name(hello.server_name()))
    }
}

/// TLS side of a listener: the certificates it presents, and the authorities of its clients.
#[derive(Clone)]
pub struct Tls {
    pub config: Arc<rustls::ServerConfig>,
    pub clients: Arc<ClientAuthorities>,
}

impl Tls {
    pub fn new(serving: Arc<ServingCertificates>, clients: ClientAuthorities) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients.handshake())
            .with_cert_resolver(serving);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), clients: Arc::new(clients) })
    }
}

fn covers(key: &CertifiedKey, name: &str) -> bool {
    let certificate = key.end_entity_cert().ok().and_then(|der| ParsedCertificate::try_from(der).ok());
    let name = ServerName::try_from(name);
    matches!((certificate, name), (Some(certificate), Ok(name)) if verify_server_name(&certificate, &name).is_ok())
}

/// Parses a certificate chain and its key, which must match.
fn certified(credentials: &Credentials) -> Result<CertifiedKey> {
    let bad = |e: rustls_pki_types::pem::Error| Error::Key(e.to_string());
    let chain = CertificateDer::pem_slice_iter(credentials.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(bad)?;
    if chain.is_empty() {
        return Err(Error::Key("no certificate in the PEM".into()));
    }
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes()).map_err(bad)?;
    Ok(CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::Authority;

    #[test]
    fn certificates_are_selected_by_sni() {
        let authority = Authority::generate("ca").unwrap();
        let issue = |name: &str| authority.server(&[name.to_owned()]).unwrap();
        let (own, first, second) = (issue("own"), issue("a.example.com"), issue("b.example.com"));
        let serving = ServingCertificates::new(&own).unwrap();
        let shown = |name: Option<&str>| serving.for_name(name).cert[0].clone();
        let der = |of: &Credentials| CertificateDer::from_pem_slice(of.certificate.as_bytes()).unwrap();
        assert_eq!(shown(Some("a.example.com")), der(&own));
        serving.name(&[first.clone(), second.clone()]).unwrap();
        let cases = [
            (Some("a.example.com"), &first),
            (Some("b.example.com"), &second),
            (Some("c.example.com"), &own),
            (None, &own),
        ];
        for (name, expected) in cases {
            assert_eq!(shown(name), der(expected), "{name:?}");
        }
        // Invalid credentials leave the current certificates in place.
        let mixed = Credentials { key: second.key.clone(), ..first.clone() };
        let empty = Credentials { certificate: String::new(), ..first.clone() };
        for broken in [&mixed, &empty] {
            assert!(serving.name(std::slice::from_ref(broken)).is_err() && serving.replace(broken).is_err());
        }
        assert_eq!(shown(Some("a.example.com")), der(&first));
        let renewed = issue("own");
        serving.replace(&renewed).unwrap();
        assert_eq!(shown(None), der(&renewed));
    }
}
