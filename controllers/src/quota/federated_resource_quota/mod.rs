//! FederatedResourceQuota controller: applies static assignments to members, collects their usage, and sums the usage
//! of a namespace's bindings. Only this controller writes those Works and the status of quotas.

mod usages;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{event, label};
use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_api::policy::{ClusterQuotaStatus, FederatedResourceQuota, FederatedResourceQuotaStatus};
use crowsnest_api::work::{ResourceBinding, Work};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::unstructured;
use futures::TryStreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};
use crate::shared::works::write_work;
use crowsnest_plan::quota::{self as plan, Usage};
use usages::Usages;

/// Delay of a recount after a change. Bindings often change in groups, which are counted together.
const BATCH_DELAY: Duration = Duration::from_millis(300);

pub struct FederatedResourceQuotaController {
    context: Arc<Context>,
    quotas: Trigger<NamespacedName>,
    /// Keys of all quotas, so that changes of bindings in namespaces without a quota cost nothing.
    quota_keys: Mutex<BTreeSet<NamespacedName>>,
    usages: Usages,
}

impl FederatedResourceQuotaController {
    fn on_quota(&self, change: &Change) -> Requests<NamespacedName> {
        let key = change.key();
        match change.deleted {
            true => self.remove(&key),
            false => {
                self.quota_keys.lock().insert(key.clone());
            }
        }
        // Another client may have written only the status, so the usage is counted again.
        let delay = if change.is_generation_or_deletion_changed() { Duration::ZERO } else { BATCH_DELAY };
        Requests::from(key).after(delay)
    }

    fn on_binding(&self, change: &Change) -> Requests<NamespacedName> {
        let namespace = unstructured::namespace(change.object());
        let keys = if self.is_enforced() { self.quotas_in(namespace) } else { Vec::new() };
        if keys.is_empty() || !change.initial && !may_change_usage(change) {
            return Requests::none();
        }
        self.usages.mark_changed(namespace);
        keys.into_iter().filter(|_| !change.initial).collect::<Requests<NamespacedName>>().after(BATCH_DELAY)
    }

    /// True if quotas are enforced, so that usage is counted.
    fn is_enforced(&self) -> bool {
        self.context.config.gates.federated_quota_enforcement
    }

    fn remove(&self, key: &NamespacedName) {
        self.quota_keys.lock().remove(key);
        if self.quotas_in(&key.namespace).is_empty() {
            self.usages.remove(&key.namespace);
        }
    }

    fn quotas_in(&self, namespace: &str) -> Vec<NamespacedName> {
        let quota_keys = self.quota_keys.lock();
        let from = NamespacedName::new(namespace, "");
        quota_keys.range(from..).take_while(|key| key.namespace == namespace).cloned().collect()
    }
}

impl Controller for FederatedResourceQuotaController {
    type Key = NamespacedName;
    const NAME: &'static str = "federated-resource-quota-sync-controller";
    const SWITCH: Switch = Switch::OnByDefault(&[
        "federatedResourceQuotaEnforcement",
        "federatedResourceQuotaStatus",
        "federatedResourceQuotaSync",
    ]);

    fn new(setup: &Setup) -> Self {
        FederatedResourceQuotaController {
            context: setup.context(),
            quotas: setup.trigger::<Self>(),
            quota_keys: Mutex::default(),
            usages: Usages::default(),
        }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let clusters = Source::clusters(kinds);
        vec![
            Source::control_plane([&kinds.federated_resource_quota]).map(Self::on_quota),
            clusters.map(|_, change| Requests::all_if(!change.initial && change.is_generation_or_deletion_changed())),
            Source::control_plane([&kinds.work])
                .map(|_, change| Requests::from(quota_of(change.object())).after(BATCH_DELAY)),
            Source::control_plane([&kinds.resource_binding]).map(Self::on_binding),
        ]
    }

    async fn keys(&self) -> Result<Vec<NamespacedName>, Error> {
        Ok(self.quota_keys.lock().iter().cloned().collect())
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if cluster.is_control_plane() && *resource == self.context.kinds.federated_resource_quota {
            let deleted: Vec<NamespacedName> =
                self.quota_keys.lock().difference(&keys.iter().cloned().collect()).cloned().collect();
            for key in deleted {
                self.remove(&key);
                self.quotas.add(key);
            }
        } else if cluster.is_control_plane() && *resource == self.context.kinds.resource_binding {
            // Bindings may have been deleted without a change.
            self.usages.clear();
        }
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let context = &self.context;
        let NamespacedName { namespace, name } = &key;
        let quota = context.get_full(&context.kinds.federated_resource_quota, namespace, name).await?;
        let works = self.list_works(&key).await?;
        let Some(quota) = quota.filter(|quota| !unstructured::is_terminating(quota)) else {
            self.delete_works(works.iter()).await?;
            return Ok(Outcome::Done);
        };
        let typed: FederatedResourceQuota = decode(&quota)?;
        if let Err(error) = self.write_assignments(&quota, &typed, &works).await {
            if error.needs_event() {
                context.events.record(&quota, Severity::Warning, event::SYNC_WORK_FAILED, error.to_string());
            }
            return Err(error);
        }
        match self.update_status(&key, &quota, &typed, &works).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => {
                if error.needs_event() {
                    let reasons = [event::AGGREGATE_STATUS_FAILED, event::COLLECT_OVERALL_STATUS_FAILED];
                    self.record_status_event(&quota, Severity::Warning, reasons, &error.to_string());
                }
                Err(error)
            }
        }
    }
}

