//! ResourceQuotas of members: the remaining quota of a namespace. As in Karmada's estimator, only the scope
//! `PriorityClass` is supported; a quota with only other scopes sets no limit.

use std::collections::{BTreeMap, HashMap};

use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::core::v1::ScopedResourceSelectorRequirement;
use serde_json::Value;

use super::ledger::Reservation;
use super::request::{EstimateKind, EstimateRequest, PodSet, to_units};
use super::resources::is_extended;
use crowsnest_apimachinery::quantity::Quantity;

/// The facts of a ResourceQuota that limit pod requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuotaFacts {
    /// Remaining quota by resource name of requests: CPU in millicores, everything else in whole units.
    free: BTreeMap<String, i64>,
    scopes: Vec<ScopedResourceSelectorRequirement>,
}

const PRIORITY_CLASS: &str = "PriorityClass";

impl QuotaFacts {
    pub fn from_json(quota: &Value) -> Self {
        let status = |list| unstructured::at(quota, &["status", list]).and_then(Value::as_object);
        let mut free: BTreeMap<String, i64> = BTreeMap::new();
        for (name, hard) in status("hard").into_iter().flatten() {
            let Some(request) = limited_resource(name) else { continue };
            let used = status("used").and_then(|used| used.get(name));
            let (Some(hard), Some(used)) = (quantity(hard), used.and_then(quantity)) else { continue };
            let remaining = to_units(request, &(hard - used));
            // `cpu` and `requests.cpu` are synonyms.
            free.entry(request.to_owned()).and_modify(|free| *free = remaining.min(*free)).or_insert(remaining);
        }
        let scope_names = unstructured::at(quota, &["spec", "scopes"]).and_then(Value::as_array);
        let exists = |scope: &str| ScopedResourceSelectorRequirement {
            scope_name: scope.to_owned(),
            operator: "Exists".to_owned(),
            values: None,
        };
        let mut scopes: Vec<_> = scope_names.into_iter().flatten().filter_map(Value::as_str).map(exists).collect();
        let expressions = unstructured::at(quota, &["spec", "scopeSelector", "matchExpressions"]);
        let requirements: Option<Vec<_>> = expressions.and_then(|all| serde_json::from_value(all.clone()).ok());
        scopes.extend(requirements.unwrap_or_default());
        QuotaFacts { free, scopes }
    }

    fn applies_to(&self, pod_set: &PodSet) -> bool {
        self.scopes.is_empty() || self.scopes.iter().any(|scope| selects(scope, &pod_set.priority_class))
    }

    /// Number of replicas or sets that the quota allows. `None` if it limits no requested resource.
    fn max_replicas(&self, request: &EstimateRequest, reservations: &[&Reservation]) -> Option<i64> {
        let mut requested: BTreeMap<&str, i64> = BTreeMap::new();
        for pod_set in request.pod_sets.iter().filter(|pod_set| self.applies_to(pod_set)) {
            for amount in pod_set.template_requests.iter().filter(|amount| self.free.contains_key(&amount.name)) {
                *requested.entry(&amount.name).or_default() += amount.units.saturating_mul(i64::from(pod_set.replicas));
            }
        }
        let reserved = |name: &str| -> i64 {
            let pod_sets = reservations.iter().flat_map(|reservation| reservation.pod_sets());
            let amounts = pod_sets.filter(|(pod_set, _)| self.applies_to(pod_set)).map(|(pod_set, pods)| {
                let requested = pod_set.template_requests.iter().find(|amount| amount.name == name);
                requested.map_or(0, |amount| amount.units.saturating_mul(i64::from(pods)))
            });
            amounts.fold(0, i64::saturating_add)
        };
        let requested = requested.into_iter().filter(|(_, requested)| *requested > 0);
        let allowed =
            |(name, requested): (&str, i64)| (self.free.get(name)? - reserved(name)).max(0).checked_div(requested);
        requested.filter_map(allowed).min()
    }
}

/// The requested resource that a quota entry limits. Limits are ignored, because replica requirements contain only
/// requests.
fn limited_resource(name: &str) -> Option<&str> {
    let request = name.strip_prefix("requests.").unwrap_or(name);
    (matches!(request, "cpu" | "memory") || is_extended(request))
        .then_some(request)
        .filter(|_| !name.starts_with("limits."))
}

fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(|text| Quantity::parse(text).ok())
}

fn selects(scope: &ScopedResourceSelectorRequirement, priority_class: &str) -> bool {
    let values = scope.values.as_deref().unwrap_or_default();
    let has_class = !priority_class.is_empty();
    let is_listed = has_class && values.iter().any(|value| value == priority_class);
    scope.scope_name == PRIORITY_CLASS
        && match scope.operator.as_str() {
            "Exists" => has_class,
            "In" => is_listed,
            "NotIn" => !is_listed && !values.is_empty(),
            "DoesNotExist" => !has_class && values.is_empty(),
            _ => false,
        }
}

/// ResourceQuotas of a member by namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Quotas {
    pub namespaces: HashMap<String, BTreeMap<String, QuotaFacts>>,
}

impl Quotas {
    /// Number of replicas or sets that the quotas of a namespace allow, less reservations there. `None` without a
    /// limit.
    pub fn limit<'p>(
        &self,
        request: &EstimateRequest,
        namespace: &str,
        reservations: impl Iterator<Item = &'p Reservation>,
    ) -> Option<i64> {
        let quotas = self.namespaces.get(namespace).filter(|quotas| !quotas.is_empty())?;
        if request.kind == EstimateKind::Pods {
            return None;
        }
        let reservations: Vec<&Reservation> =
            reservations.filter(|reservation| reservation.namespace == namespace).collect();
        quotas.values().filter_map(|quota| quota.max_replicas(request, &reservations)).min()
    }
}
