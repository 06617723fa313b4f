//! Exclusive workloads: nothing is created or scaled up while a copy runs in another cluster, or with too many
//! replicas. Removals must be confirmed before anything is added.

use crowsnest_api::work::TargetCluster;
use crowsnest_apimachinery::selector::label_selector_matches;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

/// An existing copy: its Work and the reported status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadCopy {
    pub cluster: String,
    /// Replicas in the Work's manifest.
    pub requested: i32,
    /// Replicas that the member reports.
    pub running: Option<i32>,
}

/// Targets that may be written now; the others wait. `is_fenced` is true if the cluster of a copy was removed before
/// the copy was confirmed to have stopped; then no copy is created or scaled up.
pub fn writable_targets(targets: &[TargetCluster], copies: &[WorkloadCopy], is_fenced: bool) -> Vec<String> {
    let target = |copy: &WorkloadCopy| targets.iter().find(|target| target.name == copy.cluster);
    let exceeds_target = |copy: &WorkloadCopy| {
        let target_replicas = target(copy).map(|target| target.replicas);
        target_replicas.is_none_or(|target_replicas| {
            copy.requested > target_replicas || copy.running.is_some_and(|running| running > target_replicas)
        })
    };
    let is_blocked = is_fenced || copies.iter().any(exceeds_target);
    let is_allowed = |target: &&TargetCluster| {
        let copy = copies.iter().find(|copy| copy.cluster == target.name);
        !is_blocked || copy.is_some_and(|copy| copy.requested >= target.replicas)
    };
    targets.iter().filter(is_allowed).map(|target| target.name.clone()).collect()
}

/// True if a pod of the manifest's namespace belongs to the manifest's object and may still be running.
pub fn is_pod_of(pod: &Value, manifest: &Value) -> bool {
    if matches!(unstructured::text(pod, &["status", "phase"]), "Succeeded" | "Failed") {
        return false;
    }
    let labels = unstructured::labels(pod);
    match unstructured::kind(manifest) {
        "Job" => ["batch.kubernetes.io/job-name", "job-name"]
            .iter()
            .any(|key| labels.get(*key).is_some_and(|job| job == unstructured::name(manifest))),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => {
            let selector = unstructured::at(manifest, &["spec", "selector"]).map(LabelSelector::deserialize);
            selector.is_some_and(|selector| selector.is_ok_and(|selector| label_selector_matches(&selector, &labels)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    /// Targets with replicas, and copies with desired and running replicas.
    #[rstest]
    #[case::no_copies(&[("m1", 2)], &[], false, &["m1"])]
    #[case::moved(&[("m2", 2)], &[("m1", 2, 2)], false, &[])]
    #[case::moved_in_part(&[("m1", 2), ("m2", 2)], &[("m1", 4, 4)], false, &["m1"])]
    #[case::scaled_down_but_still_running(&[("m1", 2), ("m2", 2)], &[("m1", 2, 3)], false, &["m1"])]
    #[case::scaled_down(&[("m1", 2), ("m2", 2)], &[("m1", 2, 2)], false, &["m1", "m2"])]
    #[case::scaled_up(&[("m1", 3)], &[("m1", 2, 2)], false, &["m1"])]
    #[case::not_scaled_up_while_another_copy_exists(&[("m1", 3)], &[("m1", 2, 2), ("m2", 1, 0)], false, &[])]
    #[case::edit_without_scaling(&[("m1", 2)], &[("m1", 2, 2), ("m2", 1, 0)], false, &["m1"])]
    #[case::stop_not_confirmed(&[("m2", 1)], &[], true, &[])]
    fn additions_wait_for_removals(
        #[case] targets: &[(&str, i32)],
        #[case] copies: &[(&str, i32, i32)],
        #[case] is_fenced: bool,
        #[case] expected: &[&str],
    ) {
        let target = |(name, replicas): &(&str, i32)| TargetCluster {
            name: (*name).to_owned(),
            replicas: *replicas,
            ..TargetCluster::default()
        };
        let copy = |(name, requested, running): &(&str, i32, i32)| WorkloadCopy {
            cluster: (*name).to_owned(),
            requested: *requested,
            running: Some(*running),
        };
        let targets: Vec<TargetCluster> = targets.iter().map(target).collect();
        let copies: Vec<WorkloadCopy> = copies.iter().map(copy).collect();
        assert_eq!(writable_targets(&targets, &copies, is_fenced), expected);
    }

    #[rstest]
    #[case::selected("Deployment", json!({"app": "web"}), "Running", true)]
    #[case::not_selected("Deployment", json!({"app": "db"}), "Running", false)]
    #[case::finished_pod("Deployment", json!({"app": "web"}), "Succeeded", false)]
    #[case::of_the_job("Job", json!({"job-name": "web"}), "Pending", true)]
    #[case::of_another_job("Job", json!({"job-name": "db"}), "Pending", false)]
    #[case::runs_no_pods("ConfigMap", json!({"app": "web"}), "Running", false)]
    fn pods_of_a_workload(#[case] kind: &str, #[case] labels: Value, #[case] phase: &str, #[case] expected: bool) {
        let selector = json!({"matchLabels": {"app": "web"}});
        let manifest = json!({"kind": kind, "metadata": {"name": "web"}, "spec": {"selector": selector}});
        let pod = json!({"metadata": {"labels": labels}, "status": {"phase": phase}});
        assert_eq!(is_pod_of(&pod, &manifest), expected);
    }
}
