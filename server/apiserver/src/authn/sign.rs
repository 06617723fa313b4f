//! Signs certificate requests (PKCS #10) with the authority's key, as kube-controller-manager's signers do.
//!
//! rcgen creates the certificate, but keeps only one attribute of each type, whereas a user may be in several
//! organizations. The subject parsed from the request therefore replaces rcgen's, and the certificate is signed again.
//! Only parsed fields are copied from the request, so the approver and all verifiers see the same identity.

use crowsnest_api::certificate::{AlternativeName, CertificateSubject, RequestSignature, SigningRequest};
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, PublicKeyData, SanType,
    SerialNumber, SigningKey, SubjectPublicKeyInfo,
};
use x509_parser::der_parser::asn1_rs::{Any, BitString, FromDer, Sequence, SerializeError, ToDer};
use x509_parser::pem::parse_x509_pem;

use super::authority::Authority;
use crate::error::{Error, Result};

/// Seconds by which `notBefore` of issued certificates is backdated, to tolerate clock differences.
const BACKDATE_SECONDS: i64 = 5 * 60;
/// A requested validity below this limit, in seconds, counts from now; a longer one counts from the backdated
/// `notBefore`.
const SHORT_TTL_SECONDS: i64 = 8 * 3600;
/// Index of the subject in a TBSCertificate: version, serial number, algorithm, issuer and validity precede it.
const SUBJECT_INDEX: usize = 5;

impl Authority {
    /// Signs a certificate request (PEM) for usages with their Kubernetes names; `now` and `ttl` are in seconds.
    /// Usages and extensions in the request are ignored; its subject and subject alternative names are kept.
    pub fn sign(&self, request: &str, usages: &[&str], now: i64, ttl: i64) -> Result<String> {
        let not_after = self.not_after()?;
        if now >= not_after {
            let reason = "refusing to sign a certificate that expired in the past";
            return Err(Error::Key(format!(
                "{reason}: NotAfter={}",
                jiff::Timestamp::from_second(not_after).unwrap_or_default()
            )));
        }
        let request = SigningRequest::parse(request.as_bytes()).map_err(|error| Error::Key(error.to_string()))?;
        // The requester must prove possession of the key, so a signature that cannot be verified is refused.
        if request.signature != RequestSignature::Verified {
            return Err(Error::Key("signature unsupported algorithm".to_owned()));
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = alternative_names(&request.alternative_names)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from(rand::random::<[u8; 16]>().to_vec()));
        (params.key_usages, params.extended_key_usages) = parse_usages(usages)?;
        let remaining = if ttl < SHORT_TTL_SECONDS { ttl } else { ttl - BACKDATE_SECONDS };
        let date = |seconds: i64| {
            rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds.max(0).unsigned_abs())
        };
        params.not_before = date(now - BACKDATE_SECONDS);
        params.not_after = date((now + remaining).min(not_after));
        self.sign_for(&request.subject, params, &SubjectPublicKeyInfo::from_der(&request.public_key)?)
    }

    /// Signs a certificate (PEM) with this subject, which replaces the subject in `params`.
    pub(super) fn sign_for(
        &self,
        subject: &CertificateSubject,
        params: CertificateParams,
        public_key: &impl PublicKeyData,
    ) -> Result<String> {
        let certificate = params.signed_by(public_key, &self.issuer)?;
        let certificate = replace_subject(certificate.der(), subject, self.issuer.key())?;
        let encoding = EncodeConfig::new().set_line_ending(LineEnding::LF);
        Ok(pem::encode_config(&Pem::new("CERTIFICATE", certificate), encoding))
    }

    /// End of the authority's own validity in seconds.
    fn not_after(&self) -> Result<i64> {
        let pem = parse_x509_pem(self.certificate().as_bytes()).map_err(|error| Error::Key(error.to_string()))?.1;
        let certificate = pem.parse_x509().map_err(|error| Error::Key(error.to_string()))?;
        Ok(certificate.validity().not_after.timestamp())
    }
}

