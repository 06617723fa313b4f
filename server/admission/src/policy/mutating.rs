//! `MutatingAdmissionPolicy` admission: policies change objects one after the other, before webhooks are called.

use std::sync::Arc;

use async_trait::async_trait;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Cause};
use crowsnest_cel::authorizer::AccessChecker;
use crowsnest_cel::{Budget, with_base_scope};
use crowsnest_registry::admission::expression::{self, Inputs};
use crowsnest_registry::admission::{Admission, Attributes, Mutation};
use crowsnest_registry::object::Object;
use crowsnest_schema::SchemaRef;
use crowsnest_schema::schema_set::SchemaSet;
use serde_json::Value;

use super::config::{Binding, Policy};
use super::evaluation::{bind_variables, conditions_hold};
use super::patches::apply_mutation;
use super::{Policies, PolicyMatch, Write};
use crate::environment::{Environment, convert_to_request_version, convert_to_version};

/// Name of this admission step in the record of reinvocations.
const STEP: &str = "MutatingAdmissionPolicy";

/// The admission plugin.
pub struct MutatingPolicies(Policies);

/// A matching policy with a binding and one set of parameters.
struct Invocation<'p> {
    policy: &'p Policy,
    binding: &'p Binding,
    /// Version in which the policy changes the object.
    gvr: Gvr,
    params: Option<Value>,
}

impl Invocation<'_> {
    /// Key of this invocation in the record of reinvocations.
    fn key(&self) -> String {
        let params_key = |params: &Value| format!("{}/{}", params.namespace(), params.name());
        let params = self.params.as_ref().map(params_key).unwrap_or_default();
        format!("{}/{}/{params}", self.policy.name, self.binding.name)
    }
}

/// Messages of denials, and the reason of the first one.
#[derive(Default)]
struct Denials {
    messages: Vec<String>,
    reason: Option<&'static str>,
}

impl Denials {
    /// Adds a denial unless the failure policy is `Ignore`. `reason` is that of the Status; `None` means `Forbidden`.
    fn add(&mut self, policy: &Policy, binding: Option<&Binding>, message: &str, reason: Option<&'static str>) {
        if policy.ignores_failure {
            tracing::debug!(policy = policy.name, error = message, "ignoring a policy that failed");
            return;
        }
        if self.messages.is_empty() {
            self.reason = reason;
        }
        self.messages.push(match binding {
            Some(binding) => {
                format!("policy '{}' with binding '{}' denied request: {message}", policy.name, binding.name)
            }
            None => format!("policy {:?} denied request: {message}", policy.name),
        });
    }

    fn into_result(self, a: &Attributes<'_>) -> ApiResult<()> {
        let Some(first) = self.messages.first() else { return Ok(()) };
        let mut error = ApiError::forbidden(&a.resource.gvr.group, &a.resource.gvr.resource, a.name, "");
        error.message.clone_from(first);
        if let Some(reason) = self.reason {
            reason.clone_into(&mut error.reason);
        }
        if let Some(details) = &mut error.details {
            details.causes.extend(self.messages.into_iter().map(|message| Cause { message, ..Cause::default() }));
        }
        Err(error)
    }
}

impl MutatingPolicies {
    pub fn new(environment: Arc<dyn Environment>, access_checker: Arc<dyn AccessChecker>) -> Self {
        Self(Policies::new(
            environment,
            access_checker,
            ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
        ))
    }

    /// True if a policy has rules for this write.
    pub fn has_rules_for(&self, a: &Attributes<'_>) -> bool {
        self.0.has_rules_for(a)
    }

    /// Applies the mutations of one policy to the object if its match conditions are met.
    async fn invoke(
        &self,
        write: &Write<'_>,
        invocation: &Invocation<'_>,
        object: &mut Value,
        denials: &mut Denials,
    ) -> ApiResult<()> {
        let (policy, a) = (invocation.policy, write.attributes);
        let (user_authorizer, request_action) = expression::user_authorizer(&self.0.access_checker, a);
        let (converted, old, request) =
            write.convert(&invocation.gvr, Some(object)).await.map_err(ApiError::internal)?;
        let (params, namespace) = (invocation.params.as_ref(), write.namespace);
        let authorizer = Some((&user_authorizer, &request_action));
        let inputs =
            Inputs { object: converted.as_ref(), old: old.as_ref(), request: &request, namespace, params, authorizer };
        match with_base_scope(|base| conditions_hold(policy, &inputs, base)) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(reason) => {
                denials.add(policy, Some(invocation.binding), &reason, Some("Invalid"));
                return Ok(());
            }
        }
        let key = invocation.key();
        if !a.reinvocation.should_invoke(STEP, &key) {
            return Ok(());
        }
        let before = object.clone();
        let schema = schema(write, &invocation.gvr);
        for mutation in &policy.mutations {
            let current = convert_to_version(&invocation.gvr, a, Some(object)).await.map_err(ApiError::internal)?;
            let changed = with_base_scope(|base| {
                let inputs = Inputs { object: current.as_ref(), ..inputs };
                let mut scope = inputs.scope(base);
                let failed = bind_variables(policy, &mut scope, &mut Budget::for_rules());
                apply_mutation(mutation, current.as_ref().unwrap_or(&Value::Null), schema.as_deref(), &scope, &failed)
            });
            match changed {
                Ok(changed) => *object = convert_to_request_version(&invocation.gvr, a, changed).await?,
                Err(reason) => denials.add(policy, Some(invocation.binding), &reason, Some("Invalid")),
            }
        }
        a.reinvocation.record_invocation(STEP, &key, *object != before, policy.can_reinvoke);
        Ok(())
    }
}

/// Schema of the object's kind in a version.
fn schema(write: &Write<'_>, gvr: &Gvr) -> Option<SchemaRef> {
    if let Some(sub) = write.attributes.subresource_of_other_kind() {
        return SchemaSet::builtin().kind(&sub.group, &sub.version, &sub.kind);
    }
    match *gvr == write.attributes.resource.gvr {
        true => write.attributes.resource.strategy.schema(),
        false => write.environment.schema(gvr),
    }
}

#[async_trait]
impl Admission for MutatingPolicies {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let Some(object) = object else { return Ok(()) };
        let Some(configured) = self.0.policies_unless_exempt(a) else { return Ok(()) };
        let write = Write::new(&*self.0.environment, a).await?;
        let mut denials = Denials::default();
        let mut invocations = Vec::new();
        // All policies are matched before any of them changes the object.
        for (policy, bindings) in &configured.policies {
            for policy_match in write.match_bindings(policy, bindings, Some(object)).await {
                match policy_match {
                    PolicyMatch::Applies { binding, gvr, params } => {
                        let invocation = |params| Invocation { policy, binding, gvr: gvr.clone(), params };
                        invocations.extend(params.into_iter().map(invocation));
                    }
                    PolicyMatch::Misconfigured { binding, reason } => {
                        let subject = if binding.is_some() { "binding" } else { "policy" };
                        denials.add(policy, binding, &format!("failed to configure {subject}: {reason}"), None);
                    }
                }
            }
        }
        a.reinvocation.enter(STEP, Some(object));
        for invocation in &invocations {
            self.invoke(&write, invocation, object, &mut denials).await?;
        }
        a.reinvocation.leave(STEP, Some(object));
        denials.into_result(a)
    }
}
