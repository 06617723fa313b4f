//! Shared state of a member's components: client, stores, event recorder and settings.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_registry::Registry;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::informer::{Informer, Object, key_of};
use super::interner::Interner;
use super::pod::PodState;
use super::podlife::PodIps;
use super::recorder::Recorder;
use super::store::{Key, Store, Stored};
use crate::error::{Error, Result};

/// Field manager of all writes by the simulation.
pub const MANAGER: &str = "crowsnest-sim";

/// Parameters for creates.
pub fn creation() -> PostParams {
    PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() }
}

/// A shared object of a kind.
pub type SharedObject<K> = Arc<Object<K>>;
/// The store of a kind.
pub type Objects<K> = Arc<Store<Object<K>>>;

/// Optional features of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// metrics.k8s.io and custom.metrics.k8s.io are served, and autoscalers have metrics.
    pub metrics: bool,
    /// A default storage class exists, and volumes are provisioned for claims.
    pub storage: bool,
    /// Services of type LoadBalancer get an address.
    pub load_balancer: bool,
}

/// Shared components of a member.
pub struct World {
    pub name: Arc<str>,
    pub client: Client,
    pub features: Features,
    pub interner: Interner,
    pub recorder: Recorder,
    pub ips: PodIps,
    /// UIDs of ReplicaSets whose pods are being written in bulk.
    held: Mutex<HashSet<Arc<str>>>,
    /// Cancelled when the member stops.
    pub stop: CancellationToken,
    /// Cancelled once all stores are synchronized.
    synced: CancellationToken,
    pub tasks: Tasks,

    pub pods: Arc<Store<PodState>>,
    pub nodes: Objects<Node>,
    pub namespaces: Objects<Namespace>,
    pub deployments: Objects<Deployment>,
    pub replica_sets: Objects<ReplicaSet>,
    pub replication_controllers: Objects<ReplicationController>,
    pub stateful_sets: Objects<StatefulSet>,
    pub daemon_sets: Objects<DaemonSet>,
    pub revisions: Objects<ControllerRevision>,
    pub jobs: Objects<Job>,
    pub cron_jobs: Objects<CronJob>,
    pub services: Objects<Service>,
    pub slices: Objects<EndpointSlice>,
    pub claims: Objects<PersistentVolumeClaim>,
    pub volumes: Objects<PersistentVolume>,
    pub budgets: Objects<PodDisruptionBudget>,
    pub autoscalers: Objects<HorizontalPodAutoscaler>,
}

/// Calls the macro with the stores of all kinds except pods, which have a compact form.
macro_rules! each_store {
    ($with:ident) => {
        $with!(
            nodes,
            namespaces,
            deployments,
            replica_sets,
            replication_controllers,
            stateful_sets,
            daemon_sets,
            revisions,
            jobs,
            cron_jobs,
            services,
            slices,
            claims,
            volumes,
            budgets,
            autoscalers
        )
    };
}

/// A namespaced kind whose objects are read and written.
pub trait NamespacedKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> NamespacedKind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static
{
}

impl World {
    pub fn new(name: &str, client: Client, features: Features, recorder: Recorder) -> Self {
        let tasks = Tasks::default();
        Self {
            name: name.into(),
            client,
            features,
            interner: Interner::default(),
            recorder,
            ips: PodIps::default(),
            held: Mutex::default(),
            stop: tasks.stopping().clone(),
            synced: CancellationToken::new(),
            tasks,
            pods: Arc::default(),
            nodes: Arc::default(),
            namespaces: Arc::default(),
            deployments: Arc::default(),
            replica_sets: Arc::default(),
            replication_controllers: Arc::default(),
            stateful_sets: Arc::default(),
            daemon_sets: Arc::default(),
            revisions: Arc::default(),
            jobs: Arc::default(),
            cron_jobs: Arc::default(),
            services: Arc::default(),
            slices: Arc::default(),
            claims: Arc::default(),
            volumes: Arc::default(),
            budgets: Arc::default(),
            autoscalers: Arc::default(),
        }
    }

    /// Starts the informers after all controllers have registered their handlers, and waits until all lists are
    /// complete.
    pub async fn watch(self: &Arc<Self>, registry: &Arc<Registry>) -> Result<()> {
        let world = self.clone();
        self.follow(registry, &self.pods, move |pod: Pod| world.interner.pod(pod))?;
        macro_rules! watch_all {
            ($($store:ident),*) => { $( self.follow_kind(registry, &self.$store)?; )* };
        }
        each_store!(watch_all);
        self.pods.synced().await;
        macro_rules! wait_all {
            ($($store:ident),*) => { $( self.$store.synced().await; )* };
        }
        each_store!(wait_all);
        self.synced.cancel();
        Ok(())
    }

