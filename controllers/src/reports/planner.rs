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

use super::{AffectedTemplate, ApplicablePolicies, Proposal, ProposedObject, Reports, Role};
use crate::Error;
use crate::reports::assumed_state::{AssumedState, TaintEviction};
use crate::reports::attached_bindings::AttachedBindings;
use crate::reports::cluster_plan::{PlannedTemplate, unchanged_cluster};
use crate::reports::explanation::{parent_reference, priority_of};
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::Resource;
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::propagation::binding::{self, BindingInput, BindingPlan, NewBinding};
use crowsnest_plan::propagation::{Choice, Claim, Policy, claim};
use crowsnest_plan::report::{Change, ClusterPlan, PolicyName, PolicyReport, TemplatePlan, target_replicas};
use crowsnest_plan::scheduling::Plan;
use crowsnest_plan::waiting::{self, BindingState, Cause, TemplateState, WaitReason};
use crowsnest_plan::whatif::{UNKNOWN_ID, manifest_of, predict_choice, with_claim};
use crowsnest_plan::work::construct;

/// Maximum size of the manifests in one response, in bytes. Differences are not limited.
const MAX_MANIFEST_BYTES: usize = 32 << 20;

/// Computes the plan of a proposal.
pub struct Planner<'p> {
    pub(super) reports: &'p Reports,
    pub(super) proposal: &'p Proposal,
    /// Interpreter with the proposed customizations. `None` if there are none.
    interpreter: Option<Interpreter>,
    /// Bytes of manifests that still fit into the response.
    remaining_bytes: AtomicUsize,
    applicable_policies: BTreeMap<String, Arc<ApplicablePolicies>>,
    pub(super) assumed: AssumedState,
    /// Planned bindings.
    pub(super) bindings: BTreeMap<BindingKey, ResourceBinding>,
    pub(super) attached_bindings: AttachedBindings,
    plans: Vec<(AffectedTemplate, TemplatePlan)>,
}

/// Versions of a binding: `before` is stored, `base` is `before` with the planned changes of dependencies, and `after`
/// is the planned one.
struct BindingVersions<'b> {
    before: Option<&'b Value>,
    base: Option<&'b Value>,
    after: &'b Value,
}

impl Reports {
    /// Creates a planner for a proposal. With `manifests`, plans contain manifests.
    pub async fn planner<'p>(&'p self, proposal: &'p Proposal, manifests: bool) -> Result<Planner<'p>, Error> {
        Ok(Planner {
            reports: self,
            proposal,
            interpreter: self.proposed_interpreter(proposal).await?,
            remaining_bytes: AtomicUsize::new(if manifests { MAX_MANIFEST_BYTES } else { 0 }),
            applicable_policies: BTreeMap::new(),
            assumed: self.assume_state(proposal)?,
            bindings: BTreeMap::new(),
            attached_bindings: AttachedBindings::default(),
            plans: Vec::new(),
        })
    }
}

