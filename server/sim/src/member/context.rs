//! State that the components of a member share.

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
use super::pod_lifecycle::PodIps;
use super::recorder::Recorder;
use super::store::{Key, Store, StoreObject};
use crate::error::{Error, Result};

/// Field manager of all writes by the simulation.
pub const FIELD_MANAGER: &str = "crowsnest-sim";

/// Parameters of create requests.
pub fn create_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() }
}

/// A shared object of a kind.
pub type SharedObject<K> = Arc<Object<K>>;
/// The store of a kind.
pub type ObjectStore<K> = Arc<Store<Object<K>>>;

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

/// State that all components of a member share: client, stores, event recorder and settings.
pub struct MemberContext {
    pub name: Arc<str>,
    pub client: Client,
    pub features: Features,
    pub interner: Interner,
    pub recorder: Recorder,
    pub ips: PodIps,
    /// UIDs of Deployments and ReplicaSets whose dependents are being written in bulk.
    suspended: Mutex<HashSet<Arc<str>>>,
    /// Cancelled when the member stops.
    pub stop: CancellationToken,
    /// Cancelled once all stores are synchronized.
    synced: CancellationToken,
    pub tasks: Tasks,

    pub pods: Arc<Store<PodState>>,
    pub nodes: ObjectStore<Node>,
    pub namespaces: ObjectStore<Namespace>,
    pub deployments: ObjectStore<Deployment>,
    pub replica_sets: ObjectStore<ReplicaSet>,
    pub replication_controllers: ObjectStore<ReplicationController>,
    pub stateful_sets: ObjectStore<StatefulSet>,
    pub daemon_sets: ObjectStore<DaemonSet>,
    pub revisions: ObjectStore<ControllerRevision>,
    pub jobs: ObjectStore<Job>,
    pub cron_jobs: ObjectStore<CronJob>,
    pub services: ObjectStore<Service>,
    pub slices: ObjectStore<EndpointSlice>,
    pub claims: ObjectStore<PersistentVolumeClaim>,
    pub volumes: ObjectStore<PersistentVolume>,
    pub budgets: ObjectStore<PodDisruptionBudget>,
    pub autoscalers: ObjectStore<HorizontalPodAutoscaler>,
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

/// A namespaced kind whose objects can be read and written.
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

impl MemberContext {
    pub fn new(name: &str, client: Client, features: Features, recorder: Recorder) -> Self {
        let tasks = Tasks::default();
        Self {
            name: name.into(),
            client,
            features,
            interner: Interner::default(),
            recorder,
            ips: PodIps::default(),
            suspended: Mutex::default(),
            stop: tasks.stop_token().clone(),
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

    /// Starts the informers and waits until all lists are complete. All controllers must have registered their handlers
    /// before.
    pub async fn start_informers(self: &Arc<Self>, registry: &Arc<Registry>) -> Result<()> {
        let context = self.clone();
        self.start_informer(registry, &self.pods, move |pod: Pod| context.interner.intern_pod(pod))?;
        macro_rules! start_all {
            ($($store:ident),*) => { $( self.start_kind_informer(registry, &self.$store)?; )* };
        }
        each_store!(start_all);
        self.pods.wait_until_synced().await;
        macro_rules! wait_all {
            ($($store:ident),*) => { $( self.$store.wait_until_synced().await; )* };
        }
        each_store!(wait_all);
        self.synced.cancel();
        Ok(())
    }

    /// Runs the task of a controller once all stores are complete: with the workloads but not yet all pods, a
    /// controller would create pods a second time. The task must run until the member stops.
    pub fn spawn_when_synced(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (synced, stop) = (self.synced.clone(), self.stop.clone());
        self.tasks.spawn_until_stop(name, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = synced.cancelled() => task.await,
            }
        });
    }

    /// Drops all handlers of the stores, and with them the references of controllers. Must be called after all tasks
    /// have ended.
    pub fn close(&self) {
        self.pods.close();
        macro_rules! close_all {
            ($($store:ident),*) => { $( self.$store.close(); )* };
        }
        each_store!(close_all);
    }

    fn start_kind_informer<K>(&self, registry: &Arc<Registry>, store: &ObjectStore<K>) -> Result<()>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.start_informer(registry, store, |object: K| Object::from(object))
    }

    fn start_informer<K, T>(
        &self,
        registry: &Arc<Registry>,
        store: &Arc<Store<T>>,
        convert: impl Fn(K) -> T + Send + Sync + 'static,
    ) -> Result<()>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
        T: StoreObject,
    {
        let gvr = Gvr::new(&K::group(&()), &K::version(&()), &K::plural(&()));
        let resource = registry
            .resource(&gvr)
            .map_err(|error| Error::Cluster { cluster: self.name.to_string(), reason: error.to_string() })?;
        let informer = Informer { registry: registry.clone(), resource, store: store.clone(), convert };
        self.tasks.spawn_until_stop("informer", informer.run::<K>(self.stop.clone()));
        Ok(())
    }

    /// Suspends the reconciliation of an object while its dependents are written.
    pub fn suspend(&self, uid: &Arc<str>) {
        self.suspended.lock().insert(uid.clone());
    }

