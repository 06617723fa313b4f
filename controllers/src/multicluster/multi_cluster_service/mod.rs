//! MultiClusterService controller (type CrossCluster): requests the EndpointSlices of provider clusters, claims the
//! Service, binds it to providers and consumers, and dispatches collected EndpointSlices to consumers. It writes
//! those Works, the binding and the status. Requires the feature gate `MultiClusterService`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{condition, event, finalizer, label};
use crowsnest_api::keys::WorkKey;
use crowsnest_api::names::{cluster_of_execution_namespace, execution_namespace};
use crowsnest_api::networking::{MultiClusterService, MultiClusterServiceSpec};
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::{Context, decode};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::bindings::binding_key_of;
use crate::shared::works::write_work;
use crowsnest_plan::conditions;
use crowsnest_plan::multicluster_services::{self as plan, Role, ServiceBindingPlan};

/// Delay of a reconciliation after a change of a Work. Works often change in groups, which are processed together.
const BATCH_DELAY: Duration = Duration::from_millis(100);

pub struct MultiClusterServiceController {
    context: Arc<Context>,
    services: Mutex<BTreeSet<NamespacedName>>,
}

impl MultiClusterServiceController {
    fn on_multi_cluster_service(&self, change: &Change) -> Requests<NamespacedName> {
        if !self.is_enabled() {
            return Requests::none();
        }
        match change.deleted {
            true => self.services.lock().remove(&change.key()),
            false => self.services.lock().insert(change.key()),
        };
        Requests::one_if(change.is_generation_or_labels_changed(), || change.key())
    }

    fn on_service(&self, change: &Change) -> Requests<NamespacedName> {
        let key = change.key();
        Requests::one_if(self.services.lock().contains(&key), || key.clone())
    }

    fn on_work(&self, change: &Change) -> Requests<NamespacedName> {
        Requests::from(plan::service_of_work(change.object()).filter(|_| self.is_enabled())).after(BATCH_DELAY)
    }

    fn on_cluster(&self, change: &Change) -> Requests<NamespacedName> {
        let relevant_fields = |cluster: &Value| {
            let status_field = |field: &str| unstructured::at(cluster, &["status", field]).cloned();
            (status_field("conditions"), status_field("apiEnablements"))
        };
        let differs =
            change.deleted || change.old().is_none_or(|old| relevant_fields(old) != relevant_fields(change.object()));
        Requests::all_if(self.is_enabled() && !change.initial && differs)
    }

    fn is_enabled(&self) -> bool {
        self.context.config.gates.multi_cluster_service
    }
}

impl Controller for MultiClusterServiceController {
    type Key = NamespacedName;
    const NAME: &'static str = "multiclusterservice-controller";
    const SWITCH: Switch = super::MULTI_CLUSTER_SERVICE_SWITCH;

    fn new(setup: &Setup) -> Self {
        MultiClusterServiceController { context: setup.context(), services: Mutex::default() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.multi_cluster_service]).map(Self::on_multi_cluster_service),
            Source::control_plane([&kinds.service]).map(Self::on_service),
            Source::control_plane([&kinds.work]).map(Self::on_work),
            Source::clusters(kinds).map(Self::on_cluster),
        ]
    }

    async fn keys(&self) -> Result<Vec<NamespacedName>, Error> {
        Ok(self.services.lock().iter().cloned().collect())
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.multi_cluster_service;
        let Some(mut mcs) = context.get_full(resource, &key.namespace, &key.name).await? else {
            self.release(&key).await?;
            return Ok(Outcome::Done);
        };
        let typed: MultiClusterService = decode(&mcs)?;
        if unstructured::is_terminating(&mcs) || !plan::is_cross_cluster(&typed.spec) {
            self.release(&key).await.inspect_err(|error| {
                if error.needs_event() {
                    let message = match unstructured::is_terminating(&mcs) {
                        true => format!("failed to delete service work :{}", error.message()),
                        false => error.message(),
                    };
                    context.events.record(&mcs, Severity::Warning, event::SYNC_SERVICE_FAILED, message);
                }
            })?;
            context.remove_finalizer(resource, &mcs, finalizer::MULTI_CLUSTER_SERVICE_CONTROLLER).await?;
            return Ok(Outcome::Done);
        }
        if !unstructured::has_finalizer(&mcs, finalizer::MULTI_CLUSTER_SERVICE_CONTROLLER) {
            let mut finalizers: Vec<&str> = unstructured::finalizers(&mcs).collect();
            finalizers.push(finalizer::MULTI_CLUSTER_SERVICE_CONTROLLER);
            let patch = json!({"metadata": {"finalizers": finalizers}});
            mcs = Arc::new(context.merge(resource, &mcs, patch).await?);
        }
        let binding_result = self.claim_and_bind(&mcs, &typed.spec).await;
        let dispatch_result = self.dispatch(&key, &mcs, &typed.spec).await;
        // A write conflict is not a failure of the MultiClusterService; it is retried immediately.
        let is_conflict = |error: &Error| error.is_conflict();
        if !binding_result.as_ref().is_err_and(is_conflict) && !dispatch_result.as_ref().is_err_and(is_conflict) {
            self.write_status(&mcs, &typed, &binding_result, &dispatch_result).await?;
        }
        binding_result?;
        dispatch_result.map(|_| Outcome::Done)
    }
}

