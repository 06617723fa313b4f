//! Claims: the permanent id of a template's policy as a label, and the policy's name as annotations.

use crowsnest_api::constants::{annotation as annotations, label as labels};
use serde_json::{Value, json};

use super::choice::Policy;
use crowsnest_apimachinery::unstructured::{annotation, label};

/// The claim on a template or binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    None,
    Policy { namespace: String, name: String, id: String },
    ClusterPolicy { name: String, id: String },
}

impl Claim {
    /// Reads a claim. An incomplete claim counts as none; that of a namespaced policy takes precedence.
    pub fn from_object(object: &Value) -> Self {
        let find_annotation = |key| annotation(object, key).filter(|text| !text.is_empty());
        let find_label = |key| label(object, key).filter(|text| !text.is_empty());
        let id = find_label(labels::PROPAGATION_POLICY_PERMANENT_ID);
        let namespace = find_annotation(annotations::PROPAGATION_POLICY_NAMESPACE);
        if let (Some(namespace), Some(name), Some(id)) =
            (namespace, find_annotation(annotations::PROPAGATION_POLICY_NAME), id)
        {
            return Claim::Policy { namespace: namespace.to_owned(), name: name.to_owned(), id: id.to_owned() };
        }
        let id = find_label(labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID);
        if let (Some(name), Some(id)) = (find_annotation(annotations::CLUSTER_PROPAGATION_POLICY_NAME), id) {
            return Claim::ClusterPolicy { name: name.to_owned(), id: id.to_owned() };
        }
        Claim::None
    }

    /// True if the claim is by `policy`, compared by name. A policy that was recreated under the same name has another id and takes
    /// over the template.
    pub fn refers_to(&self, policy: &Policy<'_>) -> bool {
        match self {
            Claim::None => false,
            Claim::Policy { namespace, name, .. } => policy.namespace == namespace && policy.name == name,
            Claim::ClusterPolicy { name, .. } => policy.namespace.is_empty() && policy.name == name,
        }
    }

    pub fn id(&self) -> &str {
        match self {
            Claim::None => "",
            Claim::Policy { id, .. } | Claim::ClusterPolicy { id, .. } => id,
        }
    }
}

/// Takeover of a template by `policy` from the policy that claims it.
#[derive(Debug, Clone, Copy)]
pub struct Preemption<'a> {
    pub policy: &'a Policy<'a>,
    pub claim: &'a Claim,
}

impl Preemption<'_> {
    fn winner(&self) -> String {
        match self.policy.namespace {
            "" => format!("Cluster propagation policy({})", self.policy.name),
            namespace => format!("Propagation policy({namespace}/{})", self.policy.name),
        }
    }

    fn loser(&self) -> String {
        match self.claim {
            Claim::None => String::new(),
            Claim::Policy { namespace, name, .. } => format!("propagation policy({namespace}/{name})"),
            Claim::ClusterPolicy { name, .. } => format!("cluster propagation policy({name})"),
        }
    }

    /// Message of the event for a successful preemption.
    pub fn success_message(&self) -> String {
        format!("{} preempted {} successfully", self.winner(), self.loser())
    }

    /// Message of the event for a failed preemption.
    pub fn failure_message(&self, error: &str) -> String {
        format!("{} failed to preempt {}: {error}", self.winner(), self.loser())
    }
}

/// Labels and annotations of a policy's claim.
pub fn metadata(policy: &Policy<'_>) -> (Vec<(&'static str, String)>, Vec<(&'static str, String)>) {
    let to_string = |text: &str| text.to_owned();
    match policy.namespace {
        "" => (
            vec![(labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, to_string(policy.permanent_id))],
            vec![(annotations::CLUSTER_PROPAGATION_POLICY_NAME, to_string(policy.name))],
        ),
        namespace => (
            vec![(labels::PROPAGATION_POLICY_PERMANENT_ID, to_string(policy.permanent_id))],
            vec![
                (annotations::PROPAGATION_POLICY_NAMESPACE, to_string(namespace)),
                (annotations::PROPAGATION_POLICY_NAME, to_string(policy.name)),
            ],
        ),
    }
}

/// Merge patch that claims a template. `None` if it is claimed already. The claim of a namespaced policy replaces
/// that of a cluster-scoped one.
pub fn patch(template: &Value, policy: &Policy<'_>) -> Option<Value> {
    let (claim_labels, claim_annotations) = metadata(policy);
    let is_namespaced = !policy.namespace.is_empty();
    let has_cluster_scoped_claim =
        is_namespaced && label(template, labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID).is_some();
    let is_claimed = claim_labels.iter().all(|(key, value)| label(template, key) == Some(value));
    if is_claimed && !has_cluster_scoped_claim {
        return None;
    }
    let mut patch = json!({"metadata": {"labels": {}, "annotations": {}}});
    if has_cluster_scoped_claim {
        patch["metadata"]["labels"][labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID] = Value::Null;
        patch["metadata"]["annotations"][annotations::CLUSTER_PROPAGATION_POLICY_NAME] = Value::Null;
    }
    for (key, value) in claim_labels {
        patch["metadata"]["labels"][key] = json!(value);
    }
    for (key, value) in claim_annotations {
        patch["metadata"]["annotations"][key] = json!(value);
    }
    Some(patch)
}

/// Merge patch that removes the claim of the policy with `id`. `None` if the object is not claimed by it.
pub fn release(object: &Value, id: &str) -> Option<Value> {
    let has_policy_claim = label(object, labels::PROPAGATION_POLICY_PERMANENT_ID) == Some(id);
    let has_cluster_policy_claim = label(object, labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID) == Some(id);
    if has_policy_claim {
        return Some(json!({"metadata": {
            "labels": {labels::PROPAGATION_POLICY_PERMANENT_ID: null},
            "annotations": {
                annotations::PROPAGATION_POLICY_NAMESPACE: null,
                annotations::PROPAGATION_POLICY_NAME: null,
            },
        }}));
    }
    has_cluster_policy_claim.then(|| {
        json!({"metadata": {
            "labels": {labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID: null},
            "annotations": {annotations::CLUSTER_PROPAGATION_POLICY_NAME: null},
        }})
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_api::policy::PropagationSpec;
    use rstest::rstest;

    fn policy(name: &str) -> Claim {
        Claim::Policy { namespace: "ns".to_owned(), name: name.to_owned(), id: "1".to_owned() }
    }

    fn cluster_policy(name: &str) -> Claim {
        Claim::ClusterPolicy { name: name.to_owned(), id: "1".to_owned() }
    }

    #[rstest]
    #[case("ns", policy("old"), ["Propagation policy(ns/new)", "propagation policy(ns/old)"])]
    #[case("ns", cluster_policy("old"), ["Propagation policy(ns/new)", "cluster propagation policy(old)"])]
    #[case("", cluster_policy("old"), ["Cluster propagation policy(new)", "cluster propagation policy(old)"])]
    fn preemption_events_name_both_policies(
        #[case] namespace: &str,
        #[case] claim: Claim,
        #[case] expected: [&str; 2],
    ) {
        let [winner, loser] = expected;
        let spec = PropagationSpec::default();
        let preempting_policy =
            Policy { namespace, name: "new", permanent_id: "2", is_terminating: false, spec: &spec };
        let preemption = Preemption { policy: &preempting_policy, claim: &claim };
        assert_eq!(preemption.success_message(), format!("{winner} preempted {loser} successfully"));
        assert_eq!(preemption.failure_message("no"), format!("{winner} failed to preempt {loser}: no"));
    }
}
