//! The approver, the signer and the authenticator read the same identity from a subject, or all of them reject it.
//!
//! Subjects are encoded by hand: several common names, multi-valued relative names, all string types, unknown
//! attributes, damaged bytes. The authenticator also gets a certificate with the requested subject copied unchanged, as
//! kube-controller-manager issues it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_api::certificate::{AGENT_ORGANIZATION, FRONT_PROXY, SigningRequest};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::authn::{Authority, ClientAuthorities, PeerCertificate};
use crowsnest_plan::certificates::permissions;
use proptest::prelude::*;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use serde_json::json;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTF8: u8 = 0x0c;
const BMP: u8 = 0x1e;
const UNIVERSAL: u8 = 0x1c;
const ECDSA_WITH_SHA256: &[u8] = &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const AGENT: &str = "system:karmada:agent:x";

fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match length {
        0..0x80 => vec![tag, length as u8],
        0x80..0x100 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head.as_slice(), content].concat()
}

fn sign(content: &[u8], key: &KeyPair) -> Vec<u8> {
    let signature = [&[0], key.sign(content).expect("a signature").as_slice()].concat();
    der(SEQUENCE, &[content, ECDSA_WITH_SHA256, &der(0x03, &signature)].concat())
}

fn pem(label: &str, der: &[u8]) -> String {
    let body: Vec<String> =
        STANDARD.encode(der).as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", body.join("\n"))
}

/// Certificate signing request for this subject.
fn certificate_request(subject: &[u8], key: &KeyPair) -> String {
    let public = key.subject_public_key_info();
    let info = der(SEQUENCE, &[&[0x02, 0x01, 0x00], subject, public.as_slice(), &[0xa0, 0x00]].concat());
    pem("CERTIFICATE REQUEST", &sign(&info, key))
}

/// Certificate with this subject copied unchanged.
fn certificate_with_subject(subject: &[u8], key: &KeyPair, ca: &Ca) -> CertificateDer<'static> {
    let time = |text: &str| der(0x17, text.as_bytes());
    let client_auth = [0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
    let usage =
        der(SEQUENCE, &[&[0x06, 0x03, 0x55, 0x1d, 0x25][..], &der(0x04, &der(SEQUENCE, &client_auth))].concat());
    let to_be_signed = [
        &der(0xa0, &[0x02, 0x01, 0x02])[..],
        &[0x02, 0x01, 0x07],
        ECDSA_WITH_SHA256,
        &ca.subject,
        &der(SEQUENCE, &[time("200101000000Z"), time("491231000000Z")].concat()),
        subject,
        &key.subject_public_key_info(),
        &der(0xa3, &der(SEQUENCE, &usage)),
    ];
    sign(&der(SEQUENCE, &to_be_signed.concat()), &ca.key).into()
}

/// The users' authority: as the server's signer, and as a signer that copies subjects.
struct Ca {
    authority: Authority,
    key: KeyPair,
    subject: Vec<u8>,
    clients: ClientAuthorities,
}

impl Ca {
    fn new() -> Self {
        let authority = Authority::generate("users").expect("an authority");
        let key = KeyPair::from_pem(&authority.credentials().key).expect("a key");
        let name = [der(0x06, &[0x55, 4, 3]), der(UTF8, b"users")].concat();
        let subject = der(SEQUENCE, &der(SET, &der(SEQUENCE, &name)));
        let front_proxy_authority = Authority::generate("front-proxy-ca").expect("an authority");
        let allowed = vec![FRONT_PROXY.to_owned()];
        let clients =
            ClientAuthorities::new(Some(front_proxy_authority.certificate()), allowed, Some(authority.certificate()));
        Self { authority, key, subject, clients: clients.expect("authorities") }
    }

    /// The identity that the authenticator finds: a user, no user (`None`), or an error. Never a front proxy.
    fn authenticate(&self, certificate: CertificateDer<'_>) -> Result<Option<UserInfo>, String> {
        let peer = self.clients.verify_chain(&[certificate], UnixTime::now());
        assert!(!peer.is_front_proxy, "a certificate of the users' authority is accepted as a front proxy's");
        match peer.certificate {
            PeerCertificate::User(mut user) => {
                user.extra.clear();
                Ok(Some(user))
            }
            PeerCertificate::Anonymous => Ok(None),
            PeerCertificate::Rejected(reason) => Err(reason),
        }
    }
}

