//! Remedies: writes into a cluster's status what its conditions call for. Whoever acts on it - multi-cluster services take
//! the cluster's traffic away - reads it there.

use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::remedy::Remedy;
use serde_json::{Value, json};

use super::context::{Context, decode};
use super::queue::{Outcome, Queue};
use super::world::Change;
use crate::Error;
use crowsnest_plan::{object, remedies as plan};

pub struct Remedies {
    context: Arc<Context>,
    pub clusters: Queue<String>,
}

impl Remedies {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Remedies { context, clusters: Queue::new("remedies") })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        if change.resource.gvr == kinds.cluster.gvr {
            let told = |cluster: &Value| {
                let of = |field: &str| object::at(cluster, &["status", field]).cloned();
                (of("conditions"), of("remedyActions"))
            };
            if !change.deleted && change.old().is_none_or(|old| told(old) != told(change.object())) {
                self.clusters.add(object::name(change.object()).to_owned());
            }
        } else if change.resource.gvr == kinds.remedy.gvr && !change.initial && change.is_moved() {
            self.full_pass().await?;
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        self.context.clusters().await?.into_iter().for_each(|name| self.clusters.add(name));
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.cluster;
        let Some(cluster) = context.get(resource, "", &name).await? else { return Ok(Outcome::Done) };
        if object::is_terminating(&cluster) {
            return Ok(Outcome::Done);
        }
        let typed: Cluster = decode(&cluster)?;
        let remedies = context.list(&context.kinds.remedy, None).await?;
        let remedies: Vec<Remedy> = remedies.iter().map(|remedy| decode(remedy.view())).collect::<Result<_, _>>()?;
        let actions = plan::actions(&typed, &remedies);
        if actions != typed.status.remedy_actions {
            let actions = (!actions.is_empty()).then_some(actions);
            context.merge_status(resource, &cluster, json!({"status": {"remedyActions": actions}})).await?;
        }
        Ok(Outcome::Done)
    }
}