    /// Runs the task of a controller once every store is complete: a controller that has the workloads but not yet their pods would create
    /// pods again. The task must run until the member stops.
    pub fn work(&self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (synced, stop) = (self.synced.clone(), self.stop.clone());
        self.tasks.keep(what, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = synced.cancelled() => task.await,
            }
        });
    }

    /// Drops the references of controllers after their tasks have ended.
    pub fn close(&self) {
        self.pods.close();
        macro_rules! close_all {
            ($($store:ident),*) => { $( self.$store.close(); )* };
        }
        each_store!(close_all);
    }

    fn follow_kind<K>(&self, registry: &Arc<Registry>, store: &Objects<K>) -> Result<()>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.follow(registry, store, |object: K| Object::from(object))
    }

    fn follow<K, T>(
        &self,
        registry: &Arc<Registry>,
        store: &Arc<Store<T>>,
        keep: impl Fn(K) -> T + Send + Sync + 'static,
    ) -> Result<()>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
        T: Stored,
    {
        let gvr = Gvr::new(&K::group(&()), &K::version(&()), &K::plural(&()));
        let resource = registry
            .resource(&gvr)
            .map_err(|error| Error::Start { cluster: self.name.to_string(), reason: error.to_string() })?;
        let informer = Informer { registry: registry.clone(), resource, store: store.clone(), keep };
        self.tasks.keep("informer", informer.run::<K>(self.stop.clone()));
        Ok(())
    }

    /// Keeps controllers from processing an object while its dependents are written.
    pub fn hold(&self, uid: &Arc<str>) {
        self.held.lock().insert(uid.clone());
    }

    pub fn release(&self, uid: &str) {
        self.held.lock().remove(uid);
    }

    pub fn is_held(&self, uid: &str) -> bool {
        self.held.lock().contains(uid)
    }

    /// The API of a namespaced kind.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Stores the response to a write of a pod.
    pub fn saw_pod(&self, pod: Pod) -> Arc<PodState> {
        self.pods.apply(self.interner.pod(pod))
    }

    /// Writes a pod's status.
    pub async fn patch_pod_status(&self, pod: &PodState, mut patch: Value) -> Result<Arc<PodState>> {
        patch["metadata"] = json!({"uid": &*pod.uid});
        let api: Api<Pod> = self.api(&pod.key.namespace);
        let outcome = api.patch_status(&pod.key.name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await;
        match outcome {
            Ok(pod) => Ok(self.saw_pod(pod)),
            Err(error) => {
                let error = Error::api(format!("write status of pod {}", pod.key))(error);
                if error.is_not_found() {
                    self.pods.remove(&pod.key, &pod.uid);
                }
                Err(error)
            }
        }
    }

    /// The conditions of a pod in the API server.
    pub async fn conditions(&self, pod: &PodState) -> Result<Vec<Value>> {
        let api: Api<Pod> = self.api(&pod.key.namespace);
        let stored = api.get_opt(&pod.key.name).await.map_err(Error::api(format!("read pod {}", pod.key)))?;
        let stored = stored.filter(|stored| stored.metadata.uid.as_deref() == Some(&*pod.uid));
        let conditions = stored.and_then(|stored| stored.status?.conditions).unwrap_or_default();
        conditions
            .iter()
            .map(|condition| {
                serde_json::to_value(condition).map_err(|source| Error::Encode { what: "pod condition", source })
            })
            .collect()
    }

    /// Deletes a pod; `grace` 0 forces deletion. A missing pod is not an error.
    pub async fn delete_pod(&self, key: &Key, uid: &str, grace: Option<u32>) -> Result<()> {
        let api: Api<Pod> = self.api(&key.namespace);
        let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        let params =
            DeleteParams { grace_period_seconds: grace, preconditions: Some(preconditions), ..DeleteParams::default() };
        match api.delete(&key.name, &params).await {
            Ok(answer) => {
                let stays = |pod: &Pod| {
                    let meta = &pod.metadata;
                    meta.deletion_timestamp.is_some()
                        && (meta.deletion_grace_period_seconds.is_some_and(|left| left > 0)
                            || meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty()))
                };
                match answer.left().filter(stays) {
                    Some(pod) => {
                        self.saw_pod(pod);
                    }
                    None => self.pods.remove(key, uid),
                }
                Ok(())
            }
            Err(error) => {
                let error = Error::api(format!("delete pod {key}"))(error);
                if error.is_not_found() || error.is_conflict() {
                    self.pods.remove(key, uid);
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    /// Creates an object and stores the response.
    pub async fn create<K>(&self, store: &Store<Object<K>>, object: &K) -> Result<SharedObject<K>>
    where
        K: NamespacedKind + Serialize,
    {
        let key = key_of(object.meta());
        let api: Api<K> = self.api(&key.namespace);
        let created = api.create(&creation(), object).await;
        Ok(store.apply(created.map_err(Error::api(format!("create {} {key}", K::kind(&()))))?.into()))
    }

    /// Merge-patches an object (or its `subresource`) and stores the response.
    pub async fn patch<K>(
        &self,
        store: &Store<Object<K>>,
        key: &Key,
        subresource: Option<&str>,
        patch: &Value,
    ) -> Result<SharedObject<K>>
    where
        K: NamespacedKind,
    {
        let api: Api<K> = self.api(&key.namespace);
        let params = PatchParams::apply(MANAGER);
        let patched = match subresource {
            Some(name) => api.patch_subresource(name, &key.name, &params, &Patch::Merge(patch)).await,
            None => api.patch(&key.name, &params, &Patch::Merge(patch)).await,
        };
        Ok(store.apply(patched.map_err(Error::api(format!("patch {} {key}", K::kind(&()))))?.into()))
    }

    /// Replaces the complete status unless it is unchanged. A status computed from an outdated object is rejected
    /// and computed again.
    pub async fn set_status<K, S>(
        &self,
        store: &Store<Object<K>>,
        object: &Object<K>,
        old: Option<&S>,
        new: &S,
    ) -> Result<()>
    where
        K: NamespacedKind,
        S: Serialize + PartialEq,
    {
        if old == Some(new) {
            return Ok(());
        }
        let encode =
            |status: &S| serde_json::to_value(status).map_err(|source| Error::Encode { what: "status", source });
        let mut status = encode(new)?;
        if let Some(old) = old {
            remove_absent(&encode(old)?, &mut status);
        }
        let key = object.key();
        let patch = json!({"metadata": {"uid": object.uid()}, "status": status});
        self.patch(store, &key, Some("status"), &patch).await?;
        Ok(())
    }

    /// Deletes an object with background propagation. A missing object is not an error.
    pub async fn delete<K>(&self, store: &Store<Object<K>>, object: &Object<K>) -> Result<()>
    where
        K: NamespacedKind,
    {
        let key = object.key();
        let api: Api<K> = self.api(&key.namespace);
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions { uid: Some(object.uid().to_owned()), ..Preconditions::default() }),
            ..DeleteParams::default()
        };
        match api.delete(&key.name, &params).await {
            Ok(answer) => {
                let stays = |left: &K| left.meta().deletion_timestamp.is_some() && left.meta().finalizers.is_some();
                match answer.left().filter(stays) {
                    Some(left) => {
                        store.apply(left.into());
                    }
                    None => store.remove(&key, object.uid()),
                }
            }
            Err(error) => {
                let error = Error::api(format!("delete {} {key}", K::kind(&())))(error);
                if !error.is_not_found() && !error.is_conflict() {
                    return Err(error);
                }
                store.remove(&key, object.uid());
            }
        }
        Ok(())
    }

    /// Nodes by name, for their topology labels.
    pub fn node_labels(&self) -> HashMap<Arc<str>, SharedObject<Node>> {
        self.nodes.all().into_iter().map(|node| (node.key().name, node)).collect()
    }
}

/// Completes a merge patch from `old` to `new`: fields that `new` lacks are set to null, at any depth.
fn remove_absent(old: &Value, new: &mut Value) {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return };
    for (name, before) in old {
        match new.get_mut(name) {
            Some(after) => remove_absent(before, after),
            None => {
                new.insert(name.clone(), Value::Null);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(json!({"a": 1, "b": 2}), json!({"a": 3}), json!({"a": 3, "b": null}))]
    #[case(json!({"m": {"x": 1, "y": 2}}), json!({"m": {"y": 2}}), json!({"m": {"x": null, "y": 2}}))]
    #[case(json!({"l": [1, 2]}), json!({"l": [1]}), json!({"l": [1]}))]
    fn patches_remove_absent_fields(#[case] old: Value, #[case] new: Value, #[case] expected: Value) {
        let mut patch = new;
        remove_absent(&old, &mut patch);
        assert_eq!(patch, expected);
    }
}