impl MultiClusterServiceController {
    /// Claims and binds the Service, and requests the EndpointSlices of the provider clusters.
    async fn claim_and_bind(&self, mcs: &Value, spec: &MultiClusterServiceSpec) -> Result<(), Error> {
        let context = &self.context;
        let clusters = context.active_cluster_names().await?;
        let (providers, consumers) = (
            plan::selected_clusters(&spec.provider_clusters, &clusters),
            plan::selected_clusters(&spec.consumer_clusters, &clusters),
        );
        for provider in &providers {
            if self.is_usable(mcs, provider, Role::Provider).await? {
                write_work(context, &plan::provider_work(provider, mcs)).await?;
            }
        }
        let key = unstructured::key(mcs);
        for work in self.list_works(&key).await?.iter().filter(|work| plan::is_provider_work(work)) {
            let is_provider = cluster_of_execution_namespace(unstructured::namespace(work))
                .is_some_and(|cluster| providers.contains(cluster));
            if !is_provider {
                self.delete_work(work).await?;
            }
        }
        let Some(service) = context.get_full(&context.kinds.service, &key.namespace, &key.name).await? else {
            return Err(Error::Other(format!("services \"{}\" not found", key.name)));
        };
        let service = match plan::claim(&service, mcs) {
            Some(claimed) => Arc::new(context.replace(&context.kinds.service, &claimed).await?),
            None => service,
        };
        let binding = binding_key_of(context, &ObjectIdentity::from_object(&service)).await?;
        let resource = &context.kinds.resource_binding;
        let existing = context.get_full(resource, &key.namespace, &binding.name).await?;
        let clusters = providers.union(&consumers).cloned().collect();
        match plan::bind(mcs, &service, &clusters, existing.as_deref(), &binding.name) {
            ServiceBindingPlan::Keep => Ok(()),
            ServiceBindingPlan::Create(binding) => context.create(resource, &binding).await.map(drop),
            ServiceBindingPlan::Update(binding) => context.replace(resource, &binding).await.map(drop),
            ServiceBindingPlan::WaitForGarbageCollection => Err(Error::Waiting(
                "failed to update binding due to different owner reference UID, will try again later after binding is \
                 garbage collected"
                    .to_owned(),
            )),
        }
    }

    /// True if a cluster can be used; otherwise an event reports the reason.
    async fn is_usable(&self, mcs: &Value, name: &str, role: Role) -> Result<bool, Error> {
        let cluster = self.context.cluster(name).await?;
        let Some((reason, text)) = plan::unusable_reason(name, cluster.as_deref(), role) else {
            let work_namespace = execution_namespace(name);
            return self.context.exists(&self.context.kinds.namespace, "", &work_namespace).await;
        };
        self.context.events.record(mcs, Severity::Warning, reason, text);
        Ok(false)
    }

