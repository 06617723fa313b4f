//! Garbage collector: deletes objects whose owners no longer exist, and completes foreground and orphan deletions.
//!
//! Follows all tables of the store through one feed. Keeps a graph of objects that have owners or are being deleted
//! with propagation. Stored objects are read again before each decision, so that an outdated graph cannot cause
//! wrong deletions.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::request::options::{DeleteOptions, PropagationPolicy};
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_component_base::retry::{Backoff, Delays};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{ChangeKind, Links, ObjectKey, OwnerLink, ResourceKey};
use crowsnest_registry::{Change, Edit, Registry};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
/// Objects processed concurrently.
const MAX_CONCURRENT_OBJECTS: usize = 32;
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// Location of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObjectLocation {
    table: ResourceKey,
    key: ObjectKey,
}

/// State of the owner that a reference names.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Solid,
    /// In foreground deletion, waiting for this dependent.
    Waiting,
    Gone,
    /// The kind is unknown, or the owner is namespaced and the dependent is not: the dependent is left alone.
    Unknown,
}

/// An owner reference of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    owner: String,
    /// `blockOwnerDeletion`: foreground deletion of the owner waits for the node.
    blocks: bool,
}

#[derive(Debug, Default)]
struct Graph {
    /// Objects with owners, by UID.
    nodes: HashMap<String, (ObjectLocation, Vec<Edge>)>,
    dependents: HashMap<String, HashSet<String>>,
    /// Owners in foreground or orphan deletion, by UID.
    ending: HashMap<String, ObjectLocation>,
    /// By owner UID: [`mark`]s of owner references that were found valid, until the owner is deleted. Avoids reading
    /// the owner on each change of its dependents.
    settled: Mutex<HashMap<String, HashSet<u64>>>,
}

/// Hash of the owner references of an object in a namespace.
fn mark(namespace: &str, owners: &[OwnerLink]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, owners).hash(&mut hasher);
    hasher.finish()
}

impl Graph {
    fn is_settled(&self, namespace: &str, owners: &[OwnerLink]) -> bool {
        let (mark, settled) = (mark(namespace, owners), self.settled.lock());
        owners.iter().all(|owner| settled.get(&owner.uid).is_some_and(|marks| marks.contains(&mark)))
    }

    fn settle(&self, namespace: &str, owners: &[OwnerLink]) {
        let (mark, mut settled) = (mark(namespace, owners), self.settled.lock());
        for owner in owners {
            settled.entry(owner.uid.clone()).or_default().insert(mark);
        }
    }

    fn forget(&mut self, uid: &str) {
        if let Some((_, owners)) = self.nodes.remove(uid) {
            for Edge { owner, .. } in owners {
                if let Some(set) = self.dependents.get_mut(&owner) {
                    set.remove(uid);
                    if set.is_empty() {
                        self.dependents.remove(&owner);
                    }
                }
            }
        }
        self.ending.remove(uid);
    }

    /// The owners in foreground or orphan deletion.
    fn ending_owners(&self, owners: &[Edge]) -> Vec<String> {
        let ending = owners.iter().filter(|edge| self.ending.contains_key(&edge.owner));
        ending.map(|edge| edge.owner.clone()).collect()
    }

    /// Applies a change and returns the UIDs to check.
    fn see(&mut self, location: ObjectLocation, links: &Links, kind: ChangeKind) -> Vec<String> {
        let uid = links.uid.clone();
        let edge = |link: &OwnerLink| Edge { owner: link.uid.clone(), blocks: link.block_owner_deletion == Some(true) };
        let owners: Vec<Edge> = links.owners.iter().map(edge).collect();
        if kind == ChangeKind::Deleted || links.is_deleting {
            self.settled.get_mut().remove(&uid);
        }
        if kind == ChangeKind::Deleted {
            let mut touched: Vec<String> = self.dependents.get(&uid).into_iter().flatten().cloned().collect();
            touched.extend(self.ending_owners(&owners));
            self.forget(&uid);
            return touched;
        }
        let mut touched = Vec::new();
        let before = self.nodes.get(&uid).map(|(_, owners)| owners.clone()).unwrap_or_default();
        if before != owners {
            touched.extend(self.ending_owners(&before));
            self.forget(&uid);
            for Edge { owner, .. } in &owners {
                self.dependents.entry(owner.clone()).or_default().insert(uid.clone());
            }
        }
        if !owners.is_empty() {
            if !self.is_settled(location.key.namespace(), &links.owners) {
                touched.push(uid.clone());
            }
            self.nodes.insert(uid.clone(), (location.clone(), owners));
        }
        if links.is_deleting && links.finalizers.iter().any(|f| f == ORPHAN || f == FOREGROUND) {
            self.ending.insert(uid.clone(), location);
            touched.push(uid);
        } else {
            self.ending.remove(&uid);
        }
        touched
    }
}

