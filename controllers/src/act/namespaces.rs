//! Namespace sync: every namespace of the control plane exists in every member, reserved ones aside.

use std::sync::Arc;

use crowsnest_api::constants::{annotation, label};
use crowsnest_api::names::is_reserved_namespace;
use serde_json::Value;

use super::bindings::{Overrides, write_work};
use super::context::Context;
use super::queue::{Outcome, Queue};
use super::world::Change;
use crate::Error;
use crate::plan::propagation::binding::controller_reference;
use crate::plan::propagation::change::Change as TemplateChange;
use crate::plan::work::construct::{self, WorkOptions};
use crate::plan::{object, overriding};

pub struct Namespaces {
    context: Arc<Context>,
    pub namespaces: Queue<String>,
}

impl Namespaces {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Namespaces { context, namespaces: Queue::new("namespaces") })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        let gvr = &change.resource.gvr;
        if *gvr == kinds.namespace.gvr {
            if change.of_template() != TemplateChange::None {
                self.namespaces.add(object::name(change.object()).to_owned());
            }
        } else if !change.initial
            && (*gvr == kinds.cluster_override_policy.gvr || (*gvr == kinds.cluster.gvr && change.old.is_none()))
        {
            self.full_pass().await?;
        } else if *gvr == kinds.work.gvr && change.deleted {
            let owners = object::at(change.object(), &["metadata", "ownerReferences"]).and_then(Value::as_array);
            let of_namespace = |owner: &&Value| object::kind(owner) == "Namespace";
            if let Some(owner) = owners.into_iter().flatten().find(of_namespace) {
                self.namespaces.add(object::text(owner, &["name"]).to_owned());
            }
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        let namespaces = self.context.keys(&self.context.kinds.namespace).await?;
        namespaces.into_iter().for_each(|(_, name)| self.namespaces.add(name));
        Ok(())
    }

    fn is_synced(&self, namespace: &Value) -> bool {
        let name = object::name(namespace);
        let skips = object::label(namespace, label::NAMESPACE_SKIP_AUTO_PROPAGATION) == Some("true");
        let system = name == "default" || is_reserved_namespace(name);
        !skips && !system && !self.context.config.skipped_namespaces.is_match(name)
    }

    pub async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(namespace) = context.get(&context.kinds.namespace, "", &name).await? else { return Ok(Outcome::Done) };
        if object::is_terminating(&namespace) || !self.is_synced(&namespace) {
            return Ok(Outcome::Done);
        }
        let overrides = Overrides::cluster_wide(context).await?;
        let mut failed = None;
        for cluster in context.clusters().await? {
            if let Err(error) = self.sync(&namespace, &cluster, &overrides).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(Outcome::Done), Err)
    }

    async fn sync(&self, namespace: &Value, cluster: &str, overrides: &Overrides) -> Result<(), Error> {
        let execution = format!("{}{cluster}", crowsnest_api::names::EXECUTION_NAMESPACE_PREFIX);
        if !self.context.exists(&self.context.kinds.namespace, "", &execution).await? {
            return Err(Error::Waiting(format!("namespace {execution} does not exist")));
        }
        let Some(member) = self.context.cluster(cluster).await? else { return Ok(()) };
        let mut manifest = namespace.clone();
        let applied: overriding::Report = overriding::apply(&mut manifest, &member, &overrides.as_plan(), &[])?;
        let (cluster_wide, _) = applied.annotations();
        let annotations =
            cluster_wide.map(|text| (annotation::APPLIED_CLUSTER_OVERRIDES.to_owned(), text)).into_iter().collect();
        let mut desired = construct::wrap(cluster, manifest, Default::default(), annotations, WorkOptions::default());
        desired.owner = Some(controller_reference(namespace));
        write_work(&self.context, &desired).await
    }
}
