//! Garbage collector: deletes objects whose owners no longer exist, and completes foreground and orphan deletions.
//!
//! It follows all tables of the store through one feed and maintains a graph of objects that have owners or are in
//! foreground or orphan deletion. It reads stored objects again before each decision, so that an outdated graph cannot
//! cause wrong deletions.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::request::options::{DeleteOptions, DependentsPolicy, Preconditions, PropagationPolicy};
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_component_base::retry::{Backoff, Delays};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{ChangeKind, ObjectKey, OwnerReference, OwnershipMetadata, ResourceKey};
use crowsnest_registry::{Change, Edit, Registry};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const ORPHAN_FINALIZER: &str = "orphan";
const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
/// Maximum number of objects that are processed concurrently.
const MAX_CONCURRENT_OBJECTS: usize = 32;
/// Delays before failed objects are processed again.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// Location of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObjectLocation {
    table: ResourceKey,
    key: ObjectKey,
}

/// State of the owner that a reference names. `Solid`, `Waiting` and `Dangling` are the terms of Kubernetes' garbage
/// collector.
#[derive(Debug, PartialEq, Eq)]
enum OwnerState {
    /// The owner exists.
    Solid,
    /// The owner is in foreground deletion and waits for its dependents.
    Waiting,
    /// The owner does not exist.
    Dangling,
    /// The kind is unknown, or the owner is namespaced and the dependent is not. The dependent is not deleted.
    Unknown,
}

/// An owner reference of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnerEdge {
    /// UID of the owner.
    owner: String,
    /// `blockOwnerDeletion`: foreground deletion of the owner waits for the node.
    blocks_deletion: bool,
}

#[derive(Debug, Default)]
struct Graph {
    /// Objects with owners, by UID.
    nodes: HashMap<String, (ObjectLocation, Vec<OwnerEdge>)>,
    /// UIDs of dependents, by UID of the owner.
    dependents: HashMap<String, HashSet<String>>,
    /// Objects in foreground or orphan deletion, by UID.
    deleting: HashMap<String, ObjectLocation>,
    /// Hashes ([`hash_owners`]) of owner references whose owners exist, by UID of the owner, until the owner is
    /// deleted. This cache avoids reading the owner on each change of its dependents.
    verified_owners: Mutex<HashMap<String, HashSet<u64>>>,
}

/// Hash of the owner references of an object in a namespace.
fn hash_owners(namespace: &str, owners: &[OwnerReference]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, owners).hash(&mut hasher);
    hasher.finish()
}

impl Graph {
    /// True if the owners of these references are known to exist.
    fn are_verified(&self, namespace: &str, owners: &[OwnerReference]) -> bool {
        let (hash, verified) = (hash_owners(namespace, owners), self.verified_owners.lock());
        owners.iter().all(|owner| verified.get(&owner.uid).is_some_and(|hashes| hashes.contains(&hash)))
    }

    fn mark_verified(&self, namespace: &str, owners: &[OwnerReference]) {
        let (hash, mut verified) = (hash_owners(namespace, owners), self.verified_owners.lock());
        for owner in owners {
            verified.entry(owner.uid.clone()).or_default().insert(hash);
        }
    }

    fn remove(&mut self, uid: &str) {
        if let Some((_, owners)) = self.nodes.remove(uid) {
            for OwnerEdge { owner, .. } in owners {
                if let Some(dependents) = self.dependents.get_mut(&owner) {
                    dependents.remove(uid);
                    if dependents.is_empty() {
                        self.dependents.remove(&owner);
                    }
                }
            }
        }
        self.deleting.remove(uid);
    }

    /// The owners in foreground or orphan deletion.
    fn deleting_owners(&self, owners: &[OwnerEdge]) -> Vec<String> {
        let deleting = owners.iter().filter(|edge| self.deleting.contains_key(&edge.owner));
        deleting.map(|edge| edge.owner.clone()).collect()
    }

