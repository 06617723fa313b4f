//! Works become objects in members, and what becomes of them there comes back into the Work's status.
//!
//! One loop does both, because both read the same member object: it applies every manifest, notes the version it left
//! behind, and writes conditions and manifest statuses in one patch. A member object that changes asks for its Work
//! again; what drifted is put back, what reports is reflected.

mod counting;
mod removing;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, condition, event};
use crowsnest_api::work::{ManifestStatus, Work, WorkStatus};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_fleet::Through;
use crowsnest_index::RecordKey;
use futures::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::counting::written;
use crate::Error;
use crate::cache::applied_state::{Fingerprint, Left, LeftBehind};
use crate::cache::{Cached, Change};
use crate::error::aggregated;
use crate::metrics::Durations;
use crate::metrics::operations::{Operation, Update};
use crate::propagation::binding::{cluster_of, member_of};
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::{Objects, Target};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::write_priority::GivingWay;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch};
use crowsnest_plan::work::apply::{self, ApplyPlan, Meeting};
use crowsnest_plan::work::managed;
use crowsnest_plan::{conditions, object, status};

/// A Work by execution namespace and name.
pub type WorkKey = (String, String);

pub struct Works {
    context: Arc<Context>,
    works: Trigger<WorkKey>,
    left: LeftBehind,
    /// Works whose good news wait while the control plane is busy.
    giving_way: GivingWay<WorkKey>,
    /// Works with an object of a kind that their member does not serve.
    unserved: Mutex<HashSet<WorkKey>>,
}

/// The status of an answer that refuses an object as invalid.
const UNPROCESSABLE: u16 = 422;
/// What an API server answers to a request for a resource it does not have.
const NOT_SERVED: &str = "the server could not find the requested resource";

impl Works {
    fn on_work(&self, change: &Change) -> Requests<WorkKey> {
        Requests::one_if(!change.deleted && change.is_moved_or_terminating(), || change.key())
    }

    fn on_member_object(&self, change: &Change) -> Requests<WorkKey> {
        let object = change.object();
        let (namespace, name) = change.key();
        let key = RecordKey::new(change.cluster.clone(), change.resource.gvr.clone(), &namespace, &name);
        if let Some(left) = self.left.of(&key) {
            let is_ours = change.current().map(object::resource_version) == Some(left.version.as_str());
            return Requests::one_if(!is_ours, || left.work);
        }
        let namespace = object::annotation(object, annotation::WORK_NAMESPACE).unwrap_or_default();
        let name = object::annotation(object, annotation::WORK_NAME).unwrap_or_default();
        let is_of_work = !name.is_empty() && member_of(namespace).as_ref() == Some(&change.cluster);
        Requests::one_if(is_of_work, || (namespace.to_owned(), name.to_owned()))
    }

    /// Works of a member that became ready or began to leave; when it serves other kinds, those that lacked one.
    async fn affected(&self, change: &Change) -> Result<Requests<WorkKey>, Error> {
        let state = |cluster: &Value| {
            let typed = decode::<Cluster>(cluster).ok();
            (typed.is_some_and(|cluster| is_ready(&cluster)), object::is_terminating(cluster))
        };
        let Some(new) = change.current() else {
            if let Ok(cluster) = ClusterName::parse(object::name(change.object())) {
                self.left.forget(&cluster).await;
                self.unserved.lock().retain(|key| cluster_of(&key.0) != Some(cluster.as_str()));
            }
            return Ok(Requests::none());
        };
        if change.old().map(state) != Some(state(new)) {
            let namespace = crowsnest_api::names::execution_namespace(object::name(new));
            let works = self.context.headers(&self.context.kinds.work, &namespace).await?;
            return Ok(works.into_iter().map(|work| (work.namespace, work.name)).collect());
        }
        if served(change.old()) == served(Some(new)) {
            return Ok(Requests::none());
        }
        let waiting = self.unserved.lock();
        Ok(waiting.iter().filter(|key| cluster_of(&key.0) == Some(object::name(new))).cloned().collect())
    }

