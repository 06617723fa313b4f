//! Decides whether a Secret is kept, or created again and why.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use crowsnest_api::certificate::CertificateSubject;
use jiff::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::{
    AUTHORITY, Credentials, CredentialsError, PASSWORD, PLACEHOLDER, Renewal, RequiredCertificate, SecretData,
};
use super::{RequiredSecret, URL, Usage, credentials, text};

/// Decision for a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Keep it, with the expiry of its certificate.
    Keep(Option<Timestamp>),
    Create(IssueReason),
}

/// Reason for creating a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IssueReason {
    Missing,
    /// It does not contain a certificate and its key.
    Incomplete,
    /// Names or usages differ from the list.
    Differs,
    /// It was issued by a previous CA.
    OtherIssuer,
    Expires(Timestamp),
}

impl fmt::Display for IssueReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IssueReason::Missing => f.write_str("it did not exist"),
            IssueReason::Incomplete => f.write_str("its content is invalid"),
            IssueReason::Differs => f.write_str("it does not match the list"),
            IssueReason::OtherIssuer => f.write_str("its issuer has changed"),
            IssueReason::Expires(when) => write!(f, "it expires at {when}"),
        }
    }
}

pub(super) fn evaluate(
    required: &RequiredSecret,
    stored: Option<&SecretData>,
    issuer: Option<&Credentials>,
    renewal: Renewal,
) -> Result<Verdict, CredentialsError> {
    let Some(stored) = stored else { return Ok(Verdict::Create(IssueReason::Missing)) };
    match required {
        RequiredSecret::Authority { name, .. } => evaluate_authority(name, stored),
        RequiredSecret::Certificate(leaf) => Ok(evaluate_certificate(leaf, stored, issuer, renewal)),
        RequiredSecret::Password { url, .. } => Ok(evaluate_password(url, stored)),
    }
}

/// CAs are created once and never replaced automatically, because nothing would trust a new one. Administrators replace
/// them.
fn evaluate_authority(name: &str, stored: &SecretData) -> Result<Verdict, CredentialsError> {
    let unusable = |reason: &str| CredentialsError::Unusable { name: name.to_owned(), reason: reason.to_owned() };
    let found = credentials(name, stored)?;
    let (is_authority, expiry_time) =
        parse_certificate(&found.certificate, |certificate| (certificate.is_ca(), expiry(certificate)))
            .ok_or_else(|| unusable("its certificate is invalid"))?;
    if is_authority {
        Ok(Verdict::Keep(Some(expiry_time)))
    } else {
        Err(unusable("its certificate is not a CA certificate"))
    }
}

fn evaluate_certificate(
    leaf: &RequiredCertificate,
    stored: &SecretData,
    issuer: Option<&Credentials>,
    renewal: Renewal,
) -> Verdict {
    let Ok(found) = credentials(&leaf.name, stored) else { return Verdict::Create(IssueReason::Incomplete) };
    let Some((is_match, expiry_time)) =
        parse_certificate(&found.certificate, |certificate| (matches_request(leaf, certificate), expiry(certificate)))
    else {
        return Verdict::Create(IssueReason::Incomplete);
    };
    let stored_authority = text(stored, AUTHORITY).map(str::trim);
    if stored_authority != issuer.map(|issuer| issuer.certificate.trim()) {
        return Verdict::Create(IssueReason::OtherIssuer);
    }
    match (is_match, expiry_time.duration_since(renewal.now) <= renewal.renew_before) {
        (false, _) => Verdict::Create(IssueReason::Differs),
        (true, true) => Verdict::Create(IssueReason::Expires(expiry_time)),
        (true, false) => Verdict::Keep(Some(expiry_time)),
    }
}

/// Passwords are never changed, because the database stores them.
fn evaluate_password(url: &str, stored: &SecretData) -> Verdict {
    match (text(stored, PASSWORD), text(stored, URL)) {
        (Some(password), Some(found)) if url.replace(PLACEHOLDER, password) == found => Verdict::Keep(None),
        (Some(_), _) => Verdict::Create(IssueReason::Differs),
        (None, _) => Verdict::Create(IssueReason::Incomplete),
    }
}

fn parse_certificate<T>(pem: &str, extract: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
    let (_, block) = parse_x509_pem(pem.as_bytes()).ok()?;
    block.parse_x509().ok().map(|certificate| extract(&certificate))
}

/// The expiry; unknown dates count as expired.
fn expiry(certificate: &X509Certificate<'_>) -> Timestamp {
    Timestamp::from_second(certificate.validity().not_after.timestamp()).unwrap_or(Timestamp::MIN)
}

fn matches_request(leaf: &RequiredCertificate, certificate: &X509Certificate<'_>) -> bool {
    let Ok(subject) = CertificateSubject::from_der(certificate.subject().as_raw()) else { return false };
    let organizations: BTreeSet<&str> = subject.organizations().into_iter().collect();
    subject.common_name() == Some(&leaf.common_name)
        && organizations == leaf.organization.iter().map(String::as_str).collect::<BTreeSet<_>>()
        && usages(certificate) == leaf.usages.iter().copied().collect::<BTreeSet<_>>()
        && names(certificate) == leaf.names.iter().map(|name| normalize(name)).collect::<BTreeSet<_>>()
}

fn usages(certificate: &X509Certificate<'_>) -> BTreeSet<Usage> {
    let extension = certificate.extended_key_usage().ok().flatten();
    let Some(extended) = extension.map(|extension| extension.value) else { return BTreeSet::new() };
    let server = extended.server_auth.then_some(Usage::Server);
    server.into_iter().chain(extended.client_auth.then_some(Usage::Client)).collect()
}

fn names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|extension| extension.value.general_names.iter());
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
            _ => None,
        })
        .collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Normalizes IP addresses.
fn normalize(name: &str) -> String {
    name.parse::<IpAddr>().map_or_else(|_| name.to_owned(), |address| address.to_string())
}
