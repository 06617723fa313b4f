//! Server-side apply and managedFields.
//!
//! Pure. The registry calls [`track_create`] for creates, [`track_update`] for updates and patches, and
//! [`Apply::run`] for apply patches: after decoding and defaults, before admission and the strategy's `prepare_*`,
//! as in kube-apiserver. Owned fields are compared in the version in which their manager wrote them (`versions`).

use std::sync::LazyLock;

use crowsnest_apimachinery::status::{ApiError, ApiResult, Cause, Details, Reason};
use serde_json::{Value, json};

use crate::{Schema, normalize};

mod last_applied;
pub mod managed;
pub mod path;
#[cfg(test)]
mod tests;
pub mod typed;
pub mod validate;
mod versions;

use managed::ManagerEntry;
pub use path::{FieldSet, PathElement};
pub use validate::validate_config;
pub use versions::{ApplyError, Conversion, VersionSchemas, VersionState, Versions};

/// Manager of untracked fields that exist at the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The manager of a write, as an entry of `metadata.managedFields` identifies it.
#[derive(Debug, Clone, Copy)]
pub struct Manager<'a> {
    /// `fieldManager`, or the first part of the User-Agent.
    pub name: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    /// Version of the request: `apps/v1`.
    pub api_version: &'a str,
    pub now: jiff::Timestamp,
    /// `Strategy::reset_fields` of the subresource: fields that this write cannot own.
    pub reset_fields: &'a [&'a [&'a str]],
}

