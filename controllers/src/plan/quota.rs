//! FederatedResourceQuota: what bindings use, the limits laid down in single clusters, and the status that tells both.
//! Read by admission, which holds bindings to the limits, and by the quota loop, which counts and lays down.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crowsnest_api::constants::{condition, label};
use crowsnest_api::policy::{
    ClusterQuotaStatus, FederatedResourceQuota, FederatedResourceQuotaSpec, FederatedResourceQuotaStatus, ResourceList,
};
use crowsnest_api::quantity::{Format, Quantity};
use crowsnest_api::work::{ResourceBindingSpec, WorkStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use serde::Deserialize;
use serde_json::json;

use super::conditions;
use super::reference::Reference;
use super::work::construct::{self, DesiredWork, WorkOptions};

/// Amounts by resource name.
pub type Usage = BTreeMap<String, Quantity>;

/// A limit that a binding would have gone beyond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    pub quota: Reference,
    pub resource: String,
    /// The sum with what was asked for.
    pub requested: Quantity,
    pub limit: Quantity,
}

/// An amount; one that cannot be read is the schema's business and counts as nothing.
pub fn amount(quantity: &WireQuantity) -> Quantity {
    Quantity::try_from(quantity).unwrap_or_default()
}

pub fn amounts(list: &ResourceList) -> Usage {
    list.iter().map(|(name, quantity)| (name.clone(), amount(quantity))).collect()
}

/// What a binding uses in all its clusters together.
pub fn usage(spec: &ResourceBindingSpec) -> Usage {
    let mut usage = Usage::new();
    let mut count = |request: &ResourceList, times: i64| {
        for (name, quantity) in request {
            *usage.entry(name.clone()).or_default() += amount(quantity).times(times);
        }
    };
    if spec.components.is_empty() {
        let replicas = spec.clusters.iter().map(|cluster| i64::from(cluster.replicas)).sum();
        if let Some(requirements) = &spec.replica_requirements {
            count(&requirements.resource_request, replicas);
        }
    } else {
        let clusters = i64::try_from(spec.clusters.len()).unwrap_or(i64::MAX);
        for component in &spec.components {
            if let Some(requirements) = &component.replica_requirements {
                count(&requirements.resource_request, i64::from(component.replicas).saturating_mul(clusters));
            }
        }
    }
    usage.retain(|_, quantity| !quantity.is_zero());
    usage
}

pub fn add(sum: &mut Usage, usage: Usage) {
    for (name, quantity) in usage {
        *sum.entry(name).or_default() += quantity;
    }
}

pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

/// Amounts in the formats use is recorded in. What is nothing is left out.
pub fn recorded(mut used: Usage) -> Usage {
    used.retain(|_, quantity| *quantity > Quantity::ZERO);
    for (name, quantity) in &mut used {
        *quantity = match name.as_str() {
            "cpu" => Quantity::from_milli(quantity.milli_value(), Format::DecimalSI),
            "memory" | "ephemeral-storage" => Quantity::new(quantity.value(), Format::BinarySI),
            name if is_huge_page(name) => Quantity::new(quantity.value(), Format::BinarySI),
            _ => Quantity::new(quantity.value(), Format::DecimalSI),
        };
    }
    used
}

pub fn to_list(usage: Usage) -> ResourceList {
    usage.into_iter().map(|(name, quantity)| (name, quantity.into())).collect()
}

/// The Works that lay a quota down in single clusters, of those that are registered (Karmada's
/// `federated-resource-quota-sync-controller`).
pub fn assignments(quota: &FederatedResourceQuota, registered: &[String]) -> Vec<DesiredWork> {
    let name = quota.metadata.name.as_deref().unwrap_or_default();
    let namespace = quota.metadata.namespace.as_deref().unwrap_or_default();
    let assigned = quota.spec.static_assignments.iter().filter(|one| registered.contains(&one.cluster_name));
    let wrap = |cluster: &str, hard: &ResourceList| {
        let manifest = json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"hard": hard},
        });
        let labels = BTreeMap::from([
            (label::FEDERATED_RESOURCE_QUOTA_NAMESPACE.to_owned(), namespace.to_owned()),
            (label::FEDERATED_RESOURCE_QUOTA_NAME.to_owned(), name.to_owned()),
        ]);
        construct::wrap(cluster, manifest, labels, BTreeMap::new(), WorkOptions::default())
    };
    assigned.map(|one| wrap(&one.cluster_name, &one.hard)).collect()
}

