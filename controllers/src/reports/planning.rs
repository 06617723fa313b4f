//! Plans templates after a proposed change. Templates are planned one after another: capacity and quota that one uses
//! are not available to the next, as in the queue of the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crowsnest_api::keys::BindingKey;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::work::{ObjectReference, ResourceBinding, TargetCluster};
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::{Affected, Proposal, Proposed, Reports, Role, Scope};
use crate::Error;
use crate::reports::attaching::Attaching;
use crate::reports::explaining::{parent, priority_of};
use crate::reports::supposing::{AssumedState, Evicted};
use crate::reports::targeting::{Subject, unchanged};
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::Resource;
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::propagation::binding::{self, BindingPlan, Intent, NewBinding};
use crowsnest_plan::propagation::{Choice, Claim, Policy, claim};
use crowsnest_plan::report::{Change, ClusterPlan, PolicyName, PolicyReport, TemplatePlan, replicas_of};
use crowsnest_plan::scheduling::Plan;
use crowsnest_plan::waiting::{self, BindingState, Cause, TemplateState, waits, waits_in};
use crowsnest_plan::whatif::{UNKNOWN_ID, claimed, manifest_of, settle};
use crowsnest_plan::work::construct;

/// Maximum size of the manifests in one response, in bytes. Differences are not limited.
const MOST_MANIFESTS: usize = 32 << 20;

/// A plan that is being computed.
pub struct Planning<'p> {
    pub(super) reports: &'p Reports,
    pub(super) proposal: &'p Proposal,
    /// With the proposed customizations. `None` if there are none.
    interpreter: Option<Interpreter>,
    /// Bytes of manifests that still fit into the response.
    room: AtomicUsize,
    scopes: BTreeMap<String, Arc<Scope>>,
    pub(super) supposed: AssumedState,
    /// Planned bindings.
    pub(super) bindings: BTreeMap<BindingKey, ResourceBinding>,
    pub(super) attaching: Attaching,
    plans: Vec<(Affected, TemplatePlan)>,
}

/// A binding before and after. In `base`, the dependencies are updated as well.
struct Bound<'b> {
    before: Option<&'b Value>,
    base: Option<&'b Value>,
    after: &'b Value,
}

impl Reports {
    /// Starts a plan, with `manifests` in the response or not.
    pub async fn planning<'p>(&'p self, proposal: &'p Proposal, manifests: bool) -> Result<Planning<'p>, Error> {
        Ok(Planning {
            reports: self,
            proposal,
            interpreter: self.proposed_interpreter(proposal).await?,
            room: AtomicUsize::new(if manifests { MOST_MANIFESTS } else { 0 }),
            scopes: BTreeMap::new(),
            supposed: self.suppose(proposal)?,
            bindings: BTreeMap::new(),
            attaching: Attaching::default(),
            plans: Vec::new(),
        })
    }
}

