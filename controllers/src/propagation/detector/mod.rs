//! Resource detector: matches templates with policies, claims them and creates their bindings.
//!
//! All deletable resources of the control plane are collected. A changed policy enqueues only the templates that it
//! claims or could claim ([`policies`]).

mod policies;
mod quota_rejection;
mod unclaimed;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crowsnest_api::config::InterpreterOperation;
use crowsnest_api::constants::{event, label};
use crowsnest_api::keys::PolicyKey;
use crowsnest_api::names::is_reserved_namespace;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::names::{ClusterName, Gvr, NamespacedName};
use crowsnest_apimachinery::unstructured;
use crowsnest_members::ApiResources;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

pub use self::policies::PolicyDetector;
use self::policies::PolicyRecord;
use self::unclaimed::UnclaimedTemplates;
use crate::Error;
use crate::cache::Change;
use crate::runtime::config::Config;
use crate::runtime::context::{Context, new_id};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};
use crate::shared::bindings::binding_key_of;
use crowsnest_plan::propagation::binding::{self, BindingInput, BindingPlan, NewBinding, ReplicaFacts};
use crowsnest_plan::propagation::change::Change as TemplateChange;
use crowsnest_plan::propagation::lazy::{self, PendingChange};
use crowsnest_plan::propagation::{Choice, Claim, Policy, Preemption, choose, claim};

/// A template in the control plane.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateKey {
    pub gvr: Gvr,
    pub namespace: String,
    pub name: String,
}

impl fmt::Debug for TemplateKey {
    /// `deployments.apps default/web`; for keys in logs and traces.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gvr, namespace, name } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        write!(formatter, "{} {namespace}{slash}{name}", gvr.group_resource())
    }
}

/// API groups of the control plane itself, whose objects are never templates.
const OWN_GROUPS: [&str; 11] = [
    "cluster.karmada.io",
    "policy.karmada.io",
    "work.karmada.io",
    "config.karmada.io",
    "networking.karmada.io",
    "autoscaling.karmada.io",
    "remedy.karmada.io",
    "apps.karmada.io",
    "sink.crowsnest.io",
    "storage.crowsnest.io",
    "events.k8s.io",
];

/// True if objects of a resource can be templates.
pub(crate) fn is_template_resource(gvr: &Gvr) -> bool {
    let is_own = OWN_GROUPS.contains(&&*gvr.group);
    let is_event = gvr.group.is_empty() && &*gvr.resource == "events";
    let is_lease = &*gvr.group == "coordination.k8s.io" && &*gvr.resource == "leases";
    !is_own && !is_event && !is_lease
}

/// Controller of templates.
pub struct ResourceDetector {
    context: Arc<Context>,
    templates: Trigger<TemplateKey>,
    policies: RwLock<BTreeMap<PolicyKey, Arc<PolicyRecord>>>,
    unclaimed: UnclaimedTemplates,
    /// Changes of templates since their last reconciliation.
    pending_changes: Mutex<HashMap<TemplateKey, PendingChange>>,
}

impl ResourceDetector {
    /// Starts collecting resources that are served now, and stops collecting those that no longer are.
    pub fn update_template_resources(&self, served: &ApiResources) {
        let control_plane = &self.context.control_plane;
        let mut desired: HashSet<Gvr> = HashSet::new();
        for resource in served.preferred_versions() {
            let is_usable = resource.is_listable() && resource.verbs.contains("delete");
            if is_usable && is_template_resource(&resource.gvr) {
                desired.insert(resource.gvr.clone());
                let collected = Resource {
                    gvr: resource.gvr.clone(),
                    kind: resource.kind.clone(),
                    namespaced: resource.namespaced,
                };
                self.context.cache.collect(control_plane, &collected);
            }
        }
        let is_unavailable = |gvr: &Gvr| served.stale.contains(&gvr.api_version());
        for resource in self.context.cache.resources(control_plane) {
            let is_removed = is_template_resource(&resource.gvr) && !desired.contains(&resource.gvr);
            if is_removed && !is_unavailable(&resource.gvr) {
                self.context.cache.forget_resource(control_plane, &resource.gvr);
                self.unclaimed.remove_resource(&resource.gvr);
            }
        }
    }

