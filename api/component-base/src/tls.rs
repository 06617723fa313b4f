//! TLS of outgoing requests: trusted roots, client certificates, and error messages as in Go's HTTP client.

mod server_verifier;

use std::error::Error;
use std::sync::Arc;

use kube::client::ConfigExt;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

pub use self::server_verifier::bundle_verifier;
use self::server_verifier::insecure_verifier;

/// Files with the trusted root certificates of Linux distributions; the first that exists is read.
const SYSTEM_ROOTS: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// A client certificate with its private key, both in PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// Reasons why TLS settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// TLS settings of a `kube` client. Its server is verified in the same way as by [`client_config`].
pub fn kube_client_config(config: &kube::Config) -> Result<ClientConfig, ConfigError> {
    let mut tls = config.rustls_client_config()?;
    let bundle = config.root_cert.iter().flatten().map(|der| CertificateDer::from(der.clone()));
    let bundle: Vec<CertificateDer<'static>> = bundle.collect();
    // With `root_cert_file`, kube installs a verifier that rereads the file when it changes.
    if !bundle.is_empty() && !config.accept_invalid_certs && config.root_cert_file.is_none() {
        let verifier = bundle_verifier(bundle, Arc::clone(tls.crypto_provider()))?;
        tls.dangerous().set_certificate_verifier(verifier);
    }
    Ok(tls)
}

/// TLS settings of a client. `ca_bundle` is in PEM; if it is empty, the root certificates of the system are
/// trusted. With `insecure`, the server is not verified.
pub fn client_config(
    ca_bundle: &[u8],
    insecure: bool,
    identity: Option<&Identity>,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match (insecure, ca_bundle.is_empty()) {
        (true, _) => builder.dangerous().with_custom_certificate_verifier(insecure_verifier(&provider)),
        (false, true) => builder.with_root_certificates(system_roots()),
        (false, false) => builder
            .dangerous()
            .with_custom_certificate_verifier(bundle_verifier(parse_ca_bundle(ca_bundle)?, provider)?),
    };
    match identity {
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(&identity.certificate)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| rustls::Error::General(format!("client certificate: {e}")))?;
            let key = PrivateKeyDer::from_pem_slice(&identity.key)
                .map_err(|e| rustls::Error::General(format!("client key: {e}")))?;
            builder.with_client_auth_cert(chain, key)
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

fn system_roots() -> RootCertStore {
    let pem = SYSTEM_ROOTS.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_default();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    store
}

fn parse_ca_bundle(ca_bundle: &[u8]) -> Result<Vec<CertificateDer<'static>>, rustls::Error> {
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(ca_bundle).filter_map(Result::ok).collect();
    match certificates.is_empty() {
        true => {
            Err(rustls::Error::General("unable to load root certificates: unable to parse bytes as PEM block".into()))
        }
        false => Ok(certificates),
    }
}

/// Describes the root cause of a failed request to `address` with the messages of Go's HTTP client, which operators
/// search for.
pub fn describe_error(error: &(dyn Error + 'static), address: &str) -> String {
    let mut last = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            match io.kind() {
                std::io::ErrorKind::ConnectionRefused => {
                    return format!("dial tcp {address}: connect: connection refused");
                }
                std::io::ErrorKind::TimedOut => return format!("dial tcp {address}: i/o timeout"),
                std::io::ErrorKind::ConnectionReset => return "read: connection reset by peer".to_owned(),
                std::io::ErrorKind::UnexpectedEof => return "EOF".to_owned(),
                _ => {}
            }
        }
        if let Some(rustls::Error::InvalidCertificate(error)) = tls_error(cause) {
            return format!("tls: failed to verify certificate: x509: {}", describe_certificate_error(error));
        }
        last = cause.to_string();
        next = cause.source();
    }
    last
}

/// The TLS error that a connection's error is or wraps, at any depth.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return Some(tls);
    }
    error.downcast_ref::<std::io::Error>()?.get_ref().and_then(|wrapped| tls_error(wrapped))
}

fn describe_certificate_error(error: &rustls::CertificateError) -> String {
    match error {
        rustls::CertificateError::UnknownIssuer => "certificate signed by unknown authority".into(),
        rustls::CertificateError::Expired
        | rustls::CertificateError::ExpiredContext { .. }
        | rustls::CertificateError::NotValidYet
        | rustls::CertificateError::NotValidYetContext { .. } => "certificate has expired or is not yet valid".into(),
        rustls::CertificateError::NotValidForNameContext { expected, presented } => {
            describe_name_mismatch(&expected.to_str(), matches!(expected, ServerName::IpAddress(_)), presented)
        }
        other => other.to_string(),
    }
}

/// Describes a certificate that is not valid for the expected name. rustls formats the names of the certificate as
/// `DnsName("a")` and `IpAddress(127.0.0.1)`.
fn describe_name_mismatch(expected: &str, is_address: bool, presented: &[String]) -> String {
    let kind = if is_address { "IpAddress(" } else { "DnsName(" };
    let names = presented.iter().filter_map(|name| name.strip_prefix(kind)?.strip_suffix(')'));
    let names: Vec<&str> = names.map(|name| name.trim_matches('"')).collect();
    match (names.is_empty(), is_address) {
        (false, _) => format!("certificate is valid for {}, not {expected}", names.join(", ")),
        (true, true) => {
            format!("cannot validate certificate for {expected} because it doesn't contain any IP SANs")
        }
        (true, false) => format!("certificate is not valid for any names, but wanted to match {expected}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_errors_match_go() {
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = std::io::Error::other(std::io::Error::new(std::io::ErrorKind::InvalidData, unknown));
        assert!(matches!(tls_error(&wrapped), Some(rustls::Error::InvalidCertificate(_))));
        let presented = ["DnsName(\"a.svc\")", "DnsName(\"b.svc\")", "IpAddress(10.0.0.1)"].map(str::to_owned);
        for (expected, is_address, presented, text) in [
            ("c.svc", false, &presented[..], "certificate is valid for a.svc, b.svc, not c.svc"),
            ("10.0.0.2", true, &presented[..], "certificate is valid for 10.0.0.1, not 10.0.0.2"),
            (
                "10.0.0.2",
                true,
                &presented[..1],
                "cannot validate certificate for 10.0.0.2 because it doesn't contain any IP SANs",
            ),
            ("c.svc", false, &[], "certificate is not valid for any names, but wanted to match c.svc"),
        ] {
            assert_eq!(describe_name_mismatch(expected, is_address, presented), text);
        }
    }
}
