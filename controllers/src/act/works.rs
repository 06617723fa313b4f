//! Works become objects in members, and what becomes of them there comes back into the Work's status.
//!
//! One loop does both, because both read the same member object: it applies every manifest, notes the version it left
//! behind, and writes conditions and manifest statuses in one patch. A member object that changes asks for its Work
//! again; what drifted is put back, what reports is reflected.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, condition, event, finalizer};
use crowsnest_api::names::{ClusterName, Gvr};
use crowsnest_api::work::{ManifestStatus, Work};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::bindings::{cluster_of, member_of};
use super::context::{Context, decode, now};
use super::events::Severity;
use super::objects::{Objects, Target};
use super::queue::{Outcome, Queue};
use super::world::{Cached, Change};
use crate::Error;
use crate::plan::work::apply::{self, ApplyPlan, Meeting};
use crate::plan::work::managed;
use crate::plan::{conditions, object, status};

/// A Work by execution namespace and name.
pub type WorkKey = (String, String);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MemberObject {
    cluster: ClusterName,
    gvr: Gvr,
    namespace: String,
    name: String,
}

/// What we last left in a member.
struct Written {
    work: WorkKey,
    manifest: u64,
    version: String,
}

pub struct Works {
    context: Arc<Context>,
    pub works: Queue<WorkKey>,
    written: Mutex<HashMap<MemberObject, Written>>,
    /// Works with an object of a kind that their member does not serve.
    unserved: Mutex<HashSet<WorkKey>>,
}

/// What an API server answers to a request for a resource it does not have.
const NOT_SERVED: &str = "the server could not find the requested resource";

fn fingerprint(manifest: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    manifest.to_string().hash(&mut hasher);
    hasher.finish()
}

