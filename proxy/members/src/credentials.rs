//! Builds the specification of a connection from a Cluster object and its Secrets. Has no side effects.
//!
//! The rules are Karmada's: `spec.secretRef` names a Secret with `token` and `caBundle`,
//! `spec.impersonatorSecretRef` one with `token`; `proxyHeader` values are split at commas.

use crate::Error;
use crowsnest_api::cluster::{Cluster, ClusterSyncMode, SECRET_CA_DATA_KEY, SECRET_TOKEN_KEY};
use crowsnest_api::constants::annotation::REACHED_THROUGH;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use k8s_openapi::api::core::v1::Secret;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The control plane fills Secrets of this type with a token for its own API.
const SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

/// A bearer token that is redacted in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    pub fn new(token: impl Into<Arc<str>>) -> Self {
        Self(token.into())
    }

    /// The plain token, for an Authorization header.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Route by which connections to a member are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberRoute {
    /// Directly or through a proxy.
    Direct,
    /// Through the agent's tunnel if one is open, otherwise directly. Karmada's agent opens no tunnel.
    AgentIfConnected,
    /// Only through the agent's tunnel ([`REACHED_THROUGH`]).
    AgentOnly,
}

/// Specification of a connection. A connection is kept while its specification is equal.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionSpec {
    pub cluster: ClusterName,
    /// `https://host:port[/prefix]`.
    pub endpoint: Uri,
    /// Certificate authorities in PEM; `None` means the system's roots.
    pub ca_bundle: Option<Vec<u8>>,
    pub insecure_skip_tls_verification: bool,
    pub token: Option<Token>,
    pub proxy_url: Option<Uri>,
    pub proxy_header: HeaderMap,
    pub route: MemberRoute,
}

/// Secrets of the control plane.
pub type Secrets = BTreeMap<NamespacedName, Arc<Secret>>;

impl ConnectionSpec {
    /// Builds the specification from the Cluster and the Secret that it names.
    pub fn from_cluster(name: &ClusterName, cluster: &Cluster, secrets: &Secrets) -> Result<Self, Error> {
        let spec = &cluster.spec;
        let endpoint = cluster_endpoint(name, &spec.api_endpoint)?;
        let reference = spec.secret_ref.as_ref().ok_or_else(|| Error::missing_reference(name, "secretRef"))?;
        let reference = SecretReference { cluster: name, namespace: &reference.namespace, name: &reference.name };
        let secret = reference.find(secrets)?;
        let token = reference.token(secret)?;
        let ca_bundle = reference.bytes(secret, SECRET_CA_DATA_KEY).filter(|bundle| !bundle.is_empty());
        let proxy_url = match spec.proxy_url.as_str() {
            "" => None,
            url => Some(parse_proxy_url(name, url)?),
        };
        Ok(Self {
            cluster: name.clone(),
            endpoint,
            ca_bundle,
            insecure_skip_tls_verification: spec.insecure_skip_tls_verification,
            token: Some(token),
            proxy_url,
            proxy_header: parse_proxy_header(name, spec.proxy_header.iter())?,
            route: MemberRoute::from_cluster(cluster),
        })
    }
}

impl MemberRoute {
    /// The route that the Cluster's sync mode and annotations select.
    pub fn from_cluster(cluster: &Cluster) -> Self {
        let route = cluster.metadata.annotations.as_ref().and_then(|annotations| annotations.get(REACHED_THROUGH));
        match (&cluster.spec.sync_mode, route) {
            (ClusterSyncMode::Pull, None) => Self::AgentIfConnected,
            // Any value of the annotation excludes dialing.
            (ClusterSyncMode::Pull, Some(_)) => Self::AgentOnly,
            _ => Self::Direct,
        }
    }
}

/// The token that authenticates requests which impersonate the caller.
pub fn impersonator_token(name: &ClusterName, cluster: &Cluster, secrets: &Secrets) -> Result<Token, Error> {
    let reference = cluster
        .spec
        .impersonator_secret_ref
        .as_ref()
        .ok_or_else(|| Error::missing_reference(name, "impersonatorSecretRef"))?;
    let reference = SecretReference { cluster: name, namespace: &reference.namespace, name: &reference.name };
    reference.token(reference.find(secrets)?)
}

