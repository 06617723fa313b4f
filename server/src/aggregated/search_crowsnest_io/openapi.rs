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
const COLUMNS: Parameter = (
    "columns",
    "string",
    "What each hit has beyond its fields, separated by commas: label:KEY, print:NAME (a column of kubectl's), print:* (all of these), .PATH into its manifest.",
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
    /// Media types, with the schemas of which an answer has one.
    answers: &'static [(&'static str, &'static [&'static str])],
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
        parameters: &[Q, LIMIT, CURSOR, FACETS, COLUMNS, ("watch", "boolean", "Go on with what changes.", false)],
        object: false,
        answers: &[(JSON, &["SearchResult"]), (EVENTS, &["SearchEvents"])],
    },
    Path {
        name: "count",
        summary: "How many objects match.",
        parameters: &[Q],
        object: false,
        answers: &[(JSON, &["SearchCount"])],
    },
    Path {
        name: "explain",
        summary: "What a query was taken for, and what each part of it finds and costs.",
        parameters: &[Q],
        object: false,
        answers: &[(JSON, &["SearchExplanation"])],
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
        answers: &[(JSON, &["SearchSuggestions"])],
    },
    Path {
        name: "export",
        summary: "All hits of one moment: whole objects as JSON lines, or columns as CSV.",
        parameters: &[
            Q,
            LIMIT,
            ("format", "string", "jsonl or csv.", false),
            (
                "columns",
                "string",
                "Of CSV, separated by commas: fields of a hit, label:KEY, print:NAME, or .PATH.",
                false,
            ),
        ],
        object: false,
        answers: &[("application/jsonl", &["Object"]), ("text/csv", &["Text"])],
    },
    Path {
        name: "logs",
        summary: "The logs of the pods that match, in the order of their times; as server-sent events (notices, skipped, joined, line, refused, left, done, error) when asked for by Accept.",
        parameters: LOGS,
        object: false,
        answers: &[(TEXT, &["Text"]), (EVENTS, &["LogEvents"])],
    },
    Path {
        name: "history",
        summary: "The versions of an object that are kept, newest first; with seq the manifest of one.",
        parameters: &[("seq", "integer", "A version, by the change that began it.", false)],
        object: true,
        answers: &[(JSON, &["ObjectHistory", "Object"])],
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
        answers: &[(JSON, &["ObjectDiff"])],
    },
    Path {
        name: "graph",
        summary: "What an object is related to: owners, what is used, events.",
        parameters: &[("depth", "integer", "Steps, five at most.", false)],
        object: true,
        answers: &[(JSON, &["ObjectGraph"])],
    },
    Path {
        name: "journal",
        summary: "What moved about an object, and because of what: entries of the fleet's journal with their causes to the root, oldest first.",
        parameters: &[
            (
                "about",
                "string",
                "KIND/NAMESPACE/NAME, KIND/NAME or NAME, as about: of the query language takes it.",
                true,
            ),
            (
                "at",
                "string",
                "Around which time, as at: takes it: 10:05, now-2h, 2026-08-01T10:05; all that is kept when absent.",
                false,
            ),
            ("within", "string", "How far around it, as 90s or 15m; 5m when absent.", false),
            ("limit", "integer", "The newest entries about the object, 100 when absent, 1000 at most.", false),
        ],
        object: false,
        answers: &[(JSON, &["Journal"])],
    },
    Path {
        name: "status",
        summary: "The fleet at a glance; followed with watch=true.",
        parameters: &[("watch", "boolean", "Go on with what changes, as server-sent events.", false)],
        object: false,
        answers: &[(JSON, &["FleetStatus"]), (EVENTS, &["FleetStatusEvents"])],
    },
];

fn parameter((name, kind, description, required): &Parameter) -> Value {
    json!({"name": name, "in": "query", "required": required, "description": description, "schema": {"type": kind}})
}

/// What each path may answer instead, always a Status.
const FAILURES: [(&str, &str); 5] = [
    ("400", "A parameter cannot be read, or the question cannot be answered."),
    ("401", "Nobody is known to ask."),
    ("403", "The caller may not ask."),
    ("404", "There is no such object, or the caller may not read it."),
    ("422", "What is sent or asked does not go together; the causes name the fields."),
];

