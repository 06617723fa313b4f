//! Remedy controller: writes the remedy actions for a Cluster's conditions to its status, where multi-cluster
//! services read them.

use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::remedy::Remedy;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::{Context, decode};
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crowsnest_plan::remedies as plan;

pub struct RemedyController {
    context: Arc<Context>,
}

impl RemedyController {
    fn on_cluster(&self, change: &Change) -> Requests<ClusterName> {
        let reported = |cluster: &Value| {
            let status_field = |field: &str| unstructured::at(cluster, &["status", field]).cloned();
            (status_field("conditions"), status_field("remedyActions"))
        };
        let differs = change.old().is_none_or(|old| reported(old) != reported(change.object()));
        Requests::from(change.cluster_name().filter(|_| !change.deleted && differs))
    }
}

impl Controller for RemedyController {
    type Key = ClusterName;
    const NAME: &'static str = "remedy-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["remedy"]);

    fn new(setup: &Setup) -> Self {
        RemedyController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::clusters(kinds).map(Self::on_cluster),
            Source::control_plane([&kinds.remedy])
                .map(|_, change| Requests::all_if(!change.initial && change.is_generation_changed())),
        ]
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.context.active_cluster_names().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.cluster;
        let Some(cluster) = context.get_full(resource, "", name.as_str()).await? else { return Ok(Outcome::Done) };
        if unstructured::is_terminating(&cluster) {
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
