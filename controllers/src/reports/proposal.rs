//! Proposed objects, in the form in which the control plane would store them.

use std::sync::Arc;

use crowsnest_api::Scope;
use crowsnest_api::cluster::Cluster;
use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::permanent_id;
use crowsnest_apimachinery::unstructured;
use crowsnest_members::MemberRoute;
use serde_json::{Value, json};

use super::Reports;
use crate::Error;
use crate::propagation::detector::is_template_resource;
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::{Resource, Target};
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::report::{empty_secret, mask_secret};
use crowsnest_plan::whatif::{UNKNOWN_ID, lose_cluster, simulate_apply};

/// Role of an object in propagation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Policy,
    Override,
    Customization,
    Cluster,
    Quota,
    Rebalancer,
    Template,
}

/// Proposed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposedOperation {
    /// Server-side semantics of `kubectl apply`.
    Apply,
    Delete,
    /// A cluster becomes unreachable, and stays so.
    Lose,
}

/// An object with its current and its proposed state.
#[derive(Debug, Clone)]
pub struct ProposedObject {
    pub resource: Resource,
    pub role: Role,
    pub operation: ProposedOperation,
    /// The stored object.
    pub before: Option<Arc<Value>>,
    /// The object that would be stored. `None` if it is deleted.
    pub after: Option<Value>,
    /// True if the caller may read the stored object.
    pub readable: bool,
}

impl ProposedObject {
    /// The proposed object, or the stored one if it is deleted.
    pub fn object(&self) -> &Value {
        self.after.as_ref().or(self.before.as_deref()).unwrap_or(&Value::Null)
    }

    /// The stored and the proposed object.
    pub(super) fn versions(&self) -> impl Iterator<Item = &Value> {
        self.before.as_deref().into_iter().chain(&self.after)
    }
}

/// All objects of a proposal.
#[derive(Debug, Clone, Default)]
pub struct Proposal {
    pub objects: Vec<ProposedObject>,
}

impl Proposal {
    pub(super) fn find(&self, resource: &Resource, namespace: &str, name: &str) -> Option<&ProposedObject> {
        let is_match = |object: &&ProposedObject| {
            object.resource == *resource
                && unstructured::namespace(object.object()) == namespace
                && unstructured::name(object.object()) == name
        };
        self.objects.iter().find(is_match)
    }

    pub(super) fn with_role(&self, role: Role) -> impl Iterator<Item = &ProposedObject> {
        self.objects.iter().filter(move |object| object.role == role)
    }
}

impl Reports {
    /// Role of a resource. `None` if it has no effect that can be planned.
    pub fn role_of(&self, resource: &Resource) -> Option<Role> {
        let kinds = &self.context.kinds;
        if *resource == kinds.propagation_policy || *resource == kinds.cluster_propagation_policy {
            Some(Role::Policy)
        } else if *resource == kinds.override_policy || *resource == kinds.cluster_override_policy {
            Some(Role::Override)
        } else if *resource == kinds.interpreter_customization {
            Some(Role::Customization)
        } else if *resource == kinds.cluster {
            Some(Role::Cluster)
        } else if *resource == kinds.federated_resource_quota {
            Some(Role::Quota)
        } else if *resource == kinds.workload_rebalancer {
            Some(Role::Rebalancer)
        } else {
            is_template_resource(&resource.gvr).then_some(Role::Template)
        }
    }

    /// Obtains the object that would be stored. A dry run applies the control plane's defaulting, validation and
    /// admission. A Cluster that is lost is changed by the controllers only, without a dry run.
    pub async fn propose(
        &self,
        resource: Resource,
        role: Role,
        (manifest, operation): (&Value, ProposedOperation),
        readable: bool,
    ) -> Result<ProposedObject, Error> {
        let objects = &self.context.objects;
        let target = Target::new(&resource, unstructured::namespace(manifest), unstructured::name(manifest));
        if operation == ProposedOperation::Delete {
            // Fails if admission rejects the deletion, or with NotFound if the object does not exist.
            objects.dry_run_delete(target).await?;
        }
        // An object that the caller is not allowed to read is not used, so that neither the plan nor an error reveals
        // its content.
        let before = objects.get(target).await?.map(|before| if readable { before } else { empty_secret(before) });
        let after = match operation {
            ProposedOperation::Delete => None,
            ProposedOperation::Lose => match &before {
                Some(before) => Some(self.lost_version(before).await?),
                None => None,
            },
            ProposedOperation::Apply => {
                let desired = simulate_apply(before.as_ref(), manifest);
                Some(match before {
                    Some(_) => objects.dry_run_replace(target, &desired).await?,
                    None => without_generated_fields(
                        role,
                        objects.dry_run_create(&resource, target.namespace, &desired).await?,
                    ),
                })
            }
        };
        let after = after.map(|after| if readable { after } else { mask_secret(after) });
        Ok(ProposedObject { role, operation, before: before.map(Arc::new), after, readable, resource })
    }

    /// A stored Cluster after it became unreachable. Without the gate `Failover`, ClusterTaintPolicies have no effect.
    async fn lost_version(&self, stored: &Value) -> Result<Value, Error> {
        let context = &self.context;
        let cluster: Cluster = decode(stored)?;
        let policies = match context.config.gates.failover {
            true => context.list(&context.kinds.cluster_taint_policy, None).await?,
            false => Vec::new(),
        };
        let policies = policies.iter().map(|policy| decode(policy.view())).collect::<Result<Vec<_>, _>>()?;
        let is_reported_by_agent = MemberRoute::from_cluster(&cluster) == MemberRoute::AgentIfConnected;
        let lost = lose_cluster(&cluster, &policies, is_reported_by_agent, context.now());
        let mut object = stored.clone();
        unstructured::set(&mut object, &["spec", "taints"], json!(lost.spec.taints));
        unstructured::set(&mut object, &["status", "conditions"], json!(lost.status.conditions));
        Ok(object)
    }

    /// An interpreter with the proposed customizations. `None` if there are none.
    pub(super) async fn proposed_interpreter(&self, proposal: &Proposal) -> Result<Option<Interpreter>, Error> {
        if proposal.with_role(Role::Customization).next().is_none() {
            return Ok(None);
        }
        let interpreter = self.context.interpreter.without_customizations();
        let kind = &self.context.kinds.interpreter_customization;
        for customization in self.list_proposed(kind, None, proposal).await? {
            let typed: ResourceInterpreterCustomization = decode(&customization)?;
            interpreter.set_customization(unstructured::name(&customization), Some(&typed));
        }
        Ok(Some(interpreter))
    }
}

/// Removes fields that a dry run generates and that will have other values.
fn without_generated_fields(role: Role, mut object: Value) -> Value {
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        unstructured::remove(&mut object, &["metadata", field]);
    }
    let id = permanent_id::policy_label(Scope::from_namespace(unstructured::namespace(&object)));
    if role == Role::Policy && unstructured::label(&object, id).is_some() {
        unstructured::set(&mut object, &["metadata", "labels", id], json!(UNKNOWN_ID));
    }
    object
}
