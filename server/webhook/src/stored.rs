//! Admission of the objects that the aggregated server stores in `storage.crowsnest.io`: defaulting and validation of
//! Clusters and ResourceRegistries, with error messages for the public groups.

use crowsnest_admission::destination::{self as token_destination, PriorObject};
use crowsnest_admission::stored::ADMITTED_KINDS;
use crowsnest_admission::{backend_store, cluster, copy_unknown_fields, registry};
use crowsnest_api::cluster::Cluster;
use crowsnest_api::search::ResourceRegistry;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_plan::annotations;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{allow, parse_user, refuse};

use crowsnest_aggregated::request::authentication::DelegatedAuth;
use crowsnest_aggregated::stored::writer::Writer;

/// Settings of the server that admission depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdmissionSettings {
    /// Add default resource models to new Clusters.
    pub(super) adds_default_models: bool,
    /// Allow Clusters and backend stores with endpoints on this host.
    pub(super) allow_local_endpoints: bool,
}

/// Refuses a Cluster or ResourceRegistry whose author lacks the required permissions. Writes through the aggregated API
/// use the account of this process, which can read the Secrets that these objects name; their callers were authorized
/// before.
pub(super) async fn authorize_writer(
    delegated: &DelegatedAuth,
    resource: &str,
    request: &Value,
) -> Result<(), ApiError> {
    let user = parse_user(request);
    if user.is_master() {
        return Ok(());
    }
    let writer = Writer { delegated, user: &user };
    // Validation refuses objects that cannot be decoded.
    if resource == "resourceregistries" {
        let Ok(after) = ResourceRegistry::deserialize(&request["object"]) else { return Ok(()) };
        let old = ResourceRegistry::deserialize(&request["oldObject"]).ok();
        return writer.check_registry(old.as_ref().map_or(PriorObject::Absent, PriorObject::Stored), &after).await;
    }
    let Ok(after) = Cluster::deserialize(&request["object"]) else { return Ok(()) };
    let old = Cluster::deserialize(&request["oldObject"]).ok();
    let before = old.as_ref().map_or(PriorObject::Absent, PriorObject::Stored);
    writer.check(before, &after).await
}

/// Responds to one review with a patch of the defaults, or with a refusal. The same path serves the mutating and the
/// validating phase; the second has no defaults left to add.
pub(super) fn review(resource: &str, review: &Value, settings: AdmissionSettings, now: jiff::Timestamp) -> Value {
    let request = &review["request"];
    let object = &request["object"];
    let result = match resource {
        "clusters" => admit_cluster(object, &request["oldObject"], settings, now),
        "resourceregistries" => admit_registry(object, &request["oldObject"], settings),
        other => Err(ApiError::bad_request(format!("this webhook does not review {other}"))),
    };
    match result {
        Ok((admitted, warnings)) => {
            let mut review = allow(&request["uid"], Some(&json_patch::diff(object, &admitted)));
            if !warnings.is_empty() {
                review["response"]["warnings"] = json!(warnings);
            }
            review
        }
        Err(error) => refuse(&request["uid"], &error.to_status()),
    }
}

/// Object as it is stored, and warnings for its author.
type AdmittedObject = (Value, Vec<String>);

fn admit_cluster(
    object: &Value,
    old: &Value,
    settings: AdmissionSettings,
    now: jiff::Timestamp,
) -> Result<AdmittedObject, ApiError> {
    let mut typed: Cluster = decode(object, "Cluster")?;
    let (decoded_spec, decoded_status) = (serde_json::to_value(&typed.spec), serde_json::to_value(&typed.status));
    // Only new clusters get default models: users may remove them from existing ones.
    let adds_models = settings.adds_default_models && (old.is_null() || !typed.spec.resource_models.is_empty());
    cluster::prepare(&mut typed, adds_models);
    cluster::prepare_status(&mut typed.status);
    cluster::canonicalize(&mut typed, &Time(now));
    let before: ObjectMeta = ObjectMeta::deserialize(&old["metadata"]).unwrap_or_default();
    let (annotation_errors, warnings) =
        annotations::validate_change(typed.metadata.annotations.as_ref(), before.annotations.as_ref());
    let mut errors = cluster::validate(&typed);
    let old = Cluster::deserialize(old).ok();
    errors.extend(token_destination::validate(old.as_ref(), &typed, settings.allow_local_endpoints));
    errors.extend(annotation_errors);
    check_errors("clusters", &typed.metadata.name, errors)?;
    let (mut spec, mut status) = (
        serde_json::to_value(&typed.spec).map_err(ApiError::internal)?,
        serde_json::to_value(&typed.status).map_err(ApiError::internal)?,
    );
    copy_unknown_fields(&object["spec"], &decoded_spec.map_err(ApiError::internal)?, &mut spec);
    copy_unknown_fields(&object["status"], &decoded_status.map_err(ApiError::internal)?, &mut status);
    let mut admitted = object.clone();
    admitted["spec"] = spec;
    if object.get("status").is_some_and(|s| !s.is_null()) {
        admitted["status"] = status;
    }
    Ok((admitted, warnings))
}

fn admit_registry(object: &Value, old: &Value, settings: AdmissionSettings) -> Result<AdmittedObject, ApiError> {
    let typed: ResourceRegistry = decode(object, "ResourceRegistry")?;
    let mut errors = registry::validate(&typed);
    let old = ResourceRegistry::deserialize(old).ok();
    errors.extend(backend_store::validate(old.as_ref(), &typed, settings.allow_local_endpoints));
    check_errors("resourceregistries", &typed.metadata.name, errors)?;
    // Stored unchanged, including fields of later versions.
    Ok((object.clone(), backend_store::warnings(&typed, settings.allow_local_endpoints)))
}

