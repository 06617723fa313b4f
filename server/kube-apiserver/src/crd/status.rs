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
    for other in others {
        let used = Definition(other).accepted_names();
        used_names.extend([used.plural, used.singular].into_iter().chain(used.short_names));
        used_kinds.extend([used.kind, used.list_kind]);
    }
    let (requested, mut accepted) = (definition.names(), definition.accepted_names());
    let conflicts = [
        ("PluralConflict", accept(&requested.plural, &mut accepted.plural, &used_names)),
        ("SingularConflict", accept(&requested.singular, &mut accepted.singular, &used_names)),
        ("ShortNamesConflict", accept_short_names(&requested.short_names, &mut accepted.short_names, &used_names)),
        ("KindConflict", accept(&requested.kind, &mut accepted.kind, &used_kinds)),
        ("ListKindConflict", accept(&requested.list_kind, &mut accepted.list_kind, &used_kinds)),
    ];
    // The condition has the last conflict.
    let conflict = conflicts.into_iter().rev().find_map(|(reason, message)| Some((reason, message?)));
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

fn find_conflict(name: &str, used: &BTreeSet<String>) -> Option<String> {
    used.contains(name).then(|| format!("{name:?} is already in use"))
}

/// Replaces the accepted name with the requested one, or returns a message if another CRD has it.
fn accept(requested: &str, accepted: &mut String, used: &BTreeSet<String>) -> Option<String> {
    let conflict = find_conflict(requested, used).filter(|_| requested != accepted.as_str());
    if conflict.is_none() {
        requested.clone_into(accepted);
    }
    conflict
}

/// Like [`accept`] for the short names, which are accepted together.
fn accept_short_names(requested: &[String], accepted: &mut Vec<String>, used: &BTreeSet<String>) -> Option<String> {
    let new = requested.iter().filter(|short| !short.is_empty() && !accepted.contains(short));
    let conflicts: Vec<String> = new.filter_map(|short| find_conflict(short, used)).collect();
    match conflicts.as_slice() {
        [] => {
            requested.clone_into(accepted);
            None
        }
        [one] => Some(one.clone()),
        many => Some(format!("[{}]", many.join(", "))),
    }
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
