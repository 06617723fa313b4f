//! FederatedHPA controller: periodically computes the replicas of a template from the metrics of its pods in all
//! clusters, and writes the template's scale and the status of the FederatedHPA.
//!
//! Earlier recommendations and scale events are kept in memory: after a restart, stabilization begins with the current
//! replicas, as in Karmada.

mod evaluation;
pub mod metrics;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_api::autoscaling::FederatedHPA;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerStatus;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::evaluation::{Evaluation, Interruption};
use super::{Scale, get_scale};
use crate::Error;
use crate::metrics::Durations;
use crate::metrics::autoscaling::{Action, Failure};
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Target;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crowsnest_plan::autoscaling::behavior::ScaleHistory;
use crowsnest_plan::autoscaling::pods::Pod;

/// Timeout for getting a cluster's scale. Clusters that exceed it are omitted.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(5);

pub struct FederatedHpaController {
    context: Arc<Context>,
    histories: Mutex<HashMap<NamespacedName, ScaleHistory>>,
    /// Selectors of all FederatedHPAs, to detect ambiguous ones. `None` for one that has found no pods yet.
    selectors: Mutex<BTreeMap<NamespacedName, Option<Selector>>>,
}

impl FederatedHpaController {
    fn forget(&self, key: &NamespacedName) {
        self.histories.lock().remove(key);
        self.selectors.lock().remove(key);
    }
}

impl Controller for FederatedHpaController {
    type Key = NamespacedName;
    const NAME: &'static str = "federatedHPA-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["federatedHorizontalPodAutoscaler"]);

    fn new(setup: &Setup) -> Self {
        FederatedHpaController { context: setup.context(), histories: Mutex::default(), selectors: Mutex::default() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.federated_hpa])
                .map(|_, change| Requests::one_if(change.is_generation_or_deletion_changed(), || change.key())),
        ]
    }

    async fn keys(&self) -> Result<Vec<NamespacedName>, Error> {
        self.context.keys(&self.context.kinds.federated_hpa).await
    }

    fn durations(context: &Context) -> Option<Durations> {
        Some(context.metrics.federated_hpa.clone())
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.federated_hpa;
        let autoscaler = context.get_full(resource, &key.namespace, &key.name).await?;
        let Some(autoscaler) = autoscaler.filter(|found| !unstructured::is_terminating(found)) else {
            self.forget(&key);
            return Ok(Outcome::Done);
        };
        let typed: FederatedHPA = decode(&autoscaler)?;
        self.selectors.lock().entry(key.clone()).or_default();
        let status = typed.status.clone();
        let mut evaluation = Evaluation {
            controller: &self,
            key: &key,
            autoscaler: &autoscaler,
            spec: &typed.spec,
            status,
            action: Action::None,
            failure: Failure::None,
            now: context.now(),
        };
        let started_at = Instant::now();
        let result = evaluation.scale().await;
        let (action, failure) = (evaluation.action, evaluation.failure);
        let status_result = write_status(context, &autoscaler, &typed, evaluation.status).await;
        let failure = match (&result, &status_result) {
            (Err(Interruption::NotReady | Interruption::Failed(_)), _) | (_, Err(_)) => Failure::Internal,
            (Err(Interruption::NoProposal), _) if failure == Failure::None => Failure::Internal,
            _ => failure,
        };
        context.metrics.autoscaling.record_evaluation(action, failure, started_at.elapsed());
        status_result?;
        match result {
            Ok(()) | Err(Interruption::NoProposal) => {
                Ok(Outcome::RequeueAfter(context.config.periods.autoscaling_sync))
            }
            Err(Interruption::NotReady) => Ok(Outcome::Requeue),
            Err(Interruption::Failed(error)) => Err(error),
        }
    }
}

/// Writes the status if it changed.
async fn write_status(
    context: &Context,
    autoscaler: &Value,
    typed: &FederatedHPA,
    status: HorizontalPodAutoscalerStatus,
) -> Result<(), Error> {
    if status == typed.status {
        return Ok(());
    }
    let mut updated = autoscaler.clone();
    updated["status"] = json!(status);
    let result = context.replace_status(&context.kinds.federated_hpa, &updated).await;
    if let Err(error) = &result
        && error.needs_event()
    {
        context.events.record(autoscaler, Severity::Warning, "FailedUpdateStatus", error.message());
    }
    result.map(|_| ())
}

impl FederatedHpaController {
    /// Gets the scale of a cluster, and its pods or the reason why they cannot be selected.
    async fn get_member_scale(
        &self,
        cluster: &ClusterName,
        target: Target<'_>,
    ) -> Result<(Scale, Result<Vec<Pod>, String>), Error> {
        let (cache, pods) = (&self.context.cache, &self.context.kinds.pod);
        cache.collect(cluster, pods);
        if !cache.wait_until_synced(cluster, &pods.gvr, MEMBER_TIMEOUT).await {
            return Err(Error::Waiting(format!("pods of cluster {cluster} are not listed yet")));
        }
        let scale = get_scale(&self.context.member_client(cluster, MEMBER_TIMEOUT)?, target).await?;
        let selector = match parse_selector(&scale.selector) {
            Ok(selector) => selector,
            Err(message) => return Ok((scale, Err(message))),
        };
        let pods = cache.list(cluster, &pods.gvr, Some(target.namespace)).await?;
        let is_selected = |pod: &Value| {
            let labels = unstructured::at(pod, &["metadata", "labels"]);
            selector.matches_with(|key| labels?.get(key)?.as_str())
        };
        let pods = pods.iter().map(|pod| pod.view()).filter(|pod| is_selected(pod));
        let pods = pods.map(|pod| Pod::from_json(cluster.as_str(), pod)).collect();
        Ok((scale, Ok(pods)))
    }
}

fn parse_selector(selector: &str) -> Result<Selector, String> {
    Selector::parse(selector)
        .map_err(|error| format!("couldn't convert selector into a corresponding internal selector object: {error}"))
}
