//! Admission of FederatedHPAs: the defaults and validation of Kubernetes' HorizontalPodAutoscaler, without external
//! metrics.

use crowsnest_api::autoscaling::{FederatedHPA, FederatedHPASpec};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use crowsnest_apimachinery::quantity::Quantity;
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HPAScalingPolicy, HPAScalingRules, MetricIdentifier, MetricSpec, MetricTarget,
    ResourceMetricSource,
};

use crowsnest_plan::autoscaling::defaults::fill_behavior;

use super::decode::{decode, encode_changed};
use super::{Outcome, Refusal, Request, metadata};

/// Utilization in percent of the default CPU metric, which applies if no metric is specified.
const DEFAULT_CPU_UTILIZATION: i32 = 80;
const MAX_PERIOD_SECONDS: i32 = 1800;
const MAX_STABILIZATION_WINDOW_SECONDS: i32 = 3600;
const METRIC_SOURCES: [&str; 4] = ["ContainerResource", "Object", "Pods", "Resource"];

pub(super) fn mutate(request: &Request) -> Result<Outcome, Refusal> {
    let mut hpa: FederatedHPA = decode(&request.object)?;
    hpa.spec.min_replicas.get_or_insert(1);
    if hpa.spec.metrics.is_empty() {
        hpa.spec.metrics = vec![default_metric()];
    }
    if let Some(behavior) = &mut hpa.spec.behavior {
        fill_behavior(behavior);
    }
    encode_changed(&hpa, &request.object).map(Outcome::Changed)
}

fn default_metric() -> MetricSpec {
    let target = MetricTarget {
        type_: "Utilization".to_owned(),
        average_utilization: Some(DEFAULT_CPU_UTILIZATION),
        ..MetricTarget::default()
    };
    MetricSpec {
        type_: "Resource".to_owned(),
        resource: Some(ResourceMetricSource { name: "cpu".to_owned(), target }),
        ..MetricSpec::default()
    }
}

pub(super) fn validate(request: &Request) -> Result<Outcome, Refusal> {
    let hpa: FederatedHPA = decode(&request.object)?;
    let mut errors = metadata::validate(&hpa.metadata, true, format::validate_dns1123_subdomain);
    errors.extend(validate_spec(&hpa.spec));
    let replicas = [
        ("status.currentReplicas", hpa.status.current_replicas.unwrap_or_default()),
        ("status.desiredReplicas", hpa.status.desired_replicas),
    ];
    for (field, replicas) in replicas.into_iter().filter(|(_, replicas)| *replicas < 0) {
        errors.push(FieldError::invalid(field, &replicas, "must be greater than or equal to 0"));
    }
    Refusal::check(&errors).map(|()| Outcome::Unchanged)
}

fn validate_spec(spec: &FederatedHPASpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(min) = spec.min_replicas.filter(|min| *min < 1) {
        errors.push(FieldError::invalid("spec.minReplicas", &min, "must be greater than or equal to 1"));
    }
    if spec.max_replicas < 1 {
        errors.push(FieldError::invalid("spec.maxReplicas", &spec.max_replicas, "must be greater than 0"));
    }
    if spec.min_replicas.is_some_and(|min| spec.max_replicas < min) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid("spec.maxReplicas", &spec.max_replicas, detail));
    }
    errors.extend(validate_reference(&spec.scale_target_ref, "spec.scaleTargetRef"));
    for (index, metric) in spec.metrics.iter().enumerate() {
        errors.extend(validate_metric(metric, &format!("spec.metrics[{index}]")));
    }
    if let Some(behavior) = &spec.behavior {
        for (rules, name) in [(&behavior.scale_up, "scaleUp"), (&behavior.scale_down, "scaleDown")] {
            if let Some(rules) = rules {
                errors.extend(validate_rules(rules, &format!("spec.behavior.{name}")));
            }
        }
    }
    errors
}

