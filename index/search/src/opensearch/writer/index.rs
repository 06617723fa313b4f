//! Requests about indices and aliases.

use super::WriterError;
use super::plan::{self, AliasTarget, IndexMapping, Origin, Step};
use crate::opensearch::client::{Client, ClientError, Request, Response, ignore_not_found};
use crowsnest_apimachinery::request::percent_encode;
use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Sends requests about the indices of a writer.
pub(super) struct Indices<'a> {
    pub client: &'a Client,
    /// Alias that searches use.
    pub alias: &'a str,
    pub template: &'a Value,
    pub origin: Origin,
}

/// Index to write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Alias that requests name.
    pub alias: String,
    pub index: String,
    /// The index that serves searches until this one has caught up and replaces it.
    pub replaces: Option<String>,
}

/// Result of writing a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteResult {
    Created,
    Updated,
    /// The engine has that version or a newer one.
    Superseded,
}

/// Response to a request for a document.
#[derive(Deserialize)]
struct DocumentResponse {
    #[serde(default)]
    found: bool,
    #[serde(rename = "_version")]
    version: Option<u64>,
}

#[derive(Deserialize)]
struct IndexName {
    index: String,
}

/// Steps before an index can be written to: creating, discarding and promoting each happen once.
const MAX_STEPS: usize = 8;

impl Indices<'_> {
    /// Finds or creates the index to write to.
    pub async fn prepare(&self) -> Result<Target, WriterError> {
        let rebuild_alias = plan::rebuild_alias(self.alias);
        for _ in 0..MAX_STEPS {
            let (live, rebuild) = (self.resolve_alias(self.alias).await?, self.resolve_alias(&rebuild_alias).await?);
            match plan::decide(live, rebuild, &self.origin)? {
                Step::Create => self.create(self.alias).await?,
                Step::CreateRebuild => self.create_rebuild().await?,
                Step::Discard { index } => self.delete(&index).await?,
                Step::Promote { index } => self.swap(&index, None).await?,
                Step::Follow { index } => {
                    return Ok(Target { alias: self.alias.to_owned(), index, replaces: None });
                }
                Step::Rebuild { index, old } => {
                    return Ok(Target { alias: rebuild_alias, index, replaces: Some(old) });
                }
            }
        }
        Err(WriterError::UnstableIndex)
    }

    pub async fn resolve_alias(&self, alias: &str) -> Result<AliasTarget, WriterError> {
        let path = format!("/{alias}/_mapping?expand_wildcards=all&filter_path=*.mappings._meta,*.mappings.dynamic");
        let response = self.client.send(&Request::get(path)).await;
        let mut mappings: BTreeMap<String, IndexMapping> = decode_if_found("a mapping", response)?.unwrap_or_default();
        if mappings.is_empty() {
            // An index whose mapping is empty is left out of the filtered response.
            let response = self.client.send(&Request::get(format!("/{alias}/_mapping"))).await;
            mappings = decode_if_found("a mapping", response)?.unwrap_or_default();
        }
        Ok(plan::resolve_alias(alias, &mappings))
    }

    /// Creates an index behind the rebuild alias unless there is one.
    pub async fn create_rebuild(&self) -> Result<(), WriterError> {
        let alias = plan::rebuild_alias(self.alias);
        match self.resolve_alias(&alias).await? {
            AliasTarget::None => self.create(&alias).await,
            AliasTarget::Usable { .. } => Ok(()),
            AliasTarget::Unusable(error) => Err(error.into()),
        }
    }

    /// Creates the next index behind an alias. Another writer may have done so meanwhile.
    async fn create(&self, alias: &str) -> Result<(), WriterError> {
        let path = format!("/_cat/indices/{}-*?format=json&h=index&expand_wildcards=all", self.alias);
        let existing: Vec<IndexName> =
            decode_if_found("a list of indices", self.client.send(&Request::get(path)).await)?.unwrap_or_default();
        let existing: Vec<String> = existing.into_iter().map(|name| name.index).collect();
        let index = plan::next_index(self.alias, &existing);
        let body = plan::index_body(self.template, alias, &self.origin).to_string();
        tracing::info!(index, alias, "creating an index in the search engine");
        match self.client.send(&Request::new(Method::PUT, format!("/{index}")).json(body)).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_kind("resource_already_exists_exception") => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Points the alias to an index and deletes the index that it replaces, in one atomic request.
    pub async fn swap(&self, index: &str, old: Option<&str>) -> Result<(), WriterError> {
        let mut actions = vec![
            json!({"remove": {"index": index, "alias": plan::rebuild_alias(self.alias)}}),
            json!({"add": {"index": index, "alias": self.alias}}),
        ];
        actions.extend(old.map(|old| json!({"remove_index": {"index": old}})));
        let body = json!({ "actions": actions }).to_string();
        tracing::info!(index, old, alias = self.alias, "moving an alias in the search engine");
        self.client.send(&Request::new(Method::POST, "/_aliases").json(body)).await?;
        Ok(())
    }

    pub async fn delete(&self, index: &str) -> Result<(), WriterError> {
        tracing::info!(index, "deleting an index in the search engine");
        let response = self.client.send(&Request::new(Method::DELETE, format!("/{index}"))).await;
        ignore_not_found(response).map(drop).map_err(Into::into)
    }

    /// Version of a document, which is its position. None if there is none.
    pub async fn version(&self, target: &Target, id: &str) -> Result<Option<u64>, WriterError> {
        self.version_in(&target.alias, id).await
    }

    /// Version of a document of an index or alias.
    pub async fn version_in(&self, index: &str, id: &str) -> Result<Option<u64>, WriterError> {
        let path = format!("/{index}/_doc/{}?_source=false", percent_encode(id));
        match self.client.send(&Request::get(path)).await {
            Ok(response) => {
                let document: DocumentResponse = decode("a document", &response)?;
                Ok(document.version.filter(|_| document.found))
            }
            // The response for a missing document has no error, that for a missing index has one.
            Err(error) if error.status() == Some(404) && error.is_kind("") => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes an empty document with an external version.
    pub async fn write_version(&self, target: &Target, id: &str, version: u64) -> Result<WriteResult, WriterError> {
        let query = format!("version={version}&version_type=external&require_alias=true");
        let path = format!("/{}/_doc/{}?{query}", target.alias, percent_encode(id));
        match self.client.send(&Request::new(Method::PUT, path).json("{}")).await {
            Ok(response) if response.status == 201 => Ok(WriteResult::Created),
            Ok(_) => Ok(WriteResult::Updated),
            Err(error) if error.status() == Some(409) => Ok(WriteResult::Superseded),
            Err(error) => Err(error.into()),
        }
    }
}

fn decode_if_found<T: DeserializeOwned>(
    operation: &'static str,
    response: Result<Response, ClientError>,
) -> Result<Option<T>, ClientError> {
    ignore_not_found(response)?.map(|response| decode(operation, &response)).transpose()
}

fn decode<T: DeserializeOwned>(operation: &'static str, response: &Response) -> Result<T, ClientError> {
    serde_json::from_slice(&response.body).map_err(|source| ClientError::Unreadable { operation, source })
}
