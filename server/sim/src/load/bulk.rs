//! Writes synthetic workloads to a member's storage directly, without the cost of API requests: defaults are set,
//! admission does not run. The JSON of a pod is created once per workload as a template; writes are committed in
//! batches.

use std::collections::BTreeSet;
use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_registry::Registry;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{Body, ObjectKey, Precondition, Revision, Write};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::catalog::Workload;
use super::objects::{PADDING, Plan, uid};
use crate::error::{Error, Result};
use crate::member::informer::Object;
use crate::member::pod::PodState;
use crate::member::podlife::time;
use crate::member::store::{Key, Store};
use crate::member::world::World;

/// A node for pods.
#[derive(Debug, Clone)]
pub struct TargetNode {
    pub node: Arc<str>,
    pub host: String,
    pub cidr: String,
}

/// A workload with the node of each pod, as indexes of nodes.
pub struct Placed {
    pub workload: Workload,
    pub places: Vec<usize>,
}

/// Bulk writer for a member's storage.
pub struct Bulk {
    world: Arc<World>,
    registry: Arc<Registry>,
    places: Vec<TargetNode>,
    /// Minimum size of a pod's JSON in bytes.
    size: usize,
    now: Timestamp,
    namespaces: ResourceRef,
    deployments: ResourceRef,
    replica_sets: ResourceRef,
    pods: ResourceRef,
    events: ResourceRef,
}

/// Writes of some workloads, and the objects to add to the world's stores afterwards.
#[derive(Default)]
struct Batch {
    writes: Vec<Write>,
    kept: Vec<(usize, Kept)>,
    held: Vec<Arc<str>>,
}

/// An object for the world's stores, whose version is not yet known.
enum Kept {
    Deployment(Box<Value>),
    ReplicaSet(Box<Value>),
    Pod(Box<PodState>),
}

impl Bulk {
    pub fn new(
        world: Arc<World>,
        registry: Arc<Registry>,
        places: Vec<TargetNode>,
        size: usize,
        now: Timestamp,
    ) -> Result<Self> {
        let find = |group: &str, version: &str, resource: &str| {
            registry
                .resource(&Gvr::new(group, version, resource))
                .map_err(|error| Error::Start { cluster: world.name.to_string(), reason: error.to_string() })
        };
        Ok(Self {
            namespaces: find("", "v1", "namespaces")?,
            deployments: find("apps", "v1", "deployments")?,
            replica_sets: find("apps", "v1", "replicasets")?,
            pods: find("", "v1", "pods")?,
            events: find("", "v1", "events")?,
            world,
            registry,
            places,
            size,
            now,
        })
    }

    fn failed(&self, what: &str, error: &crowsnest_registry::error::Error) -> Error {
        Error::Start { cluster: self.world.name.to_string(), reason: format!("write synthetic {what}: {error}") }
    }

    fn write_of(&self, resource: &ResourceRef, key: ObjectKey, body: Body) -> Write {
        Write { table: resource.table(), key, precondition: Precondition::Absent, body: Some(body) }
    }

    fn put(&self, resource: &ResourceRef, object: &Value) -> Result<Write> {
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let key = ObjectKey::new(text("namespace"), text("name"));
        let body = Body::encode(object).map_err(|error| self.failed(&resource.gvr.resource, &error))?;
        Ok(self.write_of(resource, key, body))
    }

