//! Workload rebalancer: triggers rescheduling of the bindings of the workloads that a WorkloadRebalancer lists,
//! records the result of each, and deletes a finished WorkloadRebalancer after its TTL. Only this controller writes
//! their status.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::apps::{ObjectReference, WorkloadRebalancer, WorkloadRebalancerStatus};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Target;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::bindings::binding_key_of;
use crowsnest_plan::rebalance as plan;

pub struct WorkloadRebalancerController {
    context: Arc<Context>,
}

impl Controller for WorkloadRebalancerController {
    type Key = String;
    const NAME: &'static str = "workload-rebalancer";
    const SWITCH: Switch = Switch::OnByDefault(&["workloadRebalancer"]);

    fn new(setup: &Setup) -> Self {
        WorkloadRebalancerController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.workload_rebalancer])
                .map(|_, change| Requests::one_if(!change.deleted && change.is_generation_changed(), || change.name())),
        ]
    }

    async fn keys(&self) -> Result<Vec<String>, Error> {
        self.context.names(&self.context.kinds.workload_rebalancer).await
    }

    async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.workload_rebalancer;
        let Some(rebalancer) = context.get_full(resource, "", &name).await? else { return Ok(Outcome::Done) };
        if unstructured::is_terminating(&rebalancer) {
            return Ok(Outcome::Done);
        }
        let typed: WorkloadRebalancer = decode(&rebalancer)?;
        let (status, last_error) = self.trigger_all(&typed).await?;
        let mut current = rebalancer;
        if status != typed.status {
            let patch = json!({"status": status});
            current = Arc::new(context.merge_status(resource, &current, patch).await?);
        }
        if let Some(error) = last_error {
            return Err(error);
        }
        let Some(expiry) = plan::expiry(&typed.spec, &status) else { return Ok(Outcome::Done) };
        match Duration::try_from(expiry.duration_since(self.context.now())) {
            Ok(left) if !left.is_zero() => Ok(Outcome::RequeueAfter(left)),
            // The TTL has expired. The deletion fails if the spec has changed meanwhile.
            _ => context.delete_unchanged(resource, &current).await.map(|()| Outcome::Done),
        }
    }
}

impl WorkloadRebalancerController {
    /// Triggers rescheduling of the workloads without a result. Those that fail stay without one, so that they are
    /// retried; the last of their errors is returned with the status.
    async fn trigger_all(
        &self,
        rebalancer: &WorkloadRebalancer,
    ) -> Result<(WorkloadRebalancerStatus, Option<Error>), Error> {
        let metadata = &rebalancer.metadata;
        let Some(created) = &metadata.creation_timestamp else {
            let name = metadata.name.as_deref().unwrap_or_default();
            return Err(Error::Other(format!("WorkloadRebalancer {name} has no creationTimestamp")));
        };
        let generation = metadata.generation.unwrap_or_default();
        let mut status = plan::observe(&rebalancer.spec, &rebalancer.status, generation);
        let mut last_error = None;
        for item in status.observed_workloads.iter_mut().filter(|item| item.result.is_none()) {
            match self.trigger(&item.workload, created).await {
                Ok(has_binding) => plan::set_result(item, has_binding),
                Err(error) => last_error = Some(error),
            }
        }
        status.finish_time = plan::finish_time(&rebalancer.status, &status, self.context.now());
        Ok((status, last_error))
    }

    /// Triggers rescheduling of a workload. Returns false if it has no binding.
    async fn trigger(&self, workload: &ObjectReference, created: &Time) -> Result<bool, Error> {
        let context = &self.context;
        let Some(template) = plan::template_of(workload) else { return Ok(false) };
        let key = binding_key_of(context, &template).await?;
        let resource = context.kinds.binding(key.scope());
        let binding = match context.get_full(resource, &key.namespace, &key.name).await? {
            Some(binding) => binding,
            // A workload without a binding is not retried, so the API server must confirm that there is none.
            None => match context.objects.get(Target::new(resource, &key.namespace, &key.name)).await? {
                Some(binding) if template.is_template_of(&binding) => Arc::new(binding),
                _ => return Ok(false),
            },
        };
        if !plan::needs_trigger(created, triggered_at(&binding)?.as_ref()) {
            return Ok(true);
        }
        let patch = json!({"spec": {"rescheduleTriggeredAt": created}});
        match context.merge(resource, &binding, patch).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn triggered_at(binding: &Value) -> Result<Option<Time>, Error> {
    let at = unstructured::at(binding, &["spec", "rescheduleTriggeredAt"]).unwrap_or(&Value::Null);
    Option::<Time>::deserialize(at).map_err(|source| Error::Decode {
        object: format!(
            "rescheduleTriggeredAt of {}/{}",
            unstructured::namespace(binding),
            unstructured::name(binding)
        ),
        source,
    })
}
