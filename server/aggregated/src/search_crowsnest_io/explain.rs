//! `explain`: how a query is parsed, and the hits and cost of each part.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use serde_json::json;

use super::call::{SearchCall, typed_response};
use super::definition;
use super::openapi::{name_of, ref_to};
use super::operation::SearchOperation;

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{body, integer, list, object, string};

pub(super) struct Explain;

impl SearchOperation for Explain {
    const DEFINITION: Definition = definition("explain", "SearchExplanation");
    const SUMMARY: &str = "How a query was parsed, and the hits and cost of each part.";

    fn add_schemas(document: &mut Document) {
        let step =
            json!({"what": string(), "hits": integer(), "tookMs": {"type": "number"}, "parts": list(ref_to("Step"))});
        document.add_schema(name_of("Step"), object(step, &["hits", "parts"]));
        let fields = json!({"query": string(), "ast": ref_to("Object"), "asked": string(), "plan": ref_to("Step"),
            "notices": list(ref_to("Notice")), "tookMs": {"type": "number"}});
        document.add_schema(name_of("SearchExplanation"), body("SearchExplanation", fields, &[]));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let search = call.parameters.search(call.user)?;
        typed_response(
            "SearchExplanation",
            &call.running.cache.searcher().explain(&search).await.map_err(ApiError::internal)?,
        )
    }
}
