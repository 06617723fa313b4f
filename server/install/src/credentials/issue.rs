//! Creates the content of Secrets. Private keys are generated here and written to the Secret only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::{
    AUTHORITY, CERTIFICATE, Credentials, CredentialsError, KEY, PASSWORD, PLACEHOLDER, RequiredCertificate, SecretData,
    URL,
};
use super::{RequiredSecret, Usage, text};

/// Lifetime of a CA in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Lifetime of issued certificates in days.
const CERTIFICATE_DAYS: i64 = 365;

/// The content of a Secret; `random_bytes` becomes the password if there is none yet.
pub(super) fn secret_data(
    required: &RequiredSecret,
    stored: Option<&SecretData>,
    issuer: Option<&Credentials>,
    now: Timestamp,
    random_bytes: &[u8; 32],
) -> Result<SecretData, CredentialsError> {
    let name = required.name();
    match required {
        RequiredSecret::Authority { common_name, .. } => {
            let issued = issue_authority(common_name, now).map_err(|error| error.for_secret(name))?;
            let ca = issued.certificate.clone();
            Ok(tls_secret_data(issued, ca))
        }
        RequiredSecret::Certificate(leaf) => {
            let Some(issuer) = issuer else {
                let reason = format!("unknown issuer {}", leaf.issuer);
                return Err(CredentialsError::Invalid { name: name.to_owned(), reason });
            };
            let key = stored.filter(|_| leaf.keep_key).and_then(|stored| text(stored, KEY));
            let issued = issue_certificate(leaf, key, issuer, now).map_err(|error| error.for_secret(name))?;
            Ok(tls_secret_data(issued, issuer.certificate.clone()))
        }
        RequiredSecret::Password { url, .. } => {
            let password = stored.and_then(|stored| text(stored, PASSWORD)).map(str::to_owned);
            let password = password.unwrap_or_else(|| URL_SAFE_NO_PAD.encode(random_bytes));
            let url = url.replace(PLACEHOLDER, &password);
            Ok(BTreeMap::from([(PASSWORD, password), (URL, url)].map(entry)))
        }
    }
}

fn entry((key, text): (&str, String)) -> (String, ByteString) {
    (key.to_owned(), ByteString(text.into_bytes()))
}

fn tls_secret_data(issued: Credentials, authority: String) -> SecretData {
    BTreeMap::from([(CERTIFICATE, issued.certificate), (KEY, issued.key), (AUTHORITY, authority)].map(entry))
}

/// Reason why a certificate cannot be issued.
enum IssueError {
    Rcgen(rcgen::Error),
    Date,
}

impl From<rcgen::Error> for IssueError {
    fn from(error: rcgen::Error) -> Self {
        IssueError::Rcgen(error)
    }
}

impl IssueError {
    fn for_secret(self, name: &str) -> CredentialsError {
        let name = name.to_owned();
        match self {
            IssueError::Rcgen(source) => CredentialsError::Issue { name, source },
            IssueError::Date => CredentialsError::Date { name },
        }
    }
}

fn issue_authority(common_name: &str, now: Timestamp) -> Result<Credentials, IssueError> {
    let key = KeyPair::generate()?;
    let mut params = certificate_params(common_name, None, AUTHORITY_DAYS, now)?;
    // The CA cannot sign other CAs.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?.pem();
    Ok(Credentials { certificate, key: key.serialize_pem() })
}

fn issue_certificate(
    leaf: &RequiredCertificate,
    key: Option<&str>,
    issuer: &Credentials,
    now: Timestamp,
) -> Result<Credentials, IssueError> {
    let key = key.map_or_else(KeyPair::generate, KeyPair::from_pem)?;
    let mut params = certificate_params(&leaf.common_name, leaf.organization.as_deref(), CERTIFICATE_DAYS, now)?;
    for name in &leaf.names {
        let entry = match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into()?),
        };
        params.subject_alt_names.push(entry);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    let usage = |usage: &Usage| match usage {
        Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
        Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
    };
    params.extended_key_usages = leaf.usages.iter().map(usage).collect();
    params.use_authority_key_identifier_extension = true;
    let issuer = Issuer::from_ca_cert_pem(&issuer.certificate, KeyPair::from_pem(&issuer.key)?)?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(Credentials { certificate, key: key.serialize_pem() })
}

fn certificate_params(
    common_name: &str,
    organization: Option<&str>,
    days: i64,
    now: Timestamp,
) -> Result<CertificateParams, IssueError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        subject.push(DnType::OrganizationName, organization);
    }
    params.distinguished_name = subject;
    let date = |offset: i64| {
        let day = now.checked_add(SignedDuration::from_hours(offset * 24)).map_err(|_| IssueError::Date)?;
        let day = day.to_zoned(jiff::tz::TimeZone::UTC);
        let (Ok(month), Ok(day_of_month)) = (u8::try_from(day.month()), u8::try_from(day.day())) else {
            return Err(IssueError::Date);
        };
        Ok(rcgen::date_time_ymd(i32::from(day.year()), month, day_of_month))
    };
    // Tolerates clock skew.
    params.not_before = date(-1)?;
    params.not_after = date(days)?;
    Ok(params)
}
