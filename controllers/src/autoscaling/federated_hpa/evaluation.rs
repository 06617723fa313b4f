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

use super::metrics::Metrics;
use super::{FederatedHpaController, parsed};
use crate::Error;
use crate::autoscaling::{Scale, scale, target_of};
use crate::metrics::autoscaling::{Action, Failure};
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::{Resource, Target};
use crate::runtime::event_recorder::Severity;
use crate::shared::bindings::binding_key_of;
use crowsnest_plan::autoscaling::behavior::Bounds;
use crowsnest_plan::autoscaling::federated::{
    self as plan, ABLE_TO_SCALE, LimitCheck, SCALING_ACTIVE, SCALING_LIMITED,
};
use crowsnest_plan::autoscaling::metrics::{CombinedProposal, INVALID_SOURCE, Invalid, combine, propose, question};
use crowsnest_plan::autoscaling::pods::Pod;
use crowsnest_plan::autoscaling::replicas::Workload;
use crowsnest_plan::conditions;

const NO_REPLICAS: &str = "failed to get replicas in any of clusters, possibly because all of clusters are not ready";

/// Reason why an evaluation ended early, as reported in the status.
pub(super) enum Stop {
    /// The target cannot be scaled now.
    Unready,
    /// The metrics propose no replica count.
    Uncounted,
    Failed(Error),
}

/// The scale target in the control plane.
struct Template {
    resource: Resource,
    object: Value,
}

