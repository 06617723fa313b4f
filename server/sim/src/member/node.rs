//! Nodes of a member: created from shapes, kept ready by leases, and tainted when they fail.
//!
//! The simulation manages nodes with the annotation `sim.crowsnest.io/node`. Nodes with `sim.crowsnest.io/fail` are
//! failed: their conditions are Unknown, they are tainted as unreachable, and their pods become unready and are evicted
//! according to their tolerations. As on an unreachable node of a real cluster, evicted pods stay Terminating until the
//! node recovers.

use crate::member::context::{FIELD_MANAGER, create_params};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crowsnest_apimachinery::taints::{NO_EXECUTE, NO_SCHEDULE};

use crate::error::{Error, Result};

use super::context::MemberContext;
use super::pod::PodState;
use super::pod_lifecycle::format_time;
use super::queue::{self, Queue};
use super::recorder::{Source, Subject};
use super::shape::{self, KUBERNETES_VERSION, NodeProperties, NodeShape};
use super::store::{Index, Key, StoreObject};

const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";
/// Minimum duration of a node's lease; the kubelet's default.
const MIN_LEASE_DURATION: Duration = Duration::from_secs(40);
/// Interval at which a kubelet writes an unchanged node status.
const STATUS_INTERVAL: Duration = Duration::from_secs(300);
const SOURCE: Source = Source { component: "node-controller", host: None };
/// Maximum number of nodes that are written concurrently.
const MAX_CONCURRENT_WRITES: usize = 16;

/// Annotation of nodes that the simulation manages, with the properties that the shape of the node sets
/// ([`NodeProperties`]).
pub const NODE_PROPERTIES_ANNOTATION: &str = "sim.crowsnest.io/node";
/// Annotation of failed nodes.
const FAIL_ANNOTATION: &str = "sim.crowsnest.io/fail";

fn has_annotation(node: &Node, name: &str) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(name)).is_some_and(|value| value != "false")
}

/// True if the simulation manages this node.
pub fn is_managed(node: &Node) -> bool {
    has_annotation(node, NODE_PROPERTIES_ANNOTATION)
}

/// True if the node is failed.
pub fn is_failed(node: &Node) -> bool {
    has_annotation(node, FAIL_ANNOTATION)
}

/// Creates missing nodes of a shape, named `<prefix>-1…`. Their address ranges have the indexes from `first_index`.
pub async fn ensure_nodes(context: &MemberContext, prefix: &str, shape: &NodeShape, first_index: usize) -> Result<()> {
    let nodes = (0..shape.count).map(|number| NewNode {
        name: format!("{prefix}-{}", number + 1),
        index: first_index + number,
        properties: shape.properties(number, KUBERNETES_VERSION),
    });
    create_nodes(context, nodes.filter(|node| context.nodes.get(&Key::new("", &node.name)).is_none()).collect()).await
}

/// Name of the `number`-th node, counted from 0, of the `pool`-th shape of a member.
fn pool_node_name(member: &str, pool: usize, number: usize) -> String {
    match pool {
        0 => format!("{member}-node-{}", number + 1),
        pool => format!("{member}-pool{pool}-{}", number + 1),
    }
}

/// True for names of the form that [`pool_node_name`] creates.
fn is_pool_node_name(member: &str, name: &str) -> bool {
    let rest = name.strip_prefix(member).and_then(|rest| rest.strip_prefix('-'));
    let Some((pool, number)) = rest.and_then(|rest| rest.split_once('-')) else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (pool == "node" || pool.strip_prefix("pool").is_some_and(is_number)) && is_number(number)
}

/// Reconciles a member's nodes with its shapes: creates missing nodes, updates nodes whose shape has changed, and
/// deletes the others. A node whose shape is unchanged is not written, so that changes by users are kept.
pub async fn reconcile(context: &MemberContext, shapes: &[NodeShape], version: &str) -> Result<()> {
    let desired = shapes.iter().enumerate().flat_map(|(pool, shape)| {
        (0..shape.count)
            .map(move |number| (pool_node_name(&context.name, pool, number), shape.properties(number, version)))
    });
    let desired: BTreeMap<String, NodeProperties> = desired.collect();
    let nodes = context.nodes.all();
    let managed = nodes.iter().filter(|node| is_managed(node)).map(|node| node.key().name);
    for name in managed.filter(|name| is_pool_node_name(&context.name, name) && !desired.contains_key(&**name)) {
        delete_node(context, &name).await?;
    }
    let used_cidrs: HashSet<String> =
        nodes.iter().filter_map(|node| node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone())).collect();
    let mut free_indexes = (0..).filter(|index| !used_cidrs.contains(&shape::pod_cidr(&context.name, *index)));
    let (mut new, mut existing) = (Vec::new(), Vec::new());
    for (name, properties) in desired {
        match context.nodes.get(&Key::new("", &name)) {
            Some(node) if is_managed(&node) => existing.push((name, node, properties)),
            Some(_) => {}
            None => new.extend(free_indexes.next().map(|index| NewNode { name, index, properties })),
        }
    }
    futures::stream::iter(existing)
        .map(|(name, node, properties)| async move { update_node(context, &name, &node, &properties).await })
        .buffer_unordered(MAX_CONCURRENT_WRITES)
        .try_collect::<()>()
        .await?;
    create_nodes(context, new).await
}

