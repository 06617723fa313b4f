//! Steps in the control plane of a member that give access to the whole member: its credentials, and the Works that are
//! applied in it.

use std::collections::{BTreeSet, HashSet};

use super::grants::{has_too_many_new_bindings, steps_to_grant};
use super::step_requirements::{PermissionBuilder, READ_VERBS, StepRequirements, WRITE_VERBS, requirements};
use super::{ControlPlane, RuleSource, StepKind};
use crate::rbac::Action;

const WORK_GROUP: &str = "work.karmada.io";

impl ControlPlane<'_> {
    /// Steps that use the credentials or the Works of the member, then those that first grant the permission for it by
    /// writing a role or a binding.
    pub(super) fn steps_into_cluster(&self) -> Vec<StepRequirements> {
        let mut steps: Vec<_> = self.step_to_read_credentials().into_iter().collect();
        steps.push(self.step_to_write_works());
        let granting: Vec<_> = steps.iter().flat_map(|step| self.steps_to_grant_permissions_of(step)).collect();
        steps.extend(granting);
        steps
    }

    /// True if a namespace of these steps has too many names of new bindings; some are ignored.
    pub(super) fn has_too_many_new_bindings(&self) -> bool {
        let credentials = self.credentials.iter().map(|(namespace, _)| namespace.as_str());
        let namespaces: BTreeSet<&str> = credentials.chain(["", self.execution_namespace]).collect();
        namespaces.into_iter().any(|namespace| has_too_many_new_bindings(self.view, namespace))
    }

    /// Step that reads one of the Secrets with the credentials. `None` if there are none.
    fn step_to_read_credentials(&self) -> Option<StepRequirements> {
        let mut permissions = Vec::new();
        for (namespace, name) in self.credentials {
            let builder = PermissionBuilder { source: RuleSource::ControlPlane, namespace };
            // Permissions without a name come first, so that a step shows the name of the Secret only if a rule names
            // it.
            permissions.extend(builder.permissions(&READ_VERBS, "", "secrets"));
            permissions.push(builder.permission("get", "", "secrets", name));
        }
        (!permissions.is_empty()).then(|| requirements(StepKind::ReadClusterCredentials, [permissions]))
    }

    fn step_to_write_works(&self) -> StepRequirements {
        let builder = PermissionBuilder { source: RuleSource::ControlPlane, namespace: self.execution_namespace };
        requirements(StepKind::WriteWork, [builder.permissions(&WRITE_VERBS, WORK_GROUP, "works")])
    }

    /// Steps that grant one of the permissions of `step` in its namespace, or in all namespaces.
    fn steps_to_grant_permissions_of(&self, step: &StepRequirements) -> Vec<StepRequirements> {
        let mut distinct = HashSet::new();
        let mut steps = Vec::new();
        for permission in step.needs.iter().flatten() {
            let Action::Resource { namespace, .. } = &permission.action else { continue };
            for namespace in ["", namespace.as_str()] {
                let builder = PermissionBuilder { source: RuleSource::ControlPlane, namespace };
                for grant in steps_to_grant(self.view, builder, &permission.action) {
                    let grant = StepRequirements { then: Some(step.kind), ..grant };
                    if distinct.insert(grant.clone()) {
                        steps.push(grant);
                    }
                }
            }
        }
        steps
    }
}