    /// Applies a change of an object; returns the UIDs of the objects to process.
    fn apply_change(
        &mut self,
        location: ObjectLocation,
        ownership: &OwnershipMetadata,
        kind: ChangeKind,
    ) -> Vec<String> {
        let uid = ownership.uid.clone();
        let edge = |reference: &OwnerReference| OwnerEdge {
            owner: reference.uid.clone(),
            blocks_deletion: reference.block_owner_deletion == Some(true),
        };
        let owners: Vec<OwnerEdge> = ownership.owners.iter().map(edge).collect();
        if kind == ChangeKind::Deleted || ownership.is_deleting {
            self.verified_owners.get_mut().remove(&uid);
        }
        if kind == ChangeKind::Deleted {
            let mut to_process: Vec<String> = self.dependents.get(&uid).into_iter().flatten().cloned().collect();
            to_process.extend(self.deleting_owners(&owners));
            self.remove(&uid);
            return to_process;
        }
        let mut to_process = Vec::new();
        let previous = self.nodes.get(&uid).map(|(_, owners)| owners.clone()).unwrap_or_default();
        if previous != owners {
            to_process.extend(self.deleting_owners(&previous));
            self.remove(&uid);
            for OwnerEdge { owner, .. } in &owners {
                self.dependents.entry(owner.clone()).or_default().insert(uid.clone());
            }
        }
        if !owners.is_empty() {
            if !self.are_verified(location.key.namespace(), &ownership.owners) {
                to_process.push(uid.clone());
            }
            self.nodes.insert(uid.clone(), (location.clone(), owners));
        }
        if ownership.is_deleting
            && ownership.finalizers.iter().any(|f| f == ORPHAN_FINALIZER || f == FOREGROUND_FINALIZER)
        {
            self.deleting.insert(uid.clone(), location);
            to_process.push(uid);
        } else {
            self.deleting.remove(&uid);
        }
        to_process
    }
}

