//! Conversion between versions of a custom resource: by changing `apiVersion`, or by the CRD's webhook.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::yaml::convert_integral_floats;
use crowsnest_registry::error_without_reason;
use crowsnest_schema::apply::ReplicasPath;
use crowsnest_schema::{defaulting, prune};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::custom_schema::CustomSchema;
use super::definition::{Definition, text, texts};
use crate::admission::{Target, WebhookClient};

/// Time limit of a call of a conversion webhook.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Converts objects of one CRD; fields that the new version does not define are pruned.
#[derive(Debug)]
pub struct Converter {
    strategy: ConversionStrategy,
    /// Schemas by `apiVersion`.
    schemas: BTreeMap<String, Arc<CustomSchema>>,
    /// `apiVersion` of all versions of the CRD, including those without a schema.
    api_versions: BTreeSet<String>,
    /// Paths of the replicas by `apiVersion`, of versions with a scale.
    replicas_paths: BTreeMap<String, String>,
    /// Pairs of versions between which a conversion has succeeded.
    succeeded: Mutex<BTreeSet<(String, String)>>,
}

/// `spec.conversion.strategy`
#[derive(Debug)]
enum ConversionStrategy {
    /// Changes only `apiVersion`.
    None,
    Webhook {
        resource: String,
        target: Target,
        review_version: &'static str,
        client: Arc<WebhookClient>,
    },
}

impl Converter {
    pub fn from_definition(definition: Definition<'_>, client: &Arc<WebhookClient>) -> Self {
        let schemas = definition.versions().filter_map(|version| {
            let api_version = format!("{}/{}", definition.group(), version.name());
            Some((api_version, CustomSchema::intern(version.schema()?)))
        });
        let api_versions = definition.versions().map(|version| format!("{}/{}", definition.group(), version.name()));
        let replicas_paths = definition.versions().filter_map(|version| {
            let api_version = format!("{}/{}", definition.group(), version.name());
            Some((api_version, text(version.scale()?, "/specReplicasPath").to_owned()))
        });
        Self {
            schemas: schemas.collect(),
            api_versions: api_versions.collect(),
            replicas_paths: replicas_paths.collect(),
            strategy: ConversionStrategy::from_definition(definition, client),
            succeeded: Mutex::default(),
        }
    }

    /// The schema of a version.
    pub fn schema(&self, api_version: &str) -> Option<&Arc<CustomSchema>> {
        self.schemas.get(api_version)
    }

    /// Path of the replicas in a version.
    pub fn replicas_path(&self, api_version: &str) -> ReplicasPath<'_> {
        match self.replicas_paths.get(api_version) {
            Some(path) => ReplicasPath::At(path),
            None if self.api_versions.contains(api_version) => ReplicasPath::NoScale,
            None => ReplicasPath::UnknownVersion,
        }
    }

    /// Normalizes numbers of an object, prunes it by the schema of its version and sets defaults.
    fn default(&self, object: &mut Value) {
        convert_integral_floats(object);
        if let Some(schema) = self.schemas.get(text(object, "/apiVersion")) {
            let compiled = schema.compile();
            prune(&compiled.typed, object);
            defaulting::drop_nulls(&compiled.structural, object);
            defaulting::apply_defaults(&compiled.structural, object);
        }
    }

    /// Converts objects, with the defaults of their own version but not those of the target version. Fails for an
    /// object that is stored in a version that was removed from the CRD.
    pub async fn convert(&self, mut objects: Vec<Value>, to: &str) -> ApiResult<Vec<Value>> {
        let mut from = objects.iter().map(|object| text(object, "/apiVersion"));
        if let Some(removed) = from.find(|version| !self.api_versions.contains(*version)) {
            let message = format!("request to convert CR from an invalid group/version: {removed}");
            return Err(ApiError::without_reason(500, message));
        }
        let from: BTreeSet<String> = objects.iter().map(|object| text(object, "/apiVersion").to_owned()).collect();
        objects.iter_mut().for_each(|object| self.default(object));
        let mut converted = self.strategy.convert(objects, to).await?;
        if let Some(schema) = self.schemas.get(to) {
            let compiled = schema.compile();
            for object in &mut converted {
                prune(&compiled.typed, object);
            }
        }
        if self.api_versions.contains(to) {
            self.succeeded.lock().extend(from.into_iter().map(|from| (from, to.to_owned())));
        }
        Ok(converted)
    }

    /// True if objects have been converted from one version to another.
    pub fn has_converted(&self, from: &str, to: &str) -> bool {
        self.succeeded.lock().iter().any(|(known_from, known_to)| known_from == from && known_to == to)
    }

    /// Converts partial objects, without defaults and pruning.
    pub async fn convert_partial(&self, objects: Vec<Value>, to: &str) -> ApiResult<Vec<Value>> {
        self.strategy.convert(objects, to).await
    }
}

