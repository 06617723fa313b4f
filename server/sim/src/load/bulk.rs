//! Writes synthetic workloads to a member's storage directly, which is faster than API requests: defaults are set,
//! admission does not run. The JSON of a pod is created once per workload as a template. Writes are committed in
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
use super::objects::{PADDING_VARIABLE_BYTES, WorkloadPlan, derive_uid};
use crate::error::{Error, Result};
use crate::member::context::MemberContext;
use crate::member::informer::Object;
use crate::member::pod::PodState;
use crate::member::pod_lifecycle::format_time;
use crate::member::store::{Key, Store};

/// A node on which pods of the load run.
#[derive(Debug, Clone)]
pub struct TargetNode {
    pub name: Arc<str>,
    /// Internal address of the node.
    pub host_ip: String,
    /// Range of pod addresses, such as `10.1.2.0/24`.
    pub pod_cidr: String,
}

/// A workload with the node of each pod.
pub struct PlacedWorkload {
    pub workload: Workload,
    /// Indexes of the nodes of [`BulkWriter`], one for each pod.
    pub node_indexes: Vec<usize>,
}

/// Writes the workloads of a load in bulk to a member's storage.
pub struct BulkWriter {
    context: Arc<MemberContext>,
    registry: Arc<Registry>,
    nodes: Vec<TargetNode>,
    /// Minimum size of a pod's JSON in bytes.
    min_pod_bytes: usize,
    now: Timestamp,
    namespaces: ResourceRef,
    deployments: ResourceRef,
    replica_sets: ResourceRef,
    pods: ResourceRef,
    events: ResourceRef,
}

/// Writes of some workloads, and the objects to add to the stores of the member afterwards.
#[derive(Default)]
struct Batch {
    writes: Vec<Write>,
    /// Objects by index of their write.
    objects: Vec<(usize, WrittenObject)>,
    /// UIDs of the objects that controllers ignore during the write.
    suspended_uids: Vec<Arc<str>>,
}

/// An object for the stores of the member. Its resourceVersion is known after the write.
enum WrittenObject {
    Deployment(Box<Value>),
    ReplicaSet(Box<Value>),
    Pod(Box<PodState>),
}

impl BulkWriter {
    pub fn new(
        context: Arc<MemberContext>,
        registry: Arc<Registry>,
        nodes: Vec<TargetNode>,
        min_pod_bytes: usize,
        now: Timestamp,
    ) -> Result<Self> {
        let find = |group: &str, version: &str, resource: &str| {
            registry
                .resource(&Gvr::new(group, version, resource))
                .map_err(|error| Error::Cluster { cluster: context.name.to_string(), reason: error.to_string() })
        };
        Ok(Self {
            namespaces: find("", "v1", "namespaces")?,
            deployments: find("apps", "v1", "deployments")?,
            replica_sets: find("apps", "v1", "replicasets")?,
            pods: find("", "v1", "pods")?,
            events: find("", "v1", "events")?,
            context,
            registry,
            nodes,
            min_pod_bytes,
            now,
        })
    }

    fn write_error(&self, object: &str, error: &crowsnest_registry::error::Error) -> Error {
        Error::Cluster {
            cluster: self.context.name.to_string(),
            reason: format!("cannot write synthetic {object}: {error}"),
        }
    }

    fn new_write(&self, resource: &ResourceRef, key: ObjectKey, body: Body) -> Write {
        Write { table: resource.table(), key, precondition: Precondition::Absent, body: Some(body) }
    }

    fn encode_write(&self, resource: &ResourceRef, object: &Value) -> Result<Write> {
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let key = ObjectKey::new(text("namespace"), text("name"));
        let body = Body::encode(object).map_err(|error| self.write_error(&resource.gvr.resource, &error))?;
        Ok(self.new_write(resource, key, body))
    }

