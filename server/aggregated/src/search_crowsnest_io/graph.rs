//! `graph`: the objects that an object is related to, over `depth` steps.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use serde_json::json;

use super::call::{SearchCall, typed};
use super::definition;
use super::hits::summary;
use super::object::unknown;
use super::openapi::{Parameter, ResponseSchemas, named, of};
use super::operation::SearchOperation;

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, body, boolean, integer, list, object, string};

/// Default and maximum number of steps.
const DEPTH: usize = 2;
const MOST_DEPTH: usize = 5;

pub(super) struct Graph;

impl SearchOperation for Graph {
    const DEFINITION: Definition = definition("graph", "ObjectGraph");
    const SUMMARY: &str = "Objects that an object is related to: owners, dependencies, events.";
    const PARAMETERS: &[Parameter] = &[("depth", "integer", "Maximum number of steps, at most 5.", false)];
    const NAMES_OBJECT: bool = true;
    const ANSWERS: ResponseSchemas = &[(JSON, &["ObjectGraph"])];

    fn schemas(document: &mut Document) {
        let edge = object(json!({"from": integer(), "to": integer(), "relation": string()}), &[]);
        let fields = json!({"nodes": list(of("Hit")), "more": boolean(), "edges": list(edge)});
        document.schema(named("ObjectGraph"), body("ObjectGraph", fields, &[]));
    }

    async fn answer(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, user, parameters, .. } = call;
        let key = parameters.object()?;
        let depth = parameters.number("depth")?.unwrap_or(DEPTH).clamp(1, MOST_DEPTH);
        let graph = running.index.searcher().graph(user, &key, depth as u8).await.map_err(ApiError::internal)?;
        let crowsnest_search::Graph { nodes, edges, more } = graph.ok_or_else(|| unknown(&key))?;
        let nodes = nodes.iter().map(summary).collect::<Result<Vec<_>, _>>().map_err(ApiError::internal)?;
        typed("ObjectGraph", &json!({"nodes": nodes, "edges": edges, "more": more}))
    }
}
