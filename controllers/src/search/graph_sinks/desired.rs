//! Resolves a GraphSink to the sink that it describes.

use crowsnest_admission::backend_store::SecretName;
use crowsnest_api::sink::GraphSinkSpec;
use crowsnest_apimachinery::addresses::{local_kind, local_kind_of_host};
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::user::{UserInfo, service_account, service_account_groups, service_account_user};
use crowsnest_graph::bolt::parse_address;
use crowsnest_graph::{BoltTarget, SinkConfig, SinkError, SinkOptions};
use crowsnest_search::matching::check_standing_query;

use crate::Error;
use crate::runtime::dynamic_client::{Objects, Resource, Target};
use crate::search::backend_stores::credentials::{ClientSetupError, SecretData};

/// Configuration of a sink, with its credentials and identity.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DesiredSink {
    pub config: SinkConfig,
    /// Identity of the ServiceAccount with whose rights objects are selected.
    pub caller: UserInfo,
    pub query: String,
}

/// Reason why a sink cannot be started.
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
    #[error("{0}; create it in the namespace of the sink")]
    Secret(ClientSetupError),
    #[error("spec.query: {0}")]
    Query(String),
    #[error("{0:?} is not a valid ServiceAccount name; correct spec.serviceAccountName")]
    InvalidAccountName(String),
    #[error("ServiceAccount {0} does not exist; create it, and bind roles to it in the clusters")]
    AccountNotFound(NamespacedName),
    #[error("cannot read {what}: {source}")]
    Read {
        what: &'static str,
        #[source]
        source: Box<Error>,
    },
}

impl SinkSetupError {
    /// Reason of the conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Address(_) => "InvalidAddress",
            Self::LocalAddress(_) | Self::CredentialsWithoutTls => "AddressRefused",
            Self::Secret(_) => "SecretUnreadable",
            Self::Query(_) => "InvalidQuery",
            Self::InvalidAccountName(_) | Self::AccountNotFound(_) => "NoServiceAccount",
            Self::Read { .. } => "ControlPlaneUnreadable",
        }
    }

    /// True if a retry may succeed without a change of an object.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Secret(ClientSetupError::Secret { .. }))
    }
}

/// Checks GraphSinks and reads the objects that they refer to.
pub(super) struct SinkResolver<'r> {
    pub objects: &'r Objects,
    /// Allows databases with addresses of this host.
    pub allow_local_addresses: bool,
}

impl SinkResolver<'_> {
    /// Resolves a GraphSink. Fails if its spec is invalid or an object that it refers to is missing or cannot be read.
    pub async fn resolve(&self, name: &NamespacedName, spec: &GraphSinkSpec) -> Result<DesiredSink, SinkSetupError> {
        let caller = service_account_identity(&name.namespace, &spec.service_account_name)?;
        let query = spec.query.trim();
        check_standing_query(query).map_err(SinkSetupError::Query)?;
        self.check_address(&spec.address, spec.secret_ref.is_some()).await?;
        self.check_account(name, spec).await?;
        let mut target = BoltTarget {
            address: spec.address.clone(),
            username: String::new(),
            password: String::new(),
            database: spec.database.clone(),
            ca_certificates: None,
        };
        if let Some(reference) = &spec.secret_ref {
            let secret = SecretName { namespace: name.namespace.clone(), name: reference.name.clone() };
            let data = SecretData::read(self.objects, &secret).await.map_err(SinkSetupError::Secret)?;
            target.username = data.text("username").map_err(SinkSetupError::Secret)?;
            target.password = data.text("password").map_err(SinkSetupError::Secret)?;
            // Optional; the system's CA certificates are used otherwise.
            target.ca_certificates = data.text("ca.crt").ok();
        }
        let config = SinkConfig {
            name: format!("{name} of control plane {}", self.read_control_plane_uid().await?),
            target,
            selection: format!("{} {query}", caller.name),
            // Conditions on relations and ages can change their result without a change of the object.
            is_stable: query.is_empty(),
            options: SinkOptions::default(),
        };
        Ok(DesiredSink { config, caller, query: query.to_owned() })
    }

    /// Rejects addresses of this host, unless they are allowed, and credentials without TLS.
    async fn check_address(&self, address: &str, has_credentials: bool) -> Result<(), SinkSetupError> {
        let (host, port) = parse_address(address).map_err(SinkSetupError::Address)?;
        let local = match local_kind_of_host(&host) {
            Some(kind) => Some(kind),
            // A name that cannot be resolved is reported by the connection.
            None => {
                let addresses = tokio::net::lookup_host((host.as_str(), port)).await;
                addresses.into_iter().flatten().find_map(|address| local_kind(address.ip()))
            }
        };
        if let Some(kind) = local
            && !self.allow_local_addresses
        {
            return Err(SinkSetupError::LocalAddress(kind));
        }
        let is_plain = address.starts_with("bolt://") && local.is_none();
        if is_plain && has_credentials { Err(SinkSetupError::CredentialsWithoutTls) } else { Ok(()) }
    }

    /// Checks that the ServiceAccount exists.
    async fn check_account(&self, name: &NamespacedName, spec: &GraphSinkSpec) -> Result<(), SinkSetupError> {
        let accounts = Resource::builtin("", "v1", "serviceaccounts", "ServiceAccount", true);
        let account = self.objects.get(Target::new(&accounts, &name.namespace, &spec.service_account_name)).await;
        let unreadable = |source| SinkSetupError::Read { what: "the ServiceAccount", source: Box::new(source) };
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
        let unreadable = |source| SinkSetupError::Read { what: "namespace kube-system", source: Box::new(source) };
        let uid = namespace
            .map_err(unreadable)?
            .and_then(|namespace| namespace["metadata"]["uid"].as_str().map(str::to_owned));
        Ok(uid.unwrap_or_default())
    }
}

/// Identity of a ServiceAccount. Fails if the name is invalid.
fn service_account_identity(namespace: &str, name: &str) -> Result<UserInfo, SinkSetupError> {
    let user = service_account_user(namespace, name);
    if service_account(&user).is_none() {
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
    fn fake_control_plane() -> Objects {
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
        Objects::new(kube::Client::new(service, "default"))
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
        let objects = fake_control_plane();
        let resolver = SinkResolver { objects: &objects, allow_local_addresses };
        resolver.resolve(&NamespacedName::new("team", "graph"), spec).await
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

    #[tokio::test]
    async fn local_addresses_are_accepted_if_they_are_allowed() {
        let sink = resolve(&spec("bolt://127.0.0.1:7687", Some("graph")), true).await.unwrap();
        assert_eq!(sink.config.target.username, "neo4j");
    }
}
