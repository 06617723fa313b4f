//! Conditions of a terminating namespace, with the wording of Kubernetes' `pkg/controller/namespace/deletion`. Has no
//! side effects.

use std::collections::BTreeMap;

use crowsnest_registry::object::format_time;
use jiff::Timestamp;
use serde_json::{Value, json};

/// Content that remains after an attempt to delete the content of a namespace, and the errors of the attempt.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RemainingContent {
    /// Group versions whose discovery failed, with the error.
    pub undiscovered: BTreeMap<String, String>,
    /// Errors of failed deletions.
    pub failures: Vec<String>,
    /// Number of remaining pods. While there are any, other content is not deleted, and `resources` is empty.
    pub pods: usize,
    /// Number of remaining objects by `resource.group`.
    pub resources: BTreeMap<String, usize>,
    /// Number of objects that wait for a finalizer, by finalizer.
    pub finalizers: BTreeMap<String, usize>,
}

impl RemainingContent {
    /// True if the namespace has no content left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// For each condition: its type, reason and message for status `False`, and reason and message for status `True` if
    /// that is its current status.
    fn conditions(&self) -> [(&'static str, [&'static str; 2], Option<(&'static str, String)>); 5] {
        let undiscovered: Vec<String> =
            self.undiscovered.iter().map(|(version, reason)| format!("{version}: {reason}")).collect();
        let mut failures = self.failures.clone();
        failures.sort();
        let list = |counts: &BTreeMap<String, usize>, verb: &str| {
            let mut texts: Vec<String> =
                counts.iter().map(|(name, count)| format!("{name} {verb} {count} resource instances")).collect();
            texts.sort();
            texts.join(", ")
        };
        [
            (
                "NamespaceDeletionDiscoveryFailure",
                ["ResourcesDiscovered", "All resources successfully discovered"],
                (!undiscovered.is_empty()).then(|| {
                    let complete = "unable to retrieve the complete list of server APIs";
                    let (count, all) = (undiscovered.len(), undiscovered.join(", "));
                    ("DiscoveryFailed", format!("Discovery failed for some groups, {count} failing: {complete}: {all}"))
                }),
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                ["ParsedGroupVersions", "All legacy kube types successfully parsed"],
                None,
            ),
            (
                "NamespaceDeletionContentFailure",
                ["ContentDeleted", "All content successfully deleted, may be waiting on finalization"],
                (!failures.is_empty()).then(|| {
                    let (count, all) = (failures.len(), failures.join(", "));
                    ("ContentDeletionFailed", format!("Failed to delete all resource types, {count} remaining: {all}"))
                }),
            ),
            (
                "NamespaceContentRemaining",
                ["ContentRemoved", "All content successfully removed"],
                (!self.resources.is_empty()).then(|| {
                    let all = list(&self.resources, "has");
                    ("SomeResourcesRemain", format!("Some resources are remaining: {all}"))
                }),
            ),
            (
                "NamespaceFinalizersRemaining",
                ["ContentHasNoFinalizers", "All content-preserving finalizers finished"],
                (!self.finalizers.is_empty()).then(|| {
                    let all = list(&self.finalizers, "in");
                    let message_start = "Some content in the namespace has finalizers remaining";
                    ("SomeFinalizersRemain", format!("{message_start}: {all}"))
                }),
            ),
        ]
    }
}

/// Updates the five conditions; conditions of other types are kept.
pub(super) fn set_conditions(conditions: &mut Value, remaining: &RemainingContent, now: Timestamp) {
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    for (condition_type, [false_reason, false_message], reason_and_message) in remaining.conditions() {
        let status = if reason_and_message.is_some() { "True" } else { "False" };
        let (reason, message) = reason_and_message.unwrap_or_else(|| (false_reason, false_message.to_owned()));
        let old = conditions.iter_mut().find(|condition| condition["type"] == condition_type);
        let since = match &old {
            Some(old) if old["status"] == status => old["lastTransitionTime"].clone(),
            _ => format_time(now).into(),
        };
        let new = json!({
            "type": condition_type, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
        });
        match old {
            Some(old) => *old = new,
            None => conditions.push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_report_remaining_content() {
        let counts = |counts: &[(&str, usize)]| counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let cases = [
            ("nothing", RemainingContent::default(), vec![]),
            // As in Kubernetes, the totals are omitted while pods remain.
            ("pods", RemainingContent { pods: 2, ..RemainingContent::default() }, vec![]),
            (
                "content",
                RemainingContent {
                    resources: counts(&[("secrets.", 1), ("jobs.batch", 3)]),
                    finalizers: counts(&[("orphan", 1), ("example.com/hold", 2)]),
                    ..RemainingContent::default()
                },
                vec![
                    (
                        "NamespaceContentRemaining",
                        "SomeResourcesRemain",
                        "Some resources are remaining: jobs.batch has 3 resource instances, secrets. has 1 resource instances",
                    ),
                    (
                        "NamespaceFinalizersRemaining",
                        "SomeFinalizersRemain",
                        "Some content in the namespace has finalizers remaining: example.com/hold in 2 resource instances, orphan in 1 resource instances",
                    ),
                ],
            ),
            (
                "failures",
                RemainingContent {
                    undiscovered: BTreeMap::from([(
                        "b.example.com/v1".to_owned(),
                        "stale GroupVersion discovery: b.example.com/v1".to_owned(),
                    )]),
                    failures: vec!["second".into(), "first".into()],
                    ..RemainingContent::default()
                },
                vec![
                    (
                        "NamespaceDeletionDiscoveryFailure",
                        "DiscoveryFailed",
                        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: b.example.com/v1: stale GroupVersion discovery: b.example.com/v1",
                    ),
                    (
                        "NamespaceDeletionContentFailure",
                        "ContentDeletionFailed",
                        "Failed to delete all resource types, 2 remaining: first, second",
                    ),
                ],
            ),
        ];
        let (before, now): (Timestamp, Timestamp) =
            ("2026-01-01T00:00:00Z".parse().unwrap(), "2026-01-01T00:01:00Z".parse().unwrap());
        for (case, remaining, expected) in cases {
            let foreign = json!({"type": "Foreign", "status": "True"});
            let mut conditions = json!([foreign]);
            set_conditions(&mut conditions, &RemainingContent::default(), before);
            set_conditions(&mut conditions, &remaining, now);
            let all = conditions.as_array().unwrap();
            assert_eq!((all.len(), &all[0]), (6, &foreign), "{case}");
            let true_conditions: Vec<(&str, &str, &str)> = all[1..]
                .iter()
                .filter(|c| c["status"] == "True")
                .map(|c| ["type", "reason", "message"].map(|key| c[key].as_str().unwrap()).into())
                .collect();
            assert_eq!(true_conditions, expected, "{case}");
            for condition in &all[1..] {
                let since = if condition["status"] == "True" { now } else { before };
                assert_eq!(condition["lastTransitionTime"], format_time(since), "{case} {condition}");
            }
        }
    }
}
