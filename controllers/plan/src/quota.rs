//! FederatedResourceQuota: usage of bindings, static assignments in member clusters, and the status. Used by
//! admission, which enforces the limits, and by the quota controller, which counts usage and creates the assignments.

use std::collections::BTreeMap;
use std::fmt;

use crowsnest_api::constants::{condition, label};
use crowsnest_api::policy::{
    ClusterQuotaStatus, FederatedResourceQuota, FederatedResourceQuotaSpec, FederatedResourceQuotaStatus, ResourceList,
};
use crowsnest_api::work::{ObjectReference, ResourceBindingSpec, WorkStatus};
use crowsnest_apimachinery::quantity::{Format, Quantity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use serde::Deserialize;
use serde_json::json;

use super::conditions;
use super::work::construct::{self, DesiredWork, WorkOptions};

/// Amounts by name of a requested resource.
pub type Usage = BTreeMap<String, Quantity>;

/// A limit that a binding would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceededQuota {
    pub quota: ObjectReference,
    pub resource: String,
    /// Current usage plus the request.
    pub requested: Quantity,
    pub limit: Quantity,
}

/// The kind of a quota.
const KIND: &str = "FederatedResourceQuota";

impl fmt::Display for ExceededQuota {
    /// Karmada's wording.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, resource, requested, limit } = self;
        let (namespace, name) = (&quota.namespace, &quota.name);
        write!(
            f,
            "{KIND}({namespace}/{name}) exceeded for resource {resource}: requested sum {requested}, limit {limit}."
        )
    }
}

impl ExceededQuota {
    /// Parses the exceeded limit from an API server's error message, in the format of [`fmt::Display`]. The quota's
    /// UID is unknown.
    pub fn parse(message: &str) -> Option<Self> {
        let (_, rest) = message.split_once("FederatedResourceQuota(")?;
        let (quota, rest) = rest.split_once(") exceeded for resource ")?;
        let (namespace, name) = quota.split_once('/')?;
        let (resource, rest) = rest.split_once(": requested sum ")?;
        let (requested, rest) = rest.split_once(", limit ")?;
        let limit = rest.trim_end().strip_suffix('.')?;
        let amount = |text: &str| Quantity::parse(text).ok();
        Some(Self {
            quota: ObjectReference::new("policy.karmada.io/v1alpha1", KIND, namespace, name),
            resource: resource.to_owned(),
            requested: amount(requested)?,
            limit: amount(limit)?,
        })
    }
}

/// Parses an amount. An invalid one, which the schema rejects, counts as zero.
pub fn amount(quantity: &WireQuantity) -> Quantity {
    Quantity::try_from(quantity).unwrap_or_default()
}

pub fn amounts(list: &ResourceList) -> Usage {
    list.iter().map(|(name, quantity)| (name.clone(), amount(quantity))).collect()
}

/// Usage of a binding in all clusters that it has Works for, including those where it is a dependency of other
/// bindings.
pub fn usage(spec: &ResourceBindingSpec) -> Usage {
    let mut usage = Usage::new();
    let mut count = |request: &ResourceList, times: i64| {
        for (name, quantity) in request {
            *usage.entry(name.clone()).or_default() += amount(quantity).multiply(times);
        }
    };
    let targets = construct::targets(spec);
    if spec.components.is_empty() {
        // Negative numbers, which the schema allows, would release the usage of other bindings.
        let replicas = targets.iter().map(|target| i64::from(target.replicas.max(0))).sum();
        if let Some(requirements) = &spec.replica_requirements {
            count(&requirements.resource_request, replicas);
        }
    } else {
        let clusters = i64::try_from(targets.len()).unwrap_or(i64::MAX);
        for component in &spec.components {
            if let Some(requirements) = &component.replica_requirements {
                count(&requirements.resource_request, i64::from(component.replicas.max(0)).saturating_mul(clusters));
            }
        }
    }
    usage.retain(|_, quantity| !quantity.is_zero());
    usage
}

