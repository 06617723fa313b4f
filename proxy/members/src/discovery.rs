//! Discovers the resources of an API server: aggregated discovery (v2, v2beta1), or the legacy documents.

use crate::Error;
use crowsnest_apimachinery::names::Gvr;
use futures::stream::{StreamExt, TryStreamExt};
use http::{HeaderValue, Request, Response, StatusCode, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList, APIVersions};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One served resource (never a subresource).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiResource {
    pub gvr: Gvr,
    pub kind: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub verbs: BTreeSet<String>,
    pub subresources: BTreeSet<String>,
    /// True if this version is the group's preferred one.
    pub preferred: bool,
}

impl ApiResource {
    /// True if the resource can be listed and watched, and therefore cached.
    pub fn is_listable(&self) -> bool {
        self.verbs.contains("list") && self.verbs.contains("watch")
    }
}

/// The resources of a server, and the versions that could not be discovered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiResources {
    pub resources: Vec<ApiResource>,
    /// `group/version` whose backend did not respond. Its resources are unknown, not deleted.
    pub stale: BTreeSet<String>,
}

impl ApiResources {
    /// One version per (group, resource): the group's preferred one where it serves the resource, else the first.
    pub fn preferred_versions(&self) -> Vec<&ApiResource> {
        let mut chosen: Vec<&ApiResource> = Vec::new();
        for resource in &self.resources {
            let same = |other: &&ApiResource| {
                other.gvr.group == resource.gvr.group && other.gvr.resource == resource.gvr.resource
            };
            match chosen.iter().position(same) {
                None => chosen.push(resource),
                Some(at) if resource.preferred && !chosen[at].preferred => chosen[at] = resource,
                Some(_) => {}
            }
        }
        chosen
    }

    pub fn get(&self, gvr: &Gvr) -> Option<&ApiResource> {
        self.resources.iter().find(|resource| resource.gvr == *gvr)
    }
}

const ACCEPT_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// Documents of aggregated discovery.
const DOCUMENTS: [&str; 2] = ["/api", "/apis"];

/// Discovered resources with the ETags of their documents, for conditional requests.
#[derive(Debug, Clone)]
pub struct DiscoveryState {
    pub resources: Arc<ApiResources>,
    /// One per document; None for servers without aggregated discovery.
    etags: Option<Vec<HeaderValue>>,
}

/// Reads `/api` and `/apis`. A group whose backend is down is listed in `stale` and does not fail the discovery.
pub async fn discover(client: &Client) -> Result<ApiResources, Error> {
    Ok(discover_all(client).await?.0)
}

/// Like [`discover`], but reads the documents only if their ETags changed.
pub async fn rediscover(client: &Client, before: Option<&DiscoveryState>) -> Result<DiscoveryState, Error> {
    if let Some(before) = before
        && let Some(etags) = &before.etags
        && are_unchanged(client, etags).await?
    {
        return Ok(before.clone());
    }
    let (resources, etags) = discover_all(client).await?;
    Ok(DiscoveryState { resources: Arc::new(resources), etags })
}

/// `group/version` of the given groups that a server announces, with the number of resources. Stale versions are
/// not included, because their resources are unknown.
pub async fn announced_versions(client: &Client, groups: &[&str]) -> Result<BTreeMap<String, usize>, Error> {
    const PATH: &str = "/apis";
    let (text, _) = get(client, PATH).await?;
    let document: TypeMeta = parse(PATH, &text)?;
    if document.kind == "APIGroupDiscoveryList" {
        let list: GroupDiscoveryList = parse(PATH, &text)?;
        let requested = list.items.into_iter().filter(|group| groups.contains(&group.metadata.name.as_str()));
        let versions = requested.flat_map(|group| {
            let fresh = group.versions.into_iter().filter(|version| version.freshness != STALE);
            fresh.map(move |version| (group_version(&group.metadata.name, &version.version), version.resources.len()))
        });
        return Ok(versions.collect());
    }
    let mut documents = legacy_documents(PATH, &text)?;
    documents.retain(|document| groups.contains(&document.group.as_str()));
    let lists = read_resource_lists(client, documents).await?.into_iter();
    let counts = lists.filter_map(|(document, list)| {
        Some((group_version(&document.group, &document.version), list?.resources.len()))
    });
    Ok(counts.collect())
}

