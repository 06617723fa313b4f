//! A sink as a GraphSink describes it.

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

/// A sink with everything that it needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DesiredSink {
    pub config: SinkConfig,
    /// The ServiceAccount.
    pub caller: UserInfo,
    pub query: String,
}

/// Reason why a sink cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum SinkSetupError {
    #[error("{0}; correct spec.address: bolt://HOST:PORT or bolt+s://HOST:PORT")]
    Address(SinkError),
    #[error(
        "spec.address is a {0} address of the host of Crowsnest; name another one, or set --allow-local-endpoints to allow it"
    )]
    LocalAddress(&'static str),
    #[error("credentials are never sent without TLS; use a bolt+s address, or a database without authentication")]
    PlainText,
    #[error("{0}; create it in the namespace of the sink")]
    Secret(ClientSetupError),
    #[error("spec.query: {0}")]
    Query(String),
    #[error("{0:?} is no name of a ServiceAccount; correct spec.serviceAccountName")]
    AccountName(String),
    #[error("ServiceAccount {0} does not exist; create it, and bind roles to it in the clusters")]
    NoAccount(NamespacedName),
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
            Self::LocalAddress(_) | Self::PlainText => "AddressRefused",
            Self::Secret(_) => "SecretUnreadable",
            Self::Query(_) => "InvalidQuery",
            Self::AccountName(_) | Self::NoAccount(_) => "NoServiceAccount",
            Self::Read { .. } => "ControlPlaneUnreadable",
        }
    }

    /// True if the same spec may become usable without a change of an object.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Secret(ClientSetupError::Secret { .. }))
    }
}

/// Reads what a GraphSink refers to.
pub(super) struct Reader<'r> {
    pub objects: &'r Objects,
    pub local_addresses: bool,
}

impl Reader<'_> {
    pub async fn desired(&self, name: &NamespacedName, spec: &GraphSinkSpec) -> Result<DesiredSink, SinkSetupError> {
        let caller = account(&name.namespace, &spec.service_account_name)?;
        let query = spec.query.trim();
        check_standing_query(query).map_err(SinkSetupError::Query)?;
        self.check_address(&spec.address, spec.secret_ref.is_some()).await?;
        self.check_account(name, spec).await?;
        let mut target = BoltTarget {
            address: spec.address.clone(),
            username: String::new(),
            password: String::new(),
            database: spec.database.clone(),
            authority: None,
        };
        if let Some(reference) = &spec.secret_ref {
            let secret = SecretName { namespace: name.namespace.clone(), name: reference.name.clone() };
            let data = SecretData::read(self.objects, &secret).await.map_err(SinkSetupError::Secret)?;
            target.username = data.text("username").map_err(SinkSetupError::Secret)?;
            target.password = data.text("password").map_err(SinkSetupError::Secret)?;
            // Optional: the CA of the system otherwise.
            target.authority = data.text("ca.crt").ok();
        }
        let config = SinkConfig {
            name: format!("{name} of control plane {}", self.control_plane().await?),
            target,
            selection: format!("{} {query}", caller.name),
            // Relations and ages change without a change of the object.
            is_stable: query.is_empty(),
            options: SinkOptions::default(),
        };
        Ok(DesiredSink { config, caller, query: query.to_owned() })
    }

    /// Refuses addresses of this host, and credentials without TLS.
    async fn check_address(&self, address: &str, has_credentials: bool) -> Result<(), SinkSetupError> {
        let (host, port) = parse_address(address).map_err(SinkSetupError::Address)?;
        let local = match local_kind_of_host(&host) {
            Some(kind) => Some(kind),
            // A name that does not resolve is reported by the connection.
            None => {
                let found = tokio::net::lookup_host((host.as_str(), port)).await;
                found.into_iter().flatten().find_map(|address| local_kind(address.ip()))
            }
        };
        if let Some(kind) = local
            && !self.local_addresses
        {
            return Err(SinkSetupError::LocalAddress(kind));
        }
        let is_plain = address.starts_with("bolt://") && local.is_none();
        if is_plain && has_credentials { Err(SinkSetupError::PlainText) } else { Ok(()) }
    }

    async fn check_account(&self, name: &NamespacedName, spec: &GraphSinkSpec) -> Result<(), SinkSetupError> {
        let accounts = Resource::builtin("", "v1", "serviceaccounts", "ServiceAccount", true);
        let found = self.objects.get(Target::new(&accounts, &name.namespace, &spec.service_account_name)).await;
        let unreadable = |source| SinkSetupError::Read { what: "the ServiceAccount", source: Box::new(source) };
        match found.map_err(unreadable)? {
            Some(_) => Ok(()),
            None => Err(SinkSetupError::NoAccount(NamespacedName::new(
                name.namespace.clone(),
                spec.service_account_name.clone(),
            ))),
        }
    }

    /// Id of the control plane, so that sinks of two control planes do not take each other's graph.
    async fn control_plane(&self) -> Result<String, SinkSetupError> {
        let namespaces = Resource::builtin("", "v1", "namespaces", "Namespace", false);
        let found = self.objects.get(Target::new(&namespaces, "", "kube-system")).await;
        let unreadable = |source| SinkSetupError::Read { what: "namespace kube-system", source: Box::new(source) };
        let uid = found.map_err(unreadable)?.and_then(|found| found["metadata"]["uid"].as_str().map(str::to_owned));
        Ok(uid.unwrap_or_default())
    }
}

/// The identity of a ServiceAccount.
fn account(namespace: &str, name: &str) -> Result<UserInfo, SinkSetupError> {
    let user = service_account_user(namespace, name);
    if service_account(&user).is_none() {
        return Err(SinkSetupError::AccountName(name.to_owned()));
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
    fn control_plane() -> Objects {
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

    async fn desired(spec: &GraphSinkSpec, local_addresses: bool) -> Result<DesiredSink, SinkSetupError> {
        let objects = control_plane();
        let reader = Reader { objects: &objects, local_addresses };
        reader.desired(&NamespacedName::new("team", "graph"), spec).await
    }

    #[tokio::test]
    async fn a_sink_runs_as_its_service_account() {
        let found = desired(&spec("bolt+s://10.0.0.1:7687", Some("graph")), false).await.unwrap();
        assert_eq!(found.caller.name, "system:serviceaccount:team:reader");
        assert_eq!(found.caller.groups, ["system:serviceaccounts", "system:serviceaccounts:team"]);
        assert_eq!(
            (found.config.target.username.as_str(), found.config.target.password.as_str()),
            ("neo4j", "hunter2")
        );
        assert_eq!(found.config.name, "team/graph of control plane cp");
        assert!(found.config.is_stable && !format!("{found:?}").contains("hunter2"));
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
    async fn unusable_sinks_have_a_reason(#[case] spec: GraphSinkSpec, #[case] reason: &str) {
        let error = desired(&spec, false).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{error}");
        assert!(!error.is_temporary());
    }

    #[tokio::test]
    async fn local_databases_are_allowed_by_option() {
        let found = desired(&spec("bolt://127.0.0.1:7687", Some("graph")), true).await.unwrap();
        assert_eq!(found.config.target.username, "neo4j");
    }
}
