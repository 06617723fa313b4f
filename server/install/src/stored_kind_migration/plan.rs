//! Plan of the migration: the copies to write, the policy that protects the originals, and whether the earlier definitions can be
//! deleted. Has no side effects.

use std::collections::BTreeMap;

use crowsnest_api::constants::annotation::{MIGRATED_CREATED, MIGRATED_UID, MIGRATION_UNVERIFIED, READS_STORED_KINDS};
use crowsnest_api::storage::{CLUSTERS, GROUP, RESOURCE_REGISTRIES, SAVED_SEARCHES, StoredKind};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

use crate::migrate::plan::{ApiCollection, MIGRATION_ANNOTATIONS, migrated_part, name};
use crate::migrate::{STORAGE_API_VERSION, crowsnest_collection};

/// A kind of the internal group that an earlier version stored under another name.
#[derive(Debug)]
pub(crate) struct RenamedKind {
    pub(crate) old: ApiCollection<'static>,
    pub(crate) new: ApiCollection<'static>,
}

impl RenamedKind {
    /// Name of the earlier definition.
    pub(crate) fn definition(&self) -> String {
        format!("{}.{GROUP}", self.old.plural)
    }
}

const fn renamed_kind(kind: &'static StoredKind) -> RenamedKind {
    // The earlier names were those of the public kinds.
    RenamedKind {
        old: ApiCollection { api_version: STORAGE_API_VERSION, plural: kind.plural, kind: kind.kind },
        new: crowsnest_collection(kind),
    }
}

/// All kinds whose names were changed.
pub(crate) const RENAMED_KINDS: [RenamedKind; 3] =
    [renamed_kind(&CLUSTERS), renamed_kind(&RESOURCE_REGISTRIES), renamed_kind(&SAVED_SEARCHES)];

/// An object to be written in its new kind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObjectCopy {
    /// The complete object, marked as not verified.
    pub(crate) object: Value,
    /// True if an unfinished copy exists already.
    pub(crate) exists: bool,
    /// Managed fields of the earlier object.
    pub(crate) managed_fields: Value,
    /// True if the earlier object is being deleted.
    pub(crate) is_terminating: bool,
}

/// Copies that are missing or unfinished. Finished copies are not written again, since they may have been changed.
pub(crate) fn plan_copies(old: &[Value], new: &[Value], collection: ApiCollection<'_>) -> Vec<ObjectCopy> {
    let new_by_name: BTreeMap<&str, &Value> = new.iter().map(|object| (name(object), object)).collect();
    let mut copies = Vec::new();
    for object in old {
        let existing_copy = new_by_name.get(name(object));
        if existing_copy.is_some_and(|existing_copy| !is_unverified(existing_copy)) {
            continue;
        }
        let mut copy = migrated_part(object, collection);
        let annotations = &object["metadata"]["annotations"];
        for key in MIGRATION_ANNOTATIONS {
            if let Some(value) = annotations.get(key) {
                copy["metadata"]["annotations"][key] = value.clone();
            }
        }
        for (key, field) in [(MIGRATED_UID, "uid"), (MIGRATED_CREATED, "creationTimestamp")] {
            if copy["metadata"]["annotations"].get(key).is_none() {
                copy["metadata"]["annotations"][key] = object["metadata"][field].clone();
            }
        }
        copy["metadata"]["annotations"][MIGRATION_UNVERIFIED] = "true".into();
        if let Some(existing_copy) = existing_copy {
            copy["metadata"]["resourceVersion"] = existing_copy["metadata"]["resourceVersion"].clone();
        }
        copies.push(ObjectCopy {
            object: copy,
            exists: existing_copy.is_some(),
            managed_fields: object["metadata"]["managedFields"].clone(),
            is_terminating: object["metadata"]["deletionTimestamp"].is_string(),
        });
    }
    copies
}

/// True for a copy that has not been verified.
pub(crate) fn is_unverified(object: &Value) -> bool {
    object["metadata"]["annotations"][MIGRATION_UNVERIFIED].is_string()
}

/// Returns true if the object that was read back is equal to the copy.
pub(crate) fn is_unchanged_copy(copy: &ObjectCopy, written: &Value, collection: ApiCollection<'_>) -> bool {
    let migration_annotations =
        |object: &Value| MIGRATION_ANNOTATIONS.map(|key| object["metadata"]["annotations"][key].clone());
    migrated_part(&copy.object, collection) == migrated_part(written, collection)
        && migration_annotations(&copy.object) == migration_annotations(written)
}

/// Policy, with its binding, that refuses all changes of stored objects under their earlier names except the removal of finalizers.
pub(crate) fn migration_policy() -> [Value; 2] {
    let resources: Vec<String> = RENAMED_KINDS
        .iter()
        .flat_map(|kind| [kind.old.plural.to_owned(), format!("{}/status", kind.old.plural)])
        .collect();
    let unchanged_condition = |field: &str| {
        format!(
            "(has(object.{field}) == has(oldObject.{field}) && (!has(object.{field}) || object.{field} == oldObject.{field}))"
        )
    };
    let removal_condition =
        "request.operation == 'UPDATE' && has(oldObject.metadata.finalizers) && !has(object.metadata.finalizers)";
    let (spec, status) = (unchanged_condition("spec"), unchanged_condition("status"));
    let expression = format!("{removal_condition} && {spec} && {status}");
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": MIGRATION_POLICY},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE", "DELETE"], "resources": resources,
                }]},
                "validations": [{
                    "expression": expression, "reason": "Forbidden",
                    "message": "stored objects of this kind are read-only since they were migrated; upgrade this crowsnest replica to the installed version",
                }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": MIGRATION_POLICY}, "spec": {"policyName": MIGRATION_POLICY, "validationActions": ["Deny"]},
        }),
    ]
}

