//! Server-side apply and managedFields.
//!
//! Pure. `registry/` calls [`track_update`] for every create, update and patch, [`apply`] for apply patches. Both stand between
//! decoding with defaults and admission, before the strategy's `prepare_*`, as in kube-apiserver.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::schema::{Schema, normalise};
use crate::status::{ApiError, ApiResult, Cause, Details, Reason};

mod last_applied;
mod managed;
mod path;
#[cfg(test)]
mod tests;
pub(crate) mod typed;

use managed::Entry;
pub use path::{FieldSet, PathElement};

/// Owner of everything an object holds that was never tracked when the first apply comes.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Who writes, as an entry of `metadata.managedFields` names it.
#[derive(Debug, Clone, Copy)]
pub struct Manager<'a> {
    /// `fieldManager`, or the first part of the User-Agent.
    pub name: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    /// Version of the request: `apps/v1`.
    pub api_version: &'a str,
    pub now: jiff::Timestamp,
    /// `Strategy::reset_fields` of the subresource written to: fields this write cannot own.
    pub reset_fields: &'a [&'a [&'a str]],
}

impl Manager<'_> {
    fn entry(&self, apply: bool, fields: FieldSet) -> Entry {
        Entry {
            manager: self.name.to_owned(),
            apply,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: None,
            fields,
        }
    }

    /// Writes through `scale` carry no time.
    fn time(&self) -> Option<String> {
        (self.subresource != "scale").then(|| self.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    fn ignored(&self) -> FieldSet {
        let mut set = FieldSet::default();
        self.reset_fields.iter().for_each(|path| set.insert_fields(path));
        set
    }
}

/// Identity and bookkeeping nobody owns.
static NOBODYS: LazyLock<FieldSet> = LazyLock::new(|| {
    let mut set = FieldSet::default();
    for name in ["apiVersion", "kind", "metadata"] {
        set.insert_fields(&[name]);
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.insert_fields(&["metadata", name]);
    }
    set
});

fn without_managers(object: &Value) -> Value {
    let mut out = object.clone();
    if let Some(metadata) = out.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    out
}

/// The object that a create is compared with: what Go makes of nothing.
fn nothing(schema: Option<&Schema>) -> Value {
    let mut object = json!({"metadata": {}});
    if let Some(schema) = schema {
        normalise(schema, &mut object);
    }
    object
}

/// Writes `metadata.managedFields` of an object about to be created, updated or patched. `schema` of `None` owns by structure.
pub fn track_update(schema: Option<&Schema>, old: Option<&Value>, new: &mut Value, manager: &Manager<'_>) {
    let mut entries = managed::starting_point(old, new, manager.subresource);
    if entries.is_empty() && old.is_some() {
        // Never tracked (or asked to forget): stays so until the first apply.
        managed::encode(new, entries);
        return;
    }
    match old {
        Some(old) => update(schema, old, new, &mut entries, manager),
        None => update(schema, &nothing(schema), new, &mut entries, manager),
    }
    managed::encode(new, entries);
}

/// True when an update did nothing but tell the time: what it set was set back, by admission or by defaults. Such an update
/// is none, or an object that is applied again and again would have as many versions.
pub fn only_times_differ(old: &Value, new: &Value) -> bool {
    is_same_without(METADATA, old, new, |before, after| is_same_without(MANAGED_FIELDS, before, after, same_managers))
}

const METADATA: &str = "metadata";
const MANAGED_FIELDS: &str = "managedFields";

/// Whether two objects are equal in everything but one member, and `same` says so of that.
fn is_same_without(name: &str, old: &Value, new: &Value, same: impl FnOnce(&Value, &Value) -> bool) -> bool {
    let (Value::Object(before), Value::Object(after)) = (old, new) else { return old == new };
    let rest = |fields: &serde_json::Map<String, Value>| fields.len() - usize::from(fields.contains_key(name));
    rest(before) == rest(after)
        && before.iter().all(|(key, value)| key == name || after.get(key) == Some(value))
        && same(before.get(name).unwrap_or(&Value::Null), after.get(name).unwrap_or(&Value::Null))
}

/// Entries are ordered by time, so they may have changed places.
fn same_managers(old: &Value, new: &Value) -> bool {
    fn entries(list: &Value) -> Vec<&Value> {
        list.as_array().into_iter().flatten().collect()
    }
    let (before, mut after) = (entries(old), entries(new));
    let same = |one: &Value, other: &Value| is_same_without("time", one, other, |_, _| true);
    before.len() == after.len()
        && before
            .iter()
            .all(|entry| after.iter().position(|other| same(entry, other)).map(|at| after.swap_remove(at)).is_some())
}

/// The new owner takes what changed; everyone loses what went.
fn update(schema: Option<&Schema>, live: &Value, new: &Value, entries: &mut Vec<Entry>, manager: &Manager<'_>) {
    let (mut taken, mut removed) = changes(schema, live, new, manager);
    for entry in entries.iter_mut() {
        entry.fields.difference(&taken);
        entry.fields.difference(&removed);
    }
    removed.difference(&taken);
    taken.difference(&NOBODYS);
    if !taken.is_empty() {
        let mut own = manager.entry(false, taken);
        own.time = manager.time();
        match entries.iter_mut().find(|entry| entry.same_manager(&own)) {
            Some(entry) => {
                entry.fields.union(&own.fields);
                entry.time = own.time;
            }
            None => entries.push(own),
        }
    }
    entries.retain(|entry| !entry.fields.is_empty());
}

/// (added or modified, removed).
fn changes(schema: Option<&Schema>, live: &Value, new: &Value, manager: &Manager<'_>) -> (FieldSet, FieldSet) {
    let comparison = typed::compare_but(schema, Some(live), Some(new), &[METADATA, MANAGED_FIELDS]);
    let (mut taken, mut removed) = (comparison.modified, comparison.removed);
    taken.union(&comparison.added);
    let ignored = manager.ignored();
    taken.recursive_difference(&ignored);
    removed.recursive_difference(&ignored);
    (taken, removed)
}

/// Merges an applied configuration into the live object (`None`: create). Returns the whole object with its managedFields;
/// equal to `live` when nothing changed. Conflicts are 409 with one cause per field.
pub fn apply(
    schema: Option<&Schema>,
    live: Option<&Value>,
    config: &Value,
    manager: &Manager<'_>,
    force: bool,
) -> ApiResult<Value> {
    check_config(schema, config)?;
    let merged = match merge(schema, live, config, manager, force) {
        Err(Conflicts(conflicts)) if manager.name == "kubectl" && manager.subresource.is_empty() => {
            // kubectl may overwrite what its own client-side apply wrote.
            let allowed = live.and_then(|live| last_applied::unchanged(schema, live)).unwrap_or_default();
            let left: Vec<(Entry, FieldSet)> = conflicts
                .into_iter()
                .map(|(entry, mut set)| {
                    set.difference(&allowed);
                    (entry, set)
                })
                .filter(|(_, set)| !set.is_empty())
                .collect();
            if left.is_empty() { merge(schema, live, config, manager, true) } else { Err(Conflicts(left)) }
        }
        result => result,
    };
    let mut object = merged.map_err(|Conflicts(conflicts)| conflict(&conflicts))?;
    if manager.name == "kubectl" && manager.subresource.is_empty() {
        last_applied::refresh(&mut object, config);
    }
    Ok(object)
}

/// Managers that stand in the way, with their fields.
struct Conflicts(Vec<(Entry, FieldSet)>);

pub(crate) fn check_config(schema: Option<&Schema>, config: &Value) -> ApiResult<()> {
    let text = |path: &str| config.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let mut errors = Vec::new();
    typed::validate(schema, config, "", &mut errors);
    if errors.is_empty() {
        return Ok(());
    }
    let why = if errors.len() == 1 { errors.remove(0) } else { format!("errors:\n  {}", errors.join("\n  ")) };
    let api_version = text("/apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let message = format!(
        "failed to create typed patch object ({}/{}; {group}/{version}, Kind={}): {why}",
        text("/metadata/namespace"),
        text("/metadata/name"),
        text("/kind")
    );
    Err(ApiError::unexplained(500, message))
}

fn merge(
    schema: Option<&Schema>,
    live: Option<&Value>,
    config: &Value,
    manager: &Manager<'_>,
    force: bool,
) -> Result<Value, Conflicts> {
    let before = live.map_or_else(|| nothing(schema), without_managers);
    let mut entries = live.and_then(managed::decode).unwrap_or_default();
    if entries.is_empty() && live.is_some() {
        let owner = Manager { name: BEFORE_FIRST_APPLY, ..*manager };
        update(schema, &nothing(schema), &before, &mut entries, &owner);
    }

    let mut fields = typed::field_set(schema, config);
    fields.member = false;
    fields.recursive_difference(&manager.ignored());
    let mut own = manager.entry(true, fields);
    let last = entries.iter().position(|entry| entry.same_manager(&own)).map(|index| entries.remove(index));
    own.time = last.as_ref().and_then(|entry| entry.time.clone());

    let merged = typed::merge(schema, &before, config);
    let merged = prune(schema, merged, &entries, &own, last.as_ref());
    // As it was applied: a false that Go leaves out is a change of somebody else's true.
    let (taken, removed) = changes(schema, &before, &merged, manager);
    let is_same = merged == before;
    let mut after = merged;
    match schema {
        Some(schema) if schema.name.is_some() => {
            normalise(schema, &mut after);
        }
        // Nulls of custom resources are for their schema to judge.
        _ => crate::schema::decode::settle_metadata(&mut after),
    }

    if !force {
        let conflicts: Vec<(Entry, FieldSet)> = entries
            .iter()
            .map(|entry| (entry.clone(), entry.fields.intersection(&taken)))
            .filter(|(_, set)| !set.is_empty())
            .collect();
        if !conflicts.is_empty() {
            return Err(Conflicts(conflicts));
        }
    }
    for entry in &mut entries {
        entry.fields.difference(&taken);
        entry.fields.difference(&removed);
    }
    own.fields.difference(&NOBODYS);
    if live.is_none() || !is_same {
        own.time = manager.time();
    }
    entries.push(own);
    entries.retain(|entry| !entry.fields.is_empty());
    managed::encode(&mut after, entries);
    Ok(after)
}

/// Removes what this manager applied last time, not this time, and nobody else owns.
fn prune(schema: Option<&Schema>, merged: Value, others: &[Entry], own: &Entry, last: Option<&Entry>) -> Value {
    let Some(last) = last.filter(|last| !last.fields.is_empty()) else { return merged };
    let named = |set: &FieldSet| set.with_named_fields(schema);
    let set_of = |value: &Value| named(&typed::field_set(schema, value));
    let last = named(&last.fields);
    let all = set_of(&merged);

    // Everything of last time goes, then what any manager owns comes back …
    let pruned = typed::remove(schema, &merged, &last);
    let mut owned = set_of(&pruned);
    for entry in others.iter().chain([own]) {
        owned.union(&named(&entry.fields));
    }
    let mut unowned = all.clone();
    unowned.difference(&owned);
    let pruned = typed::remove(schema, &merged, &unowned);

    // … and what was below a removed item without having been applied by this manager.
    let mut gone = all;
    gone.difference(&set_of(&pruned));
    typed::remove(schema, &merged, &gone.intersection(&last))
}

fn conflict(conflicts: &[(Entry, FieldSet)]) -> ApiError {
    let mut ordered: Vec<(String, Vec<String>)> =
        conflicts.iter().map(|(entry, set)| (entry.describe(), set.paths())).collect();
    ordered.sort();
    let causes: Vec<Cause> = ordered
        .iter()
        .flat_map(|(manager, paths)| {
            paths.iter().map(move |path| Cause {
                reason: "FieldManagerConflict".into(),
                message: format!("conflict with {manager}"),
                field: path.clone(),
            })
        })
        .collect();
    let message = if let [one] = causes.as_slice() {
        format!("Apply failed with 1 conflict: {}: {}", one.message, one.field)
    } else {
        let managers: Vec<String> = ordered
            .iter()
            .map(|(manager, paths)| format!("conflicts with {manager}:\n- {}", paths.join("\n- ")))
            .collect();
        format!("Apply failed with {} conflicts: {}", causes.len(), managers.join("\n"))
    };
    ApiError::new(Reason::Conflict, message).with_details(Details { causes, ..Details::default() })
}
