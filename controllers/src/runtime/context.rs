//! Context that all controllers share: the client of the control plane, the members, the cache, discovery, events and
//! the configuration.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::{Scope, apps, autoscaling, cluster, config, networking, policy, remedy, work};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::unstructured;
use crowsnest_members::{Fleet, MemberRoute};
use futures::{Stream, TryStreamExt};
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::hash_suffixed_bindings::HashSuffixedBindings;
use crate::cache::placements::Placements;
use crate::cache::typed::TypedCache;
use crate::cache::{Cache, CachedObject, Header};
use crate::journal::Journal;
use crate::metrics::ControllerMetrics;
use crate::runtime::config::Config;
use crate::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crate::runtime::event_recorder::EventRecorder;
use crate::runtime::keyed_mutex::KeyedMutex;
use crate::runtime::rest_mapper::RestMapper;
use crate::runtime::write_priority::WriteLoad;
use crowsnest_interpreter::Interpreter;
use crowsnest_interpreter::customized::webhook;
use crowsnest_plan::health::Moment;

/// Kinds that the controllers refer to directly, as opposed to those found by discovery.
pub struct WellKnownKinds {
    pub cluster: Resource,
    pub work: Resource,
    pub resource_binding: Resource,
    pub cluster_resource_binding: Resource,
    pub propagation_policy: Resource,
    pub cluster_propagation_policy: Resource,
    pub override_policy: Resource,
    pub cluster_override_policy: Resource,
    pub interpreter_customization: Resource,
    pub interpreter_webhook: Resource,
    pub workload_rebalancer: Resource,
    pub federated_resource_quota: Resource,
    pub cluster_taint_policy: Resource,
    pub remedy: Resource,
    pub federated_hpa: Resource,
    pub cron_federated_hpa: Resource,
    pub deployment: Resource,
    pub service: Resource,
    pub endpoint_slice: Resource,
    pub service_import: Resource,
    pub multi_cluster_service: Resource,
    pub multi_cluster_ingress: Resource,
    pub namespace: Resource,
    pub node: Resource,
    pub pod: Resource,
    pub resource_quota: Resource,
    /// Read from the API server, since Leases are not cached.
    pub lease: Resource,
    pub priority_class: Resource,
    pub cluster_role: Resource,
    pub cluster_role_binding: Resource,
    pub role: Resource,
    pub role_binding: Resource,
    pub subject_access_review: Resource,
    pub certificate_signing_request: Resource,
}