    /// Ends [`MemberContext::suspend`].
    pub fn resume(&self, uid: &str) {
        self.suspended.lock().remove(uid);
    }

    pub fn is_suspended(&self, uid: &str) -> bool {
        self.suspended.lock().contains(uid)
    }

    /// The API of a namespaced kind.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Adds the response to a write of a pod to the store.
    pub fn apply_pod(&self, pod: Pod) -> Arc<PodState> {
        self.pods.apply(self.interner.intern_pod(pod))
    }

    /// Merge-patches a pod's status and adds the response to the store.
    pub async fn patch_pod_status(&self, pod: &PodState, mut patch: Value) -> Result<Arc<PodState>> {
        patch["metadata"] = json!({"uid": &*pod.uid});
        let api: Api<Pod> = self.api(&pod.key.namespace);
        let outcome = api.patch_status(&pod.key.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await;
        match outcome {
            Ok(pod) => Ok(self.apply_pod(pod)),
            Err(error) => {
                let error = Error::api(format!("write status of pod {}", pod.key))(error);
                if error.is_not_found() {
                    self.pods.remove(&pod.key, &pod.uid);
                }
                Err(error)
            }
        }
    }

    /// Reads the conditions of a pod from the API server.
    pub async fn read_pod_conditions(&self, pod: &PodState) -> Result<Vec<Value>> {
        let api: Api<Pod> = self.api(&pod.key.namespace);
        let stored = api.get_opt(&pod.key.name).await.map_err(Error::api(format!("read pod {}", pod.key)))?;
        let stored = stored.filter(|stored| stored.metadata.uid.as_deref() == Some(&*pod.uid));
        let conditions = stored.and_then(|stored| stored.status?.conditions).unwrap_or_default();
        conditions
            .iter()
            .map(|condition| {
                serde_json::to_value(condition).map_err(|source| Error::Encode { object: "pod condition", source })
            })
            .collect()
    }

    /// Deletes a pod; `grace_seconds` 0 forces deletion. A missing pod is not an error.
    pub async fn delete_pod(&self, key: &Key, uid: &str, grace_seconds: Option<u32>) -> Result<()> {
        let api: Api<Pod> = self.api(&key.namespace);
        let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        let params = DeleteParams {
            grace_period_seconds: grace_seconds,
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match api.delete(&key.name, &params).await {
            Ok(response) => {
                let is_terminating = |pod: &Pod| {
                    let meta = &pod.metadata;
                    meta.deletion_timestamp.is_some()
                        && (meta.deletion_grace_period_seconds.is_some_and(|seconds| seconds > 0)
                            || meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty()))
                };
                match response.left().filter(is_terminating) {
                    Some(pod) => {
                        self.apply_pod(pod);
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

    /// Creates an object and adds the response to the store.
    pub async fn create<K>(&self, store: &Store<Object<K>>, object: &K) -> Result<SharedObject<K>>
    where
        K: NamespacedKind + Serialize,
    {
        let key = key_of(object.meta());
        let api: Api<K> = self.api(&key.namespace);
        let result = api.create(&create_params(), object).await;
        Ok(store.apply(result.map_err(Error::api(format!("create {} {key}", K::kind(&()))))?.into()))
    }

    /// Merge-patches an object or its `subresource`, and adds the response to the store.
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
        let params = PatchParams::apply(FIELD_MANAGER);
        let patched = match subresource {
            Some(name) => api.patch_subresource(name, &key.name, &params, &Patch::Merge(patch)).await,
            None => api.patch(&key.name, &params, &Patch::Merge(patch)).await,
        };
        Ok(store.apply(patched.map_err(Error::api(format!("patch {} {key}", K::kind(&()))))?.into()))
    }

    /// Replaces the complete status unless it is unchanged.
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
            |status: &S| serde_json::to_value(status).map_err(|source| Error::Encode { object: "status", source });
        let mut status = encode(new)?;
        if let Some(old) = old {
            null_absent_fields(&encode(old)?, &mut status);
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
            Ok(response) => {
                let is_terminating =
                    |object: &K| object.meta().deletion_timestamp.is_some() && object.meta().finalizers.is_some();
                match response.left().filter(is_terminating) {
                    Some(object) => {
                        store.apply(object.into());
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

    /// Nodes by name.
    pub fn nodes_by_name(&self) -> HashMap<Arc<str>, SharedObject<Node>> {
        self.nodes.all().into_iter().map(|node| (node.key().name, node)).collect()
    }
}

/// Completes `new` to a merge patch that replaces `old`: fields that `new` lacks are set to null, at any depth.
fn null_absent_fields(old: &Value, new: &mut Value) {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return };
    for (name, before) in old {
        match new.get_mut(name) {
            Some(after) => null_absent_fields(before, after),
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
    fn absent_fields_are_set_to_null(#[case] old: Value, #[case] new: Value, #[case] expected: Value) {
        let mut patch = new;
        null_absent_fields(&old, &mut patch);
        assert_eq!(patch, expected);
    }
}
