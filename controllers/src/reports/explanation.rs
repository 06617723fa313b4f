//! Explanation of one template's placement.

use std::sync::Arc;

use crowsnest_api::constants::condition;
use crowsnest_api::keys::binding_kind;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::work::{BindingSnapshot, ObjectReference, ResourceBinding, TargetCluster};
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::{ApplicablePolicies, Proposal, Reports, manifest_for_target, unserved_kind};
use crate::Error;
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::Resource;
use crowsnest_plan::conditions;
use crowsnest_plan::propagation::binding::{self, BindingInput, NewBinding, ReplicaFacts};
use crowsnest_plan::propagation::{Choice, choose};
use crowsnest_plan::report::{
    BindingReport, Explanation, OverrideReport, PlacementReason, PolicyName, PolicyReport, TargetReport,
    target_replicas,
};
use crowsnest_plan::waiting::{self, BindingState, Cause, TargetState, TemplateState, WaitReason};
use crowsnest_plan::whatif::{UNKNOWN_ID, with_claim};
use crowsnest_plan::work::construct;

impl Reports {
    /// Explains a template. Returns `None` if it does not exist.
    pub async fn explain(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Explanation>, Error> {
        let Some(template) = self.context.get_full(resource, namespace, name).await? else { return Ok(None) };
        let binding = self.binding(&template).await?;
        let mut explanation = Explanation {
            template: ObjectReference::from_object(&template),
            policy: None,
            policies: Vec::new(),
            binding: None,
            scheduling: None,
            targets: Vec::new(),
            waiting: Vec::new(),
        };
        let applicable = self.find_applicable_policies(namespace, &Proposal::default()).await?;
        let replica_facts = self.context.interpreter.replicas(&template).await;
        self.explain_policies(
            resource,
            &template,
            binding.as_deref(),
            replica_facts.as_ref(),
            &applicable,
            &mut explanation,
        );
        if let Some(binding) = &binding {
            self.explain_binding(&template, binding, replica_facts.as_ref().ok(), &applicable, &mut explanation)
                .await?;
        }
        Ok(Some(explanation))
    }

    /// Adds the matching policies and the one that claims the template, and the reasons why the binding differs from
    /// that policy.
    fn explain_policies(
        &self,
        resource: &Resource,
        template: &Value,
        existing: Option<&Value>,
        replica_facts: Result<&ReplicaFacts, &crowsnest_interpreter::Error>,
        applicable: &ApplicablePolicies,
        explanation: &mut Explanation,
    ) {
        let context = &self.context;
        let policies: Vec<_> = applicable.policies.iter().map(|object| object.policy()).collect();
        let (choice, considered) = choose(template, &policies, context.config.gates.propagation_policy_preemption);
        explanation.policies = PolicyReport::all(&considered);
        let mut missing = Vec::new();
        let mut planned = None;
        if let Choice::Follow(policy) | Choice::Preempt(policy) = &choice {
            explanation.policy = Some(PolicyName::from_policy(policy));
            missing = applicable.overrides.find_missing(policy);
            match replica_facts {
                Ok(replica_facts) => {
                    let default_key = ObjectIdentity::from_object(template).default_binding_key();
                    let input = BindingInput {
                        template: &with_claim(template, policy),
                        policy,
                        replica_facts: replica_facts.clone(),
                        priority: priority_of(existing),
                        gates: context.config.gates,
                        template_changed: false,
                        new: NewBinding { name: &default_key.name, permanent_id: UNKNOWN_ID },
                    };
                    planned = Some(binding::plan(&input, existing));
                }
                Err(error) => explanation.waiting.push(WaitReason::new(Cause::InterpretFailed, error.to_string())),
            }
        } else if let Choice::Unselected(policy) = &choice {
            explanation.policy = Some(PolicyName::from_policy(policy));
        }
        // Dependencies are propagated without a policy.
        let is_attached = existing.and_then(|binding| unstructured::at(binding, &["spec", "requiredBy"])).is_some();
        if is_attached && choice == Choice::Unmatched {
            return;
        }
        explanation.waiting.extend(waiting::explain_template(&TemplateState {
            template,
            is_never_propagated: self.is_never_propagated(
                resource,
                unstructured::namespace(template),
                unstructured::name(template),
            ),
            choice: &choice,
            missing_overrides: &missing,
            binding: planned.as_ref(),
        }));
    }

    async fn explain_binding(
        &self,
        template: &Value,
        binding: &Arc<Value>,
        replica_facts: Option<&ReplicaFacts>,
        applicable: &ApplicablePolicies,
        explanation: &mut Explanation,
    ) -> Result<(), Error> {
        let context = &self.context;
        let typed: ResourceBinding = decode(binding)?;
        let scheduled = conditions::find(&typed.status.conditions, condition::SCHEDULED);
        explanation.binding = Some(BindingReport {
            reference: ObjectReference::from_object(binding),
            replicas: typed.spec.replicas,
            scheduled_at: typed.status.last_scheduled_time.as_ref().map(|time| time.0.to_string()),
            message: scheduled.map(|scheduled| scheduled.message.clone()),
            required_by: typed.spec.required_by.iter().map(parent_reference).collect(),
        });
        if typed.spec.placement.is_some() {
            explanation.scheduling = Some(self.schedule(binding, &typed, None).await?.1);
        }
        let permits_requests = !context.config.gates.federated_quota_enforcement
            || replica_facts.is_none_or(|replica_facts| construct::permits_requests(&typed.spec, replica_facts));
        let work_clusters = self.work_clusters(binding).await?;
        let is_attached = !typed.spec.required_by.is_empty();
        explanation.waiting.extend(waiting::explain_binding(&BindingState {
            binding,
            typed: &typed,
            scheduler_name: &context.config.scheduler_name,
            is_responsible: is_attached || self.scheduler.is_responsible_for(binding, &typed.spec),
            permits_requests,
            work_clusters: &work_clusters,
        }));
        self.explain_targets(template, (binding, &typed), applicable, explanation).await
    }

    async fn explain_targets(
        &self,
        template: &Value,
        (binding, typed): (&Value, &ResourceBinding),
        applicable: &ApplicablePolicies,
        explanation: &mut Explanation,
    ) -> Result<(), Error> {
        let spec = &typed.spec;
        let targets = construct::targets(spec);
        let completions = construct::job_completions(spec, template, &targets);
        for target in &targets {
            let member = self.context.cluster(&target.name).await?;
            let work = self.work(&target.name, binding, template).await?;
            let interpreter = &self.context.interpreter;
            let built =
                manifest_for_target(interpreter, spec, template, target, completions.get(&target.name).copied()).await;
            let (steps, error) = match (built, &member) {
                (Ok(mut manifest), Some(member)) => {
                    let traced = applicable.overrides.apply(&mut manifest, member);
                    let steps = OverrideReport::all(&traced, unstructured::namespace(template));
                    (steps, traced.failed.map(|failed| failed.to_string()))
                }
                (Err(error), _) => (Vec::new(), Some(error.message())),
                (Ok(_), None) => (Vec::new(), None),
            };
            explanation.waiting.extend(waiting::explain_target(&TargetState {
                cluster: &target.name,
                member: member.as_deref(),
                unserved_kind: member.as_ref().and_then(|member| {
                    unserved_kind(member, unstructured::api_version(template), unstructured::kind(template))
                }),
                is_suspended: construct::is_suspended(spec.suspension.as_ref(), &target.name),
                override_error: error,
                work: work.as_deref(),
            }));
            let placement_reason =
                if spec.targets(&target.name) { PlacementReason::Scheduled } else { PlacementReason::Required };
            explanation
                .targets
                .push(TargetReport { overrides: steps, ..target_report(typed, target, placement_reason, &work) });
        }
        let sources = spec.graceful_eviction_tasks.iter().map(|task| &task.from_cluster);
        for cluster in sources.filter(|cluster| !targets.iter().any(|target| target.name == **cluster)) {
            let work = self.work(cluster, binding, template).await?;
            let target = TargetCluster { name: cluster.clone(), ..TargetCluster::default() };
            explanation.targets.push(target_report(typed, &target, PlacementReason::Evicting, &work));
        }
        remove_duplicates(&mut explanation.waiting);
        Ok(())
    }
}

fn target_report(
    typed: &ResourceBinding,
    target: &TargetCluster,
    placement_reason: PlacementReason,
    work: &Option<Arc<Value>>,
) -> TargetReport {
    let status = typed.status.aggregated_status.iter().find(|item| item.cluster_name == target.name);
    TargetReport {
        cluster: target.name.clone(),
        placement_reason,
        replicas: target_replicas(target),
        overrides: Vec::new(),
        work: work.as_deref().map(ObjectReference::from_object),
        applied: status.is_some_and(|item| item.applied),
        health: status.and_then(|item| item.health.clone()),
    }
}

pub(super) fn parent_reference(snapshot: &BindingSnapshot) -> ObjectReference {
    let kind = binding_kind(crowsnest_api::Scope::from_namespace(&snapshot.namespace));
    ObjectReference::new("work.karmada.io/v1alpha2", kind, &snapshot.namespace, &snapshot.name)
}

/// The priority in an existing binding. Explanations and plans keep it, instead of reading the policy's PriorityClass.
pub(super) fn priority_of(binding: Option<&Value>) -> Option<i32> {
    let priority =
        binding.and_then(|binding| unstructured::integer(binding, &["spec", "schedulePriority", "priority"]));
    // A binding with the priority 0 has the field `schedulePriority`, but not the field `priority` in it.
    let has_priority =
        binding.is_some_and(|binding| unstructured::at(binding, &["spec", "schedulePriority"]).is_some());
    priority.and_then(|priority| i32::try_from(priority).ok()).or(has_priority.then_some(0))
}

/// Removes entries that are equal to an earlier one.
fn remove_duplicates(waiting: &mut Vec<WaitReason>) {
    let mut seen: Vec<WaitReason> = Vec::new();
    waiting.retain(|reason| {
        let is_new = !seen.contains(reason);
        if is_new {
            seen.push(reason.clone());
        }
        is_new
    });
}