    fn on_template(&self, change: &Change) -> Requests<TemplateKey> {
        if !is_template_resource(&change.resource.gvr) {
            return Requests::none();
        }
        let NamespacedName { namespace, name } = change.key();
        let key = TemplateKey { gvr: change.resource.gvr.clone(), namespace, name };
        if change.deleted {
            self.unclaimed.remove(&key);
            self.pending_changes.lock().remove(&key);
            return Requests::none();
        }
        let changed = if change.initial { TemplateChange::ByControlPlane } else { change.template_change() };
        if changed == TemplateChange::None || !self.is_template(&change.resource, &key) {
            return Requests::none();
        }
        if let Some(pending) = classify_change(change, changed) {
            self.record_pending_change(&key, pending);
        }
        key.into()
    }

    /// Records a change of a template. Of several changes, the strongest takes effect.
    fn record_pending_change(&self, key: &TemplateKey, pending: PendingChange) {
        let mut pending_changes = self.pending_changes.lock();
        let change = pending_changes.entry(key.clone()).or_insert(pending);
        *change = pending.max(*change);
    }

    fn is_template(&self, resource: &Resource, key: &TemplateKey) -> bool {
        let config = &self.context.config;
        let is_authentication_config =
            key.namespace == "kube-system" && key.name == "extension-apiserver-authentication";
        let is_skipped = !key.namespace.is_empty()
            && (is_reserved_namespace(&key.namespace) || config.skipped_namespaces.contains(&key.namespace));
        !is_skipped && !is_authentication_config && !config.skipped_apis.contains(&key.gvr, &resource.kind)
    }

    pub fn enqueue(&self, resource: &Resource, namespace: String, name: String) {
        let key = TemplateKey { gvr: resource.gvr.clone(), namespace, name };
        if self.is_template(resource, &key) {
            self.templates.add(key);
        }
    }
}

impl Controller for ResourceDetector {
    type Key = TemplateKey;
    const NAME: &'static str = "resource detector";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        ResourceDetector {
            context: setup.context(),
            templates: setup.trigger::<Self>(),
            policies: RwLock::default(),
            unclaimed: UnclaimedTemplates::default(),
            pending_changes: Mutex::default(),
        }
    }

    fn watches(_kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![Source::AllOfControlPlane.map(Self::on_template)]
    }

    async fn keys(&self) -> Result<Vec<TemplateKey>, Error> {
        let mut keys = Vec::new();
        for resource in self.template_resources() {
            for NamespacedName { namespace, name } in self.context.keys(&resource).await? {
                let key = TemplateKey { gvr: resource.gvr.clone(), namespace, name };
                keys.extend(Some(key).filter(|key| self.is_template(&resource, key)));
            }
        }
        Ok(keys)
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if cluster.is_control_plane() {
            self.unclaimed.retain(&resource.gvr, keys);
        }
    }

    fn workers(config: &Config) -> usize {
        config.workers.templates
    }

    async fn reconcile(self: Arc<Self>, key: TemplateKey) -> Result<Outcome, Error> {
        // Later changes are left to the next reconciliation.
        let pending = self.pending_changes.lock().remove(&key);
        let result = self.reconcile_template(&key, pending).await;
        if let (Err(_), Some(pending)) = (&result, pending) {
            self.record_pending_change(&key, pending);
        }
        result.map(|()| Outcome::Done)
    }
}

impl ResourceDetector {
    /// Applies the policy that the planner chooses for a template.
    async fn reconcile_template(&self, key: &TemplateKey, pending: Option<PendingChange>) -> Result<(), Error> {
        let context = &self.context;
        let found = match context.cache.resource(&context.control_plane, &key.gvr) {
            Some(resource) => {
                context.get_redacted(&resource, &key.namespace, &key.name).await?.map(|template| (resource, template))
            }
            None => None,
        };
        let Some((resource, template)) = found else {
            self.unclaimed.remove(key);
            return Ok(());
        };
        let template = template.view();
        let is_claimed_elsewhere =
            unstructured::label(template, label::RESOURCE_TEMPLATE_CLAIMED_BY).is_some_and(|by| !by.is_empty());
        if unstructured::is_terminating(template) || is_claimed_elsewhere {
            self.unclaimed.remove(key);
            return Ok(());
        }
        let claim = Claim::from_object(template);
        match claim {
            Claim::None => self.unclaimed.insert(key, unstructured::labels(template)),
            _ => self.unclaimed.remove(key),
        }
        let started_at = Instant::now();
        let records = self.policies_for(&key.namespace);
        let policies: Vec<Policy<'_>> = records.iter().map(|record| record.policy()).collect();
        let (choice, _) = choose(template, &policies, context.config.gates.propagation_policy_preemption);
        context.metrics.record_policy_match(started_at.elapsed());
        match choice {
            Choice::Follow(policy) => {
                let is_chosen = |record: &&Arc<PolicyRecord>| record.is_record_of(&policy);
                let is_newer = |record: &Arc<PolicyRecord>| lazy::is_newer(template, record.resource_version());
                let is_new_policy = || claim == Claim::None && records.iter().find(is_chosen).is_some_and(is_newer);
                let pending = pending.or_else(|| is_new_policy().then_some(PendingChange::Unknown));
                self.apply_policy(key, &resource, template, &policy, None, pending).await
            }
            Choice::Preempt(policy) => {
                self.apply_policy(key, &resource, template, &policy, Some(&claim), pending).await
            }
            Choice::Release => self.release(&resource, template, claim.id()).await,
            Choice::Unselected(_) | Choice::Unmatched => Ok(()),
            Choice::Wait => Err(Error::Waiting("the policy is being deleted".to_owned())),
        }
    }