/// Follows the store until cancelled.
pub async fn run(registry: Arc<Registry>, stopped: CancellationToken) {
    let mut graph = Graph::default();
    let mut feed = registry.store.feed();
    let mut failed = Failed { uids: HashSet::new(), again: None, delays: RETRY.delays() };
    loop {
        let batch = tokio::select! {
            batch = feed.next() => Some(batch),
            () = failed.due() => None,
            () = stopped.cancelled() => return,
        };
        let mut touched: HashSet<String> = HashSet::new();
        match batch {
            None => touched.extend(failed.take()),
            Some(Ok(changes)) => {
                for (table, change) in changes {
                    match change.body.links() {
                        Ok(links) => {
                            touched.extend(graph.see(ObjectLocation { table, key: change.key }, &links, change.kind))
                        }
                        Err(error) => tracing::warn!(key = %change.key, %error, "cannot read an object"),
                    }
                }
            }
            Some(Err(Error::Closed)) => return,
            Some(Err(error)) => {
                tracing::warn!(%error, "restarting the garbage collector");
                graph = Graph::default();
                feed = registry.store.feed();
                continue;
            }
        }
        failed.add(work(&registry, &graph, touched).await);
    }
}

/// Objects whose processing failed, for example because a webhook was not ready. They are retried, since no change
/// may follow.
#[derive(Debug)]
struct Failed {
    uids: HashSet<String>,
    /// Time of the next attempt.
    again: Option<Instant>,
    delays: Delays,
}

impl Failed {
    fn add(&mut self, uids: Vec<String>) {
        self.uids.extend(uids);
        if self.uids.is_empty() {
            self.again = None;
            self.delays.reset();
        } else if self.again.is_none_or(|at| at <= Instant::now()) {
            self.again = Some(Instant::now() + self.delays.next_delay());
        }
    }

    fn take(&mut self) -> HashSet<String> {
        std::mem::take(&mut self.uids)
    }

