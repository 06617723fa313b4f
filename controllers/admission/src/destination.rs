//! Permissions needed to decide where a Cluster's tokens are sent. The only implementation of the rules for
//! `spec.secretRef` and `spec.impersonatorSecretRef`; the server checks the permissions that this module determines.
//!
//! For a Cluster, the server reads two Secrets and sends their tokens to an endpoint; the author of the Cluster
//! chooses both. The author must therefore be permitted to read these Secrets when the Cluster is created, and on
//! each change that affects where tokens are sent. Agents may overwrite the tokens of their own cluster without
//! permission to read them: for Secrets with the cluster's name, as created by Karmada's and Crowsnest's `join`,
//! permission to patch is sufficient.

use crowsnest_api::cluster::{Cluster, ClusterSpec, ClusterSyncMode, LocalSecretReference};
use crowsnest_api::constants::annotation::REACHED_THROUGH;
use crowsnest_api::names::NAMESPACE_KARMADA_CLUSTER;
use crowsnest_apimachinery::addresses::local_kind_of_host;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::url::Url;

const IMPERSONATOR_SUFFIX: &str = "-impersonator";

/// The stored object before a write, as far as the writer has seen it.
#[derive(Debug)]
pub enum PriorObject<'b, T = Cluster> {
    /// The object does not exist, and the write fails if it is created concurrently.
    Absent,
    /// The write applies to whatever object is stored.
    Unseen,
    /// The stored object; the write fails if another one is stored by then.
    Stored(&'b T),
}

impl<T> Clone for PriorObject<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PriorObject<'_, T> {}

impl<'b, T> PriorObject<'b, T> {
    /// Projects to a part of the object. A missing part is unseen.
    pub fn and_then<P>(self, part: impl FnOnce(&'b T) -> Option<&'b P>) -> PriorObject<'b, P> {
        match self {
            Self::Absent => PriorObject::Absent,
            Self::Unseen => PriorObject::Unseen,
            Self::Stored(object) => part(object).map_or(PriorObject::Unseen, PriorObject::Stored),
        }
    }
}

/// A Secret whose values are sent to an address in the written object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretUse {
    /// Field that names the Secret.
    pub field: &'static str,
    pub namespace: String,
    pub name: String,
    /// Permissions on the Secret, any one of which is sufficient.
    pub verbs: &'static [&'static str],
}

/// Permissions on Secrets that a write requires, and the reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequiredPermissions {
    /// Empty if the write does not affect where tokens are sent.
    pub uses: Vec<SecretUse>,
    /// Fields that are set or changed.
    pub reasons: Vec<&'static str>,
    /// Subject and verb of the message about the sent values, such as `a cluster's token is`.
    pub sent_values: &'static str,
}

const READ: &[&str] = &["get"];
const READ_OR_PATCH: &[&str] = &["get", "patch"];

/// Permissions that a writer needs to replace `before` with `after`.
pub fn required_permissions(before: PriorObject<'_>, after: &Cluster) -> RequiredPermissions {
    let reasons = match before {
        PriorObject::Absent => vec!["the cluster is new"],
        PriorObject::Unseen => vec!["an apply also changes a cluster that is created concurrently; create it instead"],
        PriorObject::Stored(before) => changed_fields(before, after),
    };
    if reasons.is_empty() {
        return RequiredPermissions::default();
    }
    let name = after.metadata.name.as_deref().unwrap_or_default();
    let spec = &after.spec;
    let mut uses: Vec<SecretUse> = [
        (SECRET_REF, &spec.secret_ref, name.to_owned()),
        (IMPERSONATOR_REF, &spec.impersonator_secret_ref, format!("{name}{IMPERSONATOR_SUFFIX}")),
    ]
    .into_iter()
    .filter_map(|(field, reference, join_name)| Some(secret_use(field, reference.as_ref()?, name, &join_name)))
    .collect();
    if matches!(before, PriorObject::Unseen) {
        // A Cluster created concurrently can refer to these Secrets, and keeps fields that are not written.
        uses.extend(join_secrets(name).into_iter().filter(|secret| !uses.contains(secret)).collect::<Vec<_>>());
    }
    RequiredPermissions { uses, reasons, sent_values: "a cluster's token is" }
}

impl RequiredPermissions {
    /// Error message for a writer without permission for `secret`.
    pub fn refusal(&self, user: &str, secret: &SecretUse) -> String {
        let SecretUse { field, namespace, name, verbs } = secret;
        format!(
            "User {user:?} cannot {} secret {namespace:?}/{name:?} of {field}: deciding where {} sent requires that permission ({})",
            verbs.join(" or "),
            self.sent_values,
            self.reasons.join(", ")
        )
    }
}

const SECRET_REF: &str = "spec.secretRef";
const IMPERSONATOR_REF: &str = "spec.impersonatorSecretRef";

