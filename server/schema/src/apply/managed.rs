//! `metadata.managedFields`: decoding, ordering and encoding of entries.

use serde_json::{Value, json};

use super::path::FieldSet;

/// Maximum number of update managers; older ones are merged into one entry per version.
const MAX_UPDATE_MANAGERS: usize = 10;
/// Manager of the merged entries.
const OLD_UPDATES_MANAGER: &str = "ancient-changes";

/// An entry of `metadata.managedFields`: a manager and the fields that it owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerEntry {
    pub manager: String,
    /// True for `Apply`, false for `Update`.
    pub is_apply: bool,
    pub api_version: String,
    pub subresource: String,
    /// RFC 3339 as stored.
    pub time: Option<String>,
    pub fields: FieldSet,
}

impl ManagerEntry {
    /// True if both entries belong to the same manager. For apply, the version is ignored.
    pub fn has_same_manager(&self, other: &ManagerEntry) -> bool {
        self.manager == other.manager
            && self.is_apply == other.is_apply
            && self.subresource == other.subresource
            && (self.is_apply || self.api_version == other.api_version)
    }

    /// Describes the manager as in conflict errors.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if !self.is_apply {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    fn decode(value: &Value) -> Option<ManagerEntry> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_apply = match text("operation").as_str() {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        Some(ManagerEntry {
            manager: text("manager"),
            is_apply,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: value.get("time").and_then(Value::as_str).map(str::to_owned),
            fields: value.get("fieldsV1").map_or_else(|| Some(FieldSet::default()), FieldSet::parse)?,
        })
    }

    fn encode(&self) -> Value {
        let mut out = json!({
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.encode(),
            "operation": if self.is_apply { "Apply" } else { "Update" },
        });
        if !self.manager.is_empty() {
            out["manager"] = json!(self.manager);
        }
        if !self.subresource.is_empty() {
            out["subresource"] = json!(self.subresource);
        }
        if let Some(time) = &self.time {
            out["time"] = json!(time);
        }
        out
    }
}

fn managed_fields(object: &Value) -> Option<&Vec<Value>> {
    object.get("metadata")?.get("managedFields")?.as_array()
}

/// Decodes the entries of an object; `None` if they are malformed.
pub fn decode(object: &Value) -> Option<Vec<ManagerEntry>> {
    let Some(list) = managed_fields(object) else { return Some(Vec::new()) };
    if is_reset(object) {
        return Some(Vec::new());
    }
    list.iter().map(ManagerEntry::decode).collect()
}

/// True for `managedFields: []` or `[{}]`, which resets all managers.
pub fn is_reset(object: &Value) -> bool {
    managed_fields(object).is_some_and(|list| {
        list.is_empty()
            || list.len() == 1
                && list[0]
                    .as_object()
                    .is_some_and(|entry| entry.values().all(|v| v.is_null() || v == "" || v == &json!({})))
    })
}

/// Entries before a write: those of the new object if it contains any, otherwise the live ones.
pub fn initial_entries(old: Option<&Value>, new: &Value, subresource: &str) -> Vec<ManagerEntry> {
    let live = || old.and_then(decode).unwrap_or_default();
    if !subresource.is_empty() {
        return live();
    }
    if is_reset(new) {
        return Vec::new();
    }
    match decode(new) {
        Some(entries) if !entries.is_empty() => entries,
        _ => live(),
    }
}

/// Encodes the entries in order: apply first, then by time, name, version and subresource.
pub fn encode(object: &mut Value, mut entries: Vec<ManagerEntry>) {
    cap_update_managers(&mut entries);
    fn order(entry: &ManagerEntry) -> impl Ord + '_ {
        (!entry.is_apply, &entry.time, &entry.manager, &entry.api_version, &entry.subresource)
    }
    entries.sort_by(|a, b| order(a).cmp(&order(b)));
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".into(), Value::Array(entries.iter().map(ManagerEntry::encode).collect()));
    }
}

/// Merges the oldest update entries until at most [`MAX_UPDATE_MANAGERS`] remain.
fn cap_update_managers(entries: &mut Vec<ManagerEntry>) {
    let mut updates = entries.iter().filter(|e| !e.is_apply).count();
    while updates > MAX_UPDATE_MANAGERS {
        let oldest = entries
            .iter()
            .enumerate()
            .filter(|(_, e)| !e.is_apply && e.manager != OLD_UPDATES_MANAGER)
            .min_by(|(_, a), (_, b)| a.time.cmp(&b.time))
            .map(|(index, _)| index);
        let Some(oldest) = oldest else { return };
        let entry = entries.remove(oldest);
        match entries
            .iter_mut()
            .find(|e| !e.is_apply && e.manager == OLD_UPDATES_MANAGER && e.api_version == entry.api_version)
        {
            Some(bucket) => {
                bucket.fields.union(&entry.fields);
                bucket.time = bucket.time.clone().max(entry.time);
                updates -= 1;
            }
            None => {
                // The entry is only renamed, so the number of managers is still too high.
                entries.push(ManagerEntry { manager: OLD_UPDATES_MANAGER.into(), subresource: String::new(), ..entry });
            }
        }
    }
}
