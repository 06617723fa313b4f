//! Binding controller: creates the Works of a binding, one per target cluster, with that cluster's replicas and
//! overrides.

mod overrides;

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{annotation, condition, event, finalizer};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::permanent_id::POLICY_LABELS;
use crowsnest_api::policy::OverrideSpec;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, TargetCluster};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::unstructured;
use futures::future::join_all;
use futures::{FutureExt, TryStreamExt};
use serde::Deserialize;
use serde_json::Value;

use self::overrides::OverrideCache;
pub use self::overrides::Overrides;
use crate::Error;
use crate::cache::{CachedObject, Change, Header};
use crate::error::aggregate_messages;
use crate::failover::graceful_eviction::exclusive::{
    Exclusiveness, INHERITED_ANNOTATIONS, bindings_of_policy, collect_copies, update_unconfirmed_stops,
};
use crate::metrics::Durations;
use crate::propagation::detector::is_template_resource;
use crate::runtime::config::Config;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::templates::template_of;
use crate::shared::works::write_work;
use crowsnest_plan::conditions;
use crowsnest_plan::overriding;
use crowsnest_plan::propagation::change::Change as TemplateChange;
use crowsnest_plan::selector::best_precision;
use crowsnest_plan::work::construct::{self, BindingIdentity, Disposition};
use crowsnest_plan::work::exclusive::writable_targets;
use crowsnest_plan::work::owner::binding_of_work;

pub struct BindingController {
    context: Arc<Context>,
    overrides: OverrideCache,
}

/// Requeue delay while Works must be deleted before others can be created.
const PURGE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of clusters whose Works are written concurrently.
const MAX_CONCURRENT_WRITES: usize = 8;

/// Desired state of a binding.
struct DesiredState<'a> {
    spec: &'a ResourceBindingSpec,
    template: &'a Value,
    /// Targets that may be written now.
    writable_targets: Vec<TargetCluster>,
    /// True for an exclusive workload, of which two copies never run at the same time.
    is_exclusive: bool,
}

/// Inputs that all clusters of a binding share.
struct SharedInput<'a> {
    spec: &'a ResourceBindingSpec,
    template: &'a Value,
    identity: BindingIdentity<'a>,
    completions: BTreeMap<String, i32>,
    has_single_target: bool,
    is_exclusive: bool,
    cluster_wide: Overrides,
    namespaced: Overrides,
}

impl BindingController {
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        Requests::one_if(
            change.is_generation_or_labels_changed() || change.is_annotation_changed(&INHERITED_ANNOTATIONS),
            || BindingKey::from_object(change.object()),
        )
    }

    /// Bindings of a policy whose annotations changed.
    async fn on_policy(&self, change: &Change) -> Result<Requests<BindingKey>, Error> {
        match change.is_annotation_changed(&INHERITED_ANNOTATIONS) {
            true => Ok(bindings_of_policy(&self.context, change.object()).await?.into_iter().collect()),
            false => Ok(Requests::none()),
        }
    }

    /// Enqueues the binding of a Work that another client changed or deleted.
    fn on_work(&self, change: &Change) -> Requests<BindingKey> {
        let is_new = change.old.is_none() && !change.deleted;
        let is_drifted = !is_new && change.is_generation_changed();
        binding_of_work(change.object()).filter(|_| is_drifted).into()
    }

    /// Possible keys of the template's binding. The reconciliation skips those that do not exist.
    fn on_template(&self, change: &Change) -> Requests<BindingKey> {
        let template = change.object();
        let is_changed = !change.initial
            && is_template_resource(&change.resource.gvr)
            && change.template_change() != TemplateChange::None;
        match is_changed {
            true => self.context.hash_suffixed_bindings.candidates(&ObjectIdentity::from_object(template)).collect(),
            false => Requests::none(),
        }
    }

    /// Bindings whose template an OverridePolicy selects, before or after the change. If the previous selectors are
    /// unknown, all bindings in the policy's scope.
    async fn on_override(&self, change: &Change) -> Result<Requests<BindingKey>, Error> {
        self.overrides.update(change);
        let mut requests = Requests::none();
        if change.initial {
            return Ok(requests);
        }
        let kinds = &self.context.kinds;
        let namespace = unstructured::namespace(change.object()).to_owned();
        let versions = [change.old(), Some(change.object())].into_iter().flatten();
        let specs: Vec<OverrideSpec> =
            versions.filter_map(|policy| OverrideSpec::deserialize(policy.get("spec")?).ok()).collect();
        let is_unknown = change.is_previous_unknown() && !change.deleted;
        let scopes: &[_] = match namespace.as_str() {
            "" => &[(&kinds.resource_binding, None), (&kinds.cluster_resource_binding, None)],
            namespace => &[(&kinds.resource_binding, Some(namespace))],
        };
        for (resource, namespace) in scopes {
            let mut bindings = pin!(self.context.stream(resource, *namespace));
            while let Some(binding) = bindings.try_next().await? {
                let binding = binding.view();
                let reference = unstructured::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null);
                let template = self.template_or_identity(reference).await?;
                let is_selected = specs.iter().any(|spec| {
                    spec.resource_selectors.is_empty()
                        || best_precision(&spec.resource_selectors, template.view()).is_some()
                });
                if is_unknown || is_selected {
                    requests.push(BindingKey::from_object(binding));
                }
            }
        }
        Ok(requests)
    }

    /// The template, or an object with the identity in the reference if it does not exist.
    async fn template_or_identity(&self, reference: &Value) -> Result<CachedObject, Error> {
        let (api_version, kind) = (unstructured::api_version(reference), unstructured::kind(reference));
        let (namespace, name) =
            (unstructured::text(reference, &["namespace"]), unstructured::text(reference, &["name"]));
        if let Some(resource) = self.context.rest_mapper.find_cached(&self.context.control_plane, api_version, kind)
            && let Some(template) = self.context.get_redacted(&resource, namespace, name).await?
        {
            return Ok(template);
        }
        Ok(CachedObject::from_response(serde_json::json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name},
        })))
    }
}

