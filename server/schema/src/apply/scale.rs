//! Owners of the replicas of an object whose Scale is written, as kube-apiserver's `ScaleHandler` determines them: the
//! owners of the replicas are those of the Scale, and the write changes these alone.

use serde_json::Value;

use super::Manager;
use super::managed::{self, ManagerEntry};
use super::path::FieldSet;

const SCALE_VERSION: &str = "autoscaling/v1";

/// The path of the replicas in the version of an entry, if the entry contains it.
fn owned_path(entry: &ManagerEntry, path_in: &impl Fn(&str) -> Option<String>) -> Option<FieldSet> {
    let path = path_in(&entry.api_version)?;
    let path: Vec<&str> = path.trim_start_matches('.').split('.').collect();
    let mut set = FieldSet::default();
    set.insert_fields(&path);
    entry.fields.contains_fields(&path).then_some(set)
}

/// One entry per manager: the last one, as kube-apiserver decodes them.
fn without_repetitions(entries: Vec<ManagerEntry>) -> Vec<ManagerEntry> {
    let mut unique: Vec<ManagerEntry> = Vec::with_capacity(entries.len());
    for entry in entries {
        unique.retain(|known| !known.has_same_manager(&entry));
        unique.push(entry);
    }
    unique
}

/// The managers of the Scale: those that own the replicas of its parent in a version with a Scale.
fn managers_of_scale(entries: &[ManagerEntry], path_in: &impl Fn(&str) -> Option<String>) -> Vec<ManagerEntry> {
    let owners = entries.iter().filter(|entry| owned_path(entry, path_in).is_some());
    let mut replicas = FieldSet::default();
    replicas.insert_fields(&["spec", "replicas"]);
    owners
        .map(|entry| ManagerEntry { api_version: SCALE_VERSION.into(), fields: replicas.clone(), ..entry.clone() })
        .collect()
}

/// Sets the managedFields of a Scale. `path_in` returns the path of the replicas in a version of its parent; `None` if the
/// version has no Scale.
pub fn set_managers(scale: &mut Value, parent: &Value, path_in: impl Fn(&str) -> Option<String>) {
    let entries = managed::decode(parent).unwrap_or_default();
    managed::encode(scale, managers_of_scale(&entries, &path_in));
}

/// Updates the managedFields of an object after a write of its Scale. `before` and `after` are the replicas of the Scale;
/// `None` for zero, which a Scale omits. As in kube-apiserver, replicas without an owner stay without one, and owners of
/// unchanged replicas own them by an entry of their own.
pub fn track(
    parent: &mut Value,
    manager: &Manager<'_>,
    path_in: impl Fn(&str) -> Option<String>,
    (before, after): (Option<i64>, Option<i64>),
) {
    let entries = without_repetitions(managed::decode(parent).unwrap_or_default());
    let mut owners = without_repetitions(managers_of_scale(&entries, &path_in));
    if !owners.is_empty() && before != after {
        owners.clear();
        if after.is_some() {
            owners
                .push(ManagerEntry { api_version: SCALE_VERSION.into(), ..manager.entry(false, FieldSet::default()) });
        }
    }
    let mut kept = Vec::with_capacity(entries.len() + owners.len());
    for mut entry in entries {
        if let Some(path) = owned_path(&entry, &path_in) {
            match owners.iter().position(|owner| owner.has_same_manager(&entry)) {
                Some(at) => drop(owners.remove(at)),
                None => entry.fields.difference(&path),
            }
        }
        if !entry.fields.is_empty() {
            kept.push(entry);
        }
    }
    if let Some(path) = path_in(manager.api_version) {
        let path: Vec<&str> = path.trim_start_matches('.').split('.').collect();
        let mut fields = FieldSet::default();
        fields.insert_fields(&path);
        kept.extend(owners.into_iter().map(|owner| ManagerEntry {
            api_version: manager.api_version.to_owned(),
            time: None,
            fields: fields.clone(),
            ..owner
        }));
    }
    managed::encode(parent, kept);
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Entries as `manager version subresource fields`; `-` for no subresource.
    fn object(entries: &[&str]) -> Value {
        let entry = |text: &&str| {
            let [manager, version, subresource, fields] = text.splitn(4, ' ').collect::<Vec<_>>()[..] else {
                panic!("{text}")
            };
            let subresource = if subresource == "-" { "" } else { subresource };
            let spec: serde_json::Map<String, Value> =
                fields.split(',').map(|field| (format!("f:{field}"), json!({}))).collect();
            let (manager, operation) = manager.split_once('/').unwrap_or((manager, "Update"));
            json!({"manager": manager, "operation": operation, "apiVersion": version, "subresource": subresource,
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": spec}})
        };
        json!({"metadata": {"name": "o", "managedFields": entries.iter().map(entry).collect::<Vec<_>>()}})
    }

    fn described(object: &Value) -> Vec<String> {
        let entries = managed::decode(object).unwrap().into_iter().map(|entry| {
            let operation = if entry.is_apply { "/Apply" } else { "" };
            let subresource = if entry.subresource.is_empty() { "-" } else { entry.subresource.as_str() };
            let fields: Vec<String> = entry.fields.paths().iter().map(|path| path.replace(".spec.", "")).collect();
            format!("{}{operation} {} {subresource} {}", entry.manager, entry.api_version, fields.join(","))
        });
        let mut entries: Vec<String> = entries.collect();
        entries.sort_unstable();
        entries
    }

    /// Results of kube-apiserver 1.36.3. `v1` and `v2` have a Scale, `old` has none.
    #[rstest]
    #[case::no_owner(&["m v1 - mode"], (None, Some(3)), &["m v1 - mode"])]
    #[case::taken(&["m v1 - count,mode"], (Some(4), Some(3)), &["m v1 - mode", "s v1 scale count"])]
    #[case::taken_from_an_applier(&["m/Apply v1 - count"], (Some(4), Some(3)), &["s v1 scale count"])]
    #[case::taken_in_another_version(&["m v2 - size,mode"], (Some(4), Some(3)), &["m v2 - mode", "s v1 scale count"])]
    #[case::version_without_scale(&["m old - count"], (Some(4), Some(3)), &["m old - count"])]
    #[case::to_zero(&["m v1 - count,mode"], (Some(4), None), &["m v1 - mode"])]
    #[case::again(&["s v1 scale count"], (Some(4), Some(3)), &["s v1 scale count"])]
    #[case::unchanged(&["m v1 - count,mode"], (Some(4), Some(4)), &["m v1 - count", "m v1 - mode"])]
    #[case::unchanged_and_applied(&["m/Apply v1 - count,mode"], (Some(4), Some(4)), &["m/Apply v1 - count,mode"])]
    #[case::repeated(&["m v1 - count", "m v1 - mode"], (Some(4), Some(3)), &["m v1 - mode"])]
    fn owners_of_replicas(
        #[case] entries: &[&str],
        #[case] replicas: (Option<i64>, Option<i64>),
        #[case] expected: &[&str],
    ) {
        let path_in = |version: &str| match version {
            "v1" => Some(".spec.count".to_owned()),
            "v2" => Some(".spec.size".to_owned()),
            _ => None,
        };
        let manager = Manager {
            name: "s",
            subresource: "scale",
            api_version: "v1",
            now: jiff::Timestamp::UNIX_EPOCH,
            reset_fields: &[],
        };
        let mut parent = object(entries);
        track(&mut parent, &manager, path_in, replicas);
        assert_eq!(described(&parent), expected);
    }
}