    /// Enqueues Works with an applied object of a kind whose interpretation has changed.
    pub fn enqueue_kind(&self, api_version: &str, kind: &str) {
        let mut resources: HashMap<ClusterName, Option<Gvr>> = HashMap::new();
        let is_meant = |object: &RecordKey| {
            let known = |cluster: &ClusterName| self.context.catalog.known(cluster, api_version, kind);
            let resource = resources
                .entry(object.cluster().clone())
                .or_insert_with_key(|cluster| known(cluster).map(|resource| resource.gvr));
            resource.as_ref() == Some(&object.collection.resource)
        };
        self.left.works_of(is_meant).into_iter().for_each(|work| self.works.add(work));
    }
}

impl Controller for Works {
    type Key = WorkKey;
    const NAME: &'static str = "execution-controller";
    /// With the status of Works, a controller of its own in Karmada.
    const SWITCH: Switch = Switch::OnByDefault(&["execution", "workStatus"]);

    fn new(setup: &Setup) -> Self {
        let context = Arc::clone(&setup.context);
        Works {
            works: setup.trigger::<Self>(),
            left: LeftBehind::new(context.world.clone()),
            giving_way: GivingWay::default(),
            unserved: Mutex::default(),
            context,
        }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let kinds = &self.context.kinds;
        vec![
            Source::of([&kinds.work]).map(Self::on_work),
            Source::of([&kinds.cluster]).find(|works, change| works.affected(change).boxed()),
            Source::AllOfMembers.map(Self::on_member_object),
        ]
    }

    /// All Works. What was applied for others is forgotten.
    async fn keys(&self) -> Result<Vec<WorkKey>, Error> {
        let keys: HashSet<WorkKey> = self.context.keys(&self.context.kinds.work).await?.into_iter().collect();
        self.left.keep(&keys).await;
        Ok(keys.into_iter().collect())
    }

    fn workers(config: &Config) -> usize {
        config.workers.works
    }

    fn durations(context: &Context) -> Option<Durations> {
        Some(context.figures.sync_workload.clone())
    }

    /// Restores what an earlier process noted about members' objects.
    async fn prepare(&self) {
        if let Err(error) = self.left.recall().await {
            tracing::warn!(%error, "nothing is known of what was left in members; what they fill in is written once more");
        }
    }

    fn has_deferred_writes(&self) -> bool {
        !self.giving_way.is_empty()
    }