    async fn due(&self) {
        match self.again {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

/// Processes objects; returns those that failed.
async fn work(registry: &Arc<Registry>, graph: &Graph, touched: HashSet<String>) -> Vec<String> {
    let failed = Mutex::new(Vec::new());
    stream::iter(touched)
        .for_each_concurrent(MAX_CONCURRENT_OBJECTS, |uid| {
            let failed = &failed;
            async move {
                let mut well = true;
                if let Some(location) = graph.ending.get(&uid)
                    && let Err(error) = end(registry, graph, &uid, location).await
                {
                    tracing::warn!(key = %location.key, %error, "cannot complete a deletion");
                    well = false;
                }
                if let Some((location, _)) = graph.nodes.get(&uid)
                    && let Err(error) = collect(registry, graph, &uid, location).await
                    && !error.is(Reason::NotFound)
                    && !error.is(Reason::Conflict)
                {
                    tracing::warn!(key = %location.key, %error, "cannot collect an object");
                    well = false;
                }
                if !well {
                    failed.lock().push(uid);
                }
            }
        })
        .await;
    failed.into_inner()
}

/// The object at a location if it has this UID.
async fn object(
    registry: &Arc<Registry>,
    location: &ObjectLocation,
    uid: &str,
) -> ApiResult<Option<(ResourceRef, Value)>> {
    let Some(resource) = registry.catalog.snapshot().by_table(&location.table).cloned() else { return Ok(None) };
    match registry.get(&resource, location.key.namespace(), location.key.name()).await {
        Ok(object) if object.uid() == uid => Ok(Some((resource, object))),
        Ok(_) => Ok(None),
        Err(error) if error.is(Reason::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn owner(registry: &Arc<Registry>, reference: &OwnerLink, namespace: &str) -> ApiResult<Owner> {
    let served = registry.catalog.snapshot();
    let Some(resource) = served.by_kind(&reference.api_version, &reference.kind) else { return Ok(Owner::Unknown) };
    if resource.namespaced && namespace.is_empty() {
        // A cluster-scoped object cannot have a namespaced owner.
        return Ok(Owner::Unknown);
    }
    let namespace = if resource.namespaced { namespace } else { "" };
    match registry.get(resource, namespace, &reference.name).await {
        Ok(owner) if owner.uid() != reference.uid => Ok(Owner::Gone),
        Ok(owner) if owner.is_deleting() && owner.finalizers().iter().any(|f| f == FOREGROUND) => Ok(Owner::Waiting),
        Ok(_) => Ok(Owner::Solid),
        Err(error) if error.is(Reason::NotFound) => Ok(Owner::Gone),
        Err(error) => Err(error),
    }
}

/// Deletes a dependent without owners, or removes references to missing owners.
async fn collect(registry: &Arc<Registry>, graph: &Graph, uid: &str, location: &ObjectLocation) -> ApiResult<()> {
    let Some((resource, dependent)) = object(registry, location, uid).await? else { return Ok(()) };
    if dependent.is_deleting() && !dependent.finalizers().iter().any(|f| f == FOREGROUND) {
        return Ok(());
    }
    let references = Vec::<OwnerLink>::deserialize(&dependent["metadata"]["ownerReferences"]).unwrap_or_default();
    if graph.is_settled(dependent.namespace(), &references) {
        return Ok(());
    }
    let (mut solid, mut waiting, mut gone) = (0, 0, HashSet::new());
    for reference in &references {
        match owner(registry, reference, dependent.namespace()).await? {
            Owner::Unknown => return Ok(()),
            Owner::Solid => solid += 1,
            Owner::Waiting => {
                waiting += 1;
                gone.insert(reference.uid.clone());
            }
            Owner::Gone => {
                gone.insert(reference.uid.clone());
            }
        }
    }
    if gone.is_empty() {
        graph.settle(dependent.namespace(), &references);
    }
    if gone.is_empty() || dependent.is_deleting() {
        return Ok(());
    }
    if solid > 0 {
        return drop_owners(registry, &resource, &dependent, gone).await;
    }
    let held = dependent.finalizers();
    let waits_as_well = waiting > 0 && graph.dependents.get(uid).is_some_and(|d| !d.is_empty());
    if waits_as_well && may_be_in_cycle(registry, graph, uid).await? {
        unblock_owners(registry, &resource, &dependent).await?;
    }
    let propagation = if waits_as_well || (held.iter().any(|f| f == FOREGROUND) && !held.iter().any(|f| f == ORPHAN)) {
        PropagationPolicy::Foreground
    } else if held.iter().any(|f| f == ORPHAN) {
        PropagationPolicy::Orphan
    } else {
        PropagationPolicy::Background
    };
    let options = DeleteOptions {
        uid: Some(uid.to_owned()),
        propagation: Some(propagation),
        raw: json!({}),
        ..DeleteOptions::default()
    };
    let ctx = loopback(dependent.namespace());
    registry.delete(&resource, &ctx, dependent.name(), &options, &mut Vec::new()).await?;
    Ok(())
}

/// True if a dependent of an object is itself in foreground deletion: the references may form a cycle in which each
/// waits for the next.
async fn may_be_in_cycle(registry: &Arc<Registry>, graph: &Graph, uid: &str) -> ApiResult<bool> {
    for dependent in graph.dependents.get(uid).into_iter().flatten() {
        let Some(location) = graph.ending.get(dependent) else { continue };
        let found = object(registry, location, dependent).await?;
        if found.is_some_and(|(_, object)| object.is_deleting() && object.finalizers().iter().any(|f| f == FOREGROUND))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Clears `blockOwnerDeletion`, like `unblockOwnerReferencesStrategicMergePatch` of Kubernetes' garbage collector.
async fn unblock_owners(registry: &Arc<Registry>, resource: &ResourceRef, dependent: &Value) -> ApiResult<()> {
    let uid = dependent.uid().to_owned();
    let edit = Edit(Arc::new(move |object: &mut Value| {
        if object.uid() != uid {
            return Ok(());
        }
        let owners = object.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut);
        for owner in owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true) {
            owner["blockOwnerDeletion"] = false.into();
        }
        Ok(())
    }));
    edit_object(registry, resource, dependent, edit).await
}

async fn drop_owners(
    registry: &Arc<Registry>,
    resource: &ResourceRef,
    dependent: &Value,
    gone: HashSet<String>,
) -> ApiResult<()> {
    let uid = dependent.uid().to_owned();
    let edit = Edit(Arc::new(move |object: &mut Value| {
        if object.uid() != uid {
            return Ok(());
        }
        if let Some(owners) = object.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut) {
            owners.retain(|o| !o["uid"].as_str().is_some_and(|uid| gone.contains(uid)));
            if owners.is_empty() {
                object.metadata_mut().remove("ownerReferences");
            }
        }
        Ok(())
    }));
    edit_object(registry, resource, dependent, edit).await
}

async fn drop_finalizer(
    registry: &Arc<Registry>,
    resource: &ResourceRef,
    object: &Value,
    finalizer: &'static str,
) -> ApiResult<()> {
    let edit = Edit(Arc::new(move |object: &mut Value| {
        let kept = object.finalizers().into_iter().filter(|f| f != finalizer).collect();
        object.set_finalizers(kept);
        Ok(())
    }));
    edit_object(registry, resource, object, edit).await
}

async fn edit_object(registry: &Arc<Registry>, resource: &ResourceRef, object: &Value, edit: Edit) -> ApiResult<()> {
    let ctx = loopback(object.namespace());
    let change = Change::Edit(edit);
    match registry.update(resource, &ctx, object.name(), &change, &loopback_options(), &mut Vec::new()).await {
        Ok(_) => Ok(()),
        Err(error) if error.is(Reason::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Continues a foreground or orphan deletion.
async fn end(registry: &Arc<Registry>, graph: &Graph, uid: &str, location: &ObjectLocation) -> ApiResult<()> {
    let Some((resource, ending)) = object(registry, location, uid).await? else { return Ok(()) };
    if !ending.is_deleting() {
        return Ok(());
    }
    let held = ending.finalizers();
    let dependents: Vec<&String> = graph.dependents.get(uid).into_iter().flatten().collect();
    if held.iter().any(|f| f == ORPHAN) {
        for dependent in dependents {
            let Some((location, _)) = graph.nodes.get(dependent) else { continue };
            if let Some((of, object)) = object(registry, location, dependent).await? {
                drop_owners(registry, &of, &object, HashSet::from([uid.to_owned()])).await?;
            }
        }
        return drop_finalizer(registry, &resource, &ending, ORPHAN).await;
    }
    if !held.iter().any(|f| f == FOREGROUND) {
        return Ok(());
    }
    let (mut blocked, mut failed) = (false, None);
    for dependent in dependents {
        let Some((location, _)) = graph.nodes.get(dependent) else { continue };
        let Some((_, object)) = object(registry, location, dependent).await? else { continue };
        let references = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        blocked |= references.iter().any(|r| r["uid"] == *uid && r["blockOwnerDeletion"] == true);
        let collected = collect(registry, graph, dependent, location).await;
        failed = collected.err().filter(|error| !error.is(Reason::NotFound)).or(failed);
    }
    if !blocked {
        drop_finalizer(registry, &resource, &ending, FOREGROUND).await?;
    }
    failed.map_or(Ok(()), Err)
}
