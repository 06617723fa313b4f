//! Facts about pods and their usage across all clusters, as input for counting replicas.

use std::collections::{BTreeMap, HashMap};

use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// A pod of one cluster. Pods of different clusters can have the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    pub cluster: String,
    pub name: String,
}

/// Pod facts needed for counting replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub key: PodKey,
    pub labels: BTreeMap<String, String>,
    pub phase: String,
    pub is_terminating: bool,
    pub readiness: Option<Readiness>,
    pub started_at: Option<Timestamp>,
    pub containers: Vec<Container>,
}

/// The condition `Ready`.
#[derive(Debug, Clone, PartialEq)]
pub struct Readiness {
    pub status: String,
    pub since: Timestamp,
}

/// A container and its resource requests in milli-units.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    pub name: String,
    pub requests: BTreeMap<String, i64>,
}

/// Stands in for a missing timestamp.
const UNKNOWN_TIME: Timestamp = Timestamp::UNIX_EPOCH;

impl Pod {
    pub fn from_json(cluster: &str, pod: &Value) -> Self {
        let time = |path: &[&str]| unstructured::text(pod, path).parse::<Timestamp>().ok();
        Pod {
            key: PodKey { cluster: cluster.to_owned(), name: unstructured::name(pod).to_owned() },
            labels: unstructured::labels(pod),
            phase: unstructured::text(pod, &["status", "phase"]).to_owned(),
            is_terminating: unstructured::is_terminating(pod),
            readiness: read_readiness(pod),
            started_at: time(&["status", "startTime"]),
            containers: list(pod, &["spec", "containers"]).map(Container::from_json).collect(),
        }
    }

    pub fn is_running_and_ready(&self) -> bool {
        self.phase == "Running" && self.readiness.as_ref().is_some_and(|readiness| readiness.status == "True")
    }
}

impl Container {
    fn from_json(container: &Value) -> Self {
        let requests = unstructured::at(container, &["resources", "requests"]).and_then(Value::as_object);
        let milli = |(name, amount): (&String, &Value)| {
            let amount = Quantity::parse(amount.as_str()?).ok()?;
            Some((name.clone(), amount.milli_value()))
        };
        Container {
            name: unstructured::text(container, &["name"]).to_owned(),
            requests: requests.into_iter().flatten().filter_map(milli).collect(),
        }
    }
}

fn list<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    unstructured::at(object, path).and_then(Value::as_array).into_iter().flatten()
}

fn read_readiness(pod: &Value) -> Option<Readiness> {
    let condition =
        list(pod, &["status", "conditions"]).find(|condition| unstructured::text(condition, &["type"]) == "Ready")?;
    Some(Readiness {
        status: unstructured::text(condition, &["status"]).to_owned(),
        since: unstructured::text(condition, &["lastTransitionTime"]).parse().unwrap_or(UNKNOWN_TIME),
    })
}

/// A sample of a metrics API for one pod, in milli-units.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// `None` if the API does not report the pod's cluster.
    pub cluster: Option<String>,
    pub name: String,
    pub value: i64,
    pub at: Timestamp,
    pub window: SignedDuration,
}

/// Usage of a pod, in milli-units.
#[derive(Debug, Clone, PartialEq)]
pub struct PodUsage {
    pub value: i64,
    pub at: Timestamp,
    pub window: SignedDuration,
}

/// Assigns samples to pods. A sample without a cluster is the sum over all clusters that have a pod of this name, and
/// is divided evenly among those pods.
pub fn assign_samples(samples: &[Sample], pods: &[Pod]) -> BTreeMap<PodKey, PodUsage> {
    let mut usages = BTreeMap::new();
    let mut sums: BTreeMap<&str, PodUsage> = BTreeMap::new();
    for sample in samples {
        let usage = PodUsage { value: sample.value, at: sample.at, window: sample.window };
        match &sample.cluster {
            Some(cluster) => {
                usages.insert(PodKey { cluster: cluster.clone(), name: sample.name.clone() }, usage);
            }
            None => match sums.get_mut(sample.name.as_str()) {
                Some(sum) => sum.value = sum.value.saturating_add(usage.value),
                None => drop(sums.insert(&sample.name, usage)),
            },
        }
    }
    let mut keys_by_name: HashMap<&str, Vec<&PodKey>> = HashMap::new();
    for pod in pods.iter().filter(|pod| !usages.contains_key(&pod.key)) {
        keys_by_name.entry(&pod.key.name).or_default().push(&pod.key);
    }
    for (name, sum) in sums {
        let Some(keys) = keys_by_name.get(name) else {
            usages.insert(PodKey { cluster: String::new(), name: name.to_owned() }, sum);
            continue;
        };
        let share = sum.value / i64::try_from(keys.len()).unwrap_or(i64::MAX);
        usages.extend(keys.iter().map(|key| ((*key).clone(), PodUsage { value: share, ..sum.clone() })));
    }
    usages
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn pod(cluster: &str, name: &str) -> Pod {
        Pod::from_json(cluster, &json!({"metadata": {"name": name}}))
    }

    #[rstest]
    #[case::samples_with_cluster(&[(Some("m1"), "a", 10), (Some("m2"), "a", 30)], &[("m1", "a", 10), ("m2", "a", 30)])]
    #[case::sum_is_divided_among_pods_of_the_name(&[(None, "a", 40)], &[("m1", "a", 20), ("m2", "a", 20)])]
    #[case::pods_with_own_samples_get_no_share(
        &[(Some("m1"), "a", 10), (None, "a", 40)], &[("m1", "a", 10), ("m2", "a", 40)]
    )]
    #[case::sample_without_pod(&[(None, "b", 5)], &[("", "b", 5)])]
    fn usage_by_pod(#[case] reported: &[(Option<&str>, &str, i64)], #[case] expected: &[(&str, &str, i64)]) {
        let sample = |(cluster, name, value): &(Option<&str>, &str, i64)| Sample {
            cluster: cluster.map(str::to_owned),
            name: (*name).to_owned(),
            value: *value,
            at: UNKNOWN_TIME,
            window: SignedDuration::ZERO,
        };
        let samples: Vec<Sample> = reported.iter().map(sample).collect();
        let found = assign_samples(&samples, &[pod("m1", "a"), pod("m2", "a")]);
        let found: Vec<(&str, &str, i64)> =
            found.iter().map(|(key, used)| (key.cluster.as_str(), key.name.as_str(), used.value)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn facts_of_a_pod() {
        let facts = Pod::from_json(
            "m1",
            &json!({
                "metadata": {"name": "a", "labels": {"app": "web"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"containers": [
                    {"name": "web", "resources": {"requests": {"cpu": "100m", "memory": "1Ki"}}}, {"name": "side"},
                ]},
                "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"},
                ]},
            }),
        );
        assert!(facts.is_terminating && facts.is_running_and_ready() && facts.labels["app"] == "web");
        let requests = BTreeMap::from([("cpu".to_owned(), 100), ("memory".to_owned(), 1_024_000)]);
        assert_eq!(facts.containers[0], Container { name: "web".to_owned(), requests });
        assert_eq!(facts.containers[1], Container { name: "side".to_owned(), requests: BTreeMap::new() });
        let since = "2026-01-01T00:00:05Z".parse().expect("a time");
        assert_eq!(facts.readiness, Some(Readiness { status: "True".to_owned(), since }));
    }
}
