//! Deletes the content of a namespace: pods first (OrderedNamespaceDeletion, KEP-5080), then all other resources in
//! discovery, including those of aggregated API servers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::options::{DeleteOptions, PropagationPolicy};
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

use super::conditions::Remains;
use crate::ApiServer;
use crate::http::Api;
use crate::http::delegate::RankedGroup;

/// A namespaced resource that can be deleted.
#[derive(Debug)]
enum Source {
    Registry(ResourceRef),
    /// Served by an aggregated API server.
    Aggregated(Gvr),
}

impl Source {
    fn gvr(&self) -> &Gvr {
        match self {
            Source::Registry(resource) => &resource.gvr,
            Source::Aggregated(gvr) => gvr,
        }
    }

    fn is_pods(&self) -> bool {
        matches!((&*self.gvr().group, &*self.gvr().resource), ("", "pods"))
    }
}

/// Access to the content of namespaces.
#[derive(Clone)]
pub(super) struct Content {
    api: Arc<Api>,
    client: kube::Client,
}

impl Content {
    pub fn new(server: &ApiServer) -> Self {
        Self { api: server.api().clone(), client: server.client(loopback("").user) }
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.api.registry
    }

    /// Deletes the content of a namespace and reports what remains.
    pub async fn delete(&self, namespace: &Value) -> Remains {
        let mut remains = Remains::default();
        let (pods, others): (Vec<Source>, _) =
            self.discover(&mut remains.undiscovered).into_iter().partition(Source::is_pods);
        for source in pods {
            remains.pods += self.delete_resource(&source, namespace, &mut remains).await;
        }
        if remains.pods > 0 {
            remains.finalizers.clear();
            return remains;
        }
        for source in others {
            let count = self.delete_resource(&source, namespace, &mut remains).await;
            if count > 0 {
                let Gvr { group, resource, .. } = source.gvr();
                remains.resources.insert(format!("{resource}.{group}"), count);
            }
        }
        remains
    }

    fn discover(&self, undiscovered: &mut BTreeMap<String, String>) -> Vec<Source> {
        let served = self.registry().catalog.snapshot().preferred_versions().into_iter();
        let deletable = served.filter(|resource| resource.namespaced && resource.verbs.contains(&"delete"));
        let delegates = self.api.delegates();
        let groups: Vec<RankedGroup> = delegates.iter().flat_map(|delegate| delegate.discovery()).collect();
        deletable
            .map(Source::Registry)
            .chain(aggregated(&groups, undiscovered).into_iter().map(Source::Aggregated))
            .collect()
    }

    /// Deletes all objects of a resource; returns the number of remaining ones.
    async fn delete_resource(&self, source: &Source, namespace: &Value, remains: &mut Remains) -> usize {
        let left = match self.delete_all(source, namespace.name()).await {
            Ok(left) => left,
            Err(error) => {
                remains.failures.push(error.message);
                return 0;
            }
        };
        let mut has_finalizers = false;
        for finalizer in left.iter().flat_map(Object::finalizers) {
            has_finalizers = true;
            *remains.finalizers.entry(finalizer).or_default() += 1;
        }
        let is_terminating =
            source.is_pods() && within_grace_period(&left, namespace.meta_text("deletionTimestamp"), Timestamp::now());
        if !left.is_empty() && !has_finalizers && !is_terminating {
            let Gvr { group, version, resource } = source.gvr();
            remains.failures.push(format!(
                "unexpected items still remain in namespace: {} for gvr: {group}/{version}, Resource={resource}",
                namespace.name()
            ));
        }
        left.len()
    }

    /// Deletes all objects of a resource; returns the remaining ones.
    async fn delete_all(&self, source: &Source, namespace: &str) -> ApiResult<Vec<Value>> {
        match source {
            Source::Registry(resource) => self.delete_registered(resource, namespace).await,
            Source::Aggregated(gvr) => self.delete_aggregated(gvr, namespace).await,
        }
    }

