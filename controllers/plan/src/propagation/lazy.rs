//! Lazy policies: what one says reaches a template's binding with the template's next change by its user, not before.

use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::binding::Interpreted;
use super::choice::Policy;
use super::claim::Claim;

/// What is known of the changes of a template since it was last looked at; the greater one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Touch {
    /// This process has just found it, so whoever changed it last may have done so before.
    Found,
    /// It is new to us, or what it was before is not known any more.
    Unknown,
    ByUser,
}

/// Whether a template's binding follows its policy now.
pub fn activates(
    policy: &Policy<'_>,
    touch: Option<Touch>,
    template: &Value,
    binding: Option<&Value>,
    interpreted: &Interpreted,
) -> bool {
    !policy.is_lazy()
        || match touch {
            Some(Touch::ByUser) => true,
            Some(Touch::Found | Touch::Unknown) => is_behind(template, binding, interpreted),
            None => false,
        }
}

/// Whether a template was written last after the policy was. An unclaimed one was then made, changed or let go while the
/// policy was there already, whichever of the two is told first. Their versions count the writes of one control plane;
/// where they are no numbers nothing is known.
pub fn is_newer(template: &Value, policy_version: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    match (number(unstructured::resource_version(template)), number(policy_version)) {
        (Some(template), Some(policy)) => template > policy,
        _ => false,
    }
}

/// Whether the binding is missing or shows less than the template says: a change by its user was not carried out. For
/// kinds that have a status the version tells nothing, so what follows from the replicas alone is seen.
fn is_behind(template: &Value, binding: Option<&Value>, interpreted: &Interpreted) -> bool {
    let Some(binding) = binding else { return true };
    if unstructured::text(binding, &["spec", "resource", "uid"]) != unstructured::uid(template) {
        return true;
    }
    let differs = |field: &str, wanted: Value| {
        let shown = unstructured::at(binding, &["spec", field]).unwrap_or(&Value::Null);
        !unstructured::semantically_equal(shown, &wanted)
    };
    if unstructured::integer(binding, &["spec", "replicas"]).unwrap_or_default() != i64::from(interpreted.replicas)
        || differs("replicaRequirements", json!(interpreted.requirements))
        || differs("components", json!(interpreted.components))
    {
        return true;
    }
    // A claim is a write of ours, and nothing else moves the version of what has no status.
    template.get("status").is_none()
        && Claim::of(template) == Claim::of(binding)
        && unstructured::text(binding, &["spec", "resource", "resourceVersion"])
            != unstructured::resource_version(template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_api::policy::PropagationSpec;
    use rstest::rstest;

    fn template(more: Value) -> Value {
        let mut template = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "20"}});
        json_patch::merge(&mut template, &more);
        template
    }

    fn binding(more: Value) -> Option<Value> {
        let mut binding = json!({"spec": {"resource": {"uid": "u", "resourceVersion": "20"}, "replicas": 2}});
        json_patch::merge(&mut binding, &more);
        Some(binding)
    }

    fn claimed(id: &str) -> Value {
        json!({"metadata": {
            "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": id},
            "annotations": {"clusterpropagationpolicy.karmada.io/name": id},
        }})
    }

    #[rstest]
    #[case::up_to_date(template(json!({})), binding(json!({})), false)]
    #[case::missing(template(json!({})), None, true)]
    #[case::of_an_earlier_object(template(json!({"metadata": {"uid": "new"}})), binding(json!({})), true)]
    #[case::other_replicas(template(json!({})), binding(json!({"spec": {"replicas": 3}})), true)]
    #[case::other_needs(
        template(json!({})), binding(json!({"spec": {"replicaRequirements": {"resourceRequest": {"cpu": "1"}}}})), true
    )]
    #[case::a_later_version(template(json!({"metadata": {"resourceVersion": "21"}})), binding(json!({})), true)]
    #[case::a_status_was_written(
        template(json!({"metadata": {"resourceVersion": "21"}, "status": {"readyReplicas": 1}})), binding(json!({})), false
    )]
    #[case::a_claim_was_written(
        template({
            let mut claim = claimed("a");
            claim["metadata"]["resourceVersion"] = json!("21");
            claim
        }),
        binding(json!({})), false
    )]
    fn a_binding_that_shows_less_than_its_template(
        #[case] template: Value,
        #[case] binding: Option<Value>,
        #[case] expected: bool,
    ) {
        let interpreted = Interpreted { replicas: 2, ..Interpreted::default() };
        assert_eq!(is_behind(&template, binding.as_ref(), &interpreted), expected);
    }

    #[rstest]
    #[case::eager("", None, true)]
    #[case::untouched("Lazy", None, false)]
    #[case::by_its_user("Lazy", Some(Touch::ByUser), true)]
    #[case::nothing_lost("Lazy", Some(Touch::Found), false)]
    fn policies_activate(#[case] preference: &str, #[case] touch: Option<Touch>, #[case] expected: bool) {
        let mut spec = json!({"resourceSelectors": []});
        if !preference.is_empty() {
            spec["activationPreference"] = json!(preference);
        }
        let spec: PropagationSpec = serde_json::from_value(spec).expect("a policy spec");
        let policy = Policy { namespace: "", name: "p", permanent_id: "p", terminating: false, spec: &spec };
        let interpreted = Interpreted { replicas: 2, ..Interpreted::default() };
        let binding = binding(json!({}));
        assert_eq!(activates(&policy, touch, &template(json!({})), binding.as_ref(), &interpreted), expected);
    }

    #[rstest]
    #[case("19", true)]
    #[case("20", false)]
    #[case("9", true)]
    #[case("100", false)]
    #[case("opaque", false)]
    fn versions_are_numbers(#[case] policy: &str, #[case] expected: bool) {
        assert_eq!(is_newer(&template(json!({})), policy), expected);
    }
}
