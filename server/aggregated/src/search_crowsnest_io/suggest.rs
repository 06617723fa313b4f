//! `suggest`: completions at a position of a query.

use async_trait::async_trait;
use axum::extract::Request;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_search::SuggestRequest;
use serde_json::json;

use super::call::{Call, typed};
use super::definition;
use super::openapi::{LIMIT, Operation, Q, named};

use crate::request::context::RequestContext;
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, body, list, number, object, text};
use crate::resource::{Definition, Resource};
use crate::server::Aggregated;

/// Default number of suggestions.
const SUGGESTIONS: usize = 20;

const OPERATION: Operation = Operation {
    summary: "What may be written at a place of a query: fields, or values with how many objects have them.",
    parameters: &[Q, ("cursor", "integer", "Bytes of the query before the place; its end when absent.", false), LIMIT],
    object: false,
    answers: &[(JSON, &["SearchSuggestions"])],
};

pub(super) struct Suggest;

#[async_trait]
impl Resource for Suggest {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("suggest", "SearchSuggestions");
        &DEFINITION
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        OPERATION.describe("suggest", document);
        let suggestion = object(json!({"text": text(), "about": text(), "count": number()}), &["about", "count"]);
        let fields = json!({"start": number(), "end": number(), "field": text(), "items": list(suggestion),
            "range": list(number())});
        document.schema(named("SearchSuggestions"), body("SearchSuggestions", fields, &["field", "range"]));
    }

    async fn serve(
        &self,
        server: &Aggregated,
        context: &RequestContext,
        _request: Request,
    ) -> Result<Response, ApiError> {
        let Call { running, user, parameters } = Call::new(server, context).await?;
        let request = SuggestRequest {
            query: parameters.get("q").unwrap_or_default().to_owned(),
            cursor: parameters.number("cursor")?.unwrap_or(usize::MAX),
            caller: user.clone(),
            limit: parameters.number("limit")?.unwrap_or(SUGGESTIONS),
        };
        typed("SearchSuggestions", &running.index.searcher().suggest(&request).await.map_err(ApiError::internal)?)
    }
}
