//! `count`: number of objects that match.

use async_trait::async_trait;
use axum::extract::Request;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use serde_json::json;

use super::call::{Call, typed};
use super::definition;
use super::hits::skipped;
use super::openapi::{Operation, Q, named, of, relation};

use crate::request::context::RequestContext;
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, body, list, number};
use crate::resource::{Definition, Resource};
use crate::server::Aggregated;

const OPERATION: Operation = Operation {
    summary: "How many objects match.",
    parameters: &[Q],
    object: false,
    answers: &[(JSON, &["SearchCount"])],
};

pub(super) struct Count;

#[async_trait]
impl Resource for Count {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("count", "SearchCount");
        &DEFINITION
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        OPERATION.describe("count", document);
        let fields = json!({"total": number(), "totalRelation": relation(), "skipped": list(of("Skipped")),
            "notices": list(of("Notice"))});
        document.schema(named("SearchCount"), body("SearchCount", fields, &[]));
    }

    async fn serve(
        &self,
        server: &Aggregated,
        context: &RequestContext,
        _request: Request,
    ) -> Result<Response, ApiError> {
        let call = Call::new(server, context).await?;
        let search = call.parameters.search(call.user)?;
        let count = call.running.index.searcher().count(&search).await.map_err(ApiError::internal)?;
        let relation = if count.incomplete { "gte" } else { "eq" };
        let body = json!({"total": count.total, "totalRelation": relation, "skipped": skipped(&count.skipped),
            "notices": count.remarks});
        typed("SearchCount", &body)
    }
}
