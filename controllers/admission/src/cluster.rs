//! Defaulting and validation of Clusters, for the aggregated API. A write calls `prepare`, `validate` and
//! `canonicalize` in this order.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_api::cluster::{
    Cluster, ClusterSpec, ClusterStatus, ClusterSyncMode, LocalSecretReference, ResourceModel,
};
use crowsnest_api::modeling;
use crowsnest_api::policy::ResourceList;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::taints::NO_EXECUTE;
use crowsnest_apimachinery::url::Url;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

use super::metadata;

/// Sets defaults of a new or updated Cluster. If `with_models` is true, a Cluster without resource models
/// gets the default ones, and other models are standardized; callers pass true only if the feature gate
/// CustomizedClusterResourceModeling is enabled. The caller removes the status of a new Cluster.
pub fn prepare(cluster: &mut Cluster, with_models: bool) {
    let spec = &mut cluster.spec;
    if with_models {
        if spec.resource_models.is_empty() {
            spec.resource_models = modeling::default_models();
        } else {
            modeling::standardize(&mut spec.resource_models);
        }
    }
    for range in spec.resource_models.iter_mut().flat_map(|model| &mut model.ranges) {
        canonicalize_quantity(&mut range.min);
        canonicalize_quantity(&mut range.max);
    }
}

/// Converts the quantities of a status into canonical form, as a Go server does by decoding and encoding them.
pub fn prepare_status(status: &mut ClusterStatus) {
    let Some(summary) = &mut status.resource_summary else { return };
    let lists: [&mut ResourceList; 3] = [&mut summary.allocatable, &mut summary.allocating, &mut summary.allocated];
    lists.into_iter().flat_map(BTreeMap::values_mut).for_each(canonicalize_quantity);
}

fn canonicalize_quantity(quantity: &mut WireQuantity) {
    if let Ok(amount) = Quantity::try_from(&*quantity) {
        *quantity = amount.into();
    }
}

/// Sets `timeAdded` of NoExecute taints that have none to `now`, and moves `zone` to `zones` if that is empty.
pub fn canonicalize(cluster: &mut Cluster, now: &Time) {
    let spec = &mut cluster.spec;
    for taint in spec.taints.iter_mut().filter(|taint| taint.effect == NO_EXECUTE) {
        taint.time_added.get_or_insert_with(|| now.clone());
    }
    if !spec.zone.is_empty() && spec.zones.is_empty() {
        spec.zones = vec![std::mem::take(&mut spec.zone)];
    }
}

/// Validates a Cluster.
pub fn validate(cluster: &Cluster) -> Vec<FieldError> {
    let spec = &cluster.spec;
    let mut errors = metadata::validate(&cluster.metadata, false, format::validate_cluster_name);
    if spec.sync_mode.as_str().is_empty() {
        errors.push(FieldError::required("spec.syncMode", ""));
    }
    if !matches!(spec.sync_mode, ClusterSyncMode::Pull | ClusterSyncMode::Push) {
        errors.push(FieldError::not_supported("spec.syncMode", &spec.sync_mode, &["Pull", "Push"]));
    }
    if !spec.api_endpoint.is_empty() {
        errors.extend(validate_endpoint(&spec.api_endpoint, "spec.apiEndpoint"));
    }
    errors.extend(validate_secret(spec.secret_ref.as_ref(), "spec.secretRef"));
    errors.extend(validate_secret(spec.impersonator_secret_ref.as_ref(), "spec.impersonatorSecretRef"));
    if !spec.proxy_url.is_empty() {
        errors.extend(validate_proxy(&spec.proxy_url, "spec.proxyURL"));
    }
    errors.extend(validate_location(spec));
    errors.extend(validate_taints(&spec.taints, "spec.taints"));
    if let Some(detail) = find_model_error(&spec.resource_models) {
        errors.push(FieldError::invalid("spec.resourceModels", &go_models(&spec.resource_models), detail));
    }
    errors
}

