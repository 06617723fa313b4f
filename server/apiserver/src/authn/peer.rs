//! Client of a TLS connection: a front proxy that forwards identities, a user with a client certificate, or an
//! unauthenticated client. Evaluated once per connection.
//!
//! As in kube-apiserver, the handshake accepts any certificate and only proves that the client has its key. The
//! certificate is verified afterwards: if no authority has issued it, the request is answered with 401 unless it has
//! another valid credential.

use std::sync::Arc;

use crowsnest_apimachinery::user::UserInfo;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use super::certificate::{read_subject, read_user};

/// Identity that a connection authenticates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// True if the certificate belongs to a front proxy, so `X-Remote-*` headers are trusted.
    pub is_front_proxy: bool,
    pub certificate: PeerCertificate,
}

/// Result of verifying a client certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PeerCertificate {
    /// There is no certificate, or it has no common name.
    #[default]
    Anonymous,
    User(UserInfo),
    /// The users' authority has not issued the certificate, or its subject is invalid.
    Rejected(String),
}

/// Reason why certificate authorities cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot use the certificate of {0}")]
    Certificate(&'static str, #[source] rustls::Error),
    #[error("no certificate in the PEM of {0}")]
    Pem(&'static str),
    #[error("cannot use the client certificate authority")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Certificate authorities of front proxies and of users. No certificate of the users' authority authenticates a front
/// proxy.
#[derive(Clone, Debug)]
pub struct ClientAuthorities {
    front_proxies: Option<Arc<dyn ClientCertVerifier>>,
    /// Common names that front proxies may have; empty allows any name.
    allowed_names: Vec<String>,
    users: Option<Arc<dyn ClientCertVerifier>>,
    handshake: Arc<dyn ClientCertVerifier>,
}

impl ClientAuthorities {
    /// Creates the verifiers from both authorities in PEM. An empty `allowed_names` allows any name.
    pub fn new(
        front_proxies: Option<&str>,
        allowed_names: Vec<String>,
        users: Option<&str>,
    ) -> Result<Self, AuthorityError> {
        let mut all_roots = RootCertStore::empty();
        let mut verifier = |pem: Option<&str>, authority_name: &'static str| match pem {
            None => Ok(None),
            Some(pem) => {
                let roots = parse_roots(pem, authority_name)?;
                all_roots.roots.extend(roots.roots.iter().cloned());
                build_verifier(roots).map(Some)
            }
        };
        let front_proxies = verifier(front_proxies, "the front proxy's authority")?;
        let users = verifier(users, "the users' authority")?;
        let handshake = Arc::new(AnyCertificate(build_verifier(all_roots)?));
        Ok(Self { front_proxies, allowed_names, users, handshake })
    }

    /// Certificate verifier for the handshake.
    pub fn handshake(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.handshake)
    }

    /// Verifies the certificate chain that a client has presented.
    pub fn verify_chain(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Peer {
        let Some((end_entity, intermediates)) = chain.split_first() else { return Peer::default() };
        let verify = |verifier: &Option<Arc<dyn ClientCertVerifier>>| match verifier {
            Some(verifier) => {
                verifier.verify_client_cert(end_entity, intermediates, now).map(drop).map_err(|e| e.to_string())
            }
            None => Err("certificates of users are not accepted".to_owned()),
        };
        let is_front_proxy = verify(&self.front_proxies).is_ok() && self.has_allowed_name(end_entity);
        let certificate = match verify(&self.users).map(|()| read_user(end_entity)) {
            Ok(Ok(Some(user))) => PeerCertificate::User(user),
            Ok(Ok(None)) => PeerCertificate::Anonymous,
            Ok(Err(error)) => PeerCertificate::Rejected(error.to_string()),
            Err(error) => PeerCertificate::Rejected(error),
        };
        Peer { is_front_proxy, certificate }
    }

    fn has_allowed_name(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok(subject) = read_subject(certificate) else { return false };
        let is_allowed = |name: &str| self.allowed_names.iter().any(|allowed| allowed == name);
        self.allowed_names.is_empty() || subject.common_name().is_some_and(is_allowed)
    }
}

/// Parses the certificates of an authority from PEM; `authority_name` is its name in errors.
pub fn parse_roots(pem: &str, authority_name: &'static str) -> Result<RootCertStore, AuthorityError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok) {
        roots.add(certificate).map_err(|error| AuthorityError::Certificate(authority_name, error))?;
    }
    if roots.is_empty() { Err(AuthorityError::Pem(authority_name)) } else { Ok(roots) }
}

