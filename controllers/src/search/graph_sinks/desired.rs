//! Resolves a GraphSink to the sink that it describes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_admission::backend_store::SecretName;
use crowsnest_api::sink::GraphSinkSpec;
use crowsnest_apimachinery::addresses::{local_kind, local_kind_of_host};
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_apimachinery::user::{
    UserInfo, parse_service_account_user, service_account_groups, service_account_user,
};
use crowsnest_graph::bolt::{BoltAddress, parse_address};
use crowsnest_graph::{BoltTarget, MODEL_VERSION, SinkConfig, SinkError, SinkOptions};
use crowsnest_search::matching::{StandingQuery, StandingQueryError};

use crate::Error;
use crate::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crate::search::backend_stores::credentials::{ClientSetupError, SecretData};

/// Time limit of the resolution of a database's name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of a sink, with its credentials and identity.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DesiredSink {
    pub config: SinkConfig,
    /// Identity of the ServiceAccount with whose permissions objects are selected.
    pub caller: UserInfo,
    pub query: StandingQuery,
    /// IP address of the connection; `None` with TLS, where the client resolves the name and verifies it.
    pub ip_address: Option<IpAddr>,
}

/// IP address that a running sink uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UsedAddress {
    pub ip_address: IpAddr,
    /// True if the last attempt to connect failed.
    pub has_failed: bool,
}

/// Reason why a sink does not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum SinkSetupError {
    #[error("{0}; correct spec.address: bolt://HOST:PORT or bolt+s://HOST:PORT")]
    Address(SinkError),
    #[error(
        "spec.address is a {0} address of the host of Crowsnest; use another address, or set --allow-local-endpoints to allow it"
    )]
    LocalAddress(&'static str),
    #[error("credentials are never sent without TLS; use a bolt+s address, or a database without authentication")]
    CredentialsWithoutTls,
    #[error("cannot resolve {host:?}: {source}; correct spec.address, or check the name server")]
    Lookup {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("{0}; create it in the namespace of the sink")]
    Secret(ClientSetupError),
    #[error("spec.query: {0}")]
    Query(StandingQueryError),
    #[error("{0:?} is not a valid ServiceAccount name; correct spec.serviceAccountName")]
    InvalidAccountName(String),
    #[error("ServiceAccount {0} does not exist; create it, and bind roles to it in the clusters")]
    AccountNotFound(NamespacedName),
    #[error("cannot read {object}: {source}")]
    Read {
        object: &'static str,
        #[source]
        source: Box<Error>,
    },
    #[error("namespace kube-system of the control plane has no uid")]
    NoControlPlaneUid,
    #[error("{0}; it is restarted after 30 s, and the log of Crowsnest has the cause")]
    Stopped(String),
}

impl SinkSetupError {
    /// Reason of the conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Address(_) => "InvalidAddress",
            Self::LocalAddress(_) | Self::CredentialsWithoutTls => "AddressRefused",
            Self::Lookup { .. } => "NameNotResolved",
            Self::Secret(_) => "SecretUnreadable",
            Self::Query(_) => "InvalidQuery",
            Self::InvalidAccountName(_) | Self::AccountNotFound(_) => "NoServiceAccount",
            Self::Read { .. } | Self::NoControlPlaneUid => "ControlPlaneUnreadable",
            Self::Stopped(_) => "SinkStopped",
        }
    }

    /// True if a retry may succeed without a change of an object.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Lookup { .. } | Self::Read { .. } | Self::NoControlPlaneUid | Self::Stopped(_) => true,
            Self::Secret(error) => matches!(error, ClientSetupError::Secret { .. }),
            _ => false,
        }
    }
}

/// Checks GraphSinks and reads the objects that they refer to. Cheap to clone.
#[derive(Clone)]
pub(super) struct SinkResolver {
    pub objects: DynamicClient,
    /// Allows databases with addresses of this host.
    pub allow_local_addresses: bool,
    /// References that the configuration adds.
    pub rules: Arc<[CustomRule]>,
}

