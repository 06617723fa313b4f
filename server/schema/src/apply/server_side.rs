//! Server-side apply: merges a configuration into the live object, with conflicts and pruning. Has no side effects.

use crowsnest_apimachinery::status::{ApiError, ApiResult, Cause, Details, Reason};
use serde_json::Value;

use super::managed::{self, ManagerEntry};
use super::path::FieldSet;
use super::validate::{self, validate_config};
use super::versions::{ApplyError, Versions};
use super::{
    Manager, UNOWNED_FIELDS, assign_ownership, empty_object, find_changes, find_changes_in_other_versions,
    last_applied, reconcile_entries, remove_fields, typed, without_managed_fields,
};
use crate::{Schema, normalize};

/// Manager of untracked fields that exist at the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

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
                        set.subtract(&allowed);
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

    /// Error if the configuration or the live object does not match its schema, in the order of kube-apiserver's checks.
    fn check_types(&self) -> ApiResult<()> {
        let Apply { schema, live, config, manager, .. } = *self;
        // When a Scale is applied, `live` is its parent. kube-apiserver checks the live Scale instead, which always
        // matches its schema.
        let live = live.filter(|_| manager.subresource != "scale");
        let live_error = live.and_then(|live| Some((live, validate::comparison_error(schema, live)?)));
        if let Some((live, reason)) = &live_error
            && managed::decode(live).unwrap_or_default().is_empty()
        {
            let message = format!(
                "failed to create manager for existing fields: failed to convert new object ({}) to smd typed: {reason}",
                validate::describe_object(live)
            );
            return Err(ApiError::without_reason(500, message));
        }
        validate_config(schema, config)?;
        let Some((live, reason)) = live_error else { return Ok(()) };
        let message = format!("failed to create typed live object ({}): {reason}", validate::describe_object(live));
        Err(ApiError::without_reason(500, message))
    }

    /// Merges the configuration into the live object. Conflicts are in the inner result, because the caller may resolve them.
    fn merge(&self) -> Result<Result<Value, Conflicts>, ApplyError> {
        let Apply { versions, schema, live, config, manager, force } = *self;
        let before = live.map_or_else(|| empty_object(schema), without_managed_fields);
        let mut entries = live.and_then(managed::decode).unwrap_or_default();
        if entries.is_empty() && live.is_some() {
            let owner = Manager { name: BEFORE_FIRST_APPLY, ..*manager };
            let (written, removed) = find_changes(schema, &empty_object(schema), &before, &owner);
            assign_ownership(&mut entries, written, removed, &owner);
        }
        let mut entries = reconcile_entries(versions, schema, &before, entries, manager)?;

        let mut fields = typed::field_set(schema, config);
        fields.is_member = false;
        fields.subtract_recursively(&manager.reset_field_set());
        let mut own_entry = manager.entry(true, fields);
        let last_index = entries.iter().position(|entry| entry.manager_id() == own_entry.manager_id());
        let last_entry = last_index.map(|index| entries.remove(index));
        own_entry.time = last_entry.as_ref().and_then(|entry| entry.time.clone());

        let merged = typed::merge(schema, &before, config);
        let merged = match last_entry.as_ref().filter(|entry| !entry.fields.is_empty()) {
            Some(last_entry) => prune(versions, schema, merged, (&entries, &own_entry, last_entry))?,
            None => merged,
        };
        // Changes are computed before `merged` is normalized, because normalization omits an explicit `false` as Go does,
        // and this `false` can conflict with another manager's `true`.
        let mut changed = find_changes_in_other_versions(versions, schema, (&before, &merged), &entries, manager)?;
        let (written, removed) = find_changes(schema, &before, &merged, manager);
        changed.push((manager.api_version.to_owned(), written, removed));
        let is_same = merged == before;
        let mut after = merged;
        match schema {
            Some(schema) if !schema.is_of_custom_resource() => {
                normalize(schema, &mut after);
            }
            // Nulls in custom resources are validated by their schema.
            _ => crate::decode::normalize_metadata(&mut after),
        }

        if !force {
            let changes_in_version =
                |entry: &ManagerEntry| changed.iter().find(|(version, ..)| *version == entry.api_version);
            let conflicting = |entry: &ManagerEntry| {
                changes_in_version(entry).map(|(_, written, _)| entry.fields.intersection(written)).unwrap_or_default()
            };
            let conflicts = entries.iter().map(|entry| (entry.clone(), conflicting(entry)));
            let conflicts = conflicts.filter(|(_, set)| !set.is_empty());
            let conflicts: Vec<(ManagerEntry, FieldSet)> = conflicts.collect();
            if !conflicts.is_empty() {
                return Ok(Err(Conflicts(conflicts)));
            }
        }
        for (version, written, removed) in &changed {
            remove_fields(entries.iter_mut().filter(|entry| entry.api_version == *version), written, removed);
        }
        own_entry.fields.subtract(&UNOWNED_FIELDS);
        if live.is_none() || !is_same {
            own_entry.time = manager.time();
        }
        entries.push(own_entry);
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
    (others, own_entry, last_entry): (&[ManagerEntry], &ManagerEntry, &ManagerEntry),
) -> Result<Value, ApplyError> {
    let own_version = own_entry.api_version.as_str();
    let Some(last_schema) = versions.schema(&last_entry.api_version, own_version, schema)? else { return Ok(merged) };
    let error_prefix = "failed to prune fields: failed to convert merged object to last applied version: ";
    let merged_at_last_version = versions.convert(&merged, (own_version, &last_entry.api_version), error_prefix)?;
    let with_parents = |schema: Option<&Schema>, set: &FieldSet| set.with_declared_parents(schema);
    let field_set = |schema: Option<&Schema>, value: &Value| with_parents(schema, &typed::field_set(schema, value));
    let last_fields = with_parents(last_schema.get(), &last_entry.fields);

    // As in structured-merge-diff, the first step removes all fields of the last apply and adds back those that any
    // manager owns, starting with the managers of the same version.
    let mut version = last_entry.api_version.as_str();
    let mut pruned = typed::remove(last_schema.get(), &merged_at_last_version, &last_fields);
    let mut merged_at_version = merged_at_last_version.clone().into_owned();
    let mut owners: Vec<&ManagerEntry> = others.iter().chain([own_entry]).collect();
    owners.sort_by_key(|entry| (entry.api_version != last_entry.api_version, entry.api_version.as_str()));
    for owners in owners.chunk_by(|one, other| one.api_version == other.api_version) {
        let next_version = owners.first().map_or(version, |entry| entry.api_version.as_str());
        let Some(node) = versions.schema(next_version, own_version, schema)? else { continue };
        let node = node.get();
        let to_version = |object: &Value, what: &str| {
            let purpose = format!(
                "failed to prune fields: failed add back owned items: failed to convert {what} object at version {next_version}: "
            );
            Ok::<_, ApplyError>(versions.convert(object, (version, next_version), &purpose)?.into_owned())
        };
        merged_at_version = to_version(&merged_at_version, "merged")?;
        let remaining = to_version(&pruned, "pruned")?;
        version = next_version;
        let mut owned = field_set(node, &remaining);
        owners.iter().for_each(|entry| owned.add_all(&with_parents(node, &entry.fields)));
        let mut unowned = field_set(node, &merged_at_version);
        unowned.subtract(&owned);
        pruned = typed::remove(node, &merged_at_version, &unowned);
    }

    // The second step restores removed fields that are not in the last apply of this manager, such as fields below a
    // removed list item.
    let error_prefix = "failed to prune fields: failed add back dangling items: failed to convert pruned object to last applied version: ";
    let pruned = versions.convert(&pruned, (version, &last_entry.api_version), error_prefix)?;
    let mut missing = field_set(last_schema.get(), &merged_at_last_version);
    missing.subtract(&field_set(last_schema.get(), &pruned));
    let pruned = typed::remove(last_schema.get(), &merged_at_last_version, &missing.intersection(&last_fields));
    Ok(versions.convert(&pruned, (&last_entry.api_version, own_version), "failed to prune fields: ")?.into_owned())
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
