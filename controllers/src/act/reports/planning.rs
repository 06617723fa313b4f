//! What would become of templates if what is proposed were stored.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::names::ClusterName;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, TargetCluster};
use crowsnest_index::search::{Compared, differences};
use serde_json::Value;

use super::explaining::priority_of;
use super::{Affected, OverrideObjects, Proposal, Proposed, Reports, Role, Scope, identity_of, share_of, unserved};
use crate::Error;
use crate::act::context::decode;
use crate::act::objects::{Objects, Resource, Target};
use crate::interpreter::Interpreter;
use crate::plan::object;
use crate::plan::propagation::binding::{self, BindingPlan, Intent};
use crate::plan::propagation::{Choice, Claim, Policy};
use crate::plan::report::{
    Change, ClusterPlan, OverrideReport, PolicyName, PolicyReport, Reference, SchedulingReport, TemplatePlan, emptied,
    replicas_of,
};
use crate::plan::scheduling::Plan;
use crate::plan::waiting::{self, BindingState, Cause, TargetState, TemplateState};
use crate::plan::whatif::{UNKNOWN_ID, claimed, manifest_of, settle};
use crate::plan::work::apply::{self, ApplyPlan, Meeting};
use crate::plan::work::construct::{self, WorkPlan};

/// Bytes of manifests in one answer; differences are told beyond that, too.
const MOST_MANIFESTS: usize = 32 << 20;

/// How long a member may take to say whether it has an object of that name.
const MEMBER_ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// What is the same for all templates of a plan.
struct Planning<'p> {
    proposal: &'p Proposal,
    interpreter: &'p Interpreter,
    /// How many bytes of manifests may still be told.
    room: AtomicUsize,
}

/// A template, before and after.
struct Subject<'s> {
    template: &'s Value,
    binding_before: Option<&'s Value>,
    spec_before: Option<ResourceBindingSpec>,
    binding: &'s Value,
    spec: ResourceBindingSpec,
    readable: bool,
}

