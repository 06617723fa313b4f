//! CronFederatedHPA controller: runs the rules of each CronFederatedHPA when they are due, against a workload's scale
//! or the bounds of a FederatedHPA, and records their executions in its status.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_api::autoscaling::{CronFederatedHPA, CronFederatedHPARule};
use crowsnest_api::constants::event;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use k8s_openapi::jiff::tz::TimeZone;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{get_scale, get_target, not_found_message};
use crate::Error;
use crate::metrics::Durations;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Target;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crowsnest_plan::autoscaling::federated::validate_api_version;
use crowsnest_plan::autoscaling::rules::{FinishedRun, Timers};

/// Maximum requeue delay. Due times are wall-clock times, and the clock can be set, so rules are checked at least this
/// often.
const MAX_REQUEUE_DELAY: Duration = Duration::from_secs(30);
/// Maximum attempts after write conflicts.
const MAX_ATTEMPTS: usize = 5;

pub struct CronFederatedHpaController {
    context: Arc<Context>,
    timers: Mutex<HashMap<NamespacedName, Timers>>,
}

impl Controller for CronFederatedHpaController {
    type Key = NamespacedName;
    const NAME: &'static str = "cronfederatedhpa-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["cronFederatedHorizontalPodAutoscaler"]);

    fn new(setup: &Setup) -> Self {
        CronFederatedHpaController { context: setup.context(), timers: Mutex::default() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.cron_federated_hpa])
                .map(|_, change| Requests::one_if(change.is_generation_or_deletion_changed(), || change.key())),
        ]
    }

    async fn keys(&self) -> Result<Vec<NamespacedName>, Error> {
        self.context.keys(&self.context.kinds.cron_federated_hpa).await
    }

    fn durations(context: &Context) -> Option<Durations> {
        Some(context.metrics.cron_federated_hpa.clone())
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let context = &self.context;
        let autoscaler = context.get_full(&context.kinds.cron_federated_hpa, &key.namespace, &key.name).await?;
        let Some(autoscaler) = autoscaler.filter(|found| !unstructured::is_terminating(found)) else {
            self.timers.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let typed: CronFederatedHPA = decode(&autoscaler)?;
        let (invalid_rules, due) = self.with_timers(&key, |timers| {
            let now = context.config.clock.wall();
            let invalid_rules = timers.synchronize(&typed.spec, &typed.status, &TimeZone::system(), now);
            (invalid_rules, timers.take_due(now))
        });
        for message in invalid_rules {
            context.events.record(&autoscaler, Severity::Warning, event::START_RULE_FAILED, message);
        }
        for due in due {
            let started_at = Instant::now();
            let result = self.run_rule(&key, &typed.spec.scale_target_ref, &due.rule).await;
            context.metrics.cron_rule.record(started_at.elapsed(), result.is_ok());
            let failed = result.err().map(|error| error.message());
            if let Some(problem) = &failed {
                context.events.record(&autoscaler, Severity::Warning, event::SCALE_FAILED, problem.clone());
            }
            self.with_timers(&key, |timers| {
                timers.add_run(FinishedRun { due, finished_at: context.now(), error: failed })
            });
        }
        self.write_status(&autoscaler, &typed).await?;
        let (next, has_invalid_rules) = self.with_timers(&key, |timers| (timers.next(), timers.has_invalid_rules()));
        Ok(match next {
            Some(next) => {
                let remaining = next.duration_since(context.config.clock.wall());
                Outcome::RequeueAfter(Duration::try_from(remaining).unwrap_or_default().min(MAX_REQUEUE_DELAY))
            }
            // An invalid rule can become valid, since time zone data can change.
            None if has_invalid_rules => Outcome::RequeueAfter(MAX_REQUEUE_DELAY),
            None => Outcome::Done,
        })
    }
}

impl CronFederatedHpaController {
    fn with_timers<R>(&self, key: &NamespacedName, update: impl FnOnce(&mut Timers) -> R) -> R {
        update(self.timers.lock().entry(key.clone()).or_default())
    }

