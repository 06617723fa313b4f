//! `TYPE/NAME` arguments for workloads, as in kubectl: finds the cluster that has the workload, and one of its running
//! pods.

mod ports;

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ListParams;
use kube::core::Selector;
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::clients;
use super::object::{ObjectLocations, ObjectQuery};
pub(crate) use ports::PortMap;

/// Interval between checks for a running pod.
const POD_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Annotation that names the default container of a pod.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A kind that is a pod or selects pods.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    name: &'static str,
    plural: &'static str,
    short: &'static str,
    group: &'static str,
}

const PODS: Kind = Kind { name: "pod", plural: "pods", short: "po", group: "" };
const KINDS: [Kind; 8] = [
    PODS,
    Kind { name: "deployment", plural: "deployments", short: "deploy", group: "apps" },
    Kind { name: "replicaset", plural: "replicasets", short: "rs", group: "apps" },
    Kind { name: "statefulset", plural: "statefulsets", short: "sts", group: "apps" },
    Kind { name: "daemonset", plural: "daemonsets", short: "ds", group: "apps" },
    Kind { name: "job", plural: "jobs", short: "job", group: "batch" },
    Kind { name: "replicationcontroller", plural: "replicationcontrollers", short: "rc", group: "" },
    Kind { name: "service", plural: "services", short: "svc", group: "" },
];

impl Kind {
    /// Parses a name such as `deploy`, `deployments` or `deployments.apps`.
    fn parse(resource_type: &str) -> Option<&'static Self> {
        let resource_type = resource_type.to_lowercase();
        let (name, group) = match resource_type.split_once('.') {
            Some((name, group)) => (name, Some(group.strip_prefix("v1.").unwrap_or(group))),
            None => (resource_type.as_str(), None),
        };
        let is_match = |kind: &&Self| {
            [kind.name, kind.plural, kind.short].contains(&name) && group.is_none_or(|group| group == kind.group)
        };
        KINDS.iter().find(is_match)
    }

    fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }

    fn path(&self, namespace: &str, name: &str) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        format!("{root}/{}/namespaces/{namespace}/{}/{name}", self.api_version(), self.plural)
    }
}

/// A workload: a pod or an object that selects pods.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    kind: &'static Kind,
    name: String,
}

impl Workload {
    /// Parses `TYPE/NAME`; `None` if the type is not a known workload.
    pub(crate) fn parse_with_type(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once('/')?;
        is_name(name).then_some(())?;
        Some(Self { kind: Kind::parse(kind)?, name: name.to_owned() })
    }

