//! Resources: documents that assistants may read.

use serde_json::{Map, Value, json};

use crate::api::{Api, SEARCH_API, get};
use crate::message::{INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError};
use crate::methods::Era;
use crate::output::redact::redact_text;
use crate::output::{MAX_BUDGET_BYTES, ToolOutput};

const QUERY_LANGUAGE_URI: &str = "crowsnest://query-language";
const STATUS_URI: &str = "crowsnest://status";

/// Documentation page of the query language.
const QUERY_PAGE: &str = include_str!("../../../docs/QUERY.md");
/// Time in milliseconds for which clients may cache the page.
const PAGE_TTL_MS: u64 = 3_600_000;

/// Result of `resources/list`.
pub(crate) fn list() -> Value {
    json!([
        {"uri": QUERY_LANGUAGE_URI, "name": "query-language", "title": "The query language of search",
            "description": "Syntax, fields and relations of queries.", "mimeType": "text/markdown"},
        {"uri": STATUS_URI, "name": "status", "title": "State of the fleet",
            "description": "Clusters with their health, numbers of objects, and state of the cache.", "mimeType": "text/plain"},
    ])
}

/// Result of `resources/read`. Fails if the resource is unknown or the status cannot be read. `era` is that of the
/// request's protocol version; the code of the error for an unknown resource depends on it.
pub(crate) async fn read(api: &dyn Api, params: &Map<String, Value>, era: Era) -> Result<Value, RpcError> {
    let uri = params.get("uri").and_then(Value::as_str).unwrap_or_default();
    match uri {
        QUERY_LANGUAGE_URI => {
            let mut result = contents(uri, "text/markdown", QUERY_PAGE);
            (result["ttlMs"], result["cacheScope"]) = (PAGE_TTL_MS.into(), "public".into());
            Ok(result)
        }
        STATUS_URI => {
            let status = get(api, format!("{SEARCH_API}/status")).await;
            let status = status.map_err(|error| RpcError::new(INTERNAL_ERROR, redact_text(&error.message).0))?;
            let mut rows = Vec::new();
            crate::tools::push_leaves("", &status, &mut rows);
            let output = ToolOutput { rows, ..ToolOutput::table(["path", "value"], Vec::new()) };
            let mut result = contents(uri, "text/plain", &output.render(0, MAX_BUDGET_BYTES, |_| None).text);
            (result["ttlMs"], result["cacheScope"]) = (0.into(), "private".into());
            Ok(result)
        }
        _ => {
            let code = if era == Era::Modern { INVALID_PARAMS } else { RESOURCE_NOT_FOUND };
            Err(RpcError { data: Some(json!({"uri": uri})), ..RpcError::new(code, "resource not found") })
        }
    }
}

fn contents(uri: &str, media_type: &str, text: &str) -> Value {
    json!({"contents": [{"uri": uri, "mimeType": media_type, "text": text}]})
}