/// Validates kind and name of the scale target.
pub(super) fn validate_reference(reference: &CrossVersionObjectReference, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (value, name) in [(&reference.kind, "kind"), (&reference.name, "name")] {
        let field = format!("{path}.{name}");
        if value.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else {
            errors.extend(
                path_segment_problems(value).into_iter().map(|problem| FieldError::invalid(&field, value, problem)),
            );
        }
    }
    errors
}

/// Problems of a text that becomes part of a URL path.
pub(super) fn path_segment_problems(value: &str) -> Vec<String> {
    if matches!(value, "." | "..") {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"].iter().filter(|part| value.contains(**part)).map(|part| format!("may not contain '{part}'")).collect()
}

fn validate_rules(rules: &HPAScalingRules, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(window) = rules.stabilization_window_seconds {
        let field = format!("{path}.stabilizationWindowSeconds");
        if window < 0 {
            errors.push(FieldError::invalid(&field, &window, "must be greater than or equal to zero"));
        }
        if window > MAX_STABILIZATION_WINDOW_SECONDS {
            let detail = format!("must be less than or equal to {MAX_STABILIZATION_WINDOW_SECONDS}");
            errors.push(FieldError::invalid(&field, &window, detail));
        }
    }
    if let Some(select) = rules.select_policy.as_deref().filter(|select| !matches!(*select, "Max" | "Min" | "Disabled"))
    {
        errors.push(FieldError::not_supported(format!("{path}.selectPolicy"), select, &["Disabled", "Max", "Min"]));
    }
    let policies = rules.policies.as_deref().unwrap_or_default();
    if policies.is_empty() {
        errors.push(FieldError::required(format!("{path}.policies"), "must specify at least one Policy"));
    }
    for (index, policy) in policies.iter().enumerate() {
        errors.extend(validate_policy(policy, &format!("{path}.policies[{index}]")));
    }
    errors
}

fn validate_policy(policy: &HPAScalingPolicy, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !matches!(policy.type_.as_str(), "Pods" | "Percent") {
        errors.push(FieldError::not_supported(format!("{path}.type"), &policy.type_, &["Percent", "Pods"]));
    }
    if policy.value <= 0 {
        errors.push(FieldError::invalid(format!("{path}.value"), &policy.value, "must be greater than zero"));
    }
    let field = format!("{path}.periodSeconds");
    if policy.period_seconds <= 0 {
        errors.push(FieldError::invalid(&field, &policy.period_seconds, "must be greater than zero"));
    }
    if policy.period_seconds > MAX_PERIOD_SECONDS {
        let detail = format!("must be less than or equal to {MAX_PERIOD_SECONDS}");
        errors.push(FieldError::invalid(&field, &policy.period_seconds, detail));
    }
    errors
}

fn validate_metric(metric: &MetricSpec, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if metric.type_.is_empty() {
        errors.push(FieldError::required(format!("{path}.type"), "must specify a metric source type"));
    }
    let expected = match metric.type_.as_str() {
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => "",
    };
    if expected.is_empty() {
        errors.push(FieldError::not_supported(format!("{path}.type"), &metric.type_, &METRIC_SOURCES));
    }
    let sources = [
        ("object", metric.object.is_some()),
        ("pods", metric.pods.is_some()),
        ("resource", metric.resource.is_some()),
        ("containerResource", metric.container_resource.is_some()),
    ];
    let specified: Vec<&str> =
        sources.into_iter().filter(|(_, is_specified)| *is_specified).map(|(name, _)| name).collect();
    // Only the first source is validated, since more than one is an error anyway.
    if let Some(first) = specified.first() {
        errors.extend(validate_source(metric, first, &format!("{path}.{first}")));
    }
    if !expected.is_empty() && !specified.contains(&expected) {
        let detail = "must populate information for the given metric source";
        errors.push(FieldError::required(format!("{path}.{expected}"), detail));
    }
    if specified.len() > 1 {
        for other in specified.into_iter().filter(|name| *name != expected) {
            let detail = "must populate the given metric source only";
            errors.push(FieldError::forbidden(format!("{path}.{other}"), detail));
        }
    }
    errors
}

fn validate_source(metric: &MetricSpec, source: &str, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let average_value = format!("{path}.target.averageValue");
    if let (Some(object), "object") = (&metric.object, source) {
        errors.extend(validate_reference(&object.described_object, &format!("{path}.describedObject")));
        errors.extend(validate_identifier(&object.metric, path));
        errors.extend(validate_target(&object.target, path));
        if object.target.value.is_none() && object.target.average_value.is_none() {
            errors.push(FieldError::required(average_value, "must set either a target value or averageValue"));
        }
    } else if let (Some(pods), "pods") = (&metric.pods, source) {
        errors.extend(validate_identifier(&pods.metric, path));
        errors.extend(validate_target(&pods.target, path));
        if pods.target.average_value.is_none() {
            errors.push(FieldError::required(average_value, "must specify a positive target averageValue"));
        }
    } else if let (Some(resource), "resource") = (&metric.resource, source) {
        if resource.name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), "must specify a resource name"));
        }
        errors.extend(validate_resource_target(&resource.target, path));
    } else if let (Some(resource), "containerResource") = (&metric.container_resource, source) {
        errors.extend(validate_container_resource(&resource.name, &format!("{path}.name")));
        let field = format!("{path}.container");
        if resource.container.is_empty() {
            errors.push(FieldError::required(field, "must specify a container"));
        } else {
            let problems = format::validate_dns1123_label(&resource.container).into_iter();
            errors.extend(problems.map(|problem| FieldError::invalid(&field, &resource.container, problem)));
        }
        errors.extend(validate_resource_target(&resource.target, path));
    }
    errors
}