/// Sum of the scales that the clusters report.
#[derive(Default)]
struct InClusters {
    replicas: i32,
    running: i32,
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
    pub(super) all: &'a FederatedHpaController,
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
        &self.all.context
    }

    fn warn(&self, reason: &'static str, message: impl Into<String>) {
        self.context().events.note(self.autoscaler, Severity::Warning, reason, message);
    }

    fn set(&mut self, kind: &str, holds: bool, reason: &str, message: impl Into<String>) {
        plan::set(&mut self.status, kind, holds, reason, message, self.now);
    }

    /// Reports that the target cannot be scaled.
    fn unable(&mut self, reason: &'static str, what: &str, cause: &str) -> Stop {
        // Karmada uses another spelling of this reason in the event.
        self.warn(if reason == "FailedGetBinding" { "FailedGetBindings" } else { reason }, cause);
        let message = format!("the HPA controller was unable to get {what}: {cause}");
        self.set(ABLE_TO_SCALE, false, reason, message);
        Stop::Unready
    }

    fn no_scale(&mut self, cause: &str) -> Stop {
        self.unable("FailedGetScale", "the target's current scale", cause)
    }

    pub(super) async fn scale(&mut self) -> Result<(), Stop> {
        let template = self.template().await?;
        let clusters = self.clusters(&template).await?;
        let in_clusters = self.in_clusters(&template.resource, &clusters).await;
        if in_clusters.replicas == 0 {
            return Err(self.no_scale(NO_REPLICAS));
        }
        let target = Target::new(&template.resource, &self.key.namespace, unstructured::name(&template.object));
        let current = match scale(&self.context().objects, target).await {
            Ok(current) => current,
            Err(error) => return Err(self.no_scale(&error.message())),
        };
        let replicas = current.replicas;
        let message = "the HPA controller was able to get the target's current scale";
        self.set(ABLE_TO_SCALE, true, "SucceededGetScale", message);
        self.all.past.lock().entry(self.key.clone()).or_default().begin(replicas, self.now);
        let (least, most) = (self.spec.min_replicas.unwrap_or(1), self.spec.max_replicas);
        let decision = match plan::bound(replicas, in_clusters.replicas, least, most) {
            LimitCheck::Disabled => {
                let message = "scaling is disabled since the replica count of the target is zero";
                self.set(SCALING_ACTIVE, false, "ScalingDisabled", message);
                Decision { replicas, reason: String::new(), metrics: Vec::new() }
            }
            LimitCheck::Replicas(replicas, reason) => {
                Decision { replicas, reason: reason.to_owned(), metrics: Vec::new() }
            }
            LimitCheck::Metrics => {
                let bounds = Bounds { current: replicas, least, most };
                self.by_metrics(&in_clusters, bounds).await?
            }
        };
        if decision.replicas == replicas {
            plan::tell(&mut self.status, (replicas, replicas), decision.metrics, None);
            return Ok(());
        }
        self.rescale(target, current, decision).await
    }

    async fn template(&mut self) -> Result<Template, Stop> {
        let reference = &self.spec.scale_target_ref;
        let api_version = match plan::api_version(reference) {
            Ok(api_version) => api_version,
            Err(error) => return Err(self.no_scale(&error)),
        };
        match target_of(self.context(), &self.key.namespace, api_version, reference).await {
            Ok((resource, object)) => Ok(Template { resource, object }),
            Err(error) => Err(self.unable("FailedGetScaleTargetRef", "the target reference object", &error.message())),
        }
    }

    /// Ready clusters of the template's binding.
    async fn clusters(&mut self, template: &Template) -> Result<Vec<ClusterName>, Stop> {
        let binding = match self.binding(template).await {
            Ok(binding) => binding,
            Err(why) => {
                return Err(self.unable("FailedGetBinding", "the binding by scaleTargetRef", &why.message()));
            }
        };
        match self.ready(&binding).await {
            Ok(clusters) => Ok(clusters),
            Err(why) => {
                let what = "the target clusters from binding";
                Err(self.unable("FailedGetTargetClusters", what, &why.message()))
            }
        }
    }

    /// Spec of the template's binding. As in Karmada, a binding of this name is found in any namespace.
    async fn binding(&self, template: &Template) -> Result<ResourceBindingSpec, Error> {
        let context = self.context();
        let (label, id) = plan::claim(&template.object).map_err(|why| Error::Apply(why.to_owned()))?;
        let (kind, name) = (&template.resource.kind, unstructured::name(&template.object));
        let api_version = template.resource.gvr.api_version();
        let target = ObjectIdentity::new(&api_version, kind, &self.key.namespace, name);
        if let Some((binding, typed)) = context.binding(&binding_key_of(context, &target).await?).await? {
            let of = &typed.spec.resource;
            let is_of = of.api_version == api_version && of.kind == *kind && of.name == name;
            if is_of && unstructured::label(&binding, label) == Some(id) {
                return Ok(typed.spec.clone());
            }
        }
        let others = context.headers_with_id(&context.kinds.resource_binding, label, id).await?;
        let why = match others.is_empty() {
            true => "length of binding list is zero",
            false => "no binding matches the target resource",
        };
        Err(Error::Apply(why.to_owned()))
    }

    async fn ready(&self, binding: &ResourceBindingSpec) -> Result<Vec<ClusterName>, Error> {
        if binding.clusters.is_empty() {
            return Err(Error::Apply("binding has no schedulable clusters".to_owned()));
        }
        let mut ready = Vec::new();
        for target in &binding.clusters {
            let Some(cluster) = self.context().cluster(&target.name).await? else {
                return Err(Error::Apply(format!("clusters.cluster.karmada.io {:?} not found", target.name)));
            };
            if conditions::is_true(&cluster.status.conditions, condition::READY) {
                ready.extend(ClusterName::parse(&target.name).ok());
            }
        }
        Ok(ready)
    }

    /// Gets the scale of all clusters concurrently and sums the results. Clusters that fail are omitted.
    async fn in_clusters(&mut self, resource: &Resource, clusters: &[ClusterName]) -> InClusters {
        let all = self.all;
        let (namespace, name) = (&self.key.namespace, &self.spec.scale_target_ref.name);
        let requests = clusters.iter().map(|cluster| all.in_cluster(cluster, Target::new(resource, namespace, name)));
        let mut sum = InClusters::default();
        for (cluster, answer) in clusters.iter().zip(join_all(requests).await) {
            let (scale, pods) = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::debug!(%cluster, %namespace, name, %error, "cannot get the scale in a cluster");
                    continue;
                }
            };
            sum.replicas = sum.replicas.saturating_add(scale.replicas);
            sum.running = sum.running.saturating_add(scale.running);
            if sum.selector.is_empty() {
                sum.selector.clone_from(&scale.selector);
            }
            match pods {
                _ if scale.selector.is_empty() => {
                    self.warn("SelectorRequired", "selector is required");
                    let message = "the HPA target's scale is missing a selector";
                    self.set(SCALING_ACTIVE, false, "InvalidSelector", message);
                }
                Ok(pods) => sum.pods.extend(pods),
                Err(message) => self.invalid_selector(&message),
            }
        }
        sum
    }

    fn invalid_selector(&mut self, message: &str) {
        self.warn("InvalidSelector", message);
        self.set(SCALING_ACTIVE, false, "InvalidSelector", message);
    }

    /// Replicas proposed by metrics, within the bounds.
    async fn by_metrics(&mut self, in_clusters: &InClusters, bounds: Bounds) -> Result<Decision, Stop> {
        let selector = match self.selector(in_clusters) {
            Ok(selector) => selector,
            Err(message) => return Err(self.uncounted(bounds.current, message)),
        };
        let current = bounds.current;
        let workload = Workload {
            replicas: current,
            status_replicas: in_clusters.running,
            calibration: f64::from(in_clusters.replicas) / f64::from(current),
            pods: &in_clusters.pods,
        };
        match self.propose_replicas(&selector, &workload).await {
            CombinedProposal::Unknown { first, failed } => {
                let message = format!("the HPA was unable to compute the replica count: {}", first.cause);
                self.set(SCALING_ACTIVE, false, first.reason, message);
                Err(self.uncounted(current, failed))
            }
            CombinedProposal::Replicas { replicas, metric, statuses, failed } => {
                if let Some(failed) = failed {
                    tracing::debug!(autoscaler = ?self.key, failed, "some metrics have no valid proposal");
                }
                let message = format!("the HPA was able to successfully calculate a replica count from {metric}");
                self.set(SCALING_ACTIVE, true, "ValidMetricFound", message);
                let wanted = replicas.max(0);
                let reason = match wanted > current {
                    true => format!("{metric} above target"),
                    false => "All metrics below target".to_owned(),
                };
                Ok(Decision { replicas: self.within(bounds, wanted), reason, metrics: statuses })
            }
        }
    }

    /// Reports the unchanged scale with the reason.
    fn uncounted(&mut self, current: i32, why: String) -> Stop {
        plan::set_current_replicas(&mut self.status, current);
        self.warn("FailedComputeMetricsReplicas", why);
        Stop::Uncounted
    }

    /// Selector of the pods, unless another FederatedHPA scales the same pods.
    fn selector(&mut self, in_clusters: &InClusters) -> Result<Selector, String> {
        let selector = match parsed(&in_clusters.selector) {
            Ok(selector) => selector,
            Err(message) => {
                self.invalid_selector(&message);
                return Err(message);
            }
        };
        let scaling = {
            let mut selectors = self.all.selectors.lock();
            selectors.insert(self.key.clone(), Some(selector.clone()));
            plan::scaling(&selectors, &self.key.namespace, &in_clusters.pods)
        };
        if scaling.len() > 1 {
            let message = plan::ambiguous(&in_clusters.selector, &scaling);
            self.warn("AmbiguousSelector", message.clone());
            self.set(SCALING_ACTIVE, false, "AmbiguousSelector", message.clone());
            return Err(message);
        }
        Ok(selector)
    }

    async fn propose_replicas(&mut self, selector: &Selector, workload: &Workload<'_>) -> CombinedProposal {
        let (context, namespace) = (&self.all.context, &self.key.namespace);
        let metrics = Metrics { context, namespace, selector };
        let mut proposals = Vec::with_capacity(self.spec.metrics.len());
        for spec in &self.spec.metrics {
            let began = Instant::now();
            let proposal = match question(spec) {
                Ok(question) => {
                    let answer = metrics.ask(&question).await;
                    propose(spec, answer, workload, &context.config.counting, namespace, self.now)
                }
                Err(invalid) => Err(invalid),
            };
            let (action, failure) = match &proposal {
                Ok(proposal) => {
                    (Action::of(self.status.current_replicas.unwrap_or_default(), proposal.replicas), Failure::None)
                }
                Err(Invalid { reason, .. }) if *reason == INVALID_SOURCE => (Action::None, Failure::Spec),
                Err(_) => (Action::None, Failure::Internal),
            };
            context.metrics.autoscaling.counted(source(spec), action, failure, began.elapsed());
            if let Err(Invalid { reason, cause, .. }) = &proposal {
                self.warn(reason, cause.clone());
            }
            if self.failure == Failure::None {
                self.failure = failure;
            }
            proposals.push(proposal);
        }
        combine(proposals, workload.replicas)
    }

    fn within(&mut self, bounds: Bounds, wanted: i32) -> i32 {
        let window = self.context().config.periods.downscale_stabilization;
        let window = SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX);
        let bounded = {
            let mut past = self.all.past.lock();
            let past = past.entry(self.key.clone()).or_default();
            past.bound(self.spec.behavior.as_ref(), bounds, wanted, window, self.now)
        };
        self.set(ABLE_TO_SCALE, true, bounded.able.0, bounded.able.1);
        self.set(SCALING_LIMITED, bounded.limited, bounded.limit.0, bounded.limit.1);
        bounded.replicas
    }

    async fn rescale(&mut self, target: Target<'_>, scale: Scale, decision: Decision) -> Result<(), Stop> {
        let (before, Decision { replicas, reason, metrics }) = (scale.replicas, decision);
        let context = self.context();
        let written = {
            let _write = context.write_load().begin();
            context.objects.replace(target.scale(), &scale.with(replicas)).await
        };
        match written {
            Ok(_) => {}
            // Another client changed the scale, so the evaluation is retried soon.
            Err(error) if error.is_conflict() => return Err(Stop::Failed(error)),
            Err(error) => {
                let why = error.message();
                self.warn("FailedRescale", format!("New size: {replicas}; reason: {reason}; error: {why}"));
                let message = format!("the HPA controller was unable to update the target scale: {why}");
                self.set(ABLE_TO_SCALE, false, "FailedUpdateScale", message);
                plan::set_current_replicas(&mut self.status, before);
                return Err(Stop::Uncounted);
            }
        }
        self.action = Action::of(before, replicas);
        let context = self.context();
        let text = format!("New size: {replicas}; reason: {reason}");
        context.events.note(self.autoscaler, Severity::Normal, "SuccessfulRescale", text);
        let message = format!("the HPA controller was able to update the target scale to {replicas}");
        self.set(ABLE_TO_SCALE, true, "SucceededRescale", message);
        let behavior = self.spec.behavior.as_ref();
        self.all.past.lock().entry(self.key.clone()).or_default().rescaled(behavior, before, replicas, self.now);
        plan::tell(&mut self.status, (before, replicas), metrics, Some(self.now));
        Ok(())
    }
}

/// Type of a metric's source. Empty if unknown.
fn source(spec: &MetricSpec) -> &'static str {
    const KNOWN: [&str; 5] = ["Resource", "ContainerResource", "Pods", "Object", "External"];
    KNOWN.into_iter().find(|known| *known == spec.type_).unwrap_or_default()
}