impl WellKnownKinds {
    fn new() -> Self {
        let rbac = |resource, kind, namespaced| {
            Resource::builtin("rbac.authorization.k8s.io", "v1", resource, kind, namespaced)
        };
        WellKnownKinds {
            cluster: Resource::of::<cluster::Cluster>(),
            work: Resource::of::<work::Work>(),
            resource_binding: Resource::of::<work::ResourceBinding>(),
            cluster_resource_binding: Resource::of::<work::ClusterResourceBinding>(),
            propagation_policy: Resource::of::<policy::PropagationPolicy>(),
            cluster_propagation_policy: Resource::of::<policy::ClusterPropagationPolicy>(),
            override_policy: Resource::of::<policy::OverridePolicy>(),
            cluster_override_policy: Resource::of::<policy::ClusterOverridePolicy>(),
            interpreter_customization: Resource::of::<config::ResourceInterpreterCustomization>(),
            interpreter_webhook: Resource::of::<config::ResourceInterpreterWebhookConfiguration>(),
            workload_rebalancer: Resource::of::<apps::WorkloadRebalancer>(),
            federated_resource_quota: Resource::of::<policy::FederatedResourceQuota>(),
            cluster_taint_policy: Resource::of::<policy::ClusterTaintPolicy>(),
            remedy: Resource::of::<remedy::Remedy>(),
            federated_hpa: Resource::of::<autoscaling::FederatedHPA>(),
            cron_federated_hpa: Resource::of::<autoscaling::CronFederatedHPA>(),
            deployment: Resource::builtin("apps", "v1", "deployments", "Deployment", true),
            service: Resource::builtin("", "v1", "services", "Service", true),
            endpoint_slice: Resource::builtin("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true),
            multi_cluster_service: Resource::of::<networking::MultiClusterService>(),
            multi_cluster_ingress: Resource::of::<networking::MultiClusterIngress>(),
            service_import: Resource::builtin(
                "multicluster.x-k8s.io",
                "v1alpha1",
                "serviceimports",
                "ServiceImport",
                true,
            ),
            namespace: Resource::builtin("", "v1", "namespaces", "Namespace", false),
            node: Resource::builtin("", "v1", "nodes", "Node", false),
            pod: Resource::builtin("", "v1", "pods", "Pod", true),
            resource_quota: Resource::builtin("", "v1", "resourcequotas", "ResourceQuota", true),
            lease: Resource::builtin("coordination.k8s.io", "v1", "leases", "Lease", true),
            priority_class: Resource::builtin("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false),
            cluster_role: rbac("clusterroles", "ClusterRole", false),
            cluster_role_binding: rbac("clusterrolebindings", "ClusterRoleBinding", false),
            role: rbac("roles", "Role", true),
            role_binding: rbac("rolebindings", "RoleBinding", true),
            subject_access_review: Resource::builtin(
                "authorization.k8s.io",
                "v1",
                "subjectaccessreviews",
                "SubjectAccessReview",
                false,
            ),
            certificate_signing_request: Resource::builtin(
                "certificates.k8s.io",
                "v1",
                "certificatesigningrequests",
                "CertificateSigningRequest",
                false,
            ),
        }
    }

    /// Returns true for ResourceBinding and ClusterResourceBinding.
    pub fn is_binding(&self, resource: &Resource) -> bool {
        [&self.resource_binding, &self.cluster_resource_binding].contains(&resource)
    }

    /// Returns true for PropagationPolicy and ClusterPropagationPolicy.
    pub fn is_policy(&self, resource: &Resource) -> bool {
        [&self.propagation_policy, &self.cluster_propagation_policy].contains(&resource)
    }

    /// Bindings of namespaced and of cluster-scoped templates.
    pub fn bindings(&self) -> [&Resource; 2] {
        [&self.resource_binding, &self.cluster_resource_binding]
    }

    /// Namespaced and cluster-scoped propagation policies.
    pub fn policies(&self) -> [&Resource; 2] {
        [&self.propagation_policy, &self.cluster_propagation_policy]
    }

    /// The binding resource of a scope.
    pub fn binding(&self, scope: Scope) -> &Resource {
        match scope {
            Scope::Namespaced => &self.resource_binding,
            Scope::Cluster => &self.cluster_resource_binding,
        }
    }
}

/// Dependencies and state that all controllers share.
pub struct Context {
    pub control_plane: ClusterName,
    pub objects: DynamicClient,
    pub fleet: Fleet,
    pub cache: Cache,
    pub rest_mapper: RestMapper,
    pub events: EventRecorder,
    pub journal: Journal,
    pub interpreter: Interpreter,
    pub kinds: WellKnownKinds,
    pub config: Config,
    pub metrics: ControllerMetrics,
    /// Recorded placements of bindings.
    pub placements: Placements,
    /// Bindings whose name has a hash suffix, because another object's binding has their default name.
    pub hash_suffixed_bindings: HashSuffixedBindings,
    /// Serializes writes of bindings by namespace.
    pub(crate) quota_locks: KeyedMutex,
    clusters: TypedCache<cluster::Cluster>,
    bindings: TypedCache<work::ResourceBinding>,
}

/// The control plane's Services, read from the cache, for webhooks with a Service reference.
struct Services {
    cache: Cache,
    services: Resource,
}

#[async_trait]
impl webhook::Services for Services {
    async fn find(&self, namespace: &str, name: &str) -> Result<Option<Value>, webhook::LookupError> {
        let found = self.cache.get(&ClusterName::control_plane(), &self.services.gvr, namespace, name).await?;
        Ok(found.map(|service| service.view().clone()))
    }
}

/// Maximum numbers of decoded clusters and bindings in memory. Bindings are decoded by several controllers when they
/// change, so only recently changed ones are kept.
const MAX_DECODED_CLUSTERS: usize = 2048;
const MAX_DECODED_BINDINGS: usize = 1024;

/// Decodes an untyped object.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    T::deserialize(value).map_err(|source| Error::Decode {
        object: format!(
            "{} {}/{}",
            unstructured::kind(value),
            unstructured::namespace(value),
            unstructured::name(value)
        ),
        source,
    })
}