fn validate_endpoint(endpoint: &str, field: &str) -> Vec<FieldError> {
    const DESIRED_FORMAT: &str = "; desired format: hostname, hostname:port, IP or IP:port";
    let url = match Url::parse(endpoint) {
        Ok(url) => url,
        Err(problem) => {
            let detail = format!("apiEndpoint must be a valid URL: {problem}{DESIRED_FORMAT}");
            return vec![FieldError::invalid(field, endpoint, detail)];
        }
    };
    let mut errors = Vec::new();
    if url.host.is_empty() {
        errors.push(FieldError::invalid(field, url.host, format!("host must be provided{DESIRED_FORMAT}")));
    }
    errors.extend(url.forbidden_part_errors(field));
    errors
}

fn validate_secret(reference: Option<&LocalSecretReference>, path: &str) -> Vec<FieldError> {
    let Some(reference) = reference else { return Vec::new() };
    let parts = [(&reference.namespace, "namespace"), (&reference.name, "name")];
    let missing = parts.into_iter().filter(|(value, _)| value.is_empty());
    missing.map(|(_, name)| FieldError::required(format!("{path}.{name}"), "")).collect()
}

fn validate_proxy(proxy: &str, field: &str) -> Option<FieldError> {
    let detail = match Url::parse(proxy) {
        Ok(url) if matches!(url.scheme.as_str(), "http" | "https" | "socks5") => return None,
        Ok(url) => format!("unsupported scheme {:?}, must be http, https, or socks5", url.scheme),
        // Karmada's message, although it names the wrong field.
        Err(problem) => format!("apiEndpoint must be a valid URL: {problem}"),
    };
    Some(FieldError::invalid(field, proxy, detail))
}

/// Provider, region and zones are matched like labels, so they must be valid label values.
fn validate_location(spec: &ClusterSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut check = |field: &str, value: &str| {
        let problems = format::validate_label_value(value);
        if !problems.is_empty() {
            errors.push(FieldError::invalid(field, value, problems.join("; ")));
        }
    };
    check("spec.provider", &spec.provider);
    check("spec.region", &spec.region);
    match (spec.zone.is_empty(), spec.zones.is_empty()) {
        (false, false) => {
            errors.push(FieldError::type_invalid("spec.spec", &GoSpec::from(spec), "Zone and Zones cannot co-exist"));
        }
        (false, true) => check("spec.Zone", &spec.zone),
        (true, _) => spec.zones.iter().for_each(|zone| check("spec.Zones", zone)),
    }
    errors
}

fn validate_taints(taints: &[Taint], path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let path = format!("{path}[{index}]");
        errors.extend(metadata::validate_label_name(&taint.key, &format!("{path}.key")));
        let value = taint.value.as_deref().unwrap_or_default();
        let problems = format::validate_label_value(value);
        if !problems.is_empty() {
            errors.push(FieldError::invalid(format!("{path}.value"), value, problems.join(";")));
        }
        match taint.effect.as_str() {
            "" => errors.push(FieldError::required(format!("{path}.effect"), "")),
            "NoSchedule" | "NoExecute" => {}
            effect => {
                errors.push(FieldError::not_supported(format!("{path}.effect"), effect, &["NoSchedule", "NoExecute"]))
            }
        }
        if !seen.insert((&taint.effect, &taint.key)) {
            let error = FieldError::duplicate(path, &GoTaint::from(taint));
            errors.push(error.with_detail("taints must be unique by key and effect pair"));
        }
    }
    errors
}

/// Karmada's message for the first rule that the resource models violate: they must cover all sizes without gaps and
/// overlaps.
fn find_model_error(models: &[ResourceModel]) -> Option<&'static str> {
    let amount = |quantity: &WireQuantity| Quantity::try_from(quantity).unwrap_or_default();
    for (index, model) in models.iter().enumerate() {
        let previous = index.checked_sub(1).and_then(|index| models.get(index));
        if let Some(previous) = previous {
            if previous.grade == model.grade {
                return Some("The grade of each models should not be the same");
            }
            if previous.ranges.len() != model.ranges.len() {
                return Some("The number of resource types should be the same");
            }
        }
        for (position, range) in model.ranges.iter().enumerate() {
            let (min, max) = (amount(&range.min), amount(&range.max));
            if max <= min {
                return Some("The max value of each resource must be greater than the min value");
            }
            match previous.and_then(|previous| previous.ranges.get(position)) {
                None if !min.is_zero() => {
                    return Some("The min value of each resource in the first model should be 0");
                }
                Some(before) if before.name != range.name => {
                    return Some("The resource types of each models should be the same");
                }
                Some(before) if amount(&before.max) != min => {
                    return Some("Model intervals for resources must be contiguous and non-overlapping");
                }
                _ => {}
            }
            if index + 1 == models.len() && max.value() != i64::MAX {
                return Some("The max value of each resource in the last model should be MaxInt64");
            }
        }
    }
    None
}

