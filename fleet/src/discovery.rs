//! What an API server serves: aggregated discovery (v2, v2beta1), or the older documents one by one.

use crate::Error;
use crowsnest_api::names::Gvr;
use futures::stream::{StreamExt, TryStreamExt};
use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList, APIVersions};
use kube::Client;
use serde::Deserialize;
use std::collections::BTreeSet;

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
    /// The group's preferred version is this one.
    pub preferred: bool,
}

impl ApiResource {
    /// Can be cached.
    pub fn is_listable(&self) -> bool {
        self.verbs.contains("list") && self.verbs.contains("watch")
    }
}

/// Everything a server offers, and what it could not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiResources {
    pub resources: Vec<ApiResource>,
    /// `group/version` whose backend did not answer; its resources are unknown, not gone.
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

/// Asks `/api` and `/apis`. A group whose backend is down is reported in `stale` rather than failing the rest.
pub async fn discover(client: &Client) -> Result<ApiResources, Error> {
    let mut found = ApiResources::default();
    for path in ["/api", "/apis"] {
        let text = get(client, path).await?;
        let head: Head = parse(path, &text)?;
        if head.kind == "APIGroupDiscoveryList" {
            let list: GroupDiscoveryList = parse(path, &text)?;
            list.collect_into(&mut found);
        } else {
            legacy(client, path, &text, &mut found).await?;
        }
    }
    Ok(found)
}

async fn get(client: &Client, path: &str) -> Result<String, Error> {
    let request = Request::get(path).header(http::header::ACCEPT, ACCEPT_AGGREGATED).body(Vec::new());
    let request = request.map_err(|e| Error::kube(format!("GET {path}"), kube::Error::HttpError(e)))?;
    client.request_text(request).await.map_err(|e| Error::kube(format!("GET {path}"), e))
}

fn parse<'a, T: Deserialize<'a>>(path: &str, text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text)
        .map_err(|e| Error::Parse { what: format!("the answer to GET {path} is not discovery"), source: e.into() })
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
                if version.freshness == "Stale" {
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

/// Servers before 1.26: the group list, then each group version's resource list.
async fn legacy(client: &Client, path: &str, text: &str, found: &mut ApiResources) -> Result<(), Error> {
    let mut documents: Vec<(String, String, bool)> = Vec::new();
    if path == "/api" {
        let versions: APIVersions = parse(path, text)?;
        documents.extend(versions.versions.into_iter().enumerate().map(|(nth, v)| (String::new(), v, nth == 0)));
    } else {
        let groups: APIGroupList = parse(path, text)?;
        for group in groups.groups {
            let preferred = group.preferred_version.map(|version| version.version);
            for version in group.versions {
                let is_preferred = preferred.as_deref() == Some(version.version.as_str());
                documents.push((group.name.clone(), version.version, is_preferred));
            }
        }
    }
    let lists: Vec<_> = futures::stream::iter(documents)
        .map(|(group, version, preferred)| async move {
            let path = match group.as_str() {
                "" => format!("/api/{version}"),
                group => format!("/apis/{group}/{version}"),
            };
            let list = match get(client, &path).await {
                Ok(text) => Some(parse::<APIResourceList>(&path, &text)?),
                Err(error) => {
                    tracing::debug!(path, %error, "a group version does not answer");
                    None
                }
            };
            Ok::<_, Error>((group, version, preferred, list))
        })
        .buffered(8)
        .try_collect()
        .await?;
    for (group, version, preferred, list) in lists {
        match list {
            None => {
                found.stale.insert(group_version(&group, &version));
            }
            Some(list) => collect_legacy(&group, &version, preferred, list, found),
        }
    }
    Ok(())
}

fn collect_legacy(group: &str, version: &str, preferred: bool, list: APIResourceList, found: &mut ApiResources) {
    let (subresources, resources): (Vec<_>, Vec<_>) =
        list.resources.into_iter().partition(|resource| resource.name.contains('/'));
    for resource in resources {
        let mine = subresources.iter().filter_map(|sub| sub.name.split_once('/'));
        let mine = mine.filter(|(parent, _)| *parent == resource.name).map(|(_, sub)| sub.to_owned());
        found.resources.push(ApiResource {
            gvr: Gvr::new(group, version, &resource.name),
            subresources: mine.collect(),
            kind: resource.kind,
            singular: resource.singular_name,
            short_names: resource.short_names.unwrap_or_default(),
            categories: resource.categories.unwrap_or_default(),
            namespaced: resource.namespaced,
            verbs: resource.verbs.into_iter().collect(),
            preferred,
        });
    }
}