/// Answers with what they hold, and what may come instead.
fn responses(code: &str, content: Value) -> Value {
    let mut responses = json!({code: {"description": "OK", "content": content}});
    for (code, description) in FAILURES {
        responses[code] = json!({"description": description, "content": {JSON: {"schema": status()}}});
    }
    responses
}

pub(crate) fn status() -> Value {
    json!({"$ref": format!("#/components/schemas/{STATUS}")})
}

/// Paths of the search API.
pub(crate) fn paths() -> Map<String, Value> {
    let path = |path: &Path| {
        let object = if path.object { OBJECT.as_slice() } else { &[] };
        let parameters: Vec<Value> = object.iter().chain(path.parameters).map(parameter).collect();
        let schema = |schemas: &[&str]| match schemas {
            [one] => json!({"$ref": reference(one)}),
            several => json!({"anyOf": several.iter().map(|one| json!({"$ref": reference(one)})).collect::<Vec<_>>()}),
        };
        let content = path.answers.iter().map(|(kind, of)| ((*kind).to_owned(), json!({"schema": schema(of)})));
        let content = Value::Object(content.collect());
        let get = json!({"operationId": format!("search-{}", path.name), "summary": path.summary, "tags": ["search"],
            "parameters": parameters, "responses": responses("200", content)});
        (format!("{ROOT}/{}", path.name), json!({"get": get}))
    };
    PATHS.iter().map(path).chain(saved()).collect()
}

/// Of saved searches: the list, and one.
fn saved() -> [(String, Value); 2] {
    let body = |schema: Value| json!({JSON: {"schema": schema}});
    let of = |schema: &str| json!({"$ref": reference(schema)});
    let operation = |verb: &str, summary: &str, sends: bool, (code, answer): (&str, Value)| {
        let mut operation = json!({"operationId": format!("savedsearches-{verb}"), "summary": summary, "tags": ["search"],
            "responses": responses(code, body(answer))});
        if verb == "create" || verb == "update" {
            let taken = json!({"description": "There is one of that name, or it has changed since it was read.",
                "content": body(status())});
            operation["responses"]["409"] = taken;
        }
        if sends {
            operation["requestBody"] = json!({"required": true, "content": body(of("SavedSearch"))});
        }
        operation
    };
    let (one, list) = (("200", of("SavedSearch")), ("200", of("SavedSearchList")));
    let all = json!({
        "get": operation("list", "Saved searches the caller may see: own and shared ones.", false, list),
        "post": operation("create", "Saves a search; the caller is its owner.", true, ("201", of("SavedSearch"))),
    });
    let one = json!({
        "parameters": [{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}],
        "get": operation("get", "One saved search.", false, one.clone()),
        "put": operation("update", "Changes it; only its owner may.", true, one),
        "delete": operation("delete", "Deletes it; only its owner may.", false, ("200", status())),
    });
    [(format!("{ROOT}/savedsearches"), all), (format!("{ROOT}/savedsearches/{{name}}"), one)]
}

fn reference(schema: &str) -> String {
    format!("#/components/schemas/{}", name_of(schema))
}

fn name_of(schema: &str) -> String {
    format!("io.crowsnest.search.v1alpha1.{schema}")
}

/// Kubernetes' own.
pub(crate) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";

pub(crate) fn text() -> Value {
    json!({"type": "string"})
}

pub(crate) fn number() -> Value {
    json!({"type": "integer", "format": "int64"})
}

pub(crate) fn flag() -> Value {
    json!({"type": "boolean"})
}

pub(crate) fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