impl SinkResolver {
    /// Resolves a GraphSink. `used_address` is that of its running sink. Fails if its spec is invalid, if its
    /// database's name cannot be resolved, or if an object that it refers to is missing or cannot be read.
    pub async fn resolve(
        &self,
        name: &NamespacedName,
        spec: &GraphSinkSpec,
        used_address: Option<UsedAddress>,
    ) -> Result<DesiredSink, SinkSetupError> {
        let caller = service_account_identity(&name.namespace, &spec.service_account_name)?;
        let query = StandingQuery::parse(&spec.query).map_err(SinkSetupError::Query)?;
        let query_text = spec.query.trim();
        let address = parse_address(&spec.address).map_err(SinkSetupError::Address)?;
        let ip_addresses = self.checked_ip_addresses(&address, spec.secret_ref.is_some()).await?;
        // Without TLS, a second resolution could return an address that is not checked.
        let ip_address = if address.has_tls { None } else { choose_address(&ip_addresses, used_address) };
        self.check_account(name, spec).await?;
        let mut target = BoltTarget {
            address: match ip_address {
                Some(ip_address) => format!("bolt://{}", SocketAddr::new(ip_address, address.port)),
                None => address.url,
            },
            username: String::new(),
            password: String::new(),
            database: spec.database.clone(),
            ca_certificates: None,
        };
        if let Some(reference) = &spec.secret_ref {
            let secret = SecretName { namespace: name.namespace.clone(), name: reference.name.clone() };
            let data = SecretData::read(&self.objects, &secret).await.map_err(SinkSetupError::Secret)?;
            target.username = data.text("username").map_err(SinkSetupError::Secret)?;
            target.password = data.text("password").map_err(SinkSetupError::Secret)?;
            // Optional; the system's CA certificates are used otherwise.
            target.ca_certificates = match data.text("ca.crt") {
                Ok(certificates) => Some(certificates),
                Err(ClientSetupError::NoKey { .. }) => None,
                Err(error) => return Err(SinkSetupError::Secret(error)),
            };
        }
        let config = SinkConfig {
            name: format!("{name} of control plane {}", self.read_control_plane_uid().await?),
            target,
            selection: format!("{MODEL_VERSION} {:?} {} {query_text}", self.rules, caller.name),
            // Conditions on relations and ages can change their result without a change of the object.
            is_stable: query_text.is_empty(),
            options: SinkOptions::default(),
        };
        Ok(DesiredSink { config, caller, query, ip_address })
    }

    /// Resolves the name of a database and checks all of its IP addresses.
    async fn checked_ip_addresses(
        &self,
        address: &BoltAddress,
        has_credentials: bool,
    ) -> Result<Vec<IpAddr>, SinkSetupError> {
        if let Some(kind) = local_kind_of_host(&address.host).filter(|_| !self.allow_local_addresses) {
            return Err(SinkSetupError::LocalAddress(kind));
        }
        let ip_addresses = look_up(address).await?;
        let sends_plain_credentials = has_credentials && !address.has_tls;
        check_ip_addresses(&ip_addresses, sends_plain_credentials, self.allow_local_addresses)?;
        Ok(ip_addresses)
    }

    /// Checks that the ServiceAccount exists.
    async fn check_account(&self, name: &NamespacedName, spec: &GraphSinkSpec) -> Result<(), SinkSetupError> {
        let accounts = Resource::builtin("", "v1", "serviceaccounts", "ServiceAccount", true);
        let account = self.objects.get(Target::new(&accounts, &name.namespace, &spec.service_account_name)).await;
        let unreadable = |source| SinkSetupError::Read { object: "the ServiceAccount", source: Box::new(source) };
        match account.map_err(unreadable)? {
            Some(_) => Ok(()),
            None => Err(SinkSetupError::AccountNotFound(NamespacedName::new(
                name.namespace.clone(),
                spec.service_account_name.clone(),
            ))),
        }
    }

    /// Reads the UID of namespace kube-system, which identifies the control plane: two control planes with equal
    /// GraphSinks must not write to the same graph.
    async fn read_control_plane_uid(&self) -> Result<String, SinkSetupError> {
        let namespaces = Resource::builtin("", "v1", "namespaces", "Namespace", false);
        let namespace = self.objects.get(Target::new(&namespaces, "", "kube-system")).await;
        let unreadable = |source| SinkSetupError::Read { object: "namespace kube-system", source: Box::new(source) };
        let namespace = namespace.map_err(unreadable)?;
        let uid = namespace.as_ref().and_then(|namespace| namespace["metadata"]["uid"].as_str());
        uid.filter(|uid| !uid.is_empty()).map(str::to_owned).ok_or(SinkSetupError::NoControlPlaneUid)
    }
}

