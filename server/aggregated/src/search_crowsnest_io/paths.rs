//! `paths`: paths between objects that match a pattern.

use axum::response::Response;
use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_query::path::{PathPattern, PatternError, Property};
use crowsnest_query::{Limits, parse};
use crowsnest_search::paths::{MAX_PATHS, ResponseGraph};
use serde_json::{Value, json};

use super::call::{SearchCall, typed_response};
use super::definition;
use super::hits::{skipped, summary};
use super::openapi::{Parameter, name_of, ref_to, relation};
use super::operation::SearchOperation;

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{body, integer, list, object, string};

/// Default number of paths.
const DEFAULT_LIMIT: usize = 100;

pub(super) struct Paths;

impl SearchOperation for Paths {
    const DEFINITION: Definition = definition("paths", "ObjectPaths");
    const SUMMARY: &str = "Paths between objects that match a pattern, the shortest first.";
    const PARAMETERS: &[Parameter] = &[
        Parameter::string(
            "p",
            "Pattern of docs/PATHS.md: (:Secret {name: \"db\"})<-[:USES]-(:Pod), or secret/db <-USES- pod.",
        )
        .required(),
        Parameter::string("q", "Search query that the first object matches."),
        Parameter::boolean("shortest", "Return only the shortest paths between each pair of ends."),
        Parameter::integer("limit", "Maximum number of paths, at most 10000 (default 100)."),
        Parameter::boolean("explain", "Return only the pattern, in the form that graph databases read."),
    ];

    fn add_schemas(document: &mut Document) {
        let edge = json!({"from": integer(), "to": integer(), "type": string(), "via": list(string())});
        document.add_schema(name_of("PathEdge"), object(edge, &[]));
        let path = object(json!({"nodes": list(integer()), "edges": list(integer())}), &[]);
        let fields = json!({"pattern": string(), "nodes": list(ref_to("Hit")), "edges": list(ref_to("PathEdge")), "paths": list(path),
            "total": integer(), "totalRelation": relation(), "notices": list(string()), "skipped": list(ref_to("Skipped"))});
        let optional = ["nodes", "edges", "paths", "total", "totalRelation", "notices", "skipped"];
        document.add_schema(name_of("ObjectPaths"), body("ObjectPaths", fields, &optional));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, limits, user, parameters, .. } = call;
        let searcher = running.cache.searcher();
        let pattern = pattern(parameters.required("p")?, parameters.get("q").unwrap_or_default())?;
        let limit = parameters.number_in("limit", 0..=MAX_PATHS)?.unwrap_or(DEFAULT_LIMIT);
        let shortest = parameters.flag("shortest")?;
        if parameters.flag("explain")? {
            return typed_response("ObjectPaths", &json!({"pattern": searcher.canonical_pattern(pattern).to_string()}));
        }
        let _permit = limits.admit_path_search(user)?;
        let found = searcher.paths(user, pattern, shortest, limit).await.map_err(ApiError::internal)?;
        let mut body = graph_body(&found.graph)?;
        body["pattern"] = found.pattern.to_string().into();
        body["paths"] = json!(found.paths);
        body["total"] = found.total.into();
        typed_response("ObjectPaths", &body)
    }
}

/// The pattern; its first object also matches the query.
fn pattern(text: &str, query: &str) -> Result<PathPattern, ApiError> {
    let mut pattern: PathPattern =
        text.parse().map_err(|error: PatternError| invalid_pattern("p", &error.to_string()))?;
    if !query.is_empty() && !pattern.first.set(Property::Q, query.to_owned()) {
        return Err(invalid_pattern("q", "the first node of the pattern has a query; omit the parameter q"));
    }
    for (nth, node) in pattern.nodes().enumerate() {
        let Some(text) = node.property(Property::Q) else { continue };
        let field = if nth == 0 && !query.is_empty() { "q" } else { "p" };
        parse(text, &Limits::default())
            .map_err(|error| invalid_pattern(field, &format!("invalid q {text:?}: {error}")))?;
    }
    Ok(pattern)
}

/// 400 for an invalid pattern; the cause names the parameter.
fn invalid_pattern(parameter: &str, reason: &str) -> ApiError {
    let cause = FieldError::new(FieldErrorKind::Invalid, parameter, None, reason);
    ApiError::bad_request(format!("invalid pattern: {reason}")).with_causes(&[cause])
}

/// The objects of an answer, with their identity and state, and its edges.
pub(super) fn graph_body(graph: &ResponseGraph) -> Result<Value, ApiError> {
    let nodes = graph.nodes.iter().map(summary).collect::<Result<Vec<_>, _>>().map_err(ApiError::internal)?;
    Ok(json!({
        "nodes": nodes,
        "edges": graph.edges,
        "totalRelation": if graph.incomplete { "gte" } else { "eq" },
        "notices": graph.notices,
        "skipped": skipped(&graph.skipped),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_belongs_to_the_first_node() {
        let read = |text: &str, query: &str| {
            pattern(text, query).map(|pattern| pattern.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(read("pod --> *", "is:unhealthy").unwrap(), r#"(:pod {q: "is:unhealthy"})-[]->()"#);
        assert_eq!(read("pod --> *", "").unwrap(), "(:pod)-[]->()");
        assert!(read("({q: 'a'})", "b").unwrap_err().contains("omit the parameter q"));
        assert!(read("pod ->", "").unwrap_err().contains("invalid pattern: byte 5"));
        let nested = "(".repeat(100);
        assert!(read(&format!("({{q: '{nested}'}})"), "").unwrap_err().contains("nests deeper"));
        assert!(read("pod --> *", &nested).unwrap_err().contains("nests deeper"));
        let field = |text: &str, query: &str| {
            let status = pattern(text, query).unwrap_err().to_status();
            assert_eq!(status["code"], 400);
            status["details"]["causes"][0]["field"].clone()
        };
        assert_eq!(field("pod ->", ""), "p");
        assert_eq!(field(&format!("({{q: '{nested}'}})"), ""), "p");
        assert_eq!(field("pod --> *", &nested), "q");
    }
}
