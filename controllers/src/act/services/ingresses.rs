//! MultiClusterIngresses: writes into the status in which clusters the services behind them are, and which of those get no traffic.
//! Read by whoever balances the load, who writes the address beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crowsnest_api::names::binding_name;
use crowsnest_api::networking::{MultiClusterIngress, MultiClusterService};
use crowsnest_api::remedy::RemedyAction;
use parking_lot::Mutex;
use serde_json::Value;

use crate::Error;
use crate::act::context::{Context, decode};
use crate::act::queue::{Outcome, Queue};
use crate::act::world::Change;
use crowsnest_plan::{multicluster_ingresses as plan, multicluster_services, object};

/// Namespace and name.
type Key = (String, String);

pub struct Ingresses {
    context: Arc<Context>,
    pub ingresses: Queue<Key>,
    /// The services behind each.
    known: Mutex<BTreeMap<Key, BTreeSet<String>>>,
}

impl Ingresses {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Ingresses { context, ingresses: Queue::new("multicluster-ingresses"), known: Mutex::default() })
    }

    pub fn on_change(&self, change: &Change) {
        let (kinds, gvr) = (&self.context.kinds, &change.resource.gvr);
        if *gvr == kinds.multi_cluster_ingress.gvr {
            return self.learn(change);
        }
        if self.known.lock().is_empty() {
            return;
        }
        if *gvr == kinds.multi_cluster_service.gvr {
            let (namespace, name) = change.key();
            self.look(&namespace, &name);
        } else if *gvr == kinds.resource_binding.gvr {
            let clusters = |binding: &Value| object::at(binding, &["spec", "clusters"]).cloned();
            let bound = change.object();
            let is_moved = change.deleted || change.old().is_none_or(|old| clusters(old) != clusters(bound));
            if is_moved && object::text(bound, &["spec", "resource", "kind"]) == "Service" {
                self.look(object::namespace(bound), object::text(bound, &["spec", "resource", "name"]));
            }
        } else if *gvr == kinds.cluster.gvr {
            let actions = |cluster: &Value| object::at(cluster, &["status", "remedyActions"]).cloned();
            if change.deleted || change.old().is_none_or(|old| actions(old) != actions(change.object())) {
                self.full_pass();
            }
        }
    }

    fn learn(&self, change: &Change) {
        let ingress = change.current().map(decode::<MultiClusterIngress>).transpose();
        match ingress {
            Ok(Some(ingress)) => {
                self.known.lock().insert(change.key(), plan::backends(&ingress.spec));
                self.ingresses.add(change.key());
            }
            Ok(None) => drop(self.known.lock().remove(&change.key())),
            Err(error) => tracing::warn!(ingress = ?change.key(), %error, "it cannot be read; its status stays"),
        }
    }

    /// Looks after those in front of a service.
    fn look(&self, namespace: &str, service: &str) {
        let known = self.known.lock();
        let of_it = known.iter().filter(|((of, _), backends)| of == namespace && backends.contains(service));
        of_it.for_each(|(key, _)| self.ingresses.add(key.clone()));
    }

    pub fn full_pass(&self) {
        let known: Vec<Key> = self.known.lock().keys().cloned().collect();
        known.into_iter().for_each(|key| self.ingresses.add(key));
    }

    pub async fn reconcile(self: Arc<Self>, (namespace, name): Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.multi_cluster_ingress;
        let Some(ingress) = context.get(resource, &namespace, &name).await? else { return Ok(Outcome::Done) };
        if object::is_terminating(&ingress) {
            return Ok(Outcome::Done);
        }
        let typed: MultiClusterIngress = decode(&ingress)?;
        let all = context.clusters().await?;
        let mut services = Vec::new();
        for service in plan::backends(&typed.spec) {
            let clusters = self.clusters(&namespace, &service, &all).await?;
            services.push((service, clusters));
        }
        let mut blocked = BTreeSet::new();
        for cluster in services.iter().flat_map(|(_, clusters)| clusters) {
            let status = context.cluster(cluster).await?;
            let takes_none = |action: &String| action == RemedyAction::TrafficControl.as_str();
            if status.is_some_and(|one| one.status.remedy_actions.iter().any(takes_none)) {
                blocked.insert(cluster.clone());
            }
        }
        let wanted = plan::status(services, |cluster| blocked.contains(cluster));
        if let Some(patch) = plan::patch(&typed.status, &wanted) {
            context.merge_status(resource, &ingress, patch).await?;
        }
        Ok(Outcome::Done)
    }

    /// Where a service is: with the providers of its MultiClusterService, else where it is bound to.
    async fn clusters(&self, namespace: &str, service: &str, all: &[String]) -> Result<BTreeSet<String>, Error> {
        let context = &self.context;
        let spanning = context.get(&context.kinds.multi_cluster_service, namespace, service).await?;
        let named: BTreeSet<String> = match spanning.filter(|spanning| !object::is_terminating(spanning)) {
            Some(spanning) => {
                let typed: MultiClusterService = decode(&spanning)?;
                multicluster_services::clusters(&typed.spec.provider_clusters, all)
            }
            None => {
                let name = binding_name("Service", service);
                let binding = context.get(&context.kinds.resource_binding, namespace, &name).await?;
                let targets = binding.as_deref().and_then(|binding| object::at(binding, &["spec", "clusters"]));
                let targets = targets.and_then(Value::as_array).into_iter().flatten();
                targets.map(|target| object::text(target, &["name"]).to_owned()).collect()
            }
        };
        Ok(named.into_iter().filter(|name| all.contains(name)).collect())
    }
}
