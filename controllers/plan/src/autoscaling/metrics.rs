//! Metrics of a FederatedHPA: which query each metric needs, the replicas it proposes, and which proposal is used.
//! Messages are Kubernetes'.

use crowsnest_apimachinery::quantity::{Format, Quantity};
use crowsnest_apimachinery::selector::{Selector, SelectorError};
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, CrossVersionObjectReference, MetricIdentifier, MetricSpec, MetricStatus,
    MetricTarget, MetricValueStatus, ObjectMetricSource, ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use k8s_openapi::jiff::Timestamp;

use super::pods::Sample;
use super::replicas::{ReplicaCalculator, ReplicaCount, Workload};

/// Query to a metrics API.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricQuery<'a> {
    /// Resource usage of pods, or of one container of each.
    Resource { resource: &'a str, container: Option<&'a str> },
    /// A metric of each pod.
    Pods { metric: &'a str, selector: Selector },
    /// A metric of one object.
    Object { metric: &'a str, selector: Selector, object: &'a CrossVersionObjectReference },
}

/// Result of a query, in milli-units.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricResult {
    Samples(Vec<Sample>),
    Value(i64),
}

/// Replicas proposed by one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    pub replicas: i32,
    /// Description of the metric, for messages.
    pub metric: String,
    pub status: MetricStatus,
}

/// A metric without a valid proposal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{full_message}")]
pub struct InvalidMetric {
    /// Reason of the event and the condition.
    pub reason: &'static str,
    /// Message of the event and the condition.
    pub cause: String,
    /// Failed operation and cause, for the combined message of all metrics.
    full_message: String,
}

impl InvalidMetric {
    fn new(reason: &'static str, operation: impl Into<String>, cause: impl Into<String>) -> Self {
        let (operation, cause) = (operation.into(), cause.into());
        let full_message = if operation.is_empty() { cause.clone() } else { format!("{operation}: {cause}") };
        InvalidMetric { reason, cause, full_message }
    }
}

/// Combined proposal of all metrics.
#[derive(Debug, Clone, PartialEq)]
pub enum CombinedProposal {
    /// The largest proposal and its metric. `failed` describes metrics without a valid proposal.
    Replicas { replicas: i32, metric: String, statuses: Vec<MetricStatus>, failed: Option<String> },
    /// No recommendation: no metric has a valid proposal, or some have none and the others would scale down.
    Unknown { first: InvalidMetric, failed: String },
}

/// Reason and failed operation of an invalid object metric.
const OBJECT: (&str, &str) = ("FailedGetObjectMetric", "failed to get object metric value");
/// Reason and failed operation of an invalid pods metric.
const PODS: (&str, &str) = ("FailedGetPodsMetric", "failed to get pods metric value");

/// Reason for a metric of an unknown type.
pub const INVALID_SOURCE: &str = "InvalidMetricSourceType";

/// The query for a metric.
pub fn metric_query(spec: &MetricSpec) -> Result<MetricQuery<'_>, InvalidMetric> {
    let kind = spec.type_.as_str();
    if let ("Resource", Some(source)) = (kind, &spec.resource) {
        return Ok(MetricQuery::Resource { resource: &source.name, container: None });
    }
    if let ("ContainerResource", Some(source)) = (kind, &spec.container_resource) {
        return Ok(MetricQuery::Resource { resource: &source.name, container: Some(&source.container) });
    }
    if let ("Pods", Some(source)) = (kind, &spec.pods) {
        let selector =
            selector(&source.metric).map_err(|error| InvalidMetric::new(PODS.0, PODS.1, error.to_string()))?;
        return Ok(MetricQuery::Pods { metric: &source.metric.name, selector });
    }
    if let ("Object", Some(source)) = (kind, &spec.object) {
        let selector =
            selector(&source.metric).map_err(|error| InvalidMetric::new(OBJECT.0, OBJECT.1, error.to_string()))?;
        return Ok(MetricQuery::Object { metric: &source.metric.name, selector, object: &source.described_object });
    }
    let cause = format!("unknown metric source type {kind:?}");
    Err(InvalidMetric::new(INVALID_SOURCE, "", cause))
}

fn selector(metric: &MetricIdentifier) -> Result<Selector, SelectorError> {
    metric.selector.as_ref().map_or_else(|| Ok(Selector::default()), Selector::from_label_selector)
}

