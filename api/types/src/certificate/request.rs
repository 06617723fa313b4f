//! Certificate signing request (PKCS #10): subject, subject alternative names and key.

use std::net::IpAddr;

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::error::X509Error;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::oid_registry::{OID_PKCS9_EXTENSION_REQUEST, OID_X509_EXT_SUBJECT_ALT_NAME};
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use super::{CertificateSubject, SubjectError};

const PEM_LABEL: &str = "CERTIFICATE REQUEST";
const NOT_A_REQUEST: &str = "PEM block type must be CERTIFICATE REQUEST";

/// Requested contents of a certificate, as far as a signer may grant them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SigningRequest {
    pub subject: CertificateSubject,
    pub alternative_names: Vec<AlternativeName>,
    /// SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
    pub signature: RequestSignature,
}

/// A subject alternative name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlternativeName {
    Dns(String),
    Email(String),
    Address(IpAddr),
    Uri(String),
    /// A name of another type, which no signer grants.
    Other,
}

/// Result of checking the signature of a request, which proves that the requester has the private key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestSignature {
    Verified,
    /// This parser does not support the algorithm; another signer may support it.
    #[default]
    UnknownAlgorithm,
}

/// Reason why a request is refused; in Go's wording where Go has the same check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SigningRequestError {
    #[error("{0}")]
    Malformed(&'static str),
    #[error(transparent)]
    Subject(#[from] SubjectError),
}

impl SigningRequest {
    /// Parses one PEM block. Refuses requests with a wrong signature and all ambiguous requests: those with a second
    /// block, with several lists of extensions or of alternative names, or with a subject that [`CertificateSubject`]
    /// refuses.
    pub fn parse(pem: &[u8]) -> Result<Self, SigningRequestError> {
        let block = parse_block(pem)?;
        let request = decode(&block)?;
        let signature = verify(&request)?;
        let info = &request.certification_request_info;
        Ok(Self {
            subject: CertificateSubject::from_der(info.subject.as_raw())?,
            alternative_names: alternative_names(&request)?,
            public_key: info.subject_pki.raw.to_vec(),
            signature,
        })
    }

    /// Checks the requirements that all signers share, independent of the subject: syntax and signature.
    pub fn check_syntax_and_signature(pem: &[u8]) -> Result<(), SigningRequestError> {
        verify(&decode(&parse_block(pem)?)?).map(drop)
    }

    pub fn has_dns_names(&self) -> bool {
        self.alternative_names.iter().any(|name| matches!(name, AlternativeName::Dns(_)))
    }

    pub fn has_emails(&self) -> bool {
        self.alternative_names.iter().any(|name| matches!(name, AlternativeName::Email(_)))
    }

    pub fn has_addresses(&self) -> bool {
        self.alternative_names.iter().any(|name| matches!(name, AlternativeName::Address(_)))
    }

    pub fn has_uris(&self) -> bool {
        self.alternative_names.iter().any(|name| matches!(name, AlternativeName::Uri(_)))
    }
}

/// Parses the only PEM block. Parsers disagree about which of several blocks counts and about damaged blocks, so the
/// text must not contain another block marker.
fn parse_block(pem: &[u8]) -> Result<Pem, SigningRequestError> {
    const MARKER: &[u8] = b"-----";
    let refused = SigningRequestError::Malformed(NOT_A_REQUEST);
    let (_, block) = parse_x509_pem(pem).map_err(|_| refused.clone())?;
    // BEGIN and END are each enclosed in two markers.
    let mut markers = 0;
    let mut rest = pem;
    while let Some(at) = rest.windows(MARKER.len()).position(|window| window == MARKER) {
        markers += 1;
        rest = &rest[at + MARKER.len()..];
    }
    let contains = |line: &str| pem.windows(line.len()).any(|window| window == line.as_bytes());
    let is_request =
        contains(&format!("-----BEGIN {PEM_LABEL}-----")) && contains(&format!("-----END {PEM_LABEL}-----"));
    if block.label == PEM_LABEL && is_request && markers == 4 { Ok(block) } else { Err(refused) }
}

fn decode(block: &Pem) -> Result<X509CertificationRequest<'_>, SigningRequestError> {
    match X509CertificationRequest::from_der(&block.contents) {
        Ok(([], request)) => Ok(request),
        Ok(_) => Err(SigningRequestError::Malformed("asn1: syntax error: trailing data")),
        Err(_) => Err(SigningRequestError::Malformed("asn1: syntax error: data truncated")),
    }
}

/// Verifies the signature of a request. Go supports more algorithms, so a request with an unknown one is left to the
/// signer.
fn verify(request: &X509CertificationRequest<'_>) -> Result<RequestSignature, SigningRequestError> {
    match request.verify_signature() {
        Ok(()) => Ok(RequestSignature::Verified),
        Err(X509Error::SignatureUnsupportedAlgorithm) => Ok(RequestSignature::UnknownAlgorithm),
        Err(_) => Err(SigningRequestError::Malformed(match request.certification_request_info.subject_pki.parsed() {
            Ok(PublicKey::RSA(_)) => "crypto/rsa: verification error",
            Ok(PublicKey::EC(_)) => "x509: ECDSA verification failure",
            _ => "x509: Ed25519 verification failure",
        })),
    }
}