fn build_verifier(roots: RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, AuthorityError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    Ok(builder.allow_unauthenticated().build()?)
}

/// Handshake verifier that accepts any certificate if the client has its key; announces the subjects of the trusted
/// authorities.
#[derive(Debug)]
struct AnyCertificate(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
    };
    use rstest::rstest;

    type Ca = Issuer<'static, KeyPair>;

    /// Certificate of an authority as PEM, and its signing key.
    fn authority(name: &str) -> (String, Ca) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        (pem, Issuer::new(params, key))
    }

    /// Client certificate with this subject.
    fn issue_certificate(
        ca: &Ca,
        subject: &[(DnType, &str)],
        usage: ExtendedKeyUsagePurpose,
        until: i32,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.extended_key_usages = vec![usage];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.signed_by(&KeyPair::generate().unwrap(), ca).unwrap().der().clone()
    }

    #[derive(Debug, Clone, Copy)]
    enum IssuedBy {
        FrontProxies,
        Users,
        UnknownAuthority,
    }

    const CN: DnType = DnType::CommonName;
    const O: DnType = DnType::OrganizationName;

    fn uid() -> DnType {
        DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2])
    }

    #[rstest]
    #[case::proxy(IssuedBy::FrontProxies, &[(CN, "front")], 2100, (true, "rejected"))]
    #[case::another_name(IssuedBy::FrontProxies, &[(CN, "other")], 2100, (false, "rejected"))]
    #[case::user(IssuedBy::Users, &[(CN, "alice"), (O, "dev")], 2100, (false, "alice dev "))]
    #[case::user_named_like_the_proxy(IssuedBy::Users, &[(CN, "front")], 2100, (false, "front  "))]
    #[case::uid(IssuedBy::Users, &[(CN, "alice"), (uid(), "u-1")], 2100, (false, "alice  u-1"))]
    #[case::no_common_name(IssuedBy::Users, &[(O, "dev")], 2100, (false, "none"))]
    #[case::expired(IssuedBy::Users, &[(CN, "alice")], 2021, (false, "rejected"))]
    #[case::unknown_authority(IssuedBy::UnknownAuthority, &[(CN, "alice"), (O, "system:masters")], 2100, (false, "rejected"))]
    fn client_certificates_are_verified(
        #[case] issued_by: IssuedBy,
        #[case] subject: &[(DnType, &str)],
        #[case] until: i32,
        #[case] expected: (bool, &str),
    ) {
        let [proxies, users, strangers] = ["proxies", "users", "strangers"].map(authority);
        let ca = match issued_by {
            IssuedBy::FrontProxies => &proxies.1,
            IssuedBy::Users => &users.1,
            IssuedBy::UnknownAuthority => &strangers.1,
        };
        let certificate = issue_certificate(ca, subject, ExtendedKeyUsagePurpose::ClientAuth, until);
        let authorities = ClientAuthorities::new(Some(&proxies.0), vec!["front".into()], Some(&users.0)).unwrap();
        let peer = authorities.verify_chain(&[certificate], UnixTime::now());
        let identity = match peer.certificate {
            PeerCertificate::Anonymous => "none".to_owned(),
            PeerCertificate::User(user) => format!("{} {} {}", user.name, user.groups.join(","), user.uid),
            PeerCertificate::Rejected(_) => "rejected".to_owned(),
        };
        assert_eq!((peer.is_front_proxy, identity.as_str()), expected);
    }

    #[test]
    fn serving_certificates_are_refused() {
        let users = authority("users");
        let certificate = issue_certificate(&users.1, &[(CN, "alice")], ExtendedKeyUsagePurpose::ServerAuth, 2100);
        let authorities = ClientAuthorities::new(None, Vec::new(), Some(&users.0)).unwrap();
        let peer = authorities.verify_chain(&[certificate], UnixTime::now());
        assert!(matches!(peer.certificate, PeerCertificate::Rejected(_)), "{peer:?}");
        assert_eq!(authorities.verify_chain(&[], UnixTime::now()).certificate, PeerCertificate::Anonymous);
    }
}
