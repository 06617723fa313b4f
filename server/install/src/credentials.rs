//! Credentials that the parts of an installation share: CAs, certificates and the database password, each in a Secret
//! of one namespace. `crowsnest credentials`, run by the chart's Job, creates missing ones and renews certificates long
//! before they expire. [`verdict`] decides and [`issue`] creates; Secrets that are kept are not written.
//!
//! The Secrets have cert-manager's keys (`tls.crt`, `tls.key`, `ca.crt`), so that cert-manager can manage them instead.

mod issue;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crowsnest_apimachinery::names::format::validate_dns1123_subdomain;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use serde::Deserialize;

use verdict::{Verdict, evaluate};

pub use verdict::IssueReason;

pub const CERTIFICATE: &str = "tls.crt";
pub const KEY: &str = "tls.key";
pub const AUTHORITY: &str = "ca.crt";
const PASSWORD: &str = "password";
const URL: &str = "url";
/// Placeholder of the password in a URL.
const PLACEHOLDER: &str = "{password}";
/// Number of retries after conflicting writes of a Secret.
const MAX_RETRIES: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("cannot parse the list of credentials")]
    List(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{name}: {reason}")]
    Invalid { name: String, reason: String },
    #[error("Secret {name} is unusable and was not changed: {reason}")]
    Unusable { name: String, reason: String },
    #[error("cannot issue {name}")]
    Issue { name: String, source: rcgen::Error },
    #[error("the lifetime of {name} is too long")]
    Date { name: String },
    #[error("cannot read or write Secret {name}")]
    Secret { name: String, source: kube::Error },
}

/// Extended key usage of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Usage {
    Server,
    Client,
}

/// A required certificate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequiredCertificate {
    pub name: String,
    /// The CA that issues it; it must precede the certificate in the list.
    pub issuer: String,
    pub common_name: String,
    #[serde(default)]
    pub organization: Option<String>,
    pub usages: Vec<Usage>,
    /// DNS names and IP addresses.
    #[serde(default)]
    pub names: Vec<String>,
    /// Keep the key when the certificate is renewed, because tokens are signed with it.
    #[serde(default)]
    pub keep_key: bool,
}

/// A required Secret.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum RequiredSecret {
    #[serde(rename_all = "camelCase")]
    Authority {
        name: String,
        common_name: String,
    },
    Certificate(RequiredCertificate),
    /// A password, and a URL that contains it.
    Password {
        name: String,
        url: String,
    },
}

