//! OpenAPI of the search API: operations and the schemas that several of them use.

use crowsnest_search::amount_names;
use serde_json::{Map, Value, json};

use super::NAME;
use crate::resource::openapi::{Document, schema_name};
use crate::resource::registry::VERSION;
use crate::resource::schema::{boolean, date_time, integer, list, object, reference, responses, status_schema, string};

pub(super) const ROOT: &str = "/apis/search.crowsnest.io/v1alpha1";

/// A query parameter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter {
    name: &'static str,
    kind: &'static str,
    description: &'static str,
    /// Returns the accepted values, which the description ends with.
    accepted_values: Option<fn() -> String>,
    is_required: bool,
}

impl Parameter {
    pub(super) const fn string(name: &'static str, description: &'static str) -> Self {
        Self { name, kind: "string", description, accepted_values: None, is_required: false }
    }

    pub(super) const fn integer(name: &'static str, description: &'static str) -> Self {
        Self { kind: "integer", ..Self::string(name, description) }
    }

    pub(super) const fn boolean(name: &'static str, description: &'static str) -> Self {
        Self { kind: "boolean", ..Self::string(name, description) }
    }

    pub(super) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    const fn with_accepted_values(self, names: fn() -> String) -> Self {
        Self { accepted_values: Some(names), ..self }
    }

    fn schema(&self) -> Value {
        let description = match self.accepted_values {
            Some(names) => format!("{} {}.", self.description, names()),
            None => self.description.to_owned(),
        };
        json!({"name": self.name, "in": "query", "required": self.is_required, "description": description,
            "schema": {"type": self.kind}})
    }
}

/// Media types with their possible schemas.
pub(super) type ResponseSchemas = &'static [(&'static str, &'static [&'static str])];

pub(super) const Q: Parameter = Parameter::string("q", "Search query, in the language of docs/QUERY.md.");
pub(super) const LIMIT: Parameter = Parameter::integer(
    "limit",
    "Maximum number of hits of a page, at most 5000; limit: in the query takes precedence.",
);
pub(super) const CURSOR: Parameter = Parameter::string("cursor", "Cursor of the previous page's response.");
pub(super) const FACETS: Parameter = Parameter::string(
    "facets",
    "Fields to count values of over all hits, separated by commas; label:KEY counts the values of a label.",
);
pub(super) const SUMS: Parameter = Parameter::string(
    "sums",
    "Fields to sum over the hits of each group of group: in the query, separated by commas; CPU in millicores, memory in bytes. Other fields than these are refused:",
)
.with_accepted_values(amount_names);
pub(super) const COLUMNS: Parameter = Parameter::string(
    "columns",
    "Additional columns of each hit, separated by commas: changed (the time of the last change), label:KEY, print:NAME (a column of kubectl's), print:* (all of these), .PATH into its manifest.",
);
const OBJECT: [Parameter; 5] = [
    Parameter::string("cluster", "Name of the member cluster.").required(),
    Parameter::string("apiVersion", "API version of the object.").required(),
    Parameter::string("resource", "Resource of the object (plural).").required(),
    Parameter::string("namespace", "Namespace of the object; empty for cluster-scoped objects."),
    Parameter::string("name", "Name of the object.").required(),
];

pub(super) const TEXT: &str = "text/plain";
pub(super) const EVENTS: &str = "text/event-stream";

/// The GET operation of a resource that has no objects of its own, such as `query`.
pub(super) struct Operation {
    pub(super) summary: &'static str,
    pub(super) parameters: &'static [Parameter],
    /// True if parameters name an object of a member.
    pub(super) names_object: bool,
    pub(super) responses: ResponseSchemas,
}

/// Responses with a Status.
pub(super) const FAILURES: [(&str, &str); 6] = [
    ("400", "A parameter cannot be parsed, or the query cannot be answered."),
    ("401", "The caller is not authenticated."),
    ("403", "The caller is not authorized to search."),
    ("404", "The object does not exist, or the caller is not authorized to read it."),
    ("422", "Parameters or the body are invalid; the causes name the fields."),
    ("429", "Too many requests are running, in total or of the caller; Retry-After names the delay."),
];