    async fn delete_registered(&self, resource: &ResourceRef, namespace: &str) -> ApiResult<Vec<Value>> {
        let registry = self.registry();
        let objects = registry.list(resource, namespace, &Default::default()).await?.objects;
        let propagation = Some(PropagationPolicy::Background);
        let options = DeleteOptions { propagation, raw: json!({}), ..DeleteOptions::default() };
        // A terminating namespace accepts no new objects, so the outcomes show what is left.
        let mut left = Vec::new();
        for object in objects {
            let ctx = loopback(namespace);
            match registry.delete(resource, &ctx, object.name(), &options, &mut Vec::new()).await {
                Ok(DeleteOutcome::Pending(object)) => left.push(object),
                Ok(DeleteOutcome::Removed(_)) => {}
                Err(error) if error.is(Reason::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(left)
    }

    async fn delete_aggregated(&self, gvr: &Gvr, namespace: &str) -> ApiResult<Vec<Value>> {
        let collection = format!("/apis/{}/{}/namespaces/{namespace}/{}", gvr.group, gvr.version, gvr.resource);
        if self.request(Method::DELETE, &collection).await?.is_none() {
            // The server does not support deletion of collections.
            let listed = self.list(&collection).await?;
            if listed.is_empty() {
                return Ok(listed);
            }
            for object in listed {
                self.request(Method::DELETE, &format!("{collection}/{}", object.name())).await?;
            }
        }
        self.list(&collection).await
    }

    async fn list(&self, collection: &str) -> ApiResult<Vec<Value>> {
        let listed = self.request(Method::GET, collection).await?;
        Ok(listed.and_then(|mut list| list["items"].as_array_mut().map(std::mem::take)).unwrap_or_default())
    }

    /// Sends a request to an aggregated server; `None` if the resource or object does not exist or the method is not
    /// supported.
    async fn request(&self, method: Method, path: &str) -> ApiResult<Option<Value>> {
        let body = match method {
            Method::DELETE => json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}),
            _ => Value::Null,
        };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let request =
            request.body(body).map_err(|error| crowsnest_registry::error_without_reason(error.to_string()))?;
        match self.client.request::<Value>(request).await.map_err(api_error) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if matches!(error.code, 404 | 405) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Deletable namespaced resources of aggregated groups, each in its most preferred version.
fn aggregated(groups: &[RankedGroup], undiscovered: &mut BTreeMap<String, String>) -> Vec<Gvr> {
    let mut found = Vec::new();
    for RankedGroup { group, .. } in groups {
        let mut known = HashSet::new();
        for version in group["versions"].as_array().into_iter().flatten() {
            let (group, name) = (group.name(), version["version"].as_str().unwrap_or_default());
            if version["freshness"] == "Stale" {
                let version = format!("{group}/{name}");
                undiscovered.insert(version.clone(), format!("stale GroupVersion discovery: {version}"));
                continue;
            }
            for resource in version["resources"].as_array().into_iter().flatten() {
                let deletable = resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|v| v == "delete"));
                let plural = resource["resource"].as_str().unwrap_or_default();
                if deletable && resource["scope"] == "Namespaced" && known.insert(plural) {
                    found.push(Gvr::new(group, name, plural));
                }
            }
        }
    }
    found
}

/// True while pods may use their grace period, which counts from the deletion of the namespace.
fn within_grace_period(pods: &[Value], since: &str, now: Timestamp) -> bool {
    let grace = pods.iter().filter_map(|pod| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).max().unwrap_or(0);
    let until = since.parse::<Timestamp>().and_then(|since| since.checked_add(SignedDuration::from_secs(grace)));
    until.is_ok_and(|until| now < until)
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
        let found = aggregated(&[group], &mut undiscovered);
        assert_eq!(found, [Gvr::new("b.example.com", "v2", "bricks"), Gvr::new("b.example.com", "v1", "stones")]);
        let stale = "stale GroupVersion discovery: b.example.com/v1beta1".to_owned();
        assert_eq!(undiscovered, BTreeMap::from([("b.example.com/v1beta1".to_owned(), stale)]));
    }

    #[test]
    fn pods_may_take_their_grace_period() {
        let pods = [json!({"spec": {"terminationGracePeriodSeconds": 30}}), json!({"spec": {}})];
        let cases = [("2026-01-01T00:00:29Z", true), ("2026-01-01T00:00:30Z", false)];
        for (now, expected) in cases {
            assert_eq!(within_grace_period(&pods, "2026-01-01T00:00:00Z", now.parse().unwrap()), expected, "{now}");
        }
        assert!(!within_grace_period(&[], "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z".parse().unwrap()));
    }
}
