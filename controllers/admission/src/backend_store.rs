//! Backend store of a ResourceRegistry (the OpenSearch cluster in `spec.backendStore.openSearch`): where objects and
//! credentials are sent, and the permissions that this requires. The only implementation of the rules for `secretRef`
//! and the related annotations.
//!
//! The server reads the Secrets that a registry refers to and sends their values to addresses chosen by the same
//! author. As for Clusters ([`super::destination`]), the author must therefore be permitted to read these Secrets
//! when the registry is created, and on each change of addresses or references.

use crowsnest_api::constants::annotation::{BACKEND_STORE_CA, BACKEND_STORE_CERTIFICATE};
use crowsnest_api::search::ResourceRegistry;
use crowsnest_apimachinery::addresses::local_kind_of_host;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::url::Url;
use serde::{Deserialize, Serialize};
use std::fmt;

use super::destination::{PriorObject, RequiredPermissions, SecretUse, reject_local_host};

const ADDRESSES: &str = "spec.backendStore.openSearch.addresses";
const SECRET_REF: &str = "spec.backendStore.openSearch.secretRef";
const CA: &str = "metadata.annotations[search.crowsnest.io/backend-store-ca-secret]";
const CERTIFICATE: &str = "metadata.annotations[search.crowsnest.io/backend-store-certificate-secret]";

/// Name of a Secret in the control plane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// OpenSearch cluster and the Secrets used for it. Registries with equal destinations share a backend store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    /// Base URLs of the cluster's nodes, sorted.
    pub addresses: Vec<String>,
    /// Secret with `username` and `password`.
    pub credentials: Option<SecretName>,
    /// Secret with `ca.crt`.
    pub ca: Option<SecretName>,
    /// Secret with `tls.crt` and `tls.key`.
    pub certificate: Option<SecretName>,
}

impl Destination {
    /// The destination of a registry, if any. As in Karmada, a reference without namespace or name is ignored. An
    /// annotation that cannot be parsed is an error.
    pub fn from_registry(registry: &ResourceRegistry) -> Result<Option<Self>, FieldError> {
        let Some(open_search) = registry.spec.backend_store.as_ref().and_then(|store| store.open_search.as_ref())
        else {
            return Ok(None);
        };
        let reference = &open_search.secret_ref;
        let credentials = SecretName { namespace: reference.namespace.clone(), name: reference.name.clone() };
        let mut addresses: Vec<String> =
            open_search.addresses.iter().map(|address| address.trim().trim_end_matches('/').to_owned()).collect();
        addresses.sort();
        addresses.dedup();
        let find_secret = |key: &str, field: &'static str| {
            let value = registry.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
            value.map(|value| parse_secret_name(value, field)).transpose()
        };
        Ok(Some(Self {
            addresses,
            credentials: Some(credentials).filter(|name| !name.namespace.is_empty() && !name.name.is_empty()),
            ca: find_secret(BACKEND_STORE_CA, CA)?,
            certificate: find_secret(BACKEND_STORE_CERTIFICATE, CERTIFICATE)?,
        }))
    }

    /// True if both have a node with the same address.
    pub fn shares_address(&self, other: &Self) -> bool {
        self.addresses.iter().any(|address| other.addresses.contains(address))
    }

    /// Reason why credentials must not be sent: an address is not encrypted. With `allow_local`, plain http to
    /// addresses of this host is allowed.
    pub fn plaintext_problem(&self, allow_local: bool) -> Option<String> {
        let is_unencrypted = |address: &&String| {
            let is_http = scheme_of(address).eq_ignore_ascii_case("http");
            is_http && !(allow_local && Url::parse(address).is_ok_and(|url| is_local(url.host)))
        };
        let has_credentials = self.credentials.is_some() || self.certificate.is_some();
        // The address may contain a password, so it is not repeated.
        let index = self.addresses.iter().position(|address| is_unencrypted(&address)).filter(|_| has_credentials)?;
        Some(format!("credentials are never sent over http, but address {index} is not an https URL"))
    }
}

fn scheme_of(address: &str) -> &str {
    address.split_once("://").map_or("", |(scheme, _)| scheme)
}

fn is_local(host: &str) -> bool {
    let host_and_port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    local_kind_of_host(host_and_port.map_or(host, |(name, _)| name)).is_some()
}

fn parse_secret_name(text: &str, field: &'static str) -> Result<SecretName, FieldError> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(SecretName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err(FieldError::invalid(field, text, "must be the NAMESPACE/NAME of a Secret")),
    }
}

