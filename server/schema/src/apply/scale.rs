//! Field ownership of an object's replicas when its Scale is written, as in kube-apiserver's `ScaleHandler`: the write
//! changes the owners of the replicas and of no other field.

use std::collections::HashSet;

use serde_json::Value;

use super::Manager;
use super::managed::{self, ManagerEntry, ManagerId};
use super::path::FieldSet;
use super::versions::ReplicasPath;

const SCALE_VERSION: &str = "autoscaling/v1";

/// Field names of a path such as `.spec.replicas`.
fn field_names(path: &str) -> Vec<&str> {
    path.trim_start_matches('.').split('.').collect()
}

fn field_set(path: &str) -> FieldSet {
    let mut set = FieldSet::default();
    set.insert_fields(&field_names(path));
    set
}

/// True if the manager of an entry owns the replicas in the entry's version.
fn owns_replicas<'p>(entry: &ManagerEntry, path_in: &impl Fn(&str) -> ReplicasPath<'p>) -> bool {
    match path_in(&entry.api_version) {
        ReplicasPath::At(path) => entry.fields.contains_fields(&field_names(path)),
        ReplicasPath::NoScale | ReplicasPath::UnknownVersion => false,
    }
}

/// Keeps the last entry of each manager, as kube-apiserver does when it decodes managedFields.
fn keep_last_per_manager(entries: Vec<ManagerEntry>) -> Vec<ManagerEntry> {
    let mut is_last: Vec<bool> = {
        let mut later: HashSet<ManagerId<'_>> = HashSet::with_capacity(entries.len());
        entries.iter().rev().map(|entry| later.insert(entry.manager_id())).collect()
    };
    is_last.reverse();
    entries.into_iter().zip(is_last).filter_map(|(entry, is_last)| is_last.then_some(entry)).collect()
}

/// The managers of the Scale: those that own the replicas of its parent in a version with a Scale.
fn managers_of_scale<'p>(entries: &[ManagerEntry], path_in: &impl Fn(&str) -> ReplicasPath<'p>) -> Vec<ManagerEntry> {
    let replicas = field_set(".spec.replicas");
    let owners = entries.iter().filter(|entry| owns_replicas(entry, path_in));
    owners
        .map(|entry| ManagerEntry { api_version: SCALE_VERSION.into(), fields: replicas.clone(), ..entry.clone() })
        .collect()
}

/// Sets the managedFields of a Scale. `path_in` returns the path of the replicas in a version of its parent.
pub fn set_managers<'p>(scale: &mut Value, parent: &Value, path_in: impl Fn(&str) -> ReplicasPath<'p>) {
    let entries = keep_last_per_manager(managed::decode(parent).unwrap_or_default());
    managed::encode(scale, managers_of_scale(&entries, &path_in));
}

/// Updates the managedFields of an object after a write of its Scale. `before` and `after` are the replicas of the Scale;
/// `None` for zero, which a Scale omits. As in kube-apiserver, replicas without an owner stay without one, each
/// owner of unchanged replicas gets a separate entry for them, and entries of versions that the kind does not have are
/// dropped.
pub fn update_replica_managers<'p>(
    parent: &mut Value,
    manager: &Manager<'_>,
    path_in: impl Fn(&str) -> ReplicasPath<'p>,
    (before, after): (Option<i64>, Option<i64>),
) {
    let entries = keep_last_per_manager(managed::decode(parent).unwrap_or_default());
    let mut owners = keep_last_per_manager(managers_of_scale(&entries, &path_in));
    if !owners.is_empty() && before != after {
        owners.clear();
        if after.is_some() {
            owners
                .push(ManagerEntry { api_version: SCALE_VERSION.into(), ..manager.entry(false, FieldSet::default()) });
        }
    }
    let additional = additional_entries(&entries, &owners, manager.api_version, &path_in);
    let mut kept = remove_former_owners(entries, &owners, &path_in);
    kept.extend(additional);
    managed::encode(parent, kept);
}

/// Entries in the version of the request for the owners that have no entry with the replicas yet.
fn additional_entries<'p>(
    entries: &[ManagerEntry],
    owners: &[ManagerEntry],
    api_version: &str,
    path_in: &impl Fn(&str) -> ReplicasPath<'p>,
) -> Vec<ManagerEntry> {
    let ReplicasPath::At(path) = path_in(api_version) else { return Vec::new() };
    let with_replicas = entries.iter().filter(|entry| owns_replicas(entry, path_in));
    let recorded: HashSet<ManagerId<'_>> = with_replicas.map(ManagerEntry::manager_id).collect();
    let fields = field_set(path);
    let unrecorded = owners.iter().filter(|owner| !recorded.contains(&owner.manager_id()));
    unrecorded
        .map(|owner| ManagerEntry {
            api_version: api_version.to_owned(),
            time: None,
            fields: fields.clone(),
            ..owner.clone()
        })
        .collect()
}