/// Writes the properties of a node if they differ from those in its annotation.
async fn update_node(context: &MemberContext, name: &str, node: &Node, properties: &NodeProperties) -> Result<()> {
    let live = serde_json::to_value(node).map_err(|source| Error::Encode { object: "node", source })?;
    let before = NodeProperties::from_annotation(&live);
    if before == *properties {
        return Ok(());
    }
    let api: Api<Node> = Api::all(context.client.clone());
    let (main, status) = properties.merge_patches_from(&before, &live);
    // The annotation is written last, so that an interrupted update is repeated.
    api.patch_status(name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&status))
        .await
        .map_err(Error::api(format!("write status of node {name}")))?;
    let updated = api.patch(name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&main)).await;
    context.nodes.apply(updated.map_err(Error::api(format!("update node {name}")))?.into());
    Ok(())
}

/// A node to be created.
struct NewNode {
    name: String,
    /// Index of the address range of its pods.
    index: usize,
    properties: NodeProperties,
}

async fn create_nodes(context: &MemberContext, nodes: Vec<NewNode>) -> Result<()> {
    futures::stream::iter(nodes)
        .map(|node| create_node(context, node))
        .buffer_unordered(MAX_CONCURRENT_WRITES)
        .try_collect()
        .await
}

async fn create_node(context: &MemberContext, NewNode { name, index, properties }: NewNode) -> Result<()> {
    let api: Api<Node> = Api::all(context.client.clone());
    let body = shape::node(&context.name, &name, index, &properties, Timestamp::now());
    let node: Node = serde_json::from_value(body.clone()).map_err(|source| Error::Encode { object: "node", source })?;
    let node = match api.create(&create_params(), &node).await.map_err(Error::api(format!("create node {name}"))) {
        Ok(created) if created.status.as_ref().is_some_and(|status| status.allocatable.is_some()) => created,
        // kube-apiserver drops the status of new nodes.
        Ok(_) => {
            let patch = json!({"status": body["status"]});
            let patched = api.patch_status(&name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await;
            patched.map_err(Error::api(format!("write status of node {name}")))?
        }
        Err(error) if error.is_conflict() => return Ok(()),
        Err(error) => return Err(error),
    };
    context.nodes.apply(node.into());
    Ok(())
}

/// Fails or recovers a node.
pub async fn set_failed(context: &MemberContext, name: &str, failed: bool) -> Result<()> {
    let api: Api<Node> = Api::all(context.client.clone());
    let value = if failed { json!("true") } else { Value::Null };
    let patch = json!({"metadata": {"annotations": {FAIL_ANNOTATION: value}}});
    let node = api
        .patch(name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch))
        .await
        .map_err(Error::api(format!("annotate node {name}")))?;
    context.nodes.apply(node.into());
    Ok(())
}

/// Starts heartbeats and failure handling.
pub fn start(context: &Arc<MemberContext>) {
    let nodes = Arc::new(Queue::<Arc<str>>::default());
    let queue = nodes.clone();
    context.nodes.on_change(move |_, new| {
        if let Some(node) = new {
            queue.add(node.key().name);
        }
    });
    let (shared, stop) = (context.clone(), context.stop.clone());
    context.spawn_when_synced("nodes", async move {
        queue::run("node", nodes, 4, stop, |name| reconcile_failure(&shared, name)).await
    });
    let (shared, stop) = (context.clone(), context.stop.clone());
    context.spawn_when_synced("heartbeats of nodes", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = run_heartbeats(&shared) => {}
        }
    });
}

