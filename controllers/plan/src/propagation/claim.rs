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
        let note = |key| annotation(object, key).filter(|text| !text.is_empty());
        let mark = |key| label(object, key).filter(|text| !text.is_empty());
        let id = mark(labels::PROPAGATION_POLICY_PERMANENT_ID);
        let namespace = note(annotations::PROPAGATION_POLICY_NAMESPACE);
        if let (Some(namespace), Some(name), Some(id)) = (namespace, note(annotations::PROPAGATION_POLICY_NAME), id) {
            return Claim::Policy { namespace: namespace.to_owned(), name: name.to_owned(), id: id.to_owned() };
        }
        let id = mark(labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID);
        if let (Some(name), Some(id)) = (note(annotations::CLUSTER_PROPAGATION_POLICY_NAME), id) {
            return Claim::ClusterPolicy { name: name.to_owned(), id: id.to_owned() };
        }
        Claim::None
    }

    /// True if the claim names `policy`. A policy that was recreated under the same name has another id and takes
    /// over.
    pub fn names(&self, policy: &Policy<'_>) -> bool {
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

/// Takeover of a template by the policy `by` from the policy that claims it.
#[derive(Debug, Clone, Copy)]
pub struct Preemption<'a> {
    pub by: &'a Policy<'a>,
    pub from: &'a Claim,
}

impl Preemption<'_> {
    fn winner(&self) -> String {
        match self.by.namespace {
            "" => format!("Cluster propagation policy({})", self.by.name),
            namespace => format!("Propagation policy({namespace}/{})", self.by.name),
        }
    }

    fn loser(&self) -> String {
        match self.from {
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
    let owned = |text: &str| text.to_owned();
    match policy.namespace {
        "" => (
            vec![(labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, owned(policy.permanent_id))],
            vec![(annotations::CLUSTER_PROPAGATION_POLICY_NAME, owned(policy.name))],
        ),
        namespace => (
            vec![(labels::PROPAGATION_POLICY_PERMANENT_ID, owned(policy.permanent_id))],
            vec![
                (annotations::PROPAGATION_POLICY_NAMESPACE, owned(namespace)),
                (annotations::PROPAGATION_POLICY_NAME, owned(policy.name)),
            ],
        ),
    }
}

/// Merge patch that claims a template. `None` if it is claimed already. The claim of a namespaced policy replaces
/// that of a cluster-scoped one.
pub fn patch(template: &Value, policy: &Policy<'_>) -> Option<Value> {
    let (wanted_labels, wanted_annotations) = metadata(policy);
    let namespaced = !policy.namespace.is_empty();
    let foreign = namespaced && label(template, labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID).is_some();
    let claimed = wanted_labels.iter().all(|(key, value)| label(template, key) == Some(value));
    if claimed && !foreign {
        return None;
    }
    let mut patch = json!({"metadata": {"labels": {}, "annotations": {}}});
    if foreign {
        patch["metadata"]["labels"][labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID] = Value::Null;
        patch["metadata"]["annotations"][annotations::CLUSTER_PROPAGATION_POLICY_NAME] = Value::Null;
    }
    for (key, value) in wanted_labels {
        patch["metadata"]["labels"][key] = json!(value);
    }
    for (key, value) in wanted_annotations {
        patch["metadata"]["annotations"][key] = json!(value);
    }
    Some(patch)
}

/// Merge patch that removes the claim of the policy with `id`. `None` if the object is not claimed by it.
pub fn release(object: &Value, id: &str) -> Option<Value> {
    let of_policy = label(object, labels::PROPAGATION_POLICY_PERMANENT_ID) == Some(id);
    let of_cluster_policy = label(object, labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID) == Some(id);
    if of_policy {
        return Some(json!({"metadata": {
            "labels": {labels::PROPAGATION_POLICY_PERMANENT_ID: null},
            "annotations": {
                annotations::PROPAGATION_POLICY_NAMESPACE: null,
                annotations::PROPAGATION_POLICY_NAME: null,
            },
        }}));
    }
    of_cluster_policy.then(|| {
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
    fn preemption_events(#[case] namespace: &str, #[case] from: Claim, #[case] expected: [&str; 2]) {
        let [by, old] = expected;
        let spec = PropagationSpec::default();
        let by_policy = Policy { namespace, name: "new", permanent_id: "2", is_terminating: false, spec: &spec };
        let preemption = Preemption { by: &by_policy, from: &from };
        assert_eq!(preemption.success_message(), format!("{by} preempted {old} successfully"));
        assert_eq!(preemption.failure_message("no"), format!("{by} failed to preempt {old}: no"));
    }
}
