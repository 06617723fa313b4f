//! Nodes of a member: created from shapes, kept ready by leases, tainted and drained when they fail.
//!
//! The simulation manages nodes with the annotation `sim.crowsnest.io/node`. Nodes with `sim.crowsnest.io/fail` are
//! failed: their conditions are Unknown, they are tainted as unreachable, and their pods become unready and are
//! evicted according to their tolerations. As on a real lost node, evicted pods stay Terminating until the node
//! recovers.

use crate::member::world::{MANAGER, creation};
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

use super::pod::PodState;
use super::podlife::time;
use super::queue::{self, Queue};
use super::recorder::{Source, Subject};
use super::shape::{self, KUBERNETES_VERSION, NodeProperties, NodeShape};
use super::store::{Index, Key, Stored};
use super::world::World;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Default lease duration of a node.
const LEASE: Duration = Duration::from_secs(40);
/// Interval at which a kubelet writes an unchanged node status.
const STATUS_EVERY: Duration = Duration::from_secs(300);
const SOURCE: Source = Source { component: "node-controller", host: None };
/// Nodes created concurrently.
const ADDED_AT_ONCE: usize = 16;

/// Annotation of nodes that the simulation runs: the properties that the shape of the node sets ([`NodeProperties`]).
pub const NODE_PROPERTIES_ANNOTATION: &str = "sim.crowsnest.io/node";
/// Annotation of nodes that fail.
const FAIL: &str = "sim.crowsnest.io/fail";

fn annotated(node: &Node, name: &str) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(name)).is_some_and(|value| value != "false")
}

/// True if the simulation manages this node.
pub fn is_own(node: &Node) -> bool {
    annotated(node, NODE_PROPERTIES_ANNOTATION)
}

/// True if the node is failed.
pub fn is_failed(node: &Node) -> bool {
    annotated(node, FAIL)
}

/// Creates missing nodes of a shape, named `<prefix>-1…`. `first_index` separates address ranges.
pub async fn add(world: &World, prefix: &str, shape: &NodeShape, first_index: usize) -> Result<()> {
    let nodes = (0..shape.count).map(|number| NewNode {
        name: format!("{prefix}-{}", number + 1),
        index: first_index + number,
        properties: shape.properties(number, KUBERNETES_VERSION),
    });
    add_all(world, nodes.filter(|node| world.nodes.get(&Key::new("", &node.name)).is_none()).collect()).await
}

/// Name of the `number`-th node, counted from 0, of the `pool`-th shape of a member.
fn name_in(member: &str, pool: usize, number: usize) -> String {
    match pool {
        0 => format!("{member}-node-{}", number + 1),
        pool => format!("{member}-pool{pool}-{}", number + 1),
    }
}

/// True for names of the form that [`name_in`] creates.
fn is_of_pool(member: &str, name: &str) -> bool {
    let rest = name.strip_prefix(member).and_then(|rest| rest.strip_prefix('-'));
    let Some((pool, number)) = rest.and_then(|rest| rest.split_once('-')) else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (pool == "node" || pool.strip_prefix("pool").is_some_and(is_number)) && is_number(number)
}

/// Reconciles a member's nodes with its shapes: creates missing nodes, updates nodes whose shape has changed, and deletes the others. A node
/// whose shape is unchanged is not written, so that changes by users are kept.
pub async fn reconcile(world: &World, shapes: &[NodeShape], version: &str) -> Result<()> {
    let wanted = shapes.iter().enumerate().flat_map(|(pool, shape)| {
        (0..shape.count).map(move |number| (name_in(&world.name, pool, number), shape.properties(number, version)))
    });
    let wanted: BTreeMap<String, NodeProperties> = wanted.collect();
    let nodes = world.nodes.all();
    let own = nodes.iter().filter(|node| is_own(node)).map(|node| node.key().name);
    for name in own.filter(|name| is_of_pool(&world.name, name) && !wanted.contains_key(&**name)) {
        remove(world, &name).await?;
    }
    let taken: HashSet<String> =
        nodes.iter().filter_map(|node| node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone())).collect();
    let mut free = (0..).filter(|index| !taken.contains(&shape::pod_cidr(&world.name, *index)));
    let (mut added, mut changed) = (Vec::new(), Vec::new());
    for (name, properties) in wanted {
        match world.nodes.get(&Key::new("", &name)) {
            Some(node) if is_own(&node) => changed.push((name, node, properties)),
            Some(_) => {}
            None => added.extend(free.next().map(|index| NewNode { name, index, properties })),
        }
    }
    futures::stream::iter(changed)
        .map(|(name, node, properties)| async move { change(world, &name, &node, &properties).await })
        .buffer_unordered(ADDED_AT_ONCE)
        .try_collect::<()>()
        .await?;
    add_all(world, added).await
}