/// Sets a node's conditions and taints according to its failure annotation.
async fn reconcile_failure(context: &MemberContext, name: Arc<str>) -> Result<Option<Duration>> {
    let Some(node) = context.nodes.get(&Key::new("", &name)).filter(|node| is_managed(node)) else { return Ok(None) };
    let failed = is_failed(&node);
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_tainted = taints.iter().any(|taint| taint.key == UNREACHABLE_TAINT);
    let api: Api<Node> = Api::all(context.client.clone());
    let now = Timestamp::now();
    if is_ready == failed {
        let conditions = if failed { shape::unknown_conditions(now) } else { shape::ready_conditions(now) };
        let patch = json!({"status": {"conditions": conditions}});
        let node = api.patch_status(&name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await;
        context.nodes.apply(node.map_err(Error::api(format!("write status of node {name}")))?.into());
        let (reason, message) = if failed { ("NodeNotReady", "NodeNotReady") } else { ("NodeReady", "NodeReady") };
        let subject = Subject::new("v1", "Node", Key::new("", &name), &name);
        context.recorder.record(subject, SOURCE, false, reason, format!("Node {name} status is now: {message}"));
    }
    if let Some(allocatable) = extended_resources_patch(&node) {
        let patch = json!({"status": {"allocatable": allocatable}});
        let node = api.patch_status(&name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await;
        context.nodes.apply(node.map_err(Error::api(format!("write status of node {name}")))?.into());
    }
    if is_tainted != failed {
        let mut taints: Vec<Taint> = taints.into_iter().filter(|taint| taint.key != UNREACHABLE_TAINT).collect();
        if failed {
            taints.extend([NO_SCHEDULE, NO_EXECUTE].map(|effect| Taint {
                key: UNREACHABLE_TAINT.into(),
                effect: effect.into(),
                time_added: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now)),
                value: None,
            }));
        }
        let patch = json!({"metadata": {"resourceVersion": node_version(context, &name)}, "spec": {"taints": taints}});
        let node = api.patch(&name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await;
        context.nodes.apply(node.map_err(Error::api(format!("taint node {name}")))?.into());
    }
    if failed {
        for pod in context.pods.by_index(&Index::Node(name.clone())) {
            set_not_ready(context, &pod, now).await?;
        }
    }
    Ok(None)
}

/// A merge patch that sets the extended resources in `allocatable` to those in `capacity`, as a kubelet does when a
/// user has written the capacity; `None` if they are equal.
fn extended_resources_patch(node: &Node) -> Option<BTreeMap<String, Option<Quantity>>> {
    let status = node.status.as_ref()?;
    let extended = |list: &Option<BTreeMap<String, Quantity>>| -> BTreeMap<String, Quantity> {
        let entries = list.iter().flatten();
        let extended =
            entries.filter(|(name, _)| name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io"));
        extended.map(|(name, quantity)| (name.clone(), quantity.clone())).collect()
    };
    let (capacity, allocatable) = (extended(&status.capacity), extended(&status.allocatable));
    let changed = capacity.iter().filter(|(name, quantity)| allocatable.get(*name) != Some(quantity));
    let removed = allocatable.keys().filter(|name| !capacity.contains_key(*name));
    let patch: BTreeMap<String, Option<Quantity>> = changed
        .map(|(name, quantity)| (name.clone(), Some(quantity.clone())))
        .chain(removed.map(|name| (name.clone(), None)))
        .collect();
    (!patch.is_empty()).then_some(patch)
}

fn node_version(context: &MemberContext, name: &str) -> Option<String> {
    context.nodes.get(&Key::new("", name)).map(|node| node.version().to_string())
}

/// Sets the Ready condition of a pod on a failed node to false.
async fn set_not_ready(context: &MemberContext, pod: &PodState, now: Timestamp) -> Result<()> {
    if !pod.is_ready() || pod.phase.is_terminal() {
        return Ok(());
    }
    let format_transition = |at: Option<Timestamp>| format_time(at.or(pod.started).unwrap_or(now));
    let condition = |kind: &str, status: &str, at: String, reason: Value| json!({"type": kind, "status": status, "lastTransitionTime": at, "lastProbeTime": null, "reason": reason});
    let mut conditions = vec![
        condition("Initialized", "True", format_transition(None), Value::Null),
        condition("Ready", "False", format_time(now), json!("NodeNotReady")),
        condition("ContainersReady", "True", format_transition(pod.ready_since), Value::Null),
        condition("PodScheduled", "True", format_transition(pod.scheduled), Value::Null),
    ];
    for condition in &mut conditions {
        if condition["reason"].is_null()
            && let Some(fields) = condition.as_object_mut()
        {
            fields.remove("reason");
        }
    }
    conditions.extend(pod.foreign_conditions.iter().filter_map(|condition| serde_json::to_value(condition).ok()));
    match context.patch_pod_status(pod, json!({"status": {"conditions": conditions}})).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Renews leases. The interval grows with the number of nodes, so that there is at most about one write per second.
async fn run_heartbeats(context: &MemberContext) {
    let mut status_due: HashMap<Arc<str>, tokio::time::Instant> = HashMap::new();
    loop {
        let nodes: Vec<_> = context.nodes.all().into_iter().filter(|node| is_managed(node)).collect();
        let interval = Duration::from_secs(10).max(Duration::from_secs(nodes.len() as u64));
        let pause = interval / u32::try_from(nodes.len().max(1)).unwrap_or(u32::MAX);
        if nodes.is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for node in nodes {
            let name = node.key().name;
            if !is_failed(&node) {
                if let Err(error) = renew_lease(context, &name, node.uid(), interval * 4).await {
                    tracing::debug!(%name, %error, "cannot renew the lease of a node");
                }
                let now = tokio::time::Instant::now();
                if *status_due.entry(name.clone()).or_insert(now + STATUS_INTERVAL) <= now {
                    status_due.insert(name.clone(), now + STATUS_INTERVAL);
                    if let Err(error) = write_heartbeat(context, &node).await {
                        tracing::debug!(%name, %error, "cannot update the status of a node");
                    }
                }
            }
            tokio::time::sleep(pause).await;
        }
        delete_orphaned_pods(context).await;
    }
}

async fn renew_lease(context: &MemberContext, name: &str, uid: &str, duration: Duration) -> Result<()> {
    let leases: Api<Lease> = context.api("kube-node-lease");
    let renew_time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let patch = json!({"spec": {"renewTime": renew_time}});
    let error = match leases.patch_metadata(name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await {
        Ok(_) => return Ok(()),
        Err(error) => Error::api(format!("renew lease {name}"))(error),
    };
    if !error.is_not_found() {
        return Err(error);
    }
    let lease = json!({
        "metadata": {"name": name, "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": duration.max(MIN_LEASE_DURATION).as_secs(), "renewTime": renew_time},
    });
    let lease: Lease = serde_json::from_value(lease).map_err(|source| Error::Encode { object: "lease", source })?;
    leases.create(&create_params(), &lease).await.map_err(Error::api(format!("create lease {name}")))?;
    Ok(())
}

async fn write_heartbeat(context: &MemberContext, node: &super::informer::Object<Node>) -> Result<()> {
    let mut conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    for condition in &mut conditions {
        condition.last_heartbeat_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
    }
    let api: Api<Node> = Api::all(context.client.clone());
    let name = node.key().name;
    let patch = json!({"status": {"conditions": conditions}});
    api.patch_status(&name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch))
        .await
        .map_err(Error::api(format!("write status of node {name}")))?;
    Ok(())
}

/// Deletes pods bound to missing nodes, like the pod garbage collector.
async fn delete_orphaned_pods(context: &MemberContext) {
    let orphaned = context
        .pods
        .all()
        .into_iter()
        .filter(|pod| pod.node.as_ref().is_some_and(|node| context.nodes.get(&Key::new("", node)).is_none()));
    for pod in orphaned {
        if let Err(error) = context.delete_pod(&pod.key, &pod.uid, Some(0)).await {
            tracing::debug!(pod = %pod.key, %error, "cannot delete a pod of a missing node");
        }
    }
}

/// Deletes a node.
pub async fn delete_node(context: &MemberContext, name: &str) -> Result<()> {
    let api: Api<Node> = Api::all(context.client.clone());
    api.delete(name, &DeleteParams::default()).await.map_err(Error::api(format!("delete node {name}")))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(json!({"cpu": "2"}), json!({"cpu": "1900m"}), json!(null))]
    #[case(json!({"cpu": "2", "example.com/foo": "5"}), json!({"cpu": "2"}), json!({"example.com/foo": "5"}))]
    #[case(json!({"example.com/foo": "5"}), json!({"example.com/foo": "5"}), json!(null))]
    #[case(json!({}), json!({"example.com/foo": "5"}), json!({"example.com/foo": null}))]
    fn the_patch_sets_allocatable_extended_resources_to_the_capacity(
        #[case] capacity: Value,
        #[case] allocatable: Value,
        #[case] expected: Value,
    ) {
        let node = json!({"metadata": {"name": "n"}, "status": {"capacity": capacity, "allocatable": allocatable}});
        let patch = extended_resources_patch(&serde_json::from_value(node).unwrap());
        assert_eq!(serde_json::to_value(patch).unwrap(), expected);
    }
}