/// The requested subject alternative names of the types that Go's signer supports.
fn alternative_names(alternative_names: &[AlternativeName]) -> Result<Vec<SanType>> {
    let mut sans = Vec::new();
    for name in alternative_names {
        sans.push(match name {
            AlternativeName::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
            AlternativeName::Email(name) => SanType::Rfc822Name(name.as_str().try_into()?),
            AlternativeName::Uri(name) => SanType::URI(name.as_str().try_into()?),
            AlternativeName::Address(address) => SanType::IpAddress(*address),
            AlternativeName::Other => continue,
        });
    }
    Ok(sans)
}

/// Replaces the subject of a certificate (DER) and signs it again with `key`.
fn replace_subject(certificate: &[u8], subject: &CertificateSubject, key: &impl SigningKey) -> Result<Vec<u8>> {
    let parse_error = || Error::Key("cannot parse the certificate just issued".to_owned());
    let parts = split_sequence(certificate).ok_or_else(parse_error)?;
    let [tbs_certificate, algorithm, _] = parts.try_into().map_err(|_| parse_error())?;
    let mut fields = split_sequence(&tbs_certificate).ok_or_else(parse_error)?;
    *fields.get_mut(SUBJECT_INDEX).ok_or_else(parse_error)? = subject.to_der();
    let tbs_certificate = encode_sequence(fields.concat())?;
    let signature = key.sign(&tbs_certificate)?;
    let signature = BitString::new(0, &signature).to_der_vec().map_err(encoding_error)?;
    encode_sequence([tbs_certificate, algorithm, signature].concat())
}

/// Splits a DER sequence into its elements, each with its tag and length.
fn split_sequence(sequence: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (_, sequence) = Sequence::from_der(sequence).ok()?;
    let (mut rest, mut elements) = (sequence.content.as_ref(), Vec::new());
    while !rest.is_empty() {
        let (after, _) = Any::from_der(rest).ok()?;
        elements.push(rest[..rest.len() - after.len()].to_vec());
        rest = after;
    }
    Some(elements)
}

fn encode_sequence(elements: Vec<u8>) -> Result<Vec<u8>> {
    Sequence::new(elements.into()).to_der_vec().map_err(encoding_error)
}

fn encoding_error(error: SerializeError) -> Error {
    Error::Key(error.to_string())
}

type Purposes = (Vec<KeyUsagePurpose>, Vec<ExtendedKeyUsagePurpose>);

/// Parses key usages and extended key usages by their Kubernetes names; returns the extended ones in Go's order.
fn parse_usages(usages: &[&str]) -> Result<Purposes> {
    let mut purposes = Purposes::default();
    let mut extended = Vec::new();
    for usage in usages {
        let key = match *usage {
            "signing" | "digital signature" => KeyUsagePurpose::DigitalSignature,
            "content commitment" => KeyUsagePurpose::ContentCommitment,
            "key encipherment" => KeyUsagePurpose::KeyEncipherment,
            "key agreement" => KeyUsagePurpose::KeyAgreement,
            "data encipherment" => KeyUsagePurpose::DataEncipherment,
            "cert sign" => KeyUsagePurpose::KeyCertSign,
            "crl sign" => KeyUsagePurpose::CrlSign,
            "encipher only" => KeyUsagePurpose::EncipherOnly,
            "decipher only" => KeyUsagePurpose::DecipherOnly,
            other => {
                extended.push(other);
                continue;
            }
        };
        if !purposes.0.contains(&key) {
            purposes.0.push(key);
        }
    }
    for (names, purpose) in extended_purposes() {
        if names.iter().any(|name| extended.contains(name)) {
            purposes.1.push(purpose);
        }
    }
    let is_known = |usage: &str| extended_purposes().iter().any(|(names, _)| names.contains(&usage));
    let unknown: Vec<&str> = extended.into_iter().filter(|usage| !is_known(usage)).collect();
    if !unknown.is_empty() {
        return Err(Error::Key(format!("unrecognized usage values: {unknown:?}")));
    }
    Ok(purposes)
}

