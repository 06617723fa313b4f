//! The taint manager and graceful eviction: bindings leave clusters whose NoExecute taints they don't tolerate, and
//! what they leave behind goes once its replacement is healthy.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, event, eviction};
use crowsnest_api::taints;
use crowsnest_api::work::{GracefulEvictionTask, ResourceBinding, ResourceBindingSpec, ResourceBindingStatus};
use futures::TryStreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::clusters::targets;
use super::context::{Context, decode, now};
use super::controllers::Controller;
use super::events::Severity;
use super::queue::{Outcome, Queue};
use super::scheduling::BindingKey;
use super::world::Change;
use crate::Error;
use crate::plan::eviction::state::preserved;
use crate::plan::eviction::{self as plan, TaintDecision};
use crate::plan::object;

pub struct Evictions {
    context: Arc<Context>,
    pub bindings: Queue<BindingKey>,
}

impl Evictions {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Evictions { context, bindings: Queue::new("evictions") })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        let gvr = &change.resource.gvr;
        if *gvr == kinds.cluster.gvr {
            let taints = |cluster: Option<&Value>| cluster.and_then(|c| object::at(c, &["spec", "taints"]).cloned());
            let changed = change.is_old_forgotten() || taints(change.old()) != taints(change.current());
            let stayed = change.old.as_ref().is_some_and(|old| !old.header.terminating);
            let leaves = stayed && (change.deleted || object::is_terminating(change.object()));
            if leaves || (changed && self.evicts_by_taint()) {
                self.ask_for(object::name(change.object())).await?;
            }
        } else if *gvr == kinds.resource_binding.gvr || *gvr == kinds.cluster_resource_binding.gvr {
            let Some(new) = change.current() else { return Ok(()) };
            if is_leaving(new) || (change.is_moved() && self.evicts_by_taint()) {
                self.bindings.add(change.key());
            }
        }
        Ok(())
    }

    fn evicts_by_taint(&self) -> bool {
        self.context.config.gates.failover && self.context.config.no_execute_taint_eviction
    }

    /// Whether evictions that have begun are ended here, whoever began them.
    fn ends_evictions(&self) -> bool {
        self.context.config.controllers.runs(Controller::GracefulEviction)
    }

    /// Looks for bindings again that have to leave a cluster, or have begun to.
    pub async fn full_pass(&self) -> Result<(), Error> {
        let mut tainted = Vec::new();
        if self.evicts_by_taint() {
            for cluster in self.context.list(&self.context.kinds.cluster, None).await? {
                let cluster: Cluster = decode(cluster.view())?;
                if cluster.spec.taints.iter().any(|taint| taint.effect == taints::NO_EXECUTE) {
                    tainted.extend(cluster.metadata.name);
                }
            }
        }
        self.ask_those(|binding| is_leaving(binding) || tainted.iter().any(|cluster| targets(binding, cluster))).await
    }

    async fn ask_for(&self, cluster: &str) -> Result<(), Error> {
        self.ask_those(|binding| targets(binding, cluster) || leaves_from(binding, cluster)).await
    }

    async fn ask_those(&self, which: impl Fn(&Value) -> bool) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        for resource in [&kinds.resource_binding, &kinds.cluster_resource_binding] {
            let mut bindings = pin!(self.context.stream(resource, None));
            while let Some(binding) = bindings.try_next().await? {
                let binding = binding.view();
                if which(binding) {
                    self.bindings.add((object::namespace(binding).to_owned(), object::name(binding).to_owned()));
                }
            }
        }
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let resource = self.context.kinds.binding(&key.0);
        let Some(binding) = self.context.get(resource, &key.0, &key.1).await? else { return Ok(Outcome::Done) };
        if object::is_terminating(&binding) {
            return Ok(Outcome::Done);
        }
        let typed: ResourceBinding = decode(&binding)?;
        let now = now();
        let mut spec = typed.spec.clone();
        // What can't be decided by taints doesn't hold up the evictions that have begun.
        let (mut look_again, undecided) = match self.evict(&binding, &mut spec, &typed.status, now).await {
            Ok(next) => (next, None),
            Err(error @ (Error::Placement(_) | Error::State(_))) => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let evicted = spec != typed.spec;
        if self.ends_evictions() {
            let timeout = self.context.config.periods.graceful_eviction_timeout;
            let timeout = SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX);
            // A result that was just changed here has not been seen by the scheduler, so nothing counts as replaced.
            let generation = if evicted { i64::MAX } else { object::generation(&binding) };
            let leaving = self.leaving(&spec).await?;
            let evicting = plan::Evicting {
                safety: self.context.config.failover_safety,
                generation,
                spec: &spec,
                status: &typed.status,
                timeout,
                leaving: &leaving,
            };
            let tasks = plan::tasks(&evicting, now);
            spec.graceful_eviction_tasks = tasks.tasks;
            look_again = [look_again, tasks.look_again].into_iter().flatten().min();
        }
        if spec != typed.spec {
            let list = |value: Value| if value == json!([]) { Value::Null } else { value };
            let patch = json!({"spec": {
                "clusters": list(json!(spec.clusters)),
                "gracefulEvictionTasks": list(json!(spec.graceful_eviction_tasks)),
            }});
            let written = self.context.merge(resource, &binding, patch).await;
            // An eviction is told when it has ended.
            let ended = typed.spec.graceful_eviction_tasks.iter().filter(|task| !spec.evicts(&task.from_cluster));
            for task in ended {
                let (severity, reason, how) = match &written {
                    Ok(_) => (Severity::Normal, event::EVICT_WORKLOAD_SUCCEED, "succeed"),
                    Err(error) if error.is_conflict() => continue,
                    Err(_) => (Severity::Warning, event::EVICT_WORKLOAD_FAILED, "failed"),
                };
                let text = format!("Evict from cluster {} {how}.", task.from_cluster);
                self.context.events.note_both(&binding, &typed.spec, severity, reason, &text);
            }
            written?;
        }
        match undecided {
            Some(error) => Err(error),
            None => Ok(look_again.map_or(Outcome::Done, |at| Outcome::Again(until(at, now)))),
        }
    }

    /// Those clusters the binding is being evicted from that are gone or going.
    async fn leaving(&self, spec: &ResourceBindingSpec) -> Result<Vec<String>, Error> {
        let mut leaving = Vec::new();
        for task in &spec.graceful_eviction_tasks {
            let cluster = self.context.glance(&self.context.kinds.cluster, "", &task.from_cluster).await?;
            if cluster.is_none_or(|cluster| object::is_terminating(cluster.view())) {
                leaving.push(task.from_cluster.clone());
            }
        }
        Ok(leaving)
    }

    /// Evicts from every cluster that has to be left now; when the next one has to be.
    async fn evict(
        &self,
        binding: &Value,
        spec: &mut ResourceBindingSpec,
        status: &ResourceBindingStatus,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        if !self.evicts_by_taint() {
            return Ok(None);
        }
        let fleet = self.context.config.no_execute_purge_mode.clone();
        let mode = plan::purge_mode(spec.failover.as_ref(), fleet);
        let rules = spec.failover.as_ref().and_then(|failover| failover.cluster.as_ref());
        let rules = rules.and_then(|cluster| cluster.state_preservation.clone());
        let rules =
            rules.filter(|rules| self.context.config.gates.stateful_failover_injection && !rules.rules.is_empty());
        let mut next = None;
        for target in spec.clusters.clone() {
            let Some(cluster) = self.context.cluster(&target.name).await? else { continue };
            if !cluster.spec.taints.iter().any(|taint| taint.effect == taints::NO_EXECUTE) {
                continue;
            }
            let applied = object::annotation(binding, annotation::APPLIED_PLACEMENT);
            let tolerations = plan::applied_tolerations(applied)?;
            match plan::by_taints(&cluster, &tolerations, now) {
                TaintDecision::Stay => {}
                TaintDecision::EvictAt(at) if at > now => {
                    next = Some(next.map_or(at, |earlier: Timestamp| earlier.min(at)));
                }
                TaintDecision::EvictAt(_) => {
                    let state = rules.as_ref().map(|rules| preserved(rules, status, &target.name)).transpose()?;
                    let task = GracefulEvictionTask {
                        purge_mode: Some(mode.clone()),
                        preserved_label_state: state.unwrap_or_default(),
                        reason: eviction::REASON_TAINT_UNTOLERATED.to_owned(),
                        producer: eviction::PRODUCER_TAINT_MANAGER.to_owned(),
                        creation_timestamp: Some(Time(now)),
                        ..GracefulEvictionTask::default()
                    };
                    if let Some(evicted) = plan::evict(spec, &target.name, task) {
                        *spec = evicted;
                    }
                }
            }
        }
        Ok(next)
    }
}

/// Whether a binding is being evicted from any cluster.
fn is_leaving(binding: &Value) -> bool {
    object::at(binding, &["spec", "gracefulEvictionTasks"]).is_some()
}

/// Whether a binding is being evicted from a cluster.
fn leaves_from(binding: &Value, cluster: &str) -> bool {
    let tasks = object::at(binding, &["spec", "gracefulEvictionTasks"]).and_then(Value::as_array);
    tasks.into_iter().flatten().any(|task| object::text(task, &["fromCluster"]) == cluster)
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_millis(100))
}