impl Controller for BindingController {
    type Key = BindingKey;
    const NAME: &'static str = "binding-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["binding"]);

    fn new(setup: &Setup) -> Self {
        BindingController { context: setup.context(), overrides: OverrideCache::default() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let policies = Source::control_plane(kinds.policies());
        let overrides = Source::control_plane([&kinds.override_policy, &kinds.cluster_override_policy]);
        vec![
            Source::bindings(kinds).map(Self::on_binding),
            policies.find(|controller, change| controller.on_policy(change).boxed()),
            overrides.find(|controller, change| controller.on_override(change).boxed()),
            Source::control_plane([&kinds.work]).map(Self::on_work),
            Source::AllOfControlPlane.map(Self::on_template),
        ]
    }

    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        self.context.binding_keys().await
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        let kinds = &self.context.kinds;
        let is_override = *resource == kinds.override_policy || *resource == kinds.cluster_override_policy;
        if cluster.is_control_plane() && is_override {
            self.overrides.retain(resource.namespaced, keys);
        }
    }

    fn workers(config: &Config) -> usize {
        config.workers.bindings
    }

    fn durations(context: &Context) -> Option<Durations> {
        Some(context.metrics.sync_work.clone())
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = context.kinds.binding(key.scope());
        let Some((binding, typed)) = context.binding(&key).await? else {
            return Ok(Outcome::Done);
        };
        let works = self.list_works(&binding).await?;
        if unstructured::is_terminating(&binding) {
            for work in &works {
                self.delete_work(&binding, work).await?;
            }
            let finalizer = match key.namespace.as_str() {
                "" => finalizer::CLUSTER_RESOURCE_BINDING_CONTROLLER,
                _ => finalizer::BINDING_CONTROLLER,
            };
            context.remove_finalizer(resource, &binding, finalizer).await?;
            return Ok(Outcome::Done);
        }
        let cluster = |work: &Header| cluster_of_execution_namespace(&work.namespace).unwrap_or_default().to_owned();
        let disposition = |work: &Header| construct::disposition(&typed.spec, &cluster(work));
        for work in &works {
            match disposition(work) {
                Disposition::Keep => {}
                Disposition::Suspend => self.suspend_work(&binding, work).await?,
                Disposition::Delete => self.delete_work(&binding, work).await?,
            }
        }
        let purged = construct::directly_purged_clusters(&typed.spec);
        let is_purged = |work: &&Header| purged.contains(&cluster(work).as_str());
        if works.iter().filter(is_purged).any(|work| disposition(work) == Disposition::Delete) {
            return Ok(Outcome::RequeueAfter(PURGE_RETRY_DELAY));
        }
        let Some((_, template)) = template_of(context, &binding).await? else { return Ok(Outcome::Done) };
        if unstructured::is_terminating(&template) {
            return Ok(Outcome::Done);
        }
        self.check_permitted_requests(&binding, &typed, &template).await?;
        let mut targets = construct::targets(&typed.spec);
        let target_count = targets.len();
        let exclusive = Exclusiveness::determine(context, &binding, &typed.spec, &template).await?;
        if exclusive != Exclusiveness::No {
            let is_suspended = |work: &Header| construct::is_suspended(typed.spec.suspension.as_ref(), &cluster(work));
            let is_misplaced =
                |work: &&Header| !exclusive.may_stay_in(&typed.spec, &cluster(work)) && !is_suspended(work);
            for misplaced in works.iter().filter(is_misplaced) {
                self.delete_work(&binding, misplaced).await?;
            }
            let has_unconfirmed_copy = update_unconfirmed_stops(context, &binding, &typed).await?;
            let existing = works.iter().filter(|work| exclusive.blocks_others(&typed.spec, &cluster(work)));
            let allowed = writable_targets(&targets, &collect_copies(context, existing).await?, has_unconfirmed_copy);
            targets.retain(|target| allowed.contains(&target.name));
        }
        let is_waiting = targets.len() < target_count;
        let is_exclusive = exclusive != Exclusiveness::No;
        self.sync(
            &binding,
            &DesiredState { spec: &typed.spec, template: &template, writable_targets: targets, is_exclusive },
        )
        .await?;
        Ok(if is_waiting { Outcome::RequeueAfter(PURGE_RETRY_DELAY) } else { Outcome::Done })
    }
}