    /// Claims the template and synchronizes its binding. An event reports the result.
    async fn apply_policy(
        &self,
        key: &TemplateKey,
        resource: &Resource,
        template: &Value,
        policy: &Policy<'_>,
        preempted: Option<&Claim>,
        pending: Option<PendingChange>,
    ) -> Result<(), Error> {
        self.check_dependent_overrides(policy).await?;
        let started_at = Instant::now();
        let applied = match self.claim(resource, template, policy, preempted).await {
            Ok(claimed) => {
                self.unclaimed.remove(key);
                self.sync_binding(claimed.as_ref().unwrap_or(template), policy, pending).await
            }
            Err(error) => Err(error),
        };
        self.context.metrics.record_policy_application(started_at.elapsed(), applied.is_ok());
        let events = &self.context.events;
        match applied {
            Ok(false) => Ok(()),
            Ok(true) => {
                let message = format!("Apply {} succeed", describe(policy));
                events.record(template, Severity::Normal, event::APPLY_POLICY_SUCCEED, message);
                self.record_interpretation(template);
                Ok(())
            }
            Err(error) => {
                if let Some(pending) = pending {
                    self.record_pending_change(key, pending);
                }
                if !error.is_conflict() && !error.is_waiting() {
                    let message = format!("Apply {} failed: {}", describe(policy), error.message());
                    events.record(template, Severity::Warning, event::APPLY_POLICY_FAILED, message);
                }
                Err(error)
            }
        }
    }

    /// Claims a template for a policy, and returns the claimed template. `None` if the policy has claimed it before.
    async fn claim(
        &self,
        resource: &Resource,
        template: &Value,
        policy: &Policy<'_>,
        preempted: Option<&Claim>,
    ) -> Result<Option<Value>, Error> {
        let Some(patch) = claim::patch(template, policy) else { return Ok(None) };
        let claimed = self.context.merge(resource, template, patch).await;
        if let Some(from) = preempted {
            let (preemption, events) = (Preemption { policy, claim: from }, &self.context.events);
            self.context.metrics.preemptions.record(claimed.is_ok());
            match &claimed {
                Ok(_) => {
                    events.record(
                        template,
                        Severity::Normal,
                        event::PREEMPT_POLICY_SUCCEED,
                        preemption.success_message(),
                    );
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    let message = preemption.failure_message(&error.message());
                    events.record(template, Severity::Warning, event::PREEMPT_POLICY_FAILED, message);
                }
            }
        }
        claimed.map(Some)
    }

    async fn check_dependent_overrides(&self, policy: &Policy<'_>) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        let resource =
            if policy.namespace.is_empty() { &kinds.cluster_override_policy } else { &kinds.override_policy };
        for name in &policy.spec.dependent_overrides {
            if !self.context.exists(resource, policy.namespace, name).await? {
                return Err(Error::Waiting(format!("waiting for dependent overrides: {name}")));
            }
        }
        Ok(())
    }

    /// Synchronizes the binding. Returns true if it was written.
    async fn sync_binding(
        &self,
        template: &Value,
        policy: &Policy<'_>,
        pending: Option<PendingChange>,
    ) -> Result<bool, Error> {
        if policy.is_lazy() && pending.is_none() {
            return Ok(false);
        }
        let key = binding_key_of(&self.context, &ObjectIdentity::from_object(template)).await?;
        let resource = self.context.kinds.binding(key.scope());
        let existing = self.context.get_full(resource, &key.namespace, &key.name).await?;
        let replica_facts = self.interpret(template).await?;
        if !lazy::is_activated(policy, pending, template, existing.as_deref(), &replica_facts) {
            return Ok(false);
        }
        let input = BindingInput {
            template,
            policy,
            replica_facts,
            priority: self.priority(template, policy).await?,
            gates: self.context.config.gates,
            template_changed: pending.is_some_and(|pending| pending > PendingChange::Listed),
            new: NewBinding { name: &key.name, permanent_id: &new_id() },
        };
        match binding::plan(&input, existing.as_deref()) {
            BindingPlan::Keep => Ok(false),
            BindingPlan::Create(binding) => self.context.create(resource, &binding).await.map(|_| true),
            BindingPlan::Update(binding) => match self.context.replace(resource, &binding).await {
                Ok(_) => Ok(true),
                Err(error) => {
                    if let Some(existing) = &existing {
                        self.report_quota_rejection(resource, existing, &error).await;
                    }
                    Err(error)
                }
            },
            BindingPlan::WaitForGarbageCollection => Err(Error::Waiting(
                "failed to update binding due to different owner reference UID, will try again later after binding is \
                 garbage collected"
                    .to_owned(),
            )),
        }
    }