    /// Dispatches collected EndpointSlices to consumers. Returns true if any were collected.
    async fn dispatch(&self, key: &NamespacedName, mcs: &Value, spec: &MultiClusterServiceSpec) -> Result<bool, Error> {
        let context = &self.context;
        let clusters = context.active_cluster_names().await?;
        let (providers, consumers) = (
            plan::selected_clusters(&spec.provider_clusters, &clusters),
            plan::selected_clusters(&spec.consumer_clusters, &clusters),
        );
        let works = self.list_works(key).await?;
        let is_source = |work: &&Value| {
            let provider = cluster_of_execution_namespace(unstructured::namespace(work))
                .filter(|cluster| providers.contains(*cluster));
            plan::is_collected_work(work) && !unstructured::is_terminating(work) && provider.is_some()
        };
        let sources: Vec<&Value> = works.iter().filter(is_source).collect();
        let (mut desired, mut skipped) = (BTreeSet::new(), BTreeSet::new());
        for consumer in consumers.iter().filter(|_| !sources.is_empty()) {
            if !self.is_usable(mcs, consumer, Role::Consumer).await? {
                skipped.insert(consumer.clone());
                continue;
            }
            for work in &sources {
                let provider = cluster_of_execution_namespace(unstructured::namespace(work)).unwrap_or_default();
                if provider != consumer {
                    desired.extend(self.dispatch_slice(consumer, provider, work).await?);
                }
            }
        }
        for work in works.iter().filter(|work| plan::provider_cluster(work).is_some()) {
            let consumer = cluster_of_execution_namespace(unstructured::namespace(work)).unwrap_or_default();
            let is_desired = desired.contains(&WorkKey::from_object(work));
            if !is_desired && !skipped.contains(consumer) {
                self.delete_work(work).await?;
            }
        }
        self.remove_finalizers(&works).await?;
        Ok(!sources.is_empty())
    }

    /// Writes the Work of one EndpointSlice for a consumer. Returns its key.
    async fn dispatch_slice(&self, consumer: &str, provider: &str, source: &Value) -> Result<Option<WorkKey>, Error> {
        let context = &self.context;
        let work_namespace = execution_namespace(consumer);
        let existing = context.get_full(&context.kinds.work, &work_namespace, unstructured::name(source)).await?;
        let is_taken = existing.is_some_and(|work| plan::provider_cluster(&work) != Some(provider));
        let Some(work) = plan::dispatched_work(consumer, provider, source, |_| is_taken) else { return Ok(None) };
        write_work(context, &work).await?;
        Ok(Some(WorkKey::new(work.namespace, work.name)))
    }

    /// Removes the finalizers of collected Works that are being deleted, after the dispatched ones were deleted.
    async fn remove_finalizers(&self, works: &[Value]) -> Result<(), Error> {
        let finalizer = finalizer::MCS_ENDPOINT_SLICE_DISPATCH_CONTROLLER;
        for work in works.iter().filter(|work| unstructured::is_terminating(work)) {
            self.context.remove_finalizer(&self.context.kinds.work, work, finalizer).await?;
        }
        Ok(())
    }

    async fn list_works(&self, key: &NamespacedName) -> Result<Vec<Value>, Error> {
        let resource = &self.context.kinds.work;
        let works = self.context.list_with_label(resource, label::MULTI_CLUSTER_SERVICE_NAME, &key.name).await?;
        let belongs_to_service = |work: &&Value| plan::service_of_work(work).as_ref() == Some(key);
        Ok(works.iter().map(|work| work.view()).filter(belongs_to_service).cloned().collect())
    }

    async fn delete_work(&self, work: &Value) -> Result<(), Error> {
        if unstructured::is_terminating(work) {
            return Ok(());
        }
        self.context.delete(&self.context.kinds.work, unstructured::namespace(work), unstructured::name(work)).await
    }