impl BindingController {
    /// Returns [`Error::Waiting`] until the binding contains the resource requests of the current template, because
    /// FederatedResourceQuotas are enforced on bindings. If a quota rejected them, events on the binding and on the
    /// template name the quota. A binding without a policy is never updated, so it is only checked in a namespace with
    /// a quota.
    async fn check_permitted_requests(
        &self,
        binding: &Value,
        typed: &ResourceBinding,
        template: &Value,
    ) -> Result<(), Error> {
        let context = &self.context;
        if !context.config.gates.federated_quota_enforcement {
            return Ok(());
        }
        let namespace = unstructured::namespace(binding);
        let quotas = &context.kinds.federated_resource_quota;
        if !is_claimed(binding) && (namespace.is_empty() || context.headers(quotas, namespace).await?.is_empty()) {
            return Ok(());
        }
        if construct::permits_requests(&typed.spec, &self.context.interpreter.replicas(template).await?) {
            return Ok(());
        }
        let scheduled = conditions::find(&typed.status.conditions, condition::SCHEDULED);
        if let Some(rejected) = scheduled.filter(|scheduled| scheduled.reason == condition::SCHEDULED_QUOTA_EXCEEDED) {
            let message = format!("waiting for quota: {}", rejected.message);
            self.record_event(binding, template, Severity::Warning, event::SYNC_WORK_FAILED, &message);
        }
        Err(Error::Waiting("the binding does not permit the requests of the template".to_owned()))
    }

    /// Headers of the Works with the binding's permanent id.
    async fn list_works(&self, binding: &Value) -> Result<Vec<Header>, Error> {
        let identity = BindingIdentity::from_binding(binding);
        let work = &self.context.kinds.work;
        self.context.headers_with_id(work, identity.id_label(), identity.permanent_id).await
    }

    /// The stored Work, if it belongs to the binding and is not being deleted.
    async fn get_owned_work(&self, binding: &Value, work: &Header) -> Result<Option<Arc<Value>>, Error> {
        if work.terminating {
            return Ok(None);
        }
        // Users can set the label by which Works are found, but only controllers write the annotations.
        let stored = self.context.get_full(&self.context.kinds.work, &work.namespace, &work.name).await?;
        let key = unstructured::key(binding);
        Ok(stored.filter(|stored| binding_of_work(stored) == Some(key.into())))
    }

    /// Suspends a Work whose cluster is no longer a target, so that it is not applied again.
    async fn suspend_work(&self, binding: &Value, work: &Header) -> Result<(), Error> {
        let Some(stored) = self.get_owned_work(binding, work).await? else { return Ok(()) };
        let suspended = unstructured::at(&stored, &["spec", "suspendDispatching"]).and_then(Value::as_bool);
        if suspended != Some(true) {
            let patch = serde_json::json!({"spec": {"suspendDispatching": true}});
            self.context.merge(&self.context.kinds.work, &stored, patch).await?;
        }
        Ok(())
    }

    /// Deletes a Work that belongs to the binding.
    async fn delete_work(&self, binding: &Value, work: &Header) -> Result<(), Error> {
        if self.get_owned_work(binding, work).await?.is_none() {
            return Ok(());
        }
        let deleted = self.context.delete(&self.context.kinds.work, &work.namespace, &work.name).await;
        if let Err(error) = &deleted {
            let events = &self.context.events;
            events.record(binding, Severity::Warning, event::CLEANUP_WORK_FAILED, error.message());
        }
        deleted
    }