/// Name of the policy and of its binding.
pub(crate) const MIGRATION_POLICY: &str = "moved.storage.crowsnest.io";

/// Reason to keep the earlier definitions: an earlier version that still watches them would interpret their deletion as deletion of all
/// clusters. `None` if each Lease is held by a process that reads the kinds of this version.
pub(crate) fn reason_to_keep(leases: &[(&str, Option<Lease>)], now: Timestamp) -> Option<String> {
    leases.iter().find_map(|(name, lease)| {
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
        let until = spec.and_then(|spec| {
            let lease_duration = SignedDuration::from_secs(i64::from(spec.lease_duration_seconds?));
            spec.renew_time.as_ref()?.0.checked_add(lease_duration).ok()
        });
        let annotations = lease.as_ref().and_then(|lease| lease.metadata.annotations.as_ref());
        let reader = annotations.and_then(|annotations| annotations.get(READS_STORED_KINDS)).map(String::as_str);
        match holder {
            Some(holder) if reader != Some(holder) => Some(format!(
                "{holder}, which holds the Lease {name}, may be an earlier version that still watches them"
            )),
            Some(_) if until.is_some_and(|until| until > now) => None,
            _ => Some(format!("no replica of this version holds the Lease {name}")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &RenamedKind = &RENAMED_KINDS[0];

    fn old(name: &str) -> Value {
        json!({
            "apiVersion": STORAGE_API_VERSION, "kind": "Cluster",
            "metadata": {"name": name, "uid": format!("uid-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "7",
                "finalizers": ["karmada.io/cluster-controller"], "managedFields": [{"manager": "m"}]},
            "spec": {"syncMode": "Push"}, "status": {"kubernetesVersion": "v1.36.0"},
        })
    }

    #[test]
    fn copies_keep_metadata_that_clients_read() {
        let [copy]: [ObjectCopy; 1] = plan_copies(&[old("m1")], &[], CLUSTER.new).try_into().unwrap();
        let expected = json!({
            "apiVersion": STORAGE_API_VERSION, "kind": "StoredCluster",
            "metadata": {"name": "m1", "finalizers": ["karmada.io/cluster-controller"], "annotations": {
                MIGRATED_UID: "uid-m1", MIGRATED_CREATED: "2026-01-01T00:00:00Z", MIGRATION_UNVERIFIED: "true"}},
            "spec": {"syncMode": "Push"}, "status": {"kubernetesVersion": "v1.36.0"},
        });
        assert_eq!((copy.object, copy.exists, copy.is_terminating), (expected, false, false));
        assert_eq!(copy.managed_fields, json!([{"manager": "m"}]));
    }

    #[test]
    fn objects_migrated_from_karmada_keep_the_original_uid() {
        let mut object = old("m1");
        object["metadata"]["annotations"] = json!({MIGRATED_UID: "first", MIGRATED_CREATED: "2025-01-01T00:00:00Z"});
        let [copy]: [ObjectCopy; 1] = plan_copies(&[object], &[], CLUSTER.new).try_into().unwrap();
        let annotations = &copy.object["metadata"]["annotations"];
        assert_eq!(
            (&annotations[MIGRATED_UID], &annotations[MIGRATED_CREATED]),
            (&json!("first"), &json!("2025-01-01T00:00:00Z"))
        );
    }

    /// A repeated run completes unfinished copies and does not change finished ones.
    #[test]
    fn unfinished_copies_are_written_again() {
        let mut finished = migrated_part(&old("a"), CLUSTER.new);
        finished["spec"]["region"] = "changed since".into();
        let mut unfinished = migrated_part(&old("b"), CLUSTER.new);
        unfinished["metadata"]["annotations"] = json!({MIGRATION_UNVERIFIED: "true"});
        unfinished["metadata"]["resourceVersion"] = "9".into();
        let found = plan_copies(&[old("a"), old("b"), old("c")], &[finished, unfinished], CLUSTER.new);
        let outline: Vec<_> = found
            .iter()
            .map(|copy| (name(&copy.object), copy.exists, copy.object["metadata"]["resourceVersion"].clone()))
            .collect();
        assert_eq!(outline, [("b", true, json!("9")), ("c", false, Value::Null)]);
    }

    #[test]
    fn incomplete_copies_are_not_accepted() {
        let [copy]: [ObjectCopy; 1] = plan_copies(&[old("m1")], &[], CLUSTER.new).try_into().unwrap();
        let mut written = copy.object.clone();
        written["metadata"]["uid"] = "another".into();
        assert!(is_unchanged_copy(&copy, &written, CLUSTER.new));
        written["status"] = Value::Null;
        assert!(!is_unchanged_copy(&copy, &written, CLUSTER.new));
    }

    #[test]
    fn earlier_definitions_are_kept_while_replicas_may_read_them() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let lease = |holder: &str, reader: &str, renewed: &str| -> Lease {
            serde_json::from_value(json!({
                "metadata": {"annotations": {READS_STORED_KINDS: reader}},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed},
            }))
            .unwrap()
        };
        let (recent, long_ago) = ("2026-01-01T00:00:50.000000Z", "2026-01-01T00:00:10.000000Z");
        let cases = [
            (Some(lease("new", "new", recent)), None),
            (
                Some(lease("old", "new", recent)),
                Some("old, which holds the Lease l, may be an earlier version that still watches them"),
            ),
            (Some(lease("new", "new", long_ago)), Some("no replica of this version holds the Lease l")),
            (Some(lease("", "new", recent)), Some("no replica of this version holds the Lease l")),
            (None, Some("no replica of this version holds the Lease l")),
        ];
        for (lease, expected) in cases {
            assert_eq!(reason_to_keep(&[("l", lease)], now).as_deref(), expected);
        }
    }
}
