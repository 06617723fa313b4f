//! Status of a CRD: accepted names, conditions and stored versions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::definition::{Definition, Names, list, text};

/// A status condition without timestamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

impl Condition {
    pub fn new(kind: &'static str, status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, status, reason, message: message.into() }
    }

    /// Sets the condition in `status.conditions` of an object. The transition time is kept if the condition's status is
    /// unchanged. Returns true if anything changed.
    pub fn set(&self, object: &mut Value, now: jiff::Timestamp) -> bool {
        let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let new = json!({
            "type": self.kind, "status": self.status, "reason": self.reason, "message": self.message, "lastTransitionTime": time,
        });
        let Some(object) = object.as_object_mut() else { return false };
        let status = object.entry("status").or_insert_with(|| json!({}));
        let Some(status) = status.as_object_mut() else { return false };
        let conditions = status.entry("conditions").or_insert_with(|| json!([]));
        if !conditions.is_array() {
            *conditions = json!([]);
        }
        let Some(conditions) = conditions.as_array_mut() else { return false };
        let Some(old) = conditions.iter_mut().find(|c| text(c, "/type") == self.kind) else {
            conditions.push(new);
            return true;
        };
        let is_same = ["status", "reason", "message"].iter().all(|key| old.get(*key) == new.get(*key));
        if is_same {
            return false;
        }
        let kept_time =
            (old.get("status") == new.get("status")).then(|| old.get("lastTransitionTime").cloned()).flatten();
        *old = new;
        if let Some(kept_time) = kept_time {
            old["lastTransitionTime"] = kept_time;
        }
        true
    }
}

/// Desired status of a CRD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub accepted: Names,
    pub conditions: Vec<Condition>,
    pub is_established: bool,
}

/// Decides the accepted names and the conditions of `definition`; `others` are the other CRDs in its group. A name that
/// another CRD has is not accepted.
pub fn decide(definition: Definition<'_>, others: &[&Value]) -> Decision {
    let mut used_names: BTreeSet<String> = BTreeSet::new();
    let mut used_kinds: BTreeSet<String> = BTreeSet::new();
    for definition_json in others {
        let used = Definition(definition_json).accepted_names();
        used_names.extend([used.plural, used.singular].into_iter().chain(used.short_names));
        used_kinds.extend([used.kind, used.list_kind]);
    }
    let (requested, previous) = (definition.names(), definition.accepted_names());
    let mut accepted = previous.clone();
    let mut conflict: Option<(&'static str, String)> = None;
    let find_conflict = |requested: &str, previous: &str, used: &BTreeSet<String>| {
        (requested != previous && used.contains(requested)).then(|| format!("{requested:?} is already in use"))
    };
    match find_conflict(&requested.plural, &previous.plural, &used_names) {
        Some(text) => conflict = Some(("PluralConflict", text)),
        None => accepted.plural.clone_from(&requested.plural),
    }
    match find_conflict(&requested.singular, &previous.singular, &used_names) {
        Some(text) => conflict = Some(("SingularConflict", text)),
        None => accepted.singular.clone_from(&requested.singular),
    }
    let short_name_conflicts: Vec<String> = requested
        .short_names
        .iter()
        .filter(|short| !previous.short_names.contains(short))
        .filter_map(|short| find_conflict(short, "", &used_names))
        .collect();
    match short_name_conflicts.as_slice() {
        [] => accepted.short_names.clone_from(&requested.short_names),
        [one] => conflict = Some(("ShortNamesConflict", one.clone())),
        many => conflict = Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
    }
    match find_conflict(&requested.kind, &previous.kind, &used_kinds) {
        Some(text) => conflict = Some(("KindConflict", text)),
        None => accepted.kind.clone_from(&requested.kind),
    }
    match find_conflict(&requested.list_kind, &previous.list_kind, &used_kinds) {
        Some(text) => conflict = Some(("ListKindConflict", text)),
        None => accepted.list_kind.clone_from(&requested.list_kind),
    }
    accepted.categories = requested.categories;

    let names = match &conflict {
        Some((reason, message)) => Condition::new("NamesAccepted", "False", reason, message.clone()),
        None => Condition::new("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
    };
    let was_established = definition.is_condition_true("Established");
    let mut conditions = vec![names];
    if was_established || conflict.is_none() {
        if !was_established {
            let message = "the initial names have been accepted";
            conditions.push(Condition::new("Established", "True", "InitialNamesAccepted", message));
        }
    } else {
        conditions.push(Condition::new("Established", "False", "NotAccepted", "not all names are accepted"));
    }
    conditions.extend(approval_condition(definition));
    Decision { accepted, conditions, is_established: was_established || conflict.is_none() }
}

/// The condition of the API approval that CRDs in protected community groups need.
fn approval_condition(definition: Definition<'_>) -> Option<Condition> {
    let group = definition.group();
    if !["k8s.io", "kubernetes.io"].iter().any(|g| group == *g || group.ends_with(&format!(".{g}"))) {
        return None;
    }
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    let approval = text(definition.0, "/metadata/annotations/api-approved.kubernetes.io");
    Some(if approval.starts_with("unapproved") {
        Condition::new(KIND, "False", "UnapprovedAnnotation", format!("not approved: {approval:?}"))
    } else if approval.is_empty() {
        let message = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
        Condition::new(KIND, "False", "MissingAnnotation", message)
    } else {
        Condition::new(KIND, "True", "ApprovedAnnotation", format!("approved in {approval}"))
    })
}

/// Applies a decision to a copy of the CRD; `None` if nothing changes.
pub fn apply(definition: &Value, decision: &Decision, now: jiff::Timestamp) -> Option<Value> {
    let mut updated = definition.clone();
    let mut changed = false;
    for condition in &decision.conditions {
        changed |= condition.set(&mut updated, now);
    }
    let accepted = decision.accepted.to_json();
    if updated.pointer("/status/acceptedNames") != Some(&accepted) {
        updated["status"]["acceptedNames"] = accepted;
        changed = true;
    }
    changed.then_some(updated)
}

/// `status.storedVersions` including the current storage version.
pub fn stored_versions(definition: Definition<'_>) -> Vec<Value> {
    let mut stored = list(definition.0, "/status/storedVersions").to_vec();
    if let Some(storage) = definition.storage_version() {
        let name = Value::from(storage.name());
        if !stored.contains(&name) {
            stored.push(name);
        }
    }
    stored
}
