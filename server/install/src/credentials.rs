//! What the parts of an installation know each other by: authorities, certificates and the database's password, each a Secret of
//! one namespace. `crowsnest credentials` makes what is missing, and issues certificates anew long before they end; the chart's job
//! runs it. [`judge`] decides, [`issue`] makes; what is kept is never written.
//!
//! The Secrets have the shape that cert-manager gives them (`tls.crt`, `tls.key`, `ca.crt`), so that either may look after them.

mod issue;
mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crowsnest_apimachinery::names::format::dns1123_subdomain;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use serde::Deserialize;

use judge::{Verdict, judge};

pub use judge::Why;

pub const CERTIFICATE: &str = "tls.crt";
pub const KEY: &str = "tls.key";
pub const AUTHORITY: &str = "ca.crt";
const PASSWORD: &str = "password";
const URL: &str = "url";
/// What stands in a URL where the password is to be.
const PLACEHOLDER: &str = "{password}";
/// How often somebody else may have written a Secret meanwhile.
const TRIES: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("the list can't be read")]
    List(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{name}: {why}")]
    Wish { name: String, why: String },
    #[error("Secret {name} is no use, and is left as it is: {why}")]
    Unusable { name: String, why: String },
    #[error("issuing {name}")]
    Issue { name: String, source: rcgen::Error },
    #[error("{name} has to be kept for longer than there are dates")]
    Date { name: String },
    #[error("Secret {name}")]
    Secret { name: String, source: kube::Error },
}

/// What a certificate is shown for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Usage {
    Server,
    Client,
}

/// A certificate as it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Leaf {
    pub name: String,
    /// The authority, which stands before it in the list.
    pub issuer: String,
    pub common_name: String,
    #[serde(default)]
    pub organization: Option<String>,
    pub usages: Vec<Usage>,
    /// DNS names and addresses.
    #[serde(default)]
    pub names: Vec<String>,
    /// Tokens are signed with the key: it outlives the certificate.
    #[serde(default)]
    pub keep_key: bool,
}

/// One Secret as it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum Wish {
    #[serde(rename_all = "camelCase")]
    Authority {
        name: String,
        common_name: String,
    },
    Certificate(Leaf),
    /// A password, and a URL that has it.
    Password {
        name: String,
        url: String,
    },
}

impl Wish {
    pub fn name(&self) -> &str {
        match self {
            Wish::Authority { name, .. } | Wish::Password { name, .. } => name,
            Wish::Certificate(leaf) => &leaf.name,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    secrets: Vec<Wish>,
}

/// The list of a file, as far as it makes sense.
pub fn read(text: &str) -> Result<Vec<Wish>, CredentialsError> {
    let list: List = serde_saphyr::from_str(text).map_err(|error| CredentialsError::List(Box::new(error)))?;
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let mut authorities: BTreeSet<&str> = BTreeSet::new();
    for wish in &list.secrets {
        let name = wish.name();
        let wrong = |why: &str| Err(CredentialsError::Wish { name: name.to_owned(), why: why.to_owned() });
        if let Some(why) = dns1123_subdomain(name).first() {
            return wrong(why);
        }
        if !known.insert(name) {
            return wrong("the list has it twice");
        }
        match wish {
            Wish::Authority { .. } => {
                authorities.insert(name);
            }
            Wish::Certificate(leaf) if leaf.usages.is_empty() => return wrong("usages: client, server, or both"),
            Wish::Certificate(leaf) if !authorities.contains(leaf.issuer.as_str()) => {
                return wrong(&format!("issuer: no authority {} stands before it", leaf.issuer));
            }
            Wish::Password { url, .. } if !url.contains(PLACEHOLDER) => return wrong("url: has no {password}"),
            Wish::Certificate(_) | Wish::Password { .. } => {}
        }
    }
    Ok(list.secrets)
}

/// A certificate with its key, both PEM. What it prints has no key.
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

/// What became of one Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Until when it holds, where it ends.
    Kept(Option<Timestamp>),
    Made(Why),
}

/// The present, and the time before their end at which certificates are renewed.
#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    pub now: Timestamp,
    pub ahead: SignedDuration,
}

