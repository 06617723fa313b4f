//! `graph`: the objects that an object is related to, over `depth` steps.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use serde_json::json;

use super::call::{SearchCall, typed_response};
use super::definition;
use super::hits::summary;
use super::object::not_found_error;
use super::openapi::{Parameter, name_of, ref_to};
use super::operation::SearchOperation;

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{body, boolean, integer, list, object, string};

/// Default and maximum number of steps.
const DEFAULT_DEPTH: usize = 2;
const MAX_DEPTH: usize = 5;

pub(super) struct Graph;

impl SearchOperation for Graph {
    const DEFINITION: Definition = definition("graph", "ObjectGraph");
    const SUMMARY: &str = "Objects that an object is related to: owners, dependencies, events.";
    const PARAMETERS: &[Parameter] =
        &[Parameter::integer("depth", "Maximum number of steps, from 1 to 5 (default 2).")];
    const NAMES_OBJECT: bool = true;

    fn add_schemas(document: &mut Document) {
        let edge = object(json!({"from": integer(), "to": integer(), "relation": string()}), &[]);
        let fields = json!({"nodes": list(ref_to("Hit")), "more": boolean(), "edges": list(edge)});
        document.add_schema(name_of("ObjectGraph"), body("ObjectGraph", fields, &[]));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, user, parameters, .. } = call;
        let key = parameters.object()?;
        let depth = parameters.number_in("depth", 1..=MAX_DEPTH)?.unwrap_or(DEFAULT_DEPTH);
        let graph = running.cache.searcher().graph(user, &key, depth as u8).await.map_err(ApiError::internal)?;
        let crowsnest_search::Graph { nodes, edges, has_more } = graph.ok_or_else(|| not_found_error(&key))?;
        let nodes = nodes.iter().map(summary).collect::<Result<Vec<_>, _>>().map_err(ApiError::internal)?;
        typed_response("ObjectGraph", &json!({"nodes": nodes, "edges": edges, "more": has_more}))
    }
}