impl ConversionStrategy {
    fn from_definition(definition: Definition<'_>, client: &Arc<WebhookClient>) -> Self {
        let Some(webhook) = definition.conversion_webhook() else { return ConversionStrategy::None };
        let Some(target) = webhook.get("clientConfig").and_then(|config| Target::parse(config).ok()) else {
            return ConversionStrategy::None;
        };
        let versions = texts(webhook, "/conversionReviewVersions");
        let review_version = match versions.iter().find(|v| *v == "v1" || *v == "v1beta1").map(String::as_str) {
            Some("v1beta1") => "v1beta1",
            _ => "v1",
        };
        let resource = format!("{}.{}", definition.plural(), definition.group());
        ConversionStrategy::Webhook { resource, target, review_version, client: client.clone() }
    }

    async fn convert(&self, mut objects: Vec<Value>, to: &str) -> ApiResult<Vec<Value>> {
        let ConversionStrategy::Webhook { resource, target, review_version, client } = self else {
            for object in &mut objects {
                object["apiVersion"] = to.into();
            }
            return Ok(objects);
        };
        if objects.iter().all(|o| o["apiVersion"] == to) {
            return Ok(objects);
        }
        let webhook_error = |problem: String| {
            let (from, kind) = (text(&objects[0], "/apiVersion"), text(&objects[0], "/kind"));
            error_without_reason(format!("conversion webhook for {from}, Kind={kind} {problem}"))
        };
        tracing::debug!(%resource, to, count = objects.len(), "calling a conversion webhook");
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{review_version}"),
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": objects},
        });
        let response = client.post(target, &review, WEBHOOK_TIMEOUT).await;
        let response = response.map_err(|error| webhook_error(format!("failed: {error}")))?;
        let mut converted = check_review_version(&response, review_version)
            .and_then(|()| converted_objects(&response, review_version, &uid))
            .map_err(|reason| webhook_error(format!("failed: {reason}")))?;
        restore_metadata(&mut converted, &objects, to)
            .map_err(|problem| webhook_error(format!("returned {problem}")))?;
        converted.iter_mut().for_each(convert_integral_floats);
        Ok(converted)
    }
}

/// Checks that a response is a ConversionReview of the requested version; errors have kube-apiserver's wording.
fn check_review_version(review: &Value, version: &str) -> Result<(), String> {
    const GROUP: &str = "apiextensions.k8s.io";
    const SCHEME: &str = "k8s.io/apiserver/pkg/util/webhook/client.go:71";
    let (api_version, kind) = (text(review, "/apiVersion"), text(review, "/kind"));
    let (group, review_version) = api_version.split_once('/').unwrap_or(("", api_version));
    match (group, review_version, kind) {
        (GROUP, review_version, "ConversionReview") if review_version == version => Ok(()),
        // Only v1 requires types; missing ones default to those of the request.
        ("", "", "" | "ConversionReview") | (GROUP, "v1beta1", "") if version == "v1beta1" => Ok(()),
        (GROUP, "v1" | "v1beta1", "ConversionReview") => Err(format!(
            "converting ({review_version}.ConversionReview) to ({version}.ConversionReview): unknown conversion"
        )),
        (_, "", _) | (_, _, "") => {
            let received = format!("{group}/{review_version}, Kind={kind}");
            Err(format!("expected webhook response of {GROUP}/{version}, Kind=ConversionReview, got {received}"))
        }
        _ => Err(format!("no kind {kind:?} is registered for version {api_version:?} in scheme {SCHEME:?}")),
    }
}