/// The distinct IP addresses of a database, at least one.
async fn look_up(address: &BoltAddress) -> Result<Vec<IpAddr>, SinkSetupError> {
    let failed = |source| SinkSetupError::Lookup { host: address.host.clone(), source };
    let lookup = tokio::net::lookup_host((address.host.as_str(), address.port));
    let found = match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
        Ok(result) => result.map_err(failed)?,
        Err(_) => {
            let message = format!("the name server did not respond within {} s", LOOKUP_TIMEOUT.as_secs());
            return Err(failed(io::Error::new(io::ErrorKind::TimedOut, message)));
        }
    };
    let mut ip_addresses = Vec::new();
    for ip_address in found.map(|socket_address| socket_address.ip()) {
        if !ip_addresses.contains(&ip_address) {
            ip_addresses.push(ip_address);
        }
    }
    if ip_addresses.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
    }
    Ok(ip_addresses)
}

/// Rejects addresses of this host, unless they are allowed, and credentials that would leave this host without TLS.
/// Has no side effects.
fn check_ip_addresses(
    ip_addresses: &[IpAddr],
    sends_plain_credentials: bool,
    allow_local_addresses: bool,
) -> Result<(), SinkSetupError> {
    let local = ip_addresses.iter().find_map(|ip_address| local_kind(*ip_address));
    if let Some(kind) = local.filter(|_| !allow_local_addresses) {
        return Err(SinkSetupError::LocalAddress(kind));
    }
    // Other local addresses, such as link-local ones, can be those of other hosts.
    let stays_on_host = ip_addresses.iter().all(|ip_address| ip_address.to_canonical().is_loopback());
    if sends_plain_credentials && !stays_on_host { Err(SinkSetupError::CredentialsWithoutTls) } else { Ok(()) }
}

/// The address to use: that of the running sink as long as it works, because name servers change the order; the next
/// one after a failure. Has no side effects.
fn choose_address(ip_addresses: &[IpAddr], used_address: Option<UsedAddress>) -> Option<IpAddr> {
    let used = used_address.and_then(|used| {
        let position = ip_addresses.iter().position(|ip_address| *ip_address == used.ip_address)?;
        Some(if used.has_failed { position + 1 } else { position })
    });
    ip_addresses.iter().cycle().nth(used.unwrap_or_default()).copied()
}