/// Looks at each Secret, in the list's order, and makes what has to be made. With `dry_run` it only says so.
pub async fn ensure(
    secrets: &Api<Secret>,
    wishes: &[Wish],
    renewal: Renewal,
    dry_run: bool,
    mut told: impl FnMut(&str, &Outcome),
) -> Result<(), CredentialsError> {
    let mut authorities: BTreeMap<String, Credentials> = BTreeMap::new();
    for wish in wishes {
        let (outcome, held) = ensure_one(secrets, wish, &authorities, renewal, dry_run).await?;
        told(wish.name(), &outcome);
        if let Wish::Authority { name, .. } = wish {
            authorities.insert(name.clone(), credentials(name, &held)?);
        }
    }
    Ok(())
}

/// What is in a Secret.
type Held = BTreeMap<String, ByteString>;

async fn ensure_one(
    secrets: &Api<Secret>,
    wish: &Wish,
    authorities: &BTreeMap<String, Credentials>,
    renewal: Renewal,
    dry_run: bool,
) -> Result<(Outcome, Held), CredentialsError> {
    let name = wish.name();
    let failed = |source| CredentialsError::Secret { name: name.to_owned(), source };
    let issuer = match wish {
        Wish::Certificate(leaf) => authorities.get(&leaf.issuer),
        Wish::Authority { .. } | Wish::Password { .. } => None,
    };
    let mut tries = 0;
    loop {
        let there = secrets.get_opt(name).await.map_err(failed)?;
        let held = there.as_ref().and_then(|secret| secret.data.as_ref());
        let why = match judge(wish, held, issuer, renewal)? {
            Verdict::Keep(until) => return Ok((Outcome::Kept(until), held.cloned().unwrap_or_default())),
            Verdict::Make(why) => why,
        };
        let data = issue::data(wish, held, issuer, renewal.now, &rand::random())?;
        if dry_run {
            return Ok((Outcome::Made(why), data));
        }
        match write(secrets, wish, there, data.clone()).await {
            Ok(_) => return Ok((Outcome::Made(why), data)),
            // Another one makes them at the same time: theirs is as good.
            Err(kube::Error::Api(status)) if tries < TRIES && (status.is_conflict() || status.is_already_exists()) => {
                tries += 1;
            }
            Err(source) => return Err(failed(source)),
        }
    }
}

async fn write(secrets: &Api<Secret>, wish: &Wish, there: Option<Secret>, data: Held) -> kube::Result<Secret> {
    let options = PostParams { field_manager: Some("crowsnest-credentials".to_owned()), ..PostParams::default() };
    match there {
        Some(mut secret) => {
            secret.data.get_or_insert_default().extend(data);
            secrets.replace(wish.name(), &options, &secret).await
        }
        None => {
            let kind = if matches!(wish, Wish::Password { .. }) { "Opaque" } else { "kubernetes.io/tls" };
            let mut secret = Secret { data: Some(data), type_: Some(kind.to_owned()), ..Secret::default() };
            secret.metadata.name = Some(wish.name().to_owned());
            let label = ("app.kubernetes.io/managed-by".to_owned(), "crowsnest".to_owned());
            secret.metadata.labels = Some(BTreeMap::from([label]));
            secrets.create(&options, &secret).await
        }
    }
}

fn text<'a>(held: &'a Held, key: &str) -> Option<&'a str> {
    held.get(key).and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).filter(|text| !text.is_empty())
}

fn credentials(name: &str, held: &Held) -> Result<Credentials, CredentialsError> {
    let part = |key: &str| {
        let missing = || CredentialsError::Unusable { name: name.to_owned(), why: format!("it has no {key}") };
        text(held, key).map(str::to_owned).ok_or_else(missing)
    };
    Ok(Credentials { certificate: part(CERTIFICATE)?, key: part(KEY)? })
}

#[cfg(test)]
mod tests;
