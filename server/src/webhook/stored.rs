//! Admission of the objects that the aggregated server keeps in `storage.crowsnest.io`: defaults and validation of Clusters and
//! ResourceRegistries, refused in the words of the public groups.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::field::FieldError;
use crowsnest_api::search::ResourceRegistry;
use crowsnest_apiserver::status::ApiError;
use crowsnest_controllers::admission::{cluster, registry};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::allow;
use crate::aggregated::stored::STORAGE_GROUP;

const PUBLIC: [(&str, &str, &str); 2] =
    [("clusters", "cluster.karmada.io", "Cluster"), ("resourceregistries", "search.karmada.io", "ResourceRegistry")];

pub(super) fn configurations(ca_bundle: &str, base_url: &str) -> [Value; 2] {
    let configuration = |kind: &str, prefix: &str| {
        let hooks: Vec<Value> = PUBLIC
            .iter()
            .map(|(resource, _, _)| {
                json!({
                    "name": format!("{prefix}-{resource}.{STORAGE_GROUP}"),
                    "clientConfig": {"url": format!("{base_url}/stored/{resource}"), "caBundle": ca_bundle},
                    "rules": [{"apiGroups": [STORAGE_GROUP], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                               "resources": [resource, format!("{resource}/status")], "scope": "*"}],
                    "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
                })
            })
            .collect();
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": STORAGE_GROUP}, "webhooks": hooks})
    };
    [
        configuration("MutatingWebhookConfiguration", "default"),
        configuration("ValidatingWebhookConfiguration", "validate"),
    ]
}

/// Answers one review: a patch with the defaults, or the refusal. The same path serves both phases; in the second there is nothing
/// left to default.
pub(super) fn review(resource: &str, review: &Value, modelled: bool, now: jiff::Timestamp) -> Value {
    let request = &review["request"];
    let object = &request["object"];
    let refused = |error: &ApiError| {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
               "response": {"uid": request["uid"], "allowed": false, "status": error.to_status()}})
    };
    let outcome = match resource {
        "clusters" => admit_cluster(object, modelled, now),
        "resourceregistries" => admit_registry(object),
        other => Err(ApiError::bad_request(format!("{other} are not kept here"))),
    };
    match outcome {
        Ok(admitted) => {
            let mut review = allow(&request["uid"], Some(&json_patch::diff(object, &admitted)));
            if let Some(warning) = without_effect(resource, object) {
                review["response"]["warnings"] = json!([warning]);
            }
            review
        }
        Err(error) => refused(&error),
    }
}

fn admit_cluster(object: &Value, modelled: bool, now: jiff::Timestamp) -> Result<Value, ApiError> {
    let mut typed: Cluster = decode(object, "Cluster")?;
    cluster::prepare(&mut typed, modelled);
    cluster::prepare_status(&mut typed.status);
    cluster::canonicalize(&mut typed, &Time(now));
    invalid("clusters", &typed.metadata.name, cluster::validate(&typed))?;
    let (spec, status) = (serde_json::to_value(&typed.spec), serde_json::to_value(&typed.status));
    let mut admitted = object.clone();
    admitted["spec"] = spec.map_err(ApiError::internal)?;
    if object.get("status").is_some_and(|s| !s.is_null()) {
        admitted["status"] = status.map_err(ApiError::internal)?;
    }
    Ok(admitted)
}

fn admit_registry(object: &Value) -> Result<Value, ApiError> {
    let typed: ResourceRegistry = decode(object, "ResourceRegistry")?;
    invalid("resourceregistries", &typed.metadata.name, registry::validate(&typed))?;
    Ok(object.clone())
}

/// What is kept and nothing more.
fn without_effect(resource: &str, object: &Value) -> Option<&'static str> {
    let named = resource == "resourceregistries" && object.pointer("/spec/backendStore/openSearch").is_some();
    named.then_some("spec.backendStore.openSearch has no effect: objects are kept in the cache and nowhere else")
}

fn decode<T: DeserializeOwned>(object: &Value, kind: &str) -> Result<T, ApiError> {
    T::deserialize(object).map_err(|error| ApiError::bad_request(format!("the {kind} can't be read: {error}")))
}

fn invalid(resource: &str, name: &Option<String>, errors: Vec<FieldError>) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    let (_, group, kind) = PUBLIC.iter().find(|(r, _, _)| *r == resource).copied().unwrap_or(PUBLIC[0]);
    Err(ApiError::invalid(group, kind, name.as_deref().unwrap_or_default(), errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(spec: Value) -> Value {
        let object = json!({
            "apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "r"}, "spec": spec,
        });
        review(
            "resourceregistries",
            &json!({"request": {"uid": "u", "object": object}}),
            false,
            jiff::Timestamp::UNIX_EPOCH,
        )
    }

    #[rstest::rstest]
    #[case::nothing_to_say(json!({"targetCluster": {}, "resourceSelectors": []}), true, json!(null))]
    #[case::all_of_it_may_be_left_out(json!({}), true, json!(null))]
    #[case::elsewhere(
        json!({"backendStore": {"openSearch": {"addresses": ["http://x"]}}}),
        true,
        json!(["spec.backendStore.openSearch has no effect: objects are kept in the cache and nowhere else"])
    )]
    #[case::refused(json!({"backendStore": {"openSearch": {"addresses": ["ftp://x"]}}}), false, json!(null))]
    fn registries(#[case] spec: Value, #[case] allowed: bool, #[case] warnings: Value) {
        let response = &registry(spec)["response"];
        assert_eq!((&response["allowed"], &response["warnings"]), (&json!(allowed), &warnings), "{response}");
        assert_eq!(response.get("patch"), None);
    }
}
