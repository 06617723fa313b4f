//! `suggest`: completions at a position of a query.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_search::SuggestRequest;
use serde_json::json;

use super::call::{SearchCall, typed_response};
use super::definition;
use super::openapi::{LIMIT, Parameter, Q, name_of};
use super::operation::SearchOperation;

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{body, boolean, integer, list, object, string};

/// Default number of suggestions.
const DEFAULT_LIMIT: usize = 20;

pub(super) struct Suggest;

impl SearchOperation for Suggest {
    const DEFINITION: Definition = definition("suggest", "SearchSuggestions");
    const SUMMARY: &str = "Completions at a position of a query: fields, or values with their number of objects.";
    const PARAMETERS: &[Parameter] =
        &[Q, Parameter::integer("cursor", "Byte offset of the position (default: the end of the query)."), LIMIT];

    fn add_schemas(document: &mut Document) {
        let suggestion = object(json!({"text": string(), "about": string(), "count": integer()}), &["about", "count"]);
        let fields = json!({"start": integer(), "end": integer(), "field": string(), "items": list(suggestion),
            "range": list(integer()), "incomplete": boolean(), "notices": list(string())});
        let optional = &["field", "range", "incomplete", "notices"];
        document.add_schema(name_of("SearchSuggestions"), body("SearchSuggestions", fields, optional));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, user, parameters, .. } = call;
        let request = SuggestRequest {
            query: parameters.get("q").unwrap_or_default().to_owned(),
            cursor: parameters.number("cursor")?.unwrap_or(usize::MAX),
            caller: user.clone(),
            limit: parameters.number("limit")?.unwrap_or(DEFAULT_LIMIT),
        };
        typed_response(
            "SearchSuggestions",
            &running.cache.searcher().suggest(&request).await.map_err(ApiError::internal)?,
        )
    }
}