/// What a member says of the quota that a Work laid down there; `None` until it is applied and counted.
pub fn of_member(cluster: &str, work: &WorkStatus) -> Option<ClusterQuotaStatus> {
    #[derive(Deserialize)]
    struct Counted {
        #[serde(default)]
        hard: ResourceList,
        #[serde(default)]
        used: ResourceList,
    }
    if !conditions::is_true(&work.conditions, condition::APPLIED) {
        return None;
    }
    let status = work.manifest_statuses.first()?.status.as_ref()?;
    let Counted { hard, used } = Counted::deserialize(&status.0).ok()?;
    Some(ClusterQuotaStatus { cluster_name: cluster.to_owned(), hard, used })
}

/// The status of a quota. `counted` is what its namespace's bindings use; without it the members' use is added up.
pub fn status(
    spec: &FederatedResourceQuotaSpec,
    mut members: Vec<ClusterQuotaStatus>,
    counted: Option<Usage>,
) -> FederatedResourceQuotaStatus {
    members.sort_by(|left, right| left.cluster_name.cmp(&right.cluster_name));
    let overall_used = match counted {
        Some(mut counted) => {
            counted.retain(|name, _| spec.overall.contains_key(name));
            recorded(counted)
        }
        None => members.iter().fold(Usage::new(), |mut sum, member| {
            add(&mut sum, amounts(&member.used));
            sum
        }),
    };
    FederatedResourceQuotaStatus {
        overall: spec.overall.clone(),
        overall_used: to_list(overall_used),
        aggregated_status: members,
    }
}

/// What was recorded lately. Admission records before the binding it let through is stored, so that a count may be too early to have it:
/// what was recorded within [`SETTLED`] is added to what is counted. Moments are of the monotonic clock.
#[derive(Debug, Default)]
pub struct Lately {
    /// The first look: what is on its way by then nobody knows.
    began: Option<Duration>,
    /// What was recorded at the last one.
    seen: Usage,
    more: VecDeque<(Duration, Usage)>,
}

/// What admission let through is stored after this, or was refused.
pub const SETTLED: Duration = Duration::from_secs(1);

impl Lately {
    /// What should be recorded in place of `recorded`, where `counted` is what bindings were found to use after that was read; and after
    /// which time that may be less.
    pub fn believe(&mut self, recorded: &Usage, counted: &Usage, now: Duration) -> (Usage, Option<Duration>) {
        self.see(recorded, now);
        let known_from = self.began.unwrap_or(now) + SETTLED;
        let mut at_most = counted.clone();
        self.more.iter().for_each(|(_, more)| add(&mut at_most, more.clone()));
        let of = |usage: &Usage, name: &String| usage.get(name).copied().unwrap_or_default();
        let believe = |name: &String| {
            let (was, found, most) = (of(recorded, name), of(counted, name), of(&at_most, name));
            let amount = if found > was {
                most
            } else if now < known_from {
                was
            } else {
                was.min(most)
            };
            (name.clone(), amount)
        };
        let believed: Usage = recorded.keys().chain(at_most.keys()).map(believe).collect();
        let is_more = believed.iter().any(|(name, amount)| *amount > of(counted, name));
        let settles = self.more.front().map_or(known_from, |(at, _)| (*at + SETTLED).max(known_from));
        (believed, is_more.then(|| settles.saturating_sub(now)))
    }

    /// What was believed is recorded.
    pub fn wrote(&mut self, recorded: Usage) {
        self.seen = recorded;
    }

