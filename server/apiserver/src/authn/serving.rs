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
    default: ArcSwap<CertifiedKey>,
    /// Certificates that are selected by SNI.
    by_name: ArcSwap<Vec<Arc<CertifiedKey>>>,
}

impl ServingCertificates {
    pub fn new(default: &Credentials) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            default: ArcSwap::from_pointee(parse_certified_key(default)?),
            by_name: ArcSwap::default(),
        }))
    }

    /// Replaces the default certificate.
    pub fn replace_default(&self, default: &Credentials) -> Result<()> {
        self.default.store(Arc::new(parse_certified_key(default)?));
        Ok(())
    }

    /// Replaces the certificates selected by SNI; the first one with a matching name is used.
    pub fn replace_by_name(&self, credentials: &[Credentials]) -> Result<()> {
        let keys =
            credentials.iter().map(|pair| parse_certified_key(pair).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        self.by_name.store(Arc::new(keys));
        Ok(())
    }

    fn select(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let by_name = self.by_name.load();
        let found = name.and_then(|name| by_name.iter().find(|key| is_valid_for(key, name)).cloned());
        found.unwrap_or_else(|| self.default.load_full())
    }
}

impl ResolvesServerCert for ServingCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.select(hello.server_name()))
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

fn is_valid_for(key: &CertifiedKey, name: &str) -> bool {
    let certificate = key.end_entity_cert().ok().and_then(|der| ParsedCertificate::try_from(der).ok());
    let name = ServerName::try_from(name);
    matches!((certificate, name), (Some(certificate), Ok(name)) if verify_server_name(&certificate, &name).is_ok())
}

/// Parses a certificate chain and its key, which must match.
fn parse_certified_key(credentials: &Credentials) -> Result<CertifiedKey> {
    let key_error = |e: rustls_pki_types::pem::Error| Error::Key(e.to_string());
    let chain = CertificateDer::pem_slice_iter(credentials.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(key_error)?;
    if chain.is_empty() {
        return Err(Error::Key("no certificate in the PEM".into()));
    }
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes()).map_err(key_error)?;
    Ok(CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::Authority;

    #[test]
    fn certificates_are_selected_by_sni() {
        let authority = Authority::generate("ca").unwrap();
        let issue = |name: &str| authority.issue_serving_certificate(&[name.to_owned()]).unwrap();
        let (default_credentials, first, second) = (issue("default"), issue("a.example.com"), issue("b.example.com"));
        let serving = ServingCertificates::new(&default_credentials).unwrap();
        let presented = |name: Option<&str>| serving.select(name).cert[0].clone();
        let der =
            |credentials: &Credentials| CertificateDer::from_pem_slice(credentials.certificate.as_bytes()).unwrap();
        assert_eq!(presented(Some("a.example.com")), der(&default_credentials));
        serving.replace_by_name(&[first.clone(), second.clone()]).unwrap();
        let cases = [
            (Some("a.example.com"), &first),
            (Some("b.example.com"), &second),
            (Some("c.example.com"), &default_credentials),
            (None, &default_credentials),
        ];
        for (name, expected) in cases {
            assert_eq!(presented(name), der(expected), "{name:?}");
        }
        // Invalid credentials leave the current certificates in place.
        let mixed = Credentials { key: second.key.clone(), ..first.clone() };
        let empty = Credentials { certificate: String::new(), ..first.clone() };
        for broken in [&mixed, &empty] {
            assert!(
                serving.replace_by_name(std::slice::from_ref(broken)).is_err()
                    && serving.replace_default(broken).is_err()
            );
        }
        assert_eq!(presented(Some("a.example.com")), der(&first));
        let renewed = issue("own");
        serving.replace_default(&renewed).unwrap();
        assert_eq!(presented(None), der(&renewed));
    }
}