fn milli(amount: Option<&WireQuantity>) -> i64 {
    amount.and_then(|amount| Quantity::try_from(amount).ok()).map_or(0, |amount| amount.milli_value())
}

fn quantity(milli: i64) -> Option<WireQuantity> {
    Some(Quantity::from_milli(milli, Format::DecimalSI).into())
}

/// Proposes replicas from the result of a query. `namespace` is that of the FederatedHPA.
pub fn propose(
    spec: &MetricSpec,
    result: Result<MetricResult, String>,
    workload: &Workload<'_>,
    calculator: &ReplicaCalculator,
    namespace: &str,
    now: Timestamp,
) -> Result<Proposal, InvalidMetric> {
    match (metric_query(spec)?, result) {
        (MetricQuery::Resource { resource, container }, result) => {
            let target = spec.resource.as_ref().map(|source| &source.target);
            let target = target.or(spec.container_resource.as_ref().map(|source| &source.target));
            let target = target.cloned().unwrap_or_default();
            propose_for_resource((resource, container), &target, result, workload, calculator, now)
        }
        (MetricQuery::Pods { metric, .. }, result) => {
            let invalid = |cause: String| InvalidMetric::new(PODS.0, PODS.1, cause);
            let target = spec.pods.as_ref().map(|source| milli(source.target.average_value.as_ref()));
            let samples = result.map_err(|error| invalid(format!("unable to get metric {metric}: {error}")))?;
            let samples = samples.samples();
            let count = calculator.for_usage(&samples, "", target.unwrap_or_default(), workload, now);
            let count = count.map_err(|error| invalid(error.to_string()))?;
            let identifier = spec.pods.as_ref().map(|source| source.metric.clone()).unwrap_or_default();
            let current = MetricValueStatus { average_value: quantity(count.usage), ..MetricValueStatus::default() };
            let status = MetricStatus {
                type_: "Pods".to_owned(),
                pods: Some(PodsMetricStatus { metric: identifier, current }),
                ..MetricStatus::default()
            };
            Ok(Proposal { replicas: count.replicas, metric: format!("pods metric {metric}"), status })
        }
        (MetricQuery::Object { .. }, result) => {
            let source = spec.object.clone().unwrap_or_default();
            propose_for_object(&source, result, workload, calculator, namespace)
        }
    }
}

impl MetricResult {
    fn samples(self) -> Vec<Sample> {
        match self {
            MetricResult::Samples(samples) => samples,
            MetricResult::Value(_) => Vec::new(),
        }
    }

    fn value(self) -> i64 {
        match self {
            MetricResult::Value(value) => value,
            MetricResult::Samples(_) => 0,
        }
    }
}

fn propose_for_resource(
    (resource, container): (&str, Option<&str>),
    target: &MetricTarget,
    result: Result<MetricResult, String>,
    workload: &Workload<'_>,
    calculator: &ReplicaCalculator,
    now: Timestamp,
) -> Result<Proposal, InvalidMetric> {
    let (reason, operation) = match container {
        None => ("FailedGetResourceMetric", format!("failed to get {resource} resource metric value")),
        Some(container) => {
            ("FailedGetContainerResourceMetric", format!("failed to get {container} container metric value"))
        }
    };
    let invalid = |cause: String| InvalidMetric::new(reason, operation.clone(), cause);
    let unusable = |cause: String| invalid(format!("failed to get {resource} utilization: {cause}"));
    if target.average_value.is_none() && target.average_utilization.is_none() {
        let cause =
            "invalid resource metric source: neither an average utilization target nor an average value target was set";
        return Err(invalid(cause.to_owned()));
    }
    let result = result.map_err(|error| unusable(format!("unable to get metrics for resource {resource}: {error}")))?;
    let samples = result.samples();
    let count = match (&target.average_value, target.average_utilization) {
        (None, Some(percent)) => calculator.for_utilization(&samples, resource, container, percent, workload, now),
        (average, _) => calculator.for_usage(&samples, resource, milli(average.as_ref()), workload, now),
    };
    let count: ReplicaCount = count.map_err(|error| unusable(error.to_string()))?;
    let metric = match (count.utilization, container) {
        (None, _) => format!("{resource} resource"),
        (Some(_), None) => format!("{resource} resource utilization (percentage of request)"),
        (Some(_), Some(_)) => format!("{resource} container resource utilization (percentage of request)"),
    };
    let current = MetricValueStatus {
        average_utilization: count.utilization,
        average_value: quantity(count.usage),
        ..MetricValueStatus::default()
    };
    let name = resource.to_owned();
    let status = match container {
        None => MetricStatus {
            type_: "Resource".to_owned(),
            resource: Some(ResourceMetricStatus { name, current }),
            ..MetricStatus::default()
        },
        Some(container) => MetricStatus {
            type_: "ContainerResource".to_owned(),
            container_resource: Some(ContainerResourceMetricStatus { container: container.to_owned(), name, current }),
            ..MetricStatus::default()
        },
    };
    Ok(Proposal { replicas: count.replicas, metric, status })
}