/// Follows the store until cancelled.
pub async fn run(registry: Arc<Registry>, stop_token: CancellationToken) {
    let mut graph = Graph::default();
    let mut feed = registry.store.feed();
    let mut failed = FailedObjects { uids: HashSet::new(), next_attempt: None, delays: RETRY_BACKOFF.delays() };
    loop {
        let batch = tokio::select! {
            batch = feed.next() => Some(batch),
            () = failed.wait_for_next_attempt() => None,
            () = stop_token.cancelled() => return,
        };
        let mut to_process: HashSet<String> = HashSet::new();
        match batch {
            None => to_process.extend(failed.take()),
            Some(Ok(changes)) => {
                for (table, change) in changes {
                    match change.body.ownership() {
                        Ok(ownership) => {
                            let location = ObjectLocation { table, key: change.key };
                            to_process.extend(graph.apply_change(location, &ownership, change.kind));
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
        failed.add(process_objects(&registry, &graph, to_process).await);
    }
}

/// Objects whose processing failed, for example because a webhook was not ready. They are processed again after a
/// delay, since it is possible that they do not change any more.
#[derive(Debug)]
struct FailedObjects {
    uids: HashSet<String>,
    /// Time of the next attempt; `None` if there are no failed objects.
    next_attempt: Option<Instant>,
    delays: Delays,
}

impl FailedObjects {
    /// Adds failed objects and schedules the next attempt.
    fn add(&mut self, uids: Vec<String>) {
        self.uids.extend(uids);
        if self.uids.is_empty() {
            self.next_attempt = None;
            self.delays.reset();
        } else if self.next_attempt.is_none_or(|time| time <= Instant::now()) {
            self.next_attempt = Some(Instant::now() + self.delays.next_delay());
        }
    }

    fn take(&mut self) -> HashSet<String> {
        std::mem::take(&mut self.uids)
    }

    async fn wait_for_next_attempt(&self) {
        match self.next_attempt {
            Some(time) => tokio::time::sleep_until(time).await,
            None => std::future::pending().await,
        }
    }
}

/// Processes objects; returns the UIDs of those that failed.
async fn process_objects(registry: &Arc<Registry>, graph: &Graph, uids: HashSet<String>) -> Vec<String> {
    let failed = Mutex::new(Vec::new());
    stream::iter(uids)
        .for_each_concurrent(MAX_CONCURRENT_OBJECTS, |uid| {
            let failed = &failed;
            async move {
                let mut has_failed = false;
                if let Some(location) = graph.deleting.get(&uid)
                    && let Err(error) = continue_deletion(registry, graph, &uid, location).await
                {
                    tracing::warn!(key = %location.key, %error, "cannot complete a deletion");
                    has_failed = true;
                }
                if let Some((location, _)) = graph.nodes.get(&uid)
                    && let Err(error) = collect_dependent(registry, graph, &uid, location).await
                    && !error.is(Reason::NotFound)
                    && !error.is(Reason::Conflict)
                {
                    tracing::warn!(key = %location.key, %error, "cannot collect an object");
                    has_failed = true;
                }
                if has_failed {
                    failed.lock().push(uid);
                }
            }
        })
        .await;
    failed.into_inner()
}

/// Reads the object at a location; `None` if it does not exist or has another UID.
async fn get_object(
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

/// Reads the state of an owner; `namespace` is that of the dependent.
async fn get_owner_state(
    registry: &Arc<Registry>,
    reference: &OwnerReference,
    namespace: &str,
) -> ApiResult<OwnerState> {
    let served = registry.catalog.snapshot();
    let Some(resource) = served.by_kind(&reference.api_version, &reference.kind) else {
        return Ok(OwnerState::Unknown);
    };
    if resource.namespaced && namespace.is_empty() {
        // A cluster-scoped object cannot have a namespaced owner.
        return Ok(OwnerState::Unknown);
    }
    let namespace = if resource.namespaced { namespace } else { "" };
    match registry.get(resource, namespace, &reference.name).await {
        Ok(owner) if owner.uid() != reference.uid => Ok(OwnerState::Dangling),
        Ok(owner) if owner.is_deleting() && has_finalizer(&owner, FOREGROUND_FINALIZER) => Ok(OwnerState::Waiting),
        Ok(_) => Ok(OwnerState::Solid),
        Err(error) if error.is(Reason::NotFound) => Ok(OwnerState::Dangling),
        Err(error) => Err(error),
    }
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object.finalizers().iter().any(|existing| existing == finalizer)
}

/// Deletes a dependent without solid owners; if it has some, removes the references to other owners
/// (`attemptToDeleteItem` of Kubernetes' garbage collector).
async fn collect_dependent(
    registry: &Arc<Registry>,
    graph: &Graph,
    uid: &str,
    location: &ObjectLocation,
) -> ApiResult<()> {
    let Some((resource, dependent)) = get_object(registry, location, uid).await? else { return Ok(()) };
    if dependent.is_deleting() && !has_finalizer(&dependent, FOREGROUND_FINALIZER) {
        return Ok(());
    }
    let references = Vec::<OwnerReference>::deserialize(&dependent["metadata"]["ownerReferences"]).unwrap_or_default();
    if graph.are_verified(dependent.namespace(), &references) {
        return Ok(());
    }
    let (mut has_solid_owner, mut has_waiting_owner, mut removable_owners) = (false, false, HashSet::new());
    for reference in &references {
        match get_owner_state(registry, reference, dependent.namespace()).await? {
            OwnerState::Unknown => return Ok(()),
            OwnerState::Solid => has_solid_owner = true,
            OwnerState::Waiting => {
                has_waiting_owner = true;
                removable_owners.insert(reference.uid.clone());
            }
            OwnerState::Dangling => {
                removable_owners.insert(reference.uid.clone());
            }
        }
    }
    if removable_owners.is_empty() {
        graph.mark_verified(dependent.namespace(), &references);
    }
    if removable_owners.is_empty() || dependent.is_deleting() {
        return Ok(());
    }
    if has_solid_owner {
        return remove_owner_references(registry, &resource, &dependent, removable_owners).await;
    }
    let has_dependents = graph.dependents.get(uid).is_some_and(|dependents| !dependents.is_empty());
    // An owner that waits for this object also waits for the dependents of this object.
    let must_wait = has_waiting_owner && has_dependents;
    if must_wait && is_possibly_in_cycle(registry, graph, uid).await? {
        unblock_owners(registry, &resource, &dependent).await?;
    }
    let is_orphaning = has_finalizer(&dependent, ORPHAN_FINALIZER);
    let propagation = if must_wait || (has_finalizer(&dependent, FOREGROUND_FINALIZER) && !is_orphaning) {
        PropagationPolicy::Foreground
    } else if is_orphaning {
        PropagationPolicy::Orphan
    } else {
        PropagationPolicy::Background
    };
    let options = DeleteOptions {
        preconditions: Preconditions::for_uid(uid),
        dependents: Some(DependentsPolicy::Propagation(propagation)),
        raw: json!({}),
        ..DeleteOptions::default()
    };
    let ctx = loopback(dependent.namespace());
    registry.delete(&resource, &ctx, dependent.name(), &options, &mut Vec::new()).await?;
    Ok(())
}

/// True if a dependent of an object is itself in foreground deletion: the references may form a cycle in which each
/// waits for the next.
async fn is_possibly_in_cycle(registry: &Arc<Registry>, graph: &Graph, uid: &str) -> ApiResult<bool> {
    for dependent in graph.dependents.get(uid).into_iter().flatten() {
        let Some(location) = graph.deleting.get(dependent) else { continue };
        let object = get_object(registry, location, dependent).await?;
        if object.is_some_and(|(_, object)| object.is_deleting() && has_finalizer(&object, FOREGROUND_FINALIZER)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Clears `blockOwnerDeletion`, like `unblockOwnerReferencesStrategicMergePatch` of Kubernetes' garbage collector.
async fn unblock_owners(registry: &Arc<Registry>, resource: &ResourceRef, dependent: &Value) -> ApiResult<()> {
    edit_dependent(registry, resource, dependent, |object| {
        let owners = object.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut);
        for owner in owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true) {
            owner["blockOwnerDeletion"] = false.into();
        }
    })
    .await
}

/// Removes the references of a dependent to owners with these UIDs.
async fn remove_owner_references(
    registry: &Arc<Registry>,
    resource: &ResourceRef,
    dependent: &Value,
    owner_uids: HashSet<String>,
) -> ApiResult<()> {
    edit_dependent(registry, resource, dependent, move |object| {
        if let Some(owners) = object.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut) {
            owners.retain(|owner| !owner["uid"].as_str().is_some_and(|uid| owner_uids.contains(uid)));
            if owners.is_empty() {
                object.metadata_mut().remove("ownerReferences");
            }
        }
    })
    .await
}

/// Edits a dependent, unless another object has its name now.
async fn edit_dependent(
    registry: &Arc<Registry>,
    resource: &ResourceRef,
    dependent: &Value,
    edit: impl Fn(&mut Value) + Send + Sync + 'static,
) -> ApiResult<()> {
    let uid = dependent.uid().to_owned();
    let edit = Edit(Arc::new(move |object: &mut Value| {
        if object.uid() == uid {
            edit(object);
        }
        Ok(())
    }));
    edit_object(registry, resource, dependent, edit).await
}

async fn remove_finalizer(
    registry: &Arc<Registry>,
    resource: &ResourceRef,
    object: &Value,
    finalizer: &'static str,
) -> ApiResult<()> {
    let edit = Edit(Arc::new(move |object: &mut Value| {
        let remaining = object.finalizers().into_iter().filter(|existing| existing != finalizer).collect();
        object.set_finalizers(remaining);
        Ok(())
    }));
    edit_object(registry, resource, object, edit).await
}

/// Updates an object; does nothing if it does not exist.
async fn edit_object(registry: &Arc<Registry>, resource: &ResourceRef, object: &Value, edit: Edit) -> ApiResult<()> {
    let ctx = loopback(object.namespace());
    let change = Change::Edit(edit);
    match registry.update(resource, &ctx, object.name(), &change, &loopback_options(), &mut Vec::new()).await {
        Ok(_) => Ok(()),
        Err(error) if error.is(Reason::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Continues the foreground or orphan deletion of an owner.
async fn continue_deletion(
    registry: &Arc<Registry>,
    graph: &Graph,
    uid: &str,
    location: &ObjectLocation,
) -> ApiResult<()> {
    let Some((resource, owner)) = get_object(registry, location, uid).await? else { return Ok(()) };
    if !owner.is_deleting() {
        return Ok(());
    }
    let dependents: Vec<&String> = graph.dependents.get(uid).into_iter().flatten().collect();
    if has_finalizer(&owner, ORPHAN_FINALIZER) {
        for dependent in dependents {
            let Some((location, _)) = graph.nodes.get(dependent) else { continue };
            if let Some((resource, object)) = get_object(registry, location, dependent).await? {
                remove_owner_references(registry, &resource, &object, HashSet::from([uid.to_owned()])).await?;
            }
        }
        return remove_finalizer(registry, &resource, &owner, ORPHAN_FINALIZER).await;
    }
    if !has_finalizer(&owner, FOREGROUND_FINALIZER) {
        return Ok(());
    }
    let (mut is_blocked, mut last_error) = (false, None);
    for dependent in dependents {
        let Some((location, _)) = graph.nodes.get(dependent) else { continue };
        let Some((_, object)) = get_object(registry, location, dependent).await? else { continue };
        let references = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        is_blocked |= references.iter().any(|r| r["uid"] == *uid && r["blockOwnerDeletion"] == true);
        let result = collect_dependent(registry, graph, dependent, location).await;
        last_error = result.err().filter(|error| !error.is(Reason::NotFound)).or(last_error);
    }
    if !is_blocked {
        remove_finalizer(registry, &resource, &owner, FOREGROUND_FINALIZER).await?;
    }
    last_error.map_or(Ok(()), Err)
}
