//! Resources: documents that assistants may read.

use serde_json::{Map, Value, json};

use crate::api::{Api, SEARCH, get};
use crate::message::{INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError};
use crate::methods::Era;
use crate::output::redact::redact_text;
use crate::output::{Answer, MAX_BUDGET};

const QUERY_LANGUAGE: &str = "crowsnest://query-language";
const STATUS: &str = "crowsnest://status";

/// The page of the documentation.
const QUERY_PAGE: &str = include_str!("../../../docs/QUERY.md");
/// Time in milliseconds for which the page may be kept.
const PAGE_TTL_MS: u64 = 3_600_000;

pub(crate) fn list() -> Value {
    json!([
        {"uri": QUERY_LANGUAGE, "name": "query-language", "title": "The query language of search",
            "description": "Syntax, fields and relations of queries.", "mimeType": "text/markdown"},
        {"uri": STATUS, "name": "status", "title": "State of the fleet",
            "description": "Clusters with their health, numbers of objects, and state of the cache.", "mimeType": "text/plain"},
    ])
}

pub(crate) async fn read(api: &dyn Api, params: &Map<String, Value>, era: Era) -> Result<Value, RpcError> {
    let uri = params.get("uri").and_then(Value::as_str).unwrap_or_default();
    match uri {
        QUERY_LANGUAGE => {
            let mut result = contents(uri, "text/markdown", QUERY_PAGE);
            (result["ttlMs"], result["cacheScope"]) = (PAGE_TTL_MS.into(), "public".into());
            Ok(result)
        }
        STATUS => {
            let status = get(api, format!("{SEARCH}/status")).await;
            let status = status.map_err(|error| RpcError::new(INTERNAL_ERROR, redact_text(&error.message).0))?;
            let mut rows = Vec::new();
            crate::tools::leaves("", &status, &mut rows);
            let answer = Answer { rows, ..Answer::table(["path", "value"], Vec::new()) };
            let mut result = contents(uri, "text/plain", &answer.render(0, MAX_BUDGET, |_| None).text);
            (result["ttlMs"], result["cacheScope"]) = (0.into(), "private".into());
            Ok(result)
        }
        _ => {
            let code = if era == Era::Modern { INVALID_PARAMS } else { RESOURCE_NOT_FOUND };
            Err(RpcError { data: Some(json!({"uri": uri})), ..RpcError::new(code, "resource not found") })
        }
    }
}

fn contents(uri: &str, kind: &str, text: &str) -> Value {
    json!({"contents": [{"uri": uri, "mimeType": kind, "text": text}]})
}