/// Usage that `new` adds compared with `old`, for each resource that increases.
pub fn increase(old: Option<&ResourceBindingSpec>, new: &ResourceBindingSpec) -> Usage {
    let mut more = usage(new);
    for (name, quantity) in old.map(usage).unwrap_or_default() {
        *more.entry(name).or_default() -= quantity;
    }
    more.retain(|_, quantity| *quantity > Quantity::ZERO);
    more
}

/// Raises each amount in `maximum` to that of `usage` if it is smaller.
pub fn merge_maximum(maximum: &mut Usage, usage: Usage) {
    for (name, quantity) in usage {
        let current = maximum.entry(name).or_default();
        if quantity > *current {
            *current = quantity;
        }
    }
}

pub fn add(sum: &mut Usage, usage: Usage) {
    for (name, quantity) in usage {
        *sum.entry(name).or_default() += quantity;
    }
}

pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

/// Usage in the quantity formats of Karmada's status. Zero amounts are omitted.
pub fn in_status_formats(mut used: Usage) -> Usage {
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

/// Works for the static assignments of a quota in registered clusters (Karmada's
/// `federated-resource-quota-sync-controller`).
pub fn assignments(quota: &FederatedResourceQuota, registered: &[impl AsRef<str>]) -> Vec<DesiredWork> {
    let name = quota.metadata.name.as_deref().unwrap_or_default();
    let namespace = quota.metadata.namespace.as_deref().unwrap_or_default();
    let is_registered = |cluster: &str| registered.iter().any(|name| name.as_ref() == cluster);
    let assigned = quota.spec.static_assignments.iter().filter(|assignment| is_registered(&assignment.cluster_name));
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
    assigned.map(|assignment| wrap(&assignment.cluster_name, &assignment.hard)).collect()
}

/// Quota status of a member, from the Work of its static assignment. `None` until it is applied and reports usage.
pub fn member_status(cluster: &str, work: &WorkStatus) -> Option<ClusterQuotaStatus> {
    #[derive(Deserialize)]
    struct ResourceQuotaStatus {
        #[serde(default)]
        hard: ResourceList,
        #[serde(default)]
        used: ResourceList,
    }
    if !conditions::is_true(&work.conditions, condition::APPLIED) {
        return None;
    }
    let status = work.manifest_statuses.first()?.status.as_ref()?;
    let ResourceQuotaStatus { hard, used } = ResourceQuotaStatus::deserialize(&status.0).ok()?;
    Some(ClusterQuotaStatus { cluster_name: cluster.to_owned(), hard, used })
}

/// Status of a quota. `bindings_usage` is the usage of the bindings in its namespace; without it, the usage of the
/// members is summed up.
pub fn status(
    spec: &FederatedResourceQuotaSpec,
    mut members: Vec<ClusterQuotaStatus>,
    bindings_usage: Option<Usage>,
) -> FederatedResourceQuotaStatus {
    members.sort_by(|left, right| left.cluster_name.cmp(&right.cluster_name));
    let overall_used = match bindings_usage {
        Some(mut bindings_usage) => {
            bindings_usage.retain(|name, _| spec.overall.contains_key(name));
            in_status_formats(bindings_usage)
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
    #[case::without_requests(json!({"replicas": 9, "clusters": [{"name": "m1", "replicas": 9}]}), json!({}))]
    #[case::not_scheduled(json!({"replicas": 2, "replicaRequirements": requests("1", "1Gi")}), json!({}))]
    #[case::replicas_of_all_clusters(
        json!({
            "replicaRequirements": requests("250m", "128Mi"),
            "clusters": [{"name": "m1", "replicas": 2}, {"name": "m2", "replicas": 1}],
        }),
        json!({"cpu": "750m", "memory": "384Mi"})
    )]
    #[case::dependency_of_other_bindings(
        json!({
            "replicaRequirements": requests("250m", "128Mi"),
            "clusters": [{"name": "m1", "replicas": 1}],
            "requiredBy": [
                {"namespace": "shop", "name": "p", "clusters": [{"name": "m1", "replicas": 9}, {"name": "m2", "replicas": 2}]},
            ],
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
    fn usage_of_a_binding(#[case] binding: Value, #[case] expected: Value) {
        assert_eq!(json!(to_list(in_status_formats(usage(&spec(binding))))), expected);
    }

    fn quota(spec: Value) -> FederatedResourceQuota {
        let metadata = json!({"name": "q", "namespace": "shop"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a quota")
    }

    #[test]
    fn assignments_for_registered_clusters_only() {
        let hard = |cpu: &str| json!({"cpu": cpu});
        let assignments = json!([
            {"clusterName": "m1", "hard": hard("2")},
            {"clusterName": "gone", "hard": hard("3")},
        ]);
        let quota = quota(json!({"overall": hard("9"), "staticAssignments": assignments}));
        let works = super::assignments(&quota, &["m1".to_owned(), "m2".to_owned()]);
        let assigned: Vec<_> =
            works.iter().map(|work| (work.namespace.as_str(), &work.manifest["spec"]["hard"])).collect();
        assert_eq!(assigned, [("karmada-es-m1", &hard("2"))]);
    }

    #[rstest]
    #[case::counted_bindings(Some(json!({"cpu": "500m", "pods": "3"})), json!({"cpu": "500m"}))]
    #[case::no_bindings(Some(json!({})), Value::Null)]
    #[case::sum_of_members(None, json!({"cpu": "3", "memory": "1Gi"}))]
    fn usage_is_counted_or_summed_up(#[case] bindings_usage: Option<Value>, #[case] expected: Value) {
        let member = |name: &str, used: Value| ClusterQuotaStatus {
            cluster_name: name.to_owned(),
            used: serde_json::from_value(used).expect("amounts"),
            ..ClusterQuotaStatus::default()
        };
        let members = vec![member("m2", json!({"cpu": "2", "memory": "1Gi"})), member("m1", json!({"cpu": "1"}))];
        let bindings_usage = bindings_usage
            .map(|bindings_usage| amounts(&serde_json::from_value::<ResourceList>(bindings_usage).expect("amounts")));
        let status = json!(status(&quota(json!({"overall": {"cpu": "9"}})).spec, members, bindings_usage));
        assert_eq!((&status["overall"], &status["overallUsed"]), (&json!({"cpu": "9"}), &expected));
        let names: Vec<_> =
            status["aggregatedStatus"].as_array().expect("members").iter().map(|m| &m["clusterName"]).collect();
        assert_eq!(names, ["m1", "m2"]);
    }

    fn exceeded() -> ExceededQuota {
        ExceededQuota {
            quota: ObjectReference::new("policy.karmada.io/v1alpha1", "FederatedResourceQuota", "shop", "cpus"),
            resource: "cpu".to_owned(),
            requested: "2630m".parse().expect("an amount"),
            limit: "2".parse().expect("an amount"),
        }
    }

    #[rstest]
    #[case::message_alone("")]
    #[case::error_of_an_api_server("admission webhook \"resourcebinding.karmada.io\" denied the request: ")]
    fn error_message_is_parsed(#[case] before: &str) {
        assert_eq!(ExceededQuota::parse(&format!("{before}{}", exceeded())), Some(exceeded()));
    }

    #[rstest]
    #[case("FederatedResourceQuota(shop/cpus) exceeded for resource cpu: requested sum many, limit 2.")]
    #[case("FederatedResourceQuota(cpus) exceeded for resource cpu: requested sum 3, limit 2.")]
    #[case("exceeded quota: cpus")]
    #[case("")]
    fn other_errors_are_ignored(#[case] message: &str) {
        assert_eq!(ExceededQuota::parse(message), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(31), ..ProptestConfig::default() })]
        #[test]
        fn parsing_never_panics(message in "(FederatedResourceQuota\\()?.{0,40}( exceeded for resource )?.{0,20}(: requested sum )?.{0,9}(, limit )?.{0,9}") {
            drop(ExceededQuota::parse(&message));
        }
    }
}