impl Planning<'_> {
    /// Plans each template, with a flag that is true if the caller may read its content. Deleted templates are
    /// planned first, so that the others can use their quota. A template that was planned before is planned again.
    pub async fn plan(&mut self, templates: &[(Affected, bool)]) -> Result<(), Error> {
        let goes = |(one, _): &&(Affected, bool)| {
            let given = self.proposal.find(&one.resource, &one.namespace, &one.name);
            given.is_some_and(|given| given.after.is_none())
        };
        let (going, staying): (Vec<_>, Vec<_>) = templates.iter().partition(goes);
        for (affected, readable) in going.into_iter().chain(staying) {
            let Some(plan) = self.plan_template(affected, *readable).await? else { continue };
            match self.plans.iter_mut().find(|(known, _)| known == affected) {
                Some((_, known)) => *known = plan,
                None => self.plans.push((affected.clone(), plan)),
            }
        }
        Ok(())
    }

    /// The plans, and notices for the user.
    pub async fn finish(mut self) -> Result<(Vec<TemplatePlan>, Vec<String>), Error> {
        let mut notices = self.reports.notices(&mut self.supposed, self.proposal).await?;
        let plans: Vec<TemplatePlan> = self.plans.into_iter().map(|(_, plan)| plan).collect();
        let takes_room = |plan: &&TemplatePlan| plan.clusters.iter().any(|cluster| cluster.replicas.is_some());
        if plans.iter().filter(takes_room).count() > 1 {
            let text = match self.reports.context.config.gates.scheduling_overcommit_protection {
                true => "templates are planned in the listed order: capacity used by one is not available to the next",
                false => "each template is planned independently: capacity used by the others is not considered",
            };
            notices.push(text.to_owned());
        }
        Ok((plans, notices))
    }

    async fn plan_template(&mut self, affected: &Affected, readable: bool) -> Result<Option<TemplatePlan>, Error> {
        let Affected { resource, namespace, name } = affected;
        let given = self.proposal.find(resource, namespace, name);
        let before = match given {
            Some(given) => given.before.clone(),
            None => self.reports.context.get_full(resource, namespace, name).await?,
        };
        let goes = given.is_some_and(|given| given.after.is_none());
        // It was deleted in the meantime.
        let Some(after) = given.and_then(|given| given.after.as_ref()).or(before.as_deref()) else { return Ok(None) };
        let planned = match goes {
            true => self.plan_deleted(after, readable).await,
            false => self.plan_one(resource, (before.as_deref(), after), readable).await,
        };
        match planned {
            Ok(plan) => Ok(Some(plan)),
            Err(error @ (Error::Cache(_) | Error::Fleet(_) | Error::Estimator(_))) => Err(error),
            Err(error) => Ok(Some(TemplatePlan { message: Some(error.message()), ..nothing_yet(after) })),
        }
    }

    async fn scope(&mut self, namespace: &str) -> Result<Arc<Scope>, Error> {
        if let Some(known) = self.scopes.get(namespace) {
            return Ok(Arc::clone(known));
        }
        let scope = Arc::new(self.reports.scope(namespace, self.proposal).await?);
        self.scopes.insert(namespace.to_owned(), Arc::clone(&scope));
        Ok(scope)
    }

    pub(super) fn interpreter(&self) -> &Interpreter {
        self.interpreter.as_ref().unwrap_or(&self.reports.context.interpreter)
    }

    async fn plan_one(
        &mut self,
        resource: &Resource,
        (before, template): (Option<&Value>, &Value),
        readable: bool,
    ) -> Result<TemplatePlan, Error> {
        let (reports, namespace) = (self.reports, unstructured::namespace(template));
        let scope = self.scope(namespace).await?;
        let binding_before = reports.binding(before.unwrap_or(template)).await?;
        let key = reports.binding_key(&ObjectIdentity::of(template)).await?;
        let base = self.attaching.attached(&key).or_else(|| binding_before.clone());
        let policies: Vec<Policy<'_>> = scope.policies.iter().map(|object| object.policy()).collect();
        let preemption = reports.context.config.gates.propagation_policy_preemption;
        let settled = settle(template, &policies, |policy| self.proposes(policy), preemption);
        let mut plan = nothing_yet(template);
        plan.policy_before = before.and_then(claiming_policy);
        plan.policies = PolicyReport::all(&settled.considered);
        let policy = match &settled.choice {
            Choice::Follow(policy) | Choice::Preempt(policy) => Some(policy),
            _ => None,
        };
        plan.policy = policy.map(PolicyName::of);
        let claim_before = Claim::of(template);
        let template = settled.unclaimed.as_ref().unwrap_or(template);
        let missing = policy.map(|policy| scope.overrides.missing(policy)).unwrap_or_default();
        // A policy claims no template until its overrides exist.
        let (template, rebound) = match policy.filter(|_| missing.is_empty()) {
            None => (template.clone(), None),
            Some(policy) => {
                let template = claimed(template, policy);
                let rebound = self.rebind(policy, &template, base.as_deref(), &key).await?;
                (template, Some(rebound))
            }
        };
        // Changes of a policy with lazy activation take effect with the next change of the template, and a proposed
        // template is such a change.
        let is_given = self.proposal.find(resource, namespace, unstructured::name(&template)).is_some();
        let waits_for_template = policy.is_some_and(|policy| policy.is_lazy()) && !is_given;
        let never_propagated = reports.is_never_propagated(resource, namespace, unstructured::name(&template));
        let reported_binding = rebound.as_ref().filter(|_| waits_for_template || is_blocked(rebound.as_ref()));
        // Dependencies need no policy.
        let is_attached = |binding: &Arc<Value>| unstructured::at(binding, &["spec", "requiredBy"]).is_some();
        if settled.choice != Choice::Unmatched || !base.as_ref().is_some_and(is_attached) {
            plan.waiting = waiting::of_template(&TemplateState {
                template: &template,
                never_propagated,
                choice: &settled.choice,
                missing_overrides: &missing,
                binding: reported_binding,
            });
        }
        let binding = match rebound {
            Some(BindingPlan::Create(binding) | BindingPlan::Update(binding)) if plan.waiting.is_empty() => {
                Some(Arc::new(binding))
            }
            _ => base.clone().map(|base| release_from_policy(base, &claim_before, settled.unclaimed.is_some())),
        };
        if let Some(binding) = binding {
            let bound = Bound { before: binding_before.as_deref(), base: base.as_deref(), after: &binding };
            self.place(&scope, &bound, &template, readable, &mut plan).await?;
        }
        plan.change = match (&binding_before, plan.clusters.iter().any(|one| one.change != Change::Unchanged)) {
            (_, false) => Change::Unchanged,
            (None, true) => Change::Added,
            (Some(_), true) => Change::Changed,
        };
        Ok(plan)
    }

    /// Plans a deleted template: its binding and Works are deleted as well.
    async fn plan_deleted(&mut self, template: &Value, readable: bool) -> Result<TemplatePlan, Error> {
        let reports = self.reports;
        let mut plan = nothing_yet(template);
        plan.policy_before = claiming_policy(template);
        let Some(binding) = reports.binding(template).await? else { return Ok(plan) };
        let typed: ResourceBinding = decode(&binding)?;
        reports.read_quotas(&mut self.supposed, self.proposal, unstructured::namespace(template)).await?;
        let key = BindingKey::of(&binding);
        self.supposed.give_back(&typed);
        self.supposed.imagined.forget(&key);
        self.attaching.went(&key);
        let stays = typed.spec.preserve_resources_on_deletion.unwrap_or_default();
        let mut replicas: BTreeMap<String, Option<i32>> =
            reports.works_in(&binding).await?.into_iter().map(|cluster| (cluster, None)).collect();
        let targets = construct::targets(&typed.spec);
        replicas.extend(targets.iter().map(|target| (target.name.clone(), replicas_of(target))));
        let spec = typed.spec.clone();
        let subject =
            Subject { template, spec_before: Some(typed.spec), binding: &binding, spec, evicted: Vec::new(), readable };
        for (name, replicas_before) in replicas {
            let work = reports.work(&name, &binding, template).await?;
            let manifest = work.as_ref().and_then(|work| manifest_of(work)).map(|one| subject.shown(one.clone()));
            plan.clusters.push(ClusterPlan {
                change: Change::Removed,
                replicas_before,
                manifest_before: manifest.filter(|one| self.has_room(one)),
                message: stays
                    .then(|| "the object is kept in the cluster: preserveResourcesOnDeletion is set".to_owned()),
                ..unchanged(&name)
            });
        }
        plan.change = Change::Removed;
        Ok(plan)
    }

    /// The binding as the detector would write it.
    async fn rebind(
        &self,
        policy: &Policy<'_>,
        template: &Value,
        existing: Option<&Value>,
        key: &BindingKey,
    ) -> Result<BindingPlan, Error> {
        let intent = Intent {
            template,
            policy,
            interpreted: self.interpreter().replicas(template).await?,
            priority: priority_of(existing),
            gates: self.reports.context.config.gates,
            template_changed: true,
            new: NewBinding { name: &key.name, permanent_id: UNKNOWN_ID },
        };
        Ok(binding::plan(&intent, existing))
    }

    /// Schedules the planned binding, and plans what each cluster receives.
    async fn place(
        &mut self,
        scope: &Scope,
        bound: &Bound<'_>,
        template: &Value,
        readable: bool,
        plan: &mut TemplatePlan,
    ) -> Result<(), Error> {
        let (reports, binding, key) = (self.reports, bound.after, BindingKey::of(bound.after));
        let before = bound.before.map(decode::<ResourceBinding>).transpose()?;
        let mut typed: ResourceBinding = decode(binding)?;
        plan.required_by = typed.spec.required_by.iter().map(parent).collect();
        reports.read_quotas(&mut self.supposed, self.proposal, &key.namespace).await?;
        let recorded = self.bindings.get(&key).or(before.as_ref()).cloned();
        // If a quota rejects the requests of the template, nothing is scheduled and everything is kept.
        if let Err(refusal) = self.supposed.admit(recorded.as_ref(), &typed) {
            plan.waiting.push(waits(Cause::QuotaExceeded, refusal.message));
            let base = bound.base.map(decode::<ResourceBinding>).transpose()?;
            let targets = base.map(|base| construct::targets(&base.spec)).unwrap_or_default();
            let row = |target: &TargetCluster| {
                let replicas = replicas_of(target);
                ClusterPlan { replicas_before: replicas, replicas, ..unchanged(&target.name) }
            };
            plan.clusters = targets.iter().map(row).collect();
            return Ok(());
        }
        let evicted = self.schedule(binding, template, &mut typed, plan).await?;
        plan.waiting.extend(self.suspensions(binding, &typed));
        plan.dependencies = self.attach(binding, template, &typed).await?;
        self.bindings.insert(key, typed.clone());
        let spec_before = before.map(|before| before.spec);
        let subject = Subject { template, spec_before, binding, spec: typed.spec, evicted, readable };
        let targets = construct::targets(&subject.spec);
        for target in &targets {
            let cluster = self.plan_target(&subject, target, &targets, &scope.overrides, plan).await?;
            plan.clusters.push(cluster);
        }
        let works_in = match bound.before {
            Some(binding) => reports.works_in(binding).await?,
            None => Vec::new(),
        };
        plan.clusters.extend(self.plan_leaving(&subject, &targets, works_in, plan.scheduling.as_ref()).await?);
        Ok(())
    }

    /// Applies taints, rebalancers and the scheduler to the binding. Returns the clusters from which taints evict it.
    async fn schedule(
        &mut self,
        binding: &Value,
        template: &Value,
        typed: &mut ResourceBinding,
        plan: &mut TemplatePlan,
    ) -> Result<Vec<Evicted>, Error> {
        let (reports, key) = (self.reports, BindingKey::of(binding));
        let admitted = typed.clone();
        let evicted = reports.evict(&self.supposed, &mut typed.spec).await?;
        for one in &evicted {
            if let Evicted::At(cluster, at) = one {
                let message = format!("will be evicted from {cluster} at {at}, when tolerationSeconds end");
                plan.waiting.push(waits_in(cluster, Cause::Eviction, message));
            }
        }
        if let Some(at) = self.supposed.rebalances(template, &typed.spec) {
            typed.spec.reschedule_triggered_at = Some(at);
        }
        if typed.spec.placement.is_none() {
            return Ok(evicted);
        }
        let (decided, report) = reports.schedule(binding, typed, Some(&mut self.supposed.imagined)).await?;
        plan.scheduling = Some(report);
        // Bindings of other schedulers and suspended bindings keep their clusters.
        let clusters = match decided {
            Plan::Schedule { clusters, .. } => clusters,
            Plan::Clear { .. } => Vec::new(),
            Plan::Keep | Plan::Fail { .. } => return Ok(evicted),
        };
        if reports.scheduling.is_ours(binding, &typed.spec) {
            let mut placed = typed.clone();
            placed.spec.clusters.clone_from(&clusters);
            match self.supposed.admit(Some(&admitted), &placed) {
                Ok(()) => {
                    self.supposed.imagined.give(&key, typed, &clusters);
                    *typed = placed;
                }
                Err(refusal) => plan.waiting.push(waits(Cause::QuotaExceeded, refusal.message)),
            }
        }
        Ok(evicted)
    }

    /// Reasons in the binding itself that block it, except those that the plan decides.
    fn suspensions(&self, binding: &Value, typed: &ResourceBinding) -> Vec<waiting::Waiting> {
        let state = BindingState {
            binding,
            typed,
            scheduler_name: &self.reports.context.config.scheduler_name,
            is_ours: true,
            is_agreed: true,
            works_in: &[],
        };
        let stays = |cause: Cause| matches!(cause, Cause::SchedulingSuspended | Cause::OtherScheduler);
        waiting::of_binding(&state).into_iter().filter(|one| stays(one.cause)).collect()
    }

    /// Reserves space for a manifest in the response. Returns false if there is none left.
    pub(super) fn has_room(&self, manifest: &Value) -> bool {
        let room = self.room.load(Ordering::Relaxed);
        let left = if room == 0 { None } else { room.checked_sub(manifest.to_string().len()) };
        if let Some(left) = left {
            self.room.store(left, Ordering::Relaxed);
        }
        left.is_some()
    }

    fn proposes(&self, policy: &Policy<'_>) -> bool {
        let is_it = |one: &Proposed| {
            unstructured::namespace(one.seen()) == policy.namespace && unstructured::name(one.seen()) == policy.name
        };
        self.proposal.of(Role::Policy).any(is_it)
    }
}