impl FederatedResourceQuotaController {
    /// Works that assign a quota to members.
    async fn list_works(&self, key: &NamespacedName) -> Result<Vec<Value>, Error> {
        let (resource, label) = (&self.context.kinds.work, label::FEDERATED_RESOURCE_QUOTA_NAME);
        let found = self.context.list_with_label(resource, label, &key.name).await?;
        let works = found.iter().map(|work| work.view());
        Ok(works.filter(|work| quota_of(work).as_ref() == Some(key)).cloned().collect())
    }

    async fn delete_works(&self, works: impl Iterator<Item = &Value>) -> Result<(), Error> {
        for work in works.filter(|work| !unstructured::is_terminating(work)) {
            self.context
                .delete(&self.context.kinds.work, unstructured::namespace(work), unstructured::name(work))
                .await?;
        }
        Ok(())
    }

    /// Writes the Works that assign the quota to members, and deletes others.
    async fn write_assignments(
        &self,
        quota: &Value,
        typed: &FederatedResourceQuota,
        works: &[Value],
    ) -> Result<(), Error> {
        let context = &self.context;
        let desired = plan::assignments(typed, &context.active_cluster_names().await?);
        let is_desired =
            |work: &&Value| desired.iter().any(|desired| desired.namespace == unstructured::namespace(work));
        self.delete_works(works.iter().filter(|work| !is_desired(work))).await?;
        let mut is_written = false;
        for work in &desired {
            if !context.exists(&context.kinds.namespace, "", &work.namespace).await? {
                return Err(Error::Waiting(format!("namespace {} does not exist", work.namespace)));
            }
            is_written |= write_work(context, work).await?;
        }
        if is_written {
            let text = format!(
                "Sync works for FederatedResourceQuota({}/{}) succeed.",
                unstructured::namespace(quota),
                unstructured::name(quota)
            );
            context.events.record(quota, Severity::Normal, event::SYNC_WORK_SUCCEED, text);
        }
        Ok(())
    }

    /// Updates the status, and schedules the next recount if usage is counted.
    async fn update_status(
        &self,
        key: &NamespacedName,
        quota: &Value,
        typed: &FederatedResourceQuota,
        works: &[Value],
    ) -> Result<Outcome, Error> {
        let usage = if self.is_enforced() { Some(self.usage(&key.namespace).await?) } else { None };
        let status = plan::status(&typed.spec, member_usages(works)?, usage);
        if status != typed.status {
            self.write_status(quota, &status).await?;
        }
        let sync = self.context.config.periods.quota_sync;
        Ok(if self.is_enforced() { Outcome::RequeueAfter(sync) } else { Outcome::Done })
    }

    async fn write_status(&self, quota: &Value, status: &FederatedResourceQuotaStatus) -> Result<(), Error> {
        let context = &self.context;
        let mut updated = quota.clone();
        updated["status"] = json!(status);
        context.replace_status(&context.kinds.federated_resource_quota, &updated).await?;
        let (namespace, name) = (unstructured::namespace(quota), unstructured::name(quota));
        let text = format!("Collect status of FederatedResourceQuota({namespace}/{name}) succeed.");
        let reasons = [event::AGGREGATE_STATUS_SUCCEED, event::COLLECT_OVERALL_STATUS_SUCCEED];
        self.record_status_event(quota, Severity::Normal, reasons, &text);
        Ok(())
    }

    /// Records an event about the status with the reason of Karmada's status controller and, if limits are enforced,
    /// another with the reason of its enforcement controller.
    fn record_status_event(&self, quota: &Value, severity: Severity, reasons: [&'static str; 2], text: &str) {
        for reason in reasons.into_iter().take(if self.is_enforced() { 2 } else { 1 }) {
            self.context.events.record(quota, severity, reason, text);
        }
    }

    /// Usage of the namespaced bindings of a namespace. Cluster-scoped bindings are never counted. A usage that is
    /// older than half of the sync period is counted again, in case a change was missed.
    async fn usage(&self, namespace: &str) -> Result<Usage, Error> {
        let (now, max_age) = (self.context.moment().mono, self.context.config.periods.quota_sync / 2);
        self.usages.get_or_count(namespace, now, max_age, self.sum_usage(namespace)).await
    }

    async fn sum_usage(&self, namespace: &str) -> Result<Usage, Error> {
        let bindings = self.context.stream(&self.context.kinds.resource_binding, Some(namespace));
        let sum = |mut sum: Usage, binding: crate::cache::CachedObject| async move {
            let binding: ResourceBinding = decode(binding.view())?;
            plan::add(&mut sum, plan::usage(&binding.spec));
            Ok(sum)
        };
        bindings.try_fold(Usage::new(), sum).await
    }
}

/// The quota that a Work belongs to.
fn quota_of(work: &Value) -> Option<NamespacedName> {
    let name = unstructured::label(work, label::FEDERATED_RESOURCE_QUOTA_NAME)?;
    let namespace = unstructured::label(work, label::FEDERATED_RESOURCE_QUOTA_NAMESPACE)?;
    Some(NamespacedName::new(namespace, name))
}

/// Usage of the quotas that Works assign, as reported by members.
fn member_usages(works: &[Value]) -> Result<Vec<ClusterQuotaStatus>, Error> {
    let mut members = Vec::new();
    for work in works.iter().filter(|work| !unstructured::is_terminating(work)) {
        let Some(cluster) = cluster_of_execution_namespace(unstructured::namespace(work)) else { continue };
        members.extend(plan::member_status(cluster, &decode::<Work>(work)?.status));
    }
    Ok(members)
}

/// True if the usage of a binding changed, or may have changed.
fn may_change_usage(change: &Change) -> bool {
    let usage = |binding: &Value| decode::<ResourceBinding>(binding).map(|binding| plan::usage(&binding.spec));
    match (change.old(), change.current()) {
        (Some(old), Some(new)) => match (usage(old), usage(new)) {
            (Ok(old), Ok(new)) => old != new,
            _ => true,
        },
        _ => true,
    }
}
