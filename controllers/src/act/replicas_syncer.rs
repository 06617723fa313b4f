//! deploymentReplicasSyncer: a divided Deployment whose replicas the members' autoscalers set takes over what they came
//! to, so that scheduling anew starts from there. Off unless asked for (`--controllers`); writes `spec.replicas` of templates.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::names::binding_name;
use crowsnest_api::work::ResourceBinding;
use serde_json::{Value, json};

use super::context::{Context, decode};
use super::controllers::Controller;
use super::queue::{Outcome, Queue};
use super::world::Change;
use crate::Error;
use crowsnest_plan::object;
use crowsnest_plan::retaining::{Replicas, is_retained, replicas};

/// Between two looks at a Deployment whose members have not all reported.
const PAUSE: Duration = Duration::from_secs(1);

pub struct ReplicasSyncer {
    context: Arc<Context>,
    /// Namespace and name.
    pub deployments: Queue<(String, String)>,
}

impl ReplicasSyncer {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(ReplicasSyncer { context, deployments: Queue::new("deployment-replicas") })
    }

    pub fn on_change(&self, change: &Change) {
        let ours = self.context.config.controllers.runs(Controller::DeploymentReplicasSyncer)
            && change.resource.gvr == self.context.kinds.deployment.gvr;
        let Some(new) = change.current().filter(|new| ours && is_retained(new)) else { return };
        let replicas = |deployment: &Value| {
            ["spec", "status"].map(|part| object::integer(deployment, &[part, "replicas"]).unwrap_or_default())
        };
        let same = |old: &Value| is_retained(old) && replicas(old) == replicas(new);
        if !change.old().is_some_and(same) {
            self.deployments.add(change.key());
        }
    }

    pub async fn reconcile(self: Arc<Self>, (namespace, name): (String, String)) -> Result<Outcome, Error> {
        let context = &self.context;
        let kinds = &context.kinds;
        let binding = binding_name(&kinds.deployment.kind, &name);
        let Some(binding) = context.glance(&kinds.resource_binding, &namespace, &binding).await? else {
            return Ok(Outcome::Done);
        };
        let Some(deployment) = context.glance(&kinds.deployment, &namespace, &name).await? else {
            return Ok(Outcome::Done);
        };
        let (binding, deployment) = (decode::<ResourceBinding>(binding.view())?, deployment.view());
        match replicas(deployment, &binding) {
            Replicas::Keep => Ok(Outcome::Done),
            Replicas::Wait => Ok(Outcome::Again(PAUSE)),
            Replicas::Follow(found) => {
                let patch = json!({"spec": {"replicas": found}});
                context.merge(&kinds.deployment, deployment, patch).await.map(|_| Outcome::Done)
            }
        }
    }
}
