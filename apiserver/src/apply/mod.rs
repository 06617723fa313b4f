//! Server-side apply and managedFields.
//!
//! Pure. `registry/` calls [`track_update`] for every create, update and patch, [`apply`] for apply patches.

use serde_json::Value;

use crate::schema::Schema;
use crate::status::ApiResult;

/// Who writes, as an entry of `metadata.managedFields` names it.
#[derive(Debug, Clone, Copy)]
pub struct Manager<'a> {
    /// `fieldManager`, or the first part of the User-Agent ([`manager_name`]).
    pub name: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    /// Version of the request: `apps/v1`.
    pub api_version: &'a str,
    pub now: jiff::Timestamp,
    /// `Strategy::reset_fields` of the subresource written to: fields this write cannot own.
    pub reset_fields: &'a [&'a [&'a str]],
}

/// The manager of a request that named none: what stands before the first `/` of the User-Agent, at most 128 bytes.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_owned();
    }
    user_agent.split('/').next().unwrap_or_default().chars().take(128).filter(|c| !c.is_control()).collect()
}

/// Writes `metadata.managedFields` of an object about to be created, updated or patched. `schema` of `None` owns by structure.
pub fn track_update(_schema: Option<&Schema>, _old: Option<&Value>, _new: &mut Value, _manager: &Manager<'_>) {}

/// Merges an applied configuration into the live object (`None`: create). Returns the whole object with its managedFields;
/// equal to `live` when nothing changed. Conflicts are 409 with one cause per field.
pub fn apply(
    schema: Option<&Schema>,
    live: Option<&Value>,
    config: &Value,
    manager: &Manager<'_>,
    _force: bool,
) -> ApiResult<Value> {
    let _ = (schema, manager);
    match live {
        Some(live) => crate::patch::merge_patch(live, config),
        None => Ok(config.clone()),
    }
}
