//! Objects that Crowsnest needs in a control plane: namespaces, CRDs, RBAC, aggregated APIs and webhooks.
//!
//! They are applied server-side with one field manager, so that repeated runs write nothing, and fields of other
//! managers are kept.

pub mod agents;
pub mod credentials;
pub mod doctor;
pub mod installation;
pub mod migrate;
mod roles;
pub mod serving;
pub mod stored_kind_migration;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_admission::webhook_configurations;
use crowsnest_api::aggregated_groups::{ApiGroup, aggregated_groups};
use crowsnest_component_base::retry::Backoff;
use crowsnest_members::discovery::announced_versions;
use futures::StreamExt;
use http::{Request, header};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::DeleteParams;
use kube::runtime::wait::{self, conditions};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const MANAGER: &str = "crowsnest";
/// Namespace of Crowsnest's objects, as in Karmada.
pub const SYSTEM_NAMESPACE: &str = "karmada-system";
pub const SERVICE: &str = "crowsnest";
/// Server name that the aggregation layer verifies in the serving certificate.
pub const SERVICE_HOST: &str = "crowsnest.karmada-system.svc";

/// Time to wait until the control plane serves the applied objects.
const APPLY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("cannot apply {path}")]
    Apply { path: String, source: kube::Error },
    #[error("cannot apply a {0}: it has no {1}")]
    Manifest(String, &'static str),
    #[error("cannot update APIService {name}")]
    Registration { name: String, source: kube::Error },
    #[error("cannot encode a manifest")]
    Encode(#[from] serde_json::Error),
    #[error("cannot build a request")]
    Request(#[from] http::Error),
    #[error("timed out after {0:?} waiting for {1}")]
    Timeout(Duration, String),
}

/// Address of `serve` as the control plane reaches it.
#[derive(Debug, Clone)]
pub struct ServingEndpoint {
    /// DNS name or IP address, used as an ExternalName.
    pub host: String,
    pub port: u16,
    /// PEM of the CA that signed the serving certificate.
    pub ca: String,
}

/// Applies `manifests` in order, and waits until CRDs are established.
pub async fn apply_all(client: &kube::Client, manifests: &[Value]) -> Result<(), InstallError> {
    for manifest in manifests {
        apply(client, manifest).await?;
    }
    let definitions = manifests.iter().filter(|m| m["kind"] == "CustomResourceDefinition");
    wait_for_each(
        Api::<CustomResourceDefinition>::all(client.clone()),
        definitions.filter_map(|m| m["metadata"]["name"].as_str()).collect(),
        conditions::is_crd_established(),
    )
    .await
}

/// Watches a collection until each of the named objects satisfies `condition`.
async fn wait_for_each<K>(
    api: Api<K>,
    mut pending: BTreeSet<&str>,
    condition: impl wait::Condition<K>,
) -> Result<(), InstallError>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let watch_until_ready = async {
        let mut objects = pin!(watcher(api, watcher::Config::default()).default_backoff().touched_objects());
        while !pending.is_empty() {
            match objects.next().await {
                Some(Ok(object)) if condition.matches_object(Some(&object)) => {
                    pending.remove(object.name_any().as_str());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => tracing::debug!(%error, "the watch of {} is restarted", K::plural(&())),
                None => break,
            }
        }
    };
    let result = tokio::time::timeout(APPLY_TIMEOUT, watch_until_ready).await;
    match (result, pending.first()) {
        (Ok(()), None) => Ok(()),
        (_, missing) => {
            Err(InstallError::Timeout(APPLY_TIMEOUT, format!("{} {}", K::plural(&()), missing.unwrap_or(&"nothing"))))
        }
    }
}

async fn apply(client: &kube::Client, manifest: &Value) -> Result<(), InstallError> {
    match manifest["kind"].as_str() {
        Some("Namespace") => create(client, manifest).await,
        _ => apply_with(client, manifest, "").await.map(drop),
    }
}

/// Creates an object. Applying would write it twice if it exists without managed fields.
async fn create(client: &kube::Client, manifest: &Value) -> Result<(), InstallError> {
    let path = api_path(manifest)?;
    let collection = path.rsplit_once('/').map_or(path.as_str(), |(collection, _)| collection);
    let request = Request::post(format!("{collection}?fieldManager={MANAGER}"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(serde_json::to_vec(manifest)?)?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(source) => Err(InstallError::Apply { path, source }),
    }
}

/// The object that applying the manifest would store (dry run).
pub async fn dry_run_apply(client: &kube::Client, manifest: &Value) -> Result<Value, InstallError> {
    apply_with(client, manifest, "&dryRun=All").await
}

async fn apply_with(client: &kube::Client, manifest: &Value, extra_query: &str) -> Result<Value, InstallError> {
    let path = api_path(manifest)?;
    let request = Request::patch(format!("{path}?fieldManager={MANAGER}&force=true{extra_query}"))
        .header(header::CONTENT_TYPE, "application/apply-patch+yaml")
        .header(header::ACCEPT, "application/json")
        .body(serde_json::to_vec(manifest)?)?;
    client.request(request).await.map_err(|source| InstallError::Apply { path, source })
}

/// Base64, as in Secrets and CA bundles.
fn encode_base64(text: &str) -> String {
    STANDARD.encode(text)
}

/// The API path of a manifest of one of the installed kinds.
pub fn api_path(manifest: &Value) -> Result<String, InstallError> {
    let text = |pointer: &str, field| {
        let found = manifest.pointer(pointer).and_then(Value::as_str);
        found.ok_or_else(|| InstallError::Manifest(manifest["kind"].to_string(), field))
    };
    let (version, kind, name) =
        (text("/apiVersion", "apiVersion")?, text("/kind", "kind")?, text("/metadata/name", "name")?);
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let namespace = match manifest.pointer("/metadata/namespace").and_then(Value::as_str) {
        Some(namespace) => format!("/namespaces/{namespace}"),
        None => String::new(),
    };
    // All installed kinds have regular plurals.
    let singular = kind.to_ascii_lowercase();
    let plural = singular.strip_suffix('y').map_or_else(|| format!("{singular}s"), |stem| format!("{stem}ies"));
    Ok(format!("{root}{namespace}/{plural}/{name}"))
}

/// Namespaces and ClusterRoles that Karmada's tools expect.
pub fn base_manifests() -> Vec<Value> {
    let mut manifests: Vec<Value> = [SYSTEM_NAMESPACE, "karmada-cluster"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        .into();
    manifests.extend(roles::aggregated_roles());
    manifests.extend(roles::graph_sink_roles());
    manifests.extend(agents::manifests());
    manifests.extend(role_and_binding(
        "cluster-proxy-admin",
        json!([{"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "verbs": ["*"]}]),
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:admin"}),
    ));
    // All users may search: each hit is authorized with the caller's permissions in its member.
    manifests.extend(role_and_binding(
        "crowsnest:search",
        json!([
            {"apiGroups": ["search.crowsnest.io"], "verbs": ["list", "watch"], "resources":
                ["blastradius", "count", "diff", "explain", "export", "graph", "history", "journal", "logs", "paths", "query",
                    "status", "suggest"]},
            // Each request of an MCP tool is authorized again.
            {"apiGroups": ["search.crowsnest.io"], "verbs": ["create"], "resources": ["mcp"]},
            // Users see and change only their own saved searches, and see shared ones.
            {"apiGroups": ["search.crowsnest.io"], "verbs": ["create", "delete", "get", "list", "patch", "update"],
                "resources": ["savedsearches"]},
        ]),
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}),
    ));
    // All users may request explanations; they contain only objects that the caller can get in the control plane.
    manifests.extend(role_and_binding(
        "crowsnest:explain",
        json!([
            {"apiGroups": ["propagation.crowsnest.io"], "verbs": ["get"],
                "resources": ["explanations", "clusterexplanations"]},
            {"apiGroups": ["propagation.crowsnest.io"], "verbs": ["create"], "resources": ["plans"]},
        ]),
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}),
    ));
    manifests.extend(access_review_role());
    manifests.extend(role_and_binding(
        "crowsnest:monitoring",
        json!([{"apiGroups": ["search.crowsnest.io"], "resources": ["cache", "index", "metrics"], "verbs": ["list"]}]),
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:monitoring"}),
    ));
    manifests
}

/// The CustomResourceDefinitions, with conversion webhooks at `webhooks`, a base URL without a trailing slash, verified
/// by `ca` (PEM).
pub fn crd_manifests(webhooks: &str, ca: &str) -> Vec<Value> {
    crowsnest_api::crd::crds(Some(&crowsnest_api::crd::Webhook {
        url: webhooks.to_owned(),
        ca_bundle: STANDARD.encode(ca),
    }))
}

/// The webhook configurations.
pub fn admission_manifests(webhooks: &str, ca: &str) -> Vec<Value> {
    let bundle = STANDARD.encode(ca);
    let configurations = webhook_configurations(&bundle, webhooks);
    let stored = crowsnest_admission::stored::webhook_configurations(&bundle, webhooks);
    configurations
        .into_iter()
        .chain(stored)
        .chain([crowsnest_admission::agents::webhook_configuration(&bundle, webhooks)])
        .collect()
}

fn role_and_binding(name: &str, rules: Value, subject: Value) -> [Value; 2] {
    [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}, "subjects": [subject]}),
    ]
}