impl RequiredSecret {
    pub fn name(&self) -> &str {
        match self {
            RequiredSecret::Authority { name, .. } | RequiredSecret::Password { name, .. } => name,
            RequiredSecret::Certificate(leaf) => &leaf.name,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequiredSecretList {
    secrets: Vec<RequiredSecret>,
}

/// Parses and validates a list.
pub fn parse(text: &str) -> Result<Vec<RequiredSecret>, CredentialsError> {
    let list: RequiredSecretList =
        serde_saphyr::from_str(text).map_err(|error| CredentialsError::List(Box::new(error)))?;
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let mut authorities: BTreeSet<&str> = BTreeSet::new();
    for required in &list.secrets {
        let name = required.name();
        let invalid =
            |reason: &str| Err(CredentialsError::Invalid { name: name.to_owned(), reason: reason.to_owned() });
        if let Some(reason) = validate_dns1123_subdomain(name).first() {
            return invalid(reason);
        }
        if !names.insert(name) {
            return invalid("the name is not unique in the list");
        }
        match required {
            RequiredSecret::Authority { .. } => {
                authorities.insert(name);
            }
            RequiredSecret::Certificate(leaf) if leaf.usages.is_empty() => {
                return invalid("usages: must be client, server, or both");
            }
            RequiredSecret::Certificate(leaf) if !authorities.contains(leaf.issuer.as_str()) => {
                return invalid(&format!(
                    "issuer: the list must contain the authority {} before this certificate",
                    leaf.issuer
                ));
            }
            RequiredSecret::Password { url, .. } if !url.contains(PLACEHOLDER) => {
                return invalid("url: must contain {password}");
            }
            RequiredSecret::Certificate(_) | RequiredSecret::Password { .. } => {}
        }
    }
    Ok(list.secrets)
}

/// A certificate with its private key, both PEM. `Debug` hides the key.
#[derive(Clone)]
pub struct Credentials {
    pub certificate: String,
    pub key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Outcome for one Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Not written, with the expiry of its certificate.
    Unchanged(Option<Timestamp>),
    Created(IssueReason),
}

/// The current time, and the remaining lifetime below which certificates are renewed.
#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    pub now: Timestamp,
    pub renew_before: SignedDuration,
}

/// Checks each Secret in the order of the list and creates or renews it if necessary; `dry_run` only reports.
pub async fn ensure(
    secrets: &Api<Secret>,
    required_secrets: &[RequiredSecret],
    renewal: Renewal,
    dry_run: bool,
    mut report: impl FnMut(&str, &Outcome),
) -> Result<(), CredentialsError> {
    let mut authorities: BTreeMap<String, Credentials> = BTreeMap::new();
    for required in required_secrets {
        let (outcome, stored) = ensure_one(secrets, required, &authorities, renewal, dry_run).await?;
        report(required.name(), &outcome);
        if let RequiredSecret::Authority { name, .. } = required {
            authorities.insert(name.clone(), credentials(name, &stored)?);
        }
    }
    Ok(())
}

/// Data of a Secret.
type SecretData = BTreeMap<String, ByteString>;

async fn ensure_one(
    secrets: &Api<Secret>,
    required: &RequiredSecret,
    authorities: &BTreeMap<String, Credentials>,
    renewal: Renewal,
    dry_run: bool,
) -> Result<(Outcome, SecretData), CredentialsError> {
    let name = required.name();
    let secret_error = |source| CredentialsError::Secret { name: name.to_owned(), source };
    let issuer = match required {
        RequiredSecret::Certificate(leaf) => authorities.get(&leaf.issuer),
        RequiredSecret::Authority { .. } | RequiredSecret::Password { .. } => None,
    };
    let mut retries = 0;
    loop {
        let existing = secrets.get_opt(name).await.map_err(secret_error)?;
        let stored = existing.as_ref().and_then(|secret| secret.data.as_ref());
        let reason = match evaluate(required, stored, issuer, renewal)? {
            Verdict::Keep(until) => return Ok((Outcome::Unchanged(until), stored.cloned().unwrap_or_default())),
            Verdict::Create(reason) => reason,
        };
        let data = issue::secret_data(required, stored, issuer, renewal.now, &rand::random())?;
        if dry_run {
            return Ok((Outcome::Created(reason), data));
        }
        match write(secrets, required, existing, data.clone()).await {
            Ok(_) => return Ok((Outcome::Created(reason), data)),
            // Another process wrote the Secret concurrently; its result is used.
            Err(kube::Error::Api(status))
                if retries < MAX_RETRIES && (status.is_conflict() || status.is_already_exists()) =>
            {
                retries += 1;
            }
            Err(source) => return Err(secret_error(source)),
        }
    }
}

async fn write(
    secrets: &Api<Secret>,
    required: &RequiredSecret,
    existing: Option<Secret>,
    data: SecretData,
) -> kube::Result<Secret> {
    let options = PostParams { field_manager: Some("crowsnest-credentials".to_owned()), ..PostParams::default() };
    match existing {
        Some(mut secret) => {
            secret.data.get_or_insert_default().extend(data);
            secrets.replace(required.name(), &options, &secret).await
        }
        None => {
            let kind = if matches!(required, RequiredSecret::Password { .. }) { "Opaque" } else { "kubernetes.io/tls" };
            let mut secret = Secret { data: Some(data), type_: Some(kind.to_owned()), ..Secret::default() };
            secret.metadata.name = Some(required.name().to_owned());
            let label = ("app.kubernetes.io/managed-by".to_owned(), "crowsnest".to_owned());
            secret.metadata.labels = Some(BTreeMap::from([label]));
            secrets.create(&options, &secret).await
        }
    }
}

fn text<'a>(stored: &'a SecretData, key: &str) -> Option<&'a str> {
    stored.get(key).and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).filter(|text| !text.is_empty())
}

fn credentials(name: &str, stored: &SecretData) -> Result<Credentials, CredentialsError> {
    let part = |key: &str| {
        let missing = || CredentialsError::Unusable { name: name.to_owned(), reason: format!("it has no {key}") };
        text(stored, key).map(str::to_owned).ok_or_else(missing)
    };
    Ok(Credentials { certificate: part(CERTIFICATE)?, key: part(KEY)? })
}

#[cfg(test)]
mod tests;
