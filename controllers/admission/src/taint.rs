//! Admission of ClusterTaintPolicies.

use crowsnest_api::policy::{ClusterTaintPolicy, Taint};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::taints::NO_EXECUTE;

use super::decode::decode;
use super::{AdmissionContext, Outcome, Refusal, Request};

pub(super) fn validate(request: &Request, context: &AdmissionContext<'_>) -> Result<Outcome, Refusal> {
    let policy: ClusterTaintPolicy = decode(&request.object)?;
    let errors = validate_taints(&policy.spec.taints, context.allow_no_execute_taint_policy);
    Refusal::check(&errors).map(|()| Outcome::Unchanged)
}

fn validate_taints(taints: &[Taint], allow_no_execute: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, taint) in taints.iter().enumerate() {
        let field = format!("spec.taints[{index}]");
        if !allow_no_execute && taint.effect == NO_EXECUTE {
            let detail = "Configuring taint with NoExecute effect is not allowed, \
                          this capability must be explicitly enabled by administrators through command-line flags";
            errors.push(FieldError::forbidden(&field, detail));
        }
        let is_same = |other: &Taint| other.key == taint.key && other.effect == taint.effect;
        if taints[index + 1..].iter().any(is_same) {
            let value =
                format!("Duplicate taint with the same key({}) and effect({}) is not allowed", taint.key, taint.effect);
            errors.push(FieldError::duplicate(&field, &value));
        }
    }
    errors
}