    /// Parses `TYPE/NAME` or a pod name.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        if let Some(found) = Self::parse_with_type(text) {
            return Ok(found);
        }
        match text.split_once('/') {
            None if is_name(text) => Ok(Self { kind: &KINDS[0], name: text.to_owned() }),
            None => bail!("invalid pod name {text:?}"),
            Some((_, name)) if !is_name(name) => bail!("invalid object name {name:?}"),
            Some((kind, _)) => {
                let supported: Vec<&str> = KINDS.iter().map(|kind| kind.plural).collect();
                bail!("cannot find the pods of a {kind:?}; supported types are {}", supported.join(", "))
            }
        }
    }

    /// The search query that finds the workload's pods in all clusters.
    pub(crate) fn pods_query(&self) -> String {
        let select = if *self.kind == PODS { "" } else { " select:pod" };
        format!("kind:{} name:={}{select}", self.kind.name, self.name)
    }

    fn display_name(&self, namespace: &str) -> String {
        format!("{} {namespace}/{}", self.kind.name, self.name)
    }

    /// The only cluster with this object, as far as the caller can read it.
    pub(crate) async fn cluster(&self, client: &kube::Client, namespace: &str) -> anyhow::Result<String> {
        if !is_name(namespace) {
            bail!("invalid namespace name {namespace:?}");
        }
        let found = self.query(namespace).find_locations(client, false).await;
        self.require_single_cluster(&found.with_context(|| format!("cannot find the {}", self.kind.name))?, namespace)
    }

    fn query<'a>(&'a self, namespace: &'a str) -> ObjectQuery<'a> {
        ObjectQuery { resource: self.kind.plural, group: self.kind.group, namespace: Some(namespace), name: &self.name }
    }

    /// Returns the only cluster that has the object; clusters without complete results may have it too.
    fn require_single_cluster(&self, found: &ObjectLocations, namespace: &str) -> anyhow::Result<String> {
        let (name, missing) = (self.display_name(namespace), found.incomplete_note());
        match found.clusters.as_slice() {
            [cluster] => Ok(cluster.clone()),
            [] => Err(anyhow!(
                "no cluster has {name} that you can read{missing}; find it with `crowsnest search 'kind:{} {}'`, or name a cluster with --cluster",
                self.kind.name,
                self.name
            )),
            several => Err(anyhow!(
                "{name} is in several clusters; choose one with --cluster ({}){missing}",
                several.join(", ")
            )),
        }
    }

    /// Reads how port numbers and names of the workload map to ports of its pods.
    pub(crate) async fn read_ports(&self, member: &kube::Client, namespace: &str) -> anyhow::Result<PortMap> {
        if self.kind.name != "service" {
            return Ok(PortMap::ContainerPorts);
        }
        let display_name = self.display_name(namespace);
        let request = http::Request::get(self.kind.path(namespace, &self.name)).body(Vec::new())?;
        let service: Value = member.request(request).await.with_context(|| format!("cannot read {display_name}"))?;
        PortMap::from_service(&service)
    }

    /// The pod itself, or one of the workload's running pods.
    pub(crate) async fn find_pod(&self, member: &kube::Client, namespace: &str) -> anyhow::Result<Pod> {
        match self.pod_state(member, namespace).await? {
            PodState::Found(pod) => Ok(*pod),
            // Individual containers may run while the pod is still starting.
            PodState::Starting(pod) => Ok(*pod),
            PodState::None(reason) => bail!("{reason}"),
        }
    }

    /// Waits up to `timeout` until a pod runs.
    pub(crate) async fn wait_for_running_pod(
        &self,
        member: &kube::Client,
        namespace: &str,
        timeout: Duration,
    ) -> anyhow::Result<Pod> {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let reason = match self.pod_state(member, namespace).await? {
                PodState::Found(pod) => return Ok(*pod),
                PodState::Starting(_) => format!("{} is not running yet", self.display_name(namespace)),
                PodState::None(reason) => reason,
            };
            if tokio::time::Instant::now() >= deadline {
                bail!(
                    "timed out after {} s: {reason}; see `crowsnest describe pods -n {namespace}`",
                    timeout.as_secs()
                );
            }
            tokio::time::sleep(POD_POLL_INTERVAL).await;
        }
    }

    async fn pod_state(&self, member: &kube::Client, namespace: &str) -> anyhow::Result<PodState> {
        let pods: Api<Pod> = Api::namespaced(member.clone(), namespace);
        let display_name = self.display_name(namespace);
        if *self.kind == PODS {
            let pod = pods.get(&self.name).await.with_context(|| format!("cannot read {display_name}"))?;
            return match phase(&pod) {
                "Succeeded" | "Failed" => bail!("{display_name} is not running: its phase is {}", phase(&pod)),
                "Pending" => Ok(PodState::Starting(Box::new(pod))),
                _ => Ok(PodState::Found(Box::new(pod))),
            };
        }
        let object = clients::get(member, &self.kind.path(namespace, &self.name)).await;
        let object = object.with_context(|| format!("cannot read {display_name}"))?;
        let selector = selector(&object).with_context(|| format!("{display_name} selects no pods"))?;
        let found = pods.list(&ListParams::default().labels_from(&selector)).await;
        let found = found.with_context(|| format!("cannot list the pods of {display_name}"))?.items;
        Ok(match select_running_pod(&found) {
            Some(pod) => PodState::Found(Box::new(pod.clone())),
            None => PodState::None(format!("{display_name} has no running pod ({} in total)", found.len())),
        })
    }
}

/// State of the pod to connect to.
enum PodState {
    Found(Box<Pod>),
    Starting(Box<Pod>),
    /// Why there is no running pod.
    None(String),
}

/// The container to use when none is named; API servers require a name if the pod has several.
pub(crate) fn default_container(pod: &Pod) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| &container.name);
    let annotated =
        pod.annotations().get(DEFAULT_CONTAINER).filter(|value| containers.clone().any(|name| name == *value));
    annotated.or(containers.clone().next()).cloned()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