/// The binding, released from its policy if that is deleted.
fn release_from_policy(binding: Arc<Value>, claim: &Claim, goes: bool) -> Arc<Value> {
    match claim::release(&binding, claim.id()).filter(|_| goes) {
        None => binding,
        Some(patch) => {
            let mut released = Arc::unwrap_or_clone(binding);
            json_patch::merge(&mut released, &patch);
            Arc::new(released)
        }
    }
}

/// The policy that claims a template.
fn claiming_policy(template: &Value) -> Option<PolicyName> {
    match Claim::of(template) {
        Claim::None => None,
        Claim::Policy { namespace, name, .. } => Some(PolicyName::propagation(&namespace, &name)),
        Claim::ClusterPolicy { name, .. } => Some(PolicyName::propagation("", &name)),
    }
}

/// True if the binding waits for something that the plan cannot change.
fn is_blocked(binding: Option<&BindingPlan>) -> bool {
    matches!(binding, Some(BindingPlan::WaitForGarbageCollection))
}

fn nothing_yet(template: &Value) -> TemplatePlan {
    TemplatePlan {
        template: ObjectReference::of(template),
        change: Change::Unchanged,
        policy_before: None,
        policy: None,
        policies: Vec::new(),
        scheduling: None,
        clusters: Vec::new(),
        dependencies: Vec::new(),
        required_by: Vec::new(),
        waiting: Vec::new(),
        message: None,
    }
}
