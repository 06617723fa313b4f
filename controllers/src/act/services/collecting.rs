//! Providers of MultiClusterServices: for each EndpointSlice of the Service there a Work that keeps it in the control plane.
//! Writes those Works; [`super::Spanning`] dispatches them. Only with the gate `MultiClusterService`.

use std::sync::Arc;

use crowsnest_api::constants::label;
use crowsnest_api::names::{execution_namespace, work_name};
use crowsnest_apimachinery::names::ClusterName;
use serde_json::Value;

use super::{ENDPOINT_SLICE, followed};
use crate::Error;
use crate::act::bindings::{member_of, write_work};
use crate::act::context::Context;
use crate::act::queue::{Outcome, Queue};
use crate::act::world::Change;
use crowsnest_plan::work::construct::DesiredWork;
use crowsnest_plan::{multicluster_services as plan, object, services};

/// A Service of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Provided {
    cluster: ClusterName,
    namespace: String,
    name: String,
}

pub struct Collecting {
    context: Arc<Context>,
    pub services: Queue<Provided>,
}

impl Collecting {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Collecting { context, services: Queue::new("provided-services") })
    }

    /// Something happened in a member.
    pub fn on_member_change(&self, change: &Change) {
        let gvr = &change.resource.gvr;
        if !self.context.config.gates.multi_cluster_service
            || (&*gvr.group, &*gvr.resource) != ("discovery.k8s.io", "endpointslices")
            || services::is_brought(change.object())
        {
            return;
        }
        let of = |slice: &Value| object::label(slice, services::SERVICE_NAME).map(str::to_owned);
        for name in [of(change.object()), change.old().and_then(of)].into_iter().flatten() {
            let namespace = object::namespace(change.object()).to_owned();
            self.services.add(Provided { cluster: change.cluster.clone(), namespace, name });
        }
    }

    /// A Work says that endpoints are wanted, or keeps some.
    pub fn on_change(&self, change: &Change) {
        if change.resource.gvr == self.context.kinds.work.gvr && self.context.config.gates.multi_cluster_service {
            self.ask(change.object());
        }
    }

    fn ask(&self, work: &Value) {
        let cluster = member_of(object::namespace(work));
        if let (Some((namespace, name)), Some(cluster)) = (plan::of_work(work), cluster)
            && plan::source_of(work).is_none()
        {
            self.services.add(Provided { cluster, namespace, name });
        }
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        if self.context.config.gates.multi_cluster_service {
            let works = self.context.labelled(&self.context.kinds.work, label::MULTI_CLUSTER_SERVICE_NAME).await?;
            works.iter().for_each(|work| self.ask(work.view()));
        }
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, key: Provided) -> Result<Outcome, Error> {
        if self.context.is_left_to_agent(&key.cluster).await? {
            return Ok(Outcome::Done);
        }
        let desired = self.desired(&key).await?;
        for work in &desired {
            write_work(&self.context, work).await?;
        }
        let context = &self.context;
        let resource = &context.kinds.work;
        let works = context.with_label(resource, label::MULTI_CLUSTER_SERVICE_NAME, &key.name).await?;
        let execution = execution_namespace(&key.cluster);
        for work in works.iter().map(|work| work.view()) {
            let is_its = object::namespace(work) == execution
                && plan::of_work(work).is_some_and(|(namespace, _)| namespace == key.namespace);
            let is_desired = desired.iter().any(|desired| desired.name == object::name(work));
            if !is_its || is_desired || !plan::is_collected(work) || object::is_terminating(work) {
                continue;
            }
            match plan::without_service(work) {
                Some(patch) => context.merge(resource, work, patch).await.map(drop)?,
                None => context.delete(resource, object::namespace(work), object::name(work)).await?,
            }
        }
        Ok(Outcome::Done)
    }

    async fn desired(&self, key: &Provided) -> Result<Vec<DesiredWork>, Error> {
        let context = &self.context;
        let execution = execution_namespace(&key.cluster);
        let name = work_name(plan::MULTI_CLUSTER_SERVICE, &key.name, &key.namespace);
        let wanted = context.get(&context.kinds.work, &execution, &name).await?;
        if wanted.is_none_or(|work| object::is_terminating(&work)) {
            return Ok(Vec::new());
        }
        let Some(slices) = followed(context, &key.cluster, ENDPOINT_SLICE).await? else { return Ok(Vec::new()) };
        let mut desired = Vec::new();
        for slice in context.world.list(&key.cluster, &slices.gvr, Some(&key.namespace)).await? {
            let slice = slice.view();
            if !services::is_of_service(slice, &key.name) {
                continue;
            }
            let name = work_name(object::kind(slice), object::name(slice), object::namespace(slice));
            let existing = context.get(&context.kinds.work, &execution, &name).await?;
            if existing.as_ref().is_some_and(|existing| plan::source_of(existing).is_some()) {
                return Err(Error::Waiting(format!("work {execution}/{name} is another provider's slice")));
            }
            desired.push(plan::collected(key.cluster.as_str(), &key.name, slice, existing.as_deref()));
        }
        Ok(desired)
    }
}
