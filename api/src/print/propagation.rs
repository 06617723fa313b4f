//! What Karmada's bindings and works say of an object's way to the members.

use super::Source;
use super::view::Str;
use serde::Deserialize;

/// Namespaces of works begin so; the cluster's name follows.
const EXECUTION_SPACE: &str = "karmada-es-";

type Text<'a> = Option<Str<'a>>;

/// Where an object goes, and how it is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Propagation {
    /// Uid of the template.
    pub template: String,
    /// Clusters it is scheduled to.
    pub on: Vec<String>,
    /// Clusters it is being evicted from.
    pub evicting: Vec<String>,
    /// Healthy, Unhealthy or Unknown, as some cluster says.
    pub health: Vec<String>,
    /// No cluster was found for it.
    pub unscheduled: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: Option<Spec<'a>>,
    #[serde(borrow)]
    status: Option<Status<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow)]
    namespace: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec<'a> {
    #[serde(borrow)]
    resource: Option<Template<'a>>,
    #[serde(borrow)]
    clusters: Option<Vec<Target<'a>>>,
    #[serde(borrow)]
    graceful_eviction_tasks: Option<Vec<Eviction<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Template<'a> {
    #[serde(borrow)]
    uid: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Target<'a> {
    #[serde(borrow)]
    name: Str<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Eviction<'a> {
    #[serde(borrow)]
    from_cluster: Str<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status<'a> {
    #[serde(borrow)]
    aggregated_status: Option<Vec<Item<'a>>>,
    #[serde(borrow)]
    manifest_statuses: Option<Vec<Item<'a>>>,
    #[serde(borrow)]
    conditions: Option<Vec<Condition<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Item<'a> {
    #[serde(borrow)]
    health: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition<'a> {
    #[serde(borrow, rename = "type")]
    type_: Str<'a>,
    #[serde(borrow)]
    status: Str<'a>,
}

/// Of a binding or a work; None of anything else.
pub fn propagation<'a>(group: &str, kind: &str, source: impl Source<'a>) -> Option<Propagation> {
    let work = match (group, kind) {
        ("work.karmada.io", "ResourceBinding" | "ClusterResourceBinding") => false,
        ("work.karmada.io", "Work") => true,
        _ => return None,
    };
    let Object { metadata, spec, status } = source.read::<Object<'a>>()?;
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
    let space = metadata.namespace.as_deref().and_then(|namespace| namespace.strip_prefix(EXECUTION_SPACE));
    let targets = spec.clusters.iter().flatten().map(|target| target.name.to_string());
    let on: Vec<String> = space.filter(|_| work).map(str::to_owned).into_iter().chain(targets).collect();
    let items = status.aggregated_status.iter().chain(&status.manifest_statuses).flatten();
    let mut health: Vec<String> = items.filter_map(|item| item.health.as_deref()).map(str::to_owned).collect();
    health.sort_unstable();
    health.dedup();
    let refused = status.conditions.iter().flatten().any(|c| c.type_ == "Scheduled" && c.status == "False");
    Some(Propagation {
        template: spec.resource.and_then(|template| template.uid).map(|uid| uid.to_string()).unwrap_or_default(),
        unscheduled: !work && (refused || on.is_empty()),
        on,
        evicting: spec.graceful_eviction_tasks.iter().flatten().map(|task| task.from_cluster.to_string()).collect(),
        health,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn told(on: &[&str], evicting: &[&str], health: &[&str], unscheduled: bool) -> Propagation {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        Propagation {
            template: "u1".into(),
            on: owned(on),
            evicting: owned(evicting),
            health: owned(health),
            unscheduled,
        }
    }

    #[rstest]
    #[case::scheduled("ResourceBinding", json!({"spec": {"resource": {"uid": "u1"}, "clusters": [{"name": "m1"}, {"name": "m2"}],
        "gracefulEvictionTasks": [{"fromCluster": "m3"}]}, "status": {"aggregatedStatus": [{"clusterName": "m1", "health": "Healthy"},
        {"clusterName": "m2", "health": "Unhealthy"}, {"health": "Healthy"}]}}),
        told(&["m1", "m2"], &["m3"], &["Healthy", "Unhealthy"], false))]
    #[case::refused("ClusterResourceBinding", json!({"spec": {"resource": {"uid": "u1"}, "clusters": [{"name": "m1"}]},
        "status": {"conditions": [{"type": "Scheduled", "status": "False"}]}}), told(&["m1"], &[], &[], true))]
    #[case::nowhere("ResourceBinding", json!({"spec": {"resource": {"uid": "u1"}}}), told(&[], &[], &[], true))]
    #[case::work("Work", json!({"metadata": {"namespace": "karmada-es-m1"}, "spec": {"resource": {"uid": "u1"}},
        "status": {"manifestStatuses": [{"health": "Healthy"}]}}), told(&["m1"], &[], &["Healthy"], false))]
    fn bindings_and_works_tell(#[case] kind: &str, #[case] object: Value, #[case] expected: Propagation) {
        assert_eq!(propagation("work.karmada.io", kind, &object), Some(expected));
        assert_eq!(propagation("apps", "Deployment", &object), None);
    }
}
