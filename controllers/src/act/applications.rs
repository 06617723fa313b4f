//! Application failover: watches how workloads are in each of their clusters and takes them out where they are unhealthy for
//! longer than their policy tolerates. Only with the gate `Failover`. Since when they are is in memory: after a restart the
//! toleration begins anew, as in Karmada.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{event, eviction};
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec};
use futures::TryStreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::context::{Context, decode, now};
use super::events::Severity;
use super::queue::{Outcome, Queue};
use super::scheduling::BindingKey;
use super::world::Change;
use crate::Error;
use crate::plan::eviction::application::{self as plan, Switches};
use crate::plan::object;

pub struct Applications {
    context: Arc<Context>,
    pub bindings: Queue<BindingKey>,
    /// Since when a workload is unhealthy in which cluster.
    unhealthy: Mutex<HashMap<BindingKey, HashMap<String, Instant>>>,
}

impl Applications {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Applications { context, bindings: Queue::new("applications"), unhealthy: Mutex::default() })
    }

    pub fn on_change(&self, change: &Change) {
        let kinds = &self.context.kinds;
        let gvr = &change.resource.gvr;
        let is_binding = *gvr == kinds.resource_binding.gvr || *gvr == kinds.cluster_resource_binding.gvr;
        if !is_binding {
            return;
        }
        match change.current() {
            None => drop(self.unhealthy.lock().remove(&change.key())),
            Some(binding) => self.ask(binding),
        }
    }

    /// A change that was missed must not keep a workload where it is unwell.
    pub async fn full_pass(&self) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        for resource in [&kinds.resource_binding, &kinds.cluster_resource_binding] {
            let mut bindings = pin!(self.context.stream(resource, None));
            while let Some(binding) = bindings.try_next().await? {
                self.ask(binding.view());
            }
        }
        Ok(())
    }

    fn ask(&self, binding: &Value) {
        let key = (object::namespace(binding).to_owned(), object::name(binding).to_owned());
        let fails_over = object::at(binding, &["spec", "failover", "application"]).is_some();
        if self.context.config.gates.failover && (fails_over || self.unhealthy.lock().contains_key(&key)) {
            self.bindings.add(key);
        }
    }

    pub async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = context.kinds.binding(&key.0);
        let binding = context.get(resource, &key.0, &key.1).await?.filter(|binding| !object::is_terminating(binding));
        let Some(binding) = binding else {
            self.unhealthy.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let typed: ResourceBinding = decode(&binding)?;
        let Some(behavior) = plan::behavior(&typed.spec) else {
            self.unhealthy.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let toleration = Duration::from_secs(plan::toleration_seconds(behavior));
        let (due, rest) = self.watch(&key, &plan::unhealthy(&typed.spec, &typed.status), toleration);
        if !due.is_empty() {
            let gates = &context.config.gates;
            let switches = Switches {
                graceful_eviction: gates.graceful_eviction,
                preserves_state: gates.stateful_failover_injection,
            };
            let producer = match key.0.as_str() {
                "" => eviction::PRODUCER_CLUSTER_APPLICATION_FAILOVER,
                _ => eviction::PRODUCER_APPLICATION_FAILOVER,
            };
            let evicted = plan::evicted(&typed.spec, &typed.status, behavior, &due, producer, switches, now());
            let written = match evicted {
                Ok(evicted) => self.write(&key, &binding, &evicted).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = written {
                if !error.is_conflict() {
                    for cluster in &due {
                        let text = format!("Evict from cluster {cluster} failed.");
                        let (events, failed) = (&context.events, event::EVICT_WORKLOAD_FAILED);
                        events.note_both(&binding, &typed.spec, Severity::Warning, failed, &text);
                    }
                }
                return Err(error);
            }
            if let Some(known) = self.unhealthy.lock().get_mut(&key) {
                known.retain(|cluster, _| !due.contains(cluster));
            }
        }
        Ok(rest.map_or(Outcome::Done, Outcome::Again))
    }

    /// Takes down where the workload is unhealthy now; where it has been for too long, and when the next one is.
    fn watch(&self, key: &BindingKey, unhealthy: &[String], toleration: Duration) -> (Vec<String>, Option<Duration>) {
        let now = Instant::now();
        let mut all = self.unhealthy.lock();
        if unhealthy.is_empty() {
            all.remove(key);
            return (Vec::new(), None);
        }
        let since = all.entry(key.clone()).or_default();
        since.retain(|cluster, _| unhealthy.contains(cluster));
        let (mut due, mut rest) = (Vec::new(), None);
        for cluster in unhealthy {
            let since = *since.entry(cluster.clone()).or_insert(now);
            let left = (since + toleration).saturating_duration_since(now);
            if left.is_zero() && since < now {
                due.push(cluster.clone());
            } else {
                let left = left.max(Duration::from_millis(50));
                rest = Some(rest.map_or(left, |earlier: Duration| earlier.min(left)));
            }
        }
        (due, rest)
    }

    async fn write(&self, key: &BindingKey, binding: &Value, spec: &ResourceBindingSpec) -> Result<(), Error> {
        let clusters = (!spec.clusters.is_empty()).then_some(&spec.clusters);
        let patch = json!({"spec": {"clusters": clusters, "gracefulEvictionTasks": spec.graceful_eviction_tasks}});
        self.context.merge(self.context.kinds.binding(&key.0), binding, patch).await.map(drop)
    }
}
