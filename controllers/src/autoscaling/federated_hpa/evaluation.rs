//! Evaluation of a FederatedHPA: replicas in its clusters, replicas proposed by metrics, and the resulting scale and
//! status.

use std::time::Instant;

use crowsnest_api::autoscaling::FederatedHPASpec;
use crowsnest_api::constants::condition;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::work::ResourceBindingSpec;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_apimachinery::unstructured;
use futures::future::join_all;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::metrics::MetricsClient;
use super::{FederatedHpaController, parse_selector};
use crate::Error;
use crate::autoscaling::{Scale, get_scale, get_target};
use crate::metrics::autoscaling::{Action, Failure};
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::{Resource, Target};
use crate::runtime::event_recorder::Severity;
use crate::shared::bindings::binding_key_of;
use crowsnest_plan::autoscaling::behavior::Bounds;
use crowsnest_plan::autoscaling::federated::{
    self as plan, ABLE_TO_SCALE, LimitCheck, SCALING_ACTIVE, SCALING_LIMITED,
};
use crowsnest_plan::autoscaling::metrics::{
    CombinedProposal, INVALID_SOURCE, InvalidMetric, combine, metric_query, propose,
};
use crowsnest_plan::autoscaling::pods::Pod;
use crowsnest_plan::autoscaling::replicas::Workload;
use crowsnest_plan::conditions;

const NO_REPLICAS: &str = "failed to get replicas in any of clusters, possibly because all of clusters are not ready";

/// Reason why an evaluation ended early, as reported in the status.
pub(super) enum Interruption {
    /// The target cannot be scaled now.
    NotReady,
    /// The metrics propose no replica count.
    NoProposal,
    Failed(Error),
}

/// The scale target in the control plane.
struct Template {
    resource: Resource,
    object: Value,
}

/// Sum of the scales that the clusters report.
#[derive(Default)]
struct MemberScales {
    replicas: i32,
    status_replicas: i32,
    /// The first selector reported by a cluster.
    selector: String,
    pods: Vec<Pod>,
}

/// Replicas to scale to.
struct Decision {
    replicas: i32,
    reason: String,
    metrics: Vec<MetricStatus>,
}

/// One evaluation of one FederatedHPA.
pub(super) struct Evaluation<'a> {
    pub(super) controller: &'a FederatedHpaController,
    pub(super) key: &'a NamespacedName,
    pub(super) autoscaler: &'a Value,
    pub(super) spec: &'a FederatedHPASpec,
    pub(super) status: HorizontalPodAutoscalerStatus,
    /// Action, for the metrics of the controller.
    pub(super) action: Action,
    /// Failure of a metric, for the metrics of the controller.
    pub(super) failure: Failure,
    pub(super) now: Timestamp,
}

