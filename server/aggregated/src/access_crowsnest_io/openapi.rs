//! Schemas and paths of `access.crowsnest.io`.

use serde_json::{Map, Value, json};

use super::NAME;
use crate::resource::Definition;
use crate::resource::openapi::{Document, schema_name};
use crate::resource::registry::VERSION;
use crate::resource::schema::{
    JSON, body, boolean, integer, list, object, reference, responses, status_schema, string,
};

const FAILURES: [(&str, &str); 4] = [
    ("400", "The body cannot be parsed."),
    ("401", "The caller is not authenticated."),
    ("403", "The caller has no permission to create reviews."),
    ("422", "The spec is invalid, or names a cluster that the caller cannot see; the causes name the fields."),
];

fn name_of(schema: &str) -> String {
    schema_name(NAME, VERSION, schema)
}

fn ref_to(schema: &str) -> Value {
    reference(&name_of(schema))
}

fn with_description(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

fn string_enum(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

/// Adds the path of ResourceAccessReviews to the document.
pub(super) fn describe_resource_access(definition: &Definition, document: &mut Document) {
    describe(definition, document, "Lists who may perform an action in each cluster by RBAC, with the proof.");
}

/// Adds the path of SubjectRulesReviews to the document.
pub(super) fn describe_subject_rules(definition: &Definition, document: &mut Document) {
    describe(definition, document, "Lists the roles of a user or group in each cluster, with their bindings.");
}

fn describe(definition: &Definition, document: &mut Document, summary: &str) {
    let content = json!({JSON: {"schema": ref_to(definition.kind)}});
    let post = json!({"operationId": format!("{}-create", definition.resource), "tags": ["access"], "summary": summary,
        "responses": responses("201", content.clone(), &FAILURES), "requestBody": {"required": true, "content": content}});
    document.add_path(format!("/apis/{NAME}/{VERSION}/{}", definition.resource), json!({"post": post}));
}

/// Schemas of both review kinds and of their parts.
pub(super) fn schemas() -> Map<String, Value> {
    let schemas_by_name = parts().into_iter().chain([resource_access(), subject_rules()]);
    schemas_by_name.map(|(name, schema)| (name_of(name), schema)).chain(status_schema()).collect()
}

fn parts() -> Vec<(&'static str, Value)> {
    let texts = || list(string());
    let rule = json!({"verbs": texts(), "apiGroups": texts(), "resources": texts(), "resourceNames": texts(),
        "nonResourceURLs": texts()});
    let reference = json!({"kind": string(), "namespace": string(), "name": string()});
    let removal = json!({"cluster": string(), "kind": string_enum(&["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"]),
        "namespace": string(), "name": string()});
    let grant = |more: (&str, Value)| {
        let mut fields = json!({"cluster": string(), "subject": ref_to("Reference"), "scope": string_enum(&["Cluster", "Namespace"]),
            "namespace": string(), "binding": ref_to("Reference"), "role": ref_to("Reference"),
            "aggregatedFrom": with_description(texts(), "ClusterRoles from which an aggregated role has the rule."),
            "implicit": with_description(boolean(), "True for the permission of system:masters, which no binding grants.")});
        fields[more.0] = more.1;
        object(fields, &["namespace", "binding", "role", "aggregatedFrom", "implicit"])
    };
    let requirement = object(json!({"key": string(), "operator": string(), "values": texts()}), &["values"]);
    let selector = json!({
        "rawSelector": with_description(string(), "The selector as in a query parameter."),
        "requirements": list(requirement),
    });
    let selector = object(selector, &["rawSelector", "requirements"]);
    let permission = json!({"verb": string(), "group": string(), "resource": string(), "subresource": string(), "namespace": string(),
        "name": string(), "path": string(), "grant": ref_to("Grant")});
    let step = json!({
        "type": string(),
        "reaches": ref_to("Reference"),
        "reachesCluster": with_description(string(), "Set if the reached subject is not in the cluster of the path."),
        "rights": with_description(list(ref_to("Right")), "Empty if the previous step grants the permission."),
    });
    let path_subject = "Subject that can get the permission. In a SubjectRulesReview, the subject that is reached, or the one \
        that takes the last step if that reaches none.";
    let path = json!({
        "cluster": string(),
        "subject": with_description(json!({"allOf": [ref_to("Reference")]}), path_subject),
        "subjectCluster": with_description(string(), "Set if the subject is not in the cluster of the path."),
        "steps": list(ref_to("Step")),
        "grant": ref_to("Grant"),
    });
    let cluster = json!({"name": string(), "state": string_enum(&["Complete", "Stale", "Unknown"]), "evaluationError": string(),
        "ageSeconds": integer()});
    vec![
        ("Rule", object(rule, &["verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"])),
        ("Reference", object(reference, &["namespace"])),
        ("Removal", object(removal, &["cluster", "namespace"])),
        ("Selector", with_description(selector, "Selector of a request. It is validated; RBAC does not evaluate it.")),
        ("Grant", grant(("rule", ref_to("Rule")))),
        ("HeldRole", grant(("rules", list(ref_to("Rule"))))),
        ("Right", object(permission, &["verb", "group", "resource", "subresource", "namespace", "name", "path"])),
        ("Step", object(step, &["reaches", "reachesCluster"])),
        ("Path", object(path, &["subjectCluster", "grant"])),
        ("Cluster", object(cluster, &["evaluationError", "ageSeconds"])),
        ("Metadata", json!({"type": "object"})),
    ]
}

/// Fields of the spec that both kinds have.
fn coverage() -> Value {
    json!({
        "clusters": with_description(list(string()), "Clusters to review (default: all that the caller may see)."),
        "namespaces": with_description(list(string()), "Namespaces to review; * means all."),
        "without": with_description(list(ref_to("Removal")), "RBAC objects that are left out; nothing is written."),
        "indirect": with_description(boolean(), "Search for indirect paths of at most four steps."),
        "limit": with_description(integer(), "Maximum number of rows (default and maximum 1000)."),
        "continue": with_description(string(), "Token of the previous page."),
    })
}

fn review(kind: &str, spec: Value, granted: &str, item: &str, status_fields: Value) -> Value {
    let mut fields = coverage();
    extend(&mut fields, spec);
    let optional: Vec<String> = fields.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    let spec = object(fields, &optional.iter().map(String::as_str).collect::<Vec<_>>());
    let mut status = json!({granted: list(ref_to(item)), "lost": list(ref_to(item)), "remaining": list(ref_to(item)),
        "indirect": list(ref_to("Path")), "clusters": list(ref_to("Cluster")), "warnings": list(string()), "continue": string(),
        "remainingItemCount": integer()});
    let control_plane = "State of the control plane's rules, by which indirect paths into members are searched.";
    status["controlPlane"] = with_description(json!({"allOf": [ref_to("Cluster")]}), control_plane);
    extend(&mut status, status_fields);
    let optional = [granted, "lost", "remaining", "indirect", "controlPlane", "continue", "remainingItemCount"];
    let status = object(status, &optional);
    body(
        kind,
        json!({"metadata": ref_to("Metadata"), "spec": spec, "status": status}),
        &["kind", "apiVersion", "metadata", "spec", "status"],
    )
}

fn extend(fields: &mut Value, extra: Value) {
    if let (Some(fields), Value::Object(extra)) = (fields.as_object_mut(), extra) {
        fields.extend(extra);
    }
}

fn resource_access() -> (&'static str, Value) {
    let resource = json!({"verb": string(), "group": string(), "version": string(), "resource": string(), "subresource": string(),
        "namespace": string(), "name": string(), "fieldSelector": ref_to("Selector"), "labelSelector": ref_to("Selector")});
    let optional = ["group", "version", "subresource", "namespace", "name", "fieldSelector", "labelSelector"];
    let resource = object(resource, &optional);
    let path = object(json!({"verb": string(), "path": string()}), &[]);
    let spec = json!({"resourceAttributes": resource, "nonResourceAttributes": path});
    ("ResourceAccessReview", review("ResourceAccessReview", spec, "grants", "Grant", json!({})))
}

fn subject_rules() -> (&'static str, Value) {
    let spec = json!({"user": string(), "uid": string(), "groups": list(string())});
    let groups = with_description(list(string()), "Groups of the subject, with those that API servers add.");
    let status_fields = json!({"groups": groups});
    ("SubjectRulesReview", review("SubjectRulesReview", spec, "roles", "HeldRole", status_fields))
}
