//! FederatedHPA controller: periodically computes the replicas of a template from the metrics of its pods in all clusters, and
//! writes the template's scale and the status of the FederatedHPA.
//!
//! Earlier recommendations and scale events are kept in memory: after a restart, stabilization begins with the current replicas, as in
//! Karmada.

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

use self::evaluation::{Evaluation, Stop};
use super::{Scale, scale};
use crate::Error;
use crate::metrics::Durations;
use crate::metrics::autoscaling::{Action, Failure};
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::{Objects, Target};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch};
use crowsnest_plan::autoscaling::behavior::ScaleHistory;
use crowsnest_plan::autoscaling::pods::Pod;

/// Timeout for getting a cluster's scale. Clusters that exceed it are omitted.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

pub struct FederatedHpaController {
    context: Arc<Context>,
    past: Mutex<HashMap<NamespacedName, ScaleHistory>>,
    /// Selectors of all FederatedHPAs, to detect ambiguous ones. `None` for one that has found no pods yet.
    selectors: Mutex<BTreeMap<NamespacedName, Option<Selector>>>,
}

impl FederatedHpaController {
    fn forget(&self, key: &NamespacedName) {
        self.past.lock().remove(key);
        self.selectors.lock().remove(key);
    }
}

impl Controller for FederatedHpaController {
    type Key = NamespacedName;
    const NAME: &'static str = "federatedHPA-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["federatedHorizontalPodAutoscaler"]);

    fn new(setup: &Setup) -> Self {
        FederatedHpaController {
            context: Arc::clone(&setup.context),
            past: Mutex::default(),
            selectors: Mutex::default(),
        }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let autoscalers = Source::of([&self.context.kinds.federated_hpa]);
        vec![autoscalers.map(|_, change| Requests::one_if(change.is_moved_or_terminating(), || change.key()))]
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
        let found = context.get_full(resource, &key.namespace, &key.name).await?;
        let Some(autoscaler) = found.filter(|found| !unstructured::is_terminating(found)) else {
            self.forget(&key);
            return Ok(Outcome::Done);
        };
        let typed: FederatedHPA = decode(&autoscaler)?;
        self.selectors.lock().entry(key.clone()).or_default();
        let status = typed.status.clone();
        let mut evaluation = Evaluation {
            all: &self,
            key: &key,
            autoscaler: &autoscaler,
            spec: &typed.spec,
            status,
            action: Action::None,
            failure: Failure::None,
            now: context.now(),
        };
        let began = Instant::now();
        let ended = evaluation.scale().await;
        let (action, failure) = (evaluation.action, evaluation.failure);
        let status_result = tell(context, &autoscaler, &typed, evaluation.status).await;
        let failure = match (&ended, &status_result) {
            (Err(Stop::Unready | Stop::Failed(_)), _) | (_, Err(_)) => Failure::Internal,
            (Err(Stop::Uncounted), _) if failure == Failure::None => Failure::Internal,
            _ => failure,
        };
        context.metrics.autoscaling.record_evaluation(action, failure, began.elapsed());
        status_result?;
        match ended {
            Ok(()) | Err(Stop::Uncounted) => Ok(Outcome::Again(context.config.periods.autoscaling_sync)),
            Err(Stop::Unready) => Ok(Outcome::Later),
            Err(Stop::Failed(error)) => Err(error),
        }
    }
}

/// Writes the status if it changed.
async fn tell(
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
    let written = context.replace_status(&context.kinds.federated_hpa, &updated).await;
    if let Err(error) = &written
        && error.is_reported()
    {
        context.events.note(autoscaler, Severity::Warning, "FailedUpdateStatus", error.message());
    }
    written.map(|_| ())
}

impl FederatedHpaController {
    /// A cluster's scale, and its pods or the reason why they cannot be selected.
    async fn in_cluster(
        &self,
        cluster: &ClusterName,
        target: Target<'_>,
    ) -> Result<(Scale, Result<Vec<Pod>, String>), Error> {
        let (cache, pods) = (&self.context.cache, &self.context.kinds.pod);
        cache.collect(cluster, pods);
        if !cache.wait_synced(cluster, &pods.gvr, ANSWERS_WITHIN).await {
            return Err(Error::Waiting(format!("pods of cluster {cluster} are not listed yet")));
        }
        let member = Objects::fenced(self.context.fleet.client(cluster)?, self.context.config.fence.clone());
        let response = tokio::time::timeout(ANSWERS_WITHIN, scale(&member, target)).await;
        let late = |_| Error::Waiting(format!("cluster {cluster} did not respond"));
        let scale = response.map_err(late)??;
        let selector = match parsed(&scale.selector) {
            Ok(selector) => selector,
            Err(message) => return Ok((scale, Err(message))),
        };
        let found = cache.list(cluster, &pods.gvr, Some(target.namespace)).await?;
        let selected = |pod: &Value| {
            let labels = unstructured::at(pod, &["metadata", "labels"]);
            selector.matches_with(|key| labels?.get(key)?.as_str())
        };
        let found = found.iter().map(|pod| pod.view()).filter(|pod| selected(pod));
        let found = found.map(|pod| Pod::of(cluster.as_str(), pod)).collect();
        Ok((scale, Ok(found)))
    }
}

fn parsed(selector: &str) -> Result<Selector, String> {
    Selector::parse(selector)
        .map_err(|error| format!("couldn't convert selector into a corresponding internal selector object: {error}"))
}
