//! Matching of label, resource and cluster selectors by the rules of the policy API, for all planners.

use std::collections::BTreeMap;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{ClusterAffinity, FieldSelector, ResourceSelector};
use crowsnest_apimachinery::selector::{expression_matches, label_selector_matches};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

/// Precision of a resource selector. More precise policies take precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum Precision {
    /// Every object of the kind.
    All,
    LabelSelector,
    Name,
}

/// Fields of an object that resource selectors compare, except for labels.
#[derive(Debug, Clone, Copy)]
pub struct ObjectFields<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Precision with which a selector matches a template. `None` if it does not match.
pub fn precision_of(selector: &ResourceSelector, template: &Value) -> Option<Precision> {
    let fields = ObjectFields {
        api_version: unstructured::api_version(template),
        kind: unstructured::kind(template),
        namespace: unstructured::namespace(template),
        name: unstructured::name(template),
    };
    precision(selector, fields, |label_selector| {
        label_selector_matches(label_selector, &unstructured::labels(template))
    })
}

/// The best precision of any selector for an object with these fields and labels.
pub fn best_precision_of_fields(
    selectors: &[ResourceSelector],
    fields: ObjectFields<'_>,
    labels: &BTreeMap<String, String>,
) -> Option<Precision> {
    selectors
        .iter()
        .filter_map(|selector| {
            precision(selector, fields, |label_selector| label_selector_matches(label_selector, labels))
        })
        .max()
}

fn precision(
    selector: &ResourceSelector,
    fields: ObjectFields<'_>,
    has_labels: impl FnOnce(&LabelSelector) -> bool,
) -> Option<Precision> {
    let of_kind = selector.api_version == fields.api_version && selector.kind == fields.kind;
    let in_namespace = selector.namespace.is_empty() || selector.namespace == fields.namespace;
    if !of_kind || !in_namespace {
        return None;
    }
    if !selector.name.is_empty() {
        return (selector.name == fields.name).then_some(Precision::Name);
    }
    match &selector.label_selector {
        None => Some(Precision::All),
        Some(label_selector) => has_labels(label_selector).then_some(Precision::LabelSelector),
    }
}

/// The best precision of any selector that matches.
pub fn best_precision(selectors: &[ResourceSelector], template: &Value) -> Option<Precision> {
    selectors.iter().filter_map(|selector| precision_of(selector, template)).max()
}

/// True if an affinity matches a cluster: it is not excluded, and matches all selectors that the affinity has.
pub fn cluster_matches(cluster: &Cluster, affinity: &ClusterAffinity) -> bool {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    if affinity.exclude.iter().any(|excluded| excluded == name) {
        return false;
    }
    let empty = BTreeMap::new();
    let labels = cluster.metadata.labels.as_ref().unwrap_or(&empty);
    affinity.label_selector.as_ref().is_none_or(|selector| label_selector_matches(selector, labels))
        && affinity.field_selector.as_ref().is_none_or(|selector| fields_match(selector, cluster))
        && (affinity.cluster_names.is_empty() || affinity.cluster_names.iter().any(|listed_name| listed_name == name))
}

/// Provider and region are treated as labels that are absent if empty. A cluster can have several zones.
fn fields_match(selector: &FieldSelector, cluster: &Cluster) -> bool {
    selector.match_expressions.iter().all(|requirement| {
        let values = requirement.values.as_deref().unwrap_or_default();
        let single = |value: &String| {
            let value = (!value.is_empty()).then_some(value.as_str());
            expression_matches(&requirement.operator, value, values)
        };
        match requirement.key.as_str() {
            "provider" => single(&cluster.spec.provider),
            "region" => single(&cluster.spec.region),
            "zone" => zones_match(&requirement.operator, &cluster.spec.zones, values),
            _ => expression_matches(&requirement.operator, None, values),
        }
    })
}

fn zones_match(operator: &str, zones: &[String], values: &[String]) -> bool {
    let any = || zones.iter().any(|zone| values.contains(zone));
    match operator {
        "In" => any(),
        "NotIn" => !any(),
        "Exists" => !zones.is_empty(),
        "DoesNotExist" => zones.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn cluster() -> Cluster {
        serde_json::from_value(json!({
            "metadata": {"name": "m1", "labels": {"tier": "gold"}},
            "spec": {"provider": "alpha", "region": "east", "zones": ["east-1", "east-2"]},
        }))
        .expect("a cluster")
    }

    #[rstest]
    #[case::empty_affinity(json!({}), true)]
    #[case::exclusion_takes_precedence(json!({"clusterNames": ["m1"], "exclude": ["m1"]}), false)]
    #[case::other_name(json!({"clusterNames": ["m2"]}), false)]
    #[case::label(json!({"labelSelector": {"matchLabels": {"tier": "gold"}}}), true)]
    #[case::region_not_in(json!({"fieldSelector": {"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["east"]}]}}), false)]
    #[case::any_zone(json!({"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east-2"]}]}}), true)]
    #[case::not_in_without_values(json!({"labelSelector": {"matchExpressions": [{"key": "no", "operator": "NotIn"}]}}), false)]
    #[case::not_in(json!({"labelSelector": {"matchExpressions": [{"key": "no", "operator": "NotIn", "values": ["a"]}]}}), true)]
    #[case::exists_with_values(json!({"labelSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists", "values": ["gold"]}]}}), false)]
    #[case::exists(json!({"labelSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}}), true)]
    #[case::field_not_in_without_values(json!({"fieldSelector": {"matchExpressions": [{"key": "region", "operator": "NotIn"}]}}), false)]
    #[case::zone_not_in_without_values(json!({"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "NotIn"}]}}), true)]
    fn affinities_match_clusters(#[case] affinity: Value, #[case] matches: bool) {
        let affinity = serde_json::from_value(affinity).expect("an affinity");
        assert_eq!(cluster_matches(&cluster(), &affinity), matches);
    }

    #[rstest]
    #[case::name_takes_precedence(json!({"name": "web", "labelSelector": {"matchLabels": {"no": "no"}}}), Some(Precision::Name))]
    #[case::labels(json!({"labelSelector": {"matchLabels": {"app": "web"}}}), Some(Precision::LabelSelector))]
    #[case::kind(json!({}), Some(Precision::All))]
    #[case::other_namespace(json!({"namespace": "b"}), None)]
    fn selectors_match_templates(#[case] selector: Value, #[case] expected: Option<Precision>) {
        let mut selector: ResourceSelector = serde_json::from_value(selector).expect("a selector");
        (selector.api_version, selector.kind) = ("v1".to_owned(), "ConfigMap".to_owned());
        let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "web", "namespace": "a", "labels": {"app": "web"}}});
        assert_eq!(precision_of(&selector, &template), expected);
        let fields = ObjectFields { api_version: "v1", kind: "ConfigMap", namespace: "a", name: "web" };
        assert_eq!(best_precision_of_fields(&[selector], fields, &unstructured::labels(&template)), expected);
    }
}
