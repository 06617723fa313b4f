//! Schemas of `propagation.crowsnest.io`.

use serde_json::{Map, Value, json};

use super::NAME;
use crate::resource::openapi::schema_name;
use crate::resource::registry::VERSION;
use crate::resource::schema::{body, boolean, date_time, integer, list, object, reference, status_schema, string};

pub(super) const ROOT: &str = "/apis/propagation.crowsnest.io/v1alpha1";

fn name_of(schema: &str) -> String {
    schema_name(NAME, VERSION, schema)
}

pub(super) fn ref_to(schema: &str) -> Value {
    reference(&name_of(schema))
}

fn string_enum(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

pub(super) const FAILURES: [(&str, &str); 5] = [
    ("400", "The request cannot be parsed, or names a kind that is not served."),
    ("401", "The caller is not authenticated."),
    ("403", "The caller has no permission to get an object, or admission refuses a proposed one."),
    ("404", "There is no such object."),
    ("422", "The body is invalid; the causes name the fields."),
];

type Schemas = Vec<(&'static str, Value)>;

/// Schemas of requests and responses.
pub(super) fn schemas() -> Map<String, Value> {
    let parts_by_name = parts().into_iter().chain(explanations()).chain(plans());
    let schemas = parts_by_name.map(|(name, schema)| (name_of(name), schema));
    schemas.chain(status_schema()).collect()
}

/// Schemas of parts of responses.
fn parts() -> Schemas {
    let reference = || json!({"apiVersion": string(), "kind": string(), "namespace": string(), "name": string()});
    let policy = || json!({"kind": string(), "namespace": string(), "name": string()});
    let with_fields = |mut fields: Value, extra: Value| {
        if let (Some(fields), Value::Object(extra)) = (fields.as_object_mut(), extra) {
            fields.extend(extra);
        }
        fields
    };
    let outcomes = ["Chosen", "Claimed", "LowerPriority", "LessPrecise", "LaterName", "ClusterScope", "NotPreempting"];
    let considered_policy = with_fields(
        policy(),
        json!({"priority": integer(), "selectsBy": string_enum(&["All", "LabelSelector", "Name"]), "outcome": string_enum(&outcomes),
            "message": string()}),
    );
    let rule =
        with_fields(policy(), json!({"overriders": ref_to("Object"), "differences": list(ref_to("Difference"))}));
    let estimate = json!({"replicas": integer(), "boundBy": string_enum(&["Nodes", "Models", "Summary", "Promised", "Quota", "Estimator"])});
    let cluster = json!({"name": string(), "rejected": object(json!({"filter": string(), "reason": string()}), &[]), "evictedBy": string(),
        "score": integer(), "estimate": object(estimate, &["boundBy"]), "selected": boolean(), "replicas": integer()});
    let cluster = object(cluster, &["rejected", "evictedBy", "estimate", "replicas"]);
    let term = json!({"affinity": string(), "message": string(), "clusters": list(cluster)});
    let triggers = ["PlacementChanged", "ReplicasChanged", "RescheduleRequested", "Reconcile", "TargetTerminating"];
    let scheduling = json!({"decision": string_enum(&["Keep", "Schedule", "Clear", "Fail"]), "trigger": string_enum(&triggers),
        "reason": string(), "message": string(), "terms": list(object(term, &["affinity", "message"]))});
    vec![
        ("Object", json!({"type": "object", "description": "A whole object.", "additionalProperties": true})),
        ("Reference", object(reference(), &["namespace"])),
        ("PolicyName", object(policy(), &["namespace"])),
        ("Policy", object(considered_policy, &["namespace"])),
        ("Override", object(rule, &["namespace"])),
        ("Difference", object(json!({"path": string(), "before": {}, "after": {}}), &["before", "after"])),
        ("Scheduling", object(scheduling, &["trigger", "reason", "message"])),
        ("Waiting", object(json!({"cause": string(), "cluster": string(), "message": string()}), &["cluster"])),
    ]
}

fn explanations() -> Schemas {
    let binding = json!({"apiVersion": string(), "kind": string(), "namespace": string(), "name": string(), "replicas": integer(),
        "scheduledAt": date_time(), "message": string(), "requiredBy": list(ref_to("Reference"))});
    let binding = object(binding, &["namespace", "scheduledAt", "message", "requiredBy"]);
    let target = json!({"cluster": string(), "placed": string_enum(&["Scheduled", "Required", "Evicting"]), "replicas": integer(),
        "overrides": list(ref_to("Override")), "work": ref_to("Reference"), "applied": boolean(),
        "health": string_enum(&["Healthy", "Unhealthy", "Unknown"])});
    let target = object(target, &["replicas", "work", "health"]);
    let explanation = || {
        json!({"metadata": ref_to("Object"), "template": ref_to("Reference"), "policy": ref_to("PolicyName"), "policies": list(ref_to("Policy")),
            "binding": binding, "scheduling": ref_to("Scheduling"), "targets": list(target.clone()), "waiting": list(ref_to("Waiting"))})
    };
    let optional = &["policy", "binding", "scheduling"];
    vec![
        ("Explanation", body("Explanation", explanation(), optional)),
        ("ClusterExplanation", body("ClusterExplanation", explanation(), optional)),
    ]
}

fn with_description(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

fn plans() -> Schemas {
    let change = || string_enum(&["Added", "Changed", "Removed", "Unchanged"]);
    let planned_object = json!({"apiVersion": string(), "kind": string(), "namespace": string(), "name": string(), "change": change(),
        "differences": list(ref_to("Difference"))});
    let cluster = json!({"name": string(), "change": change(), "replicasBefore": integer(), "replicas": integer(),
        "overrides": list(ref_to("Override")), "manifestBefore": ref_to("Object"), "manifest": ref_to("Object"),
        "differences": list(ref_to("Difference")), "message": string()});
    let cluster = object(cluster, &["replicasBefore", "replicas", "manifestBefore", "manifest", "message"]);
    let template = json!({"template": ref_to("Reference"), "change": change(), "policyBefore": ref_to("PolicyName"),
        "policy": ref_to("PolicyName"), "policies": list(ref_to("Policy")), "scheduling": ref_to("Scheduling"), "clusters": list(cluster),
        "dependencies": list(ref_to("Reference")), "requiredBy": list(ref_to("Reference")), "waiting": list(ref_to("Waiting")),
        "message": string()});
    let template = object(template, &["policyBefore", "policy", "scheduling", "requiredBy", "message"]);
    let count_schema = |description: &str| json!({"type": "integer", "format": "int64", "description": description});
    let status = object(
        json!({"objects": list(object(planned_object, &["namespace"])), "templates": list(template),
            "more": count_schema("Templates beyond the limit."), "withheld": count_schema("Templates that the caller has no permission to get."),
            "notices": list(string())}),
        &[],
    );
    let spec = object(
        json!({"objects": with_description(list(ref_to("Object")), "Objects as they would be applied."),
            "deletions": with_description(list(ref_to("Object")), "Objects that would be deleted; only the fields that identify them are read."),
            "losses": with_description(list(ref_to("Object")), "Clusters that would become unreachable; only the fields that identify them are read."),
            "manifests": {"type": "boolean", "description": "Include manifests (default true)."},
            "limit": {"type": "integer", "format": "int32", "description": "Maximum number of templates (default 50, at most 500)."}}),
        &["objects", "deletions", "losses", "manifests", "limit"],
    );
    let fields = json!({"metadata": ref_to("Object"), "spec": spec, "status": status});
    vec![("Plan", body("Plan", fields, &["kind", "apiVersion", "metadata", "spec", "status"]))]
}
