//! Verification of servers, by the certificates of a CA bundle or by their handshake alone.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Verifies the signature of the handshake, and the certificate of the server if there is a bundle.
#[derive(Debug)]
struct ServerVerifier {
    /// Without a bundle, every certificate is accepted.
    bundle: Option<Bundle>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Verifies chains up to a certificate of the bundle. Like Go's verifier, and unlike that of rustls, it also accepts a server
/// whose own certificate is in the bundle, even if that certificate is marked as a CA, as `openssl req -x509` does.
/// Names, the validity period and the purpose are verified for both.
#[derive(Debug)]
struct Bundle {
    chains: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

/// Creates the verifier that accepts every server, for `insecureSkipTLSVerify`.
pub(super) fn insecure_verifier(provider: &CryptoProvider) -> Arc<dyn ServerCertVerifier> {
    Arc::new(ServerVerifier { bundle: None, algorithms: provider.signature_verification_algorithms })
}

/// Creates the verifier for a bundle. Certificates that cannot be parsed are skipped.
///
/// # Errors
///
/// Fails if no certificate can be parsed.
pub fn bundle_verifier(
    bundle: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let algorithms = provider.signature_verification_algorithms;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(bundle.iter().cloned());
    let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let chains = chains.map_err(|error| Error::General(format!("unable to load root certificates: {error}")))?;
    Ok(Arc::new(ServerVerifier { bundle: Some(Bundle { chains, certificates: bundle }), algorithms }))
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(bundle) = &self.bundle else { return Ok(ServerCertVerified::assertion()) };
        if !bundle.certificates.iter().any(|trusted| trusted.as_ref() == end_entity.as_ref()) {
            return bundle.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        }
        verify_validity_and_purpose(end_entity, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies that a certificate is valid now and, if it restricts its purposes, that it may be used for servers.
fn verify_validity_and_purpose(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let bad_encoding = || Error::InvalidCertificate(CertificateError::BadEncoding);
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| bad_encoding())?;
    let time = |seconds: i64| UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().unwrap_or_default()));
    let validity = parsed.validity();
    let (not_before, not_after) = (time(validity.not_before.timestamp()), time(validity.not_after.timestamp()));
    let purposes = parsed.extended_key_usage().map_err(|_| bad_encoding())?;
    let is_for_servers = purposes.is_none_or(|purposes| purposes.value.any || purposes.value.server_auth);
    let error = if now.as_secs() < not_before.as_secs() {
        CertificateError::NotValidYetContext { time: now, not_before }
    } else if now.as_secs() > not_after.as_secs() {
        CertificateError::ExpiredContext { time: now, not_after }
    } else if !is_for_servers {
        CertificateError::InvalidPurpose
    } else {
        return Ok(());
    };
    Err(Error::InvalidCertificate(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
    use rstest::rstest;
    use rustls::crypto::ring;
    use rustls::sign::{CertifiedKey, SingleCertAndKey};
    use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
    use rustls_pki_types::PrivateKeyDer;

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(ring::default_provider())
    }

    /// A self-signed certificate of a CA that is valid for `hook.svc` in 2024.
    fn params() -> CertificateParams {
        let mut params = CertificateParams::new(vec!["hook.svc".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2024, 1, 1), date_time_ymd(2025, 1, 1));
        params
    }

    fn in_year(year: i32) -> UnixTime {
        let seconds = date_time_ymd(year, 6, 1).unix_timestamp();
        UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().unwrap()))
    }

    #[rstest]
    #[case::in_the_bundle("hook.svc", 2024, None, true, None)]
    #[case::for_servers("hook.svc", 2024, Some(ExtendedKeyUsagePurpose::ServerAuth), true, None)]
    #[case::other_name("other.svc", 2024, None, true, Some("not valid for name"))]
    #[case::expired("hook.svc", 2026, None, true, Some("expired"))]
    #[case::too_early("hook.svc", 2023, None, true, Some("not valid yet"))]
    #[case::for_clients("hook.svc", 2024, Some(ExtendedKeyUsagePurpose::ClientAuth), true, Some("InvalidPurpose"))]
    #[case::not_in_the_bundle("hook.svc", 2024, None, false, Some("invalid peer certificate"))]
    fn servers_are_trusted_by_their_own_certificate(
        #[case] name: &str,
        #[case] year: i32,
        #[case] purpose: Option<ExtendedKeyUsagePurpose>,
        #[case] is_trusted: bool,
        #[case] expected_error: Option<&str>,
    ) {
        let mut params = params();
        params.extended_key_usages = purpose.into_iter().collect();
        let server_certificate = params.clone().self_signed(&KeyPair::generate().unwrap()).unwrap();
        let other_certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let trusted = if is_trusted { &server_certificate } else { &other_certificate };
        let verifier = bundle_verifier(vec![trusted.der().clone()], provider()).unwrap();
        let name = ServerName::try_from(name).unwrap();
        let verified = verifier.verify_server_cert(server_certificate.der(), &[], &name, &[], in_year(year));
        let error = verified.err().map(|error| format!("{error} {error:?}"));
        match expected_error {
            None => assert_eq!(error, None),
            Some(text) => assert!(error.as_ref().is_some_and(|error| error.contains(text)), "{error:?}"),
        }
    }

    #[test]
    fn chains_are_verified() {
        let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let authority = params().self_signed(&authority_key).unwrap();
        let issuer = rcgen::Issuer::new(params(), authority_key);
        let mut leaf = params();
        leaf.is_ca = IsCa::NoCa;
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let verifier = bundle_verifier(vec![authority.der().clone()], provider()).unwrap();
        let name = ServerName::try_from("hook.svc").unwrap();
        verifier.verify_server_cert(leaf.der(), &[], &name, &[], in_year(2024)).unwrap();
    }

    #[rstest]
    #[case::own_key(true)]
    #[case::another_key(false)]
    fn the_server_must_have_the_key_of_its_certificate(
        #[case] has_key: bool,
        #[values(false, true)] is_insecure: bool,
    ) {
        let (certificate_key, other_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut params = params();
        params.not_after = date_time_ymd(3000, 1, 1);
        let certificate = params.self_signed(&certificate_key).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(if has_key { certificate_key } else { other_key }.serialize_der()).unwrap();
        let key = CertifiedKey::new(vec![certificate.clone()], ring::sign::any_supported_type(&key).unwrap());
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let server = builder.with_no_client_auth().with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let verifier = match is_insecure {
            true => insecure_verifier(&provider()),
            false => bundle_verifier(vec![certificate], provider()).unwrap(),
        };
        let client = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        let name = ServerName::try_from("hook.svc").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        assert_eq!(handshake(&mut client, &mut server).is_ok(), has_key);
    }

    /// Exchanges messages in memory until the client has verified the server.
    fn handshake(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), Error> {
        while client.is_handshaking() {
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut sent.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut response = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut response).unwrap();
            }
            let mut unread = response.as_slice();
            while !unread.is_empty() {
                client.read_tls(&mut unread).unwrap();
                client.process_new_packets()?;
            }
        }
        Ok(())
    }
}