impl Works {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Works { context, works: Queue::new("works"), written: Mutex::default(), unserved: Mutex::default() })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        if change.cluster != self.context.control_plane {
            self.on_member_object(change);
        } else if change.resource.gvr == self.context.kinds.work.gvr {
            if !change.deleted && change.is_moved_or_terminating() {
                self.works.add(change.key());
            }
        } else if change.resource.gvr == self.context.kinds.cluster.gvr {
            self.on_cluster(change).await?;
        }
        Ok(())
    }

    fn on_member_object(&self, change: &Change) {
        let object = change.object();
        let (namespace, name) = change.key();
        let key = MemberObject { cluster: change.cluster.clone(), gvr: change.resource.gvr.clone(), namespace, name };
        let known = self.written.lock().get(&key).map(|written| (written.work.clone(), written.version.clone()));
        let version = change.current().map(object::resource_version);
        if let Some((work, left)) = known {
            if version != Some(left.as_str()) {
                self.works.add(work);
            }
            return;
        }
        let namespace = object::annotation(object, annotation::WORK_NAMESPACE).unwrap_or_default();
        let name = object::annotation(object, annotation::WORK_NAME).unwrap_or_default();
        if !name.is_empty() && member_of(namespace).as_ref() == Some(&change.cluster) {
            self.works.add((namespace.to_owned(), name.to_owned()));
        }
    }

    /// When a member becomes ready, or starts to leave, its Works go on; when it serves other kinds, those that lacked one.
    async fn on_cluster(&self, change: &Change) -> Result<(), Error> {
        let state = |cluster: &Value| {
            let typed = decode::<Cluster>(cluster).ok();
            (typed.is_some_and(|cluster| is_ready(&cluster)), object::is_terminating(cluster))
        };
        let Some(new) = change.current() else { return Ok(()) };
        if change.old().map(state) != Some(state(new)) {
            let namespace = crowsnest_api::names::EXECUTION_NAMESPACE_PREFIX.to_owned() + object::name(new);
            for work in self.context.headers(&self.context.kinds.work, &namespace).await? {
                self.works.add((work.namespace, work.name));
            }
        } else if served(change.old()) != served(Some(new)) {
            let waiting = self.unserved.lock();
            waiting.iter().filter(|key| cluster_of(&key.0) == Some(object::name(new))).for_each(|key| {
                self.works.add(key.clone());
            });
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        self.context.keys(&self.context.kinds.work).await?.into_iter().for_each(|key| self.works.add(key));
        Ok(())
    }

    /// Works with an object of a kind whose meaning has changed, as far as they were carried out.
    pub fn ask_for_kind(&self, api_version: &str, kind: &str) {
        let mut resources: HashMap<ClusterName, Option<Gvr>> = HashMap::new();
        let mut is_meant = |object: &MemberObject| {
            let known = |cluster: &ClusterName| self.context.catalog.known(cluster, api_version, kind);
            let resource = resources
                .entry(object.cluster.clone())
                .or_insert_with_key(|cluster| known(cluster).map(|resource| resource.gvr));
            resource.as_ref() == Some(&object.gvr)
        };
        let written = self.written.lock();
        let meant = written.iter().filter(|(object, _)| is_meant(object));
        meant.for_each(|(_, written)| self.works.add(written.work.clone()));
    }

    pub fn forget(&self, cluster: &ClusterName) {
        self.written.lock().retain(|key, _| key.cluster != *cluster);
        self.unserved.lock().retain(|key| cluster_of(&key.0) != Some(cluster.as_str()));
    }

    pub async fn reconcile(self: Arc<Self>, key: WorkKey) -> Result<Outcome, Error> {
        let Some(cluster) = member_of(&key.0) else { return Ok(Outcome::Done) };
        let Some(work) = self.context.get(&self.context.kinds.work, &key.0, &key.1).await? else {
            self.unserved.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let typed: Work = decode(&work)?;
        let member = self.context.cluster(cluster.as_str()).await?;
        if object::is_terminating(&work) {
            self.remove(&cluster, member.as_ref(), &work, &typed).await?;
            return Ok(Outcome::Done);
        }
        let Some(member) = member else {
            return Err(Error::Waiting(format!("cluster {cluster} does not exist")));
        };
        let mut status = typed.status.clone();
        let suspended = typed.spec.suspend_dispatching.unwrap_or_default();
        let dispatching = dispatching(suspended);
        let dispatch_changed = conditions::find(&status.conditions, condition::DISPATCHING)
            .is_none_or(|shown| shown.status != dispatching.status);
        if dispatch_changed {
            conditions::set(&mut status.conditions, dispatching.clone());
        }
        let mut result = Ok(());
        if !suspended {
            if is_ready(&member) {
                let outcome = self.apply_all(&cluster, &key, &typed).await;
                let unknown = outcome.iter().any(|error| matches!(error, Error::UnknownKind { .. }));
                let (condition, error) = applied(&typed, outcome);
                // Of a kind that the control plane doesn't know either, nothing is said about applying.
                if !unknown {
                    conditions::set(&mut status.conditions, condition);
                }
                result = error.map_or(Ok(()), Err);
            } else {
                result = Err(Error::Waiting(format!("cluster({cluster}) not ready")));
            }
        }
        let reflected = self.reflect(&cluster, &typed).await.map(|statuses| {
            if let Some(statuses) = statuses {
                status.manifest_statuses = statuses;
            }
        });
        let conflict_only = result.as_ref().is_err_and(Error::is_conflict);
        if status != typed.status && !conflict_only {
            let statuses = (!status.manifest_statuses.is_empty()).then_some(&status.manifest_statuses);
            let patch = json!({"status": {"conditions": status.conditions, "manifestStatuses": statuses}});
            self.context.merge_status(&self.context.kinds.work, &work, patch).await?;
            if dispatch_changed {
                let events = &self.context.events;
                events.note(&work, Severity::Normal, event::WORK_DISPATCHING, dispatching.message);
            }
            let shown = |conditions: &[_]| conditions::is_true(conditions, condition::APPLIED);
            if shown(&status.conditions) && !shown(&typed.status.conditions) {
                let message = format!("Sync work({}/{}) to cluster({cluster}) successful.", key.0, key.1);
                self.context.events.note(&work, Severity::Normal, event::SYNC_SUCCEED, message);
            }
        }
        if let Err(error) = &result
            && !error.is_conflict()
            && !error.is_waiting()
        {
            let (namespace, name) = &key;
            let message =
                format!("Failed to sync work({namespace}/{name}) to cluster({cluster}), err: {}", error.message());
            self.context.events.note(&work, Severity::Warning, event::SYNC_FAILED, message);
        }
        result.and(reflected).map(|()| Outcome::Done)
    }

    fn member(&self, cluster: &ClusterName) -> Result<Objects, Error> {
        Ok(Objects::new(self.context.fleet.client(cluster)?))
    }

    /// Applies every manifest; the errors of those that failed.
    async fn apply_all(&self, cluster: &ClusterName, key: &WorkKey, work: &Work) -> Vec<Error> {
        let mut failed = Vec::new();
        let mut unserved = false;
        for manifest in &work.spec.workload.manifests {
            let Err(error) = self.apply(cluster, key, &manifest.0).await else { continue };
            let lacks_kind = matches!(error, Error::UnknownKind { .. });
            unserved |= lacks_kind;
            failed.push(match lacks_kind && self.is_known_here(&manifest.0) {
                true => Error::Apply(NOT_SERVED.to_owned()),
                false => error,
            });
        }
        let mut waiting = self.unserved.lock();
        if unserved {
            waiting.insert(key.clone());
        } else {
            waiting.remove(key);
        }
        failed
    }

    /// Whether the control plane serves the manifest's kind.
    fn is_known_here(&self, manifest: &Value) -> bool {
        let Context { catalog, control_plane, .. } = self.context.as_ref();
        catalog.known(control_plane, object::api_version(manifest), object::kind(manifest)).is_some()
    }

    /// Brings one manifest into the member. Somebody else's write in between is looked at and tried again.
    async fn apply(&self, cluster: &ClusterName, key: &WorkKey, manifest: &Value) -> Result<(), Error> {
        let resource =
            self.context.catalog.find(cluster, object::api_version(manifest), object::kind(manifest)).await?;
        self.context.world.collect(cluster, &resource);
        let target = Target::new(&resource, object::namespace(manifest), object::name(manifest));
        let member = self.member(cluster)?;
        let seen = self.seen(cluster, target).await?;
        let known = MemberObject {
            cluster: cluster.clone(),
            gvr: resource.gvr.clone(),
            namespace: target.namespace.to_owned(),
            name: target.name.to_owned(),
        };
        let fingerprint = fingerprint(manifest);
        if self.is_as_left(&known, key, fingerprint, seen.as_ref().map(Cached::view)) {
            return Ok(());
        }
        let mut observed = match seen {
            None => None,
            Some(seen) => match seen.whole() {
                // Values that are not cached are compared with what is there now.
                None => member.get(target).await?.map(Arc::new),
                whole => whole,
            },
        };
        const TRIES: usize = 5;
        for attempt in 1.. {
            let written = match self.plan(cluster, manifest, observed.as_deref()).await? {
                ApplyPlan::Keep => Ok(observed.as_deref().cloned().unwrap_or_default()),
                ApplyPlan::Create(object) => member.create(&resource, target.namespace, &object).await,
                ApplyPlan::Update(object) => member.replace(target, &object).await,
                ApplyPlan::Conflict(message) => return Err(Error::Apply(message)),
            };
            match written {
                Ok(object) => {
                    let version = object::resource_version(&object).to_owned();
                    let written = Written { work: key.clone(), manifest: fingerprint, version };
                    self.written.lock().insert(known, written);
                    self.context.world.observe(cluster, &resource.gvr, object);
                    return Ok(());
                }
                Err(error) if (error.is_conflict() || error.is_not_found()) && attempt < TRIES => {
                    let live = member.get(target).await?;
                    if live.is_none() && error.is_not_found() && observed.is_none() {
                        return Err(error);
                    }
                    observed = live.map(Arc::new);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Plans the write for a manifest; its kind's interpreter says first what the member decides.
    async fn plan(
        &self,
        cluster: &ClusterName,
        manifest: &Value,
        observed: Option<&Value>,
    ) -> Result<ApplyPlan, Error> {
        match apply::meet(cluster.as_str(), manifest, observed) {
            Meeting::Planned(plan) => Ok(plan),
            Meeting::Ours { mut desired, observed } => {
                self.context.interpreter.retain(&mut desired, observed).await?;
                Ok(apply::finish(desired, observed))
            }
        }
    }

    /// The member's object: from the world once its first list is in, else asked for.
    async fn seen(&self, cluster: &ClusterName, target: Target<'_>) -> Result<Option<Cached>, Error> {
        if self.context.world.is_synced(cluster, &target.resource.gvr) {
            return self.context.world.get(cluster, &target.resource.gvr, target.namespace, target.name).await;
        }
        Ok(self.member(cluster)?.get(target).await?.map(Cached::live))
    }

    /// Whether the member still has exactly what this manifest was last turned into. Fields a member fills in would
    /// otherwise look like drift for ever. An object without the mark of management is nobody's, even when we made it.
    fn is_as_left(&self, known: &MemberObject, work: &WorkKey, manifest: u64, observed: Option<&Value>) -> bool {
        let Some(observed) = observed else { return false };
        self.written.lock().get(known).is_some_and(|written| {
            managed::is_managed(observed)
                && written.work == *work
                && written.manifest == manifest
                && written.version == object::resource_version(observed)
        })
    }

    /// Statuses of the manifests' objects; `None` when there is nothing new to say because the member isn't known yet.
    async fn reflect(&self, cluster: &ClusterName, work: &Work) -> Result<Option<Vec<ManifestStatus>>, Error> {
        let mut statuses = Vec::new();
        for (ordinal, manifest) in work.spec.workload.manifests.iter().enumerate() {
            let manifest = &manifest.0;
            if object::annotation(manifest, annotation::WORK_NAME).is_none() {
                continue;
            }
            let (api_version, kind) = (object::api_version(manifest), object::kind(manifest));
            let Some(resource) = self.context.catalog.known(cluster, api_version, kind) else { return Ok(None) };
            let target = Target::new(&resource, object::namespace(manifest), object::name(manifest));
            // A member that cannot be asked now has nothing new to say.
            let seen = match self.seen(cluster, target).await {
                Err(error @ Error::Cache(_)) => return Err(error),
                Err(_) => return Ok(None),
                Ok(seen) => seen,
            };
            let Some(seen) = seen.filter(|seen| managed::is_managed(seen.view())) else { continue };
            let seen = seen.view();
            let interpreter = &self.context.interpreter;
            let reflected = interpreter.reflect(seen).await.inspect_err(|error| {
                self.context.events.note(manifest, Severity::Warning, event::REFLECT_STATUS_FAILED, error.message());
            })?;
            // A script that cannot tell leaves the health unknown; the status is worth reporting all the same.
            let healthy = interpreter.is_healthy(seen).await.inspect_err(|error| {
                self.context.events.note(manifest, Severity::Warning, event::INTERPRET_HEALTH_FAILED, error.message());
            });
            statuses.push(status::manifest_status(ordinal, manifest, reflected, healthy.ok()));
        }
        let nothing_yet = statuses.is_empty() && work.status.manifest_statuses.is_empty();
        Ok((!nothing_yet).then_some(statuses))
    }

    /// Takes the objects out of the member, or gives them up, and lets the Work go.
    async fn remove(
        &self,
        cluster: &ClusterName,
        member: Option<&Cluster>,
        work: &Value,
        typed: &Work,
    ) -> Result<(), Error> {
        if !object::has_finalizer(work, finalizer::EXECUTION_CONTROLLER) {
            return Ok(());
        }
        let leaving = member.is_none_or(|member| member.metadata.deletion_timestamp.is_some());
        if member.is_some_and(is_ready) {
            for manifest in &typed.spec.workload.manifests {
                let preserve = typed.spec.preserve_resources_on_deletion.unwrap_or_default();
                self.remove_one(cluster, &manifest.0, preserve).await?;
            }
        } else if !leaving {
            return Err(Error::Waiting(format!("cluster({cluster}) not ready")));
        }
        let key = (object::namespace(work).to_owned(), object::name(work).to_owned());
        self.written.lock().retain(|_, written| written.work != key);
        self.unserved.lock().remove(&key);
        self.context.remove_finalizer(&self.context.kinds.work, work, finalizer::EXECUTION_CONTROLLER).await
    }

    async fn remove_one(&self, cluster: &ClusterName, manifest: &Value, preserve: bool) -> Result<(), Error> {
        let (api_version, kind) = (object::api_version(manifest), object::kind(manifest));
        let resource = match self.context.catalog.find(cluster, api_version, kind).await {
            Ok(resource) => resource,
            // A kind that isn't served any more has no objects.
            Err(Error::UnknownKind { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let target = Target::new(&resource, object::namespace(manifest), object::name(manifest));
        let member = self.member(cluster)?;
        let Some(live) = member.get(target).await? else { return Ok(()) };
        if !managed::is_managed(&live) {
            return Ok(());
        }
        self.written.lock().remove(&MemberObject {
            cluster: cluster.clone(),
            gvr: resource.gvr.clone(),
            namespace: target.namespace.to_owned(),
            name: target.name.to_owned(),
        });
        if !preserve {
            return member.delete(target).await;
        }
        let mut given_up = manifest.clone();
        managed::disown(&mut given_up);
        if let ApplyPlan::Update(object) = self.plan(cluster, &given_up, Some(&live)).await? {
            member.replace(target, &object).await?;
        }
        Ok(())
    }
}

/// The kinds a cluster reports to serve.
fn served(cluster: Option<&Value>) -> Option<&Value> {
    object::at(cluster?, &["status", "apiEnablements"])
}

/// Whether a member takes writes.
pub fn is_ready(cluster: &Cluster) -> bool {
    conditions::is_true(&cluster.status.conditions, condition::READY)
}

fn dispatching(suspended: bool) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
    let (reason, message) = match suspended {
        true => (condition::DISPATCHING_SUSPENDED, "Work dispatching is in a suspended state."),
        false => (condition::DISPATCHING_DISPATCHING, "Work is being dispatched to member clusters."),
    };
    conditions::condition(condition::DISPATCHING, !suspended, reason, message, now())
}

/// The Applied condition for how applying went, and the error to come back for.
fn applied(
    work: &Work,
    mut failed: Vec<Error>,
) -> (k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition, Option<Error>) {
    let kind = condition::APPLIED;
    if failed.is_empty() {
        let message = "Manifest has been successfully applied";
        return (conditions::condition(kind, true, condition::APPLIED_SUCCESSFUL, message, now()), None);
    }
    let total = work.spec.workload.manifests.len();
    let mut messages: Vec<String> = Vec::new();
    for message in failed.iter().map(Error::message) {
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    let text = match messages.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let message = format!("Failed to apply all manifests ({}/{total}): {text}", total - failed.len());
    let shown = conditions::condition(kind, false, condition::APPLIED_FAILED, message, now());
    (shown, failed.pop())
}