/// Permissions that a writer needs to replace `before` with `after`.
pub fn required_permissions(
    before: PriorObject<'_, ResourceRegistry>,
    after: &ResourceRegistry,
) -> RequiredPermissions {
    // Unparsable annotations are rejected by validation.
    let Ok(Some(destination)) = Destination::from_registry(after) else { return RequiredPermissions::default() };
    let reasons = match before {
        PriorObject::Absent => vec!["the registry is new"],
        PriorObject::Unseen => {
            vec!["apply could change a registry that is created at the same time; use create instead"]
        }
        PriorObject::Stored(before) => match Destination::from_registry(before) {
            Ok(Some(stored)) => changed_fields(&stored, &destination),
            Ok(None) | Err(_) => vec![ADDRESSES],
        },
    };
    if reasons.is_empty() {
        return RequiredPermissions::default();
    }
    let Destination { credentials, ca, certificate, .. } = destination;
    let uses = [(SECRET_REF, credentials), (CA, ca), (CERTIFICATE, certificate)];
    let uses = uses.into_iter().filter_map(|(field, name)| {
        let SecretName { namespace, name } = name?;
        Some(SecretUse { field, namespace, name, verbs: &["get"] })
    });
    RequiredPermissions { uses: uses.collect(), reasons, sent_values: "the values of a Secret are" }
}

fn changed_fields(before: &Destination, after: &Destination) -> Vec<&'static str> {
    let comparisons = [
        (ADDRESSES, before.addresses == after.addresses),
        (SECRET_REF, before.credentials == after.credentials),
        (CA, before.ca == after.ca),
        (CERTIFICATE, before.certificate == after.certificate),
    ];
    comparisons.into_iter().filter(|(_, is_same)| !is_same).map(|(field, _)| field).collect()
}

/// Validates where a registry's objects and credentials are sent. Stored values that an earlier version accepted
/// remain valid until they change.
pub fn validate(before: Option<&ResourceRegistry>, after: &ResourceRegistry, allow_local: bool) -> Vec<FieldError> {
    let destination = match Destination::from_registry(after) {
        Ok(Some(destination)) => destination,
        Ok(None) => return Vec::new(),
        Err(error) => return vec![error],
    };
    let stored = before.and_then(|before| Destination::from_registry(before).ok().flatten());
    if stored.as_ref() == Some(&destination) {
        return Vec::new();
    }
    let open_searches = after.spec.backend_store.iter().filter_map(|store| store.open_search.as_ref());
    let mut errors = Vec::new();
    for (index, address) in open_searches.flat_map(|open_search| &open_search.addresses).enumerate() {
        let field = format!("{ADDRESSES}[{index}]");
        // Invalid URLs are rejected by the validation of the registry.
        let Ok(url) = Url::parse(address) else { continue };
        if url.user.is_some() || !url.query.is_empty() || !url.fragment.is_empty() {
            // The address may contain a password, so it is not repeated.
            let detail =
                "must have no user, password, query and fragment; put credentials into the Secret of secretRef";
            errors.push(FieldError::invalid(field, "", detail));
        } else if !allow_local {
            errors.extend(reject_local_host(&field, address));
        }
    }
    errors
}

