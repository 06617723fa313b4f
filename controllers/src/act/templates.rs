//! The detector: templates and policies become bindings.
//!
//! Every deletable resource of the control plane is collected; a changed template is matched with the policies, claimed
//! and bound. A changed policy only asks for the templates it claims or could claim.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::Arc;

use crowsnest_api::constants::{event, finalizer, label};
use crowsnest_api::names::{Gvr, binding_name, is_reserved_namespace};
use crowsnest_api::policy::PropagationSpec;
use crowsnest_fleet::ApiResources;
use futures::TryStreamExt;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use serde_json::Value;

use super::context::{Context, decode, new_id};
use super::events::Severity;
use super::objects::{Resource, Target};
use super::queue::{Outcome, Queue};
use super::world::{Cached, Change};
use crate::Error;
use crate::plan::object;
use crate::plan::propagation::binding::{self, BindingPlan, Intent};
use crate::plan::propagation::change::Change as TemplateChange;
use crate::plan::propagation::{Choice, Policy, choose, claim};
use crate::plan::selector::{best_precision, precision_of};

/// A template in the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateKey {
    pub gvr: Gvr,
    pub namespace: String,
    pub name: String,
}

/// A policy; the namespace is empty for a cluster-wide one.
type PolicyKey = (String, String);

struct PolicyRecord {
    object: Cached,
    spec: PropagationSpec,
}

impl PolicyRecord {
    fn policy(&self) -> Policy<'_> {
        let policy = self.object.view();
        let namespace = object::namespace(policy);
        let id = match namespace {
            "" => label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID,
            _ => label::PROPAGATION_POLICY_PERMANENT_ID,
        };
        Policy {
            namespace,
            name: object::name(policy),
            permanent_id: object::label(policy, id).unwrap_or_default(),
            terminating: object::is_terminating(policy),
            spec: &self.spec,
        }
    }
}

/// The detector's loops.
pub struct Templates {
    context: Arc<Context>,
    pub templates: Queue<TemplateKey>,
    pub policies: Queue<PolicyKey>,
    known_policies: RwLock<BTreeMap<PolicyKey, Arc<PolicyRecord>>>,
    /// Templates whose user changed them since they were last looked at.
    changed: Mutex<HashSet<TemplateKey>>,
}

/// API groups whose objects steer the fleet and are no templates.
const OWN_GROUPS: [&str; 10] = [
    "cluster.karmada.io",
    "policy.karmada.io",
    "work.karmada.io",
    "config.karmada.io",
    "networking.karmada.io",
    "autoscaling.karmada.io",
    "remedy.karmada.io",
    "apps.karmada.io",
    "storage.crowsnest.io",
    "events.k8s.io",
];

pub(super) fn is_template_resource(gvr: &Gvr) -> bool {
    let own = OWN_GROUPS.contains(&&*gvr.group);
    let event = gvr.group.is_empty() && &*gvr.resource == "events";
    let lease = &*gvr.group == "coordination.k8s.io" && &*gvr.resource == "leases";
    !own && !event && !lease
}