/// Reference to a Secret of a cluster.
struct SecretReference<'a> {
    cluster: &'a ClusterName,
    namespace: &'a str,
    name: &'a str,
}

impl SecretReference<'_> {
    fn error(&self, reason: impl Into<String>) -> Error {
        Error::Secret {
            cluster: self.cluster.clone(),
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            reason: reason.into(),
        }
    }

    fn find<'s>(&self, secrets: &'s Secrets) -> Result<&'s Secret, Error> {
        let key = NamespacedName::new(self.namespace, self.name);
        secrets.get(&key).map(|secret| &**secret).ok_or_else(|| self.error("not found"))
    }

    fn bytes(&self, secret: &Secret, key: &str) -> Option<Vec<u8>> {
        secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone())
    }

    fn token(&self, secret: &Secret) -> Result<Token, Error> {
        if secret.type_.as_deref() == Some(SERVICE_ACCOUNT_TOKEN) {
            return Err(
                self.error("contains a service account token of the control plane, which is never sent to a member")
            );
        }
        let bytes = self.bytes(secret, SECRET_TOKEN_KEY).filter(|token| !token.is_empty());
        let bytes = bytes.ok_or_else(|| self.error("has no token"))?;
        let text = String::from_utf8(bytes).map_err(|_| self.error("has a token that is not text"))?;
        HeaderValue::from_str(&format!("Bearer {}", text.trim()))
            .map_err(|_| self.error("has a token that cannot be sent in a header"))?;
        Ok(Token::new(text.trim()))
    }
}

fn cluster_endpoint(cluster: &ClusterName, text: &str) -> Result<Uri, Error> {
    parse_endpoint(text).map_err(|reason| Error::Endpoint {
        cluster: cluster.clone(),
        endpoint: text.to_owned(),
        reason,
    })
}

/// Parses `spec.apiEndpoint`; returns the reason if it is invalid.
pub fn parse_endpoint(text: &str) -> Result<Uri, String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let uri: Uri = with_scheme.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("https" | "http"), Some(host)) if !host.is_empty() => Ok(uri),
        (Some("https" | "http"), _) => Err("it has no host".to_owned()),
        (scheme, _) => Err(format!("scheme {} is not http or https", scheme.unwrap_or_default())),
    }
}

fn parse_proxy_url(cluster: &ClusterName, text: &str) -> Result<Uri, Error> {
    let unusable = |reason: String| Error::proxy(cluster, &reason);
    let uri: Uri = text.parse().map_err(|e: http::uri::InvalidUri| unusable(e.to_string()))?;
    match uri.scheme_str() {
        Some("http" | "https" | "socks5") => Ok(uri),
        scheme => Err(unusable(format!("scheme {} is not http, https or socks5", scheme.unwrap_or_default()))),
    }
}