/// Compares all of them for a subject.
fn check_agreement(ca: &Ca, key: &KeyPair, subject: &[u8]) {
    let pem = certificate_request(subject, key);
    let request = SigningRequest::parse(pem.as_bytes());
    let issued_pem = ca.authority.sign(&pem, &["client auth"], jiff::Timestamp::now().as_second(), 3600);
    let authenticated = ca.authenticate(certificate_with_subject(subject, key, ca));
    let object = json!({"metadata": {"name": "csr"}, "spec": {
        "signerName": "kubernetes.io/kube-apiserver-client", "request": STANDARD.encode(&pem),
        "username": "system:bootstrap:abcdef", "usages": ["client auth", "digital signature"]}});
    let approved = permissions(&object);
    let Ok(request) = request else {
        assert!(
            issued_pem.is_err() && approved.is_err() && authenticated.is_err(),
            "{approved:?} {issued_pem:?} {authenticated:?}"
        );
        return;
    };
    let identity = request.subject.user();
    assert_eq!(authenticated, Ok(identity.clone()));
    let issued = CertificateDer::from_pem_slice(issued_pem.expect("a certificate").as_bytes()).expect("DER");
    assert_eq!(ca.authenticate(issued), Ok(identity.clone()));
    if !approved.expect("an approval").is_empty() {
        let identity = identity.expect("an identity");
        assert!(identity.name.starts_with("system:karmada:agent:"), "{identity:?}");
        assert_eq!((identity.groups, identity.uid), (vec![AGENT_ORGANIZATION.to_owned()], String::new()));
    }
}

fn any_oid() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => Just(vec![0x55, 4, 3]),
        6 => Just(vec![0x55, 4, 10]),
        2 => Just(vec![0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2]),
        2 => Just(vec![0x55, 4, 11]),
        1 => Just(vec![0x55, 4, 6]),
        1 => Just(vec![0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1]),
        1 => Just(vec![0x55, 4, 41]),
        1 => Just(vec![0x55, 4, 0x80, 3]),
    ]
}

fn any_text() -> impl Strategy<Value = String> {
    let known = [AGENT, AGENT_ORGANIZATION, FRONT_PROXY, "system:masters", "system:nodes", "ann", "équipe", "", "a\0b"];
    prop_oneof![8 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => any::<String>()]
}

/// A string type, with a value that is mostly valid in its encoding.
fn any_value() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop_oneof![4 => Just(UTF8), 2 => Just(0x13), 1 => Just(0x14), 1 => Just(0x16), 1 => Just(BMP), 1 => Just(UNIVERSAL), 1 => Just(0x04)];
    let encoded = (tag, any_text()).prop_map(|(tag, text)| {
        let content = match tag {
            BMP => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
            UNIVERSAL => text.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect(),
            _ => text.into_bytes(),
        };
        der(tag, &content)
    });
    prop_oneof![20 => encoded, 1 => prop::collection::vec(any::<u8>(), 0..8).prop_map(|bytes| der(UTF8, &bytes))]
}

fn any_attribute() -> impl Strategy<Value = Vec<u8>> {
    (any_oid(), any_value()).prop_map(|(oid, value)| der(SEQUENCE, &[der(0x06, &oid), value].concat()))
}

fn any_subject() -> impl Strategy<Value = Vec<u8>> {
    let relative = prop::collection::vec(any_attribute(), 1..3).prop_map(|set| der(SET, &set.concat()));
    prop::collection::vec(relative, 0..4).prop_map(|names| der(SEQUENCE, &names.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_read_the_same_identity(subjects in prop::collection::vec(any_subject(), 4)) {
        let (ca, key) = (Ca::new(), KeyPair::generate().unwrap());
        for subject in subjects {
            check_agreement(&ca, &key, &subject);
        }
    }
}

/// Privilege escalation: the approver read one common name and the authenticator another one.
#[test]
fn a_second_common_name_is_rejected_by_all() {
    let (ca, key) = (Ca::new(), KeyPair::generate().unwrap());
    let attribute = |oid: &[u8], text: &str| der(SEQUENCE, &[der(0x06, oid), der(UTF8, text.as_bytes())].concat());
    let (name, organization) = (&[0x55, 4, 3][..], &[0x55, 4, 10][..]);
    for (first, second) in [(AGENT, FRONT_PROXY), (FRONT_PROXY, AGENT), (AGENT, AGENT)] {
        let group = attribute(organization, AGENT_ORGANIZATION);
        let (first, second) = (attribute(name, first), attribute(name, second));
        let apart = [der(SET, &group), der(SET, &first), der(SET, &second)].concat();
        let together = [der(SET, &group), der(SET, &[first, second].concat())].concat();
        for names in [apart, together] {
            let subject = der(SEQUENCE, &names);
            assert!(SigningRequest::parse(certificate_request(&subject, &key).as_bytes()).is_err());
            check_agreement(&ca, &key, &subject);
        }
    }
}