impl Reports {
    /// Plans each template; with each, whether the caller may see what is in it.
    pub async fn plan(
        &self,
        proposal: &Proposal,
        templates: &[(Affected, bool)],
        manifests: bool,
    ) -> Result<Vec<TemplatePlan>, Error> {
        let proposed = self.proposed_interpreter(proposal).await?;
        let interpreter = proposed.as_ref().unwrap_or(&self.context.interpreter);
        let room = AtomicUsize::new(if manifests { MOST_MANIFESTS } else { 0 });
        let planning = Planning { proposal, interpreter, room };
        let mut scopes: BTreeMap<&str, Scope> = BTreeMap::new();
        let mut plans = Vec::new();
        for (affected, readable) in templates {
            let Affected { resource, namespace, name } = affected;
            let given = proposal.find(resource, namespace, name);
            let before = match given {
                Some(given) => given.before.clone(),
                None => self.context.get(resource, namespace, name).await?,
            };
            // What was deleted meanwhile has no future.
            let Some(after) = given.map(|given| &given.after).or(before.as_deref()) else { continue };
            let scope = match scopes.entry(namespace) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.scope(namespace, proposal).await?),
            };
            plans.push(match self.plan_one(&planning, scope, resource, (before.as_deref(), after), *readable).await {
                Ok(plan) => plan,
                Err(error @ (Error::Cache(_) | Error::Fleet(_))) => return Err(error),
                Err(error) => {
                    let mut plan = nothing_yet(after);
                    plan.message = Some(error.message());
                    plan
                }
            });
        }
        Ok(plans)
    }

    async fn plan_one(
        &self,
        planning: &Planning<'_>,
        scope: &Scope,
        resource: &Resource,
        (before, template): (Option<&Value>, &Value),
        readable: bool,
    ) -> Result<TemplatePlan, Error> {
        let namespace = object::namespace(template);
        let binding_before = self.binding(before.unwrap_or(template)).await?;
        let policies: Vec<Policy<'_>> = scope.policies.iter().map(|object| object.policy()).collect();
        let preemption = self.context.config.gates.propagation_policy_preemption;
        let settled = settle(template, &policies, |policy| planning.proposes(policy), preemption);
        let mut plan = nothing_yet(template);
        plan.policy_before = before.and_then(followed);
        plan.policies = PolicyReport::all(&settled.considered);
        let policy = match &settled.choice {
            Choice::Follow(policy) | Choice::Preempt(policy) => Some(policy),
            _ => None,
        };
        plan.policy = policy.map(PolicyName::of);
        let template = settled.unclaimed.as_ref().unwrap_or(template);
        let missing = policy.map(|policy| scope.overrides.missing(policy)).unwrap_or_default();
        // Without its overrides a policy claims nothing.
        let (template, rebound) = match policy.filter(|_| missing.is_empty()) {
            None => (template.clone(), None),
            Some(policy) => {
                let template = claimed(template, policy);
                let rebound = self.rebind(planning, policy, &template, binding_before.as_deref()).await?;
                if policy.spec.propagate_deps && self.context.config.gates.propagate_deps {
                    plan.dependencies = dependencies(planning.interpreter, &template).await?;
                }
                (template, Some(rebound))
            }
        };
        // A lazy policy's own changes wait; those of a template that is proposed do not.
        let is_given = planning.proposal.find(resource, namespace, object::name(&template)).is_some();
        let waits_for_template = policy.is_some_and(|policy| policy.is_lazy()) && !is_given;
        let never_propagated = self.is_never_propagated(resource, namespace, object::name(&template));
        let told = rebound.as_ref().filter(|_| waits_for_template || is_blocked(rebound.as_ref()));
        // What only goes along with others needs no policy.
        let is_attached = |binding: &Arc<Value>| object::at(binding, &["spec", "requiredBy"]).is_some();
        if settled.choice != Choice::Unmatched || !binding_before.as_ref().is_some_and(is_attached) {
            plan.waiting = waiting::of_template(&TemplateState {
                template: &template,
                never_propagated,
                choice: &settled.choice,
                missing_overrides: &missing,
                binding: told,
            });
        }
        let binding = match rebound {
            Some(BindingPlan::Create(binding) | BindingPlan::Update(binding)) if plan.waiting.is_empty() => {
                Some(Arc::new(binding))
            }
            _ => binding_before.clone(),
        };
        if let Some(binding) = binding {
            let bindings = (binding_before.as_deref(), binding.as_ref());
            self.place(planning, scope, bindings, &template, readable, &mut plan).await?;
        }
        plan.change = match (&binding_before, plan.clusters.iter().any(|one| one.change != Change::Unchanged)) {
            (_, false) => Change::Unchanged,
            (None, true) => Change::Added,
            (Some(_), true) => Change::Changed,
        };
        Ok(plan)
    }

    /// What the detector would do about the binding.
    async fn rebind(
        &self,
        planning: &Planning<'_>,
        policy: &Policy<'_>,
        template: &Value,
        existing: Option<&Value>,
    ) -> Result<BindingPlan, Error> {
        let intent = Intent {
            template,
            policy,
            interpreted: planning.interpreter.replicas(template).await?,
            priority: priority_of(existing),
            gates: self.context.config.gates,
            template_changed: true,
            new_permanent_id: UNKNOWN_ID,
        };
        Ok(binding::plan(&intent, existing))
    }

    /// Clusters for the binding as it would be, and what each of them gets.
    async fn place(
        &self,
        planning: &Planning<'_>,
        scope: &Scope,
        (binding_before, binding): (Option<&Value>, &Value),
        template: &Value,
        readable: bool,
        plan: &mut TemplatePlan,
    ) -> Result<(), Error> {
        let mut typed: ResourceBinding = decode(binding)?;
        let spec_before = binding_before.map(decode::<ResourceBinding>).transpose()?.map(|typed| typed.spec);
        if typed.spec.placement.is_some() {
            let (decided, report) = self.schedule(binding, &typed).await?;
            // What others schedule, and what is suspended, stays where it is.
            if self.scheduling.is_ours(binding, &typed.spec) {
                match decided {
                    Plan::Schedule { clusters, .. } => typed.spec.clusters = clusters,
                    Plan::Clear { .. } => typed.spec.clusters.clear(),
                    Plan::Keep | Plan::Fail { .. } => {}
                }
            }
            plan.scheduling = Some(report);
        }
        plan.waiting.extend(self.suspensions(binding, &typed));
        let subject = Subject { template, binding_before, spec_before, binding, spec: typed.spec, readable };
        let targets = construct::targets(&subject.spec);
        for target in &targets {
            let cluster = self.plan_target(planning, &subject, target, &targets, &scope.overrides, plan).await?;
            plan.clusters.push(cluster);
        }
        let leaving = subject.leaving(&targets, self.works_of(binding_before).await?);
        for (name, replicas) in leaving {
            let manifest = self.work(&name, template).await?.and_then(|work| manifest_of(&work).cloned());
            plan.clusters.push(ClusterPlan {
                change: Change::Removed,
                replicas_before: replicas,
                manifest_before: manifest.map(|manifest| subject.shown(manifest)).filter(|one| planning.has_room(one)),
                message: why_not(plan.scheduling.as_ref(), &name),
                ..unchanged(&name)
            });
        }
        Ok(())
    }

    /// What of a binding's own stands in the way, but for what this plan decides.
    fn suspensions(&self, binding: &Value, typed: &ResourceBinding) -> Vec<waiting::Waiting> {
        let state = BindingState {
            binding,
            typed,
            scheduler_name: &self.context.config.scheduler_name,
            is_ours: true,
            is_agreed: true,
            works_in: &[],
        };
        let stays = |cause: Cause| matches!(cause, Cause::SchedulingSuspended | Cause::OtherScheduler);
        waiting::of_binding(&state).into_iter().filter(|one| stays(one.cause)).collect()
    }

    async fn works_of(&self, binding: Option<&Value>) -> Result<Vec<String>, Error> {
        match binding {
            Some(binding) => self.works_in(binding).await,
            None => Ok(Vec::new()),
        }
    }

    async fn plan_target(
        &self,
        planning: &Planning<'_>,
        subject: &Subject<'_>,
        target: &TargetCluster,
        targets: &[TargetCluster],
        overrides: &OverrideObjects,
        plan: &mut TemplatePlan,
    ) -> Result<ClusterPlan, Error> {
        let (spec, template, name) = (&subject.spec, subject.template, target.name.as_str());
        let member = self.context.cluster(name).await?;
        let work = self.work(name, template).await?;
        let mut told = ClusterPlan {
            replicas: replicas_of(target),
            replicas_before: subject.had(name).as_ref().and_then(replicas_of),
            ..unchanged(name)
        };
        let completions = construct::job_completions(spec, template, targets);
        let mut override_error = None;
        if let Some(member) = &member {
            let mut manifest =
                share_of(planning.interpreter, spec, template, target, completions.get(name).copied()).await?;
            let traced = overrides.apply(&mut manifest, member);
            told.overrides = OverrideReport::all(&traced, object::namespace(template));
            override_error = traced.failed.as_ref().map(ToString::to_string);
            if override_error.is_none() {
                let inject = self.context.config.gates.stateful_failover_injection;
                let single = targets.len() == 1;
                let identity = identity_of(subject.binding);
                let report = traced.report();
                let desired = construct::for_binding(spec, identity, name, manifest, &report, single, inject);
                self.compare(planning, subject, member, work.as_deref(), desired, &mut told).await?;
            }
        }
        let state = TargetState {
            cluster: name,
            member: member.as_deref(),
            unserved: member
                .as_ref()
                .and_then(|member| unserved(member, object::api_version(template), object::kind(template))),
            suspended: construct::is_suspended(spec.suspension.as_ref(), name),
            override_error,
            work: work.as_deref(),
        };
        // What is about to be made is the plan itself, and how applying went was before it.
        let before = |cause: Cause| matches!(cause, Cause::WorkPending | Cause::ApplyFailed);
        plan.waiting.extend(waiting::of_target(&state).into_iter().filter(|one| !before(one.cause)));
        Ok(told)
    }

    /// The Work that would be, beside the one there is.
    async fn compare(
        &self,
        planning: &Planning<'_>,
        subject: &Subject<'_>,
        member: &Cluster,
        existing: Option<&Value>,
        desired: construct::DesiredWork,
        told: &mut ClusterPlan,
    ) -> Result<(), Error> {
        let existing = existing.map(|work| subject.shown_work(work));
        let existing = existing.as_ref();
        let before = existing.and_then(manifest_of).cloned();
        let work = match desired.plan(existing, UNKNOWN_ID) {
            WorkPlan::Create(work) | WorkPlan::Update(work) => Some(work),
            WorkPlan::Keep | WorkPlan::WaitForDeletion => None,
        };
        let after = work.as_ref().and_then(manifest_of).or(before.as_ref()).cloned().unwrap_or_default();
        let is_same = |old: &Value, new: &Value| {
            let spec = |work: &Value| work.get("spec").cloned().unwrap_or_default();
            object::semantically_equal(&spec(old), &spec(new))
        };
        told.change = match (existing, &work) {
            (None, _) => Change::Added,
            (Some(existing), Some(work)) if !is_same(existing, work) => Change::Changed,
            _ => Change::Unchanged,
        };
        if told.change == Change::Added {
            told.message = self.conflict(member, &after).await?;
        }
        if let Some(before) = &before {
            told.differences = differences(before, &after, Compared::Versions).0;
        }
        told.manifest_before = before.filter(|one| told.change == Change::Changed && planning.has_room(one));
        told.manifest = Some(after).filter(|one| planning.has_room(one));
        Ok(())
    }

    /// Why a member would not take a manifest: it has an object of that name which is not ours. A member that cannot be
    /// asked says nothing.
    async fn conflict(&self, member: &Cluster, manifest: &Value) -> Result<Option<String>, Error> {
        let name = member.metadata.name.as_deref().unwrap_or_default();
        let Ok(cluster) = ClusterName::parse(name) else { return Ok(None) };
        let (api_version, kind) = (object::api_version(manifest), object::kind(manifest));
        let Some(resource) = self.context.catalog.known(&cluster, api_version, kind) else { return Ok(None) };
        let (namespace, name) = (object::namespace(manifest), object::name(manifest));
        let world = &self.context.world;
        let observed = match world.is_synced(&cluster, &resource.gvr) {
            true => world.get(&cluster, &resource.gvr, namespace, name).await?.map(|seen| seen.view().clone()),
            false => {
                let Ok(client) = self.context.fleet.client(&cluster) else { return Ok(None) };
                let member = Objects::new(client);
                let asked = member.get(Target::new(&resource, namespace, name));
                match tokio::time::timeout(MEMBER_ANSWERS_WITHIN, asked).await {
                    Ok(Ok(found)) => found,
                    Ok(Err(_)) | Err(_) => None,
                }
            }
        };
        let Some(observed) = observed else { return Ok(None) };
        Ok(match apply::meet(cluster.as_str(), manifest, Some(&observed)) {
            Meeting::Planned(ApplyPlan::Conflict(message)) => Some(message),
            _ => None,
        })
    }
}