/// Creates a random UUID for a permanent id.
pub fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl Context {
    pub fn new(fleet: Fleet, cache: Cache, events: EventRecorder, journal: Journal, config: Config) -> Arc<Self> {
        let kinds = WellKnownKinds::new();
        let services = Services { cache: cache.clone(), services: kinds.service.clone() };
        Arc::new(Context {
            control_plane: ClusterName::control_plane(),
            objects: DynamicClient::with_fence(fleet.control_plane(), config.fence.clone()),
            rest_mapper: RestMapper::new(fleet.clone()),
            metrics: ControllerMetrics::new(fleet.clone()),
            fleet,
            cache,
            events,
            journal,
            interpreter: Interpreter::new(config.gates).with_services(Arc::new(services)),
            kinds,
            config,
            placements: Placements::default(),
            hash_suffixed_bindings: HashSuffixedBindings::default(),
            quota_locks: KeyedMutex::default(),
            clusters: TypedCache::new(MAX_DECODED_CLUSTERS),
            bindings: TypedCache::new(MAX_DECODED_BINDINGS),
        })
    }

    /// Client of a member that rejects writes once the fence has ended. Requests time out, so that a member that does
    /// not respond does not occupy workers forever.
    pub fn member_client(&self, cluster: &ClusterName, response_timeout: Duration) -> Result<DynamicClient, Error> {
        let (client, fence) = (self.fleet.client(cluster)?, self.config.fence.clone());
        Ok(DynamicClient::with_fence(client, fence).with_response_timeout(response_timeout))
    }

    /// An object of the control plane with its Secret values: from the cache, or from the API server if the cache has
    /// redacted them.
    pub async fn get_full(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, Error> {
        let Some(cached) = self.get_redacted(resource, namespace, name).await? else { return Ok(None) };
        self.complete(resource, &cached).await
    }

    /// The complete binding, unless it is absent or being deleted.
    pub async fn active_binding(&self, key: &BindingKey) -> Result<Option<Arc<Value>>, Error> {
        let binding = self.get_full(self.kinds.binding(key.scope()), &key.namespace, &key.name).await?;
        Ok(binding.filter(|binding| !unstructured::is_terminating(binding)))
    }

    /// An object of the control plane from the cache, without secret values.
    pub async fn get_redacted(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<CachedObject>, Error> {
        self.cache.get(&self.control_plane, &resource.gvr, namespace, name).await
    }

    /// A cached object with its Secret values. It is read from the API server if the cache has redacted them. `None` if
    /// it was deleted in the meantime.
    pub async fn complete(&self, resource: &Resource, cached: &CachedObject) -> Result<Option<Arc<Value>>, Error> {
        if let Some(full) = cached.full() {
            return Ok(Some(full));
        }
        let target = Target::new(resource, unstructured::namespace(cached.view()), unstructured::name(cached.view()));
        Ok(self.objects.get(target).await?.map(Arc::new))
    }

    /// All objects of a small collection, by namespace and name.
    pub async fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Vec<CachedObject>, Error> {
        self.cache.list(&self.control_plane, &resource.gvr, namespace).await
    }

    /// All objects of a large collection, read in batches, in no particular order.
    pub fn stream(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> impl Stream<Item = Result<CachedObject, Error>> + Send + 'static {
        self.cache.stream(&self.control_plane, &resource.gvr, namespace)
    }

    /// The values that a function returns for objects of a large collection, read in batches, in no particular order.
    pub async fn filter_map<T: Send>(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        mut value_of: impl FnMut(&Value) -> Option<T> + Send,
    ) -> Result<Vec<T>, Error> {
        let mut objects = pin!(self.stream(resource, namespace));
        let mut values = Vec::new();
        while let Some(object) = objects.try_next().await? {
            values.extend(value_of(object.view()));
        }
        Ok(values)
    }

    /// Namespace and name of every object in a collection.
    pub async fn keys(&self, resource: &Resource) -> Result<Vec<NamespacedName>, Error> {
        self.cache.keys(&self.control_plane, &resource.gvr).await
    }

    /// Names of all objects of a cluster-scoped collection.
    pub async fn names(&self, resource: &Resource) -> Result<Vec<String>, Error> {
        Ok(self.keys(resource).await?.into_iter().map(|key| key.name).collect())
    }

    /// Keys of all bindings of both scopes.
    pub async fn binding_keys(&self) -> Result<Vec<BindingKey>, Error> {
        let mut keys = self.keys(&self.kinds.resource_binding).await?;
        keys.append(&mut self.keys(&self.kinds.cluster_resource_binding).await?);
        Ok(keys.into_iter().map(BindingKey::from).collect())
    }

    /// Objects that have a label, one of [`crate::cache::indexed_labels`], with any value.
    pub async fn list_by_label(&self, resource: &Resource, label: &str) -> Result<Vec<CachedObject>, Error> {
        self.cache.list_by_label(&self.control_plane, &resource.gvr, label, None).await
    }

    /// Headers of the objects of a namespace.
    pub async fn headers(&self, resource: &Resource, namespace: &str) -> Result<Vec<Header>, Error> {
        self.cache.headers(&self.control_plane, &resource.gvr, Some(namespace)).await
    }

    /// Objects that have a label, one of [`crate::cache::indexed_labels`], with this value.
    pub async fn list_with_label(
        &self,
        resource: &Resource,
        label: &str,
        value: &str,
    ) -> Result<Vec<CachedObject>, Error> {
        self.cache.list_by_label(&self.control_plane, &resource.gvr, label, Some(value)).await
    }

    /// Objects with this permanent id in a label.
    pub async fn list_with_id(&self, resource: &Resource, label: &str, id: &str) -> Result<Vec<CachedObject>, Error> {
        if id.is_empty() { Ok(Vec::new()) } else { self.list_with_label(resource, label, id).await }
    }

    /// Headers of the objects with this permanent id in a label.
    pub async fn headers_with_id(&self, resource: &Resource, label: &str, id: &str) -> Result<Vec<Header>, Error> {
        match id {
            "" => Ok(Vec::new()),
            id => self.cache.headers_by_label(&self.control_plane, &resource.gvr, label, Some(id)).await,
        }
    }

    /// Current time of both clocks.
    pub fn moment(&self) -> Moment {
        self.config.clock.now()
    }

    /// Current wall-clock time in whole seconds.
    pub fn now(&self) -> Timestamp {
        self.moment().wall
    }

    /// Returns true if Karmada's agent applies the Works of a cluster. The execution controller then skips the cluster.
    pub async fn is_applied_by_agent(&self, cluster: &ClusterName) -> Result<bool, Error> {
        let cluster = self.cluster(cluster.as_str()).await?;
        Ok(cluster.is_some_and(|cluster| MemberRoute::from_cluster(&cluster) == MemberRoute::AgentIfConnected))
    }

    /// Names of all registered clusters.
    pub async fn cluster_names(&self) -> Result<Vec<ClusterName>, Error> {
        let keys = self.keys(&self.kinds.cluster).await?;
        Ok(keys.iter().filter_map(|key| ClusterName::parse(&key.name).ok()).collect())
    }

    /// Names of the registered clusters that are not being deleted.
    pub async fn active_cluster_names(&self) -> Result<Vec<ClusterName>, Error> {
        let headers = self.cache.headers(&self.control_plane, &self.kinds.cluster.gvr, None).await?;
        let active = headers.iter().filter(|cluster| !cluster.terminating);
        Ok(active.filter_map(|cluster| ClusterName::parse(&cluster.name).ok()).collect())
    }

    pub async fn cluster(&self, name: &str) -> Result<Option<Arc<cluster::Cluster>>, Error> {
        let cluster = self.get_redacted(&self.kinds.cluster, "", name).await?;
        cluster.map(|cluster| self.clusters.get_or_decode(cluster.view())).transpose()
    }

    /// A Cluster with its Secret values, untyped and typed.
    pub async fn get_full_cluster(&self, name: &str) -> Result<Option<(Arc<Value>, Arc<cluster::Cluster>)>, Error> {
        let Some(cluster) = self.get_full(&self.kinds.cluster, "", name).await? else { return Ok(None) };
        let typed = self.clusters.get_or_decode(&cluster)?;
        Ok(Some((cluster, typed)))
    }

    /// A binding of either scope, untyped and typed.
    pub async fn binding(&self, key: &BindingKey) -> Result<Option<(Arc<Value>, Arc<work::ResourceBinding>)>, Error> {
        let resource = self.kinds.binding(key.scope());
        let Some(binding) = self.get_full(resource, &key.namespace, &key.name).await? else { return Ok(None) };
        let typed = self.bindings.get_or_decode(&binding)?;
        Ok(Some((binding, typed)))
    }

    /// The write load, which decides whether low-priority writes are deferred.
    pub fn write_load(&self) -> &WriteLoad {
        self.events.write_load()
    }

    pub async fn exists(&self, resource: &Resource, namespace: &str, name: &str) -> Result<bool, Error> {
        Ok(self.get_redacted(resource, namespace, name).await?.is_some())
    }

    /// Adds the object in the response to a write to the cache, and returns it.
    fn observe_write(&self, resource: &Resource, object: Value) -> Value {
        self.cache.observe(&self.control_plane, &resource.gvr, object.clone());
        object
    }

    pub async fn create(&self, resource: &Resource, object: &Value) -> Result<Value, Error> {
        let _guard = self.lock_quota(resource, unstructured::namespace(object)).await?;
        let _write = self.write_load().begin();
        let created = self.objects.create(resource, unstructured::namespace(object), object).await?;
        Ok(self.observe_write(resource, created))
    }

    /// Replaces an object that was read from the cache and modified.
    pub async fn replace(&self, resource: &Resource, object: &Value) -> Result<Value, Error> {
        let _guard = self.lock_quota(resource, unstructured::namespace(object)).await?;
        let _write = self.write_load().begin();
        let target = Target::new(resource, unstructured::namespace(object), unstructured::name(object));
        let replaced = self.objects.replace(target, object).await?;
        Ok(self.observe_write(resource, replaced))
    }

    pub async fn replace_status(&self, resource: &Resource, object: &Value) -> Result<Value, Error> {
        let target = Target::new(resource, unstructured::namespace(object), unstructured::name(object)).status();
        let replaced = self.objects.replace(target, object).await?;
        Ok(self.observe_write(resource, replaced))
    }

    /// Patches the object unless it has changed since it was read.
    pub async fn merge(&self, resource: &Resource, object: &Value, patch: Value) -> Result<Value, Error> {
        let _guard = self.lock_quota(resource, unstructured::namespace(object)).await?;
        let _write = self.write_load().begin();
        let target = Target::new(resource, unstructured::namespace(object), unstructured::name(object));
        let merged = self.objects.merge(target, &with_resource_version(object, patch)).await?;
        Ok(self.observe_write(resource, merged))
    }

    /// Patches the status of the object unless the object has changed since it was read.
    pub async fn merge_status(&self, resource: &Resource, object: &Value, patch: Value) -> Result<Value, Error> {
        let target = Target::new(resource, unstructured::namespace(object), unstructured::name(object)).status();
        let merged = self.objects.merge(target, &with_resource_version(object, patch)).await?;
        Ok(self.observe_write(resource, merged))
    }

    pub async fn delete(&self, resource: &Resource, namespace: &str, name: &str) -> Result<(), Error> {
        self.objects.delete(Target::new(resource, namespace, name)).await
    }

    /// Deletes the object unless it has changed since it was read.
    pub async fn delete_unchanged(&self, resource: &Resource, object: &Value) -> Result<(), Error> {
        let target = Target::new(resource, unstructured::namespace(object), unstructured::name(object));
        self.objects.delete_at(target, Some(unstructured::resource_version(object))).await
    }

    /// Removes a finalizer, if the object has it. An object deleted with its last finalizer is not an error.
    pub async fn remove_finalizer(&self, resource: &Resource, object: &Value, finalizer: &str) -> Result<(), Error> {
        if !unstructured::has_finalizer(object, finalizer) {
            return Ok(());
        }
        let remaining: Vec<&str> = unstructured::finalizers(object).filter(|name| *name != finalizer).collect();
        let target = Target::new(resource, unstructured::namespace(object), unstructured::name(object));
        let patch = with_resource_version(object, json!({"metadata": {"finalizers": remaining}}));
        match self.objects.merge(target, &patch).await {
            // The object may be deleted now, so the response is not put into the cache.
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Adds the object's resourceVersion to a patch, so that the patch fails with a conflict if another client changed the
/// object.
fn with_resource_version(object: &Value, mut patch: Value) -> Value {
    unstructured::set(&mut patch, &["metadata", "resourceVersion"], json!(unstructured::resource_version(object)));
    patch
}
