//! Requests about the indices of a backend.

use super::document::{alias_of, alias_pattern, index_body};
use super::error::ExportError;
use crowsnest_search::opensearch::client::{Client, ClientError, Request, Response, ignore_not_found};
use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Cluster-wide identity of a backend.
#[derive(Deserialize)]
struct Root {
    cluster_uuid: String,
}

#[derive(Deserialize)]
struct IndexSettings {
    settings: Settings,
}

#[derive(Deserialize)]
struct Settings {
    index: IndexIdentity,
}

#[derive(Deserialize)]
struct IndexIdentity {
    uuid: String,
}

/// `cluster_uuid` of the backend, which is the same at all of its addresses.
pub(super) async fn identity(client: &Client) -> Result<String, ExportError> {
    let root: Root = decode("the identity", &client.send(&Request::get("/")).await?)?;
    Ok(root.cluster_uuid)
}

/// Indices that Crowsnest has written to.
pub(super) async fn list_written(client: &Client) -> Result<BTreeSet<String>, ExportError> {
    let path = format!("/_alias/{}", alias_pattern());
    let found: Option<BTreeMap<String, Value>> = decode_if_found("aliases", client.send(&Request::get(path)).await)?;
    Ok(found.unwrap_or_default().into_keys().collect())
}

/// Creates the index and its alias where they are missing, and returns the index's uuid.
pub(super) async fn ensure(client: &Client, index: &str) -> Result<String, ExportError> {
    let alias = alias_of(index);
    if let Some(uuid) = uuid_behind_alias(client, index, &alias).await? {
        return Ok(uuid);
    }
    let body = index_body(&alias).to_string();
    match client.send(&Request::new(Method::PUT, format!("/{index}")).json(body)).await {
        Ok(_) => tracing::info!(index, "created an index of Karmada's layout"),
        Err(error) if error.is_kind("resource_already_exists_exception") => {
            let actions = json!({"actions": [{"add": {"index": index, "alias": alias}}]}).to_string();
            match client.send(&Request::new(Method::POST, "/_aliases").json(actions)).await {
                Err(error) if error.is_kind("invalid_alias_name_exception") => {
                    return Err(ExportError::AliasIsIndex { other: alias });
                }
                other => other.map(drop)?,
            }
        }
        Err(error) if error.is_kind("invalid_alias_name_exception") => {
            return Err(ExportError::AliasIsIndex { other: alias });
        }
        Err(error) => return Err(error.into()),
    }
    uuid_behind_alias(client, index, &alias).await?.ok_or(ExportError::AliasIsIndex { other: alias })
}

/// Uuid of the index behind the alias; None unless the alias points at the index of this name alone.
async fn uuid_behind_alias(client: &Client, index: &str, alias: &str) -> Result<Option<String>, ExportError> {
    let path = format!("/{alias}/_settings?filter_path=*.settings.index.uuid");
    let found: Option<BTreeMap<String, IndexSettings>> =
        decode_if_found("settings", client.send(&Request::get(path)).await)?;
    let mut found = found.unwrap_or_default();
    Ok(found.remove(index).filter(|_| found.is_empty()).map(|found| found.settings.index.uuid))
}

/// Removes the alias of an index without documents of Crowsnest. The index is kept, because dashboards may refer to it.
pub(super) async fn remove_alias(client: &Client, index: &str) -> Result<(), ExportError> {
    let alias = alias_of(index);
    let removed = client.send(&Request::new(Method::DELETE, format!("/{index}/_alias/{alias}"))).await;
    ignore_not_found(removed).map(drop).map_err(Into::into)
}

/// Makes all written documents visible to searches.
pub(super) async fn refresh(client: &Client, index: &str) -> Result<(), ExportError> {
    client.send(&Request::new(Method::POST, format!("/{index}/_refresh"))).await.map(drop).map_err(Into::into)
}

fn decode_if_found<T: DeserializeOwned>(
    content: &'static str,
    response: Result<Response, ClientError>,
) -> Result<Option<T>, ExportError> {
    ignore_not_found(response)?.map(|response| decode(content, &response)).transpose()
}

pub(super) fn decode<T: DeserializeOwned>(content: &'static str, response: &Response) -> Result<T, ExportError> {
    serde_json::from_slice(&response.body).map_err(|source| ExportError::InvalidResponse { content, source })
}