async fn discover_all(client: &Client) -> Result<(ApiResources, Option<Vec<HeaderValue>>), Error> {
    let mut found = ApiResources::default();
    let mut etags = Vec::new();
    for path in DOCUMENTS {
        let (text, etag) = get(client, path).await?;
        let document: TypeMeta = parse(path, &text)?;
        if document.kind == "APIGroupDiscoveryList" {
            let list: GroupDiscoveryList = parse(path, &text)?;
            list.collect_into(&mut found);
            etags.extend(etag);
        } else {
            discover_legacy(client, path, &text, &mut found).await?;
        }
    }
    let have_all_etags = etags.len() == DOCUMENTS.len();
    Ok((found, have_all_etags.then_some(etags)))
}

/// True if every document still has its ETag.
async fn are_unchanged(client: &Client, etags: &[HeaderValue]) -> Result<bool, Error> {
    for (path, etag) in DOCUMENTS.iter().zip(etags) {
        if send_get(client, path, Some(etag)).await?.status() != StatusCode::NOT_MODIFIED {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn send_get(client: &Client, path: &str, etag: Option<&HeaderValue>) -> Result<Response<Body>, Error> {
    let mut request = Request::get(path).header(header::ACCEPT, ACCEPT_AGGREGATED);
    if let Some(etag) = etag {
        request = request.header(header::IF_NONE_MATCH, etag);
    }
    let request = request.body(Body::empty());
    let request = request.map_err(|e| Error::kube(format!("cannot get {path}"), kube::Error::HttpError(e)))?;
    client.send(request).await.map_err(|e| Error::kube(format!("cannot get {path}"), e))
}

/// A document and its ETag.
async fn get(client: &Client, path: &str) -> Result<(String, Option<HeaderValue>), Error> {
    let response = send_get(client, path, None).await?;
    let etag = response.headers().get(header::ETAG).cloned();
    if response.status().is_success() {
        let body = response.into_body().collect_bytes().await;
        let body = body.map_err(|e| Error::kube(format!("cannot get {path}"), e))?;
        return Ok((String::from_utf8_lossy(&body).into_owned(), etag));
    }
    // This request returns the error with the server's message.
    let request = Request::get(path).header(header::ACCEPT, ACCEPT_AGGREGATED).body(Vec::new());
    let request = request.map_err(|e| Error::kube(format!("cannot get {path}"), kube::Error::HttpError(e)))?;
    Ok((client.request_text(request).await.map_err(|e| Error::kube(format!("cannot get {path}"), e))?, None))
}

fn parse<'a, T: Deserialize<'a>>(path: &str, text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|e| Error::Parse {
        problem: format!("GET {path} did not return a discovery document"),
        source: e.into(),
    })
}

#[derive(Deserialize)]
struct TypeMeta {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct GroupDiscoveryList {
    #[serde(default)]
    items: Vec<GroupDiscovery>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    #[serde(default)]
    metadata: GroupMetadata,
    #[serde(default)]
    versions: Vec<VersionDiscovery>,
}

#[derive(Deserialize, Default)]
struct GroupMetadata {
    #[serde(default)]
    name: String,
}

/// The freshness of a version whose backend did not respond.
const STALE: &str = "Stale";

#[derive(Deserialize)]
struct VersionDiscovery {
    version: String,
    #[serde(default)]
    resources: Vec<ResourceDiscovery>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    singular_resource: String,
    #[serde(default)]
    verbs: BTreeSet<String>,
    #[serde(default)]
    short_names: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
    #[serde(default)]
    subresources: Vec<SubresourceDiscovery>,
}

#[derive(Deserialize)]
struct SubresourceDiscovery {
    subresource: String,
}

#[derive(Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

impl GroupDiscoveryList {
    fn collect_into(self, found: &mut ApiResources) {
        for group in self.items {
            for (nth, version) in group.versions.into_iter().enumerate() {
                if version.freshness == STALE {
                    found.stale.insert(group_version(&group.metadata.name, &version.version));
                }
                for resource in version.resources {
                    let Some(kind) = resource.response_kind else { continue };
                    found.resources.push(ApiResource {
                        gvr: Gvr::new(&group.metadata.name, &version.version, &resource.resource),
                        kind: kind.kind,
                        singular: resource.singular_resource,
                        short_names: resource.short_names,
                        categories: resource.categories,
                        namespaced: resource.scope == "Namespaced",
                        verbs: resource.verbs,
                        subresources: resource.subresources.into_iter().map(|sub| sub.subresource).collect(),
                        preferred: nth == 0,
                    });
                }
            }
        }
    }
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// A version whose resource list is a legacy discovery document.
struct LegacyDocument {
    group: String,
    version: String,
    preferred: bool,
}

/// Discovers a server before 1.26: reads the resource list of each version in the group list.
async fn discover_legacy(client: &Client, path: &str, text: &str, found: &mut ApiResources) -> Result<(), Error> {
    for (document, list) in read_resource_lists(client, legacy_documents(path, text)?).await? {
        match list {
            None => {
                found.stale.insert(group_version(&document.group, &document.version));
            }
            Some(list) => collect_legacy(&document, list, found),
        }
    }
    Ok(())
}

fn legacy_documents(path: &str, text: &str) -> Result<Vec<LegacyDocument>, Error> {
    let mut documents = Vec::new();
    if path == "/api" {
        let versions: APIVersions = parse(path, text)?;
        documents.extend(versions.versions.into_iter().enumerate().map(|(nth, version)| LegacyDocument {
            group: String::new(),
            version,
            preferred: nth == 0,
        }));
    } else {
        let groups: APIGroupList = parse(path, text)?;
        for group in groups.groups {
            let preferred = group.preferred_version.map(|version| version.version);
            documents.extend(group.versions.into_iter().map(|version| LegacyDocument {
                group: group.name.clone(),
                preferred: preferred.as_deref() == Some(version.version.as_str()),
                version: version.version,
            }));
        }
    }
    Ok(documents)
}

/// The resource lists; None for those that did not respond.
async fn read_resource_lists(
    client: &Client,
    documents: Vec<LegacyDocument>,
) -> Result<Vec<(LegacyDocument, Option<APIResourceList>)>, Error> {
    futures::stream::iter(documents)
        .map(|document| async move {
            let path = match document.group.as_str() {
                "" => format!("/api/{}", document.version),
                group => format!("/apis/{group}/{}", document.version),
            };
            let list = match get(client, &path).await {
                Ok((text, _)) => Some(parse::<APIResourceList>(&path, &text)?),
                Err(error) => {
                    tracing::debug!(path, %error, "a group version did not respond");
                    None
                }
            };
            Ok::<_, Error>((document, list))
        })
        .buffered(8)
        .try_collect()
        .await
}

fn collect_legacy(document: &LegacyDocument, list: APIResourceList, found: &mut ApiResources) {
    let (subresources, resources): (Vec<_>, Vec<_>) =
        list.resources.into_iter().partition(|resource| resource.name.contains('/'));
    for resource in resources {
        let names = subresources.iter().filter_map(|sub| sub.name.split_once('/'));
        let names = names.filter(|(parent, _)| *parent == resource.name).map(|(_, sub)| sub.to_owned());
        found.resources.push(ApiResource {
            gvr: Gvr::new(&document.group, &document.version, &resource.name),
            subresources: names.collect(),
            kind: resource.kind,
            singular: resource.singular_name,
            short_names: resource.short_names.unwrap_or_default(),
            categories: resource.categories.unwrap_or_default(),
            namespaced: resource.namespaced,
            verbs: resource.verbs.into_iter().collect(),
            preferred: document.preferred,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::convert::Infallible;

    const AGGREGATED: &str = r#"{"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": ""}, "versions": [{"version": "v1",
        "resources": [{"resource": "pods", "responseKind": {"kind": "Pod"}, "scope": "Namespaced", "verbs": ["list"]}]}]}]}"#;
    const LEGACY: [(&str, &str); 3] = [
        ("/api", r#"{"kind": "APIVersions", "versions": ["v1"]}"#),
        ("/apis", r#"{"kind": "APIGroupList", "groups": []}"#),
        (
            "/api/v1",
            r#"{"kind": "APIResourceList", "groupVersion": "v1",
            "resources": [{"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["list"]}]}"#,
        ),
    ];

    type RequestLog = Arc<Mutex<Vec<(String, u16)>>>;

    /// A server whose documents have the ETag `tag`, and its log of paths and status codes.
    fn server(tag: &Arc<Mutex<&'static str>>, aggregated: bool) -> (Client, RequestLog) {
        let log = RequestLog::default();
        let (tag, recorded) = (Arc::clone(tag), Arc::clone(&log));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (tag, path) = (*tag.lock(), request.uri().path().to_owned());
            let is_current = request.headers().get(header::IF_NONE_MATCH).is_some_and(|etag| etag == tag);
            let legacy =
                LEGACY.iter().find(|(legacy_path, _)| *legacy_path == path).map(|(_, text)| *text).unwrap_or_default();
            let response = match (aggregated, is_current) {
                (true, true) => Response::builder().status(304).body(Body::empty()),
                (true, false) => {
                    Response::builder().header(header::ETAG, tag).body(AGGREGATED.as_bytes().to_vec().into())
                }
                (false, _) => Response::builder().body(legacy.as_bytes().to_vec().into()),
            };
            let response: Response<Body> = response.expect("a response");
            recorded.lock().push((path, response.status().as_u16()));
            async move { Ok::<_, Infallible>(response) }
        });
        (Client::new(service, "default"), log)
    }

    /// Removes the requests from the log.
    fn take_requests(log: &RequestLog) -> Vec<String> {
        log.lock().drain(..).map(|(path, status)| format!("{status} {path}")).collect()
    }

    #[tokio::test]
    async fn unchanged_documents_are_not_read_again() {
        let tag = Arc::new(Mutex::new("\"one\""));
        let (client, log) = server(&tag, true);
        let first = rediscover(&client, None).await.expect("a response");
        assert_eq!(take_requests(&log), ["200 /api", "200 /apis"]);
        let second = rediscover(&client, Some(&first)).await.expect("a response");
        assert_eq!(take_requests(&log), ["304 /api", "304 /apis"]);
        assert!(Arc::ptr_eq(&first.resources, &second.resources));
        *tag.lock() = "\"two\"";
        let third = rediscover(&client, Some(&second)).await.expect("a response");
        assert_eq!(take_requests(&log), ["200 /api", "200 /api", "200 /apis"]);
        assert_eq!(first.resources, third.resources);
        rediscover(&client, Some(&third)).await.expect("a response");
        assert_eq!(take_requests(&log), ["304 /api", "304 /apis"]);
    }

    #[tokio::test]
    async fn documents_without_an_etag_are_always_read() {
        let (client, log) = server(&Arc::new(Mutex::new("\"one\"")), false);
        let first = rediscover(&client, None).await.expect("a response");
        let second = rediscover(&client, Some(&first)).await.expect("a response");
        assert_eq!(
            take_requests(&log),
            ["200 /api", "200 /api/v1", "200 /apis", "200 /api", "200 /api/v1", "200 /apis"]
        );
        assert_eq!(first.resources, second.resources);
        assert!(first.resources.get(&Gvr::new("", "v1", "pods")).is_some());
    }

    /// A server that negotiates the content type by the first match in Accept, like kube-apiserver.
    fn negotiating_server(
        types: &'static [&'static str],
        documents: &'static [(&'static str, &'static str)],
    ) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
            let is_acceptable =
                accept.unwrap_or_default().split(',').any(|media_type| types.contains(&media_type.trim()));
            let found = documents.iter().find(|(path, _)| *path == request.uri().path()).filter(|_| is_acceptable);
            let (status, text) = found.map_or((if is_acceptable { 503 } else { 406 }, "{}"), |(_, text)| (200, *text));
            let response = Response::builder().status(status).body(Body::from(text.as_bytes().to_vec()));
            async move { Ok::<_, Infallible>(response.expect("a response")) }
        });
        Client::new(service, "default")
    }

    /// Kubernetes 1.26 to 1.29.
    const V2BETA1: &[&str] = &["application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"];
    const PLAIN: &[&str] = &["application/json"];

    #[rstest::rstest]
    #[case::aggregated(V2BETA1, &[("/apis", r#"{"kind": "APIGroupDiscoveryList", "items": [
        {"metadata": {"name": "other.io"}, "versions": [{"version": "v1", "resources": [], "freshness": "Current"}]},
        {"metadata": {"name": "a.io"}, "versions": [
            {"version": "v1", "freshness": "Current", "resources": [{"resource": "as", "responseKind": {"kind": "A"}}]},
            {"version": "v2", "freshness": "Stale"}, {"version": "v3", "freshness": "Current"}]}]}"#)])]
    #[case::legacy(PLAIN, &[
        ("/apis", r#"{"kind": "APIGroupList", "groups": [
            {"name": "other.io", "versions": [{"groupVersion": "other.io/v1", "version": "v1"}]},
            {"name": "a.io", "versions": [{"groupVersion": "a.io/v1", "version": "v1"},
                {"groupVersion": "a.io/v2", "version": "v2"}, {"groupVersion": "a.io/v3", "version": "v3"}]}]}"#),
        ("/apis/a.io/v1", r#"{"kind": "APIResourceList", "groupVersion": "a.io/v1", "resources": [
            {"name": "as", "singularName": "a", "namespaced": true, "kind": "A", "verbs": []}]}"#),
        ("/apis/a.io/v3", r#"{"kind": "APIResourceList", "groupVersion": "a.io/v3", "resources": []}"#),
    ])]
    #[tokio::test]
    async fn groups_are_announced_in_any_discovery_format(
        #[case] types: &'static [&'static str],
        #[case] documents: &'static [(&'static str, &'static str)],
    ) {
        let found =
            announced_versions(&negotiating_server(types, documents), &["a.io", "b.io"]).await.expect("a response");
        assert_eq!(found, BTreeMap::from([("a.io/v1".to_owned(), 1), ("a.io/v3".to_owned(), 0)]));
    }
}