    /// Writes the execution history and the next run of each rule to the status.
    async fn write_status(&self, autoscaler: &Value, typed: &CronFederatedHPA) -> Result<(), Error> {
        let (context, key) = (&self.context, unstructured::key(autoscaler));
        let (status, has_run) =
            self.with_timers(&key, |timers| (timers.status(&typed.spec, &typed.status), timers.has_unrecorded()));
        if status != typed.status {
            let mut updated = autoscaler.clone();
            updated["status"] = json!(status);
            if let Err(error) = context.replace_status(&context.kinds.cron_federated_hpa, &updated).await {
                if error.needs_event() {
                    let reason =
                        if has_run { event::UPDATE_STATUS_FAILED } else { event::UPDATE_CRON_FEDERATED_HPA_FAILED };
                    context.events.record(autoscaler, Severity::Warning, reason, error.message());
                }
                return Err(error);
            }
        }
        self.with_timers(&key, Timers::clear_recorded);
        Ok(())
    }

    /// Executes a rule. Retries after write conflicts.
    async fn run_rule(
        &self,
        NamespacedName { namespace, name }: &NamespacedName,
        target: &CrossVersionObjectReference,
        rule: &CronFederatedHPARule,
    ) -> Result<(), Error> {
        let federated_hpa = &self.context.kinds.federated_hpa;
        let api_version = validate_api_version(target).map_err(Error::Other)?;
        let is_federated_hpa = api_version == federated_hpa.gvr.api_version();
        if is_federated_hpa && target.kind != federated_hpa.kind {
            let text = format!(
                "CronFederatedHPA({namespace}/{name}) do not support scale target {api_version}/{}",
                target.kind
            );
            return Err(Error::Other(text));
        }
        let mut attempts = 1;
        loop {
            let result = match is_federated_hpa {
                true => self.update_bounds(namespace, &target.name, rule).await,
                false => self.update_replicas(namespace, api_version, target, rule).await,
            };
            match result {
                Err(error) if error.is_conflict() && attempts < MAX_ATTEMPTS => attempts += 1,
                result => return result,
            }
        }
    }

    /// Updates the bounds of a FederatedHPA if they differ.
    async fn update_bounds(&self, namespace: &str, name: &str, rule: &CronFederatedHPARule) -> Result<(), Error> {
        let context = &self.context;
        let resource = &context.kinds.federated_hpa;
        let Some(mut autoscaler) = context.objects.get(Target::new(resource, namespace, name)).await? else {
            return Err(Error::Other(not_found_message(resource, name)));
        };
        let mut differs = false;
        let bounds = [("maxReplicas", rule.target_max_replicas), ("minReplicas", rule.target_min_replicas)];
        for (field, bound) in bounds {
            let Some(bound) = bound else { continue };
            if unstructured::integer(&autoscaler, &["spec", field]) != Some(i64::from(bound)) {
                unstructured::set(&mut autoscaler, &["spec", field], json!(bound));
                differs = true;
            }
        }
        if differs {
            context.replace(resource, &autoscaler).await?;
        }
        Ok(())
    }

    /// Updates the replicas of a workload if they differ.
    async fn update_replicas(
        &self,
        namespace: &str,
        api_version: &str,
        target: &CrossVersionObjectReference,
        rule: &CronFederatedHPARule,
    ) -> Result<(), Error> {
        let context = &self.context;
        let Some(replicas) = rule.target_replicas else {
            let text = format!("targetReplicas cannot be nil if you want to scale {}", target.kind);
            return Err(Error::Other(text));
        };
        let (resource, _) = get_target(context, namespace, api_version, target).await?;
        let workload = Target::new(&resource, namespace, &target.name);
        let current = get_scale(&context.objects, workload).await?;
        if current.replicas != replicas {
            let _write = context.write_load().begin();
            context.objects.replace(workload.scale(), &current.with_replicas(replicas)).await?;
        }
        Ok(())
    }
}