    /// Releases the Service, and deletes all Works that were created for it. Its binding is kept.
    async fn release(&self, key: &NamespacedName) -> Result<(), Error> {
        let context = &self.context;
        let works = self.list_works(key).await?;
        for work in works.iter().filter(|work| !plan::is_collected_work(work)) {
            self.delete_work(work).await?;
        }
        for work in works.iter().filter(|work| plan::is_collected_work(work) && !unstructured::is_terminating(work)) {
            match plan::release_service(work) {
                Some(patch) => context.merge(&context.kinds.work, work, patch).await.map(drop)?,
                None => self.delete_work(work).await?,
            }
        }
        self.remove_finalizers(&works).await?;
        let service = ObjectIdentity::new("v1", "Service", &key.namespace, &key.name);
        let binding = binding_key_of(context, &service).await?;
        for (resource, name) in [(&context.kinds.service, &key.name), (&context.kinds.resource_binding, &binding.name)]
        {
            let object = context.get_full(resource, &key.namespace, name).await?;
            let object = object
                .filter(|object| unstructured::label(object, label::MULTI_CLUSTER_SERVICE_PERMANENT_ID).is_some());
            if let Some(released) = object.and_then(|object| plan::release(&object)) {
                context.replace(resource, &released).await?;
            }
        }
        Ok(())
    }

    /// Writes the conditions of the Service and of the EndpointSlices.
    async fn write_status(
        &self,
        mcs: &Value,
        typed: &MultiClusterService,
        binding_result: &Result<(), Error>,
        dispatch_result: &Result<bool, Error>,
    ) -> Result<(), Error> {
        let existing = typed.status.conditions.as_deref().unwrap_or_default();
        let mut conditions: Vec<Condition> = existing.to_vec();
        let applied = match binding_result {
            Ok(()) => (true, "ServiceAppliedSucceed", "Service is propagated to target clusters.".to_owned()),
            Err(error) => (false, "ServiceAppliedFailed", error.message()),
        };
        let mut changed = self.set_condition(mcs, &mut conditions, condition::SERVICE_APPLIED, applied, SYNC_EVENTS);
        let is_reported = conditions::find(existing, condition::ENDPOINT_SLICE_DISPATCHED).is_some();
        let dispatch_condition = match dispatch_result {
            Ok(has_slices) if *has_slices || is_reported => {
                Some((true, "EndpointSliceDispatchedSucceed", "EndpointSlice are dispatched successfully".to_owned()))
            }
            Ok(_) => None,
            Err(error) => Some((false, "EndpointSliceDispatchedFailed", error.message())),
        };
        if let Some(dispatch_condition) = dispatch_condition {
            changed |= self.set_condition(
                mcs,
                &mut conditions,
                condition::ENDPOINT_SLICE_DISPATCHED,
                dispatch_condition,
                DISPATCH_EVENTS,
            );
        }
        let has_status = unstructured::at(mcs, &["status", "loadBalancer"]).is_some();
        if changed || !has_status {
            let patch = json!({"status": {"loadBalancer": {}, "conditions": conditions}});
            self.context.merge_status(&self.context.kinds.multi_cluster_service, mcs, patch).await?;
        }
        Ok(())
    }

    /// Sets a condition, with an event if it changed. Returns true if it changed.
    fn set_condition(
        &self,
        mcs: &Value,
        conditions: &mut Vec<Condition>,
        kind: &str,
        (is_met, reason, message): (bool, &str, String),
        [succeeded, failed]: [&'static str; 2],
    ) -> bool {
        let new = conditions::condition(kind, is_met, reason, message.clone(), self.context.now());
        let changed = conditions::set(conditions, new);
        if changed {
            let (severity, reason) = if is_met { (Severity::Normal, succeeded) } else { (Severity::Warning, failed) };
            self.context.events.record(mcs, severity, reason, message);
        }
        changed
    }
}

/// Reasons of the events about the Service: success and failure.
const SYNC_EVENTS: [&str; 2] = [event::SYNC_SERVICE_SUCCEED, event::SYNC_SERVICE_FAILED];
/// Reasons of the events about dispatched EndpointSlices: success and failure.
const DISPATCH_EVENTS: [&str; 2] = [event::DISPATCH_ENDPOINT_SLICE_SUCCEED, event::DISPATCH_ENDPOINT_SLICE_FAILED];
