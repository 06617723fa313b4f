//! Server-side apply and managedFields.
//!
//! Pure. The registry calls [`track_create`] for every create, [`track_update`] for every update and patch, [`Apply::run`] for
//! apply patches. All stand between decoding with defaults and admission, before the strategy's `prepare_*`, as in kube-apiserver. What
//! managers own is compared in the version each wrote in (`versions`).

use std::sync::LazyLock;

use crowsnest_apimachinery::status::{ApiError, ApiResult, Cause, Details, Reason};
use serde_json::{Value, json};

use crate::{Schema, normalise};

mod last_applied;
pub mod managed;
pub mod path;
#[cfg(test)]
mod tests;
pub mod typed;
mod versions;

use managed::Entry;
pub use path::{FieldSet, PathElement};
pub use versions::{Conversion, Stop, Version, VersionSchemas, Versions};

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

/// Writes `metadata.managedFields` of an object about to be created. `schema` of `None` owns by structure.
pub fn track_create(schema: Option<&Schema>, new: &mut Value, manager: &Manager<'_>) {
    let mut entries = managed::starting_point(None, new, manager.subresource);
    // An object that brings entries of its own is new in every version: whoever wrote in another has lost all of it.
    entries.retain(|entry| entry.api_version == manager.api_version);
    let (taken, removed) = changes(schema, &nothing(schema), new, manager);
    take_over(&mut entries, taken, removed, manager);
    managed::encode(new, entries);
}

/// The managedFields of an object about to be updated or patched, for [`Tracked::write`].
pub fn track_update(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    old: &Value,
    new: &Value,
    manager: &Manager<'_>,
) -> Result<Tracked, Stop> {
    let entries = managed::starting_point(Some(old), new, manager.subresource);
    if entries.is_empty() {
        // Never tracked (or asked to forget): stays so until the first apply.
        return Ok(Tracked(entries));
    }
    if entries.iter().all(|entry| entry.api_version == manager.api_version) {
        let entries = reconciled(versions, schema, old, entries, manager)?;
        return Ok(Tracked(update(versions, schema, (old, new), entries, manager)?));
    }
    let (old, new) = (without_managers(old), without_managers(new));
    let entries = reconciled(versions, schema, &old, entries, manager)?;
    Ok(Tracked(update(versions, schema, (&old, &new), entries, manager)?))
}

/// Entries that are decided, and not written yet.
#[derive(Debug, Default)]
pub struct Tracked(Vec<Entry>);

impl Tracked {
    pub fn write(self, object: &mut Value) {
        managed::encode(object, self.0);
    }
}

/// The entries as the schemas of their versions have them now. Of versions that are gone none are left.
fn reconciled(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    live: &Value,
    entries: Vec<Entry>,
    manager: &Manager<'_>,
) -> Result<Vec<Entry>, Stop> {
    let mut kept = Vec::with_capacity(entries.len());
    for mut entry in entries {
        if let Some(schema) = versions.schema(&entry.api_version, manager.api_version, schema)? {
            // For its refusal: of fields in a version that the object cannot be told in, nothing is known.
            versions.convert(live, (manager.api_version, &entry.api_version), "")?;
            entry.fields = versions::reconcile(schema.get(), &entry.fields);
            kept.push(entry);
        }
    }
    Ok(kept)
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
fn update(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    (live, new): (&Value, &Value),
    mut entries: Vec<Entry>,
    manager: &Manager<'_>,
) -> Result<Vec<Entry>, Stop> {
    let (taken, removed) = changes(schema, live, new, manager);
    for (version, taken, removed) in other_changes(versions, schema, (live, new), &entries, manager)? {
        lose(entries.iter_mut().filter(|entry| entry.api_version == version), &taken, &removed);
    }
    take_over(&mut entries, taken, removed, manager);
    Ok(entries)
}

fn lose<'e>(entries: impl Iterator<Item = &'e mut Entry>, taken: &FieldSet, removed: &FieldSet) {
    for entry in entries {
        entry.fields.difference(taken);
        entry.fields.difference(removed);
    }
}

