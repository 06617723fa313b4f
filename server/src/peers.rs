//! Who is at the other end of a TLS connection: a front proxy that speaks for others, a user with a client certificate, or
//! nobody in particular. Judged once per connection; handlers get a [`Peer`].
//!
//! As kube-apiserver does it, any certificate is let through the handshake, which proves that its key is there, and judged
//! afterwards: one that nobody vouches for is answered 401, unless the request proves itself otherwise.

use std::net::IpAddr;
use std::sync::Arc;

use crowsnest_api::user::UserInfo;
use crowsnest_apiserver::authn::PeerCertificate;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use crate::serving::{ServingError, certificates};

/// The other end of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    pub(crate) address: Option<IpAddr>,
    /// Its certificate is one of the front proxy's, so its `X-Remote-*` headers may be believed.
    pub(crate) front_proxy: bool,
    pub(crate) certificate: Certificate,
}

/// What a client certificate says of its bearer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Certificate {
    /// There is none, or it names nobody.
    #[default]
    Nobody,
    User(UserInfo),
    /// Nobody vouches for it.
    NoGood(String),
}

/// Who signs certificates of front proxies and of users.
#[derive(Clone, Debug)]
pub(crate) struct Authorities {
    front_proxies: Option<Arc<dyn ClientCertVerifier>>,
    /// Names that count among front proxies; none is any.
    allowed_names: Vec<String>,
    users: Option<Arc<dyn ClientCertVerifier>>,
    handshake: Arc<dyn ClientCertVerifier>,
}

impl Authorities {
    /// Both as PEM. `allowed_names` empty means any name.
    pub(crate) fn new(
        front_proxies: Option<&str>,
        allowed_names: Vec<String>,
        users: Option<&str>,
    ) -> Result<Self, ServingError> {
        let mut all = RootCertStore::empty();
        let mut verifier = |pem: Option<&str>, whose: &'static str| match pem {
            None => Ok(None),
            Some(pem) => {
                let own = roots(pem, whose)?;
                all.roots.extend(own.roots.iter().cloned());
                verifier_of(own).map(Some)
            }
        };
        let front_proxies = verifier(front_proxies, "the front proxy's authority")?;
        let users = verifier(users, "the users' authority")?;
        let handshake = Arc::new(AnyCertificate(verifier_of(all)?));
        Ok(Self { front_proxies, allowed_names, users, handshake })
    }

    /// What the handshake asks of a client.
    pub(crate) fn handshake(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.handshake)
    }

    /// Judges what a client has shown.
    pub(crate) fn judge(&self, address: Option<IpAddr>, chain: &[CertificateDer<'_>], now: UnixTime) -> Peer {
        let Some((end, rest)) = chain.split_first() else { return Peer { address, ..Peer::default() } };
        let verified = |by: &Option<Arc<dyn ClientCertVerifier>>| match by {
            Some(verifier) => verifier.verify_client_cert(end, rest, now).map(drop).map_err(|e| e.to_string()),
            None => Err("certificates of users are not accepted".to_owned()),
        };
        let allowed =
            || self.allowed_names.is_empty() || common_name(end).is_some_and(|name| self.allowed_names.contains(&name));
        let front_proxy = verified(&self.front_proxies).is_ok() && allowed();
        let certificate = match verified(&self.users) {
            Ok(()) => match PeerCertificate::read(end) {
                Some(certificate) => Certificate::User(certificate.user()),
                None => Certificate::Nobody,
            },
            Err(why) => Certificate::NoGood(why),
        };
        Peer { address, front_proxy, certificate }
    }
}

pub(crate) fn roots(pem: &str, whose: &'static str) -> Result<RootCertStore, ServingError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, whose)? {
        roots.add(certificate).map_err(|e| ServingError::Certificate(whose, e))?;
    }
    Ok(roots)
}

fn verifier_of(roots: RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, ServingError> {
    let builder = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated();
    builder.build().map_err(ServingError::ClientCa)
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate.as_ref()).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some(name)
}

/// Takes any certificate whose key is there; hints at the authorities that count.
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
        _end: &CertificateDer<'_>,
        _rest: &[CertificateDer<'_>],
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

    /// Its certificate as PEM, and what signs with it.
    fn authority(name: &str) -> (String, Ca) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        (pem, Issuer::new(params, key))
    }

    /// A certificate with this subject, as Kubernetes reads it.
    fn signed(
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
    enum By {
        FrontProxies,
        Users,
        Strangers,
    }

    const CN: DnType = DnType::CommonName;
    const O: DnType = DnType::OrganizationName;

    fn uid() -> DnType {
        DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2])
    }

    #[rstest]
    #[case::proxy(By::FrontProxies, &[(CN, "front")], 2100, (true, "no good"))]
    #[case::another_name(By::FrontProxies, &[(CN, "other")], 2100, (false, "no good"))]
    #[case::user(By::Users, &[(CN, "alice"), (O, "dev")], 2100, (false, "alice dev "))]
    #[case::user_named_like_the_proxy(By::Users, &[(CN, "front")], 2100, (false, "front  "))]
    #[case::uid(By::Users, &[(CN, "alice"), (uid(), "u-1")], 2100, (false, "alice  u-1"))]
    #[case::nobody(By::Users, &[(O, "dev")], 2100, (false, "nobody"))]
    #[case::expired(By::Users, &[(CN, "alice")], 2021, (false, "no good"))]
    #[case::stranger(By::Strangers, &[(CN, "alice"), (O, "system:masters")], 2100, (false, "no good"))]
    fn certificates_are_judged(
        #[case] by: By,
        #[case] subject: &[(DnType, &str)],
        #[case] until: i32,
        #[case] expected: (bool, &str),
    ) {
        let [proxies, users, strangers] = ["proxies", "users", "strangers"].map(authority);
        let ca = match by {
            By::FrontProxies => &proxies.1,
            By::Users => &users.1,
            By::Strangers => &strangers.1,
        };
        let shown = signed(ca, subject, ExtendedKeyUsagePurpose::ClientAuth, until);
        let authorities = Authorities::new(Some(&proxies.0), vec!["front".into()], Some(&users.0)).unwrap();
        let peer = authorities.judge(None, &[shown], UnixTime::now());
        let bearer = match peer.certificate {
            Certificate::Nobody => "nobody".to_owned(),
            Certificate::User(user) => format!("{} {} {}", user.name, user.groups.join(","), user.uid),
            Certificate::NoGood(_) => "no good".to_owned(),
        };
        assert_eq!((peer.front_proxy, bearer.as_str()), expected);
    }

    #[test]
    fn certificates_of_servers_are_no_good() {
        let users = authority("users");
        let shown = signed(&users.1, &[(CN, "alice")], ExtendedKeyUsagePurpose::ServerAuth, 2100);
        let authorities = Authorities::new(None, Vec::new(), Some(&users.0)).unwrap();
        let peer = authorities.judge(None, &[shown], UnixTime::now());
        assert!(matches!(peer.certificate, Certificate::NoGood(_)), "{peer:?}");
        assert_eq!(authorities.judge(None, &[], UnixTime::now()).certificate, Certificate::Nobody);
    }
}