impl Templates {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Templates {
            context,
            templates: Queue::new("templates"),
            policies: Queue::new("policies"),
            known_policies: RwLock::default(),
            changed: Mutex::default(),
        })
    }

    /// Starts collecting what became served since the last look, and stops what isn't any more.
    pub fn follow(&self, served: &ApiResources) {
        let control_plane = &self.context.control_plane;
        let mut wanted: HashSet<Gvr> = HashSet::new();
        for resource in served.preferred() {
            let usable = resource.is_listable() && resource.verbs.contains("delete");
            if usable && is_template_resource(&resource.gvr) {
                wanted.insert(resource.gvr.clone());
                let collected = Resource {
                    gvr: resource.gvr.clone(),
                    kind: resource.kind.clone(),
                    namespaced: resource.namespaced,
                };
                self.context.world.collect(control_plane, &collected);
            }
        }
        let unavailable = |gvr: &Gvr| served.stale.contains(&gvr.api_version());
        for resource in self.context.world.resources(control_plane) {
            let gone = is_template_resource(&resource.gvr) && !wanted.contains(&resource.gvr);
            if gone && !unavailable(&resource.gvr) {
                self.context.world.forget_resource(control_plane, &resource.gvr);
            }
        }
    }

    pub fn on_change(&self, change: &Change) {
        let gvr = &change.resource.gvr;
        let kinds = &self.context.kinds;
        if *gvr == kinds.propagation_policy.gvr || *gvr == kinds.cluster_propagation_policy.gvr {
            self.on_policy(change);
        } else if *gvr == kinds.override_policy.gvr || *gvr == kinds.cluster_override_policy.gvr {
            self.on_override(change);
        } else if is_template_resource(gvr) {
            self.on_template(change);
        }
    }

    fn on_policy(&self, change: &Change) {
        let key = change.key();
        let Some(policy) = change.current() else {
            self.known_policies.write().remove(&key);
            return;
        };
        match PropagationSpec::deserialize(policy.get("spec").unwrap_or(&Value::Null)) {
            Ok(spec) => {
                let record = PolicyRecord { object: change.object.clone(), spec };
                self.known_policies.write().insert(key.clone(), Arc::new(record));
            }
            Err(error) => tracing::warn!(?key, %error, "policy cannot be read"),
        }
        if change.is_marked() {
            self.policies.add(key);
        }
    }

    /// Policies are only these.
    pub fn told_again(&self, resource: &Resource, keys: &HashSet<PolicyKey>) {
        let kinds = &self.context.kinds;
        if *resource == kinds.propagation_policy || *resource == kinds.cluster_propagation_policy {
            let stays = |key: &PolicyKey| key.0.is_empty() == resource.namespaced || keys.contains(key);
            self.known_policies.write().retain(|key, _| stays(key));
        }
    }

    /// Policies that wait for an override look again when one comes.
    fn on_override(&self, change: &Change) {
        let name = object::name(change.object());
        let known = self.known_policies.read();
        let waiting = known.iter().filter(|(_, record)| record.spec.dependent_overrides.iter().any(|on| on == name));
        waiting.for_each(|(key, _)| self.policies.add(key.clone()));
    }

    fn on_template(&self, change: &Change) {
        let (namespace, name) = change.key();
        let key = TemplateKey { gvr: change.resource.gvr.clone(), namespace, name };
        if change.deleted || !self.is_template(&change.resource, &key) {
            return;
        }
        let changed = if change.initial { TemplateChange::ByControlPlane } else { change.of_template() };
        if changed == TemplateChange::ByUser {
            self.changed.lock().insert(key.clone());
        }
        if changed != TemplateChange::None {
            self.templates.add(key);
        }
    }

    fn is_template(&self, resource: &Resource, key: &TemplateKey) -> bool {
        let config = &self.context.config;
        let authentication = key.namespace == "kube-system" && key.name == "extension-apiserver-authentication";
        let skipped = !key.namespace.is_empty()
            && (is_reserved_namespace(&key.namespace) || config.skipped_namespaces.contains(&key.namespace));
        !skipped && !authentication && !config.skipped_apis.contains(&key.gvr, &resource.kind)
    }

    /// Everything is looked at again.
    pub async fn full_pass(&self) -> Result<(), Error> {
        for resource in self.context.world.resources(&self.context.control_plane) {
            if is_template_resource(&resource.gvr) {
                for (namespace, name) in self.context.keys(&resource).await? {
                    self.ask(&resource, namespace, name);
                }
            }
        }
        self.known_policies.read().keys().for_each(|key| self.policies.add(key.clone()));
        Ok(())
    }

    fn policies_for(&self, namespace: &str) -> Vec<Arc<PolicyRecord>> {
        let known = self.known_policies.read();
        let own = known.iter().filter(|((of, _), _)| of.is_empty() || (of == namespace && !namespace.is_empty()));
        own.map(|(_, record)| Arc::clone(record)).collect()
    }

    fn resource_of(&self, gvr: &Gvr) -> Option<Arc<Resource>> {
        let resources = self.context.world.resources(&self.context.control_plane);
        resources.into_iter().find(|resource| resource.gvr == *gvr)
    }

    pub async fn reconcile_template(self: Arc<Self>, key: TemplateKey) -> Result<Outcome, Error> {
        let Some(resource) = self.resource_of(&key.gvr) else { return Ok(Outcome::Done) };
        let Some(template) = self.context.glance(&resource, &key.namespace, &key.name).await? else {
            self.changed.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let template = template.view();
        let claimed_elsewhere =
            object::label(template, label::RESOURCE_TEMPLATE_CLAIMED_BY).is_some_and(|by| !by.is_empty());
        if object::is_terminating(template) || claimed_elsewhere {
            return Ok(Outcome::Done);
        }
        let records = self.policies_for(&key.namespace);
        let policies: Vec<Policy<'_>> = records.iter().map(|record| record.policy()).collect();
        let (choice, _) = choose(template, &policies, self.context.config.gates.propagation_policy_preemption);
        match choice {
            Choice::Follow(policy) => self.apply(&key, &resource, template, &policy, None).await?,
            Choice::Preempt(policy) => {
                let loser = claim::Claim::of(template);
                self.apply(&key, &resource, template, &policy, Some(&loser)).await?;
            }
            Choice::Release => {
                let id = claim::Claim::of(template).id().to_owned();
                self.release(&resource, template, &id).await?;
            }
            Choice::Unselected(_) | Choice::Unmatched => {}
            Choice::Wait => return Err(Error::Waiting("the policy is being deleted".to_owned())),
        }
        Ok(Outcome::Done)
    }

    /// Claims the template and brings its binding up to date, with an event for either end.
    async fn apply(
        &self,
        key: &TemplateKey,
        resource: &Resource,
        template: &Value,
        policy: &Policy<'_>,
        preempted: Option<&claim::Claim>,
    ) -> Result<(), Error> {
        self.check_dependent_overrides(policy).await?;
        let claimed = match claim::patch(template, policy) {
            None => None,
            Some(patch) => Some(self.context.merge(resource, template, patch).await?),
        };
        let template = claimed.as_ref().unwrap_or(template);
        if let Some(claim::Claim::Policy { name, .. } | claim::Claim::ClusterPolicy { name, .. }) = preempted {
            let message =
                format!("Propagation policy({}) preempted propagation policy({name}) successfully", policy.name);
            self.context.events.note(template, Severity::Normal, event::PREEMPT_POLICY_SUCCEED, message);
        }
        let by_user = self.changed.lock().remove(key);
        if policy.is_lazy() && !by_user {
            return Ok(());
        }
        match self.bind(template, policy, by_user).await {
            Ok(changed) => {
                if changed {
                    let message = format!("Apply {} succeed", describe(policy));
                    self.context.events.note(template, Severity::Normal, event::APPLY_POLICY_SUCCEED, message);
                }
                Ok(())
            }
            Err(error) => {
                if by_user {
                    self.changed.lock().insert(key.clone());
                }
                if !error.is_conflict() && !error.is_waiting() {
                    let message = format!("Apply {} failed: {}", describe(policy), error.message());
                    self.context.events.note(template, Severity::Warning, event::APPLY_POLICY_FAILED, message);
                }
                Err(error)
            }
        }
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

    /// Writes the binding; whether there was anything to write.
    async fn bind(&self, template: &Value, policy: &Policy<'_>, template_changed: bool) -> Result<bool, Error> {
        let resource = self.context.kinds.binding(object::namespace(template));
        let name = binding_name(object::kind(template), object::name(template));
        let existing = self.context.get(resource, object::namespace(template), &name).await?;
        let intent = Intent {
            template,
            policy,
            interpreted: self.context.interpreter.replicas(template)?,
            priority: self.priority(policy).await?,
            gates: self.context.config.gates,
            template_changed,
            new_permanent_id: &new_id(),
        };
        match binding::plan(&intent, existing.as_deref()) {
            BindingPlan::Keep => Ok(false),
            BindingPlan::Create(binding) => self.context.create(resource, &binding).await.map(|_| true),
            BindingPlan::Update(binding) => self.context.replace(resource, &binding).await.map(|_| true),
            BindingPlan::WaitForGarbageCollection => Err(Error::Waiting(
                "failed to update binding due to different owner reference UID, will try again later after binding is \
                 garbage collected"
                    .to_owned(),
            )),
        }
    }

    /// The value of the PriorityClass the policy names.
    async fn priority(&self, policy: &Policy<'_>) -> Result<Option<i32>, Error> {
        let Some(wanted) = &policy.spec.schedule_priority else { return Ok(None) };
        if !self.context.config.gates.priority_based_scheduling {
            return Ok(None);
        }
        let target = Target::new(&self.context.kinds.priority_class, "", &wanted.priority_class_name);
        let class = self.context.objects.get(target).await?;
        let class = class.ok_or_else(|| {
            Error::Apply(format!("priorityclasses.scheduling.k8s.io \"{}\" not found", wanted.priority_class_name))
        })?;
        Ok(object::integer(&class, &["value"]).and_then(|value| i32::try_from(value).ok()))
    }

    /// Removes a claim, from the binding first so that it never follows a policy its template doesn't.
    async fn release(&self, resource: &Resource, template: &Value, id: &str) -> Result<(), Error> {
        let name = binding_name(object::kind(template), object::name(template));
        let binding_resource = self.context.kinds.binding(object::namespace(template));
        if let Some(binding) = self.context.get(binding_resource, object::namespace(template), &name).await?
            && let Some(patch) = claim::release(&binding, id)
        {
            self.context.merge(binding_resource, &binding, patch).await?;
        }
        if let Some(patch) = claim::release(template, id) {
            self.context.merge(resource, template, patch).await?;
        }
        Ok(())
    }

    pub async fn reconcile_policy(self: Arc<Self>, key: PolicyKey) -> Result<Outcome, Error> {
        let Some(record) = self.known_policies.read().get(&key).cloned() else { return Ok(Outcome::Done) };
        let policy = record.policy();
        let id_label = match policy.namespace {
            "" => label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID,
            _ => label::PROPAGATION_POLICY_PERMANENT_ID,
        };
        let claimed = self.claimed_by(id_label, policy.permanent_id).await?;
        if policy.terminating {
            for (resource, template) in &claimed {
                self.release(resource, template.view(), policy.permanent_id).await?;
            }
            let kinds = &self.context.kinds;
            let (resource, finalizer) = match policy.namespace {
                "" => (&kinds.cluster_propagation_policy, finalizer::CLUSTER_PROPAGATION_POLICY_CONTROLLER),
                _ => (&kinds.propagation_policy, finalizer::PROPAGATION_POLICY_CONTROLLER),
            };
            self.context.remove_finalizer(resource, record.object.view(), finalizer).await?;
            return Ok(Outcome::Done);
        }
        for (resource, template) in &claimed {
            let template = template.view();
            if best_precision(&policy.spec.resource_selectors, template).is_none() {
                self.release(resource, template, policy.permanent_id).await?;
            } else {
                self.ask(resource, object::namespace(template).to_owned(), object::name(template).to_owned());
            }
        }
        self.ask_for_selected(&policy).await?;
        Ok(Outcome::Done)
    }

    async fn claimed_by(&self, id_label: &str, id: &str) -> Result<Vec<(Arc<Resource>, Cached)>, Error> {
        let resources = self.context.world.resources(&self.context.control_plane);
        let mut claimed = Vec::new();
        for resource in resources.into_iter().filter(|resource| is_template_resource(&resource.gvr)) {
            let templates = self.context.with_id(&resource, id_label, id).await?;
            claimed.extend(templates.into_iter().map(|template| (Arc::clone(&resource), template)));
        }
        Ok(claimed)
    }

    fn ask(&self, resource: &Resource, namespace: String, name: String) {
        let key = TemplateKey { gvr: resource.gvr.clone(), namespace, name };
        if self.is_template(resource, &key) {
            self.templates.add(key);
        }
    }

    /// Asks for every template a policy selects; each decides for itself whether that changes anything.
    async fn ask_for_selected(&self, policy: &Policy<'_>) -> Result<(), Error> {
        let resources = self.context.world.resources(&self.context.control_plane);
        for selector in &policy.spec.resource_selectors {
            let of_kind = |resource: &&Arc<Resource>| {
                resource.kind == selector.kind && resource.gvr.api_version() == selector.api_version
            };
            let Some(resource) = resources.iter().find(of_kind) else { continue };
            let namespace = match (policy.namespace, selector.namespace.as_str()) {
                ("", "") => None,
                ("", namespace) | (namespace, _) => Some(namespace),
            };
            let mut templates = pin!(self.context.stream(resource, namespace));
            while let Some(template) = templates.try_next().await? {
                let template = template.view();
                if precision_of(selector, template).is_some() {
                    self.ask(resource, object::namespace(template).to_owned(), object::name(template).to_owned());
                }
            }
        }
        Ok(())
    }
}

fn describe(policy: &Policy<'_>) -> String {
    match policy.namespace {
        "" => format!("cluster policy({})", policy.name),
        namespace => format!("policy({namespace}/{})", policy.name),
    }
}

/// The template a binding refers to, with everything in it.
pub async fn template_of(context: &Context, binding: &Value) -> Result<Option<(Resource, Arc<Value>)>, Error> {
    let reference: crowsnest_api::work::ObjectReference =
        decode(object::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null))?;
    let resource = match context.catalog.find(&context.control_plane, &reference.api_version, &reference.kind).await {
        Ok(resource) => resource,
        Err(Error::UnknownKind { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    if context.world.is_synced(&context.control_plane, &resource.gvr) {
        let template = context.get(&resource, &reference.namespace, &reference.name).await?;
        return Ok(template.map(|template| (resource, template)));
    }
    let live = context.objects.get(Target::new(&resource, &reference.namespace, &reference.name)).await?;
    Ok(live.map(|template| (resource, Arc::new(template))))
}