pub(crate) fn list(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

fn of(schema: &str) -> Value {
    json!({"$ref": reference(schema)})
}

/// With all of these fields, but for some that may be left out.
pub(crate) fn object(fields: Value, optional: &[&str]) -> Value {
    let names = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let required: Vec<&str> = names.filter(|name| !optional.contains(name)).collect();
    json!({"type": "object", "properties": fields, "required": required})
}

/// A body of ours, which names its kind.
pub(crate) fn body(kind: &str, mut fields: Value, optional: &[&str]) -> Value {
    fields["kind"] = json!({"type": "string", "enum": [kind]});
    fields["apiVersion"] = text();
    object(fields, optional)
}

/// Schemas of what its paths answer.
pub(crate) fn schemas() -> Map<String, Value> {
    let named = answers().into_iter().chain(hits()).chain(objects()).chain(kept());
    let own = named.map(|(name, schema)| (name_of(name), schema));
    own.chain([(STATUS.to_owned(), status_schema())]).collect()
}

type Schemas = Vec<(&'static str, Value)>;

/// Of questions.
fn answers() -> Schemas {
    let relation = || json!({"type": "string", "enum": ["eq", "gte"]});
    let facets = || json!({"type": "object", "additionalProperties": list(of("FacetValue"))});
    let summary = json!({"total": number(), "totalRelation": relation(), "tookMs": {"type": "number"}, "seq": number(),
        "behind": number(), "cursor": text(), "didYouMean": list(text()),
        "wider": list(object(json!({"query": text(), "total": number()}), &[]))});
    let mut result = summary.clone();
    let parts = json!({"hits": list(of("Hit")), "facets": facets(), "groups": of("Groups"), "skipped": list(of("Skipped")),
        "notices": list(of("Notice"))});
    if let (Some(result), Value::Object(parts)) = (result.as_object_mut(), parts) {
        result.extend(parts);
    }
    let counts = object(json!({"total": number(), "facets": facets(), "groups": of("Groups")}), &["groups"]);
    let events = json!({"notices": list(of("Notice")), "skipped": list(of("Skipped")), "facets": facets(),
        "groups": of("Groups"), "matches": list(of("Hit")), "done": of("Summary"), "changed": of("Hit"), "left": of("Hit"),
        "counts": counts, "behind": {"type": "object"}, "error": object(json!({"message": text()}), &[])});
    let step = object(
        json!({"what": text(), "hits": number(), "tookMs": {"type": "number"}, "parts": list(of("Step"))}),
        &["hits", "parts"],
    );
    let suggestion = object(json!({"text": text(), "about": text(), "count": number()}), &["about", "count"]);
    vec![
        ("SearchResult", body("SearchResult", result, &["cursor", "groups"])),
        ("Summary", object(summary, &["cursor"])),
        (
            "SearchEvents",
            json!({"type": "string", "description": "Server-sent events with JSON data; x-events has its schemas.",
                "x-events": events}),
        ),
        (
            "SearchCount",
            body(
                "SearchCount",
                json!({"total": number(), "totalRelation": relation(), "skipped": list(of("Skipped")),
                    "notices": list(of("Notice"))}),
                &[],
            ),
        ),
        ("Step", step),
        (
            "SearchExplanation",
            body(
                "SearchExplanation",
                json!({"query": text(), "ast": of("Object"), "asked": text(), "plan": of("Step"),
                    "notices": list(of("Notice")), "tookMs": {"type": "number"}}),
                &[],
            ),
        ),
        (
            "SearchSuggestions",
            body(
                "SearchSuggestions",
                json!({"start": number(), "end": number(), "field": text(), "items": list(suggestion),
                    "range": list(number())}),
                &["field", "range"],
            ),
        ),
        ("LogEvents", json!({"type": "string", "description": "Server-sent events with JSON data."})),
    ]
}

/// Who an object is.
fn identity() -> Value {
    json!({"cluster": text(), "apiVersion": text(), "kind": text(), "resource": text(), "namespace": text(), "name": text(),
        "uid": text()})
}

/// Of which answers are made.
fn hits() -> Schemas {
    let mut hit = identity();
    let more = json!({"status": text(), "ready": text(), "restarts": number(), "node": text(), "images": list(text()),
        "created": time(), "deleting": time(), "deleted": time(), "until": time(), "score": {"type": "number"},
        "matched": list(of("Matched")), "columns": {"type": "object", "additionalProperties": text()}});
    let mut optional = vec!["namespace"];
    if let (Some(hit), Value::Object(more)) = (hit.as_object_mut(), &more) {
        hit.extend(more.clone());
        optional.extend(more.keys().map(String::as_str));
    }
    let marks = list(list(number()));
    vec![
        ("Text", text()),
        ("Hit", object(hit, &optional)),
        ("Matched", object(json!({"field": text(), "text": text(), "marks": marks}), &["marks"])),
        ("FacetValue", object(json!({"value": text(), "count": number()}), &[])),
        (
            "Groups",
            object(
                json!({"field": text(), "values": list(of("FacetValue")),
                    "more": {"type": "integer", "format": "int64", "description": "Groups that are not told."}}),
                &[],
            ),
        ),
        (
            "Skipped",
            object(
                json!({"cluster": text(), "reason": text(), "resources": number(), "missing": flag(),
                    "ageSeconds": number()}),
                &["ageSeconds"],
            ),
        ),
        ("Notice", object(json!({"message": text(), "start": number(), "end": number()}), &[])),
    ]
}

/// Of single objects, and of the fleet.
fn objects() -> Schemas {
    let version = object(
        json!({"seq": number(), "resourceVersion": text(), "generation": number(), "from": time(), "until": time(),
            "deleted": flag()}),
        &["until", "deleted"],
    );
    let mut side = identity();
    side["seq"] = number();
    side["resourceVersion"] = text();
    let difference = object(json!({"path": text(), "before": {}, "after": {}}), &["before", "after"]);
    let edge = object(json!({"from": number(), "to": number(), "relation": text()}), &[]);
    let reference = object(
        json!({"apiVersion": text(), "kind": text(), "namespace": text(), "name": text(), "uid": text()}),
        &["namespace", "uid"],
    );
    let cause = object(json!({"ref": of("JournalReference"), "text": text(), "event": text()}), &["ref", "event"]);
    let entry = object(
        json!({"id": text(), "at": time(), "action": text(), "reason": text(), "type": text(), "cluster": text(),
            "subject": of("JournalReference"), "message": text(), "cause": cause, "effect": of("Object"),
            "generation": number(), "causes": list(text()), "isCause": flag()}),
        &["cluster", "effect", "generation", "isCause"],
    );
    vec![
        (
            "Object",
            json!({"type": "object", "description": "A whole Kubernetes object.", "additionalProperties": true}),
        ),
        ("ObjectHistory", body("ObjectHistory", json!({"keptForSeconds": number(), "versions": list(version)}), &[])),
        ("Side", object(side, &["namespace"])),
        (
            "ObjectDiff",
            body(
                "ObjectDiff",
                json!({"from": of("Side"), "to": of("Side"), "more": flag(), "differences": list(difference)}),
                &[],
            ),
        ),
        (
            "ObjectGraph",
            body("ObjectGraph", json!({"nodes": list(of("Hit")), "more": flag(), "edges": list(edge)}), &[]),
        ),
        ("JournalReference", reference),
        ("JournalEntry", entry),
        (
            "Journal",
            body(
                "Journal",
                json!({"about": text(), "entries": list(of("JournalEntry")), "total": number(),
                    "keptForSeconds": number(), "skipped": list(of("Skipped")), "notices": list(of("Notice"))}),
                &[],
            ),
        ),
        ("FleetStatus", of("Object")),
        ("FleetStatusEvents", json!({"type": "string", "description": "Server-sent events with a FleetStatus each."})),
    ]
}

/// Of saved searches.
fn kept() -> Schemas {
    let spec = object(
        json!({"title": text(), "query": text(), "description": text(), "shared": flag(), "owner": text(),
            "syntax": text()}),
        &["description", "shared", "owner", "syntax"],
    );
    let optional = &["kind", "apiVersion", "metadata"];
    vec![
        ("SavedSearch", body("SavedSearch", json!({"metadata": of("Object"), "spec": spec}), optional)),
        (
            "SavedSearchList",
            body("SavedSearchList", json!({"metadata": of("Object"), "items": list(of("SavedSearch"))}), &[]),
        ),
    ]
}

pub(crate) fn status_schema() -> Value {
    let cause = object(json!({"reason": text(), "message": text(), "field": text()}), &["reason", "message", "field"]);
    let details = json!({"name": text(), "group": text(), "kind": text(), "uid": text(), "causes": list(cause),
        "retryAfterSeconds": {"type": "integer", "format": "int32"}});
    let details = object(details, &["name", "group", "kind", "uid", "causes", "retryAfterSeconds"]);
    let fields = json!({"metadata": {"type": "object"}, "status": text(), "message": text(), "reason": text(),
        "details": details, "code": {"type": "integer", "format": "int32"}});
    body("Status", fields, &["message", "reason", "details", "code"])
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