impl Planning<'_> {
    /// Takes the room for a manifest, if there is any left.
    fn has_room(&self, manifest: &Value) -> bool {
        let room = self.room.load(Ordering::Relaxed);
        let left = if room == 0 { None } else { room.checked_sub(manifest.to_string().len()) };
        if let Some(left) = left {
            self.room.store(left, Ordering::Relaxed);
        }
        left.is_some()
    }

    fn proposes(&self, policy: &Policy<'_>) -> bool {
        let is_it = |one: &Proposed| {
            one.role == Role::Policy
                && object::namespace(&one.after) == policy.namespace
                && object::name(&one.after) == policy.name
        };
        self.proposal.objects.iter().any(is_it)
    }
}

impl Subject<'_> {
    /// A manifest that is stored, for the caller's eyes.
    fn shown(&self, manifest: Value) -> Value {
        if self.readable { manifest } else { emptied(manifest) }
    }

    /// A Work that is stored, likewise.
    fn shown_work(&self, work: &Value) -> Value {
        let mut work = work.clone();
        let manifests = work.pointer_mut("/spec/workload/manifests").and_then(Value::as_array_mut);
        manifests.into_iter().flatten().for_each(|manifest| *manifest = self.shown(manifest.take()));
        work
    }

    fn had(&self, cluster: &str) -> Option<TargetCluster> {
        construct::targets(self.spec_before.as_ref()?).into_iter().find(|target| target.name == cluster)
    }

    /// Clusters that have it and are to have it no more, with the replicas they had.
    fn leaving(&self, targets: &[TargetCluster], works_in: Vec<String>) -> BTreeMap<String, Option<i32>> {
        let had = self.spec_before.as_ref().filter(|_| self.binding_before.is_some()).map(construct::targets);
        let had = had.unwrap_or_default();
        let mut leaving: BTreeMap<String, Option<i32>> = works_in.into_iter().map(|cluster| (cluster, None)).collect();
        leaving.extend(had.into_iter().map(|target| (target.name.clone(), replicas_of(&target))));
        leaving.retain(|cluster, _| {
            !targets.iter().any(|target| target.name == *cluster) && !construct::is_expected_in(&self.spec, cluster)
        });
        leaving
    }
}