impl Operation {
    /// Adds the operation of a resource.
    pub(super) fn describe(&self, resource: &str, document: &mut Document) {
        let object = if self.names_object { OBJECT.as_slice() } else { &[] };
        let parameters: Vec<Value> = object.iter().chain(self.parameters).map(Parameter::schema).collect();
        let schema = |schemas: &[&str]| match schemas {
            [name] => ref_to(name),
            several => json!({"anyOf": several.iter().map(|name| ref_to(name)).collect::<Vec<_>>()}),
        };
        let content =
            self.responses.iter().map(|(kind, schemas)| ((*kind).to_owned(), json!({"schema": schema(schemas)})));
        let get = json!({"operationId": format!("search-{resource}"), "summary": self.summary, "tags": ["search"],
            "parameters": parameters, "responses": responses("200", Value::Object(content.collect()), &FAILURES)});
        document.add_path(format!("{ROOT}/{resource}"), json!({"get": get}));
    }
}

/// Name of the schema of a kind.
pub(super) fn name_of(kind: &str) -> String {
    schema_name(NAME, VERSION, kind)
}

/// A reference to the schema of a kind.
pub(super) fn ref_to(kind: &str) -> Value {
    reference(&name_of(kind))
}

pub(super) fn relation() -> Value {
    json!({"type": "string", "enum": ["eq", "gte"]})
}

/// Fields that identify an object.
pub(super) fn identity() -> Value {
    json!({"cluster": string(), "apiVersion": string(), "kind": string(), "resource": string(), "namespace": string(), "name": string(),
        "uid": string()})
}

/// Schemas that several resources use.
pub(super) fn schemas() -> Map<String, Value> {
    let mut hit = identity();
    let optional_fields = json!({"status": string(), "ready": string(), "restarts": integer(), "node": string(), "images": list(string()),
        "created": date_time(), "deleting": date_time(), "deleted": date_time(), "until": date_time(), "seq": integer(), "score": {"type": "number"},
        "matched": list(ref_to("Matched")), "columns": {"type": "object", "additionalProperties": string()}});
    let mut optional = vec!["namespace"];
    if let (Some(hit), Value::Object(optional_fields)) = (hit.as_object_mut(), &optional_fields) {
        hit.extend(optional_fields.clone());
        optional.extend(optional_fields.keys().map(String::as_str));
    }
    let marks = list(list(integer()));
    let sums = json!({"type": "object", "additionalProperties": integer(), "description": "Sums of the requested fields over the hits of the group."});
    let schemas: [(&str, Value); 9] = [
        ("Text", string()),
        (
            "Object",
            json!({"type": "object", "description": "A whole Kubernetes object.", "additionalProperties": true}),
        ),
        ("Hit", object(hit, &optional)),
        ("Matched", object(json!({"field": string(), "text": string(), "marks": marks}), &["marks"])),
        ("FacetValue", object(json!({"value": string(), "count": integer()}), &[])),
        ("Group", object(json!({"value": string(), "count": integer(), "sums": sums}), &["sums"])),
        (
            "Groups",
            object(
                json!({"field": string(), "values": list(ref_to("Group")),
                    "more": {"type": "integer", "format": "int64", "description": "Number of groups that are left out."}}),
                &[],
            ),
        ),
        (
            "Skipped",
            object(
                json!({"cluster": string(), "reason": string(), "resources": integer(), "missing": boolean(),
                    "ageSeconds": integer()}),
                &["ageSeconds"],
            ),
        ),
        ("Notice", object(json!({"message": string(), "start": integer(), "end": integer()}), &[])),
    ];
    let mut all_schemas: Map<String, Value> =
        schemas.map(|(kind, schema)| (name_of(kind), schema)).into_iter().collect();
    all_schemas.extend(status_schema());
    all_schemas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_that_can_be_summed_are_named() {
        let description = SUMS.schema()["description"].as_str().unwrap_or_default().to_owned();
        assert!(description.starts_with(SUMS.description) && description.contains(": restarts, "), "{description}");
        assert!(description.ends_with(", cpu.req, cpu.limit, mem.req, mem.limit."), "{description}");
        assert_eq!(Q.schema()["description"], Q.description);
    }
}
