//! OpenAPI of the search API: its paths, what they take and what they answer.

use serde_json::{Map, Value, json};

const ROOT: &str = "/apis/search.crowsnest.io/v1alpha1";

/// (name, type, what it is, needed)
type Parameter = (&'static str, &'static str, &'static str, bool);

const Q: Parameter = ("q", "string", "The query, in the language of docs/QUERY.md.", false);
const LIMIT: Parameter = ("limit", "integer", "Hits of one page, 5000 at most; limit: in the query wins.", false);
const CURSOR: Parameter = ("cursor", "string", "Where the page before ended, as its answer said.", false);
const FACETS: Parameter = (
    "facets",
    "string",
    "Fields whose values are counted over all hits, separated by commas; label:KEY counts the values of a label.",
    false,
);
const OBJECT: [Parameter; 5] = [
    ("cluster", "string", "The member's name.", true),
    ("apiVersion", "string", "Group and version.", true),
    ("resource", "string", "Plural of the kind.", true),
    ("namespace", "string", "Empty for objects without one.", false),
    ("name", "string", "The object's name.", true),
];

struct Path {
    name: &'static str,
    summary: &'static str,
    parameters: &'static [Parameter],
    /// Of an object, and further ones.
    object: bool,
    answers: &'static [(&'static str, &'static str)],
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const EVENTS: &str = "text/event-stream";

const LOGS: &[Parameter] = &[
    Q,
    ("labelSelector", "string", "Of the pods.", false),
    ("namespace", "string", "Of the pods; may be repeated.", false),
    ("cluster", "string", "Of the pods; may be repeated.", false),
    ("pod", "string", "A regular expression their names match.", false),
    ("container", "string", "A regular expression the containers' names match.", false),
    ("init", "boolean", "Init containers too; true when absent.", false),
    ("ephemeral", "boolean", "Ephemeral containers too; true when absent.", false),
    ("include", "string", "A regular expression lines match; may be repeated: one of them.", false),
    ("exclude", "string", "A regular expression lines do not match; may be repeated: none of them.", false),
    ("since", "string", "How long ago lines were said at most, as 90s, 15m, 2h30m or 7d.", false),
    ("sinceTime", "string", "When lines were said at the earliest (RFC 3339).", false),
    ("tail", "integer", "The last lines of each container, -1 for all; 10 when neither it nor a time is said.", false),
    ("previous", "boolean", "Of the runs before the last restarts.", false),
    ("follow", "boolean", "Go on with what is said, and with pods that come.", false),
    ("timestamps", "boolean", "Lines of text with their times.", false),
    ("prefix", "boolean", "Lines of text with where they come from; true when absent.", false),
    ("maxStreams", "integer", "Logs that are read at once, 100 when absent, 500 at most.", false),
];

const PATHS: &[Path] = &[
    Path {
        name: "query",
        summary: "Objects that match, best first, with counts; as server-sent events (notices, skipped, facets, groups, matches, done, error) when asked for by Accept. With watch=true the events go on: changed, left, counts, behind.",
        parameters: &[Q, LIMIT, CURSOR, FACETS, ("watch", "boolean", "Go on with what changes.", false)],
        object: false,
        answers: &[(JSON, "SearchResult"), (EVENTS, "SearchEvents")],
    },
    Path {
        name: "count",
        summary: "How many objects match.",
        parameters: &[Q],
        object: false,
        answers: &[(JSON, "SearchCount")],
    },
    Path {
        name: "explain",
        summary: "What a query was taken for, and what each part of it finds and costs.",
        parameters: &[Q],
        object: false,
        answers: &[(JSON, "SearchExplanation")],
    },
    Path {
        name: "suggest",
        summary: "What may be written at a place of a query: fields, or values with how many objects have them.",
        parameters: &[
            Q,
            ("cursor", "integer", "Bytes of the query before the place; its end when absent.", false),
            LIMIT,
        ],
        object: false,
        answers: &[(JSON, "SearchSuggestions")],
    },
    Path {
        name: "export",
        summary: "All hits: whole objects as JSON lines, or columns as CSV.",
        parameters: &[
            Q,
            LIMIT,
            ("format", "string", "jsonl or csv.", false),
            ("columns", "string", "Of CSV, separated by commas: fields of a hit, or label:KEY.", false),
        ],
        object: false,
        answers: &[("application/jsonl", "Object"), ("text/csv", "Text")],
    },
    Path {
        name: "logs",
        summary: "The logs of the pods that match, in the order of their times; as server-sent events (notices, skipped, joined, line, refused, left, done, error) when asked for by Accept.",
        parameters: LOGS,
        object: false,
        answers: &[(TEXT, "Text"), (EVENTS, "LogEvents")],
    },
    Path {
        name: "history",
        summary: "The versions of an object that are kept, newest first; with seq the manifest of one.",
        parameters: &[("seq", "integer", "A version, by the change that began it.", false)],
        object: true,
        answers: &[(JSON, "ObjectHistory")],
    },
    Path {
        name: "diff",
        summary: "What differs between two versions of an object, or between it and the one of that name in another cluster.",
        parameters: &[
            ("from", "string", "A seq, or now; what it was last when absent.", false),
            ("to", "string", "A seq, or now.", false),
            ("with", "string", "Another cluster.", false),
        ],
        object: true,
        answers: &[(JSON, "ObjectDiff")],
    },
    Path {
        name: "graph",
        summary: "What an object is related to: owners, what is used, events.",
        parameters: &[("depth", "integer", "Steps, five at most.", false)],
        object: true,
        answers: &[(JSON, "ObjectGraph")],
    },
    Path {
        name: "status",
        summary: "The fleet at a glance; followed with watch=true.",
        parameters: &[("watch", "boolean", "Go on with what changes, as server-sent events.", false)],
        object: false,
        answers: &[(JSON, "FleetStatus"), (EVENTS, "FleetStatusEvents")],
    },
];

fn parameter((name, kind, description, required): &Parameter) -> Value {
    json!({"name": name, "in": "query", "required": required, "description": description, "schema": {"type": kind}})
}

/// Paths of the search API.
pub(crate) fn paths() -> Map<String, Value> {
    let path = |path: &Path| {
        let object = if path.object { OBJECT.as_slice() } else { &[] };
        let parameters: Vec<Value> = object.iter().chain(path.parameters).map(parameter).collect();
        let content: Map<String, Value> = path
            .answers
            .iter()
            .map(|(kind, schema)| ((*kind).to_owned(), json!({"schema": {"$ref": reference(schema)}})))
            .collect();
        let answers = json!({
            "200": {"description": "OK", "content": content},
            "400": {"description": "A parameter cannot be read: a Status."},
            "401": {"description": "Unauthorized"},
            "403": {"description": "The caller may not ask: a Status."},
            "404": {"description": "Nothing is known of the object, or the caller may not read it: a Status."},
        });
        let get = json!({"operationId": format!("search-{}", path.name), "summary": path.summary, "tags": ["search"],
            "parameters": parameters, "responses": answers});
        (format!("{ROOT}/{}", path.name), json!({"get": get}))
    };
    PATHS.iter().map(path).chain(saved()).collect()
}

/// Of saved searches: the list, and one.
fn saved() -> [(String, Value); 2] {
    let body = |schema: &str| json!({JSON: {"schema": {"$ref": reference(schema)}}});
    let operation = |verb: &str, summary: &str, sends: bool, answer: &str| {
        let mut operation = json!({"operationId": format!("savedsearches-{verb}"), "summary": summary, "tags": ["search"],
            "responses": {"200": {"description": "OK", "content": body(answer)}}});
        if sends {
            operation["requestBody"] = json!({"required": true, "content": body("SavedSearch")});
        }
        operation
    };
    let all = json!({
        "get": operation("list", "Saved searches the caller may see: own and shared ones.", false, "SavedSearchList"),
        "post": operation("create", "Saves a search; the caller is its owner.", true, "SavedSearch"),
    });
    let one = json!({
        "parameters": [{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}],
        "get": operation("get", "One saved search.", false, "SavedSearch"),
        "put": operation("update", "Changes it; only its owner may.", true, "SavedSearch"),
        "delete": operation("delete", "Deletes it; only its owner may.", false, "Object"),
    });
    [(format!("{ROOT}/savedsearches"), all), (format!("{ROOT}/savedsearches/{{name}}"), one)]
}

fn reference(schema: &str) -> String {
    format!("#/components/schemas/{}", name_of(schema))
}

fn name_of(schema: &str) -> String {
    format!("io.crowsnest.search.v1alpha1.{schema}")
}

/// Schemas of what its paths answer.
pub(crate) fn schemas() -> Map<String, Value> {
    let text = || json!({"type": "string"});
    let number = || json!({"type": "integer", "format": "int64"});
    let list = |of: Value| json!({"type": "array", "items": of});
    let object = |fields: Value| json!({"type": "object", "properties": fields});
    let time = || json!({"type": "string", "format": "date-time"});
    let of = |schema: &str| json!({"$ref": reference(schema)});
    let all = [
        (
            "Object",
            json!({"type": "object", "description": "A whole Kubernetes object.", "additionalProperties": true}),
        ),
        ("Text", text()),
        ("SearchEvents", json!({"type": "string", "description": "Server-sent events with JSON data."})),
        ("LogEvents", json!({"type": "string", "description": "Server-sent events with JSON data."})),
        ("FleetStatusEvents", json!({"type": "string", "description": "Server-sent events with a FleetStatus each."})),
        (
            "Hit",
            object(
                json!({"cluster": text(), "apiVersion": text(), "kind": text(), "resource": text(), "namespace": text(),
                "name": text(), "uid": text(), "status": text(), "ready": text(), "restarts": number(), "node": text(),
                "images": list(text()), "created": time(), "deleting": time(), "deleted": time(), "until": time(),
                "score": {"type": "number"}, "matched": list(of("Matched"))}),
            ),
        ),
        (
            "Matched",
            object(json!({"field": text(), "text": text(),
                "marks": {"type": "array", "description": "From and to, in bytes of the text.", "items": list(number())}})),
        ),
        ("FacetValue", object(json!({"value": text(), "count": number()}))),
        (
            "Groups",
            object(json!({"field": text(), "values": list(of("FacetValue")),
                "more": {"type": "integer", "format": "int64", "description": "Groups that are not told."}})),
        ),
        (
            "Skipped",
            object(json!({"cluster": text(), "reason": text(), "resources": number(), "missing": {"type": "boolean"},
                "ageSeconds": number()})),
        ),
        ("Notice", object(json!({"message": text(), "start": number(), "end": number()}))),
        (
            "SearchResult",
            object(json!({"kind": text(), "apiVersion": text(), "hits": list(of("Hit")),
                "facets": {"type": "object", "additionalProperties": list(of("FacetValue"))}, "groups": of("Groups"),
                "skipped": list(of("Skipped")), "notices": list(of("Notice")), "total": number(),
                "totalRelation": {"type": "string", "enum": ["eq", "gte"]}, "tookMs": {"type": "number"}, "seq": number(),
                "behind": number(), "cursor": text(), "didYouMean": list(text()),
                "wider": list(object(json!({"query": text(), "total": number()})))})),
        ),
        (
            "SearchCount",
            object(json!({"kind": text(), "apiVersion": text(), "total": number(),
                "totalRelation": {"type": "string", "enum": ["eq", "gte"]}, "skipped": list(of("Skipped")),
                "notices": list(of("Notice"))})),
        ),
        (
            "Step",
            object(json!({"what": text(), "hits": number(), "tookMs": {"type": "number"}, "parts": list(of("Step"))})),
        ),
        (
            "SearchExplanation",
            object(json!({"kind": text(), "apiVersion": text(), "query": text(), "ast": of("Object"), "asked": text(),
                "plan": of("Step"), "notices": list(of("Notice")), "tookMs": {"type": "number"}})),
        ),
        (
            "SearchSuggestions",
            object(json!({"kind": text(), "apiVersion": text(), "start": number(), "end": number(), "field": text(),
                "items": list(object(json!({"text": text(), "about": text(), "count": number()}))),
                "range": list(number())})),
        ),
        (
            "ObjectHistory",
            object(json!({"kind": text(), "apiVersion": text(), "keptForSeconds": number(),
                "versions": list(object(json!({"seq": number(), "resourceVersion": text(), "generation": number(),
                    "from": time(), "until": time(), "deleted": {"type": "boolean"}})))})),
        ),
        (
            "ObjectDiff",
            object(json!({"kind": text(), "apiVersion": text(), "from": of("Hit"), "to": of("Hit"),
                "more": {"type": "boolean"},
                "differences": list(object(json!({"path": text(), "before": {}, "after": {}})))})),
        ),
        (
            "ObjectGraph",
            object(json!({"kind": text(), "apiVersion": text(), "nodes": list(of("Hit")), "more": {"type": "boolean"},
                "edges": list(object(json!({"from": number(), "to": number(), "relation": text()})))})),
        ),
        ("FleetStatus", of("Object")),
        (
            "SavedSearch",
            object(json!({"kind": text(), "apiVersion": text(), "metadata": of("Object"),
                "spec": object(json!({"title": text(), "query": text(), "description": text(),
                    "shared": {"type": "boolean"}, "owner": text(), "syntax": text()}))})),
        ),
        (
            "SavedSearchList",
            object(json!({"kind": text(), "apiVersion": text(), "metadata": of("Object"),
                "items": list(of("SavedSearch"))})),
        ),
    ];
    all.into_iter().map(|(name, schema)| (name_of(name), schema)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_referred_to_is_there() {
        let (paths, schemas) = (paths(), schemas());
        let text = json!({"paths": paths, "schemas": schemas}).to_string();
        let mut references = 0;
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
            references += 1;
        }
        assert!(references > PATHS.len());
    }
}