    /// Creates missing namespaces.
    pub async fn create_namespaces(&self, names: &BTreeSet<String>) -> Result<()> {
        let mut batch = Batch::default();
        for name in names {
            if self.registry.store.get(&self.namespaces.table(), &ObjectKey::new("", name)).is_some() {
                continue;
            }
            let team = name.split('-').next().unwrap_or_default();
            let mut namespace = json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "uid": derive_uid(&[&self.context.name, "namespace", name]),
                    "creationTimestamp": format_time(self.now), "labels": {"kubernetes.io/metadata.name": name, "team": team}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            });
            self.namespaces.strategy.default(&mut namespace);
            batch.writes.push(self.encode_write(&self.namespaces, &namespace)?);
        }
        self.commit(batch).await
    }

    /// Writes Deployments with their ReplicaSets and pods.
    pub async fn write_workloads(&self, workloads: Vec<PlacedWorkload>) -> Result<()> {
        let mut batch = Batch::default();
        for placed in workloads {
            self.add_to_batch(&placed, &mut batch)?;
            tokio::task::yield_now().await;
        }
        self.commit(batch).await
    }

    fn add_to_batch(&self, placed: &PlacedWorkload, batch: &mut Batch) -> Result<()> {
        let mut plan = WorkloadPlan::new(&self.context.name, &placed.workload, self.now);
        let mut objects = WorkloadObjects::new(self, &plan)?;
        let missing_bytes = self.min_pod_bytes.saturating_sub(objects.pod_template.len());
        if missing_bytes > 0 {
            plan.padding_variables = missing_bytes.div_ceil(PADDING_VARIABLE_BYTES);
            objects = WorkloadObjects::new(self, &plan)?;
        }
        batch.suspended_uids.extend([plan.deployment_uid.as_str(), plan.replica_set_uid.as_str()].map(Arc::from));
        batch.push(
            self.encode_write(&self.deployments, &objects.deployment)?,
            WrittenObject::Deployment(Box::new(objects.deployment)),
        );
        batch.push(
            self.encode_write(&self.replica_sets, &objects.replica_set)?,
            WrittenObject::ReplicaSet(Box::new(objects.replica_set)),
        );
        let namespace = &objects.pod_state.key.namespace;
        for (number, node) in placed.node_indexes.iter().map(|index| &self.nodes[*index]).enumerate() {
            let (name, uid) = plan.pod_ids(number);
            let ip = self.context.ips.allocate(&uid, &node.pod_cidr);
            let container_id = plan.container_id(&uid);
            let ip_text = ip.as_deref().unwrap_or_default();
            let text = fill_placeholders(&objects.pod_template, |placeholder| match placeholder {
                "name" => &name,
                "uid" => &uid,
                "node" => &node.name,
                "host" => &node.host_ip,
                "ip" => ip_text,
                _ => &container_id,
            });
            let body =
                Body::from_text(text.as_bytes(), "v1", "Pod").map_err(|error| self.write_error("pods", &error))?;
            let state = PodState {
                key: Key { namespace: namespace.clone(), name: name.as_str().into() },
                uid: uid.as_str().into(),
                node: Some(node.name.clone()),
                ip: objects.pod_state.ip.as_ref().and(ip),
                ..objects.pod_state.clone()
            };
            batch.push(
                self.new_write(&self.pods, ObjectKey::new(namespace, &name), body),
                WrittenObject::Pod(Box::new(state)),
            );
            if let Some(mut event) = plan.event(&name, &uid, &node.name, number, self.now) {
                self.events.strategy.default(&mut event);
                batch.writes.push(self.encode_write(&self.events, &event)?);
            }
        }
        Ok(())
    }

    /// Commits a batch and adds its objects to the stores of the member. Controllers ignore the objects until then.
    async fn commit(&self, batch: Batch) -> Result<()> {
        let Batch { writes, objects, suspended_uids } = batch;
        let names: Vec<String> = writes.iter().map(|write| write.key.to_string()).collect();
        let pods: Vec<Key> = objects.iter().filter_map(|(_, object)| object.pod_key()).collect();
        suspended_uids.iter().for_each(|uid| self.context.suspend(uid));
        self.context.pods.expect_keys(pods.iter().cloned());
        let outcomes = self.registry.store.write_all(writes).await;
        let result = outcomes.map_err(|error| self.write_error("workloads", &error)).and_then(|outcomes| {
            for (index, object) in objects {
                if let Some(Ok(revision)) = outcomes.get(index) {
                    self.apply_to_stores(object, *revision)?;
                }
            }
            // Objects of an earlier load are kept.
            let is_failure = |outcome: &Result<Revision, _>| {
                matches!(outcome, Err(error) if !matches!(error, crowsnest_registry::error::Error::AlreadyExists))
            };
            match outcomes.into_iter().zip(&names).find(|(outcome, _)| is_failure(outcome)) {
                Some((Err(error), name)) => Err(self.write_error(name, &error)),
                _ => Ok(()),
            }
        });
        self.context.pods.stop_expecting(&pods);
        suspended_uids.iter().for_each(|uid| self.context.resume(uid));
        result
    }

    fn apply_to_stores(&self, object: WrittenObject, revision: Revision) -> Result<()> {
        match object {
            WrittenObject::Deployment(object) => {
                apply_to_store::<Deployment>(&self.context.deployments, *object, revision)
            }
            WrittenObject::ReplicaSet(object) => {
                apply_to_store::<ReplicaSet>(&self.context.replica_sets, *object, revision)
            }
            WrittenObject::Pod(state) => {
                self.context.pods.apply(PodState { version: revision, ..*state });
                Ok(())
            }
        }
    }
}