impl Manager<'_> {
    fn entry(&self, is_apply: bool, fields: FieldSet) -> ManagerEntry {
        ManagerEntry {
            manager: self.name.to_owned(),
            is_apply,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: None,
            fields,
        }
    }

    /// Time of the entry, in whole seconds. Entries of writes through `scale` have none.
    fn time(&self) -> Option<String> {
        (self.subresource != "scale").then(|| self.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    /// The reset fields as a set.
    fn reset_field_set(&self) -> FieldSet {
        let mut set = FieldSet::default();
        self.reset_fields.iter().for_each(|path| set.insert_fields(path));
        set
    }
}

/// Fields that have no owner: identity and system metadata.
static UNOWNED_FIELDS: LazyLock<FieldSet> = LazyLock::new(|| {
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

fn without_managed_fields(object: &Value) -> Value {
    let mut out = object.clone();
    if let Some(metadata) = out.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    out
}

/// The empty object with which a created one is compared, as Go decodes it.
fn empty_object(schema: Option<&Schema>) -> Value {
    let mut object = json!({"metadata": {}});
    if let Some(schema) = schema {
        normalize(schema, &mut object);
    }
    object
}

fn check_comparable(schema: Option<&Schema>, objects: &[&Value]) -> Result<(), ApplyError> {
    match objects.iter().find_map(|object| validate::comparison_error(schema, object)) {
        None => Ok(()),
        Some(why) => Err(ApplyError::Failed(ApiError::without_reason(500, why))),
    }
}

/// Sets `metadata.managedFields` of an object to be created. Without a schema, ownership follows the structure. An
/// object that does not fit its schema gets no managedFields, as in kube-apiserver.
pub fn track_create(schema: Option<&Schema>, new: &mut Value, manager: &Manager<'_>) {
    if check_comparable(schema, &[&*new]).is_err() {
        return managed::encode(new, Vec::new());
    }
    let mut entries = managed::initial_entries(None, new, manager.subresource);
    // Existing entries in other versions are dropped, because the object is new in every version.
    entries.retain(|entry| entry.api_version == manager.api_version);
    let (taken, removed) = find_changes(schema, &empty_object(schema), new, manager);
    assign_ownership(&mut entries, taken, removed, manager);
    managed::encode(new, entries);
}

/// Computes the managedFields of an object to be updated or patched; [`PendingManagedFields::write`] sets them.
pub fn track_update(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    old: &Value,
    new: &Value,
    manager: &Manager<'_>,
) -> Result<PendingManagedFields, ApplyError> {
    let entries = managed::initial_entries(Some(old), new, manager.subresource);
    if entries.is_empty() {
        // An untracked or reset object stays untracked until the first apply.
        return Ok(PendingManagedFields(entries));
    }
    check_comparable(schema, &[new, old])?;
    if entries.iter().all(|entry| entry.api_version == manager.api_version) {
        let entries = reconcile_entries(versions, schema, old, entries, manager)?;
        return Ok(PendingManagedFields(update_entries(versions, schema, (old, new), entries, manager)?));
    }
    let (old, new) = (without_managed_fields(old), without_managed_fields(new));
    let entries = reconcile_entries(versions, schema, &old, entries, manager)?;
    Ok(PendingManagedFields(update_entries(versions, schema, (&old, &new), entries, manager)?))
}

/// Computed managedFields that are not yet set in the object.
#[derive(Debug, Default)]
pub struct PendingManagedFields(Vec<ManagerEntry>);

impl PendingManagedFields {
    pub fn write(self, object: &mut Value) {
        managed::encode(object, self.0);
    }

    /// Removes a field from those that a manager owns by updates.
    pub fn disown(&mut self, manager: &Manager<'_>, path: &[&str]) {
        let mut field = FieldSet::default();
        field.insert_fields(path);
        let own = manager.entry(false, FieldSet::default());
        for entry in self.0.iter_mut().filter(|entry| entry.has_same_manager(&own)) {
            entry.fields.difference(&field);
        }
        self.0.retain(|entry| !entry.fields.is_empty());
    }
}

/// Converts the entries to the current schemas of their versions. Entries of versions that are no longer served are
/// dropped.
fn reconcile_entries(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    live: &Value,
    entries: Vec<ManagerEntry>,
    manager: &Manager<'_>,
) -> Result<Vec<ManagerEntry>, ApplyError> {
    let mut kept = Vec::with_capacity(entries.len());
    for mut entry in entries {
        if let Some(schema) = versions.schema(&entry.api_version, manager.api_version, schema)? {
            // Fails if the object cannot be converted to the entry's version.
            versions.convert(live, (manager.api_version, &entry.api_version), "")?;
            entry.fields = versions::reconcile(schema.get(), &entry.fields);
            kept.push(entry);
        }
    }
    Ok(kept)
}

/// True if an update changes nothing except timestamps in managedFields, for example because admission or defaults
/// reverted it. Such an update is not written; otherwise repeated applies would create new resourceVersions.
pub fn only_times_differ(old: &Value, new: &Value) -> bool {
    equal_except(METADATA, old, new, |before, after| equal_except(MANAGED_FIELDS, before, after, equal_managers))
}

const METADATA: &str = "metadata";
const MANAGED_FIELDS: &str = "managedFields";

/// True if two objects are equal except for one member, which `same` compares.
fn equal_except(name: &str, old: &Value, new: &Value, same: impl FnOnce(&Value, &Value) -> bool) -> bool {
    let (Value::Object(before), Value::Object(after)) = (old, new) else { return old == new };
    let rest = |fields: &serde_json::Map<String, Value>| fields.len() - usize::from(fields.contains_key(name));
    rest(before) == rest(after)
        && before.iter().all(|(key, value)| key == name || after.get(key) == Some(value))
        && same(before.get(name).unwrap_or(&Value::Null), after.get(name).unwrap_or(&Value::Null))
}

/// Compares entries regardless of their order, which depends on timestamps.
fn equal_managers(old: &Value, new: &Value) -> bool {
    fn entries(list: &Value) -> Vec<&Value> {
        list.as_array().into_iter().flatten().collect()
    }
    let (before, mut after) = (entries(old), entries(new));
    let same = |one: &Value, other: &Value| equal_except("time", one, other, |_, _| true);
    before.len() == after.len()
        && before.iter().all(|entry| {
            after.iter().position(|other| same(entry, other)).map(|index| after.swap_remove(index)).is_some()
        })
}

/// Makes the manager the only owner of added and modified fields, and removes the ownership of removed fields.
fn update_entries(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    (live, new): (&Value, &Value),
    mut entries: Vec<ManagerEntry>,
    manager: &Manager<'_>,
) -> Result<Vec<ManagerEntry>, ApplyError> {
    let (taken, removed) = find_changes(schema, live, new, manager);
    for (version, taken, removed) in find_changes_in_other_versions(versions, schema, (live, new), &entries, manager)? {
        remove_fields(entries.iter_mut().filter(|entry| entry.api_version == version), &taken, &removed);
    }
    assign_ownership(&mut entries, taken, removed, manager);
    Ok(entries)
}

/// Removes the `taken` and `removed` fields from entries.
fn remove_fields<'e>(entries: impl Iterator<Item = &'e mut ManagerEntry>, taken: &FieldSet, removed: &FieldSet) {
    for entry in entries {
        entry.fields.difference(taken);
        entry.fields.difference(removed);
    }
}

/// Updates the entries in the version of the manager, which becomes the only owner of `taken`.
fn assign_ownership(entries: &mut Vec<ManagerEntry>, mut taken: FieldSet, removed: FieldSet, manager: &Manager<'_>) {
    remove_fields(entries.iter_mut().filter(|entry| entry.api_version == manager.api_version), &taken, &removed);
    taken.difference(&UNOWNED_FIELDS);
    if !taken.is_empty() {
        let mut own = manager.entry(false, taken);
        own.time = manager.time();
        match entries.iter_mut().find(|entry| entry.has_same_manager(&own)) {
            Some(entry) => {
                entry.fields.union(&own.fields);
                entry.time = own.time;
            }
            None => entries.push(own),
        }
    }
    entries.retain(|entry| !entry.fields.is_empty());
}

/// Compares two objects in each version in which another manager wrote fields. Returns version, added or modified
/// fields, and removed fields.
fn find_changes_in_other_versions(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    (live, new): (&Value, &Value),
    entries: &[ManagerEntry],
    manager: &Manager<'_>,
) -> Result<Vec<(String, FieldSet, FieldSet)>, ApplyError> {
    let mut found: Vec<(String, FieldSet, FieldSet)> = Vec::new();
    for entry in entries {
        let version = &entry.api_version;
        if version == manager.api_version || found.iter().any(|(known, ..)| known == version) {
            continue;
        }
        let Some(schema) = versions.schema(version, manager.api_version, schema)? else { continue };
        let live = versions.convert(live, (manager.api_version, version), "failed to convert old object: ")?;
        let new = versions.convert(new, (manager.api_version, version), "failed to convert new object: ")?;
        let (taken, removed) = find_changes(schema.get(), &live, &new, manager);
        found.push((version.clone(), taken, removed));
    }
    Ok(found)
}

/// Compares two objects. Returns the added or modified fields, and the removed fields, without those that the manager
/// cannot own.
fn find_changes(schema: Option<&Schema>, live: &Value, new: &Value, manager: &Manager<'_>) -> (FieldSet, FieldSet) {
    let comparison = typed::compare_except(schema, Some(live), Some(new), &[METADATA, MANAGED_FIELDS]);
    let (mut taken, mut removed) = (comparison.modified, comparison.removed);
    taken.union(&comparison.added);
    let reset_fields = manager.reset_field_set();
    taken.recursive_difference(&reset_fields);
    removed.recursive_difference(&reset_fields);
    (taken, removed)
}

/// An applied configuration with the object into which it is merged.
#[derive(Debug, Clone, Copy)]
pub struct Apply<'a> {
    pub versions: &'a Versions<'a>,
    /// Schema of the manager's version.
    pub schema: Option<&'a Schema>,
    /// The stored object; `None` for a create.
    pub live: Option<&'a Value>,
    pub config: &'a Value,
    pub manager: &'a Manager<'a>,
    /// Take over conflicting fields instead of returning an error.
    pub force: bool,
}

/// Conflicting managers with their fields.
struct Conflicts(Vec<(ManagerEntry, FieldSet)>);

impl Apply<'_> {
    /// Returns the merged object with managedFields; it equals the live object if nothing has changed. Conflicts
    /// result in a 409 error with one cause per field.
    pub fn run(&self) -> Result<Value, ApplyError> {
        let Apply { schema, live, config, manager, .. } = *self;
        self.check_types()?;
        let merged = match self.merge()? {
            Err(Conflicts(conflicts)) if manager.name == "kubectl" && manager.subresource.is_empty() => {
                // kubectl may overwrite fields of its own client-side apply.
                let allowed = live.and_then(|live| last_applied::unchanged_fields(schema, live)).unwrap_or_default();
                let remaining: Vec<(ManagerEntry, FieldSet)> = conflicts
                    .into_iter()
                    .map(|(entry, mut set)| {
                        set.difference(&allowed);
                        (entry, set)
                    })
                    .filter(|(_, set)| !set.is_empty())
                    .collect();
                if remaining.is_empty() { Apply { force: true, ..*self }.merge()? } else { Err(Conflicts(remaining)) }
            }
            result => result,
        };
        let mut object = merged.map_err(|Conflicts(conflicts)| conflict_error(&conflicts))?;
        if manager.name == "kubectl" && manager.subresource.is_empty() {
            last_applied::update_annotation(&mut object, config);
        }
        Ok(object)
    }

    /// Error if the configuration or the live object does not fit its schema, in the order of kube-apiserver's checks.
    fn check_types(&self) -> ApiResult<()> {
        let Apply { schema, live, config, manager, .. } = *self;
        // A configuration of a Scale is compared with the live Scale.
        let live = live.filter(|_| manager.subresource != "scale");
        let unfitting = live.and_then(|live| Some((live, validate::comparison_error(schema, live)?)));
        if let Some((live, why)) = &unfitting
            && managed::decode(live).unwrap_or_default().is_empty()
        {
            let message = format!(
                "failed to create manager for existing fields: failed to convert new object ({}) to smd typed: {why}",
                validate::describe_object(live)
            );
            return Err(ApiError::without_reason(500, message));
        }
        validate_config(schema, config)?;
        let Some((live, why)) = unfitting else { return Ok(()) };
        let message = format!("failed to create typed live object ({}): {why}", validate::describe_object(live));
        Err(ApiError::without_reason(500, message))
    }

    fn merge(&self) -> Result<Result<Value, Conflicts>, ApplyError> {
        let Apply { versions, schema, live, config, manager, force } = *self;
        let before = live.map_or_else(|| empty_object(schema), without_managed_fields);
        let mut entries = live.and_then(managed::decode).unwrap_or_default();
        if entries.is_empty() && live.is_some() {
            let owner = Manager { name: BEFORE_FIRST_APPLY, ..*manager };
            let (taken, removed) = find_changes(schema, &empty_object(schema), &before, &owner);
            assign_ownership(&mut entries, taken, removed, &owner);
        }
        let mut entries = reconcile_entries(versions, schema, &before, entries, manager)?;

        let mut fields = typed::field_set(schema, config);
        fields.is_member = false;
        fields.recursive_difference(&manager.reset_field_set());
        let mut own = manager.entry(true, fields);
        let last = entries.iter().position(|entry| entry.has_same_manager(&own)).map(|index| entries.remove(index));
        own.time = last.as_ref().and_then(|entry| entry.time.clone());

        let merged = typed::merge(schema, &before, config);
        let merged = match last.as_ref().filter(|last| !last.fields.is_empty()) {
            Some(last) => prune(versions, schema, merged, (&entries, &own, last))?,
            None => merged,
        };
        // Uses the configuration as applied: an explicit `false`, which Go omits, changes another manager's `true`.
        let mut changed = find_changes_in_other_versions(versions, schema, (&before, &merged), &entries, manager)?;
        let (taken, removed) = find_changes(schema, &before, &merged, manager);
        changed.push((manager.api_version.to_owned(), taken, removed));
        let is_same = merged == before;
        let mut after = merged;
        match schema {
            Some(schema) if schema.name.is_some() => {
                normalize(schema, &mut after);
            }
            // Nulls in custom resources are validated by their schema.
            _ => crate::decode::normalize_metadata(&mut after),
        }

        if !force {
            let changes_in_version =
                |entry: &ManagerEntry| changed.iter().find(|(version, ..)| *version == entry.api_version);
            let conflicting = |entry: &ManagerEntry| {
                changes_in_version(entry).map(|(_, taken, _)| entry.fields.intersection(taken)).unwrap_or_default()
            };
            let conflicts = entries.iter().map(|entry| (entry.clone(), conflicting(entry)));
            let conflicts = conflicts.filter(|(_, set)| !set.is_empty());
            let conflicts: Vec<(ManagerEntry, FieldSet)> = conflicts.collect();
            if !conflicts.is_empty() {
                return Ok(Err(Conflicts(conflicts)));
            }
        }
        for (version, taken, removed) in &changed {
            remove_fields(entries.iter_mut().filter(|entry| entry.api_version == *version), taken, removed);
        }
        own.fields.difference(&UNOWNED_FIELDS);
        if live.is_none() || !is_same {
            own.time = manager.time();
        }
        entries.push(own);
        entries.retain(|entry| !entry.fields.is_empty());
        managed::encode(&mut after, entries);
        Ok(Ok(after))
    }
}