    /// Replicas and requirements of the template. A failed interpretation is reported by an event on the template.
    async fn interpret(&self, template: &Value) -> Result<ReplicaFacts, Error> {
        let interpreter = &self.context.interpreter;
        interpreter.replicas(template).await.map_err(|error| {
            let reason = match interpreter.has_components(template) {
                true => event::GET_COMPONENTS_FAILED,
                false => event::GET_REPLICAS_FAILED,
            };
            self.context.events.record(template, Severity::Warning, reason, error.to_string());
            error.into()
        })
    }

    /// Records an event about the interpreted replicas or components of the template, if its kind has any.
    fn record_interpretation(&self, template: &Value) {
        let (interpreter, events) = (&self.context.interpreter, &self.context.events);
        if interpreter.has_components(template) {
            let message = "Get components of resource template successfully.";
            events.record(template, Severity::Normal, event::GET_COMPONENTS_SUCCEED, message);
        } else if interpreter.is_interpreted(template, &InterpreterOperation::InterpretReplica) {
            let message = "Get replicas of resource template successfully.";
            events.record(template, Severity::Normal, event::GET_REPLICAS_SUCCEED, message);
        }
    }

    /// Value of the policy's PriorityClass. `None` for cluster-scoped templates.
    async fn priority(&self, template: &Value, policy: &Policy<'_>) -> Result<Option<i32>, Error> {
        let Some(priority) = &policy.spec.schedule_priority else { return Ok(None) };
        if !self.context.config.gates.priority_based_scheduling || unstructured::namespace(template).is_empty() {
            return Ok(None);
        }
        let name = &priority.priority_class_name;
        let class = self.context.get_redacted(&self.context.kinds.priority_class, "", name).await?;
        let class =
            class.ok_or_else(|| Error::Other(format!("PriorityClass.scheduling.k8s.io \"{name}\" not found")))?;
        Ok(unstructured::integer(class.view(), &["value"]).and_then(|value| i32::try_from(value).ok()))
    }

    /// Removes a claim: first from the binding, then from the template, so that the binding never has a claim that its
    /// template does not have.
    async fn release(&self, resource: &Resource, template: &Value, id: &str) -> Result<(), Error> {
        let key = binding_key_of(&self.context, &ObjectIdentity::from_object(template)).await?;
        let binding_resource = self.context.kinds.binding(key.scope());
        if let Some(binding) = self.context.get_full(binding_resource, &key.namespace, &key.name).await?
            && let Some(patch) = claim::release(&binding, id)
        {
            self.context.merge(binding_resource, &binding, patch).await?;
        }
        if let Some(patch) = claim::release(template, id) {
            self.context.merge(resource, template, patch).await?;
        }
        Ok(())
    }
}

/// Classifies a change for policies with lazy activation. Any change of an unclaimed template counts as a change by the
/// user, so that a policy that matches it takes effect immediately.
fn classify_change(change: &Change, changed: TemplateChange) -> Option<PendingChange> {
    let is_unclaimed = Claim::from_object(change.object()) == Claim::None;
    let is_unknown = change.is_previous_unknown() && unstructured::generation(change.object()) == 0;
    match changed {
        _ if change.initial => Some(PendingChange::Listed),
        _ if is_unclaimed => Some(PendingChange::ByUser),
        TemplateChange::ByUser if change.old.is_none() || is_unknown => Some(PendingChange::Unknown),
        TemplateChange::ByUser => Some(PendingChange::ByUser),
        TemplateChange::None | TemplateChange::ByControlPlane => None,
    }
}

fn describe(policy: &Policy<'_>) -> String {
    match policy.namespace {
        "" => format!("cluster policy({})", policy.name),
        namespace => format!("policy({namespace}/{})", policy.name),
    }
}
