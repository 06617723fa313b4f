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
    /// This version is the group's preferred one.
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
    pub fn preferred(&self) -> Vec<&ApiResource> {
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
pub struct Discovered {
    pub resources: Arc<ApiResources>,
    /// One per document; None for servers without aggregated discovery.
    tags: Option<Vec<HeaderValue>>,
}

/// Reads `/api` and `/apis`. A group whose backend is down is listed in `stale` and does not fail the discovery.
pub async fn discover(client: &Client) -> Result<ApiResources, Error> {
    Ok(discover_whole(client).await?.0)
}

/// Like [`discover`], but reads the documents only if their ETags changed.
pub async fn discover_again(client: &Client, before: Option<&Discovered>) -> Result<Discovered, Error> {
    if let Some(before) = before
        && let Some(tags) = &before.tags
        && offers_the_same(client, tags).await?
    {
        return Ok(before.clone());
    }
    let (resources, tags) = discover_whole(client).await?;
    Ok(Discovered { resources: Arc::new(resources), tags })
}

/// `group/version` of the given groups that a server announces, with the number of resources. Stale versions are
/// not included, because their resources are unknown.
pub async fn announced(client: &Client, groups: &[&str]) -> Result<BTreeMap<String, usize>, Error> {
    const PATH: &str = "/apis";
    let (text, _) = get(client, PATH).await?;
    let head: Head = parse(PATH, &text)?;
    if head.kind == "APIGroupDiscoveryList" {
        let list: GroupDiscoveryList = parse(PATH, &text)?;
        let wanted = list.items.into_iter().filter(|group| groups.contains(&group.metadata.name.as_str()));
        let versions = wanted.flat_map(|group| {
            let fresh = group.versions.into_iter().filter(|version| version.freshness != STALE);
            fresh.map(move |version| (group_version(&group.metadata.name, &version.version), version.resources.len()))
        });
        return Ok(versions.collect());
    }
    let mut documents = documents(PATH, &text)?;
    documents.retain(|document| groups.contains(&document.group.as_str()));
    let lists = lists(client, documents).await?.into_iter();
    Ok(lists.filter_map(|(of, list)| Some((group_version(&of.group, &of.version), list?.resources.len()))).collect())
}

async fn discover_whole(client: &Client) -> Result<(ApiResources, Option<Vec<HeaderValue>>), Error> {
    let mut found = ApiResources::default();
    let mut tags = Vec::new();
    for path in DOCUMENTS {
        let (text, tag) = get(client, path).await?;
        let head: Head = parse(path, &text)?;
        if head.kind == "APIGroupDiscoveryList" {
            let list: GroupDiscoveryList = parse(path, &text)?;
            list.collect_into(&mut found);
            tags.extend(tag);
        } else {
            legacy(client, path, &text, &mut found).await?;
        }
    }
    let all = tags.len() == DOCUMENTS.len();
    Ok((found, all.then_some(tags)))
}

/// True if every document still has its ETag.
async fn offers_the_same(client: &Client, tags: &[HeaderValue]) -> Result<bool, Error> {
    for (path, tag) in DOCUMENTS.iter().zip(tags) {
        if ask(client, path, Some(tag)).await?.status() != StatusCode::NOT_MODIFIED {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn ask(client: &Client, path: &str, unless: Option<&HeaderValue>) -> Result<Response<Body>, Error> {
    let mut request = Request::get(path).header(header::ACCEPT, ACCEPT_AGGREGATED);
    if let Some(tag) = unless {
        request = request.header(header::IF_NONE_MATCH, tag);
    }
    let request = request.body(Body::empty());
    let request = request.map_err(|e| Error::kube(format!("GET {path}"), kube::Error::HttpError(e)))?;
    client.send(request).await.map_err(|e| Error::kube(format!("GET {path}"), e))
}

/// A document and its ETag.
async fn get(client: &Client, path: &str) -> Result<(String, Option<HeaderValue>), Error> {
    let answer = ask(client, path, None).await?;
    let tag = answer.headers().get(header::ETAG).cloned();
    if answer.status().is_success() {
        let body = answer.into_body().collect_bytes().await;
        let body = body.map_err(|e| Error::kube(format!("GET {path}"), e))?;
        return Ok((String::from_utf8_lossy(&body).into_owned(), tag));
    }
    // This request returns the error with the server's message.
    let request = Request::get(path).header(header::ACCEPT, ACCEPT_AGGREGATED).body(Vec::new());
    let request = request.map_err(|e| Error::kube(format!("GET {path}"), kube::Error::HttpError(e)))?;
    Ok((client.request_text(request).await.map_err(|e| Error::kube(format!("GET {path}"), e))?, None))
}

fn parse<'a, T: Deserialize<'a>>(path: &str, text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text)
        .map_err(|e| Error::Parse { what: format!("GET {path} did not return a discovery document"), source: e.into() })
}

#[derive(Deserialize)]
struct Head {
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

/// A resource list of a server without aggregated discovery.
struct Document {
    group: String,
    version: String,
    preferred: bool,
}

/// Servers before 1.26: the group list, then each group version's resource list.
async fn legacy(client: &Client, path: &str, text: &str, found: &mut ApiResources) -> Result<(), Error> {
    for (of, list) in lists(client, documents(path, text)?).await? {
        match list {
            None => {
                found.stale.insert(group_version(&of.group, &of.version));
            }
            Some(list) => collect_legacy(&of, list, found),
        }
    }
    Ok(())
}

fn documents(path: &str, text: &str) -> Result<Vec<Document>, Error> {
    let mut documents = Vec::new();
    if path == "/api" {
        let versions: APIVersions = parse(path, text)?;
        documents.extend(versions.versions.into_iter().enumerate().map(|(nth, version)| Document {
            group: String::new(),
            version,
            preferred: nth == 0,
        }));
    } else {
        let groups: APIGroupList = parse(path, text)?;
        for group in groups.groups {
            let of = group.preferred_version.map(|version| version.version);
            documents.extend(group.versions.into_iter().map(|version| Document {
                group: group.name.clone(),
                preferred: of.as_deref() == Some(version.version.as_str()),
                version: version.version,
            }));
        }
    }
    Ok(documents)
}

/// The resource lists; None for those that did not respond.
async fn lists(client: &Client, documents: Vec<Document>) -> Result<Vec<(Document, Option<APIResourceList>)>, Error> {
    futures::stream::iter(documents)
        .map(|of| async move {
            let path = match of.group.as_str() {
                "" => format!("/api/{}", of.version),
                group => format!("/apis/{group}/{}", of.version),
            };
            let list = match get(client, &path).await {
                Ok((text, _)) => Some(parse::<APIResourceList>(&path, &text)?),
                Err(error) => {
                    tracing::debug!(path, %error, "a group version did not respond");
                    None
                }
            };
            Ok::<_, Error>((of, list))
        })
        .buffered(8)
        .try_collect()
        .await
}

fn collect_legacy(of: &Document, list: APIResourceList, found: &mut ApiResources) {
    let (subresources, resources): (Vec<_>, Vec<_>) =
        list.resources.into_iter().partition(|resource| resource.name.contains('/'));
    for resource in resources {
        let mine = subresources.iter().filter_map(|sub| sub.name.split_once('/'));
        let mine = mine.filter(|(parent, _)| *parent == resource.name).map(|(_, sub)| sub.to_owned());
        found.resources.push(ApiResource {
            gvr: Gvr::new(&of.group, &of.version, &resource.name),
            subresources: mine.collect(),
            kind: resource.kind,
            singular: resource.singular_name,
            short_names: resource.short_names.unwrap_or_default(),
            categories: resource.categories.unwrap_or_default(),
            namespaced: resource.namespaced,
            verbs: resource.verbs.into_iter().collect(),
            preferred: of.preferred,
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
    const OLDER: [(&str, &str); 3] = [
        ("/api", r#"{"kind": "APIVersions", "versions": ["v1"]}"#),
        ("/apis", r#"{"kind": "APIGroupList", "groups": []}"#),
        (
            "/api/v1",
            r#"{"kind": "APIResourceList", "groupVersion": "v1",
            "resources": [{"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["list"]}]}"#,
        ),
    ];

    type Answers = Arc<Mutex<Vec<(String, u16)>>>;

    /// A server whose documents have the ETag `tag`, and the requests it answered.
    fn server(tag: &Arc<Mutex<&'static str>>, aggregated: bool) -> (Client, Answers) {
        let answered = Answers::default();
        let (tag, recorded) = (Arc::clone(tag), Arc::clone(&answered));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (tag, path) = (*tag.lock(), request.uri().path().to_owned());
            let known = request.headers().get(header::IF_NONE_MATCH).is_some_and(|known| known == tag);
            let older = OLDER.iter().find(|(of, _)| *of == path).map(|(_, text)| *text).unwrap_or_default();
            let answer = match (aggregated, known) {
                (true, true) => Response::builder().status(304).body(Body::empty()),
                (true, false) => {
                    Response::builder().header(header::ETAG, tag).body(AGGREGATED.as_bytes().to_vec().into())
                }
                (false, _) => Response::builder().body(older.as_bytes().to_vec().into()),
            };
            let answer: Response<Body> = answer.expect("an answer");
            recorded.lock().push((path, answer.status().as_u16()));
            async move { Ok::<_, Infallible>(answer) }
        });
        (Client::new(service, "default"), answered)
    }

    fn took(answered: &Answers) -> Vec<String> {
        answered.lock().drain(..).map(|(path, status)| format!("{status} {path}")).collect()
    }

    #[tokio::test]
    async fn unchanged_documents_are_not_read_again() {
        let tag = Arc::new(Mutex::new("\"one\""));
        let (client, answered) = server(&tag, true);
        let first = discover_again(&client, None).await.expect("an answer");
        assert_eq!(took(&answered), ["200 /api", "200 /apis"]);
        let second = discover_again(&client, Some(&first)).await.expect("an answer");
        assert_eq!(took(&answered), ["304 /api", "304 /apis"]);
        assert!(Arc::ptr_eq(&first.resources, &second.resources));
        *tag.lock() = "\"two\"";
        let third = discover_again(&client, Some(&second)).await.expect("an answer");
        assert_eq!(took(&answered), ["200 /api", "200 /api", "200 /apis"]);
        assert_eq!(first.resources, third.resources);
        discover_again(&client, Some(&third)).await.expect("an answer");
        assert_eq!(took(&answered), ["304 /api", "304 /apis"]);
    }

    #[tokio::test]
    async fn documents_without_an_etag_are_always_read() {
        let (client, answered) = server(&Arc::new(Mutex::new("\"one\"")), false);
        let first = discover_again(&client, None).await.expect("an answer");
        let second = discover_again(&client, Some(&first)).await.expect("an answer");
        assert_eq!(took(&answered), ["200 /api", "200 /api/v1", "200 /apis", "200 /api", "200 /api/v1", "200 /apis"]);
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
            let spoken = accept.unwrap_or_default().split(',').any(|media_type| types.contains(&media_type.trim()));
            let found = documents.iter().find(|(path, _)| *path == request.uri().path()).filter(|_| spoken);
            let (status, text) = found.map_or((if spoken { 503 } else { 406 }, "{}"), |(_, text)| (200, *text));
            let answer = Response::builder().status(status).body(Body::from(text.as_bytes().to_vec()));
            async move { Ok::<_, Infallible>(answer.expect("an answer")) }
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
        let found = announced(&negotiating_server(types, documents), &["a.io", "b.io"]).await.expect("an answer");
        assert_eq!(found, BTreeMap::from([("a.io/v1".to_owned(), 1), ("a.io/v3".to_owned(), 0)]));
    }
}