/// Removes the replicas from the entries of managers that no longer own them, and drops the entries of unknown versions.
fn remove_former_owners<'p>(
    entries: Vec<ManagerEntry>,
    owners: &[ManagerEntry],
    path_in: &impl Fn(&str) -> ReplicasPath<'p>,
) -> Vec<ManagerEntry> {
    let owners: HashSet<ManagerId<'_>> = owners.iter().map(ManagerEntry::manager_id).collect();
    let mut kept = Vec::with_capacity(entries.len());
    for mut entry in entries {
        match path_in(&entry.api_version) {
            ReplicasPath::UnknownVersion => continue,
            ReplicasPath::At(path) if !owners.contains(&entry.manager_id()) => {
                entry.fields.subtract(&field_set(path));
            }
            ReplicasPath::At(_) | ReplicasPath::NoScale => {}
        }
        if !entry.fields.is_empty() {
            kept.push(entry);
        }
    }
    kept
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

    fn format_entries(object: &Value) -> Vec<String> {
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

    /// `v1` and `v2` have a Scale, `old` has none, and others are unknown.
    fn path_in(version: &str) -> ReplicasPath<'static> {
        match version {
            "v1" => ReplicasPath::At(".spec.count"),
            "v2" => ReplicasPath::At(".spec.size"),
            "old" => ReplicasPath::NoScale,
            _ => ReplicasPath::UnknownVersion,
        }
    }

    /// Entries after a write of the Scale by `s` in `v1`.
    fn write_scale(entries: &[&str], replicas: (Option<i64>, Option<i64>)) -> Vec<String> {
        let manager = Manager {
            name: "s",
            subresource: "scale",
            api_version: "v1",
            now: jiff::Timestamp::UNIX_EPOCH,
            reset_fields: &[],
        };
        let mut parent = object(entries);
        update_replica_managers(&mut parent, &manager, path_in, replicas);
        format_entries(&parent)
    }

    /// Results of kube-apiserver 1.36.3.
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
        assert_eq!(write_scale(entries, replicas), expected);
    }

    /// As in `ToParent` and `ToSubresource` of kube-apiserver's `ScaleHandler`: entries of an unknown version do not own
    /// the replicas, and are dropped even if the replicas have not changed.
    #[rstest]
    #[case::beside_an_owner(&["m gone - mode", "n v1 - count"], Some(3), &["s v1 scale count"])]
    #[case::unchanged(&["m gone - mode", "n/Apply v1 - count"], Some(4), &["n/Apply v1 - count"])]
    #[case::only_owner(&["m gone - count", "n v1 - mode"], Some(3), &["n v1 - mode"])]
    #[case::applier_with_an_older_entry(&["m/Apply gone - count", "m/Apply v1 - mode"], Some(3), &["m/Apply v1 - mode"])]
    fn entries_of_unknown_versions_are_dropped(
        #[case] entries: &[&str],
        #[case] after: Option<i64>,
        #[case] expected: &[&str],
    ) {
        assert_eq!(write_scale(entries, (Some(4), after)), expected);
    }

    #[test]
    fn the_last_entry_of_each_manager_is_kept() {
        let parent =
            object(&["a v1 - count", "b v1 - count", "a v1 - mode", "a/Apply v1 - count", "a/Apply v2 - size"]);
        let entries = keep_last_per_manager(managed::decode(&parent).unwrap());
        let entries: Vec<String> =
            entries.iter().map(|entry| format!("{} {}", entry.describe(), entry.fields.paths().concat())).collect();
        assert_eq!(entries, ["\"b\" using v1 .spec.count", "\"a\" using v1 .spec.mode", "\"a\" .spec.size"]);
    }

    /// Owners of the replicas in unknown versions, or in versions without a Scale, are not managers of the Scale.
    #[test]
    fn managers_of_a_scale_are_the_owners_of_the_replicas() {
        let parent = object(&[
            "a v1 - count,mode",
            "b v1 - mode",
            "c/Apply v2 - size",
            "d old - count",
            "e gone - count",
            // The last one of two entries of a manager is kept.
            "f v1 - count",
            "f v1 - mode",
        ]);
        let mut scale = json!({"metadata": {}});
        set_managers(&mut scale, &parent, path_in);
        let expected = ["a autoscaling/v1 - replicas", "c/Apply autoscaling/v1 - replicas"];
        assert_eq!(format_entries(&scale), expected);
    }
}