    /// Synchronizes the Works of all targets, and reports the result. A failure in one cluster does not affect the
    /// others.
    async fn sync(&self, binding: &Value, desired: &DesiredState<'_>) -> Result<(), Error> {
        let DesiredState { spec, template, .. } = *desired;
        let targets = construct::targets(spec);
        let shared = SharedInput {
            spec,
            template,
            identity: BindingIdentity::from_binding(binding),
            completions: construct::job_completions(spec, template, &targets),
            has_single_target: targets.len() == 1,
            is_exclusive: desired.is_exclusive,
            cluster_wide: self.overrides.in_namespace(""),
            namespaced: match unstructured::namespace(template) {
                "" => Overrides::default(),
                namespace => self.overrides.in_namespace(namespace),
            },
        };
        let (mut written, mut errors) = (false, Vec::new());
        for batch in desired.writable_targets.chunks(MAX_CONCURRENT_WRITES) {
            for result in join_all(batch.iter().map(|target| self.sync_target(target, &shared))).await {
                match result {
                    Ok(is_written) => written |= is_written,
                    Err(error) => errors.push(error),
                }
            }
        }
        let messages: Vec<String> =
            errors.iter().filter(|error| !error.is_conflict() && !error.is_waiting()).map(Error::message).collect();
        if !messages.is_empty() {
            self.record_event(
                binding,
                template,
                Severity::Warning,
                event::SYNC_WORK_FAILED,
                &aggregate_messages(messages),
            );
        } else if written && errors.is_empty() {
            let binding_name = match unstructured::namespace(binding) {
                "" => format!("ClusterResourceBinding({})", unstructured::name(binding)),
                namespace => format!("ResourceBinding({namespace}/{})", unstructured::name(binding)),
            };
            let message = format!("Sync work of {binding_name} successful.");
            self.record_event(binding, template, Severity::Normal, event::SYNC_WORK_SUCCEED, &message);
        }
        errors.pop().map_or(Ok(()), Err)
    }

    /// Records an event on the binding and on its template.
    fn record_event(&self, binding: &Value, template: &Value, severity: Severity, reason: &'static str, message: &str) {
        for object in [binding, template] {
            self.context.events.record(object, severity, reason, message);
        }
    }

    /// The template with the cluster's replicas.
    async fn build_manifest(&self, target: &TargetCluster, shared: &SharedInput<'_>) -> Result<Value, Error> {
        let mut manifest = shared.template.clone();
        if shared.spec.is_workload() {
            self.context.interpreter.revise_replicas(&mut manifest, target.replicas).await?;
        }
        if let Some(completions) = shared.completions.get(&target.name) {
            unstructured::set(&mut manifest, &["spec", "completions"], serde_json::json!(completions));
        }
        Ok(manifest)
    }

    /// Synchronizes the Work of a target. Returns true if it was written.
    async fn sync_target(&self, target: &TargetCluster, shared: &SharedInput<'_>) -> Result<bool, Error> {
        let cluster = target.name.as_str();
        let Some(member) = self.context.cluster(cluster).await? else {
            return Err(Error::ClusterNotFound(cluster.to_owned()));
        };
        let mut manifest = self.build_manifest(target, shared).await?;
        let (cluster_wide, namespaced) = (shared.cluster_wide.to_policies(), shared.namespaced.to_policies());
        let overrides =
            overriding::apply(&mut manifest, &member, &cluster_wide, &namespaced).inspect_err(|failed| {
                self.record_override_event(shared, failed.cluster_scoped, &failed.policy, cluster, false)
            })?;
        let mut desired = construct::work_for_binding(
            shared.spec,
            shared.identity,
            cluster,
            manifest,
            &overrides,
            shared.has_single_target,
            self.context.config.gates.stateful_failover_injection,
        );
        if shared.is_exclusive {
            desired.annotations.insert(annotation::EXCLUSIVE.to_owned(), annotation::EXCLUSIVE_VALUE.to_owned());
        }
        let written = write_work(&self.context, &desired).await?;
        if written {
            for (rules, cluster_scoped) in [(&overrides.cluster, true), (&overrides.namespaced, false)] {
                for rule in rules {
                    self.record_override_event(shared, cluster_scoped, &rule.policy_name, cluster, true);
                }
            }
        }
        Ok(written)
    }

    /// Records an event on the template about an OverridePolicy applied in a cluster.
    fn record_override_event(
        &self,
        shared: &SharedInput<'_>,
        cluster_scoped: bool,
        policy: &str,
        cluster: &str,
        is_success: bool,
    ) {
        let (severity, reason, result) = match is_success {
            true => (Severity::Normal, event::APPLY_OVERRIDE_POLICY_SUCCEED, "succeed"),
            false => (Severity::Warning, event::APPLY_OVERRIDE_POLICY_FAILED, "failed"),
        };
        let policy = match cluster_scoped {
            true => format!("cluster override policy({policy})"),
            false => format!("override policy({}/{policy})", unstructured::namespace(shared.template)),
        };
        let message = format!("Apply {policy} for cluster({cluster}) {result}.");
        self.context.events.record(shared.template, severity, reason, message);
    }
}

/// True if a policy claims the binding.
fn is_claimed(binding: &Value) -> bool {
    POLICY_LABELS.iter().any(|id| unstructured::label(binding, id).is_some_and(|id| !id.is_empty()))
}