/// Writes the properties of a node if they differ from the recorded ones.
async fn change(world: &World, name: &str, node: &Node, properties: &NodeProperties) -> Result<()> {
    let live = serde_json::to_value(node).map_err(|source| Error::Encode { what: "node", source })?;
    let before = NodeProperties::recorded(&live);
    if before == *properties {
        return Ok(());
    }
    let api: Api<Node> = Api::all(world.client.clone());
    let (main, status) = properties.merge_patches_from(&before, &live);
    // The annotation is written last, so that an interrupted change is repeated.
    api.patch_status(name, &PatchParams::apply(MANAGER), &Patch::Merge(&status))
        .await
        .map_err(Error::api(format!("write status of node {name}")))?;
    let changed = api.patch(name, &PatchParams::apply(MANAGER), &Patch::Merge(&main)).await;
    world.nodes.apply(changed.map_err(Error::api(format!("change node {name}")))?.into());
    Ok(())
}

/// A node to be created.
struct NewNode {
    name: String,
    /// Index of its addresses.
    index: usize,
    properties: NodeProperties,
}

async fn add_all(world: &World, nodes: Vec<NewNode>) -> Result<()> {
    futures::stream::iter(nodes).map(|node| add_one(world, node)).buffer_unordered(ADDED_AT_ONCE).try_collect().await
}

async fn add_one(world: &World, NewNode { name, index, properties }: NewNode) -> Result<()> {
    let api: Api<Node> = Api::all(world.client.clone());
    let body = shape::node(&world.name, &name, index, &properties, Timestamp::now());
    let node: Node = serde_json::from_value(body.clone()).map_err(|source| Error::Encode { what: "node", source })?;
    let node = match api.create(&creation(), &node).await.map_err(Error::api(format!("create node {name}"))) {
        Ok(created) if created.status.as_ref().is_some_and(|status| status.allocatable.is_some()) => created,
        // kube-apiserver drops the status of new nodes.
        Ok(_) => {
            let patch = json!({"status": body["status"]});
            let patched = api.patch_status(&name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await;
            patched.map_err(Error::api(format!("write status of node {name}")))?
        }
        Err(error) if error.is_conflict() => return Ok(()),
        Err(error) => return Err(error),
    };
    world.nodes.apply(node.into());
    Ok(())
}

/// Fails or recovers a node.
pub async fn set_failed(world: &World, name: &str, failed: bool) -> Result<()> {
    let api: Api<Node> = Api::all(world.client.clone());
    let value = if failed { json!("true") } else { Value::Null };
    let patch = json!({"metadata": {"annotations": {FAIL: value}}});
    let node = api
        .patch(name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch))
        .await
        .map_err(Error::api(format!("annotate node {name}")))?;
    world.nodes.apply(node.into());
    Ok(())
}

/// Starts heartbeats and failure handling.
pub fn start(world: &Arc<World>) {
    let nodes = Arc::new(Queue::<Arc<str>>::default());
    let wanted = nodes.clone();
    world.nodes.on_change(move |_, new| {
        if let Some(node) = new {
            wanted.add(node.key().name);
        }
    });
    let (shared, stop) = (world.clone(), world.stop.clone());
    world.work(
        "nodes",
        async move { queue::run("node", nodes, 4, stop, |name| reconcile_failure(&shared, name)).await },
    );
    let (shared, stop) = (world.clone(), world.stop.clone());
    world.work("heartbeats of nodes", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = heartbeats(&shared) => {}
        }
    });
}