fn parse_proxy_header<'a>(
    cluster: &ClusterName,
    headers: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<HeaderMap, Error> {
    let mut map = HeaderMap::new();
    for (name, values) in headers {
        let unusable = |reason: String| Error::proxy(cluster, &reason);
        let name: HeaderName = name.parse().map_err(|_| unusable(format!("{name:?} is not a header name")))?;
        for value in values.split(',') {
            let value = HeaderValue::from_str(value)
                .map_err(|_| unusable(format!("the value of header {name} cannot be sent")))?;
            map.append(name.clone(), value);
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn build(spec: Value, data: Value) -> Result<ConnectionSpec, String> {
        let cluster = json!({"metadata": {"name": "m1"}, "spec": spec});
        let secret = json!({"metadata": {"name": "m1", "namespace": "ns"}, "data": data});
        let secrets = Secrets::from([(
            NamespacedName::new("ns", "m1"),
            Arc::new(serde_json::from_value(secret).expect("a Secret")),
        )]);
        let name = ClusterName::parse("m1").expect("a name");
        let cluster = serde_json::from_value(cluster).expect("a Cluster");
        ConnectionSpec::from_cluster(&name, &cluster, &secrets).map_err(|error| error.to_string())
    }

    fn spec(more: Value) -> Value {
        let mut spec = json!({"apiEndpoint": "https://10.0.0.1:6443", "secretRef": {"namespace": "ns", "name": "m1"}});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec
    }

    #[test]
    fn the_specification_is_built_from_a_cluster_and_its_secret() {
        let more =
            json!({"proxyURL": "socks5://proxy:1080", "proxyHeader": {"X-Team": "a,b"}, "apiEndpoint": "m1:6443/base"});
        // "token" and "ca" in base64.
        let built = build(spec(more), json!({"token": "dG9rZW4=", "caBundle": "Y2E="})).unwrap();
        assert_eq!(built.endpoint.to_string(), "https://m1:6443/base");
        assert_eq!((built.token.unwrap().reveal(), built.ca_bundle.unwrap().as_slice()), ("token", b"ca".as_slice()));
        assert_eq!(built.proxy_header.get_all("x-team").iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[rstest]
    #[case::no_secret(json!({"secretRef": {"namespace": "ns", "name": "other"}}), json!({"token": "dG9rZW4="}),
        "cluster m1: secret ns/other not found")]
    #[case::no_token(json!({}), json!({}), "cluster m1: secret ns/m1 has no token")]
    #[case::no_reference(json!({"secretRef": null}), json!({}), "cluster m1: spec.secretRef is not set")]
    #[case::no_endpoint(json!({"apiEndpoint": ""}), json!({"token": "dG9rZW4="}),
        "cluster m1: spec.apiEndpoint \"\" is not usable: it is empty")]
    #[case::unsupported_proxy(json!({"proxyURL": "ftp://x"}), json!({"token": "dG9rZW4="}),
        "cluster m1: spec.proxyURL or spec.proxyHeader is not usable: scheme ftp is not http, https or socks5")]
    fn incomplete_clusters_are_reported(#[case] more: Value, #[case] data: Value, #[case] expected: &str) {
        assert_eq!(build(spec(more), data).unwrap_err(), expected);
    }

    #[rstest]
    #[case::push(json!({}), None, MemberRoute::Direct)]
    #[case::push_ignores_the_annotation(json!({}), Some("agent"), MemberRoute::Direct)]
    #[case::an_agent_of_karmada(json!({"syncMode": "Pull"}), None, MemberRoute::AgentIfConnected)]
    #[case::an_agent_of_crowsnest(json!({"syncMode": "Pull"}), Some("agent"), MemberRoute::AgentOnly)]
    #[case::unknown_value(json!({"syncMode": "Pull"}), Some("pigeon"), MemberRoute::AgentOnly)]
    fn only_pull_clusters_use_tunnels(
        #[case] more: Value,
        #[case] annotation: Option<&str>,
        #[case] expected: MemberRoute,
    ) {
        let mut cluster = json!({"metadata": {"name": "m1"}, "spec": spec(more)});
        if let Some(annotation) = annotation {
            cluster["metadata"]["annotations"] = json!({REACHED_THROUGH: annotation});
        }
        let cluster = serde_json::from_value(cluster).expect("a Cluster");
        assert_eq!(MemberRoute::from_cluster(&cluster), expected);
    }

    #[rstest]
    #[case::as_join_writes_it(Some("Opaque"), true)]
    #[case::without_a_type(None, true)]
    #[case::service_account_of_the_control_plane(Some("kubernetes.io/service-account-token"), false)]
    fn service_account_tokens_of_the_control_plane_are_rejected(#[case] kind: Option<&str>, #[case] expected: bool) {
        let cluster = json!({"metadata": {"name": "m1"}, "spec": {"apiEndpoint": "https://m1",
            "secretRef": {"namespace": "ns", "name": "m1"}, "impersonatorSecretRef": {"namespace": "ns", "name": "m1"}}});
        let secret =
            json!({"metadata": {"name": "m1", "namespace": "ns"}, "type": kind, "data": {"token": "dG9rZW4="}});
        let (cluster, secret) = (serde_json::from_value(cluster).unwrap(), serde_json::from_value(secret).unwrap());
        let secrets = Secrets::from([(NamespacedName::new("ns", "m1"), Arc::new(secret))]);
        let name = ClusterName::parse("m1").unwrap();
        assert_eq!(ConnectionSpec::from_cluster(&name, &cluster, &secrets).is_ok(), expected);
        assert_eq!(impersonator_token(&name, &cluster, &secrets).is_ok(), expected);
    }

    #[test]
    fn tokens_are_redacted() {
        assert_eq!(format!("{:?}", Token::new("hunter2")), "Token(…)");
    }
}