/// Identity of a ServiceAccount. Fails if the name is invalid.
fn service_account_identity(namespace: &str, name: &str) -> Result<UserInfo, SinkSetupError> {
    let user = service_account_user(namespace, name);
    if parse_service_account_user(&user).is_none() {
        return Err(SinkSetupError::InvalidAccountName(name.to_owned()));
    }
    Ok(UserInfo::new(user, service_account_groups(namespace)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use crowsnest_api::sink::SinkSecretReference;
    use http::{Request, Response};
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::convert::Infallible;

    /// A control plane with ServiceAccount `reader` and Secret `graph` in namespace `team`.
    fn fake_control_plane() -> DynamicClient {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let encoded = |text: &str| STANDARD.encode(text);
            let body = match request.uri().path() {
                "/api/v1/namespaces/team/serviceaccounts/reader" => json!({}),
                "/api/v1/namespaces/team/secrets/graph" => {
                    json!({"data": {"username": encoded("neo4j"), "password": encoded("hunter2\n")}})
                }
                "/api/v1/namespaces/kube-system" => json!({"metadata": {"uid": "cp"}}),
                _ => Value::Null,
            };
            let (status, body) = match body {
                Value::Null => (
                    404,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                        "message": "not found", "code": 404}),
                ),
                body => (200, body),
            };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        });
        DynamicClient::new(kube::Client::new(service, "default"))
    }

    fn spec(address: &str, secret: Option<&str>) -> GraphSinkSpec {
        GraphSinkSpec {
            address: address.to_owned(),
            secret_ref: secret.map(|name| SinkSecretReference { name: name.to_owned() }),
            service_account_name: "reader".to_owned(),
            ..GraphSinkSpec::default()
        }
    }

    async fn resolve(spec: &GraphSinkSpec, allow_local_addresses: bool) -> Result<DesiredSink, SinkSetupError> {
        resolve_with_rules(spec, allow_local_addresses, Arc::default()).await
    }

    async fn resolve_with_rules(
        spec: &GraphSinkSpec,
        allow_local_addresses: bool,
        rules: Arc<[CustomRule]>,
    ) -> Result<DesiredSink, SinkSetupError> {
        let resolver = SinkResolver { objects: fake_control_plane(), allow_local_addresses, rules };
        resolver.resolve(&NamespacedName::new("team", "graph"), spec, None).await
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_sink_runs_as_its_service_account() {
        let sink = resolve(&spec("bolt+s://10.0.0.1:7687", Some("graph")), false).await.unwrap();
        assert_eq!(sink.caller.name, "system:serviceaccount:team:reader");
        assert_eq!(sink.caller.groups, ["system:serviceaccounts", "system:serviceaccounts:team"]);
        assert_eq!((sink.config.target.username.as_str(), sink.config.target.password.as_str()), ("neo4j", "hunter2"));
        assert_eq!(sink.config.name, "team/graph of control plane cp");
        assert!(sink.config.is_stable && !format!("{sink:?}").contains("hunter2"));
    }

    #[rstest]
    #[case::scheme(spec("neo4j://10.0.0.1", None), "InvalidAddress")]
    #[case::local(spec("bolt://127.0.0.1", None), "AddressRefused")]
    #[case::local_name(spec("bolt://localhost", None), "AddressRefused")]
    #[case::plain_text(spec("bolt://10.0.0.1", Some("graph")), "AddressRefused")]
    #[case::plain_text_in_upper_case(spec("BOLT://10.0.0.1", Some("graph")), "AddressRefused")]
    #[case::plain_text_after_a_space(spec(" bolt://10.0.0.1", Some("graph")), "AddressRefused")]
    #[case::no_secret(spec("bolt+s://10.0.0.1", Some("other")), "SecretUnreadable")]
    #[case::no_account(GraphSinkSpec { service_account_name: "other".to_owned(), ..spec("bolt://10.0.0.1", None) }, "NoServiceAccount")]
    #[case::account_of_another_namespace(GraphSinkSpec { service_account_name: "a:b".to_owned(), ..spec("bolt://10.0.0.1", None) },
        "NoServiceAccount")]
    #[case::query(GraphSinkSpec { query: "kind:pod limit:5".to_owned(), ..spec("bolt://10.0.0.1", None) }, "InvalidQuery")]
    #[tokio::test]
    async fn invalid_sinks_have_a_permanent_error_with_a_reason(#[case] spec: GraphSinkSpec, #[case] reason: &str) {
        let error = resolve(&spec, false).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{error}");
        assert!(!error.is_temporary());
    }

    #[rstest]
    #[case::ignored_part("kind:pod) -kind:secret", "spec.query: at byte 8: unmatched closing parenthesis, ignored")]
    #[case::leading_space("  colour:red", "spec.query: at byte 2: unknown field \"colour\", searched as text")]
    #[case::limit("limit:5", "spec.query: limit: selects by rank, which other objects change; remove it")]
    #[tokio::test]
    async fn an_invalid_query_is_reported_with_its_position(#[case] query: &str, #[case] message: &str) {
        let spec = GraphSinkSpec { query: query.to_owned(), ..spec("bolt://10.0.0.1", None) };
        let error = resolve(&spec, false).await.unwrap_err();
        assert_eq!((error.reason(), error.to_string().as_str()), ("InvalidQuery", message));
    }

    #[tokio::test]
    async fn local_addresses_are_accepted_if_they_are_allowed() {
        let sink = resolve(&spec("bolt://127.0.0.1:7687", Some("graph")), true).await.unwrap();
        assert_eq!(sink.config.target.username, "neo4j");
    }

    /// Names of the top-level domain `invalid` have no addresses (RFC 6761).
    #[rstest]
    #[case::plain("bolt://graph.invalid")]
    #[case::with_tls("bolt+s://graph.invalid")]
    #[tokio::test]
    async fn names_that_cannot_be_resolved_are_refused_and_looked_up_again(#[case] address: &str) {
        let error = resolve(&spec(address, None), false).await.unwrap_err();
        assert!(matches!(error, SinkSetupError::Lookup { .. }), "{error}");
        assert_eq!((error.reason(), error.is_temporary()), ("NameNotResolved", true));
    }

    #[rstest]
    #[case::plain("Bolt://10.0.0.1:7688", "bolt://10.0.0.1:7688", Some("10.0.0.1"))]
    #[case::default_port("bolt://10.0.0.1", "bolt://10.0.0.1:7687", Some("10.0.0.1"))]
    #[case::ipv6("bolt://[2001:db8::1]", "bolt://[2001:db8::1]:7687", Some("2001:db8::1"))]
    #[case::with_tls(" BOLT+S://10.0.0.1:7688", "bolt+s://10.0.0.1:7688", None)]
    #[tokio::test]
    async fn connections_without_tls_use_the_checked_ip_address(
        #[case] address: &str,
        #[case] expected: &str,
        #[case] ip_address: Option<&str>,
    ) {
        let sink = resolve(&spec(address, None), false).await.unwrap();
        assert_eq!((sink.config.target.address.as_str(), sink.ip_address), (expected, ip_address.map(ip)));
    }

    #[rstest]
    #[case::remote(&["10.0.0.1"], false, false, None)]
    #[case::plain_credentials(&["10.0.0.1"], true, false, Some("AddressRefused"))]
    #[case::local(&["10.0.0.1", "127.0.0.1"], false, false, Some("AddressRefused"))]
    #[case::allowed(&["10.0.0.1", "169.254.0.1"], false, true, None)]
    #[case::loopback(&["127.0.0.1", "::1", "::ffff:127.0.0.2"], true, true, None)]
    #[case::one_of_several(&["127.0.0.1", "10.0.0.1"], true, true, Some("AddressRefused"))]
    #[case::link_local(&["169.254.0.1"], true, true, Some("AddressRefused"))]
    #[case::unspecified(&["0.0.0.0"], true, true, Some("AddressRefused"))]
    #[case::behind_nat64(&["64:ff9b::7f00:1"], true, true, Some("AddressRefused"))]
    fn plain_credentials_stay_on_the_host(
        #[case] ip_addresses: &[&str],
        #[case] sends_plain_credentials: bool,
        #[case] allow_local_addresses: bool,
        #[case] expected: Option<&str>,
    ) {
        let ip_addresses: Vec<IpAddr> = ip_addresses.iter().map(|text| ip(text)).collect();
        let result = check_ip_addresses(&ip_addresses, sends_plain_credentials, allow_local_addresses);
        assert_eq!(result.err().map(|error| error.reason()), expected);
    }

    #[rstest]
    #[case::first(&["10.0.0.1", "10.0.0.2"], None, Some("10.0.0.1"))]
    #[case::unchanged(&["10.0.0.1", "10.0.0.2"], Some(("10.0.0.2", false)), Some("10.0.0.2"))]
    #[case::next(&["10.0.0.1", "10.0.0.2"], Some(("10.0.0.1", true)), Some("10.0.0.2"))]
    #[case::after_the_last(&["10.0.0.1", "10.0.0.2"], Some(("10.0.0.2", true)), Some("10.0.0.1"))]
    #[case::only_one(&["10.0.0.1"], Some(("10.0.0.1", true)), Some("10.0.0.1"))]
    #[case::removed(&["10.0.0.1", "10.0.0.2"], Some(("10.0.0.3", false)), Some("10.0.0.1"))]
    #[case::none(&[], None, None)]
    fn a_working_ip_address_is_kept(
        #[case] ip_addresses: &[&str],
        #[case] used: Option<(&str, bool)>,
        #[case] expected: Option<&str>,
    ) {
        let ip_addresses: Vec<IpAddr> = ip_addresses.iter().map(|text| ip(text)).collect();
        let used = used.map(|(text, has_failed)| UsedAddress { ip_address: ip(text), has_failed });
        assert_eq!(choose_address(&ip_addresses, used), expected.map(ip));
    }

    #[tokio::test]
    async fn the_selection_changes_with_the_rules_and_the_query() {
        let rule = json!({"kind": "Deployment", "path": "spec.database", "target": {"kind": "Database"}});
        let rules: Arc<[CustomRule]> = Arc::from([serde_json::from_value::<CustomRule>(rule).unwrap()]);
        let plain = spec("bolt://10.0.0.1", None);
        let with_query = GraphSinkSpec { query: "kind:pod".to_owned(), ..plain.clone() };
        let first = resolve(&plain, false).await.unwrap().config.selection;
        assert!(first.starts_with(&format!("{MODEL_VERSION} ")), "{first}");
        assert_ne!(first, resolve(&with_query, false).await.unwrap().config.selection);
        assert_ne!(first, resolve_with_rules(&plain, false, rules).await.unwrap().config.selection);
        assert_eq!(first, resolve(&plain, false).await.unwrap().config.selection);
    }
}
