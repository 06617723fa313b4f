//! `ValidatingAdmissionPolicy` admission: failed validations deny the write, add a warning or are written to the
//! audit log.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Cause};
use crowsnest_cel::authorizer::AccessChecker;
use crowsnest_registry::admission::expression::{self, Inputs};
use crowsnest_registry::admission::{Admission, Attributes, Validation};
use serde_json::{Value, json};

use super::config::{Binding, Policy};
use super::evaluation::{Findings, evaluate};
use super::{Policies, PolicyMatch, Write};
use crate::environment::Environment;

/// Maximum size of an audit annotation's value; longer ones are truncated.
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;
/// Maximum number of validation failures per write in the audit log.
const MAX_AUDITED_FAILURES: usize = 50;

/// The admission plugin.
pub struct ValidatingPolicies(Policies);

/// Combined result of all policies for a write.
#[derive(Default)]
struct Decision {
    /// The first denial: message and reason of the Status.
    denial: Option<(String, Option<String>)>,
    warnings: Vec<String>,
    /// Failures for the audit log.
    failures: Vec<Value>,
    /// Values of the current policy's audit annotations by key.
    annotations: BTreeMap<String, Vec<String>>,
}

impl ValidatingPolicies {
    pub fn new(environment: Arc<dyn Environment>, access_checker: Arc<dyn AccessChecker>) -> Self {
        Self(Policies::new(
            environment,
            access_checker,
            ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
        ))
    }

    /// True if a policy has rules for this write.
    pub fn has_rules_for(&self, a: &Attributes<'_>) -> bool {
        self.0.has_rules_for(a)
    }

    async fn evaluate_policy(
        &self,
        write: &Write<'_>,
        (policy, bindings): (&Policy, &[Binding]),
        object: Option<&Value>,
        decision: &mut Decision,
    ) {
        let (user_authorizer, request_action) = expression::user_authorizer(&self.0.access_checker, write.attributes);
        // Objects and request in the version that the policy matches, converted on first use.
        let mut converted = None;
        for policy_match in write.match_bindings(policy, bindings, object).await {
            let (binding, gvr, params) = match policy_match {
                PolicyMatch::Applies { binding, gvr, params } => (binding, gvr, params),
                PolicyMatch::Misconfigured { binding, reason } => {
                    decision.add_misconfiguration(policy, binding, &reason);
                    continue;
                }
            };
            if converted.is_none() {
                converted = Some(write.convert(&gvr, object).await);
            }
            let (object, old, request) = match &converted {
                Some(Ok(converted)) => converted,
                Some(Err(reason)) => {
                    let reason = format!("failed to convert object version: {reason}");
                    decision.add_misconfiguration(policy, Some(binding), &reason);
                    continue;
                }
                None => continue,
            };
            for params in &params {
                let (object, old, params) = (object.as_ref(), old.as_ref(), params.as_ref());
                let (namespace, authorizer) = (write.namespace, Some((&user_authorizer, &request_action)));
                let inputs = Inputs { object, old, request, namespace, params, authorizer };
                decision.add_findings(policy, binding, evaluate(policy, &inputs));
            }
        }
    }
}

#[async_trait]
impl Admission for ValidatingPolicies {
    async fn validate(&self, Validation { attributes: a, object, warnings }: Validation<'_>) -> ApiResult<()> {
        let Some(configured) = self.0.policies_unless_exempt(a) else { return Ok(()) };
        let write = Write::new(&*self.0.environment, a).await?;
        let mut decision = Decision::default();
        for (policy, bindings) in &configured.policies {
            self.evaluate_policy(&write, (policy, bindings), object, &mut decision).await;
            decision.record_annotations(&policy.name, a);
        }
        decision.record_failures(a);
        warnings.append(&mut decision.warnings);
        match decision.denial {
            None => Ok(()),
            Some((message, reason)) => Err(denial_error(a, message, reason)),
        }
    }
}

impl Decision {
    fn deny(&mut self, policy: &Policy, binding: Option<&Binding>, message: &str, reason: Option<String>) {
        let with_binding = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        let message = format!("ValidatingAdmissionPolicy '{}'{with_binding} denied request: {message}", policy.name);
        self.denial.get_or_insert((message, reason));
    }

    /// Denies the write because of a misconfigured policy or binding, unless the failure policy is `Ignore`.
    fn add_misconfiguration(&mut self, policy: &Policy, binding: Option<&Binding>, reason: &str) {
        if policy.ignores_failure {
            tracing::debug!(policy = policy.name, reason, "ignoring a misconfigured policy");
            return;
        }
        let subject = if binding.is_some() { "binding" } else { "policy" };
        self.deny(policy, binding, &format!("failed to configure {subject}: {reason}"), None);
    }

    /// Adds the findings of one evaluation: violations by the actions of the binding, and audit annotations.
    fn add_findings(&mut self, policy: &Policy, binding: &Binding, findings: Findings) {
        for violation in findings.violations {
            for action in &binding.actions {
                match action.as_str() {
                    "Deny" => self.deny(policy, Some(binding), &violation.message, violation.reason.clone()),
                    "Audit" => self.failures.push(json!({
                        "message": violation.message, "policy": policy.name, "binding": binding.name,
                        "expressionIndex": violation.index, "validationActions": binding.actions,
                    })),
                    _ => self.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        policy.name, binding.name, violation.message
                    )),
                }
            }
        }
        for message in findings.failed_audit_annotations {
            self.deny(policy, Some(binding), &message, None);
        }
        for (key, mut value) in findings.audit_annotations {
            if value.len() > MAX_ANNOTATION_BYTES {
                let end = (0..=MAX_ANNOTATION_BYTES).rev().find(|end| value.is_char_boundary(*end)).unwrap_or(0);
                value.truncate(end);
            }
            let values = self.annotations.entry(key).or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }

    /// Writes the audit annotations of a policy to the audit log.
    fn record_annotations(&mut self, policy: &str, a: &Attributes<'_>) {
        for (key, values) in std::mem::take(&mut self.annotations) {
            a.annotate(&format!("{policy}/{key}"), &values.join(", "));
        }
    }

    /// Writes failures of bindings with the action `Audit` to the audit log.
    fn record_failures(&mut self, a: &Attributes<'_>) {
        self.failures.truncate(MAX_AUDITED_FAILURES);
        if !self.failures.is_empty() {
            let failures = Value::Array(std::mem::take(&mut self.failures));
            a.annotate("validation.policy.admission.k8s.io/validation_failure", &failures.to_string());
        }
    }
}

/// The error for a denied write.
fn denial_error(a: &Attributes<'_>, message: String, reason: Option<String>) -> ApiError {
    let mut error = ApiError::forbidden(&a.resource.gvr.group, &a.resource.gvr.resource, a.name, &message);
    let reason = reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "Invalid".to_owned());
    error.code = match reason.as_str() {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    error.reason = reason;
    if let Some(details) = &mut error.details {
        details.causes.push(Cause { message, ..Cause::default() });
    }
    error
}