/// ClusterRole `crowsnest:access` with its binding. All users may request access reviews; they contain only RBAC
/// objects that the caller may list in each member. Administrators may still request them if the binding is deleted.
fn access_review_role() -> [Value; 2] {
    let [mut role, binding] = role_and_binding(
        "crowsnest:access",
        json!([{"apiGroups": ["access.crowsnest.io"], "verbs": ["create"],
            "resources": ["resourceaccessreviews", "subjectrulesreviews"]}]),
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}),
    );
    role["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-admin": "true"});
    [role, binding]
}

/// Binds another administrator to `cluster-proxy-admin` in addition to `system:admin`, as manually created
/// installations do.
pub fn proxy_admin_binding(user: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
           "metadata": {"name": format!("cluster-proxy-admin-{user}")},
           "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-proxy-admin"},
           "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]})
}

/// The groups to register: Crowsnest's, and those of metrics if `metrics` is set and no other server serves them. If
/// `metrics` is not set, Crowsnest's previous registrations of metrics are deleted.
pub async fn resolve_groups(client: &kube::Client, metrics: bool) -> Result<Vec<&'static ApiGroup>, InstallError> {
    let services = Api::<APIService>::all(client.clone());
    let mut groups: Vec<&'static ApiGroup> = aggregated_groups(false).collect();
    for group in aggregated_groups(true).filter(|group| group.is_metrics) {
        let mut registered = Vec::new();
        for name in api_service_names(group) {
            let result = services.get_opt(&name).await;
            registered.extend(result.map_err(|source| InstallError::Registration { name, source })?);
        }
        match (registered.iter().find_map(foreign_server), metrics) {
            (Some(server), true) => {
                tracing::warn!(
                    group = group.name,
                    server,
                    "the group is served by another server and is not registered"
                );
            }
            (None, true) => groups.push(group),
            (_, false) => {
                for name in
                    registered.iter().filter(|service| foreign_server(service).is_none()).map(ResourceExt::name_any)
                {
                    tracing::info!(name, "deleting the APIService because the metrics adapter is disabled");
                    match services.delete(&name, &DeleteParams::default()).await {
                        Err(kube::Error::Api(status)) if status.code == 404 => {}
                        result => {
                            result.map_err(|source| InstallError::Registration { name, source })?;
                        }
                    }
                }
            }
        }
    }
    Ok(groups)
}

