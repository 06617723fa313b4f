//! Reads ids, versions and clusters of all documents of an index, page by page.
//!
//! Uses a scroll in index order, which needs no sortable field and is supported by all backends.

use super::error::ExportError;
use super::indices::decode;
use crowsnest_api::constants::annotation::CACHED_FROM_CLUSTER;
use crowsnest_search::opensearch::client::{Client, Request};
use http::Method;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;

/// Time that a backend keeps a scroll between two pages.
const SCROLL_TIMEOUT: &str = "5m";

/// The properties of a document that a comparison needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundDocument {
    pub id: String,
    pub version: u64,
    /// Empty for a document without the annotation.
    pub cluster: String,
}

/// A scan of all documents of an index. Must be closed at the end.
pub(super) struct Scan<'a> {
    client: &'a Client,
    index: &'a str,
    page_size: usize,
    scroll_id: Option<String>,
    is_at_end: bool,
}

#[derive(Deserialize)]
struct Page {
    #[serde(rename = "_scroll_id")]
    scroll_id: Option<String>,
    #[serde(rename = "_shards")]
    shards: Shards,
    #[serde(default)]
    hits: Hits,
}

#[derive(Deserialize)]
struct Shards {
    total: u64,
    successful: u64,
}

#[derive(Default, Deserialize)]
struct Hits {
    #[serde(default)]
    hits: Vec<Hit>,
}

#[derive(Deserialize)]
struct Hit {
    #[serde(rename = "_id")]
    id: String,
    #[serde(rename = "_version")]
    version: Option<u64>,
    #[serde(rename = "_source", default)]
    source: Source,
}

#[derive(Default, Deserialize)]
struct Source {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: BTreeMap<String, serde_json::Value>,
}

impl<'a> Scan<'a> {
    pub fn new(client: &'a Client, index: &'a str, page_size: usize) -> Self {
        Self { client, index, page_size, scroll_id: None, is_at_end: false }
    }

    /// The next documents; empty at the end.
    pub async fn next(&mut self) -> Result<Vec<FoundDocument>, ExportError> {
        if self.is_at_end {
            return Ok(Vec::new());
        }
        let filter = "filter_path=_scroll_id,_shards.total,_shards.successful,hits.hits._id,hits.hits._version,hits.hits._source";
        let request = match &self.scroll_id {
            None => {
                let options = format!("scroll={SCROLL_TIMEOUT}&allow_partial_search_results=false&{filter}");
                let path = format!("/{}/_search?{options}", self.index);
                let body = json!({
                    "size": self.page_size, "sort": ["_doc"], "version": true,
                    "_source": [format!("metadata.annotations.{CACHED_FROM_CLUSTER}")],
                });
                Request::new(Method::POST, path).json(body.to_string())
            }
            Some(scroll_id) => {
                let body = json!({"scroll": SCROLL_TIMEOUT, "scroll_id": scroll_id}).to_string();
                Request::new(Method::POST, format!("/_search/scroll?{filter}")).json(body)
            }
        };
        let page: Page = decode("documents", &self.client.send(&request).await?)?;
        self.scroll_id = page.scroll_id.or(self.scroll_id.take());
        let Shards { total, successful } = page.shards;
        if successful < total {
            return Err(ExportError::Partial { index: self.index.to_owned(), responded: successful, total });
        }
        self.is_at_end = page.hits.hits.is_empty();
        Ok(page.hits.hits.into_iter().map(FoundDocument::from).collect())
    }

    /// Closes the scroll. The backend also closes it after a timeout, so a failure is not reported.
    pub async fn close(self) {
        let Some(scroll_id) = self.scroll_id else { return };
        let body = json!({"scroll_id": [scroll_id]}).to_string();
        if let Err(error) = self.client.send(&Request::new(Method::DELETE, "/_search/scroll").json(body)).await {
            tracing::debug!(error = error.chain(), "cannot close a scroll of the backend");
        }
    }
}

impl From<Hit> for FoundDocument {
    fn from(hit: Hit) -> Self {
        let cluster = hit.source.metadata.annotations.get(CACHED_FROM_CLUSTER).and_then(serde_json::Value::as_str);
        let cluster = cluster.unwrap_or_default().to_owned();
        Self { id: hit.id, version: hit.version.unwrap_or_default(), cluster }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_without_the_annotation_have_no_cluster() {
        let page = json!({"_shards": {"total": 1, "successful": 1}, "hits": {"hits": [
            {"_id": "a", "_version": 7, "_source": {"metadata": {"annotations": {"resource.karmada.io/cached-from-cluster": "m1"}}}},
            {"_id": "b", "_version": 1, "_source": {}},
            {"_id": "c"}]}});
        let page: Page = serde_json::from_value(page).unwrap();
        let found: Vec<FoundDocument> = page.hits.hits.into_iter().map(FoundDocument::from).collect();
        let document =
            |id: &str, version, cluster: &str| FoundDocument { id: id.into(), version, cluster: cluster.into() };
        assert_eq!(found, [document("a", 7, "m1"), document("b", 1, ""), document("c", 0, "")]);
    }
}