fn secret_use(field: &'static str, reference: &LocalSecretReference, cluster: &str, join_name: &str) -> SecretUse {
    // The Secret with the token of a cluster "a-impersonator" has the same name as that with the impersonator token
    // of cluster "a".
    let is_join_secret = !cluster.is_empty() && reference.name == join_name && !cluster.ends_with(IMPERSONATOR_SUFFIX);
    let verbs = if is_join_secret { READ_OR_PATCH } else { READ };
    SecretUse { field, namespace: reference.namespace.clone(), name: reference.name.clone(), verbs }
}

/// The Secrets that `join` creates for a cluster.
fn join_secrets(cluster: &str) -> [SecretUse; 2] {
    let reference = |name: String| LocalSecretReference { namespace: NAMESPACE_KARMADA_CLUSTER.to_owned(), name };
    let join_secret = |field, name: String| secret_use(field, &reference(name.clone()), cluster, &name);
    [
        join_secret(SECRET_REF, cluster.to_owned()),
        join_secret(IMPERSONATOR_REF, format!("{cluster}{IMPERSONATOR_SUFFIX}")),
    ]
}

/// Changed fields that determine which tokens are sent, where they are sent, or who can read them on the network.
fn changed_fields(before: &Cluster, after: &Cluster) -> Vec<&'static str> {
    let (old, new) = (&before.spec, &after.spec);
    let reached_through = |cluster: &Cluster| cluster.metadata.annotations.as_ref()?.get(REACHED_THROUGH).cloned();
    let comparisons = [
        ("spec.syncMode", old.sync_mode == new.sync_mode),
        ("spec.apiEndpoint", old.api_endpoint == new.api_endpoint),
        (SECRET_REF, old.secret_ref == new.secret_ref),
        (IMPERSONATOR_REF, old.impersonator_secret_ref == new.impersonator_secret_ref),
        ("spec.insecureSkipTLSVerification", old.insecure_skip_tls_verification == new.insecure_skip_tls_verification),
        ("spec.proxyURL", old.proxy_url == new.proxy_url),
        ("spec.proxyHeader", old.proxy_header == new.proxy_header),
        ("the annotation fleet.crowsnest.io/reached-through", reached_through(before) == reached_through(after)),
    ];
    comparisons.into_iter().filter(|(_, is_same)| !is_same).map(|(field, _)| field).collect()
}

/// Validates where a Cluster's tokens are sent. Stored values that an earlier version accepted remain valid until
/// they change.
pub fn validate(before: Option<&Cluster>, after: &Cluster, local_endpoints: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if sends_over_http(&after.spec) && !before.is_some_and(|before| has_same_endpoint(before, after)) {
        let detail =
            "must be https where spec.secretRef or spec.impersonatorSecretRef is set: tokens are never sent over http";
        errors.push(FieldError::invalid("spec.apiEndpoint", &after.spec.api_endpoint, detail));
    }
    // In pull mode the endpoint is the API server's address inside the member. It is validated when the mode changes.
    if !local_endpoints && after.spec.sync_mode != ClusterSyncMode::Pull {
        let addresses = |spec: &ClusterSpec| [spec.api_endpoint.clone(), spec.proxy_url.clone()];
        let unchanged_mode = before.filter(|before| before.spec.sync_mode == after.spec.sync_mode);
        let stored_addresses = unchanged_mode.map(|before| addresses(&before.spec)).unwrap_or_default();
        for ((field, address), stored_address) in
            ["spec.apiEndpoint", "spec.proxyURL"].into_iter().zip(addresses(&after.spec)).zip(stored_addresses)
        {
            errors.extend(reject_local_host(field, &address).filter(|_| address != stored_address));
        }
    }
    errors
}

fn sends_over_http(spec: &ClusterSpec) -> bool {
    let scheme = spec.api_endpoint.split_once("://").map(|(scheme, _)| scheme);
    let sends = spec.secret_ref.is_some() || spec.impersonator_secret_ref.is_some();
    sends && scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("http"))
}

fn has_same_endpoint(before: &Cluster, after: &Cluster) -> bool {
    let endpoint_and_secrets = |spec: &ClusterSpec| {
        let ClusterSpec { api_endpoint, secret_ref, impersonator_secret_ref, .. } = spec;
        (api_endpoint.clone(), secret_ref.clone(), impersonator_secret_ref.clone())
    };
    endpoint_and_secrets(&before.spec) == endpoint_and_secrets(&after.spec)
}

pub(super) fn reject_local_host(field: &str, address: &str) -> Option<FieldError> {
    let with_scheme = if address.contains("://") { address.to_owned() } else { format!("https://{address}") };
    // Karmada's own validation rejects invalid URLs. The HTTP client accepts some of them nevertheless, with a
    // different host: `[::]` in `http://[::]a`.
    let parsed_kind = Url::parse(&with_scheme).ok().and_then(|url| local_kind_of_host(without_port(url.host)));
    let dialed_kind = || with_scheme.parse::<http::Uri>().ok()?.host().and_then(local_kind_of_host);
    let kind = parsed_kind.or_else(dialed_kind)?;
    let detail = format!("is a {kind} address of this host; --allow-local-endpoints allows it");
    Some(FieldError::invalid(field, address, detail))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !bare.ends_with(':') => {
            if host.starts_with('[') && !bare.ends_with(']') { host } else { bare }
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests;
