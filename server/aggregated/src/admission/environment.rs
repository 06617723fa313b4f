//! Objects of the control plane that policies and webhooks read.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_admission_plugins::environment::{Environment, ParamResource};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::path_segment;
use crowsnest_registry::admission::Attributes;
use crowsnest_registry::storage::Revision;
use crowsnest_schema::SchemaRef;
use moka::future::Cache;
use serde_json::Value;

use super::configurations::Configurations;

/// Time for which the resource of a parameter kind is cached.
const RESOURCE_CACHE_TTL: Duration = Duration::from_secs(60);
/// Maximum number of cached resources.
const MAX_RESOURCES: u64 = 100;

/// The control plane as the environment of a request.
pub(super) struct ControlPlane {
    client: kube::Client,
    configurations: Arc<Configurations>,
    /// Resources of parameters by apiVersion and kind.
    resources: Cache<(String, String), ParamResource>,
}

impl ControlPlane {
    pub(super) fn new(client: kube::Client, configurations: Arc<Configurations>) -> Self {
        let resources = Cache::builder().max_capacity(MAX_RESOURCES).time_to_live(RESOURCE_CACHE_TTL).build();
        Self { client, configurations, resources }
    }

    /// Reads a path; `None` if the control plane responds with 404.
    async fn get(&self, path: &str) -> Result<Option<Value>, String> {
        let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        match self.client.request::<Value>(request).await {
            Ok(found) => Ok(Some(found)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(kube::Error::Api(status)) => Err(status.message.clone()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Path of a version of a group, such as `/apis/apps/v1`.
fn version_path(api_version: &str) -> String {
    match api_version.contains('/') {
        true => format!("/apis/{api_version}"),
        false => format!("/api/{api_version}"),
    }
}

/// Path of the objects of a resource in a namespace.
fn collection_path(ParamResource { gvr, namespaced }: &ParamResource, namespace: &str) -> String {
    let version = version_path(&gvr.api_version());
    match namespaced {
        true => format!("{version}/namespaces/{}/{}", path_segment(namespace), gvr.resource),
        false => format!("{version}/{}", gvr.resource),
    }
}

/// The resource of a kind in a discovery document of its version.
fn resource_of(document: &Value, api_version: &str, kind: &str) -> Option<ParamResource> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resources = document["resources"].as_array().into_iter().flatten();
    let mut resources_by_name = resources.filter_map(|resource| Some((resource["name"].as_str()?, resource)));
    let (name, found) = resources_by_name.find(|(name, resource)| !name.contains('/') && resource["kind"] == kind)?;
    Some(ParamResource { gvr: Gvr::new(group, version, name), namespaced: found["namespaced"] == true })
}

#[async_trait]
impl Environment for ControlPlane {
    fn revision(&self, resource: &'static str) -> Revision {
        self.configurations.revision(resource)
    }

    fn configurations(&self, resource: &'static str) -> Vec<Value> {
        self.configurations.objects(resource)
    }

    /// Empty, because each resource is served in one version only.
    fn equivalents(&self, _a: &Attributes<'_>) -> Vec<Gvr> {
        Vec::new()
    }

    fn schema(&self, _gvr: &Gvr) -> Option<SchemaRef> {
        None
    }

    async fn namespace(&self, name: &str) -> Result<Option<Value>, String> {
        self.get(&format!("/api/v1/namespaces/{}", path_segment(name))).await
    }

    async fn param_resource(&self, api_version: &str, kind: &str) -> Result<Option<ParamResource>, String> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(found) = self.resources.get(&key).await {
            return Ok(Some(found));
        }
        let document = self.get(&version_path(api_version)).await?;
        let found = document.and_then(|document| resource_of(&document, api_version, kind));
        if let Some(found) = &found {
            self.resources.insert(key, found.clone()).await;
        }
        Ok(found)
    }

    async fn param(&self, resource: &ParamResource, namespace: &str, name: &str) -> Result<Option<Value>, String> {
        self.get(&format!("{}/{}", collection_path(resource, namespace), path_segment(name))).await
    }

    async fn params(&self, resource: &ParamResource, namespace: &str) -> Result<Vec<Value>, String> {
        let list = self.get(&collection_path(resource, namespace)).await?.unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).unwrap_or_default();
        let complete = |mut item: Value| {
            // Lists of built-in kinds omit these fields in their items.
            if item.get("kind").is_none() {
                item["apiVersion"] = resource.gvr.api_version().into();
                item["kind"] = kind.into();
            }
            item
        };
        Ok(items.into_iter().map(complete).collect())
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body as KubeBody;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// The control plane with one response to all requests.
    fn environment(code: u16, body: &Value) -> ControlPlane {
        let body = body.to_string().into_bytes();
        let service = tower::service_fn(move |_: http::Request<KubeBody>| {
            let response = http::Response::builder().status(code).body(KubeBody::from(body.clone()));
            async move { response.map_err(kube::Error::HttpError) }
        });
        ControlPlane::new(kube::Client::new(service, "default"), Arc::default())
    }

    #[rstest]
    #[case::found(200, json!({"metadata": {"name": "a"}}), Ok(Some(json!({"metadata": {"name": "a"}}))))]
    #[case::missing(404, json!({"message": "not found"}), Ok(None))]
    #[case::forbidden(403, json!({"message": "no"}), Err("no"))]
    #[case::failed(500, json!({"message": "broken"}), Err("broken"))]
    #[tokio::test]
    async fn a_namespace_that_cannot_be_read_is_an_error(
        #[case] code: u16,
        #[case] mut body: Value,
        #[case] expected: Result<Option<Value>, &str>,
    ) {
        if code != 200 {
            body["kind"] = "Status".into();
            body["apiVersion"] = "v1".into();
            body["status"] = "Failure".into();
            body["code"] = code.into();
        }
        assert_eq!(environment(code, &body).namespace("a").await, expected.map_err(str::to_owned));
    }

    #[rstest]
    #[case::core("v1", "ConfigMap", Some("/api/v1/namespaces/a/configmaps"))]
    #[case::custom("example.io/v2", "Limit", Some("/apis/example.io/v2/limits"))]
    #[case::subresource("v1", "Scale", None)]
    fn params_are_found_by_discovery(#[case] api_version: &str, #[case] kind: &str, #[case] path: Option<&str>) {
        let document = json!({"resources": [
            {"name": "configmaps", "kind": "ConfigMap", "namespaced": true},
            {"name": "limits", "kind": "Limit", "namespaced": false},
            {"name": "limits/scale", "kind": "Scale", "namespaced": false},
        ]});
        let found = resource_of(&document, api_version, kind);
        assert_eq!(found.map(|found| collection_path(&found, "a")).as_deref(), path);
    }
}
