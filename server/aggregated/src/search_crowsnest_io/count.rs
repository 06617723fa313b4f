//! `count`: number of objects that match.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use serde_json::json;

use super::call::{SearchCall, typed_response};
use super::definition;
use super::hits::skipped;
use super::openapi::{name_of, ref_to, relation};
use super::operation::SearchOperation;

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{body, integer, list};

pub(super) struct Count;

impl SearchOperation for Count {
    const DEFINITION: Definition = definition("count", "SearchCount");
    const SUMMARY: &str = "Number of matching objects.";

    fn add_schemas(document: &mut Document) {
        let fields = json!({"total": integer(), "totalRelation": relation(), "skipped": list(ref_to("Skipped")),
            "notices": list(ref_to("Notice"))});
        document.add_schema(name_of("SearchCount"), body("SearchCount", fields, &[]));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let search = call.parameters.search(call.user)?;
        let count = call.running.cache.searcher().count(&search).await.map_err(ApiError::internal)?;
        let relation = if count.incomplete { "gte" } else { "eq" };
        let body = json!({"total": count.total, "totalRelation": relation, "skipped": skipped(&count.skipped),
            "notices": count.notices});
        typed_response("SearchCount", &body)
    }
}