    async fn reconcile(self: Arc<Self>, key: WorkKey) -> Result<Outcome, Error> {
        let waited = self.giving_way.begin(&key);
        let Some(cluster) = member_of(&key.0) else { return Ok(Outcome::Done) };
        let Some(work) = self.context.get(&self.context.kinds.work, &key.0, &key.1).await? else {
            self.unserved.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let typed: Work = decode(&work)?;
        let member = self.context.cluster(cluster.as_str()).await?;
        // Two writers would undo each other's work; what an agent does not let go of when it leaves, the Cluster's loop does.
        if member.as_ref().is_some_and(|member| Through::of(member) == Through::AgentIfThere) {
            return Ok(Outcome::Done);
        }
        if object::is_terminating(&work) {
            return self.remove(&cluster, member.as_deref(), &work, &typed).await;
        }
        let Some(member) = member else {
            return Err(Error::Waiting(format!("cluster {cluster} does not exist")));
        };
        let mut status = typed.status.clone();
        let suspended = typed.spec.suspend_dispatching.unwrap_or_default();
        let dispatching = dispatching(suspended, self.context.now());
        let dispatch_changed = conditions::find(&status.conditions, condition::DISPATCHING)
            .is_none_or(|shown| shown.status != dispatching.status);
        if dispatch_changed {
            conditions::set(&mut status.conditions, dispatching);
        }
        let mut result = Ok(());
        let mut failure = None;
        if !suspended {
            if is_ready(&member) {
                let mut outcome = self.apply_all(&cluster, &key, &typed).await;
                let unknown = outcome.iter().any(|error| matches!(error, Error::UnknownKind { .. }));
                // Of a kind that the control plane doesn't know either, nothing is said about applying.
                if !unknown {
                    conditions::set(&mut status.conditions, applied(&typed, &outcome, self.context.now()));
                }
                let told = outcome.iter().filter(|error| error.is_told()).map(Error::message);
                failure = outcome.iter().any(Error::is_told).then(|| aggregated(told));
                result = outcome.pop().map_or(Ok(()), Err);
            } else {
                result = Err(Error::Waiting(format!("cluster({cluster}) not ready")));
            }
        }
        let reflected = self.reflect(&cluster, &work, &typed).await.map(|statuses| {
            if let Some(statuses) = statuses {
                status.manifest_statuses = statuses;
            }
        });
        let conflict_only = result.as_ref().is_err_and(Error::is_conflict);
        if status != typed.status && !conflict_only {
            if result.is_ok()
                && let Some(wait) = self.giving_way.wait(self.context.traffic(), key.clone(), waited)
            {
                return reflected.map(|()| Outcome::Again(wait));
            }
            self.report(&cluster, &work, &typed.status, &status).await?;
        }
        if let Some(failure) = failure {
            let (namespace, name) = &key;
            let message = format!("Failed to sync work({namespace}/{name}) to cluster({cluster}), err: {failure}");
            self.context.events.note(&work, Severity::Warning, event::SYNC_FAILED, message);
        }
        result.and(reflected).map(|()| Outcome::Done)
    }
}

impl Works {
    /// Writes the status, and tells of what in it is news.
    async fn report(
        &self,
        cluster: &ClusterName,
        work: &Value,
        before: &WorkStatus,
        status: &WorkStatus,
    ) -> Result<(), Error> {
        let statuses = (!status.manifest_statuses.is_empty()).then_some(&status.manifest_statuses);
        let patch = json!({"status": {"conditions": status.conditions, "manifestStatuses": statuses}});
        self.context.merge_status(&self.context.kinds.work, work, patch).await?;
        let events = &self.context.events;
        let shown = |status: &WorkStatus| conditions::find(&status.conditions, condition::DISPATCHING).cloned();
        if let Some(dispatching) = shown(status)
            && shown(before).is_none_or(|before| before.status != dispatching.status)
        {
            events.note(work, Severity::Normal, event::WORK_DISPATCHING, dispatching.message);
        }
        let is_applied = |status: &WorkStatus| conditions::is_true(&status.conditions, condition::APPLIED);
        if is_applied(status) && !is_applied(before) {
            let (namespace, name) = (object::namespace(work), object::name(work));
            let message = format!("Sync work({namespace}/{name}) to cluster({cluster}) successful.");
            events.note(work, Severity::Normal, event::SYNC_SUCCEED, message);
        }
        Ok(())
    }

    fn member(&self, cluster: &ClusterName) -> Result<Objects, Error> {
        Ok(Objects::fenced(self.context.fleet.client(cluster)?, self.context.config.fence.clone()))
    }

    /// Applies every manifest; the errors of those that failed. Their templates are told what became of them.
    async fn apply_all(&self, cluster: &ClusterName, key: &WorkKey, work: &Work) -> Vec<Error> {
        let mut failed = Vec::new();
        let mut unserved = false;
        for manifest in &work.spec.workload.manifests {
            let error = match self.apply(cluster, key, &manifest.0).await {
                Ok(written) => {
                    if written {
                        let (namespace, name) = (object::namespace(&manifest.0), object::name(&manifest.0));
                        let message = format!("Successfully applied resource({namespace}/{name}) to cluster {cluster}");
                        self.tell_template(&manifest.0, Severity::Normal, event::SYNC_SUCCEED, message);
                    }
                    continue;
                }
                Err(error) => error,
            };
            let lacks_kind = matches!(error, Error::UnknownKind { .. });
            unserved |= lacks_kind;
            let error = match lacks_kind && self.is_known_here(&manifest.0) {
                true => Error::Apply(NOT_SERVED.to_owned()),
                false => error,
            };
            if error.is_told() {
                let (object, error) = (named(&manifest.0), error.message());
                let message =
                    format!("Failed to create or update resource({object}) in member cluster({cluster}): {error}");
                self.tell_template(&manifest.0, Severity::Warning, event::SYNC_FAILED, message);
            }
            failed.push(error);
        }
        let mut waiting = self.unserved.lock();
        if unserved {
            waiting.insert(key.clone());
        } else {
            waiting.remove(key);
        }
        failed
    }