/// Of the entries of the manager's version.
fn take_over(entries: &mut Vec<Entry>, mut taken: FieldSet, removed: FieldSet, manager: &Manager<'_>) {
    lose(entries.iter_mut().filter(|entry| entry.api_version == manager.api_version), &taken, &removed);
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

/// What changes for those who wrote in other versions: (version, added or modified, removed).
fn other_changes(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    (live, new): (&Value, &Value),
    entries: &[Entry],
    manager: &Manager<'_>,
) -> Result<Vec<(String, FieldSet, FieldSet)>, Stop> {
    let mut found: Vec<(String, FieldSet, FieldSet)> = Vec::new();
    for entry in entries {
        let version = &entry.api_version;
        if version == manager.api_version || found.iter().any(|(known, ..)| known == version) {
            continue;
        }
        let Some(schema) = versions.schema(version, manager.api_version, schema)? else { continue };
        let live = versions.convert(live, (manager.api_version, version), "failed to convert old object: ")?;
        let new = versions.convert(new, (manager.api_version, version), "failed to convert new object: ")?;
        let (taken, removed) = changes(schema.get(), &live, &new, manager);
        found.push((version.clone(), taken, removed));
    }
    Ok(found)
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

/// An applied configuration and the object that it is merged into.
#[derive(Debug, Clone, Copy)]
pub struct Apply<'a> {
    pub versions: &'a Versions<'a>,
    /// Schema of the manager's version.
    pub schema: Option<&'a Schema>,
    /// The stored object; `None` for a create.
    pub live: Option<&'a Value>,
    pub config: &'a Value,
    pub manager: &'a Manager<'a>,
    /// Take fields from other managers instead of reporting conflicts with them.
    pub force: bool,
}

/// Managers that stand in the way, with their fields.
struct Conflicts(Vec<(Entry, FieldSet)>);

pub fn check_config(schema: Option<&Schema>, config: &Value) -> ApiResult<()> {
    let text = |path: &str| config.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let Some(why) = typed::faults(schema, config) else { return Ok(()) };
    let api_version = text("/apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let message = format!(
        "failed to create typed patch object ({}/{}; {group}/{version}, Kind={}): {why}",
        text("/metadata/namespace"),
        text("/metadata/name"),
        text("/kind")
    );
    Err(ApiError::without_reason(500, message))
}

impl Apply<'_> {
    /// Returns the whole object with its managedFields; equal to the live one when nothing changed. Conflicts are 409 with one
    /// cause per field.
    pub fn run(&self) -> Result<Value, Stop> {
        let Apply { schema, live, config, manager, .. } = *self;
        check_config(schema, config)?;
        let merged = match self.merge()? {
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
                if left.is_empty() { Apply { force: true, ..*self }.merge()? } else { Err(Conflicts(left)) }
            }
            result => result,
        };
        let mut object = merged.map_err(|Conflicts(conflicts)| conflict(&conflicts))?;
        if manager.name == "kubectl" && manager.subresource.is_empty() {
            last_applied::refresh(&mut object, config);
        }
        Ok(object)
    }

    fn merge(&self) -> Result<Result<Value, Conflicts>, Stop> {
        let Apply { versions, schema, live, config, manager, force } = *self;
        let before = live.map_or_else(|| nothing(schema), without_managers);
        let mut entries = live.and_then(managed::decode).unwrap_or_default();
        if entries.is_empty() && live.is_some() {
            let owner = Manager { name: BEFORE_FIRST_APPLY, ..*manager };
            let (taken, removed) = changes(schema, &nothing(schema), &before, &owner);
            take_over(&mut entries, taken, removed, &owner);
        }
        let mut entries = reconciled(versions, schema, &before, entries, manager)?;

        let mut fields = typed::field_set(schema, config);
        fields.member = false;
        fields.recursive_difference(&manager.ignored());
        let mut own = manager.entry(true, fields);
        let last = entries.iter().position(|entry| entry.same_manager(&own)).map(|index| entries.remove(index));
        own.time = last.as_ref().and_then(|entry| entry.time.clone());

        let merged = typed::merge(schema, &before, config);
        let merged = match last.as_ref().filter(|last| !last.fields.is_empty()) {
            Some(last) => prune(versions, schema, merged, (&entries, &own, last))?,
            None => merged,
        };
        // As it was applied: a false that Go leaves out is a change of another manager's true.
        let mut changed = other_changes(versions, schema, (&before, &merged), &entries, manager)?;
        let (taken, removed) = changes(schema, &before, &merged, manager);
        changed.push((manager.api_version.to_owned(), taken, removed));
        let is_same = merged == before;
        let mut after = merged;
        match schema {
            Some(schema) if schema.name.is_some() => {
                normalise(schema, &mut after);
            }
            // Nulls of custom resources are for their schema to judge.
            _ => crate::decode::settle_metadata(&mut after),
        }

        if !force {
            let taken = |entry: &Entry| changed.iter().find(|(version, ..)| *version == entry.api_version);
            let both =
                |entry: &Entry| taken(entry).map(|(_, taken, _)| entry.fields.intersection(taken)).unwrap_or_default();
            let conflicts = entries.iter().map(|entry| (entry.clone(), both(entry))).filter(|(_, set)| !set.is_empty());
            let conflicts: Vec<(Entry, FieldSet)> = conflicts.collect();
            if !conflicts.is_empty() {
                return Ok(Err(Conflicts(conflicts)));
            }
        }
        for (version, taken, removed) in &changed {
            lose(entries.iter_mut().filter(|entry| entry.api_version == *version), taken, removed);
        }
        own.fields.difference(&NOBODYS);
        if live.is_none() || !is_same {
            own.time = manager.time();
        }
        entries.push(own);
        entries.retain(|entry| !entry.fields.is_empty());
        managed::encode(&mut after, entries);
        Ok(Ok(after))
    }
}

