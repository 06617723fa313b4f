//! What Karmada's bindings and works say of an object's way to the members.

use super::Source;
use super::view::{Condition, Metadata, NameRef, Str, null_as_default, views};
use serde::Deserialize;

/// Namespaces of works begin so; the cluster's name follows.
const EXECUTION_SPACE: &str = "karmada-es-";

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

views! {
    Object { metadata: Metadata<'a>, spec: Spec<'a>, status: Status<'a> }
    Spec { resource: Template<'a>, clusters: Vec<NameRef<'a>>, graceful_eviction_tasks: Vec<Eviction<'a>> }
    Template { uid: Str<'a> }
    Eviction { from_cluster: Str<'a> }
    Status { aggregated_status: Vec<Item<'a>>, manifest_statuses: Vec<Item<'a>>, conditions: Vec<Condition<'a>> }
    Item { health: Option<Str<'a>> }
}

/// Of a binding or a work; None of anything else.
pub fn propagation<'a>(group: &str, kind: &str, source: impl Source<'a>) -> Option<Propagation> {
    let work = match (group, kind) {
        ("work.karmada.io", "ResourceBinding" | "ClusterResourceBinding") => false,
        ("work.karmada.io", "Work") => true,
        _ => return None,
    };
    let Object { metadata, spec, status, .. } = source.read::<Object<'a>>()?;
    let space = metadata.namespace.as_deref().and_then(|namespace| namespace.strip_prefix(EXECUTION_SPACE));
    let targets = spec.clusters.iter().map(|target| target.name.to_string());
    let on: Vec<String> = space.filter(|_| work).map(str::to_owned).into_iter().chain(targets).collect();
    let items = status.aggregated_status.iter().chain(&status.manifest_statuses);
    let mut health: Vec<String> = items.filter_map(|item| item.health.as_deref()).map(str::to_owned).collect();
    health.sort_unstable();
    health.dedup();
    let refused = status.conditions.iter().any(|c| c.type_ == "Scheduled" && c.status == "False");
    Some(Propagation {
        template: spec.resource.uid.to_string(),
        unscheduled: !work && (refused || on.is_empty()),
        on,
        evicting: spec.graceful_eviction_tasks.iter().map(|task| task.from_cluster.to_string()).collect(),
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
