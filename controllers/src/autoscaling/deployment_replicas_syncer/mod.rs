//! Deployment replicas syncer: copies the replicas that members' autoscalers set into the template of a divided
//! Deployment, so that rescheduling starts from there. Disabled by default; writes `spec.replicas` of templates only.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::work::ResourceBinding;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use futures::TryStreamExt;
use futures::future::ready;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::{Context, decode};
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::bindings::binding_key_of;
use crowsnest_plan::retaining::{ReplicasDecision, decide_replicas, is_retained};

/// Requeue delay of a Deployment whose status is not collected from all members.
const STATUS_RETRY_DELAY: Duration = Duration::from_secs(1);

pub struct DeploymentReplicasSyncer {
    context: Arc<Context>,
}

impl DeploymentReplicasSyncer {
    fn on_deployment(&self, change: &Change) -> Requests<NamespacedName> {
        let Some(new) = change.current().filter(|new| is_retained(new)) else { return Requests::none() };
        let replicas = |deployment: &Value| {
            ["spec", "status"].map(|part| unstructured::integer(deployment, &[part, "replicas"]).unwrap_or_default())
        };
        let is_same = |old: &Value| is_retained(old) && replicas(old) == replicas(new);
        Requests::one_if(!change.old().is_some_and(is_same), || change.key())
    }
}

impl Controller for DeploymentReplicasSyncer {
    /// Namespace and name of a Deployment.
    type Key = NamespacedName;
    const NAME: &'static str = "deployment-replicas-syncer";
    const SWITCH: Switch = Switch::OffByDefault(&["deploymentReplicasSyncer"]);

    fn new(setup: &Setup) -> Self {
        DeploymentReplicasSyncer { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![Source::templates([&kinds.deployment]).map(Self::on_deployment)]
    }

    async fn keys(&self) -> Result<Vec<NamespacedName>, Error> {
        let deployments = self.context.stream(&self.context.kinds.deployment, None);
        let retained = deployments.try_filter_map(|deployment| {
            let deployment = deployment.view();
            let key = || unstructured::key(deployment);
            ready(Ok(is_retained(deployment).then(key)))
        });
        retained.try_collect().await
    }

    async fn reconcile(self: Arc<Self>, NamespacedName { namespace, name }: NamespacedName) -> Result<Outcome, Error> {
        let context = &self.context;
        let kinds = &context.kinds;
        let Some(deployment) = context.get_redacted(&kinds.deployment, &namespace, &name).await? else {
            return Ok(Outcome::Done);
        };
        let binding = binding_key_of(context, &ObjectIdentity::from_object(deployment.view())).await?;
        let Some(binding) = context.get_redacted(&kinds.resource_binding, &namespace, &binding.name).await? else {
            return Ok(Outcome::Done);
        };
        let (binding, deployment) = (decode::<ResourceBinding>(binding.view())?, deployment.view());
        match decide_replicas(deployment, &binding) {
            ReplicasDecision::Keep => Ok(Outcome::Done),
            ReplicasDecision::Wait => Ok(Outcome::RequeueAfter(STATUS_RETRY_DELAY)),
            ReplicasDecision::Adopt(observed) => {
                let patch = json!({"spec": {"replicas": observed}});
                context.merge(&kinds.deployment, deployment, patch).await.map(|_| Outcome::Done)
            }
        }
    }
}
