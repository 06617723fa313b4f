//! `blastradius`: the objects that depend on an object, directly and transitively, or those on which it depends.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_search::paths::{CLOSURE_STEPS, DependencyDirection};
use serde_json::json;

use super::call::{SearchCall, typed_response};
use super::definition;
use super::object::not_found_error;
use super::openapi::{Parameter, name_of, ref_to, relation};
use super::operation::SearchOperation;
use super::paths::graph_body;

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{body, integer, list, object, string};

pub(super) struct BlastRadius;

impl SearchOperation for BlastRadius {
    const DEFINITION: Definition = definition("blastradius", "BlastRadius");
    const SUMMARY: &str = "Objects that depend on an object, directly and transitively, by kind and cluster.";
    const PARAMETERS: &[Parameter] = &[
        Parameter::integer("depth", "Maximum number of steps, from 1 to 8 (the default)."),
        Parameter::boolean("dependencies", "Return the objects on which it depends instead."),
    ];
    const NAMES_OBJECT: bool = true;

    fn add_schemas(document: &mut Document) {
        let reached = object(json!({"node": integer(), "distance": integer(), "edge": integer()}), &[]);
        let count =
            object(json!({"cluster": string(), "kind": string(), "direct": integer(), "transitive": integer()}), &[]);
        let fields = json!({"nodes": list(ref_to("Hit")), "edges": list(ref_to("PathEdge")), "reached": list(reached),
            "counts": list(count), "totalRelation": relation(), "notices": list(string()), "skipped": list(ref_to("Skipped"))});
        document.add_schema(name_of("BlastRadius"), body("BlastRadius", fields, &[]));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, limits, user, parameters, .. } = call;
        let key = parameters.object()?;
        let steps = usize::from(CLOSURE_STEPS);
        let depth = parameters.number_in("depth", 1..=steps)?.unwrap_or(steps) as u8;
        let direction = if parameters.flag("dependencies")? {
            DependencyDirection::Dependencies
        } else {
            DependencyDirection::Dependents
        };
        let _permit = limits.admit_path_search(user)?;
        let found = running.cache.searcher().closure(user, &key, direction, depth).await.map_err(ApiError::internal)?;
        let found = found.ok_or_else(|| not_found_error(&key))?;
        let mut body = graph_body(&found.graph)?;
        body["reached"] = json!(found.reached);
        body["counts"] = json!(found.counts);
        typed_response("BlastRadius", &body)
    }
}