/// Names of a group's APIServices.
fn api_service_names(group: &ApiGroup) -> impl Iterator<Item = String> {
    group.versions.iter().map(|(version, _)| format!("{version}.{}", group.name))
}

/// The server of an APIService; `None` if it is Crowsnest.
fn foreign_server(service: &APIService) -> Option<String> {
    let Some(backend) = service.spec.as_ref().and_then(|spec| spec.service.as_ref()) else {
        return Some("the control plane itself".to_owned());
    };
    let (namespace, name) =
        (backend.namespace.as_deref().unwrap_or_default(), backend.name.as_deref().unwrap_or_default());
    ((namespace, name) != (SYSTEM_NAMESPACE, SERVICE)).then(|| format!("service {namespace}/{name}"))
}

/// The Service and the APIServices of the aggregated groups.
pub fn aggregation_manifests(endpoint: &ServingEndpoint, groups: &[&ApiGroup]) -> Vec<Value> {
    let bundle = STANDARD.encode(&endpoint.ca);
    let mut manifests = vec![json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": SYSTEM_NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": endpoint.host},
    })];
    let versions = groups.iter().flat_map(|group| group.versions.iter().map(move |version| (group, version)));
    manifests.extend(versions.map(|(group, (version, priority))| {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{}", group.name)},
            "spec": {"group": group.name, "version": version, "groupPriorityMinimum": group.priority,
                     // A previous registration may have skipped TLS verification, which cannot be combined with a
                     // caBundle.
                     "versionPriority": priority, "caBundle": bundle, "insecureSkipTLSVerify": false,
                     "service": {"name": SERVICE, "namespace": SYSTEM_NAMESPACE, "port": endpoint.port}},
        })
    }));
    manifests
}