    /// An event on the template that a manifest was made from.
    fn tell_template(&self, manifest: &Value, severity: Severity, reason: &'static str, message: String) {
        let template = json!({
            "apiVersion": object::api_version(manifest), "kind": object::kind(manifest),
            "metadata": {
                "namespace": object::namespace(manifest), "name": object::name(manifest),
                "uid": object::annotation(manifest, annotation::RESOURCE_TEMPLATE_UID).unwrap_or_default(),
            },
        });
        self.context.events.note(&template, severity, reason, message);
    }

    /// Whether the control plane serves the manifest's kind.
    fn is_known_here(&self, manifest: &Value) -> bool {
        let Context { catalog, control_plane, .. } = self.context.as_ref();
        catalog.known(control_plane, object::api_version(manifest), object::kind(manifest)).is_some()
    }

    /// Brings one manifest into the member; whether anything had to be written. Somebody else's write in between is looked
    /// at and tried again.
    async fn apply(&self, cluster: &ClusterName, work: &WorkKey, manifest: &Value) -> Result<bool, Error> {
        let resource =
            self.context.catalog.find(cluster, object::api_version(manifest), object::kind(manifest)).await?;
        self.context.world.collect(cluster, &resource);
        self.context.world.first_list(cluster, &resource.gvr).await;
        let target = Target::new(&resource, object::namespace(manifest), object::name(manifest));
        let member = self.member(cluster)?;
        let seen = self.seen(cluster, target).await?;
        let key = RecordKey::new(cluster.clone(), resource.gvr.clone(), target.namespace, target.name);
        let fingerprint = Fingerprint::of(manifest);
        // What was left of this very manifest; of another one it says nothing.
        let left = self.left.of(&key).filter(|left| left.work == *work && left.manifest == fingerprint);
        if is_as_left(left.as_ref(), seen.as_ref().map(Cached::view)) {
            self.count(cluster, manifest, Operation::Update(Update::None), true);
            return Ok(false);
        }
        let is_applied = left.is_some();
        let difference = left.and_then(|left| left.difference);
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
            let plan = self.plan(cluster, manifest, observed.as_deref(), difference.as_deref()).await?;
            tracing::debug!(%cluster, resource = %resource.gvr, name = target.name, plan = plan.name(), "applied");
            let written = match &plan {
                ApplyPlan::Keep => {
                    let version = observed.as_deref().map(object::resource_version).unwrap_or_default().to_owned();
                    let left = Left { work: work.clone(), manifest: fingerprint, version, difference };
                    self.left.put(key, left).await;
                    self.count(cluster, manifest, Operation::Update(Update::None), true);
                    return Ok(false);
                }
                ApplyPlan::Create(object) => {
                    let created = member.create(&resource, target.namespace, object).await;
                    self.count(cluster, manifest, Operation::Create, created.is_ok());
                    created
                }
                ApplyPlan::Update(object) => {
                    let updated = member.replace(target, object).await;
                    let update = written(observed.as_deref(), &updated);
                    self.count(cluster, manifest, Operation::Update(update), updated.is_ok());
                    updated
                }
                ApplyPlan::Conflict(message) => {
                    self.count(cluster, manifest, Operation::Update(Update::None), false);
                    return Err(Error::Apply(message.clone()));
                }
            };
            match (written, plan) {
                (Ok(live), ApplyPlan::Create(sent) | ApplyPlan::Update(sent)) => {
                    let difference = apply::difference(&sent, &live).map(Arc::new);
                    let version = object::resource_version(&live).to_owned();
                    let left = Left { work: work.clone(), manifest: fingerprint, version, difference };
                    self.left.put(key, left).await;
                    self.context.world.observe(cluster, &resource.gvr, live);
                    return Ok(true);
                }
                // A member may add what it does not let go of again: a claim's storage class, say.
                (Err(error), ApplyPlan::Update(sent))
                    if error.code() == Some(UNPROCESSABLE)
                        && is_applied
                        && observed.as_deref().is_some_and(|live| apply::has_everything(&sent, live)) =>
                {
                    let difference = observed.as_deref().and_then(|live| apply::difference(&sent, live)).map(Arc::new);
                    let version = observed.as_deref().map(object::resource_version).unwrap_or_default().to_owned();
                    let left = Left { work: work.clone(), manifest: fingerprint, version, difference };
                    self.left.put(key, left).await;
                    return Ok(false);
                }
                (Err(error), _) if (error.is_conflict() || error.is_not_found()) && attempt < TRIES => {
                    let live = member.get(target).await?;
                    if live.is_none() && error.is_not_found() && observed.is_none() {
                        return Err(error);
                    }
                    observed = live.map(Arc::new);
                }
                (Err(error), _) => return Err(error),
                (Ok(_), ApplyPlan::Keep | ApplyPlan::Conflict(_)) => break,
            }
        }
        Ok(false)
    }

