//! Server-side apply and managedFields.
//!
//! Has no side effects. The registry calls [`track_create`] for creates, [`track_update`] for updates and patches, and
//! [`Apply::run`] for apply patches: after decoding and defaults, before admission and the strategy's `prepare_*`,
//! as in kube-apiserver. Owned fields are compared in the version in which their manager wrote them (`versions`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::LazyLock;

use crowsnest_apimachinery::status::ApiError;
use serde_json::{Value, json};

use crate::{Schema, normalize};

mod last_applied;
pub mod managed;
pub mod path;
pub mod scale;
mod server_side;
#[cfg(test)]
mod tests;
pub mod typed;
pub mod validate;
mod versions;

use managed::ManagerEntry;
pub use path::{FieldSet, PathElement};
pub use server_side::Apply;
pub use validate::validate_config;
use versions::VersionSchema;
pub use versions::{ApplyError, Conversion, ReplicasPath, VersionSchemas, VersionState, Versions};

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
    /// `Strategy::reset_fields` of the subresource: fields that this write cannot own_entry.
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
        Some(reason) => Err(ApplyError::Failed(ApiError::without_reason(500, reason))),
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
    let (written, removed) = find_changes(schema, &empty_object(schema), new, manager);
    assign_ownership(&mut entries, written, removed, manager);
    managed::encode_capped(new, entries);
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
        managed::encode_capped(object, self.0);
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
    let mut schemas: HashMap<String, Option<VersionSchema<'_>>> = HashMap::new();
    let mut kept = Vec::with_capacity(entries.len());
    for mut entry in entries {
        let in_version = match schemas.entry(entry.api_version.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let in_version = versions.schema(&entry.api_version, manager.api_version, schema)?;
                if in_version.is_some() {
                    // Fails if the object cannot be converted to the entry's version.
                    versions.convert(live, (manager.api_version, &entry.api_version), "")?;
                }
                vacant.insert(in_version)
            }
        };
        if let Some(in_version) = in_version {
            entry.fields = versions::reconcile(in_version.get(), &entry.fields);
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

/// True if two objects are equal except for managedFields.
pub fn only_managers_differ(old: &Value, new: &Value) -> bool {
    equal_except(METADATA, old, new, |before, after| equal_except(MANAGED_FIELDS, before, after, |_, _| true))
}

const METADATA: &str = "metadata";
const MANAGED_FIELDS: &str = "managedFields";

/// True if two objects are equal except for one member, which `same` compares.
fn equal_except(name: &str, old: &Value, new: &Value, same: impl FnOnce(&Value, &Value) -> bool) -> bool {
    let (Value::Object(before), Value::Object(after)) = (old, new) else { return old == new };
    let other_count = |fields: &serde_json::Map<String, Value>| fields.len() - usize::from(fields.contains_key(name));
    other_count(before) == other_count(after)
        && before.iter().all(|(key, value)| key == name || after.get(key) == Some(value))
        && same(before.get(name).unwrap_or(&Value::Null), after.get(name).unwrap_or(&Value::Null))
}

/// Compares entries regardless of their order, which depends on timestamps.
fn equal_managers(old: &Value, new: &Value) -> bool {
    fn id(entry: &Value) -> impl Ord + '_ {
        ["manager", "operation", "apiVersion", "subresource"].map(|key| entry.get(key).and_then(Value::as_str))
    }
    // After a write of the scale, a manager can have two entries, which differ in their fields.
    let fields = |entry: &Value| entry.get("fieldsV1").map(Value::to_string);
    let sorted = |list| {
        let mut entries: Vec<&Value> = Value::as_array(list).into_iter().flatten().collect();
        entries.sort_by(|a, b| id(a).cmp(&id(b)).then_with(|| fields(a).cmp(&fields(b))));
        entries
    };
    let same = |(one, other): (&&Value, &&Value)| equal_except("time", one, other, |_, _| true);
    let (before, after) = (sorted(old), sorted(new));
    before.len() == after.len() && before.iter().zip(&after).all(same)
}

/// Makes the manager the only owner of added and modified fields, and removes the ownership of removed fields.
fn update_entries(
    versions: &Versions<'_>,
    schema: Option<&Schema>,
    (live, new): (&Value, &Value),
    mut entries: Vec<ManagerEntry>,
    manager: &Manager<'_>,
) -> Result<Vec<ManagerEntry>, ApplyError> {
    let (written, removed) = find_changes(schema, live, new, manager);
    for (version, written, removed) in find_changes_in_other_versions(versions, schema, (live, new), &entries, manager)?
    {
        remove_fields(entries.iter_mut().filter(|entry| entry.api_version == version), &written, &removed);
    }
    assign_ownership(&mut entries, written, removed, manager);
    Ok(entries)
}

/// Removes fields that another manager has written or removed from entries.
fn remove_fields<'e>(entries: impl Iterator<Item = &'e mut ManagerEntry>, written: &FieldSet, removed: &FieldSet) {
    for entry in entries {
        entry.fields.subtract(written);
        entry.fields.subtract(removed);
    }
}

/// Updates the entries in the version of the manager, which becomes the only owner of `written`.
fn assign_ownership(entries: &mut Vec<ManagerEntry>, mut written: FieldSet, removed: FieldSet, manager: &Manager<'_>) {
    remove_fields(entries.iter_mut().filter(|entry| entry.api_version == manager.api_version), &written, &removed);
    written.subtract(&UNOWNED_FIELDS);
    if !written.is_empty() {
        let mut own_entry = manager.entry(false, written);
        own_entry.time = manager.time();
        match entries.iter_mut().find(|entry| entry.manager_id() == own_entry.manager_id()) {
            Some(entry) => {
                entry.fields.add_all(&own_entry.fields);
                entry.time = own_entry.time;
            }
            None => entries.push(own_entry),
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
        // The strategy of a custom resource has reset fields in its own version only, as in kube-apiserver.
        let is_custom = schema.get().is_some_and(Schema::is_of_custom_resource);
        let reset_fields: &[&[&str]] = if is_custom { &[] } else { manager.reset_fields };
        let (written, removed) = find_changes(schema.get(), &live, &new, &Manager { reset_fields, ..*manager });
        found.push((version.clone(), written, removed));
    }
    Ok(found)
}

/// Compares two objects. Returns the added or modified fields, and the removed fields, without those that the manager
/// cannot own_entry.
fn find_changes(schema: Option<&Schema>, live: &Value, new: &Value, manager: &Manager<'_>) -> (FieldSet, FieldSet) {
    let comparison = typed::compare_except(schema, Some(live), Some(new), &[METADATA, MANAGED_FIELDS]);
    let (mut written, mut removed) = (comparison.modified, comparison.removed);
    written.add_all(&comparison.added);
    let reset_fields = manager.reset_field_set();
    written.subtract_recursively(&reset_fields);
    removed.subtract_recursively(&reset_fields);
    (written, removed)
}