impl Batch {
    fn push(&mut self, write: Write, object: WrittenObject) {
        self.objects.push((self.writes.len(), object));
        self.writes.push(write);
    }
}

impl WrittenObject {
    fn pod_key(&self) -> Option<Key> {
        match self {
            Self::Pod(state) => Some(state.key.clone()),
            _ => None,
        }
    }
}

/// Adds a written object to a store.
fn apply_to_store<K>(store: &Store<Object<K>>, mut object: Value, revision: Revision) -> Result<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    object["metadata"]["resourceVersion"] = json!(revision.to_string());
    let typed: K =
        serde_json::from_value(object).map_err(|source| Error::Encode { object: "synthetic workload", source })?;
    store.apply(typed.into());
    Ok(())
}

/// The objects of a workload, with a template for its pods.
struct WorkloadObjects {
    deployment: Value,
    replica_set: Value,
    pod_state: PodState,
    /// JSON of a pod with placeholders.
    pod_template: String,
}

impl WorkloadObjects {
    fn new(writer: &BulkWriter, plan: &WorkloadPlan<'_>) -> Result<Self> {
        let mut deployment = plan.deployment();
        writer.deployments.strategy.default(&mut deployment);
        let mut replica_set = plan.replica_set(&deployment);
        writer.replica_sets.strategy.default(&mut replica_set);
        let mut pod = plan.pod(&replica_set);
        writer.pods.strategy.default(&mut pod);
        let pod_state = plan.set_status(&mut pod, &writer.context.interner)?;
        let pod_template =
            json!({"metadata": pod["metadata"], "spec": pod["spec"], "status": pod["status"]}).to_string();
        Ok(Self { deployment, replica_set, pod_state, pod_template })
    }
}

/// Replaces the `%placeholders%` in a text.
fn fill_placeholders<'a>(text: &str, value: impl Fn(&str) -> &'a str) -> String {
    let mut filled = String::with_capacity(text.len() + 256);
    for (index, part) in text.split('%').enumerate() {
        filled.push_str(if index % 2 == 0 { part } else { value(part) });
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced() {
        let text = r#"{"a":"%name%","b":"x%uid%y"}"#;
        assert_eq!(
            fill_placeholders(text, |placeholder| if placeholder == "name" { "n" } else { "u" }),
            r#"{"a":"n","b":"xuy"}"#
        );
    }
}
