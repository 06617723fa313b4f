//! `graph`: the objects that an object is related to, over `depth` steps.

use async_trait::async_trait;
use axum::extract::Request;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use serde_json::json;

use super::call::{Call, typed};
use super::definition;
use super::hits::summary;
use super::object::unknown;
use super::openapi::{Operation, named, of};

use crate::request::context::RequestContext;
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, body, flag, list, number, object, text};
use crate::resource::{Definition, Resource};
use crate::server::Aggregated;

/// Default and maximum number of steps.
const DEPTH: usize = 2;
const MOST_DEPTH: usize = 5;

const OPERATION: Operation = Operation {
    summary: "What an object is related to: owners, what is used, events.",
    parameters: &[("depth", "integer", "Steps, five at most.", false)],
    object: true,
    answers: &[(JSON, &["ObjectGraph"])],
};

pub(super) struct Graph;

#[async_trait]
impl Resource for Graph {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("graph", "ObjectGraph");
        &DEFINITION
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        OPERATION.describe("graph", document);
        let edge = object(json!({"from": number(), "to": number(), "relation": text()}), &[]);
        let fields = json!({"nodes": list(of("Hit")), "more": flag(), "edges": list(edge)});
        document.schema(named("ObjectGraph"), body("ObjectGraph", fields, &[]));
    }

    async fn serve(
        &self,
        server: &Aggregated,
        context: &RequestContext,
        _request: Request,
    ) -> Result<Response, ApiError> {
        let Call { running, user, parameters } = Call::new(server, context).await?;
        let key = parameters.object()?;
        let depth = parameters.number("depth")?.unwrap_or(DEPTH).clamp(1, MOST_DEPTH);
        let graph = running.index.searcher().graph(user, &key, depth as u8).await.map_err(ApiError::internal)?;
        let crowsnest_search::Graph { nodes, edges, more } = graph.ok_or_else(|| unknown(&key))?;
        let nodes = nodes.iter().map(summary).collect::<Result<Vec<_>, _>>().map_err(ApiError::internal)?;
        typed("ObjectGraph", &json!({"nodes": nodes, "edges": edges, "more": more}))
    }
}
