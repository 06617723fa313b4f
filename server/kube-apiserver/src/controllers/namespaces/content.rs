//! Deletes the content of a namespace: pods first (OrderedNamespaceDeletion, KEP-5080), then all other resources in
//! discovery, including those of aggregated API servers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::options::{DeleteOptions, DependentsPolicy, PropagationPolicy};
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_component_base::client_errors::api_error;
use crowsnest_registry::authz::bootstrap::loopback;
use crowsnest_registry::object::Object;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::{DeleteOutcome, Registry};
use http::Method;
use http::header::CONTENT_TYPE;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::conditions::RemainingContent;
use crate::ApiServer;
use crate::http::ApiState;
use crate::http::delegate::RankedGroup;

/// A namespaced resource whose objects can be deleted.
#[derive(Debug)]
enum DeletableResource {
    /// Stored in the registry of this server.
    Registry(ResourceRef),
    /// Served by an aggregated API server.
    Aggregated(Gvr),
}

impl DeletableResource {
    fn gvr(&self) -> &Gvr {
        match self {
            DeletableResource::Registry(resource) => &resource.gvr,
            DeletableResource::Aggregated(gvr) => gvr,
        }
    }

    fn is_pods(&self) -> bool {
        matches!((&*self.gvr().group, &*self.gvr().resource), ("", "pods"))
    }
}

/// Deletes the content of namespaces.
#[derive(Clone)]
pub(super) struct ContentDeleter {
    api: Arc<ApiState>,
    client: kube::Client,
}

impl ContentDeleter {
    pub fn new(server: &ApiServer) -> Self {
        Self { api: server.api().clone(), client: server.client(loopback("").user) }
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.api.registry
    }

    /// Deletes the content of a namespace and returns what remains.
    pub async fn delete(&self, namespace: &Value) -> RemainingContent {
        let mut remaining = RemainingContent::default();
        let (pods, others): (Vec<DeletableResource>, _) =
            self.discover(&mut remaining.undiscovered).into_iter().partition(DeletableResource::is_pods);
        for resource in pods {
            remaining.pods += self.delete_resource(&resource, namespace, &mut remaining).await;
        }
        if remaining.pods > 0 {
            remaining.finalizers.clear();
            return remaining;
        }
        for resource in others {
            let count = self.delete_resource(&resource, namespace, &mut remaining).await;
            if count > 0 {
                let Gvr { group, resource, .. } = resource.gvr();
                remaining.resources.insert(format!("{resource}.{group}"), count);
            }
        }
        remaining
    }

    /// The deletable resources of this server and of aggregated ones.
    fn discover(&self, undiscovered: &mut BTreeMap<String, String>) -> Vec<DeletableResource> {
        let served = self.registry().catalog.snapshot().preferred_versions().into_iter();
        let deletable = served.filter(|resource| resource.namespaced && resource.verbs.contains(&"delete"));
        let delegates = self.api.delegates();
        let groups: Vec<RankedGroup> = delegates.iter().flat_map(|delegate| delegate.discovery()).collect();
        deletable
            .map(DeletableResource::Registry)
            .chain(aggregated_resources(&groups, undiscovered).into_iter().map(DeletableResource::Aggregated))
            .collect()
    }

    /// Deletes all objects of a resource; returns the number of remaining ones.
    async fn delete_resource(
        &self,
        resource: &DeletableResource,
        namespace: &Value,
        remaining: &mut RemainingContent,
    ) -> usize {
        let objects = match self.delete_all(resource, namespace.name()).await {
            Ok(objects) => objects,
            Err(error) => {
                remaining.failures.push(error.message);
                return 0;
            }
        };
        let mut has_finalizers = false;
        for finalizer in objects.iter().flat_map(Object::finalizers) {
            has_finalizers = true;
            *remaining.finalizers.entry(finalizer).or_default() += 1;
        }
        let deleted_at = namespace.meta_text("deletionTimestamp");
        let is_terminating = resource.is_pods() && is_within_grace_period(&objects, deleted_at, Timestamp::now());
        if !objects.is_empty() && !has_finalizers && !is_terminating {
            let Gvr { group, version, resource } = resource.gvr();
            remaining.failures.push(format!(
                "unexpected items still remain in namespace: {} for gvr: {group}/{version}, Resource={resource}",
                namespace.name()
            ));
        }
        objects.len()
    }

    /// Deletes all objects of a resource; returns the remaining ones.
    async fn delete_all(&self, resource: &DeletableResource, namespace: &str) -> ApiResult<Vec<Value>> {
        match resource {
            DeletableResource::Registry(resource) => self.delete_from_registry(resource, namespace).await,
            DeletableResource::Aggregated(gvr) => self.delete_aggregated(gvr, namespace).await,
        }
    }