/// Extended key usages with their names, in Go's order.
fn extended_purposes() -> [(&'static [&'static str], ExtendedKeyUsagePurpose); 12] {
    use ExtendedKeyUsagePurpose as Purpose;
    let ipsec = |suffix: u64| Purpose::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, suffix]);
    [
        (&["any"], Purpose::Any),
        (&["server auth"], Purpose::ServerAuth),
        (&["client auth"], Purpose::ClientAuth),
        (&["code signing"], Purpose::CodeSigning),
        (&["email protection", "s/mime"], Purpose::EmailProtection),
        (&["ipsec end system"], ipsec(5)),
        (&["ipsec tunnel"], ipsec(6)),
        (&["ipsec user"], ipsec(7)),
        (&["timestamping"], Purpose::TimeStamping),
        (&["ocsp signing"], Purpose::OcspSigning),
        (&["microsoft sgc"], Purpose::Other(vec![1, 3, 6, 1, 4, 1, 311, 10, 3, 3])),
        (&["netscape sgc"], Purpose::Other(vec![2, 16, 840, 1, 113_730, 4, 1])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::X509Certificate;

    const TWO_ORGANIZATIONS: &str = include_str!("fixtures/two-organizations.csr");
    const NOW: i64 = 1_800_000_000;

    #[test]
    fn subject_and_names_are_copied_and_usages_are_not() {
        let authority = Authority::generate("test").unwrap();
        let usages = ["digital signature", "key encipherment", "client auth"];
        for (ttl, until) in [
            (3600, NOW + 3600),
            (86_400, NOW + 86_400 - BACKDATE_SECONDS),
            (i64::from(u32::MAX), authority.not_after().unwrap()),
        ] {
            let pem = authority.sign(TWO_ORGANIZATIONS, &usages, NOW, ttl).unwrap();
            let (rest, block) = parse_x509_pem(pem.as_bytes()).unwrap();
            assert!(rest.is_empty());
            let (rest, certificate) = X509Certificate::from_der(&block.contents).unwrap();
            assert!(rest.is_empty());
            assert_eq!(certificate.subject().to_string(), "C=CH, O=dev, O=ops, CN=ann");
            let (_, authority_certificate) = parse_x509_pem(authority.certificate().as_bytes()).unwrap();
            let authority_certificate = authority_certificate.parse_x509().unwrap();
            assert_eq!(certificate.issuer(), authority_certificate.subject());
            certificate.verify_signature(Some(authority_certificate.public_key())).unwrap();
            let validity = certificate.validity();
            assert_eq!(
                (validity.not_before.timestamp(), validity.not_after.timestamp()),
                (NOW - BACKDATE_SECONDS, until)
            );
            let allowed = certificate.key_usage().unwrap().unwrap().value;
            assert!(allowed.digital_signature() && allowed.key_encipherment() && !allowed.key_cert_sign());
            let extended = certificate.extended_key_usage().unwrap().unwrap().value;
            assert!(extended.client_auth && !extended.server_auth && !extended.any);
            assert!(!certificate.is_ca(), "the CA extension of the request is ignored");
            let names = &certificate.subject_alternative_name().unwrap().unwrap().value.general_names;
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            assert_eq!(names.len(), 4, "{names:?}");
            let user = crate::authn::certificate::read_user(&block.contents).unwrap().unwrap();
            assert_eq!((user.name.as_str(), user.groups), ("ann", vec!["dev".to_owned(), "ops".to_owned()]));
        }
    }

    /// The signature has an unknown algorithm.
    #[test]
    fn requests_with_unknown_signature_algorithms_are_refused() {
        let (_, block) = parse_x509_pem(TWO_ORGANIZATIONS.as_bytes()).unwrap();
        let mut parts = split_sequence(&block.contents).unwrap();
        let last = parts[1].len() - 1;
        parts[1][last] ^= 0x40;
        let request = pem::encode(&Pem::new("CERTIFICATE REQUEST", encode_sequence(parts.concat()).unwrap()));
        let read = crate::authn::SigningRequest::parse(request.as_bytes()).unwrap();
        assert_eq!(read.subject.organizations(), ["dev", "ops"]);
        let refused = Authority::generate("test").unwrap().sign(&request, &["client auth"], NOW, 3600);
        assert_eq!(refused.unwrap_err().to_string(), "key: signature unsupported algorithm");
    }
}
