//! Lazy activation (`activationPreference: Lazy`): changes of a policy reach a template's binding only with the next
//! change of the template by its user.

use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::binding::ReplicaFacts;
use super::choice::Policy;
use super::claim::Claim;

/// Change of a template since its last reconciliation, in increasing order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PendingChange {
    /// This process has just listed the template, so it can have changed before.
    Listed,
    /// The template is new, or its previous version is no longer stored.
    Unknown,
    ByUser,
}

/// True if the template's binding should follow its policy now. `pending` is the change of the template that was not
/// reconciled yet.
pub fn is_activated(
    policy: &Policy<'_>,
    pending: Option<PendingChange>,
    template: &Value,
    binding: Option<&Value>,
    replica_facts: &ReplicaFacts,
) -> bool {
    !policy.is_lazy()
        || match pending {
            Some(PendingChange::ByUser) => true,
            Some(PendingChange::Listed | PendingChange::Unknown) => is_behind(template, binding, replica_facts),
            None => false,
        }
}

/// True if the template was last written after the policy. An unclaimed template was then created, changed or
/// released while the policy existed, regardless of the order in which the events arrive. Compares resourceVersions,
/// which one control plane assigns in order; versions that are not numbers are incomparable.
pub fn is_newer(template: &Value, policy_version: &str) -> bool {
    let parse = |version: &str| version.parse::<u64>().ok();
    match (parse(unstructured::resource_version(template)), parse(policy_version)) {
        (Some(template), Some(policy)) => template > policy,
        _ => false,
    }
}

/// True if the binding is missing, or if a change of the template by its user has not been propagated to it. For kinds
/// with a status, the resourceVersion does not show this, so only the fields from the interpreter are compared.
fn is_behind(template: &Value, binding: Option<&Value>, replica_facts: &ReplicaFacts) -> bool {
    let Some(binding) = binding else { return true };
    if unstructured::text(binding, &["spec", "resource", "uid"]) != unstructured::uid(template) {
        return true;
    }
    let differs = |field: &str, expected: Value| {
        let actual = unstructured::at(binding, &["spec", field]).unwrap_or(&Value::Null);
        !unstructured::semantically_equal(actual, &expected)
    };
    if unstructured::integer(binding, &["spec", "replicas"]).unwrap_or_default() != i64::from(replica_facts.replicas)
        || differs("replicaRequirements", json!(replica_facts.requirements))
        || differs("components", json!(replica_facts.components))
    {
        return true;
    }
    // Claiming is a write of the control plane; otherwise only users change the version of an object without status.
    template.get("status").is_none()
        && Claim::from_object(template) == Claim::from_object(binding)
        && unstructured::text(binding, &["spec", "resource", "resourceVersion"])
            != unstructured::resource_version(template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_api::policy::PropagationSpec;
    use rstest::rstest;

    fn template(changes: Value) -> Value {
        let mut template = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "20"}});
        json_patch::merge(&mut template, &changes);
        template
    }

    fn binding(changes: Value) -> Option<Value> {
        let mut binding = json!({"spec": {"resource": {"uid": "u", "resourceVersion": "20"}, "replicas": 2}});
        json_patch::merge(&mut binding, &changes);
        Some(binding)
    }

    fn claim_metadata(id: &str) -> Value {
        json!({"metadata": {
            "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": id},
            "annotations": {"clusterpropagationpolicy.karmada.io/name": id},
        }})
    }

    #[rstest]
    #[case::up_to_date(template(json!({})), binding(json!({})), false)]
    #[case::missing(template(json!({})), None, true)]
    #[case::binding_of_an_earlier_object(template(json!({"metadata": {"uid": "new"}})), binding(json!({})), true)]
    #[case::other_replicas(template(json!({})), binding(json!({"spec": {"replicas": 3}})), true)]
    #[case::other_requests(
        template(json!({})), binding(json!({"spec": {"replicaRequirements": {"resourceRequest": {"cpu": "1"}}}})), true
    )]
    #[case::later_version(template(json!({"metadata": {"resourceVersion": "21"}})), binding(json!({})), true)]
    #[case::status_written(
        template(json!({"metadata": {"resourceVersion": "21"}, "status": {"readyReplicas": 1}})), binding(json!({})), false
    )]
    #[case::claim_written(
        template({
            let mut claim = claim_metadata("a");
            claim["metadata"]["resourceVersion"] = json!("21");
            claim
        }),
        binding(json!({})), false
    )]
    fn binding_is_behind_its_template(#[case] template: Value, #[case] binding: Option<Value>, #[case] expected: bool) {
        let replica_facts = ReplicaFacts { replicas: 2, ..ReplicaFacts::default() };
        assert_eq!(is_behind(&template, binding.as_ref(), &replica_facts), expected);
    }

    #[rstest]
    #[case::eager("", None, true)]
    #[case::lazy_without_change("Lazy", None, false)]
    #[case::lazy_changed_by_user("Lazy", Some(PendingChange::ByUser), true)]
    #[case::lazy_listed_and_up_to_date("Lazy", Some(PendingChange::Listed), false)]
    fn policies_activate(#[case] preference: &str, #[case] pending: Option<PendingChange>, #[case] expected: bool) {
        let mut spec = json!({"resourceSelectors": []});
        if !preference.is_empty() {
            spec["activationPreference"] = json!(preference);
        }
        let spec: PropagationSpec = serde_json::from_value(spec).expect("a policy spec");
        let policy = Policy { namespace: "", name: "p", permanent_id: "p", is_terminating: false, spec: &spec };
        let replica_facts = ReplicaFacts { replicas: 2, ..ReplicaFacts::default() };
        let binding = binding(json!({}));
        assert_eq!(is_activated(&policy, pending, &template(json!({})), binding.as_ref(), &replica_facts), expected);
    }

    #[rstest]
    #[case("19", true)]
    #[case("20", false)]
    #[case("9", true)]
    #[case("100", false)]
    #[case("opaque", false)]
    fn versions_are_compared_as_numbers(#[case] policy: &str, #[case] expected: bool) {
        assert_eq!(is_newer(&template(json!({})), policy), expected);
    }
}
