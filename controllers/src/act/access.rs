//! Unified auth's loop: every member gets a role that lets the control plane impersonate whoever may reach its proxy.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde::de::DeserializeOwned;

use super::bindings::write_work;
use super::context::{Context, decode};
use super::objects::Resource;
use super::queue::{Outcome, Queue};
use super::world::Change;
use crate::Error;
use crate::plan::propagation::binding::controller_reference;
use crate::plan::work::construct::{self, WorkOptions};
use crate::plan::{access, object};

pub struct Access {
    context: Arc<Context>,
    pub clusters: Queue<String>,
}

/// Roles come in groups; they are looked at together.
const GATHER: Duration = Duration::from_millis(100);

impl Access {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Access { context, clusters: Queue::new("access") })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        let gvr = &change.resource.gvr;
        if *gvr == kinds.cluster_role.gvr || *gvr == kinds.cluster_role_binding.gvr {
            if !change.initial {
                self.full_pass().await?;
            }
        } else if *gvr == kinds.cluster.gvr && change.is_moved() {
            self.clusters.add_after(object::name(change.object()).to_owned(), GATHER);
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        for cluster in self.context.clusters().await? {
            self.clusters.add_after(cluster, GATHER);
        }
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(cluster) = context.get(&context.kinds.cluster, "", &name).await? else { return Ok(Outcome::Done) };
        let typed: Cluster = decode(&cluster)?;
        let Some(secret) = typed.spec.impersonator_secret_ref.filter(|_| !object::is_terminating(&cluster)) else {
            return Ok(Outcome::Done);
        };
        let execution = format!("{}{name}", crowsnest_api::names::EXECUTION_NAMESPACE_PREFIX);
        if !context.exists(&context.kinds.namespace, "", &execution).await? {
            return Err(Error::Waiting(format!("namespace {execution} does not exist")));
        }
        let roles: Vec<ClusterRole> = self.read(&context.kinds.cluster_role).await?;
        let bindings: Vec<ClusterRoleBinding> = self.read(&context.kinds.cluster_role_binding).await?;
        let (role, binding) = access::plan(&name, &roles, &bindings, &secret.namespace);
        for manifest in [role, binding] {
            let mut desired =
                construct::wrap(&name, manifest, Default::default(), Default::default(), WorkOptions::default());
            desired.owner = Some(controller_reference(&cluster));
            write_work(context, &desired).await?;
        }
        Ok(Outcome::Done)
    }

    async fn read<T: DeserializeOwned>(&self, resource: &Resource) -> Result<Vec<T>, Error> {
        self.context.list(resource, None).await?.iter().map(|object| decode(object.view())).collect()
    }
}