    /// Plans the write for a manifest; its kind's interpreter says first what the member decides.
    async fn plan(
        &self,
        cluster: &ClusterName,
        manifest: &Value,
        observed: Option<&Value>,
        difference: Option<&Value>,
    ) -> Result<ApplyPlan, Error> {
        match apply::meet(cluster.as_str(), manifest, observed) {
            Meeting::Planned(plan) => Ok(plan),
            Meeting::Ours { mut desired, observed } => {
                self.context.interpreter.retain(&mut desired, observed).await?;
                Ok(apply::finish(desired, observed, difference))
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

    /// Statuses of the manifests' objects; `None` when there is nothing new to say because the member isn't known yet.
    async fn reflect(
        &self,
        cluster: &ClusterName,
        work: &Value,
        typed: &Work,
    ) -> Result<Option<Vec<ManifestStatus>>, Error> {
        let mut statuses = Vec::new();
        for (ordinal, manifest) in typed.spec.workload.manifests.iter().enumerate() {
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
            let tell = |reason, what: &str, error: &crowsnest_interpreter::Error| {
                let object = format!("{}/{}/{}", object::kind(seen), object::namespace(seen), object::name(seen));
                let message = format!("{what} object({object}) failed, err: {}.", error.to_string());
                self.context.events.note(work, Severity::Warning, reason, message);
            };
            let reflected = interpreter
                .reflect(seen)
                .await
                .inspect_err(|error| tell(event::REFLECT_STATUS_FAILED, "Reflect status for", error))?;
            // A script that cannot tell leaves the health unknown; the status is worth reporting all the same.
            let healthy = interpreter
                .is_healthy(seen)
                .await
                .inspect_err(|error| tell(event::INTERPRET_HEALTH_FAILED, "Interpret health of", error));
            statuses.push(status::manifest_status(ordinal, manifest, reflected, healthy.ok()));
        }
        let nothing_yet = statuses.is_empty() && typed.status.manifest_statuses.is_empty();
        Ok((!nothing_yet).then_some(statuses))
    }
}

/// Whether the member still has exactly what this manifest was last turned into. An object without the mark of management
/// is nobody's, even when we made it.
fn is_as_left(left: Option<&Left>, observed: Option<&Value>) -> bool {
    let (Some(left), Some(observed)) = (left, observed) else { return false };
    managed::is_managed(observed) && !left.version.is_empty() && left.version == object::resource_version(observed)
}

/// Namespace and name, as Go prints an object's reference.
fn named(object: &Value) -> String {
    match (object::namespace(object), object::name(object)) {
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
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

fn dispatching(suspended: bool, now: Timestamp) -> Condition {
    let (reason, message) = match suspended {
        true => (condition::DISPATCHING_SUSPENDED, "Work dispatching is in a suspended state."),
        false => (condition::DISPATCHING_DISPATCHING, "Work is being dispatched to member clusters."),
    };
    conditions::condition(condition::DISPATCHING, !suspended, reason, message, now)
}

/// The Applied condition for how applying went.
fn applied(work: &Work, failed: &[Error], now: Timestamp) -> Condition {
    let kind = condition::APPLIED;
    if failed.is_empty() {
        let message = "Manifest has been successfully applied";
        return conditions::condition(kind, true, condition::APPLIED_SUCCESSFUL, message, now);
    }
    let total = work.spec.workload.manifests.len();
    let text = aggregated(failed.iter().map(Error::message));
    let message = format!("Failed to apply all manifests ({}/{total}): {text}", total - failed.len());
    conditions::condition(kind, false, condition::APPLIED_FAILED, message, now)
}
