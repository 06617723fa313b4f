//! Status aggregation: from the status of Works to a binding's aggregated status and its `FullyApplied` condition.

use std::collections::BTreeSet;

use crowsnest_api::constants::condition as condition_names;
use crowsnest_api::work::{
    AggregatedStatusItem, ManifestStatus, ObjectReference, ResourceBindingSpec, ResourceHealth, ResourceIdentifier,
    Work,
};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::conditions::{self, condition};
use super::work::construct;

/// Aggregated status of a binding: one item per Work that is not being deleted, sorted by cluster. `None` if a Work
/// does not contain the binding's object (an override renamed it), because its status cannot be attributed then.
pub fn aggregate(works: &[(&str, &Work)], resource: &ObjectReference) -> Option<Vec<AggregatedStatusItem>> {
    let mut items: Vec<AggregatedStatusItem> = works
        .iter()
        .filter(|(_, work)| work.metadata.deletion_timestamp.is_none())
        .map(|(cluster, work)| contains_object(work, resource).then(|| build_item(cluster, work, resource)))
        .collect::<Option<_>>()?;
    items.sort_by(|a, b| a.cluster_name.cmp(&b.cluster_name));
    Some(items)
}

/// True if one of the Work's manifests is the binding's object.
fn contains_object(work: &Work, resource: &ObjectReference) -> bool {
    work.spec.workload.manifests.iter().map(|manifest| &manifest.0).any(|manifest| {
        unstructured::api_version(manifest) == resource.api_version
            && unstructured::kind(manifest) == resource.kind
            && unstructured::namespace(manifest) == resource.namespace
            && unstructured::name(manifest) == resource.name
    })
}

fn build_item(cluster: &str, work: &Work, resource: &ObjectReference) -> AggregatedStatusItem {
    let mut item = AggregatedStatusItem {
        cluster_name: cluster.to_owned(),
        health: Some(ResourceHealth::Unknown),
        ..AggregatedStatusItem::default()
    };
    let applied_condition = conditions::find(&work.status.conditions, condition_names::APPLIED);
    item.applied = applied_condition.is_some_and(|condition| condition.status == "True");
    if !item.applied {
        item.applied_message = applied_condition.map(|condition| condition.message.clone()).unwrap_or_default();
        return item;
    }
    let is_status_of_resource = |status: &&ManifestStatus| {
        let identifier = &status.identifier;
        identifier.kind == resource.kind
            && identifier.name == resource.name
            && identifier.namespace == resource.namespace
    };
    if let Some(status) = work.status.manifest_statuses.iter().find(is_status_of_resource) {
        item.status.clone_from(&status.status);
        item.health.clone_from(&status.health);
    }
    item
}

/// The `FullyApplied` condition: true if the object is applied in all target clusters.
pub fn fully_applied_condition(
    spec: &ResourceBindingSpec,
    items: &[AggregatedStatusItem],
    now: Timestamp,
) -> Condition {
    let mut expected: BTreeSet<&str> = spec.clusters.iter().map(|target| target.name.as_str()).collect();
    expected.extend(spec.required_by.iter().flat_map(|parent| &parent.clusters).map(|target| target.name.as_str()));
    let evicting_clusters = spec.graceful_eviction_tasks.iter().map(|task| task.from_cluster.as_str());
    expected.extend(evicting_clusters.filter(|cluster| construct::is_expected_in(spec, cluster)));
    let applied_count =
        items.iter().filter(|item| item.applied && expected.contains(item.cluster_name.as_str())).count();
    let is_fully_applied = !expected.is_empty() && items.len() == expected.len() && applied_count == expected.len();
    let (reason, message) = match is_fully_applied {
        true => (condition_names::FULLY_APPLIED_SUCCESS, "All works have been successfully applied"),
        false => (
            condition_names::FULLY_APPLIED_FAILED,
            "Failed to apply all works, see status.aggregatedStatus for details",
        ),
    };
    condition(condition_names::FULLY_APPLIED, is_fully_applied, reason, message, now)
}