fn alternative_names(request: &X509CertificationRequest<'_>) -> Result<Vec<AlternativeName>, SigningRequestError> {
    let mut alternative_names = None;
    for extension in requested_extensions(request)? {
        if extension.oid != OID_X509_EXT_SUBJECT_ALT_NAME {
            continue;
        }
        let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
            return Err(SigningRequestError::Malformed("x509: invalid subject alternative names"));
        };
        if alternative_names.is_some() {
            return Err(SigningRequestError::Malformed(
                "x509: certificate request contains duplicate requested extensions",
            ));
        }
        alternative_names = Some(names.general_names.iter().map(alternative_name).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(alternative_names.unwrap_or_default())
}

fn requested_extensions<'a>(
    request: &'a X509CertificationRequest<'_>,
) -> Result<&'a [X509Extension<'a>], SigningRequestError> {
    let attributes = request.certification_request_info.iter_attributes();
    let mut lists = attributes.filter(|attribute| attribute.oid == OID_PKCS9_EXTENSION_REQUEST);
    match (lists.next().map(|list| list.parsed_attribute()), lists.next()) {
        (None, _) => Ok(&[]),
        (Some(ParsedCriAttribute::ExtensionRequest(list)), None) => Ok(&list.extensions),
        _ => Err(SigningRequestError::Malformed("x509: certificate request contains duplicate requested extensions")),
    }
}

fn alternative_name(name: &GeneralName<'_>) -> Result<AlternativeName, SigningRequestError> {
    Ok(match name {
        GeneralName::DNSName(name) => AlternativeName::Dns((*name).to_owned()),
        GeneralName::RFC822Name(name) => AlternativeName::Email((*name).to_owned()),
        GeneralName::URI(name) => AlternativeName::Uri((*name).to_owned()),
        GeneralName::IPAddress(bytes) => AlternativeName::Address(address(bytes)?),
        GeneralName::Invalid(..) => {
            return Err(SigningRequestError::Malformed("x509: invalid subject alternative names"));
        }
        _ => AlternativeName::Other,
    })
}

fn address(bytes: &[u8]) -> Result<IpAddr, SigningRequestError> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let sixteen = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| sixteen()).map_err(|_| SigningRequestError::Malformed("x509: cannot parse IP address"))
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
    #[case::ia5(DnValue::Ia5String("system:masters".try_into().unwrap()))]
    #[case::t61(DnValue::TeletexString("system:masters".try_into().unwrap()))]
    #[case::bmp(DnValue::BmpString(rcgen::string::BmpString::try_from("system:masters").unwrap()))]
    fn organizations_are_read_in_any_encoding(#[case] organization: DnValue) {
        let request = SigningRequest::parse(pem(organization, Vec::new()).as_bytes()).unwrap();
        assert_eq!(request.subject.common_name(), Some("ann"));
        assert_eq!(request.subject.organizations(), ["system:masters"]);
    }

    /// Go's X.509 parser does not support UniversalString either.
    #[test]
    fn universal_strings_are_refused() {
        let organization =
            DnValue::UniversalString(rcgen::string::UniversalString::try_from("system:masters").unwrap());
        let refused = SigningRequest::parse(pem(organization, Vec::new()).as_bytes());
        assert_eq!(refused, Err(SubjectError::Encoding("O").into()));
    }

    #[rstest]
    #[case(SanType::DnsName("example.com".try_into().unwrap()), [true, false, false, false])]
    #[case(SanType::Rfc822Name("a@example.com".try_into().unwrap()), [false, true, false, false])]
    #[case(SanType::IpAddress([127, 0, 0, 1].into()), [false, false, true, false])]
    #[case(SanType::URI("spiffe://x/y".try_into().unwrap()), [false, false, false, true])]
    #[case(SanType::OtherName((vec![1, 2, 3], "x".into())), [false, false, false, false])]
    fn types_of_alternative_names_are_distinguished(#[case] name: SanType, #[case] expected: [bool; 4]) {
        let request = SigningRequest::parse(pem("o".into(), vec![name]).as_bytes()).unwrap();
        let found = [request.has_dns_names(), request.has_emails(), request.has_addresses(), request.has_uris()];
        assert_eq!(found, expected);
        assert_eq!(request.alternative_names.len(), 1);
    }

    #[rstest]
    #[case::nothing("")]
    #[case::certificate("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")]
    #[case::old("-----BEGIN NEW CERTIFICATE REQUEST-----\nAAAA\n-----END NEW CERTIFICATE REQUEST-----\n")]
    fn other_pem_blocks_are_refused(#[case] pem: &str) {
        let refused = SigningRequest::parse(pem.as_bytes());
        assert_eq!(refused, Err(SigningRequestError::Malformed(NOT_A_REQUEST)));
    }

    /// Go skips a damaged block and reads the next one; other parsers read the damaged block.
    #[test]
    fn several_blocks_are_refused() {
        let (first, second) = (pem("a".into(), Vec::new()), pem("b".into(), Vec::new()));
        assert!(SigningRequest::parse(format!("subject: ann\n{first}\n").as_bytes()).is_ok());
        let damaged = first.replace("-----END CERTIFICATE REQUEST-----", "-----END SOMETHING-----");
        let body = first.replace("-----END CERTIFICATE REQUEST-----", "");
        for text in [format!("{first}{second}"), format!("{damaged}{second}"), format!("{body}{second}"), damaged] {
            let refused = SigningRequest::parse(text.as_bytes());
            assert_eq!(refused, Err(SigningRequestError::Malformed(NOT_A_REQUEST)), "{text}");
        }
    }

    #[test]
    fn wrong_signatures_are_refused() {
        let pem = pem("o".into(), Vec::new());
        let mut block = parse_block(pem.as_bytes()).unwrap();
        let verified = |block: &Pem| verify(&decode(block).unwrap());
        assert_eq!(verified(&block), Ok(RequestSignature::Verified));
        // The name is changed after signing.
        let position = block.contents.windows(3).position(|three| three == b"ann").unwrap();
        block.contents[position] = b'A';
        assert_eq!(verified(&block), Err(SigningRequestError::Malformed("x509: ECDSA verification failure")));
    }
}