/// The converted objects of a response, which must be successful. In version `v1`, its UID must be that of the request.
fn converted_objects(review: &Value, version: &str, uid: &str) -> Result<Vec<Value>, String> {
    let response = review.get("response").filter(|r| r.is_object()).ok_or("no response provided")?;
    if version == "v1" && text(response, "/uid") != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text(response, "/uid")));
    }
    let status = text(response, "/result/status");
    if status != "Success" {
        return Err(match text(response, "/result/message") {
            "" => format!("response.result.status was '{status}', not 'Success'"),
            message => message.to_owned(),
        });
    }
    Ok(response.get("convertedObjects").and_then(Value::as_array).cloned().unwrap_or_default())
}

/// Checks number, order, versions and identities of converted objects, and restores their metadata: a conversion can
/// change only labels and annotations. Errors continue `conversion webhook for … returned` with kube-apiserver's wording.
fn restore_metadata(converted: &mut [Value], originals: &[Value], to: &str) -> Result<(), String> {
    if converted.len() != originals.len() {
        return Err(format!("{} objects, expected {}", converted.len(), originals.len()));
    }
    let is_list = originals.len() > 1;
    for (index, (object, original)) in converted.iter_mut().zip(originals).enumerate() {
        let object_name = if is_list { "converted object" } else { "object" };
        for (property, expected, pointer) in
            [("groupVersion", to, "/apiVersion"), ("kind", text(original, "/kind"), "/kind")]
        {
            let received = text(object, pointer);
            if received != expected {
                return Err(format!(
                    "invalid {object_name} at index {index}: invalid {property} (expected {expected}, received {received})"
                ));
            }
        }
        for (property, pointer) in
            [("name", "/metadata/name"), ("namespace", "/metadata/namespace"), ("UID", "/metadata/uid")]
        {
            let (before, after) = (text(original, pointer), text(object, pointer));
            if before != after {
                let position = if is_list { format!(" at index {index}") } else { String::new() };
                return Err(format!(
                    "invalid {object_name}{position}: must have the same {property}: {before} != {after}"
                ));
            }
        }
        let mut metadata = original["metadata"].clone();
        for key in ["labels", "annotations"] {
            match object["metadata"].get(key).filter(|converted| !converted.is_null()) {
                Some(converted) => metadata[key] = converted.clone(),
                None => {
                    metadata.as_object_mut().map(|m| m.remove(key));
                }
            }
        }
        object["metadata"] = metadata;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::v1("v1", "apiextensions.k8s.io/v1", "ConversionReview", true)]
    #[case::other_version("v1", "apiextensions.k8s.io/v1beta1", "ConversionReview", false)]
    #[case::v1_without_types("v1", "", "", false)]
    #[case::v1beta1_without_types("v1beta1", "", "", true)]
    #[case::v1beta1_without_kind("v1beta1", "apiextensions.k8s.io/v1beta1", "", true)]
    #[case::other_kind("v1beta1", "apiextensions.k8s.io/v1beta1", "Status", false)]
    fn reviews_have_the_requested_version(
        #[case] version: &str,
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] is_valid: bool,
    ) {
        let review = json!({"apiVersion": api_version, "kind": kind});
        assert_eq!(check_review_version(&review, version).is_ok(), is_valid);
    }

    #[rstest]
    #[case::success("v1", json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [1, 2]}), Ok(2))]
    #[case::no_objects("v1", json!({"uid": "u", "result": {"status": "Success"}}), Ok(0))]
    #[case::no_response("v1", Value::Null, Err("no response provided"))]
    #[case::other_uid(
        "v1",
        json!({"uid": "x", "result": {"status": "Success"}}),
        Err("expected response.uid=\"u\", got \"x\"")
    )]
    #[case::uid_is_optional_in_v1beta1("v1beta1", json!({"result": {"status": "Success"}}), Ok(0))]
    #[case::failure(
        "v1",
        json!({"uid": "u", "result": {"status": "Failure", "message": "too old"}}),
        Err("too old")
    )]
    #[case::failure_without_a_message(
        "v1",
        json!({"uid": "u", "result": {"status": "Failure"}}),
        Err("response.result.status was 'Failure', not 'Success'")
    )]
    #[case::no_result("v1", json!({"uid": "u"}), Err("response.result.status was '', not 'Success'"))]
    fn failed_reviews_are_reported_as_by_kubernetes(
        #[case] version: &str,
        #[case] response: Value,
        #[case] expected: Result<usize, &str>,
    ) {
        let converted = converted_objects(&json!({"response": response}), version, "u");
        assert_eq!(converted.map(|objects| objects.len()), expected.map_err(str::to_owned));
    }

    fn car(api_version: &str, metadata: Value) -> Value {
        json!({"apiVersion": api_version, "kind": "Car", "metadata": metadata})
    }

    #[rstest]
    #[case::none(1, vec![], "0 objects, expected 1")]
    #[case::too_few(2, vec![car("example.com/v1", json!({"name": "a"}))], "1 objects, expected 2")]
    #[case::too_many(
        1,
        vec![car("example.com/v1", json!({"name": "a"})), car("example.com/v1", json!({"name": "a"}))],
        "2 objects, expected 1"
    )]
    #[case::version(
        1,
        vec![car("example.com/v2", json!({"name": "a"}))],
        "invalid object at index 0: invalid groupVersion (expected example.com/v1, received example.com/v2)"
    )]
    #[case::version_in_a_list(
        2,
        vec![car("example.com/v1", json!({"name": "a"})), car("example.com/v2", json!({"name": "a"}))],
        "invalid converted object at index 1: invalid groupVersion (expected example.com/v1, received example.com/v2)"
    )]
    #[case::kind(
        1,
        vec![json!({"apiVersion": "example.com/v1", "kind": "Truck", "metadata": {"name": "a"}})],
        "invalid object at index 0: invalid kind (expected Car, received Truck)"
    )]
    #[case::name(
        1,
        vec![car("example.com/v1", json!({"name": "b"}))],
        "invalid object: must have the same name: a != b"
    )]
    #[case::name_in_a_list(
        2,
        vec![car("example.com/v1", json!({"name": "a"})), car("example.com/v1", json!({"name": "b"}))],
        "invalid converted object at index 1: must have the same name: a != b"
    )]
    #[case::uid(
        1,
        vec![car("example.com/v1", json!({"name": "a", "uid": "u"}))],
        "invalid object: must have the same UID:  != u"
    )]
    fn invalid_objects_are_reported_as_by_kubernetes(
        #[case] count: usize,
        #[case] mut converted: Vec<Value>,
        #[case] expected: &str,
    ) {
        let originals = vec![car("example.com/v1beta1", json!({"name": "a"})); count];
        let result = restore_metadata(&mut converted, &originals, "example.com/v1");
        assert_eq!(result, Err(expected.to_owned()));
    }

    #[rstest]
    #[case::scale("example.com/v1", ReplicasPath::At(".spec.wheels"))]
    #[case::no_scale("example.com/v1beta1", ReplicasPath::NoScale)]
    #[case::removed("example.com/v1alpha1", ReplicasPath::UnknownVersion)]
    fn replicas_have_a_path_in_versions_with_a_scale(#[case] version: &str, #[case] expected: ReplicasPath<'_>) {
        let converter = Converter {
            strategy: ConversionStrategy::None,
            schemas: BTreeMap::new(),
            api_versions: ["example.com/v1", "example.com/v1beta1"].map(str::to_owned).into(),
            replicas_paths: [("example.com/v1".to_owned(), ".spec.wheels".to_owned())].into(),
            succeeded: Mutex::default(),
        };
        assert_eq!(converter.replicas_path(version), expected);
    }

    #[test]
    fn conversions_change_only_labels_and_annotations() {
        let metadata = json!({"name": "a", "generation": 1, "labels": {"l": "1"}, "annotations": {"a": "1"}});
        let original = car("example.com/v1beta1", metadata);
        let changed = json!({"name": "a", "generation": 2, "labels": {"l": "2"}, "annotations": null});
        let mut converted = [car("example.com/v1", changed)];
        assert_eq!(restore_metadata(&mut converted, &[original], "example.com/v1"), Ok(()));
        let expected = json!({"name": "a", "generation": 1, "labels": {"l": "2"}});
        assert_eq!(converted, [car("example.com/v1", expected)]);
    }
}