/// The Work's status entry for one manifest, without the nulls of the reflected status. The entry is written as a merge
/// patch, which drops nulls; with them, the entry would always differ from the stored one.
pub fn manifest_status(
    ordinal: usize,
    manifest: &Value,
    status: Option<Value>,
    is_healthy: Option<bool>,
) -> ManifestStatus {
    let (group, version) = match unstructured::api_version(manifest).split_once('/') {
        Some((group, version)) => (group, version),
        None => ("", unstructured::api_version(manifest)),
    };
    let health = match is_healthy {
        Some(true) => ResourceHealth::Healthy,
        Some(false) => ResourceHealth::Unhealthy,
        None => ResourceHealth::Unknown,
    };
    ManifestStatus {
        identifier: ResourceIdentifier {
            ordinal: i64::try_from(ordinal).unwrap_or_default(),
            group: group.to_owned(),
            version: version.to_owned(),
            kind: unstructured::kind(manifest).to_owned(),
            resource: String::new(),
            namespace: unstructured::namespace(manifest).to_owned(),
            name: unstructured::name(manifest).to_owned(),
        },
        status: status.map(unstructured::remove_nulls).filter(|status| !status.is_null()).map(RawExtension),
        health: Some(health),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn work(manifests: Value) -> Work {
        serde_json::from_value(json!({
            "apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
            "metadata": {"namespace": "karmada-es-m1", "name": "w"},
            "spec": {"workload": {"manifests": manifests}},
            "status": {
                "conditions": [{"type": "Applied", "status": "True", "reason": "AppliedSuccessful", "message": "",
                    "lastTransitionTime": "2024-01-01T00:00:00Z"}],
                "manifestStatuses": [{"health": "Healthy", "identifier": {"ordinal": 0, "version": "v1", "resource": "",
                    "kind": "ConfigMap", "namespace": "n", "name": "a"}}],
            },
        }))
        .unwrap()
    }

    #[rstest]
    #[case::only_manifest(json!([config_map("v1", "n", "a")]), Some(json!([
        {"clusterName": "m1", "applied": true, "health": "Healthy"}
    ])))]
    #[case::several_manifests(json!([config_map("v1", "n", "b"), config_map("v1", "n", "a")]), Some(json!([
        {"clusterName": "m1", "applied": true, "health": "Healthy"}
    ])))]
    #[case::renamed(json!([config_map("v1", "n", "b")]), None)]
    #[case::other_namespace(json!([config_map("v1", "o", "a")]), None)]
    #[case::other_version(json!([config_map("v2", "n", "a")]), None)]
    #[case::empty(json!([]), None)]
    fn aggregated_status_of_works(#[case] manifests: Value, #[case] expected: Option<Value>) {
        let resource = ObjectReference {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: "n".to_owned(),
            name: "a".to_owned(),
            ..ObjectReference::default()
        };
        assert_eq!(aggregate(&[("m1", &work(manifests))], &resource).map(|items| json!(items)), expected);
    }

    #[rstest]
    #[case::null_fields(
        Some(json!({"currentMetrics": null, "conditions": [{"type": "Ready", "lastProbeTime": null}]})),
        Some(json!({"conditions": [{"type": "Ready"}]}))
    )]
    #[case::empty_values(Some(json!({"a": {}, "b": []})), Some(json!({"a": {}, "b": []})))]
    #[case::null(Some(Value::Null), None)]
    #[case::not_reflected(None, None)]
    fn a_reflected_status_equals_the_stored_one(#[case] reflected: Option<Value>, #[case] stored: Option<Value>) {
        let status = manifest_status(0, &config_map("v1", "n", "a"), reflected, Some(true));
        assert_eq!(status.status.map(|status| status.0), stored);
    }

    fn config_map(version: &str, namespace: &str, name: &str) -> Value {
        json!({"apiVersion": version, "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}})
    }
}