/// A resource model as Go prints it in error messages: with the field names of Karmada's internal types.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GoModel<'m> {
    grade: u64,
    ranges: Vec<GoRange<'m>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GoRange<'m> {
    name: &'m str,
    min: &'m WireQuantity,
    max: &'m WireQuantity,
}

fn go_models(models: &[ResourceModel]) -> Vec<GoModel<'_>> {
    let models = models.iter();
    models
        .map(|model| {
            let ranges = model.ranges.iter();
            let ranges = ranges.map(|range| GoRange { name: &range.name, min: &range.min, max: &range.max });
            GoModel { grade: model.grade, ranges: ranges.collect() }
        })
        .collect()
}

/// A taint as Go prints it in error messages: in the order of the fields of the Go type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GoTaint<'t> {
    key: &'t str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'t str>,
    effect: &'t str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_added: Option<&'t Time>,
}

impl<'t> From<&'t Taint> for GoTaint<'t> {
    fn from(taint: &'t Taint) -> Self {
        let value = taint.value.as_deref().filter(|value| !value.is_empty());
        Self { key: &taint.key, value, effect: &taint.effect, time_added: taint.time_added.as_ref() }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GoSecretReference<'s> {
    namespace: &'s str,
    name: &'s str,
}

/// A Cluster's spec as Go prints it in error messages: with the field names of Karmada's internal types.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GoSpec<'s> {
    #[serde(rename = "id", skip_serializing_if = "str::is_empty")]
    id: &'s str,
    sync_mode: &'s ClusterSyncMode,
    #[serde(rename = "APIEndpoint")]
    api_endpoint: &'s str,
    secret_ref: Option<GoSecretReference<'s>>,
    impersonator_secret_ref: Option<GoSecretReference<'s>>,
    #[serde(rename = "InsecureSkipTLSVerification")]
    insecure_skip_tls_verification: bool,
    #[serde(rename = "ProxyURL")]
    proxy_url: &'s str,
    proxy_header: Option<&'s BTreeMap<String, String>>,
    provider: &'s str,
    region: &'s str,
    zone: &'s str,
    #[serde(rename = "zones")]
    zones: &'s [String],
    taints: Option<Vec<GoTaint<'s>>>,
    resource_models: Option<Vec<GoModel<'s>>>,
}

impl<'s> From<&'s ClusterSpec> for GoSpec<'s> {
    fn from(spec: &'s ClusterSpec) -> Self {
        let secret = |reference: &'s Option<LocalSecretReference>| {
            reference.as_ref().map(|secret| GoSecretReference { namespace: &secret.namespace, name: &secret.name })
        };
        Self {
            id: &spec.id,
            sync_mode: &spec.sync_mode,
            api_endpoint: &spec.api_endpoint,
            secret_ref: secret(&spec.secret_ref),
            impersonator_secret_ref: secret(&spec.impersonator_secret_ref),
            insecure_skip_tls_verification: spec.insecure_skip_tls_verification,
            proxy_url: &spec.proxy_url,
            proxy_header: (!spec.proxy_header.is_empty()).then_some(&spec.proxy_header),
            provider: &spec.provider,
            region: &spec.region,
            zone: &spec.zone,
            zones: &spec.zones,
            taints: (!spec.taints.is_empty()).then(|| spec.taints.iter().map(GoTaint::from).collect()),
            resource_models: (!spec.resource_models.is_empty()).then(|| go_models(&spec.resource_models)),
        }
    }
}