/// The label selector in `spec.selector`, which is a LabelSelector or a plain map; `None` if it is missing or empty.
fn selector(object: &Value) -> Option<Selector> {
    let selector = object.pointer("/spec/selector").filter(|selector| selector.is_object())?;
    let is_label_selector = selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let selector = if is_label_selector { selector.clone() } else { serde_json::json!({"matchLabels": selector}) };
    let selector: LabelSelector = serde_json::from_value(selector).ok()?;
    let selector = Selector::try_from(selector).ok()?;
    (!selector.selects_all()).then_some(selector)
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The oldest ready pod among the running ones, or the oldest if none is ready.
fn select_running_pod(pods: &[Pod]) -> Option<&Pod> {
    let is_running = |pod: &&Pod| phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none();
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let rank = |pod: &&Pod| (!is_ready(pod), pod.creation_timestamp().map(|time| time.0), pod.name_any());
    pods.iter().filter(is_running).min_by_key(rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn hit(cluster: &str, name: &str) -> Value {
        json!({"cluster": cluster, "apiVersion": "v1", "resource": "pods", "namespace": "shop", "name": name})
    }

    #[rstest::rstest]
    #[case::found(json!({"hits": [hit("m1", "web-0"), hit("m2", "web-01")]}), "m1")]
    #[case::template(json!({"hits": [hit("@control-plane", "web-0"), hit("m1", "web-0")]}), "m1")]
    #[case::not_found(json!({"hits": [], "skipped": [{"cluster": "m3"}]}), "no cluster has pod shop/web-0 that you can read; results from m3 are incomplete;")]
    #[case::several(
        json!({"hits": [hit("m2", "web-0"), hit("m1", "web-0")]}),
        "pod shop/web-0 is in several clusters; choose one with --cluster (m1, m2)"
    )]
    fn cluster_is_resolved(#[case] response: Value, #[case] expected: &str) {
        let pod = Workload::parse("web-0").unwrap();
        let found = pod
            .require_single_cluster(&pod.query("shop").matching_locations(&response), "shop")
            .unwrap_or_else(|error| error.to_string());
        assert!(found.starts_with(expected), "{found}");
    }

    #[rstest::rstest]
    #[case("web", Ok(("pod", "web")))]
    #[case("po/web", Ok(("pod", "web")))]
    #[case("deploy/web", Ok(("deployment", "web")))]
    #[case("Deployment/web", Ok(("deployment", "web")))]
    #[case("deployments.apps/web", Ok(("deployment", "web")))]
    #[case("deployments.v1.apps/web", Ok(("deployment", "web")))]
    #[case("svc/web", Ok(("service", "web")))]
    #[case("service.serving.knative.dev/web", Err("supported types are pods, deployments"))]
    #[case("cm/web", Err("cannot find the pods of a \"cm\""))]
    #[case("deploy/", Err("invalid object name \"\""))]
    #[case("deploy/a/b", Err("invalid object name \"a/b\""))]
    #[case("a b", Err("invalid pod name \"a b\""))]
    fn workloads_are_parsed(#[case] text: &str, #[case] expected: Result<(&str, &str), &str>) {
        match (Workload::parse(text), expected) {
            (Ok(read), Ok(expected)) => assert_eq!((read.kind.name, read.name.as_str()), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (read, _) => panic!("{text}: {read:?}"),
        }
    }

    #[rstest::rstest]
    #[case("pod/web", "kind:pod name:=web")]
    #[case("deploy/web", "kind:deployment name:=web select:pod")]
    fn pods_are_queried(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(Workload::parse_with_type(text).unwrap().pods_query(), expected);
    }

    #[rstest::rstest]
    #[case::of_a_deployment(json!({"matchLabels": {"app": "web"}}), Some("app=web"))]
    #[case::of_a_service(json!({"app": "web"}), Some("app=web"))]
    #[case::with_expressions(
        json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}]}), Some("tier in (a)"))]
    #[case::empty(json!({}), None)]
    #[case::missing(Value::Null, None)]
    fn selectors_are_parsed(#[case] json: Value, #[case] expected: Option<&str>) {
        let parsed = selector(&json!({"spec": {"selector": json}})).map(|selector| selector.to_string());
        assert_eq!(parsed.as_deref(), expected);
    }

    fn pod(name: &str, phase: &str, ready: bool, created: &str) -> Pod {
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": created},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn ready_pods_are_preferred() {
        let pods = [
            pod("waits", "Pending", false, "2026-01-01T00:00:00Z"),
            pod("unready", "Running", false, "2026-01-01T00:00:00Z"),
            pod("young", "Running", true, "2026-01-03T00:00:00Z"),
            pod("old", "Running", true, "2026-01-02T00:00:00Z"),
        ];
        assert_eq!(select_running_pod(&pods).map(ResourceExt::name_any).as_deref(), Some("old"));
        assert_eq!(select_running_pod(&pods[..2]).map(ResourceExt::name_any).as_deref(), Some("unready"));
        assert_eq!(select_running_pod(&pods[..1]), None);
    }

    #[rstest::rstest]
    #[case(json!({}), Some("a"))]
    #[case(json!({DEFAULT_CONTAINER: "b"}), Some("b"))]
    #[case(json!({DEFAULT_CONTAINER: "c"}), Some("a"))]
    fn default_container_is_chosen(#[case] annotations: Value, #[case] expected: Option<&str>) {
        let pod =
            json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(default_container(&pod).as_deref(), expected);
    }
}
