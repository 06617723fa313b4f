//! Descheduler: removes replicas that have been unschedulable in their cluster for some time, so that the scheduler
//! moves them to another cluster. In Karmada it is a separate program; here it is a controller that is disabled by
//! default.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::event;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{ObjectReference, ResourceBinding};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::capacity::Capacity;
use crate::estimator::client_pool;
use crate::estimator::unschedulable::{REPLICA_SET_TIMEOUT, newest_replica_set};
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Setup, Switch};
use crowsnest_plan::descheduling as plan;
use crowsnest_plan::journal::workloads::{BindingChange, descheduling_entry};

pub struct Descheduler {
    context: Arc<Context>,
    capacity: Arc<Capacity>,
}

impl Controller for Descheduler {
    type Key = BindingKey;
    const NAME: &'static str = "descheduler";
    /// A separate, optional program in Karmada.
    const SWITCH: Switch = Switch::OffByDefault(&["descheduler"]);

    fn new(setup: &Setup) -> Self {
        Descheduler { context: setup.context(), capacity: Capacity::shared(setup) }
    }

    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        let key_if_affected = |binding: &Value| {
            let resource = unstructured::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null);
            let is_affected = unstructured::kind(resource) == "Deployment" && may_lack_replicas(binding);
            is_affected.then(|| BindingKey::from_object(binding))
        };
        self.context.filter_map(&self.context.kinds.resource_binding, None, key_if_affected).await
    }

    fn resync_period(config: &Config) -> Option<Duration> {
        Some(config.periods.descheduling)
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.resource_binding;
        let Some(binding) = context.get_full(resource, &key.namespace, &key.name).await? else {
            return Ok(Outcome::Done);
        };
        let typed: ResourceBinding = decode(&binding)?;
        if !plan::is_candidate(&binding, &typed.spec.resource) {
            return Ok(Outcome::Done);
        }
        let lacking = plan::clusters_lacking_replicas(&typed.spec, &typed.status);
        if lacking.is_empty() {
            return Ok(Outcome::Done);
        }
        let unschedulable = self.unschedulable_replicas(&typed.spec.resource, &lacking).await;
        let Some(reduced) = plan::reduce(&typed.spec, &typed.status, &unschedulable) else { return Ok(Outcome::Done) };
        // The cause is recorded before the write, so that the scheduler finds it when it reacts to the write. The
        // entry names the generation that the binding has after the write.
        let change = BindingChange::from_binding(&binding, &typed.spec, context.config.clock.wall());
        let change = BindingChange { generation: change.generation + 1, ..change };
        let entry = descheduling_entry(&change, &typed.spec.clusters, &reduced.clusters, &reduced.message);
        context.journal.set_cause(key.clone(), entry.id.clone());
        match context.merge(resource, &binding, json!({"spec": {"clusters": reduced.clusters}})).await {
            Ok(_) => {
                let reason = event::DESCHEDULE_BINDING_SUCCEED;
                context.events.record_with_template(&binding, &typed.spec, Severity::Normal, reason, &reduced.message);
                context.journal.add(entry).await;
                Ok(Outcome::Done)
            }
            Err(error) => {
                context.journal.take_cause(&key);
                if error.needs_event() {
                    let reason = event::DESCHEDULE_BINDING_FAILED;
                    context.events.record_with_template(
                        &binding,
                        &typed.spec,
                        Severity::Warning,
                        reason,
                        &error.message(),
                    );
                }
                Err(error)
            }
        }
    }
}

impl Descheduler {
    /// Number of unschedulable replicas by cluster: the lower of the numbers from the cache and from the cluster's
    /// estimator. Clusters for which both are unknown are omitted.
    async fn unschedulable_replicas(&self, resource: &ObjectReference, clusters: &[String]) -> BTreeMap<String, i32> {
        let config = &self.context.config;
        let from_cache = futures::future::join_all(clusters.iter().map(|cluster| self.count_or_log(resource, cluster)));
        let from_estimators = async {
            match &config.estimators {
                Some(estimators) => {
                    let threshold = config.periods.unschedulable_threshold;
                    client_pool::unschedulable_replicas(&self.context, estimators, resource, clusters, threshold).await
                }
                None => BTreeMap::new(),
            }
        };
        let (from_cache, mut counts) = futures::join!(from_cache, from_estimators);
        for (cluster, count) in from_cache.into_iter().flatten() {
            counts.entry(cluster).and_modify(|smallest| *smallest = count.min(*smallest)).or_insert(count);
        }
        counts
    }

    async fn count_or_log(&self, resource: &ObjectReference, cluster: &str) -> Option<(String, i32)> {
        let result = self.count(resource, cluster).await.unwrap_or_else(|error| {
            tracing::debug!(cluster, %error, "cannot count unschedulable pods");
            None
        });
        result.map(|count| (cluster.to_owned(), count))
    }

    async fn count(&self, resource: &ObjectReference, cluster: &str) -> Result<Option<i32>, Error> {
        let Ok(cluster) = ClusterName::parse(cluster) else { return Ok(None) };
        let member = self.context.member_client(&cluster, REPLICA_SET_TIMEOUT)?;
        let newest = newest_replica_set(&member, &resource.namespace, &resource.name, REPLICA_SET_TIMEOUT).await?;
        let Some(newest) = newest else { return Ok(Some(0)) };
        let threshold = SignedDuration::try_from(self.context.config.periods.unschedulable_threshold);
        let threshold = threshold.unwrap_or(SignedDuration::MAX);
        Ok(self.capacity.count_unschedulable(&cluster, &newest, threshold, self.context.now()))
    }
}

/// True if the binding may have unschedulable replicas. A binding that cannot be decoded is ignored.
fn may_lack_replicas(binding: &Value) -> bool {
    let typed =
        decode::<ResourceBinding>(binding).inspect_err(|error| tracing::warn!(%error, "cannot decode a binding"));
    typed.is_ok_and(|typed| {
        plan::is_candidate(binding, &typed.spec.resource)
            && !plan::clusters_lacking_replicas(&typed.spec, &typed.status).is_empty()
    })
}
