//! `explain`: how a query is understood, and what each part of it finds and costs.

use async_trait::async_trait;
use axum::extract::Request;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use serde_json::json;

use super::call::{Call, typed};
use super::definition;
use super::openapi::{Operation, Q, named, of};

use crate::request::context::RequestContext;
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, body, list, number, object, text};
use crate::resource::{Definition, Resource};
use crate::server::Aggregated;

const OPERATION: Operation = Operation {
    summary: "What a query was taken for, and what each part of it finds and costs.",
    parameters: &[Q],
    object: false,
    answers: &[(JSON, &["SearchExplanation"])],
};

pub(super) struct Explain;

#[async_trait]
impl Resource for Explain {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("explain", "SearchExplanation");
        &DEFINITION
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        OPERATION.describe("explain", document);
        let step = json!({"what": text(), "hits": number(), "tookMs": {"type": "number"}, "parts": list(of("Step"))});
        document.schema(named("Step"), object(step, &["hits", "parts"]));
        let fields = json!({"query": text(), "ast": of("Object"), "asked": text(), "plan": of("Step"),
            "notices": list(of("Notice")), "tookMs": {"type": "number"}});
        document.schema(named("SearchExplanation"), body("SearchExplanation", fields, &[]));
    }

    async fn serve(
        &self,
        server: &Aggregated,
        context: &RequestContext,
        _request: Request,
    ) -> Result<Response, ApiError> {
        let call = Call::new(server, context).await?;
        let search = call.parameters.search(call.user)?;
        typed("SearchExplanation", &call.running.index.searcher().explain(&search).await.map_err(ApiError::internal)?)
    }
}