    /// Creates missing namespaces.
    pub async fn namespaces(&self, names: &BTreeSet<String>) -> Result<()> {
        let mut batch = Batch::default();
        for name in names {
            if self.registry.store.get(&self.namespaces.table(), &ObjectKey::new("", name)).is_some() {
                continue;
            }
            let team = name.split('-').next().unwrap_or_default();
            let mut namespace = json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "uid": uid(&[&self.world.name, "namespace", name]),
                    "creationTimestamp": time(self.now), "labels": {"kubernetes.io/metadata.name": name, "team": team}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            });
            self.namespaces.strategy.default(&mut namespace);
            batch.writes.push(self.put(&self.namespaces, &namespace)?);
        }
        self.commit(batch).await
    }

    /// Writes Deployments with their ReplicaSets and pods.
    pub async fn write(&self, workloads: Vec<Placed>) -> Result<()> {
        let mut batch = Batch::default();
        for placed in workloads {
            self.add(&placed, &mut batch)?;
            tokio::task::yield_now().await;
        }
        self.commit(batch).await
    }

    fn add(&self, placed: &Placed, batch: &mut Batch) -> Result<()> {
        let mut plan = Plan::new(&self.world.name, &placed.workload, self.now);
        let mut made = Made::new(self, &plan)?;
        let missing = self.size.saturating_sub(made.text.len());
        if missing > 0 {
            plan.padding = missing.div_ceil(PADDING);
            made = Made::new(self, &plan)?;
        }
        batch.held.extend([plan.deployment_uid.as_str(), plan.set_uid.as_str()].map(Arc::from));
        batch.push(self.put(&self.deployments, &made.deployment)?, Kept::Deployment(Box::new(made.deployment)));
        batch.push(self.put(&self.replica_sets, &made.set)?, Kept::ReplicaSet(Box::new(made.set)));
        let namespace = &made.state.key.namespace;
        for (number, target_node) in placed.places.iter().map(|index| &self.places[*index]).enumerate() {
            let (name, uid) = plan.pod_ids(number);
            let ip = self.world.ips.take(&uid, &target_node.cidr);
            let id = plan.container_id(&uid);
            let ip_text = ip.as_deref().unwrap_or_default();
            let text = fill(&made.text, |hole| match hole {
                "name" => &name,
                "uid" => &uid,
                "node" => &target_node.node,
                "host" => &target_node.host,
                "ip" => ip_text,
                _ => &id,
            });
            let body = Body::from_text(text.as_bytes(), "v1", "Pod").map_err(|error| self.failed("pods", &error))?;
            let state = PodState {
                key: Key { namespace: namespace.clone(), name: name.as_str().into() },
                uid: uid.as_str().into(),
                node: Some(target_node.node.clone()),
                ip: made.state.ip.as_ref().and(ip),
                ..made.state.clone()
            };
            batch.push(self.write_of(&self.pods, ObjectKey::new(namespace, &name), body), Kept::Pod(Box::new(state)));
            if let Some(mut event) = plan.event(&name, &uid, &target_node.node, number, self.now) {
                self.events.strategy.default(&mut event);
                batch.writes.push(self.put(&self.events, &event)?);
            }
        }
        Ok(())
    }

    /// Commits a batch and adds its objects to the world's stores; controllers ignore them until then.
    async fn commit(&self, batch: Batch) -> Result<()> {
        let Batch { writes, kept, held } = batch;
        let names: Vec<String> = writes.iter().map(|write| write.key.to_string()).collect();
        let pods: Vec<Key> = kept.iter().filter_map(|(_, kept)| kept.pod_key()).collect();
        held.iter().for_each(|uid| self.world.hold(uid));
        self.world.pods.expect(pods.iter().cloned());
        let outcomes = self.registry.store.write_all(writes).await;
        let result = outcomes.map_err(|error| self.failed("workloads", &error)).and_then(|outcomes| {
            for (at, kept) in kept {
                if let Some(Ok(revision)) = outcomes.get(at) {
                    self.tell(kept, *revision)?;
                }
            }
            // Objects left by an earlier load are kept.
            let refused = |outcome: &Result<Revision, _>| {
                matches!(outcome, Err(error) if !matches!(error, crowsnest_registry::error::Error::AlreadyExists))
            };
            match outcomes.into_iter().zip(&names).find(|(outcome, _)| refused(outcome)) {
                Some((Err(error), name)) => Err(self.failed(name, &error)),
                _ => Ok(()),
            }
        });
        self.world.pods.settle(&pods);
        held.iter().for_each(|uid| self.world.release(uid));
        result
    }

    fn tell(&self, kept: Kept, revision: Revision) -> Result<()> {
        match kept {
            Kept::Deployment(object) => keep::<Deployment>(&self.world.deployments, *object, revision),
            Kept::ReplicaSet(object) => keep::<ReplicaSet>(&self.world.replica_sets, *object, revision),
            Kept::Pod(state) => {
                self.world.pods.apply(PodState { version: revision, ..*state });
                Ok(())
            }
        }
    }
}

impl Batch {
    fn push(&mut self, write: Write, kept: Kept) {
        self.kept.push((self.writes.len(), kept));
        self.writes.push(write);
    }
}

impl Kept {
    fn pod_key(&self) -> Option<Key> {
        match self {
            Self::Pod(state) => Some(state.key.clone()),
            _ => None,
        }
    }
}

fn keep<K>(store: &Store<Object<K>>, mut object: Value, revision: Revision) -> Result<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    object["metadata"]["resourceVersion"] = json!(revision.to_string());
    let typed: K =
        serde_json::from_value(object).map_err(|source| Error::Encode { what: "synthetic workload", source })?;
    store.apply(typed.into());
    Ok(())
}

/// The objects of a workload, with a template for its pods.
struct Made {
    deployment: Value,
    set: Value,
    state: PodState,
    /// JSON of a pod with placeholders.
    text: String,
}

impl Made {
    fn new(bulk: &Bulk, plan: &Plan<'_>) -> Result<Self> {
        let mut deployment = plan.deployment();
        bulk.deployments.strategy.default(&mut deployment);
        let mut set = plan.replica_set(&deployment);
        bulk.replica_sets.strategy.default(&mut set);
        let mut pod = plan.pod(&set);
        bulk.pods.strategy.default(&mut pod);
        let state = plan.settle(&mut pod, &bulk.world.interner)?;
        let text = json!({"metadata": pod["metadata"], "spec": pod["spec"], "status": pod["status"]}).to_string();
        Ok(Self { deployment, set, state, text })
    }
}

/// Replaces the `%placeholders%` in a text.
fn fill<'a>(text: &str, value: impl Fn(&str) -> &'a str) -> String {
    let mut filled = String::with_capacity(text.len() + 256);
    for (at, part) in text.split('%').enumerate() {
        filled.push_str(if at % 2 == 0 { part } else { value(part) });
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced() {
        let text = r#"{"a":"%name%","b":"x%uid%y"}"#;
        assert_eq!(fill(text, |hole| if hole == "name" { "n" } else { "u" }), r#"{"a":"n","b":"xuy"}"#);
    }
}