/// The policy that holds a template.
fn followed(template: &Value) -> Option<PolicyName> {
    match Claim::of(template) {
        Claim::None => None,
        Claim::Policy { namespace, name, .. } => Some(PolicyName::propagation(&namespace, &name)),
        Claim::ClusterPolicy { name, .. } => Some(PolicyName::propagation("", &name)),
    }
}

/// Whether the binding has to wait for something that no plan changes.
fn is_blocked(binding: Option<&BindingPlan>) -> bool {
    matches!(binding, Some(BindingPlan::WaitForGarbageCollection))
}

fn nothing_yet(template: &Value) -> TemplatePlan {
    TemplatePlan {
        template: Reference::of(template),
        change: Change::Unchanged,
        policy_before: None,
        policy: None,
        policies: Vec::new(),
        scheduling: None,
        clusters: Vec::new(),
        dependencies: Vec::new(),
        waiting: Vec::new(),
        message: None,
    }
}

fn unchanged(cluster: &str) -> ClusterPlan {
    ClusterPlan {
        name: cluster.to_owned(),
        change: Change::Unchanged,
        replicas_before: None,
        replicas: None,
        overrides: Vec::new(),
        manifest_before: None,
        manifest: None,
        differences: Vec::new(),
        message: None,
    }
}

/// Why a cluster is left, as the last look at it says.
fn why_not(scheduling: Option<&SchedulingReport>, cluster: &str) -> Option<String> {
    let term = scheduling?.terms.last()?;
    let seen = term.clusters.iter().find(|one| one.name == cluster)?;
    Some(match &seen.rejected {
        Some(rejected) => rejected.reason.clone(),
        None if !seen.selected => "spread constraints leave it out".to_owned(),
        None => "no replica is left for it".to_owned(),
    })
}

/// What goes along with a template; of a selection the name is `*`.
async fn dependencies(interpreter: &Interpreter, template: &Value) -> Result<Vec<Reference>, Error> {
    let needed = interpreter.dependencies(template).await?.unwrap_or_default();
    let reference = |one: crate::plan::interpreter::dependencies::Dependency| Reference {
        api_version: one.api_version,
        kind: one.kind,
        namespace: one.namespace,
        name: if one.name.is_empty() { "*".to_owned() } else { one.name },
    };
    Ok(needed.0.unwrap_or_default().into_iter().map(reference).collect())
}