/// Waits until the control plane serves the aggregated groups through Crowsnest and publishes them in discovery, which
/// clients cache for hours.
pub async fn wait_for_aggregation(client: &kube::Client, groups: &[&ApiGroup]) -> Result<(), InstallError> {
    let names: Vec<String> = groups.iter().flat_map(|group| api_service_names(group)).collect();
    let services = Api::<APIService>::all(client.clone());
    wait_for_each(services, names.iter().map(String::as_str).collect(), is_available).await?;
    // Discovery follows available APIServices with a delay and cannot be watched.
    let group_names: Vec<&str> = groups.iter().map(|group| group.name).collect();
    let wait_for_discovery = async {
        let mut delays = Backoff::new(Duration::from_millis(5), Duration::from_millis(100)).delays();
        loop {
            match announced_versions(client, &group_names).await {
                Ok(versions) if groups.iter().all(|group| is_announced(&versions, group)) => return,
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "discovery is incomplete"),
            }
            tokio::time::sleep(delays.next_delay()).await;
        }
    };
    tokio::time::timeout(APPLY_TIMEOUT, wait_for_discovery)
        .await
        .map_err(|_| InstallError::Timeout(APPLY_TIMEOUT, "the aggregated groups in discovery".to_owned()))
}

fn is_available(service: Option<&APIService>) -> bool {
    let conditions = service.and_then(|service| service.status.as_ref()?.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Available" && condition.status == "True")
}

/// True if discovery has all versions of the group, with resources if it defines any. `versions` maps each version in
/// discovery to its number of resources.
fn is_announced(versions: &BTreeMap<String, usize>, group: &ApiGroup) -> bool {
    group.versions.iter().all(|(version, _)| {
        let resources = versions.get(&format!("{}/{version}", group.name));
        resources.is_some_and(|resources| !group.has_resources || *resources > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_has_a_path() {
        let endpoint = ServingEndpoint { host: "localhost".into(), port: 1, ca: "pem".into() };
        let groups: Vec<&ApiGroup> = aggregated_groups(true).collect();
        let paths: Vec<String> = base_manifests()
            .iter()
            .chain(&aggregation_manifests(&endpoint, &groups))
            .map(|m| api_path(m).unwrap())
            .collect();
        assert!(paths.contains(&"/api/v1/namespaces/karmada-system/services/crowsnest".to_owned()), "{paths:?}");
        assert!(
            paths.contains(&"/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.cluster.karmada.io".to_owned()),
            "{paths:?}"
        );
    }

    #[test]
    fn metrics_registrations_match_karmada() {
        let endpoint = ServingEndpoint { host: "localhost".into(), port: 1, ca: "pem".into() };
        let groups: Vec<&ApiGroup> = aggregated_groups(true).filter(|group| group.is_metrics).collect();
        let manifests = aggregation_manifests(&endpoint, &groups);
        let registrations: Vec<String> = manifests[1..]
            .iter()
            .map(|service| {
                let spec = &service["spec"];
                format!("{} {} {}", service["metadata"]["name"], spec["groupPriorityMinimum"], spec["versionPriority"])
            })
            .collect();
        let expected = [
            "\"v1beta1.metrics.k8s.io\" 2000 10",
            "\"v1beta2.custom.metrics.k8s.io\" 100 200",
            "\"v1beta1.custom.metrics.k8s.io\" 100 100",
        ];
        assert_eq!(registrations, expected);
    }

    #[rstest::rstest]
    #[case::crowsnest(json!({"name": "crowsnest", "namespace": "karmada-system"}), None)]
    #[case::karmada(json!({"name": "karmada-metrics-adapter", "namespace": "karmada-system"}),
        Some("service karmada-system/karmada-metrics-adapter"))]
    #[case::local(json!(null), Some("the control plane itself"))]
    fn other_servers_are_recognized(#[case] service: Value, #[case] expected: Option<&str>) {
        let object =
            json!({"metadata": {}, "spec": {"groupPriorityMinimum": 1, "versionPriority": 1, "service": service}});
        let service: APIService = serde_json::from_value(object).unwrap();
        assert_eq!(foreign_server(&service).as_deref(), expected);
    }

    #[rstest::rstest]
    #[case("custom.metrics.k8s.io", &[("custom.metrics.k8s.io/v1beta1", 0), ("custom.metrics.k8s.io/v1beta2", 0)], true)]
    #[case("custom.metrics.k8s.io", &[("custom.metrics.k8s.io/v1beta1", 0)], false)]
    #[case("metrics.k8s.io", &[("metrics.k8s.io/v1beta1", 2)], true)]
    #[case::without_resources("metrics.k8s.io", &[("metrics.k8s.io/v1beta1", 0)], false)]
    fn groups_are_announced_with_all_versions(
        #[case] name: &str,
        #[case] found: &[(&str, usize)],
        #[case] expected: bool,
    ) {
        let found = found.iter().map(|(version, resources)| ((*version).to_owned(), *resources)).collect();
        let group = aggregated_groups(true).find(|group| group.name == name).unwrap();
        assert_eq!(is_announced(&found, group), expected);
    }
}
