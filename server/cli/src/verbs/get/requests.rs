//! List and get requests to the fleet-wide proxy or to several members, page by page.

use std::cell::Cell;

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crowsnest_api::constants::annotation::CACHED_FROM_CLUSTER;
use crowsnest_apimachinery::request::{path_segment, query_string};
use futures::StreamExt;
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use serde_json::{Value, json};

use super::kind::Kind;
use crate::{clients, spinner};

/// Page size in objects, as in kubectl.
const PAGE_SIZE: &str = "500";
/// Maximum number of members requested concurrently.
const MAX_CONCURRENT_REQUESTS: usize = 16;
const TABLE_MEDIA_TYPES: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const JSON_MEDIA_TYPE: &str = "application/json";

/// Source of objects: a member, or the fleet-wide proxy if `cluster` is `None`.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) cluster: Option<String>,
    pub(super) client: kube::Client,
}

/// Request to send to each source.
#[derive(Debug, Clone)]
pub(super) struct GetRequest {
    pub(super) kind: Kind,
    /// `None` for all namespaces.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) labels: Option<String>,
    pub(super) fields: Option<String>,
    pub(super) as_table: bool,
    /// Include objects in table rows (`includeObject=Object`).
    pub(super) with_objects: bool,
}

/// Response of a source.
#[derive(Debug, Default)]
pub(super) struct GetResponse {
    /// Tables, lists, or a single object.
    pub(super) pages: Vec<Value>,
    /// resourceVersion to start a watch from.
    pub(super) version: String,
    pub(super) warnings: Vec<String>,
    /// Number of clusters whose objects the fleet-wide proxy omits or shows outdated.
    pub(super) incomplete_clusters: usize,
}

impl GetResponse {
    /// True if the fleet-wide proxy responded from its cache; resources without a ResourceRegistry are served by the
    /// control plane instead.
    pub(super) fn is_fleet_wide(&self) -> bool {
        URL_SAFE_NO_PAD.decode(&self.version).is_ok_and(|version| version.starts_with(b"{"))
    }

    /// All objects, annotated with their cluster.
    pub(super) fn objects(&self, cluster: Option<&str>) -> Vec<Value> {
        let objects = self.pages.iter().flat_map(|page| match page.get("items").and_then(Value::as_array) {
            Some(items) => items.iter().map(|item| with_type_meta(item, page)).collect(),
            None => vec![page.clone()],
        });
        objects.map(|object| annotate_cluster(object, cluster)).collect()
    }
}

/// Adds apiVersion and kind, which items of lists omit.
fn with_type_meta(item: &Value, list: &Value) -> Value {
    let mut item = item.clone();
    let text = |field: &str| list.get(field).and_then(Value::as_str).unwrap_or_default();
    if let Some(fields) = item.as_object_mut() {
        let kind = text("kind");
        fields.entry("kind").or_insert_with(|| kind.strip_suffix("List").unwrap_or(kind).into());
        fields.entry("apiVersion").or_insert_with(|| text("apiVersion").into());
    }
    item
}

/// Adds the annotation with the object's cluster.
pub(super) fn annotate_cluster(mut object: Value, cluster: Option<&str>) -> Value {
    if let Some(cluster) = cluster
        && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
    {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations[CACHED_FROM_CLUSTER] = cluster.into();
    }
    object
}

impl GetRequest {
    /// Path and query string of a request.
    pub(super) fn path(&self, name: Option<&str>, extra_parameters: &[(&str, &str)]) -> String {
        let mut path = self.kind.gvr.path(self.namespace.as_deref());
        if let Some(name) = name {
            path.push_str(&format!("/{}", path_segment(name)));
        }
        let parameters = [("labelSelector", self.labels.as_deref()), ("fieldSelector", self.fields.as_deref())];
        let parameters = parameters.iter().filter_map(|(key, value)| Some((*key, (*value)?)));
        let parameters = parameters.chain((self.as_table && self.with_objects).then_some(("includeObject", "Object")));
        let query = query_string(parameters.chain(extra_parameters.iter().copied()));
        if query.is_empty() { path } else { format!("{path}?{query}") }
    }

    /// The request as a watch; a single object is watched by a field selector.
    pub(super) fn as_watch(&self) -> Self {
        let mut request = self.clone();
        if let Some(name) = request.name.take() {
            request.fields = Some(format!("metadata.name={name}"));
        }
        request
    }

    pub(super) fn accept(&self) -> &'static str {
        if self.as_table { TABLE_MEDIA_TYPES } else { JSON_MEDIA_TYPE }
    }

    /// Requests all pages from one source.
    pub(super) async fn send(&self, source: &Source) -> Result<GetResponse, kube::Error> {
        let mut response = GetResponse::default();
        let mut token = String::new();
        loop {
            let path = match (&self.name, token.as_str()) {
                (Some(name), _) => self.path(Some(name), &[]),
                (None, "") => self.path(None, &[("limit", PAGE_SIZE)]),
                (None, token) => self.path(None, &[("limit", PAGE_SIZE), ("continue", token)]),
            };
            let (page, headers) = get(&source.client, &path, self.accept()).await?;
            let metadata = |field: &str| page.pointer(&format!("/metadata/{field}"));
            token = metadata("continue").and_then(Value::as_str).unwrap_or_default().to_owned();
            if response.pages.is_empty() {
                response.version = metadata("resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
                response.incomplete_clusters =
                    metadata("incompleteClusters").and_then(Value::as_array).map_or(0, Vec::len);
                response.warnings = warnings(&headers);
            }
            response.pages.push(page);
            if token.is_empty() || self.name.is_some() {
                return Ok(response);
            }
        }
    }

    /// Requests all sources concurrently; responses are in the order of the sources.
    pub(super) async fn send_to_all(&self, sources: &[Source]) -> Vec<Result<GetResponse, kube::Error>> {
        let responded = &Cell::new(0_usize);
        let send = |source| async move {
            let result = self.send(source).await;
            responded.set(responded.get() + 1);
            result
        };
        let requests = futures::stream::iter(sources).map(send).buffered(MAX_CONCURRENT_REQUESTS).collect();
        spinner::with_spinner(|| format!("{}/{} clusters responded", responded.get(), sources.len()), requests).await
    }
}

