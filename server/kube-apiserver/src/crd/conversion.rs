//! Conversion between versions of a custom resource: by changing `apiVersion`, or by the CRD's webhook.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::yaml::convert_integral_floats;
use crowsnest_registry::error_without_reason;
use crowsnest_schema::defaulting;
use crowsnest_schema::{Schema, SchemaRef, prune};
use serde_json::{Value, json};

use super::definition::{Definition, text, texts};
use crate::admission::{Target, WebhookClient};

/// Time limit of a call of a conversion webhook.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Converts objects of one CRD; fields that the new version does not define are pruned.
#[derive(Debug)]
pub struct Converter {
    strategy: ConversionStrategy,
    /// Schemas by `apiVersion`.
    schemas: BTreeMap<String, VersionSchema>,
    /// `apiVersion` of all versions of the CRD, including those without a schema.
    api_versions: BTreeSet<String>,
}

/// The schema of a version.
#[derive(Debug)]
struct VersionSchema {
    typed: SchemaRef,
    /// `openAPIV3Schema`, which contains the defaults.
    schema: Value,
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
            let schema = version.schema()?.clone();
            let api_version = format!("{}/{}", definition.group(), version.name());
            Some((api_version, VersionSchema { typed: Schema::for_custom_resource(&schema), schema }))
        });
        let api_versions = definition.versions().map(|version| format!("{}/{}", definition.group(), version.name()));
        Self {
            schemas: schemas.collect(),
            api_versions: api_versions.collect(),
            strategy: ConversionStrategy::from_definition(definition, client),
        }
    }

    /// The typed schema of a version.
    pub fn schema(&self, api_version: &str) -> Option<SchemaRef> {
        self.schemas.get(api_version).map(|version| version.typed.clone())
    }

    /// Prunes an object by the schema of its version and sets defaults.
    fn default(&self, object: &mut Value) {
        if let Some(version) = self.schemas.get(text(object, "/apiVersion")) {
            prune(&version.typed, object);
            defaulting::drop_nulls(&version.schema, object);
            defaulting::apply_defaults(&version.schema, object);
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
        objects.iter_mut().for_each(|object| self.default(object));
        let mut converted = self.strategy.convert(objects, to).await?;
        if let Some(version) = self.schemas.get(to) {
            for object in &mut converted {
                prune(&version.typed, object);
            }
        }
        Ok(converted)
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
        let webhook_error = |kind: &str, why: String| {
            let from = text(&objects[0], "/apiVersion");
            error_without_reason(format!("conversion webhook for {from}, Kind={kind} failed: {why}"))
        };
        let kind = text(&objects[0], "/kind").to_owned();
        tracing::debug!(%resource, to, count = objects.len(), "calling a conversion webhook");
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{review_version}"),
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": objects},
        });
        let response =
            client.post(target, &review, WEBHOOK_TIMEOUT).await.map_err(|e| webhook_error(&kind, e.to_string()))?;
        let mut converted = check_review_version(&response, review_version)
            .and_then(|()| validate_response(&response, &uid, &objects, to))
            .map_err(|why| webhook_error(&kind, why))?;
        converted.iter_mut().for_each(convert_integral_floats);
        Ok(converted)
    }
}

/// Checks that a response is a ConversionReview of the requested version; errors have kube-apiserver's wording.
fn check_review_version(review: &Value, version: &str) -> Result<(), String> {
    const GROUP: &str = "apiextensions.k8s.io";
    const SCHEME: &str = "k8s.io/apiserver/pkg/util/webhook/client.go:71";
    let (api_version, kind) = (text(review, "/apiVersion"), text(review, "/kind"));
    let (group, given) = api_version.split_once('/').unwrap_or(("", api_version));
    match (group, given, kind) {
        (GROUP, given, "ConversionReview") if given == version => Ok(()),
        (GROUP, "v1" | "v1beta1", "ConversionReview") => {
            Err(format!("converting ({given}.ConversionReview) to ({version}.ConversionReview): unknown conversion"))
        }
        (_, "", _) | (_, _, "") => {
            let got = format!("{group}/{given}, Kind={kind}");
            Err(format!("expected webhook response of {GROUP}/{version}, Kind=ConversionReview, got {got}"))
        }
        _ => Err(format!("no kind {kind:?} is registered for version {api_version:?} in scheme {SCHEME:?}")),
    }
}

/// Validates a response and returns its objects: same UID, success, the same number and order of objects, the requested
/// version, and unchanged identities.
fn validate_response(review: &Value, uid: &str, originals: &[Value], to: &str) -> Result<Vec<Value>, String> {
    let response = review.get("response").filter(|r| r.is_object()).ok_or("no response provided")?;
    if text(response, "/uid") != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text(response, "/uid")));
    }
    if text(response, "/result/status") != "Success" {
        return Err(match text(response, "/result/message") {
            "" => "unknown failure".to_owned(),
            message => message.to_owned(),
        });
    }
    let converted = response.get("convertedObjects").and_then(Value::as_array).cloned().unwrap_or_default();
    if converted.len() != originals.len() {
        return Err(format!("webhook returned {} objects, expected {}", converted.len(), originals.len()));
    }
    let mut restored = Vec::with_capacity(converted.len());
    for (index, (mut object, original)) in converted.into_iter().zip(originals).enumerate() {
        if text(&object, "/apiVersion") != to {
            let got = text(&object, "/apiVersion");
            return Err(format!(
                "invalid converted object at index {index}: invalid groupVersion (expected {to}, received {got})"
            ));
        }
        if object["kind"] != original["kind"] {
            return Err(format!("invalid converted object at index {index}: invalid kind"));
        }
        for key in ["/metadata/name", "/metadata/namespace", "/metadata/uid"] {
            if object.pointer(key) != original.pointer(key) {
                return Err(format!("invalid metadata of converted object at index {index}: {} changed", &key[1..]));
            }
        }
        // A conversion can change only labels and annotations.
        let mut metadata = original["metadata"].clone();
        for key in ["labels", "annotations"] {
            match object["metadata"].get(key) {
                Some(given) => metadata[key] = given.clone(),
                None => {
                    metadata.as_object_mut().map(|m| m.remove(key));
                }
            }
        }
        object["metadata"] = metadata;
        restored.push(object);
    }
    Ok(restored)
}