/// Warnings for the author of a registry. Karmada accepts credentials for `http://` addresses, so such a registry is
/// stored and its objects are cached, but nothing is sent to its backend store.
pub fn warnings(registry: &ResourceRegistry, allow_local: bool) -> Vec<String> {
    let destination = Destination::from_registry(registry).ok().flatten();
    let reason = destination.and_then(|destination| destination.plaintext_problem(allow_local));
    reason.map(|reason| format!("spec.backendStore.openSearch: nothing is exported: {reason}")).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn registry(address: &str, secret: &str, annotations: Value) -> ResourceRegistry {
        serde_json::from_value(json!({
            "metadata": {"name": "r", "annotations": annotations},
            "spec": {"targetCluster": {}, "resourceSelectors": [], "backendStore": {"openSearch": {
                "addresses": [address], "secretRef": {"namespace": "search", "name": secret}}}},
        }))
        .unwrap()
    }

    fn https_registry(name: &str) -> ResourceRegistry {
        registry(&format!("https://{name}:9200"), "engine", json!({}))
    }

    fn secrets(permissions: &RequiredPermissions) -> Vec<String> {
        permissions.uses.iter().map(|secret| format!("{}/{}", secret.namespace, secret.name)).collect()
    }

    #[rstest]
    #[case::new(None, https_registry("a"), &["search/engine"])]
    #[case::same(Some(https_registry("a")), https_registry("a"), &[])]
    #[case::trailing_slash(Some(https_registry("a")), registry("https://a:9200/", "engine", json!({})), &[])]
    #[case::another_address(Some(https_registry("a")), https_registry("b"), &["search/engine"])]
    #[case::another_secret(Some(https_registry("a")), registry("https://a:9200", "other", json!({})), &["search/other"])]
    #[case::no_secret(Some(https_registry("a")), registry("https://a:9200", "", json!({})), &[])]
    #[case::a_certificate(
        Some(https_registry("a")),
        registry("https://a:9200", "engine", json!({BACKEND_STORE_CERTIFICATE: "x/cert", BACKEND_STORE_CA: "x/ca"})),
        &["search/engine", "x/ca", "x/cert"]
    )]
    fn writers_need_permission_for_the_secrets(
        #[case] before: Option<ResourceRegistry>,
        #[case] after: ResourceRegistry,
        #[case] expected: &[&str],
    ) {
        let permissions =
            required_permissions(before.as_ref().map_or(PriorObject::Absent, PriorObject::Stored), &after);
        assert_eq!(secrets(&permissions), expected);
        if !expected.is_empty() {
            assert_eq!(secrets(&required_permissions(PriorObject::Unseen, &after)), expected);
        }
    }

    #[test]
    fn adding_a_backend_store_requires_permission() {
        let without_store: ResourceRegistry =
            serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {"targetCluster": {}}})).unwrap();
        let permissions = required_permissions(PriorObject::Stored(&without_store), &https_registry("a"));
        assert_eq!(secrets(&permissions), ["search/engine"]);
        assert!(secrets(&required_permissions(PriorObject::Stored(&https_registry("a")), &without_store)).is_empty());
        let refusal = permissions.refusal("eve", &permissions.uses[0]);
        assert!(
            refusal.contains("deciding where the values of a Secret are sent requires that permission"),
            "{refusal}"
        );
    }

    #[rstest]
    #[case::valid("https://search.example.com:9200", "engine", false, &[])]
    #[case::plain_without_credentials("http://10.0.0.1:9200", "", false, &[])]
    #[case::plain("http://10.0.0.1:9200", "engine", false, &[])]
    #[case::loopback("https://127.0.0.1:9200", "", false, &["spec.backendStore.openSearch.addresses[0]"])]
    #[case::metadata_service("http://169.254.169.254", "", false, &["spec.backendStore.openSearch.addresses[0]"])]
    #[case::localhost("https://localhost", "", false, &["spec.backendStore.openSearch.addresses[0]"])]
    #[case::password("https://u:s3cret@a", "", true, &["spec.backendStore.openSearch.addresses[0]"])]
    fn invalid_addresses_are_rejected(
        #[case] address: &str,
        #[case] secret: &str,
        #[case] allow_local: bool,
        #[case] expected: &[&str],
    ) {
        let after = registry(address, secret, json!({}));
        let errors = validate(None, &after, allow_local);
        assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), expected, "{errors:?}");
        assert!(!format!("{errors:?}").contains("s3cret"));
        assert!(validate(Some(&after), &after, allow_local).is_empty(), "stored values remain valid");
    }

    #[rstest]
    #[case("https://a:9200", true)]
    #[case("https://a:9200/", true)]
    #[case("https://b:9200", false)]
    fn destinations_are_compared_by_address(#[case] other: &str, #[case] expected: bool) {
        let destination = |registry: &ResourceRegistry| Destination::from_registry(registry).unwrap().unwrap();
        let registry = registry(other, "other", json!({}));
        assert_eq!(destination(&https_registry("a")).shares_address(&destination(&registry)), expected);
    }

    #[rstest]
    #[case::encrypted("https://10.0.0.1:9200", "engine", false, false)]
    #[case::no_credentials("http://10.0.0.1:9200", "", false, false)]
    #[case::plain("http://10.0.0.1:9200", "engine", false, true)]
    #[case::plain_to_another_host("http://10.0.0.1:9200", "engine", true, true)]
    #[case::plain_to_loopback("http://127.0.0.1:9200", "engine", true, false)]
    fn credentials_over_http_cause_warnings(
        #[case] address: &str,
        #[case] secret: &str,
        #[case] allow_local: bool,
        #[case] expected: bool,
    ) {
        let warnings = warnings(&registry(address, secret, json!({})), allow_local);
        assert_eq!(!warnings.is_empty(), expected, "{warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains("credentials are never sent over http")));
    }

    #[rstest]
    #[case("a/b", true)]
    #[case("b", false)]
    #[case("/b", false)]
    #[case("a/", false)]
    #[case("a/b/c", false)]
    fn annotations_name_secrets(#[case] value: &str, #[case] is_valid: bool) {
        let registry = registry("https://a", "", json!({BACKEND_STORE_CA: value}));
        let errors = validate(None, &registry, false);
        assert_eq!(errors.is_empty(), is_valid, "{errors:?}");
    }
}