impl Planner<'_> {
    /// Plans each template, with a flag that is true if the caller may read its content. Deleted templates are
    /// planned first, so that the others can use their quota. A template that was planned before is planned again.
    pub async fn plan(&mut self, templates: &[(AffectedTemplate, bool)]) -> Result<(), Error> {
        let is_deleted = |(template, _): &&(AffectedTemplate, bool)| {
            let proposed = self.proposal.find(&template.resource, &template.namespace, &template.name);
            proposed.is_some_and(|proposed| proposed.after.is_none())
        };
        let (deleted, others): (Vec<_>, Vec<_>) = templates.iter().partition(is_deleted);
        for (affected, readable) in deleted.into_iter().chain(others) {
            let Some(plan) = self.plan_template(affected, *readable).await? else { continue };
            match self.plans.iter_mut().find(|(existing, _)| existing == affected) {
                Some((_, existing)) => *existing = plan,
                None => self.plans.push((affected.clone(), plan)),
            }
        }
        Ok(())
    }

    /// The plans, and notices for the user.
    pub async fn finish(mut self) -> Result<(Vec<TemplatePlan>, Vec<String>), Error> {
        let mut notices = self.reports.notices(&mut self.assumed, self.proposal).await?;
        let plans: Vec<TemplatePlan> = self.plans.into_iter().map(|(_, plan)| plan).collect();
        let uses_capacity = |plan: &&TemplatePlan| plan.clusters.iter().any(|cluster| cluster.replicas.is_some());
        if plans.iter().filter(uses_capacity).count() > 1 {
            let text = match self.reports.context.config.gates.scheduling_overcommit_protection {
                true => "templates are planned in the listed order: capacity used by one is not available to the next",
                false => "each template is planned independently: capacity used by the others is not considered",
            };
            notices.push(text.to_owned());
        }
        Ok((plans, notices))
    }

    /// Plans one template. `None` if it does not exist.
    async fn plan_template(
        &mut self,
        affected: &AffectedTemplate,
        readable: bool,
    ) -> Result<Option<TemplatePlan>, Error> {
        let AffectedTemplate { resource, namespace, name } = affected;
        let proposed = self.proposal.find(resource, namespace, name);
        let before = match proposed {
            Some(proposed) => proposed.before.clone(),
            None => self.reports.context.get_full(resource, namespace, name).await?,
        };
        let is_deleted = proposed.is_some_and(|proposed| proposed.after.is_none());
        // Without either version, the template was deleted in the meantime.
        let Some(after) = proposed.and_then(|proposed| proposed.after.as_ref()).or(before.as_deref()) else {
            return Ok(None);
        };
        let planned = match is_deleted {
            true => self.plan_deleted(after, readable).await,
            false => self.plan_existing(resource, (before.as_deref(), after), readable).await,
        };
        match planned {
            Ok(plan) => Ok(Some(plan)),
            Err(error @ (Error::Cache(_) | Error::Members(_) | Error::Estimator(_))) => Err(error),
            Err(error) => Ok(Some(TemplatePlan { message: Some(error.message()), ..empty_plan(after) })),
        }
    }

    async fn applicable_policies(&mut self, namespace: &str) -> Result<Arc<ApplicablePolicies>, Error> {
        if let Some(policies) = self.applicable_policies.get(namespace) {
            return Ok(Arc::clone(policies));
        }
        let applicable = Arc::new(self.reports.find_applicable_policies(namespace, self.proposal).await?);
        self.applicable_policies.insert(namespace.to_owned(), Arc::clone(&applicable));
        Ok(applicable)
    }

    pub(super) fn interpreter(&self) -> &Interpreter {
        self.interpreter.as_ref().unwrap_or(&self.reports.context.interpreter)
    }

    async fn plan_existing(
        &mut self,
        resource: &Resource,
        (before, template): (Option<&Value>, &Value),
        readable: bool,
    ) -> Result<TemplatePlan, Error> {
        let (reports, namespace) = (self.reports, unstructured::namespace(template));
        let applicable = self.applicable_policies(namespace).await?;
        let binding_before = reports.binding(before.unwrap_or(template)).await?;
        let key = reports.binding_key(&ObjectIdentity::from_object(template)).await?;
        let base = self.attached_bindings.planned_binding(&key).or_else(|| binding_before.clone());
        let policies: Vec<Policy<'_>> = applicable.policies.iter().map(|object| object.policy()).collect();
        let preemption = reports.context.config.gates.propagation_policy_preemption;
        let predicted = predict_choice(template, &policies, |policy| self.is_proposed(policy), preemption);
        let mut plan = empty_plan(template);
        plan.policy_before = before.and_then(claiming_policy);
        plan.policies = PolicyReport::all(&predicted.considered);
        let policy = match &predicted.choice {
            Choice::Follow(policy) | Choice::Preempt(policy) => Some(policy),
            _ => None,
        };
        plan.policy = policy.map(PolicyName::from_policy);
        let claim_before = Claim::from_object(template);
        let template = predicted.unclaimed.as_ref().unwrap_or(template);
        let missing = policy.map(|policy| applicable.overrides.find_missing(policy)).unwrap_or_default();
        // A policy claims no template until its overrides exist.
        let (template, planned_binding) = match policy.filter(|_| missing.is_empty()) {
            None => (template.clone(), None),
            Some(policy) => {
                let template = with_claim(template, policy);
                let planned_binding = self.plan_binding(policy, &template, base.as_deref(), &key).await?;
                (template, Some(planned_binding))
            }
        };
        // Changes of a policy with lazy activation take effect with the next change of the template, and a proposed
        // template is such a change.
        let is_proposed = self.proposal.find(resource, namespace, unstructured::name(&template)).is_some();
        let waits_for_template = policy.is_some_and(|policy| policy.is_lazy()) && !is_proposed;
        let is_never_propagated = reports.is_never_propagated(resource, namespace, unstructured::name(&template));
        let waiting_binding =
            planned_binding.as_ref().filter(|_| waits_for_template || is_blocked(planned_binding.as_ref()));
        // Dependencies are propagated without a policy.
        let is_attached = |binding: &Arc<Value>| unstructured::at(binding, &["spec", "requiredBy"]).is_some();
        if predicted.choice != Choice::Unmatched || !base.as_ref().is_some_and(is_attached) {
            plan.waiting = waiting::explain_template(&TemplateState {
                template: &template,
                is_never_propagated,
                choice: &predicted.choice,
                missing_overrides: &missing,
                binding: waiting_binding,
            });
        }
        let binding = match planned_binding {
            Some(BindingPlan::Create(binding) | BindingPlan::Update(binding)) if plan.waiting.is_empty() => {
                Some(Arc::new(binding))
            }
            _ => base.clone().map(|base| release_from_policy(base, &claim_before, predicted.unclaimed.is_some())),
        };
        if let Some(binding) = binding {
            let versions =
                BindingVersions { before: binding_before.as_deref(), base: base.as_deref(), after: &binding };
            self.plan_placement(&applicable, &versions, &template, readable, &mut plan).await?;
        }
        plan.change = match (&binding_before, plan.clusters.iter().any(|cluster| cluster.change != Change::Unchanged)) {
            (_, false) => Change::Unchanged,
            (None, true) => Change::Added,
            (Some(_), true) => Change::Changed,
        };
        Ok(plan)
    }

    /// Plans a deleted template: its binding and Works are deleted as well.
    async fn plan_deleted(&mut self, template: &Value, readable: bool) -> Result<TemplatePlan, Error> {
        let reports = self.reports;
        let mut plan = empty_plan(template);
        plan.policy_before = claiming_policy(template);
        let Some(binding) = reports.binding(template).await? else { return Ok(plan) };
        let typed: ResourceBinding = decode(&binding)?;
        reports.read_quotas(&mut self.assumed, self.proposal, unstructured::namespace(template)).await?;
        let key = BindingKey::from_object(&binding);
        self.assumed.release_usage(&typed);
        self.assumed.simulation.forget(&key);
        self.attached_bindings.record_deletion(&key);
        let is_preserved = typed.spec.preserve_resources_on_deletion.unwrap_or_default();
        let mut replicas: BTreeMap<String, Option<i32>> =
            reports.work_clusters(&binding).await?.into_iter().map(|cluster| (cluster, None)).collect();
        let targets = construct::targets(&typed.spec);
        replicas.extend(targets.iter().map(|target| (target.name.clone(), target_replicas(target))));
        let spec = typed.spec.clone();
        let planned_template = PlannedTemplate {
            template,
            spec_before: Some(typed.spec),
            binding: &binding,
            spec,
            evicted: Vec::new(),
            readable,
        };
        for (name, replicas_before) in replicas {
            let work = reports.work(&name, &binding, template).await?;
            let manifest = work
                .as_ref()
                .and_then(|work| manifest_of(work))
                .map(|manifest| planned_template.readable_manifest(manifest.clone()));
            plan.clusters.push(ClusterPlan {
                change: Change::Removed,
                replicas_before,
                manifest_before: manifest.filter(|manifest| self.reserve_space(manifest)),
                message: is_preserved
                    .then(|| "the object is kept in the cluster: preserveResourcesOnDeletion is set".to_owned()),
                ..unchanged_cluster(&name)
            });
        }
        plan.change = Change::Removed;
        Ok(plan)
    }

    /// The binding as the detector would write it.
    async fn plan_binding(
        &self,
        policy: &Policy<'_>,
        template: &Value,
        existing: Option<&Value>,
        key: &BindingKey,
    ) -> Result<BindingPlan, Error> {
        let input = BindingInput {
            template,
            policy,
            replica_facts: self.interpreter().replicas(template).await?,
            priority: priority_of(existing),
            gates: self.reports.context.config.gates,
            template_changed: true,
            new: NewBinding { name: &key.name, permanent_id: UNKNOWN_ID },
        };
        Ok(binding::plan(&input, existing))
    }

    /// Schedules the planned binding, and plans what each cluster receives.
    async fn plan_placement(
        &mut self,
        applicable: &ApplicablePolicies,
        versions: &BindingVersions<'_>,
        template: &Value,
        readable: bool,
        plan: &mut TemplatePlan,
    ) -> Result<(), Error> {
        let (reports, binding, key) = (self.reports, versions.after, BindingKey::from_object(versions.after));
        let before = versions.before.map(decode::<ResourceBinding>).transpose()?;
        let mut typed: ResourceBinding = decode(binding)?;
        plan.required_by = typed.spec.required_by.iter().map(parent_reference).collect();
        reports.read_quotas(&mut self.assumed, self.proposal, &key.namespace).await?;
        let recorded = self.bindings.get(&key).or(before.as_ref()).cloned();
        // If a quota rejects the requests of the template, nothing is scheduled and everything is kept.
        if let Err(refusal) = self.assumed.admit(recorded.as_ref(), &typed) {
            plan.waiting.push(WaitReason::new(Cause::QuotaExceeded, refusal.message));
            let base = versions.base.map(decode::<ResourceBinding>).transpose()?;
            let targets = base.map(|base| construct::targets(&base.spec)).unwrap_or_default();
            let unchanged_target = |target: &TargetCluster| {
                let replicas = target_replicas(target);
                ClusterPlan { replicas_before: replicas, replicas, ..unchanged_cluster(&target.name) }
            };
            plan.clusters = targets.iter().map(unchanged_target).collect();
            return Ok(());
        }
        let evicted = self.schedule(binding, template, &mut typed, plan).await?;
        plan.waiting.extend(self.suspensions(binding, &typed));
        plan.dependencies = self.record_dependencies(binding, template, &typed).await?;
        self.bindings.insert(key, typed.clone());
        let spec_before = before.map(|before| before.spec);
        let planned_template = PlannedTemplate { template, spec_before, binding, spec: typed.spec, evicted, readable };
        let targets = construct::targets(&planned_template.spec);
        for target in &targets {
            let cluster = self.plan_target(&planned_template, target, &targets, &applicable.overrides, plan).await?;
            plan.clusters.push(cluster);
        }
        let work_clusters = match versions.before {
            Some(binding) => reports.work_clusters(binding).await?,
            None => Vec::new(),
        };
        plan.clusters.extend(
            self.plan_removed_clusters(&planned_template, &targets, work_clusters, plan.scheduling.as_ref()).await?,
        );
        Ok(())
    }

    /// Applies taints, rebalancers and the scheduler to the binding. Returns the clusters from which taints evict it.
    async fn schedule(
        &mut self,
        binding: &Value,
        template: &Value,
        typed: &mut ResourceBinding,
        plan: &mut TemplatePlan,
    ) -> Result<Vec<TaintEviction>, Error> {
        let (reports, key) = (self.reports, BindingKey::from_object(binding));
        let admitted = typed.clone();
        let evicted = reports.evict(&self.assumed, &mut typed.spec).await?;
        for eviction in &evicted {
            if let TaintEviction::Later(cluster, at) = eviction {
                let message = format!("will be evicted from {cluster} at {at}, when tolerationSeconds end");
                plan.waiting.push(WaitReason::in_cluster(cluster, Cause::Eviction, message));
            }
        }
        if let Some(at) = self.assumed.rebalance_time(template, &typed.spec) {
            typed.spec.reschedule_triggered_at = Some(at);
        }
        if typed.spec.placement.is_none() {
            return Ok(evicted);
        }
        let (decided, report) = reports.schedule(binding, typed, Some(&mut self.assumed.simulation)).await?;
        plan.scheduling = Some(report);
        // Bindings of other schedulers and suspended bindings keep their clusters.
        let clusters = match decided {
            Plan::Schedule { clusters, .. } => clusters,
            Plan::Clear { .. } => Vec::new(),
            Plan::Keep | Plan::Fail { .. } => return Ok(evicted),
        };
        if reports.scheduler.is_responsible_for(binding, &typed.spec) {
            let mut placed = typed.clone();
            placed.spec.clusters.clone_from(&clusters);
            match self.assumed.admit(Some(&admitted), &placed) {
                Ok(()) => {
                    self.assumed.simulation.reserve(&key, typed, &clusters);
                    *typed = placed;
                }
                Err(refusal) => plan.waiting.push(WaitReason::new(Cause::QuotaExceeded, refusal.message)),
            }
        }
        Ok(evicted)
    }

    /// Reasons in the binding itself that block it, except those that the plan decides.
    fn suspensions(&self, binding: &Value, typed: &ResourceBinding) -> Vec<WaitReason> {
        let state = BindingState {
            binding,
            typed,
            scheduler_name: &self.reports.context.config.scheduler_name,
            is_responsible: true,
            permits_requests: true,
            work_clusters: &[],
        };
        let is_suspension = |cause: Cause| matches!(cause, Cause::SchedulingSuspended | Cause::OtherScheduler);
        waiting::explain_binding(&state).into_iter().filter(|reason| is_suspension(reason.cause)).collect()
    }

    /// Reserves space for a manifest in the response. Returns false if there is none left.
    pub(super) fn reserve_space(&self, manifest: &Value) -> bool {
        let remaining_bytes = self.remaining_bytes.load(Ordering::Relaxed);
        let rest = if remaining_bytes == 0 { None } else { remaining_bytes.checked_sub(manifest.to_string().len()) };
        if let Some(rest) = rest {
            self.remaining_bytes.store(rest, Ordering::Relaxed);
        }
        rest.is_some()
    }

    fn is_proposed(&self, policy: &Policy<'_>) -> bool {
        let is_policy = |object: &ProposedObject| {
            unstructured::namespace(object.object()) == policy.namespace
                && unstructured::name(object.object()) == policy.name
        };
        self.proposal.with_role(Role::Policy).any(is_policy)
    }
}

/// Releases the binding from the policy of `claim`, if the policy is deleted.
fn release_from_policy(binding: Arc<Value>, claim: &Claim, is_policy_deleted: bool) -> Arc<Value> {
    match claim::release(&binding, claim.id()).filter(|_| is_policy_deleted) {
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
    match Claim::from_object(template) {
        Claim::None => None,
        Claim::Policy { namespace, name, .. } => Some(PolicyName::propagation(&namespace, &name)),
        Claim::ClusterPolicy { name, .. } => Some(PolicyName::propagation("", &name)),
    }
}

/// True if the binding waits for something that the plan cannot change.
fn is_blocked(binding: Option<&BindingPlan>) -> bool {
    matches!(binding, Some(BindingPlan::WaitForGarbageCollection))
}

fn empty_plan(template: &Value) -> TemplatePlan {
    TemplatePlan {
        template: ObjectReference::from_object(template),
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