    fn see(&mut self, recorded: &Usage, now: Duration) {
        while self.more.front().is_some_and(|(at, _)| *at + SETTLED <= now) {
            self.more.pop_front();
        }
        let mut more = recorded.clone();
        for (name, amount) in &self.seen {
            *more.entry(name.clone()).or_default() -= *amount;
        }
        more.retain(|_, amount| *amount > Quantity::ZERO);
        if self.began.is_some() && !more.is_empty() {
            self.more.push_back((now, more));
        }
        self.began.get_or_insert(now);
        self.seen.clone_from(recorded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value;

    fn spec(binding: Value) -> ResourceBindingSpec {
        let mut spec = json!({"resource": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        let fields = binding.as_object().cloned().unwrap_or_default();
        spec.as_object_mut().expect("a map").extend(fields);
        serde_json::from_value(spec).expect("a spec")
    }

    fn requests(cpu: &str, memory: &str) -> Value {
        json!({"resourceRequest": {"cpu": cpu, "memory": memory}})
    }

    #[rstest]
    #[case::nothing_asked(json!({"replicas": 9, "clusters": [{"name": "m1", "replicas": 9}]}), json!({}))]
    #[case::not_scheduled(json!({"replicas": 2, "replicaRequirements": requests("1", "1Gi")}), json!({}))]
    #[case::replicas_of_all_clusters(
        json!({
            "replicaRequirements": requests("250m", "128Mi"),
            "clusters": [{"name": "m1", "replicas": 2}, {"name": "m2", "replicas": 1}],
        }),
        json!({"cpu": "750m", "memory": "384Mi"})
    )]
    #[case::components_in_each_cluster(
        json!({
            "clusters": [{"name": "m1"}, {"name": "m2"}],
            "components": [
                {"name": "leader", "replicas": 1, "replicaRequirements": requests("1", "1Gi")},
                {"name": "worker", "replicas": 3, "replicaRequirements": requests("500m", "512Mi")},
                {"name": "idle", "replicas": 5},
            ],
        }),
        json!({"cpu": "5", "memory": "5Gi"})
    )]
    fn a_binding_uses_what_its_replicas_ask_for(#[case] binding: Value, #[case] expected: Value) {
        assert_eq!(json!(to_list(recorded(usage(&spec(binding))))), expected);
    }

