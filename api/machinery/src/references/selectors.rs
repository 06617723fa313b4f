//! Selectors of built-in kinds that select Pods of their namespace.

use super::GroupKind;
use super::kubernetes::{POD, SERVICE};
use crate::selector::Selector;
use serde_json::Value;

/// Form of the selector in a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A map of labels; an empty one selects nothing.
    Labels,
    /// A label selector; an empty one selects everything.
    Selector,
}

/// Kinds with a selector, its field and its form. Workloads own their Pods instead.
const FIELDS: [(GroupKind, &str, Form); 3] = [
    (SERVICE, "/spec/selector", Form::Labels),
    (("networking.k8s.io", "NetworkPolicy"), "/spec/podSelector", Form::Selector),
    (("policy", "PodDisruptionBudget"), "/spec/selector", Form::Selector),
];

/// Kinds that select Pods.
pub const SELECTING_KINDS: [GroupKind; 3] = [FIELDS[0].0, FIELDS[1].0, FIELDS[2].0];

/// The Pods that an object selects in its namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSelection {
    pub kind: GroupKind,
    pub selector: Selector,
    /// Path of the field with the selector.
    pub field_path: String,
}

/// The Pods that an object selects by their labels; `None` if it has no valid selector.
pub fn pod_selection(group: &str, kind: &str, object: &Value) -> Option<PodSelection> {
    let (_, field, form) = FIELDS.iter().find(|(selecting_kind, ..)| *selecting_kind == (group, kind))?;
    let value = object.pointer(field)?;
    let selector = match form {
        Form::Labels => {
            let labels = value.as_object().filter(|labels| !labels.is_empty())?;
            Selector::from_json(Some(&serde_json::json!({"matchLabels": labels}))).ok()?
        }
        Form::Selector => Selector::from_json(Some(value)).ok()?,
    };
    Some(PodSelection { kind: POD, selector, field_path: field.trim_start_matches('/').replace('/', ".") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[rstest]
    #[case::service("", "Service", json!({"spec": {"selector": {"app": "web"}}}), Some("spec.selector"), true)]
    #[case::other_labels("", "Service", json!({"spec": {"selector": {"app": "db"}}}), Some("spec.selector"), false)]
    #[case::service_without_selector("", "Service", json!({"spec": {"selector": {}}}), None, false)]
    #[case::policy_for_all("networking.k8s.io", "NetworkPolicy", json!({"spec": {"podSelector": {}}}), Some("spec.podSelector"), true)]
    #[case::budget("policy", "PodDisruptionBudget", json!({"spec": {"selector": {"matchExpressions": [
        {"key": "app", "operator": "In", "values": ["web", "api"]}]}}}), Some("spec.selector"), true)]
    #[case::invalid("policy", "PodDisruptionBudget", json!({"spec": {"selector": {"matchExpressions": [
        {"key": "app", "operator": "Near", "values": ["web"]}]}}}), None, false)]
    #[case::another_group("example.io", "Service", json!({"spec": {"selector": {"app": "web"}}}), None, false)]
    fn objects_select_pods(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] object: Value,
        #[case] field_path: Option<&str>,
        #[case] expected: bool,
    ) {
        let found = pod_selection(group, kind, &object);
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        assert_eq!(found.as_ref().map(|selected| selected.field_path.as_str()), field_path);
        assert_eq!(found.is_some_and(|selected| selected.selector.matches(&labels)), expected);
    }
}