/// Sets a node's conditions and taints by its failure annotation.
async fn reconcile_failure(world: &World, name: Arc<str>) -> Result<Option<Duration>> {
    let Some(node) = world.nodes.get(&Key::new("", &name)).filter(|node| is_own(node)) else { return Ok(None) };
    let failed = is_failed(&node);
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let shown_ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let tainted = taints.iter().any(|taint| taint.key == UNREACHABLE);
    let api: Api<Node> = Api::all(world.client.clone());
    let now = Timestamp::now();
    if shown_ready == failed {
        let conditions = if failed { shape::unknown_conditions(now) } else { shape::ready_conditions(now) };
        let patch = json!({"status": {"conditions": conditions}});
        let node = api.patch_status(&name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await;
        world.nodes.apply(node.map_err(Error::api(format!("write status of node {name}")))?.into());
        let (reason, message) = if failed { ("NodeNotReady", "NodeNotReady") } else { ("NodeReady", "NodeReady") };
        let subject = Subject::new("v1", "Node", Key::new("", &name), &name);
        world.recorder.record(subject, SOURCE, false, reason, format!("Node {name} status is now: {message}"));
    }
    if let Some(allocatable) = extended_resources(&node) {
        let patch = json!({"status": {"allocatable": allocatable}});
        let node = api.patch_status(&name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await;
        world.nodes.apply(node.map_err(Error::api(format!("write status of node {name}")))?.into());
    }
    if tainted != failed {
        let mut taints: Vec<Taint> = taints.into_iter().filter(|taint| taint.key != UNREACHABLE).collect();
        if failed {
            taints.extend([NO_SCHEDULE, NO_EXECUTE].map(|effect| Taint {
                key: UNREACHABLE.into(),
                effect: effect.into(),
                time_added: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now)),
                value: None,
            }));
        }
        let patch = json!({"metadata": {"resourceVersion": node_version(world, &name)}, "spec": {"taints": taints}});
        let node = api.patch(&name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await;
        world.nodes.apply(node.map_err(Error::api(format!("taint node {name}")))?.into());
    }
    if failed {
        for pod in world.pods.by(&Index::Node(name.clone())) {
            set_not_ready(world, &pod, now).await?;
        }
    }
    Ok(None)
}

/// A merge patch that sets the extended resources in `allocatable` to those in `capacity`, as a kubelet does when a
/// user has written the capacity; `None` if they are equal.
fn extended_resources(node: &Node) -> Option<BTreeMap<String, Option<Quantity>>> {
    let status = node.status.as_ref()?;
    let extended = |list: &Option<BTreeMap<String, Quantity>>| -> BTreeMap<String, Quantity> {
        let entries = list.iter().flatten();
        let own = entries.filter(|(name, _)| name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io"));
        own.map(|(name, quantity)| (name.clone(), quantity.clone())).collect()
    };
    let (capacity, allocatable) = (extended(&status.capacity), extended(&status.allocatable));
    let written = capacity.iter().filter(|(name, quantity)| allocatable.get(*name) != Some(quantity));
    let removed = allocatable.keys().filter(|name| !capacity.contains_key(*name));
    let patch: BTreeMap<String, Option<Quantity>> = written
        .map(|(name, quantity)| (name.clone(), Some(quantity.clone())))
        .chain(removed.map(|name| (name.clone(), None)))
        .collect();
    (!patch.is_empty()).then_some(patch)
}

fn node_version(world: &World, name: &str) -> Option<String> {
    world.nodes.get(&Key::new("", name)).map(|node| node.version().to_string())
}

/// Sets a pod on a failed node to not ready.
async fn set_not_ready(world: &World, pod: &PodState, now: Timestamp) -> Result<()> {
    if !pod.is_ready() || pod.phase.is_terminal() {
        return Ok(());
    }
    let known = |at: Option<Timestamp>| time(at.or(pod.started).unwrap_or(now));
    let condition = |kind: &str, status: &str, at: String, reason: Value| json!({"type": kind, "status": status, "lastTransitionTime": at, "lastProbeTime": null, "reason": reason});
    let mut conditions = vec![
        condition("Initialized", "True", known(None), Value::Null),
        condition("Ready", "False", time(now), json!("NodeNotReady")),
        condition("ContainersReady", "True", known(pod.ready_since), Value::Null),
        condition("PodScheduled", "True", known(pod.scheduled), Value::Null),
    ];
    for condition in &mut conditions {
        if condition["reason"].is_null()
            && let Some(fields) = condition.as_object_mut()
        {
            fields.remove("reason");
        }
    }
    conditions.extend(pod.foreign_conditions.iter().filter_map(|condition| serde_json::to_value(condition).ok()));
    match world.patch_pod_status(pod, json!({"status": {"conditions": conditions}})).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Renews leases at a rate that does not grow with the number of nodes: at most about one write a second.
async fn heartbeats(world: &World) {
    let mut status_due: HashMap<Arc<str>, tokio::time::Instant> = HashMap::new();
    loop {
        let nodes: Vec<_> = world.nodes.all().into_iter().filter(|node| is_own(node)).collect();
        let every = Duration::from_secs(10).max(Duration::from_secs(nodes.len() as u64));
        let pause = every / u32::try_from(nodes.len().max(1)).unwrap_or(u32::MAX);
        if nodes.is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for node in nodes {
            let name = node.key().name;
            if !is_failed(&node) {
                if let Err(error) = renew_lease(world, &name, node.uid(), every * 4).await {
                    tracing::debug!(%name, %error, "cannot renew the lease of a node");
                }
                let now = tokio::time::Instant::now();
                if *status_due.entry(name.clone()).or_insert(now + STATUS_EVERY) <= now {
                    status_due.insert(name.clone(), now + STATUS_EVERY);
                    if let Err(error) = heartbeat(world, &node).await {
                        tracing::debug!(%name, %error, "cannot update the status of a node");
                    }
                }
            }
            tokio::time::sleep(pause).await;
        }
        delete_lost_pods(world).await;
    }
}

async fn renew_lease(world: &World, name: &str, uid: &str, lasts: Duration) -> Result<()> {
    let leases: Api<Lease> = world.api("kube-node-lease");
    let renewed = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let patch = json!({"spec": {"renewTime": renewed}});
    let missing = match leases.patch_metadata(name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await {
        Ok(_) => return Ok(()),
        Err(error) => Error::api(format!("renew lease {name}"))(error),
    };
    if !missing.is_not_found() {
        return Err(missing);
    }
    let lease = json!({
        "metadata": {"name": name, "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": lasts.max(LEASE).as_secs(), "renewTime": renewed},
    });
    let lease: Lease = serde_json::from_value(lease).map_err(|source| Error::Encode { what: "lease", source })?;
    leases.create(&creation(), &lease).await.map_err(Error::api(format!("create lease {name}")))?;
    Ok(())
}

async fn heartbeat(world: &World, node: &super::informer::Object<Node>) -> Result<()> {
    let mut conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    for condition in &mut conditions {
        condition.last_heartbeat_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
    }
    let api: Api<Node> = Api::all(world.client.clone());
    let name = node.key().name;
    let patch = json!({"status": {"conditions": conditions}});
    api.patch_status(&name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch))
        .await
        .map_err(Error::api(format!("write status of node {name}")))?;
    Ok(())
}

/// Deletes pods bound to missing nodes, like the pod garbage collector.
async fn delete_lost_pods(world: &World) {
    let lost = world
        .pods
        .all()
        .into_iter()
        .filter(|pod| pod.node.as_ref().is_some_and(|node| world.nodes.get(&Key::new("", node)).is_none()));
    for pod in lost {
        if let Err(error) = world.delete_pod(&pod.key, &pod.uid, Some(0)).await {
            tracing::debug!(pod = %pod.key, %error, "cannot delete a pod of a missing node");
        }
    }
}

/// Deletes a node of the simulation.
pub async fn remove(world: &World, name: &str) -> Result<()> {
    let api: Api<Node> = Api::all(world.client.clone());
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
    fn extended_resources_follow_the_capacity(
        #[case] capacity: Value,
        #[case] allocatable: Value,
        #[case] expected: Value,
    ) {
        let node = json!({"metadata": {"name": "n"}, "status": {"capacity": capacity, "allocatable": allocatable}});
        let patch = extended_resources(&serde_json::from_value(node).unwrap());
        assert_eq!(serde_json::to_value(patch).unwrap(), expected);
    }
}