/// Removes what this manager applied last time, in the version it did so, not this time, and nobody else owns in theirs.
fn prune(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    merged: Value,
    (others, own, last): (&[Entry], &Entry, &Entry),
) -> Result<Value, Stop> {
    let own_version = own.api_version.as_str();
    let Some(last_schema) = versions.schema(&last.api_version, own_version, schema)? else { return Ok(merged) };
    let to_last = "failed to prune fields: failed to convert merged object to last applied version: ";
    let at_last = versions.convert(&merged, (own_version, &last.api_version), to_last)?;
    let named = |schema: Option<&Schema>, set: &FieldSet| set.with_named_fields(schema);
    let set_of = |schema: Option<&Schema>, value: &Value| named(schema, &typed::field_set(schema, value));
    let last_fields = named(last_schema.get(), &last.fields);

    // Everything of last time goes, then what any manager owns comes back, first what was owned in the same version …
    let mut version = last.api_version.as_str();
    let mut pruned = typed::remove(last_schema.get(), &at_last, &last_fields);
    let mut whole = at_last.clone().into_owned();
    let mut owners: Vec<&Entry> = others.iter().chain([own]).collect();
    owners.sort_by_key(|entry| (entry.api_version != last.api_version, entry.api_version.as_str()));
    for owners in owners.chunk_by(|one, other| one.api_version == other.api_version) {
        let at = owners.first().map_or(version, |entry| entry.api_version.as_str());
        let Some(node) = versions.schema(at, own_version, schema)? else { continue };
        let node = node.get();
        let at_theirs = |object: &Value, what: &str| {
            let purpose = format!(
                "failed to prune fields: failed add back owned items: failed to convert {what} object at version {at}: "
            );
            Ok::<_, Stop>(versions.convert(object, (version, at), &purpose)?.into_owned())
        };
        whole = at_theirs(&whole, "merged")?;
        let left = at_theirs(&pruned, "pruned")?;
        version = at;
        let mut owned = set_of(node, &left);
        owners.iter().for_each(|entry| owned.union(&named(node, &entry.fields)));
        let mut unowned = set_of(node, &whole);
        unowned.difference(&owned);
        pruned = typed::remove(node, &whole, &unowned);
    }

    // … and what was below a removed item without having been applied by this manager.
    let to_last = "failed to prune fields: failed add back dangling items: failed to convert pruned object to last applied version: ";
    let pruned = versions.convert(&pruned, (version, &last.api_version), to_last)?;
    let mut gone = set_of(last_schema.get(), &at_last);
    gone.difference(&set_of(last_schema.get(), &pruned));
    let pruned = typed::remove(last_schema.get(), &at_last, &gone.intersection(&last_fields));
    Ok(versions.convert(&pruned, (&last.api_version, own_version), "failed to prune fields: ")?.into_owned())
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
