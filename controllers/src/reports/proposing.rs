//! Proposed objects, as the control plane would store them.

use std::sync::Arc;

use crowsnest_api::Scope;
use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::permanent_id;
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::Reports;
use crate::Error;
use crate::propagation::detector::is_template_resource;
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::{Resource, Target};
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::report::{emptied, masked};
use crowsnest_plan::whatif::{UNKNOWN_ID, applied};

/// What an object is to propagation.
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

/// What is to be done with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// As `kubectl apply` would.
    Apply,
    Delete,
}

/// An object as it would be stored, or would be no more.
#[derive(Debug, Clone)]
pub struct Proposed {
    pub resource: Resource,
    pub role: Role,
    /// What is stored now.
    pub before: Option<Arc<Value>>,
    /// What would be stored; nothing when it is to be deleted.
    pub after: Option<Value>,
    /// Whether the caller may see what is stored.
    pub readable: bool,
}

impl Proposed {
    /// The object as it would be, or as it was before it went.
    pub fn seen(&self) -> &Value {
        self.after.as_ref().or(self.before.as_deref()).unwrap_or(&Value::Null)
    }

    /// What it was and what it would be.
    pub(super) fn versions(&self) -> impl Iterator<Item = &Value> {
        self.before.as_deref().into_iter().chain(&self.after)
    }
}

/// Everything that is proposed together.
#[derive(Debug, Clone, Default)]
pub struct Proposal {
    pub objects: Vec<Proposed>,
}

impl Proposal {
    pub(super) fn find(&self, resource: &Resource, namespace: &str, name: &str) -> Option<&Proposed> {
        let is_it = |one: &&Proposed| {
            one.resource == *resource
                && unstructured::namespace(one.seen()) == namespace
                && unstructured::name(one.seen()) == name
        };
        self.objects.iter().find(is_it)
    }

    pub(super) fn of(&self, role: Role) -> impl Iterator<Item = &Proposed> {
        self.objects.iter().filter(move |one| one.role == role)
    }
}

impl Reports {
    /// What objects of a resource are to propagation; none when they are nothing to it that can be planned.
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

    /// Learns from the control plane what would be stored: defaults, validation and admission are its own, in a dry run.
    pub async fn propose(
        &self,
        resource: Resource,
        role: Role,
        (given, wish): (&Value, Wish),
        readable: bool,
    ) -> Result<Proposed, Error> {
        let objects = &self.context.objects;
        let target = Target::new(&resource, unstructured::namespace(given), unstructured::name(given));
        if wish == Wish::Delete {
            // Whoever protects an object refuses now; one that is not there is not found.
            objects.would_delete(target).await?;
        }
        // What the caller may not see is not made use of: neither answers nor refusals can tell of it then.
        let before = objects.get(target).await?.map(|before| if readable { before } else { emptied(before) });
        let after = match wish {
            Wish::Delete => None,
            Wish::Apply => {
                let wanted = applied(before.as_ref(), given);
                Some(match before {
                    Some(_) => objects.would_replace(target, &wanted).await?,
                    None => not_yet_known(role, objects.would_create(&resource, target.namespace, &wanted).await?),
                })
            }
        };
        let after = after.map(|after| if readable { after } else { masked(after) });
        Ok(Proposed { role, before: before.map(Arc::new), after, readable, resource })
    }

    /// The interpreter with the customizations that are proposed; `None` when there are none.
    pub(super) async fn proposed_interpreter(&self, proposal: &Proposal) -> Result<Option<Interpreter>, Error> {
        if proposal.of(Role::Customization).next().is_none() {
            return Ok(None);
        }
        let interpreter = self.context.interpreter.without_customizations();
        let kind = &self.context.kinds.interpreter_customization;
        for customization in self.as_proposed(kind, None, proposal).await? {
            let typed: ResourceInterpreterCustomization = decode(&customization)?;
            interpreter.learn(unstructured::name(&customization), Some(&typed));
        }
        Ok(Some(interpreter))
    }
}

/// A dry run makes ids up; the real ones will be others.
fn not_yet_known(role: Role, mut object: Value) -> Value {
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        unstructured::remove(&mut object, &["metadata", field]);
    }
    let id = permanent_id::policy_label(Scope::of_namespace(unstructured::namespace(&object)));
    if role == Role::Policy && unstructured::label(&object, id).is_some() {
        unstructured::set(&mut object, &["metadata", "labels", id], json!(UNKNOWN_ID));
    }
    object
}
