//! What a certificate signing request (PKCS#10) asks for: whose name, and which others beside it.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::der_parser::asn1_rs::Tag;
use x509_parser::error::X509Error;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::AttributeTypeAndValue;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SigningRequest {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub has_dns_names: bool,
    pub has_emails: bool,
    pub has_addresses: bool,
    pub has_uris: bool,
}

impl SigningRequest {
    /// Reads PEM. What is not signed by the key that it names is refused.
    pub fn parse(pem: &[u8]) -> Result<Self, String> {
        let block = block(pem)?;
        let parsed = read(&block)?;
        verify(&parsed)?;
        let subject = &parsed.certification_request_info.subject;
        let mut request = Self {
            organizations: subject.iter_organization().map(text).collect(),
            // Of several the last counts, as in Go.
            common_name: subject.iter_common_name().last().map(text).unwrap_or_default(),
            ..Self::default()
        };
        for extension in parsed.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(_) => request.has_dns_names = true,
                    GeneralName::RFC822Name(_) => request.has_emails = true,
                    GeneralName::IPAddress(_) => request.has_addresses = true,
                    GeneralName::URI(_) => request.has_uris = true,
                    _ => {}
                }
            }
        }
        Ok(request)
    }
}

/// The one block of PEM.
pub(super) fn block(pem: &[u8]) -> Result<Pem, String> {
    let block = parse_x509_pem(pem).ok().map(|(_, block)| block).filter(|block| block.label == "CERTIFICATE REQUEST");
    block.ok_or_else(|| "PEM block type must be CERTIFICATE REQUEST".to_owned())
}

/// A request, whoever has signed it.
pub(super) fn read(block: &Pem) -> Result<X509CertificationRequest<'_>, String> {
    let (rest, request) =
        X509CertificationRequest::from_der(&block.contents).map_err(|_| "asn1: syntax error: data truncated")?;
    if rest.is_empty() { Ok(request) } else { Err("asn1: syntax error: trailing data".to_owned()) }
}

/// Refuses, in the words of Go, what another key has signed. A signature of an algorithm that we do not know, and Go may, is
/// looked at when a certificate is to be signed: there is none without.
fn verify(request: &X509CertificationRequest<'_>) -> Result<(), String> {
    match request.verify_signature() {
        Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm) => Ok(()),
        Err(_) => Err(match request.certification_request_info.subject_pki.parsed() {
            Ok(PublicKey::RSA(_)) => "crypto/rsa: verification error",
            Ok(PublicKey::EC(_)) => "x509: ECDSA verification failure",
            _ => "x509: Ed25519 verification failure",
        }
        .to_owned()),
    }
}

/// In whatever encoding: who reads the certificate may know more of them than we do.
fn text(attribute: &AttributeTypeAndValue<'_>) -> String {
    let bytes = attribute.as_slice();
    if attribute.attr_value().tag() == Tag::BmpString {
        let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        return String::from_utf16_lossy(&units);
    }
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType};
    use rstest::rstest;

    fn pem(organization: DnValue, names: Vec<SanType>) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ann");
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.subject_alt_names = names;
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    #[rstest]
    #[case::utf8(DnValue::Utf8String("system:masters".into()))]
    #[case::printable(DnValue::PrintableString("system:masters".try_into().unwrap()))]
    #[case::bmp(DnValue::BmpString(rcgen::string::BmpString::try_from("system:masters").unwrap()))]
    fn organizations_are_read_in_any_encoding(#[case] organization: DnValue) {
        let request = SigningRequest::parse(pem(organization, Vec::new()).as_bytes()).unwrap();
        assert_eq!((request.common_name.as_str(), request.organizations), ("ann", vec!["system:masters".to_owned()]));
    }

    #[rstest]
    #[case(SanType::DnsName("example.com".try_into().unwrap()), [true, false, false, false])]
    #[case(SanType::Rfc822Name("a@example.com".try_into().unwrap()), [false, true, false, false])]
    #[case(SanType::IpAddress([127, 0, 0, 1].into()), [false, false, true, false])]
    #[case(SanType::URI("spiffe://x/y".try_into().unwrap()), [false, false, false, true])]
    fn other_names_are_told_apart(#[case] name: SanType, #[case] expected: [bool; 4]) {
        let request = SigningRequest::parse(pem("o".into(), vec![name]).as_bytes()).unwrap();
        let found = [request.has_dns_names, request.has_emails, request.has_addresses, request.has_uris];
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case::nothing("")]
    #[case::certificate("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")]
    #[case::old("-----BEGIN NEW CERTIFICATE REQUEST-----\nAAAA\n-----END NEW CERTIFICATE REQUEST-----\n")]
    fn other_blocks_are_none(#[case] pem: &str) {
        let refused = SigningRequest::parse(pem.as_bytes());
        assert_eq!(refused, Err("PEM block type must be CERTIFICATE REQUEST".to_owned()));
    }

    #[test]
    fn what_another_key_has_signed_is_refused() {
        let pem = pem("o".into(), Vec::new());
        let (_, mut block) = parse_x509_pem(pem.as_bytes()).unwrap();
        let verified = |block: &Pem| verify(&read(block).unwrap());
        assert_eq!(verified(&block), Ok(()));
        // Another name under the same signature.
        let place = block.contents.windows(3).position(|three| three == b"ann").unwrap();
        block.contents[place] = b'A';
        assert_eq!(verified(&block), Err("x509: ECDSA verification failure".to_owned()));
    }
}