/// Removes fields that this manager applied last time but not this time, and that no other manager owns. Fields are
/// compared in the version of their manager.
fn prune(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    merged: Value,
    (others, own, last): (&[ManagerEntry], &ManagerEntry, &ManagerEntry),
) -> Result<Value, ApplyError> {
    let own_version = own.api_version.as_str();
    let Some(last_schema) = versions.schema(&last.api_version, own_version, schema)? else { return Ok(merged) };
    let to_last = "failed to prune fields: failed to convert merged object to last applied version: ";
    let at_last = versions.convert(&merged, (own_version, &last.api_version), to_last)?;
    let with_parents = |schema: Option<&Schema>, set: &FieldSet| set.with_declared_parents(schema);
    let field_set = |schema: Option<&Schema>, value: &Value| with_parents(schema, &typed::field_set(schema, value));
    let last_fields = with_parents(last_schema.get(), &last.fields);

    // As in structured-merge-diff, the first step removes all fields of the last apply and adds back those that any
    // manager owns, starting with the managers of the same version.
    let mut version = last.api_version.as_str();
    let mut pruned = typed::remove(last_schema.get(), &at_last, &last_fields);
    let mut merged_at_version = at_last.clone().into_owned();
    let mut owners: Vec<&ManagerEntry> = others.iter().chain([own]).collect();
    owners.sort_by_key(|entry| (entry.api_version != last.api_version, entry.api_version.as_str()));
    for owners in owners.chunk_by(|one, other| one.api_version == other.api_version) {
        let at = owners.first().map_or(version, |entry| entry.api_version.as_str());
        let Some(node) = versions.schema(at, own_version, schema)? else { continue };
        let node = node.get();
        let to_version = |object: &Value, what: &str| {
            let purpose = format!(
                "failed to prune fields: failed add back owned items: failed to convert {what} object at version {at}: "
            );
            Ok::<_, ApplyError>(versions.convert(object, (version, at), &purpose)?.into_owned())
        };
        merged_at_version = to_version(&merged_at_version, "merged")?;
        let remaining = to_version(&pruned, "pruned")?;
        version = at;
        let mut owned = field_set(node, &remaining);
        owners.iter().for_each(|entry| owned.union(&with_parents(node, &entry.fields)));
        let mut unowned = field_set(node, &merged_at_version);
        unowned.difference(&owned);
        pruned = typed::remove(node, &merged_at_version, &unowned);
    }

    // The second step adds back fields below a removed item that this manager did not apply.
    let to_last = "failed to prune fields: failed add back dangling items: failed to convert pruned object to last applied version: ";
    let pruned = versions.convert(&pruned, (version, &last.api_version), to_last)?;
    let mut missing = field_set(last_schema.get(), &at_last);
    missing.difference(&field_set(last_schema.get(), &pruned));
    let pruned = typed::remove(last_schema.get(), &at_last, &missing.intersection(&last_fields));
    Ok(versions.convert(&pruned, (&last.api_version, own_version), "failed to prune fields: ")?.into_owned())
}

fn conflict_error(conflicts: &[(ManagerEntry, FieldSet)]) -> ApiError {
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