fn decode<T: DeserializeOwned>(object: &Value, kind: &str) -> Result<T, ApiError> {
    T::deserialize(object).map_err(|error| ApiError::bad_request(format!("cannot decode the {kind}: {error}")))
}

fn check_errors(resource: &str, name: &Option<String>, errors: Vec<FieldError>) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    let [default, _] = ADMITTED_KINDS;
    let kind = ADMITTED_KINDS.into_iter().find(|kind| kind.plural == resource).unwrap_or(default);
    Err(ApiError::invalid(kind.group, kind.kind, name.as_deref().unwrap_or_default(), errors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    const WITHOUT_MODELS: AdmissionSettings =
        AdmissionSettings { adds_default_models: false, allow_local_endpoints: false };
    const WITH_MODELS: AdmissionSettings = AdmissionSettings { adds_default_models: true, ..WITHOUT_MODELS };

    fn registry(spec: Value) -> Value {
        let object = json!({
            "apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "StoredResourceRegistry", "metadata": {"name": "r"}, "spec": spec,
        });
        review(
            "resourceregistries",
            &json!({"request": {"uid": "u", "object": object}}),
            WITHOUT_MODELS,
            jiff::Timestamp::UNIX_EPOCH,
        )
    }

    #[rstest::rstest]
    #[case::without_backend_store(json!({"targetCluster": {}, "resourceSelectors": []}), true, json!(null))]
    #[case::without_fields(json!({}), true, json!(null))]
    #[case::a_backend_store(json!({"backendStore": {"openSearch": {"addresses": ["https://x"]}}}), true, json!(null))]
    #[case::local(json!({"backendStore": {"openSearch": {"addresses": ["https://127.0.0.1:9200"]}}}), false, json!(null))]
    #[case::not_encrypted(
        json!({"backendStore": {"openSearch": {"addresses": ["http://x"], "secretRef": {"namespace": "a", "name": "b"}}}}),
        true,
        json!(["spec.backendStore.openSearch: nothing is exported: credentials are never sent over http, but address 0 is not an https URL"])
    )]
    #[case::refused(json!({"backendStore": {"openSearch": {"addresses": ["ftp://x"]}}}), false, json!(null))]
    fn registries_are_validated(#[case] spec: Value, #[case] allowed: bool, #[case] warnings: Value) {
        let response = &registry(spec)["response"];
        assert_eq!((&response["allowed"], &response["warnings"]), (&json!(allowed), &warnings), "{response}");
        assert_eq!(response.get("patch"), None);
    }

    #[rstest::rstest]
    #[case::new(json!(null), true)]
    #[case::removed(json!({"spec": {"syncMode": "Push", "resourceModels": [{"grade": 0, "ranges": []}]}}), false)]
    fn new_clusters_get_default_models(#[case] before: Value, #[case] expected: bool) {
        let object = json!({"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "StoredCluster", "spec": {"syncMode": "Push"},
            "metadata": {"name": "m1"}});
        let request = json!({"request": {"uid": "u", "object": object, "oldObject": before}});
        let response = &review("clusters", &request, WITH_MODELS, jiff::Timestamp::UNIX_EPOCH)["response"];
        assert_eq!(response["allowed"], true, "{response}");
        let patch = response["patch"].as_str().map(|patch| STANDARD.decode(patch).unwrap()).unwrap_or_default();
        assert_eq!(String::from_utf8(patch).unwrap().contains("resourceModels"), expected);
    }

    /// Fields of later versions are kept.
    #[test]
    fn unknown_fields_are_kept() {
        let object = json!({"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "StoredCluster", "metadata": {"name": "m1"},
            "spec": {"syncMode": "Push", "zone": "a", "mood": "calm"}});
        let request = json!({"request": {"uid": "u", "object": object}});
        let response = &review("clusters", &request, WITHOUT_MODELS, jiff::Timestamp::UNIX_EPOCH)["response"];
        let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
        let patch = String::from_utf8(patch).unwrap();
        assert!(patch.contains("/spec/zones") && !patch.contains("mood"), "{patch}");
    }

    #[rstest::rstest]
    #[case::new(json!(null), json!("off"), Err("metadata.annotations[proxy.crowsnest.io/exec]"), 0)]
    #[case::changed(json!("enabled"), json!("off"), Err("metadata.annotations[proxy.crowsnest.io/exec]"), 0)]
    #[case::unchanged(json!("off"), json!("off"), Ok(()), 1)]
    #[case::corrected(json!("off"), json!("disabled"), Ok(()), 0)]
    fn annotations_of_clusters_are_validated(
        #[case] before: Value,
        #[case] now: Value,
        #[case] expected: Result<(), &str>,
        #[case] warnings: usize,
    ) {
        let cluster = |exec: Value| {
            let annotations = if exec.is_null() { json!({}) } else { json!({"proxy.crowsnest.io/exec": exec}) };
            json!({"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "StoredCluster", "spec": {"syncMode": "Push"},
                   "metadata": {"name": "m1", "annotations": annotations}})
        };
        let request = json!({"request": {"uid": "u", "object": cluster(now), "oldObject": cluster(before)}});
        let response = &review("clusters", &request, WITHOUT_MODELS, jiff::Timestamp::UNIX_EPOCH)["response"];
        let cause = &response["status"]["details"]["causes"][0];
        let result = cause["field"].as_str().map_or(Ok(()), Err);
        assert_eq!((result, response["allowed"] == true), (expected, expected.is_ok()), "{response}");
        assert_eq!(response["warnings"].as_array().map_or(0, Vec::len), warnings, "{response}");
        if expected.is_err() {
            assert_eq!(
                (&response["status"]["reason"], &cause["reason"]),
                (&json!("Invalid"), &json!("FieldValueNotSupported"))
            );
        }
    }
}