    fn quota(spec: Value) -> FederatedResourceQuota {
        let metadata = json!({"name": "q", "namespace": "shop"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a quota")
    }

    #[test]
    fn only_registered_clusters_get_their_assignment() {
        let hard = |cpu: &str| json!({"cpu": cpu});
        let assignments = json!([
            {"clusterName": "m1", "hard": hard("2")},
            {"clusterName": "gone", "hard": hard("3")},
        ]);
        let quota = quota(json!({"overall": hard("9"), "staticAssignments": assignments}));
        let works = super::assignments(&quota, &["m1".to_owned(), "m2".to_owned()]);
        let told: Vec<_> = works.iter().map(|work| (work.namespace.as_str(), &work.manifest["spec"]["hard"])).collect();
        assert_eq!(told, [("karmada-es-m1", &hard("2"))]);
    }

    #[rstest]
    #[case::of_bindings(Some(json!({"cpu": "500m", "pods": "3"})), json!({"cpu": "500m"}))]
    #[case::of_no_binding(Some(json!({})), Value::Null)]
    #[case::of_members(None, json!({"cpu": "3", "memory": "1Gi"}))]
    fn use_is_counted_or_added_up(#[case] counted: Option<Value>, #[case] expected: Value) {
        let member = |name: &str, used: Value| ClusterQuotaStatus {
            cluster_name: name.to_owned(),
            used: serde_json::from_value(used).expect("amounts"),
            ..ClusterQuotaStatus::default()
        };
        let members = vec![member("m2", json!({"cpu": "2", "memory": "1Gi"})), member("m1", json!({"cpu": "1"}))];
        let counted =
            counted.map(|counted| amounts(&serde_json::from_value::<ResourceList>(counted).expect("amounts")));
        let status = json!(status(&quota(json!({"overall": {"cpu": "9"}})).spec, members, counted));
        assert_eq!((&status["overall"], &status["overallUsed"]), (&json!({"cpu": "9"}), &expected));
        let names: Vec<_> =
            status["aggregatedStatus"].as_array().expect("members").iter().map(|m| &m["clusterName"]).collect();
        assert_eq!(names, ["m1", "m2"]);
    }

    fn used(list: Value) -> Usage {
        amounts(&serde_json::from_value::<ResourceList>(list).expect("amounts"))
    }

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[rstest]
    #[case::nothing_recorded(json!({}), json!({"cpu": "1"}), json!({"cpu": "1"}), json!({"cpu": "1"}))]
    #[case::more(json!({"cpu": "1"}), json!({"cpu": "1100m"}), json!({"cpu": "1100m"}), json!({"cpu": "1100m"}))]
    #[case::the_same(json!({"cpu": "1"}), json!({"cpu": "1000m"}), json!({"cpu": "1"}), json!({"cpu": "1"}))]
    #[case::less_may_be_too_early(
        json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "900m", "memory": "1Gi"}),
        json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "900m", "memory": "1Gi"})
    )]
    #[case::nothing_any_more(json!({"cpu": "1"}), json!({}), json!({"cpu": "1"}), json!({}))]
    fn less_is_believed_after_a_while(
        #[case] recorded: Value,
        #[case] counted: Value,
        #[case] at_once: Value,
        #[case] later: Value,
    ) {
        let mut lately = Lately::default();
        let told = |usage: Usage| json!(to_list(super::recorded(usage)));
        let (recorded, counted) = (used(recorded), used(counted));
        let (believed, wait) = lately.believe(&recorded, &counted, at(5_000));
        assert_eq!(told(believed.clone()), at_once);
        assert_eq!(wait.is_some(), told(believed) != later);
        assert_eq!(told(lately.believe(&recorded, &counted, at(6_000)).0), later);
    }

    #[test]
    fn what_is_asked_for_all_the_time_keeps_nothing_back() {
        let mut lately = Lately::default();
        let cpu = |milli: u64| used(json!({"cpu": format!("{milli}m")}));
        lately.believe(&cpu(1000), &cpu(1000), at(0));
        // At 1,000 ms a binding shrinks from 500m to 100m; each 100 ms another one comes, which is stored 50 ms later.
        let mut recorded = 1000;
        for step in 10..30 {
            recorded += 10;
            let there = 600 + (step - 10) * 10;
            let (believed, _) = lately.believe(&cpu(recorded), &cpu(there), at(step * 100));
            let amount = believed["cpu"].milli_value() as u64;
            assert!(amount >= there + 10, "{amount} at {step} is too little");
            assert!(amount <= there + 10 * 11, "{amount} at {step} is too much");
            recorded = amount;
            lately.wrote(believed);
        }
    }

    proptest! {
        /// However it is counted, bindings and what is on its way to become one never use more than is recorded; and once it is quiet
        /// what is recorded is what they use.
        #[test]
        fn never_too_little_is_recorded(
            deeds in proptest::collection::vec((0..400_u64, 0..8_usize, 0..9_i64, 0..1000_u64, proptest::bool::weighted(0.2)), 1..60),
        ) {
            let usage = |cpu: i64| Usage::from([("cpu".to_owned(), Quantity::new(cpu, Format::DecimalSI))]);
            let (mut lately, mut recorded, mut now) = (Lately::default(), 0_i64, 0_u64);
            let mut bindings = [0_i64; 8];
            // When what was let through is stored; or that it never is.
            let mut coming: Vec<(u64, usize, i64, bool)> = Vec::new();
            for (pause, binding, replicas, delay, lost) in deeds {
                now += pause;
                coming.sort_unstable();
                while let Some((_, binding, replicas, lost)) = coming.first().copied().filter(|(at, ..)| *at <= now) {
                    coming.remove(0);
                    if !lost {
                        bindings[binding] = replicas;
                    }
                }
                // An API server stores one change of an object at a time.
                if !coming.iter().any(|(_, other, ..)| *other == binding) {
                    recorded += (replicas - bindings[binding]).max(0);
                    coming.push((now + delay, binding, replicas, lost));
                }
                let there: i64 = bindings.iter().sum();
                let (believed, _) = lately.believe(&usage(recorded), &usage(there), at(now));
                recorded = believed["cpu"].value();
                lately.wrote(believed);
                let more = |(_, binding, replicas, lost): &(u64, usize, i64, bool)| {
                    if *lost { 0 } else { (replicas - bindings[*binding]).max(0) }
                };
                let used = there + coming.iter().map(more).sum::<i64>();
                prop_assert!(recorded >= used, "{recorded} recorded, {used} used");
            }
            now += 5_000;
            coming.sort_unstable();
            for (_, binding, replicas, lost) in coming {
                bindings[binding] = if lost { bindings[binding] } else { replicas };
            }
            let there: i64 = bindings.iter().sum();
            let (believed, wait) = lately.believe(&usage(recorded), &usage(there), at(now));
            prop_assert_eq!((believed["cpu"].value(), wait), (there, None));
        }
    }
}