fn validate_container_resource(name: &str, field: &str) -> Vec<FieldError> {
    if name.is_empty() {
        return vec![FieldError::required(field, "must specify a resource name")];
    }
    let problems = format::validate_qualified_name(name);
    if !problems.is_empty() {
        return problems.into_iter().map(|problem| FieldError::invalid(field, name, problem)).collect();
    }
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if name.contains('/') || standard {
        return Vec::new();
    }
    vec![FieldError::invalid(field, name, "must be a standard resource for containers")]
}

fn validate_resource_target(target: &MetricTarget, path: &str) -> Vec<FieldError> {
    let mut errors = validate_target(target, path);
    match (target.average_utilization, &target.average_value) {
        (None, None) => errors.push(FieldError::required(
            format!("{path}.target.averageUtilization"),
            "must set either a target raw value or a target utilization",
        )),
        (Some(_), Some(_)) => errors.push(FieldError::forbidden(
            format!("{path}.target.averageValue"),
            "may not set both a target raw value and a target utilization",
        )),
        _ => {}
    }
    errors
}

fn validate_target(target: &MetricTarget, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let field = format!("{path}.target.type");
    if target.type_.is_empty() {
        errors.push(FieldError::required(&field, "must specify a metric target type"));
    }
    if !matches!(target.type_.as_str(), "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(&field, &target.type_, detail));
    }
    for (value, name) in [(&target.value, "value"), (&target.average_value, "averageValue")] {
        if let Some(amount) = value.as_ref().and_then(|value| Quantity::try_from(value).ok())
            && amount.sign() != 1
        {
            errors.push(FieldError::invalid(format!("{path}.target.{name}"), &amount, "must be positive"));
        }
    }
    if let Some(utilization) = target.average_utilization.filter(|utilization| *utilization < 1) {
        let field = format!("{path}.target.averageUtilization");
        errors.push(FieldError::invalid(field, &utilization, "must be greater than 0"));
    }
    errors
}

fn validate_identifier(identifier: &MetricIdentifier, path: &str) -> Vec<FieldError> {
    let field = format!("{path}.metric.name");
    if identifier.name.is_empty() {
        return vec![FieldError::required(field, "must specify a metric name")];
    }
    let problems = path_segment_problems(&identifier.name).into_iter();
    problems.map(|problem| FieldError::invalid(&field, &identifier.name, problem)).collect()
}