async fn get(client: &kube::Client, path: &str, accept: &str) -> Result<(Value, HeaderMap), kube::Error> {
    let request =
        Request::get(path).header(header::ACCEPT, accept).body(Body::empty()).map_err(kube::Error::HttpError)?;
    send_request(client, request).await
}

/// Sends a request; returns the body and the headers, which may contain warnings.
pub(crate) async fn send_request(
    client: &kube::Client,
    request: Request<Body>,
) -> Result<(Value, HeaderMap), kube::Error> {
    let (parts, body) = client.send(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    if parts.status.is_success() {
        let page = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
        return Ok((page, parts.headers));
    }
    let status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| {
        let message = String::from_utf8_lossy(&body);
        Status::failure(message.trim(), parts.status.canonical_reason().unwrap_or_default())
    });
    Err(kube::Error::Api(status.with_code(parts.status.as_u16()).boxed()))
}

/// Texts of `Warning` headers: `299 - "text"`.
pub(crate) fn warnings(headers: &HeaderMap) -> Vec<String> {
    let texts = headers.get_all(header::WARNING).iter().filter_map(|value| value.to_str().ok());
    let quoted = texts.filter_map(|text| text.split_once('"').map(|(_, text)| text.strip_suffix('"').unwrap_or(text)));
    quoted.map(|text| text.replace("\\\"", "\"").replace("\\\\", "\\")).collect()
}

/// Names of all members.
pub async fn list_clusters(control_plane: &kube::Client) -> anyhow::Result<Vec<String>> {
    let (list, _) = get(control_plane, "/apis/cluster.karmada.io/v1alpha1/clusters", JSON_MEDIA_TYPE)
        .await
        .map_err(|error| anyhow::anyhow!("{}", clients::explain_failure(None, &error)))
        .context("cannot list clusters; name them with --clusters")?;
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    let names = items.filter_map(|cluster| cluster.pointer("/metadata/name")?.as_str());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::Gvr;

    fn request() -> GetRequest {
        GetRequest {
            kind: Kind { gvr: Gvr::new("apps", "v1", "deployments"), kind: "Deployment".to_owned(), namespaced: true },
            namespace: Some("shop".to_owned()),
            name: None,
            labels: Some("app=web".to_owned()),
            fields: None,
            as_table: true,
            with_objects: false,
        }
    }

    #[test]
    fn requests_become_paths() {
        let path = "/apis/apps/v1/namespaces/shop/deployments";
        assert_eq!(request().path(None, &[("limit", "500")]), format!("{path}?labelSelector=app%3Dweb&limit=500"));
        let with_objects = GetRequest { with_objects: true, ..request() };
        assert_eq!(with_objects.path(None, &[]), format!("{path}?labelSelector=app%3Dweb&includeObject=Object"));
        let by_name = GetRequest { labels: None, namespace: None, name: Some("web-1".to_owned()), ..request() };
        assert_eq!(by_name.path(by_name.name.as_deref(), &[]), "/apis/apps/v1/deployments/web-1");
        assert_eq!(
            by_name.as_watch().path(None, &[]),
            "/apis/apps/v1/deployments?fieldSelector=metadata%2Ename%3Dweb%2D1"
        );
    }

    #[rstest::rstest]
    #[case::composite("eyJtMSI6IjciLCJtMiI6IjkifQ", true)]
    #[case::of_an_api_server("12345", false)]
    #[case::none("", false)]
    fn composite_versions_are_recognized(#[case] version: &str, #[case] expected: bool) {
        let response = GetResponse { version: version.to_owned(), ..GetResponse::default() };
        assert_eq!(response.is_fleet_wide(), expected);
    }

    #[test]
    fn warnings_are_parsed() {
        let headers = HeaderMap::from_iter([
            (header::WARNING, r#"299 - "cluster m1 is missing: \"gone\"""#.parse().unwrap()),
            (header::WARNING, "nonsense".parse().unwrap()),
        ]);
        assert_eq!(warnings(&headers), ["cluster m1 is missing: \"gone\""]);
    }

    #[test]
    fn objects_have_kind_and_cluster() {
        let list = json!({"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "web"}}]});
        let response = GetResponse { pages: vec![list], ..GetResponse::default() };
        let expected = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "web", "annotations": {"resource.karmada.io/cached-from-cluster": "m1"}}});
        assert_eq!(response.objects(Some("m1")), [expected]);
    }
}