impl Evaluation<'_> {
    fn context(&self) -> &Context {
        &self.controller.context
    }

    fn warn(&self, reason: &'static str, message: impl Into<String>) {
        self.context().events.record(self.autoscaler, Severity::Warning, reason, message);
    }

    fn set_condition(&mut self, kind: &str, is_true: bool, reason: &str, message: impl Into<String>) {
        plan::set_condition(&mut self.status, kind, is_true, reason, message, self.now);
    }

    /// Reports that the target cannot be scaled.
    fn report_unable(&mut self, reason: &'static str, value: &str, cause: &str) -> Interruption {
        // Karmada uses another spelling of this reason in the event.
        self.warn(if reason == "FailedGetBinding" { "FailedGetBindings" } else { reason }, cause);
        let message = format!("the HPA controller was unable to get {value}: {cause}");
        self.set_condition(ABLE_TO_SCALE, false, reason, message);
        Interruption::NotReady
    }

    /// Reports that the target's scale cannot be read.
    fn report_no_scale(&mut self, cause: &str) -> Interruption {
        self.report_unable("FailedGetScale", "the target's current scale", cause)
    }

    /// Evaluates the FederatedHPA and scales its target.
    pub(super) async fn scale(&mut self) -> Result<(), Interruption> {
        let template = self.get_template().await?;
        let clusters = self.ready_clusters(&template).await?;
        let scales = self.sum_scales(&template.resource, &clusters).await;
        if scales.replicas == 0 {
            return Err(self.report_no_scale(NO_REPLICAS));
        }
        let target = Target::new(&template.resource, &self.key.namespace, unstructured::name(&template.object));
        let current = match get_scale(&self.context().objects, target).await {
            Ok(current) => current,
            Err(error) => return Err(self.report_no_scale(&error.message())),
        };
        let replicas = current.replicas;
        let message = "the HPA controller was able to get the target's current scale";
        self.set_condition(ABLE_TO_SCALE, true, "SucceededGetScale", message);
        self.controller.histories.lock().entry(self.key.clone()).or_default().record_initial(replicas, self.now);
        let (min, max) = (self.spec.min_replicas.unwrap_or(1), self.spec.max_replicas);
        let decision = match plan::check_limits(replicas, scales.replicas, min, max) {
            LimitCheck::Disabled => {
                let message = "scaling is disabled since the replica count of the target is zero";
                self.set_condition(SCALING_ACTIVE, false, "ScalingDisabled", message);
                Decision { replicas, reason: String::new(), metrics: Vec::new() }
            }
            LimitCheck::Replicas(replicas, reason) => {
                Decision { replicas, reason: reason.to_owned(), metrics: Vec::new() }
            }
            LimitCheck::Metrics => {
                let bounds = Bounds { current: replicas, min, max };
                self.decide_by_metrics(&scales, bounds).await?
            }
        };
        if decision.replicas == replicas {
            plan::set_scale(&mut self.status, (replicas, replicas), decision.metrics, None);
            return Ok(());
        }
        self.rescale(target, current, decision).await
    }

    async fn get_template(&mut self) -> Result<Template, Interruption> {
        let reference = &self.spec.scale_target_ref;
        let api_version = match plan::validate_api_version(reference) {
            Ok(api_version) => api_version,
            Err(error) => return Err(self.report_no_scale(&error)),
        };
        match get_target(self.context(), &self.key.namespace, api_version, reference).await {
            Ok((resource, object)) => Ok(Template { resource, object }),
            Err(error) => {
                Err(self.report_unable("FailedGetScaleTargetRef", "the target reference object", &error.message()))
            }
        }
    }

    /// Ready clusters of the template's binding.
    async fn ready_clusters(&mut self, template: &Template) -> Result<Vec<ClusterName>, Interruption> {
        let binding = match self.find_binding(template).await {
            Ok(binding) => binding,
            Err(problem) => {
                return Err(self.report_unable(
                    "FailedGetBinding",
                    "the binding by scaleTargetRef",
                    &problem.message(),
                ));
            }
        };
        match self.filter_ready(&binding).await {
            Ok(clusters) => Ok(clusters),
            Err(problem) => {
                let value = "the target clusters from binding";
                Err(self.report_unable("FailedGetTargetClusters", value, &problem.message()))
            }
        }
    }

    /// Spec of the template's binding. As in Karmada, a binding of this name is found in any namespace.
    async fn find_binding(&self, template: &Template) -> Result<ResourceBindingSpec, Error> {
        let context = self.context();
        let (label, id) = plan::policy_label(&template.object).map_err(|problem| Error::Other(problem.to_owned()))?;
        let (kind, name) = (&template.resource.kind, unstructured::name(&template.object));
        let api_version = template.resource.gvr.api_version();
        let target = ObjectIdentity::new(&api_version, kind, &self.key.namespace, name);
        if let Some((binding, typed)) = context.binding(&binding_key_of(context, &target).await?).await? {
            let reference = &typed.spec.resource;
            let is_same = reference.api_version == api_version && reference.kind == *kind && reference.name == name;
            if is_same && unstructured::label(&binding, label) == Some(id) {
                return Ok(typed.spec.clone());
            }
        }
        let others = context.headers_with_id(&context.kinds.resource_binding, label, id).await?;
        let problem = match others.is_empty() {
            true => "length of binding list is zero",
            false => "no binding matches the target resource",
        };
        Err(Error::Other(problem.to_owned()))
    }

    /// Ready clusters of a binding.
    async fn filter_ready(&self, binding: &ResourceBindingSpec) -> Result<Vec<ClusterName>, Error> {
        if binding.clusters.is_empty() {
            return Err(Error::Other("binding has no schedulable clusters".to_owned()));
        }
        let mut ready = Vec::new();
        for target in &binding.clusters {
            let Some(cluster) = self.context().cluster(&target.name).await? else {
                return Err(Error::Other(format!("clusters.cluster.karmada.io {:?} not found", target.name)));
            };
            if conditions::is_true(&cluster.status.conditions, condition::READY) {
                ready.extend(ClusterName::parse(&target.name).ok());
            }
        }
        Ok(ready)
    }

    /// Gets the scale of all clusters concurrently and sums the results. Clusters that fail are omitted.
    async fn sum_scales(&mut self, resource: &Resource, clusters: &[ClusterName]) -> MemberScales {
        let controller = self.controller;
        let (namespace, name) = (&self.key.namespace, &self.spec.scale_target_ref.name);
        let requests =
            clusters.iter().map(|cluster| controller.get_member_scale(cluster, Target::new(resource, namespace, name)));
        let mut sum = MemberScales::default();
        for (cluster, result) in clusters.iter().zip(join_all(requests).await) {
            let (scale, pods) = match result {
                Ok(scale_and_pods) => scale_and_pods,
                Err(error) => {
                    tracing::debug!(%cluster, %namespace, name, %error, "cannot get the scale in a cluster");
                    continue;
                }
            };
            sum.replicas = sum.replicas.saturating_add(scale.replicas);
            sum.status_replicas = sum.status_replicas.saturating_add(scale.status_replicas);
            if sum.selector.is_empty() {
                sum.selector.clone_from(&scale.selector);
            }
            match pods {
                _ if scale.selector.is_empty() => {
                    self.warn("SelectorRequired", "selector is required");
                    let message = "the HPA target's scale is missing a selector";
                    self.set_condition(SCALING_ACTIVE, false, "InvalidSelector", message);
                }
                Ok(pods) => sum.pods.extend(pods),
                Err(message) => self.report_invalid_selector(&message),
            }
        }
        sum
    }

    fn report_invalid_selector(&mut self, message: &str) {
        self.warn("InvalidSelector", message);
        self.set_condition(SCALING_ACTIVE, false, "InvalidSelector", message);
    }

    /// Replicas proposed by metrics, within the bounds.
    async fn decide_by_metrics(&mut self, scales: &MemberScales, bounds: Bounds) -> Result<Decision, Interruption> {
        let selector = match self.resolve_selector(scales) {
            Ok(selector) => selector,
            Err(message) => return Err(self.report_no_proposal(bounds.current, message)),
        };
        let current = bounds.current;
        let workload = Workload {
            replicas: current,
            status_replicas: scales.status_replicas,
            calibration: f64::from(scales.replicas) / f64::from(current),
            pods: &scales.pods,
        };
        match self.propose_replicas(&selector, &workload).await {
            CombinedProposal::Unknown { first, failed } => {
                let message = format!("the HPA was unable to compute the replica count: {}", first.cause);
                self.set_condition(SCALING_ACTIVE, false, first.reason, message);
                Err(self.report_no_proposal(current, failed))
            }
            CombinedProposal::Replicas { replicas, metric, statuses, failed } => {
                if let Some(failed) = failed {
                    tracing::debug!(autoscaler = ?self.key, failed, "some metrics have no valid proposal");
                }
                let message = format!("the HPA was able to successfully calculate a replica count from {metric}");
                self.set_condition(SCALING_ACTIVE, true, "ValidMetricFound", message);
                let proposed = replicas.max(0);
                let reason = match proposed > current {
                    true => format!("{metric} above target"),
                    false => "All metrics below target".to_owned(),
                };
                Ok(Decision { replicas: self.apply_behavior(bounds, proposed), reason, metrics: statuses })
            }
        }
    }

    /// Reports the unchanged scale with the reason.
    fn report_no_proposal(&mut self, current: i32, problem: String) -> Interruption {
        plan::set_current_replicas(&mut self.status, current);
        self.warn("FailedComputeMetricsReplicas", problem);
        Interruption::NoProposal
    }

    /// Selector of the pods, unless another FederatedHPA scales the same pods.
    fn resolve_selector(&mut self, scales: &MemberScales) -> Result<Selector, String> {
        let selector = match parse_selector(&scales.selector) {
            Ok(selector) => selector,
            Err(message) => {
                self.report_invalid_selector(&message);
                return Err(message);
            }
        };
        let scaling_hpas = {
            let mut selectors = self.controller.selectors.lock();
            selectors.insert(self.key.clone(), Some(selector.clone()));
            plan::find_matching_hpas(&selectors, &self.key.namespace, &scales.pods)
        };
        if scaling_hpas.len() > 1 {
            let message = plan::ambiguous_selector_message(&scales.selector, &scaling_hpas);
            self.warn("AmbiguousSelector", message.clone());
            self.set_condition(SCALING_ACTIVE, false, "AmbiguousSelector", message.clone());
            return Err(message);
        }
        Ok(selector)
    }

    async fn propose_replicas(&mut self, selector: &Selector, workload: &Workload<'_>) -> CombinedProposal {
        let (context, namespace) = (&self.controller.context, &self.key.namespace);
        let metrics = MetricsClient { context, namespace, selector };
        let mut proposals = Vec::with_capacity(self.spec.metrics.len());
        for spec in &self.spec.metrics {
            let started_at = Instant::now();
            let proposal = match metric_query(spec) {
                Ok(query) => {
                    let result = metrics.query(&query).await;
                    propose(spec, result, workload, &context.config.replica_calculator, namespace, self.now)
                }
                Err(invalid) => Err(invalid),
            };
            let (action, failure) = match &proposal {
                Ok(proposal) => (
                    Action::from_replicas(self.status.current_replicas.unwrap_or_default(), proposal.replicas),
                    Failure::None,
                ),
                Err(InvalidMetric { reason, .. }) if *reason == INVALID_SOURCE => (Action::None, Failure::Spec),
                Err(_) => (Action::None, Failure::Internal),
            };
            context.metrics.autoscaling.record_metric(metric_source_type(spec), action, failure, started_at.elapsed());
            if let Err(InvalidMetric { reason, cause, .. }) = &proposal {
                self.warn(reason, cause.clone());
            }
            if self.failure == Failure::None {
                self.failure = failure;
            }
            proposals.push(proposal);
        }
        combine(proposals, workload.replicas)
    }

    /// Limits proposed replicas by the bounds, the behavior and the stabilization window.
    fn apply_behavior(&mut self, bounds: Bounds, proposed: i32) -> i32 {
        let window = self.context().config.periods.downscale_stabilization;
        let window = SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX);
        let bounded = {
            let mut histories = self.controller.histories.lock();
            let history = histories.entry(self.key.clone()).or_default();
            history.limit_recommendation(self.spec.behavior.as_ref(), bounds, proposed, window, self.now)
        };
        self.set_condition(ABLE_TO_SCALE, true, bounded.able_to_scale.0, bounded.able_to_scale.1);
        self.set_condition(SCALING_LIMITED, bounded.is_limited, bounded.limit.0, bounded.limit.1);
        bounded.replicas
    }

    /// Writes the scale and reports the result.
    async fn rescale(&mut self, target: Target<'_>, scale: Scale, decision: Decision) -> Result<(), Interruption> {
        let (before, Decision { replicas, reason, metrics }) = (scale.replicas, decision);
        let context = self.context();
        let written = {
            let _write = context.write_load().begin();
            context.objects.replace(target.scale(), &scale.with_replicas(replicas)).await
        };
        match written {
            Ok(_) => {}
            // Another client changed the scale, so the evaluation is retried soon.
            Err(error) if error.is_conflict() => return Err(Interruption::Failed(error)),
            Err(error) => {
                let problem = error.message();
                self.warn("FailedRescale", format!("New size: {replicas}; reason: {reason}; error: {problem}"));
                let message = format!("the HPA controller was unable to update the target scale: {problem}");
                self.set_condition(ABLE_TO_SCALE, false, "FailedUpdateScale", message);
                plan::set_current_replicas(&mut self.status, before);
                return Err(Interruption::NoProposal);
            }
        }
        self.action = Action::from_replicas(before, replicas);
        let context = self.context();
        let text = format!("New size: {replicas}; reason: {reason}");
        context.events.record(self.autoscaler, Severity::Normal, "SuccessfulRescale", text);
        let message = format!("the HPA controller was able to update the target scale to {replicas}");
        self.set_condition(ABLE_TO_SCALE, true, "SucceededRescale", message);
        let behavior = self.spec.behavior.as_ref();
        let mut histories = self.controller.histories.lock();
        histories.entry(self.key.clone()).or_default().record_scale_event(behavior, before, replicas, self.now);
        drop(histories);
        plan::set_scale(&mut self.status, (before, replicas), metrics, Some(self.now));
        Ok(())
    }
}

/// Type of a metric's source. Empty if unknown.
fn metric_source_type(spec: &MetricSpec) -> &'static str {
    const KNOWN: [&str; 5] = ["Resource", "ContainerResource", "Pods", "Object", "External"];
    KNOWN.into_iter().find(|candidate| *candidate == spec.type_).unwrap_or_default()
}