    async fn delete_from_registry(&self, resource: &ResourceRef, namespace: &str) -> ApiResult<Vec<Value>> {
        let registry = self.registry();
        let objects = registry.list(resource, namespace, &Default::default()).await?.objects;
        let dependents = Some(DependentsPolicy::Propagation(PropagationPolicy::Background));
        let options = DeleteOptions { dependents, raw: json!({}), ..DeleteOptions::default() };
        // A terminating namespace accepts no new objects, so only objects whose deletion is pending remain.
        let mut remaining = Vec::new();
        for object in objects {
            let ctx = loopback(namespace);
            match registry.delete(resource, &ctx, object.name(), &options, &mut Vec::new()).await {
                Ok(DeleteOutcome::Pending(object)) => remaining.push(object),
                Ok(DeleteOutcome::Removed(_)) => {}
                Err(error) if error.is(Reason::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(remaining)
    }

    async fn delete_aggregated(&self, gvr: &Gvr, namespace: &str) -> ApiResult<Vec<Value>> {
        let path = format!("/apis/{}/{}/namespaces/{namespace}/{}", gvr.group, gvr.version, gvr.resource);
        if self.request(Method::DELETE, &path).await?.is_none() {
            // The server does not support deletion of collections.
            let objects = self.list(&path).await?;
            if objects.is_empty() {
                return Ok(objects);
            }
            for object in objects {
                self.request(Method::DELETE, &format!("{path}/{}", object.name())).await?;
            }
        }
        self.list(&path).await
    }

    async fn list(&self, path: &str) -> ApiResult<Vec<Value>> {
        let list = self.request(Method::GET, path).await?;
        Ok(list.and_then(|mut list| list["items"].as_array_mut().map(std::mem::take)).unwrap_or_default())
    }

    /// Sends a request to an aggregated server; `None` if the resource or object does not exist or the method is not
    /// supported.
    async fn request(&self, method: Method, path: &str) -> ApiResult<Option<Value>> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        let body = if method == Method::DELETE { options.to_string().into_bytes() } else { Vec::new() };
        let request = http::Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let request =
            request.body(body).map_err(|error| crowsnest_registry::error_without_reason(error.to_string()))?;
        match self.client.request::<Value>(request).await.map_err(api_error) {
            Ok(response) => Ok(Some(response)),
            Err(error) if matches!(error.code, 404 | 405) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Deletable namespaced resources of aggregated groups, each in its most preferred version. Adds versions with outdated
/// discovery to `undiscovered`.
fn aggregated_resources(groups: &[RankedGroup], undiscovered: &mut BTreeMap<String, String>) -> Vec<Gvr> {
    let mut resources = Vec::new();
    for RankedGroup { group, .. } in groups {
        let mut plurals = HashSet::new();
        for version in group["versions"].as_array().into_iter().flatten() {
            let (group, name) = (group.name(), version["version"].as_str().unwrap_or_default());
            if version["freshness"] == "Stale" {
                let version = format!("{group}/{name}");
                undiscovered.insert(version.clone(), format!("stale GroupVersion discovery: {version}"));
                continue;
            }
            for resource in version["resources"].as_array().into_iter().flatten() {
                let is_deletable =
                    resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|v| v == "delete"));
                let plural = resource["resource"].as_str().unwrap_or_default();
                if is_deletable && resource["scope"] == "Namespaced" && plurals.insert(plural) {
                    resources.push(Gvr::new(group, name, plural));
                }
            }
        }
    }
    resources
}

/// True during the longest grace period of the pods, which starts when the namespace is deleted at `deleted_at`.
fn is_within_grace_period(pods: &[Value], deleted_at: &str, now: Timestamp) -> bool {
    let grace_periods = pods.iter().filter_map(|pod| pod["spec"]["terminationGracePeriodSeconds"].as_i64());
    let longest = SignedDuration::from_secs(grace_periods.max().unwrap_or(0));
    let end = deleted_at.parse::<Timestamp>().and_then(|deleted_at| deleted_at.checked_add(longest));
    end.is_ok_and(|end| now < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregated_resources_are_deleted_in_their_preferred_version() {
        let resource =
            |plural: &str, scope: &str, verbs: &[&str]| json!({"resource": plural, "scope": scope, "verbs": verbs});
        let versions = json!([
            {"version": "v2", "freshness": "Current", "resources": [
                resource("bricks", "Namespaced", &["delete", "list"]), resource("walls", "Cluster", &["delete"]),
                resource("views", "Namespaced", &["get", "list"])]},
            {"version": "v1", "freshness": "Current", "resources": [
                resource("bricks", "Namespaced", &["delete"]), resource("stones", "Namespaced", &["delete"])]},
            {"version": "v1beta1", "freshness": "Stale"},
        ]);
        let group =
            RankedGroup { priority: 1, group: json!({"metadata": {"name": "b.example.com"}, "versions": versions}) };
        let mut undiscovered = BTreeMap::new();
        let resources = aggregated_resources(&[group], &mut undiscovered);
        assert_eq!(resources, [Gvr::new("b.example.com", "v2", "bricks"), Gvr::new("b.example.com", "v1", "stones")]);
        let stale = "stale GroupVersion discovery: b.example.com/v1beta1".to_owned();
        assert_eq!(undiscovered, BTreeMap::from([("b.example.com/v1beta1".to_owned(), stale)]));
    }

    #[test]
    fn pods_have_a_grace_period_after_the_deletion_of_the_namespace() {
        let pods = [json!({"spec": {"terminationGracePeriodSeconds": 30}}), json!({"spec": {}})];
        let cases = [("2026-01-01T00:00:29Z", true), ("2026-01-01T00:00:30Z", false)];
        for (now, expected) in cases {
            assert_eq!(is_within_grace_period(&pods, "2026-01-01T00:00:00Z", now.parse().unwrap()), expected, "{now}");
        }
        assert!(!is_within_grace_period(&[], "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z".parse().unwrap()));
    }
}