fn propose_for_object(
    source: &ObjectMetricSource,
    result: Result<MetricResult, String>,
    workload: &Workload<'_>,
    calculator: &ReplicaCalculator,
    namespace: &str,
) -> Result<Proposal, InvalidMetric> {
    let (metric, object) = (&source.metric.name, &source.described_object);
    let by_value = match source.target.type_.as_str() {
        "Value" => true,
        "AverageValue" => false,
        _ => {
            let cause = "invalid object metric source: neither a value target nor an average value target was set";
            return Err(InvalidMetric::new(OBJECT.0, OBJECT.1, cause));
        }
    };
    let operation = match by_value {
        true => OBJECT.1.to_owned(),
        false => format!("{}: failed to get {metric} object metric", OBJECT.1),
    };
    let invalid = |cause: String| InvalidMetric::new(OBJECT.0, operation.clone(), cause);
    let value = result.map(MetricResult::value).map_err(|error| {
        let (kind, name) = (&object.kind, &object.name);
        invalid(format!("unable to get metric {metric}: {kind} on {namespace} {name}/{error}"))
    })?;
    let mut status = ObjectMetricStatus { metric: source.metric.clone(), ..ObjectMetricStatus::default() };
    let (count, description) = if by_value {
        let count = calculator.for_value(value, milli(source.target.value.as_ref()), workload);
        let count = count.map_err(|error| invalid(format!("unable to calculate ready pods: {error}")))?;
        status.current.value = quantity(count.usage);
        (count, format!("{} metric {metric}", object.kind))
    } else {
        let count = calculator.for_value_per_pod(value, milli(source.target.average_value.as_ref()), workload);
        status.current.average_value = quantity(count.usage);
        (count, format!("external metric {metric}"))
    };
    status.described_object = object.clone();
    let status = MetricStatus { type_: "Object".to_owned(), object: Some(status), ..MetricStatus::default() };
    Ok(Proposal { replicas: count.replicas, metric: description, status })
}

/// Selects the largest proposal. If any metric is invalid, a proposal below the replicas of the template is
/// discarded.
pub fn combine(proposals: Vec<Result<Proposal, InvalidMetric>>, template_replicas: i32) -> CombinedProposal {
    let metric_count = proposals.len();
    let (mut best, mut statuses, mut first, mut invalid_count) = (None::<(i32, String)>, Vec::new(), None, 0);
    for proposal in proposals {
        match proposal {
            Ok(Proposal { replicas, metric, status }) => {
                statuses.push(status);
                if best.as_ref().is_none_or(|(best_replicas, _)| *best_replicas == 0 || replicas > *best_replicas) {
                    best = Some((replicas, metric));
                }
            }
            Err(invalid) => {
                invalid_count += 1;
                first.get_or_insert(invalid);
            }
        }
    }
    let message = |first: &InvalidMetric| {
        format!("invalid metrics ({invalid_count} invalid out of {metric_count}), first error is: {first}")
    };
    match (best, first) {
        (Some((replicas, metric)), None) => CombinedProposal::Replicas { replicas, metric, statuses, failed: None },
        (Some((replicas, metric)), Some(first)) if replicas >= template_replicas => {
            CombinedProposal::Replicas { replicas, metric, statuses, failed: Some(message(&first)) }
        }
        (_, Some(first)) => CombinedProposal::Unknown { failed: message(&first), first },
        // Admission adds a default metric to a FederatedHPA without metrics.
        (None, None) => {
            let first = InvalidMetric::new(INVALID_SOURCE, "", "no metric is specified");
            CombinedProposal::Unknown { failed: message(&first), first }
        }
    }
}
