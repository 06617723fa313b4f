//! Requests for saved searches: bodies, patches, selectors and options, checked as kube-apiserver checks those of
//! custom resources.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::Request;
use crowsnest_api::constants::annotation::{MIGRATED_CREATED, MIGRATED_UID};
use crowsnest_apimachinery::content_negotiation::{self, Encoding, unsupported_media_type};
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::request::options::{DeleteOptions, FieldValidation, ListOptions, WriteOptions};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::collect_within;
use crowsnest_schema::patch;
use crowsnest_search::saved_search::SavedSearchDraft;
use http::{HeaderMap, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions};
use serde::Deserialize;
use serde_json::Value;

use crate::search_crowsnest_io::API_VERSION;

const KIND: &str = "SavedSearch";
/// Maximum size of a body.
const MAX_BODY_BYTES: usize = 64 << 10;
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
/// JSON pointer to the resourceVersion of an object.
const RESOURCE_VERSION_POINTER: &str = "/metadata/resourceVersion";
/// Media types of patches.
pub(super) const PATCH_MEDIA_TYPES: [&str; 2] = [JSON_PATCH, MERGE_PATCH];

/// A SavedSearch in a request.
#[derive(Debug, Deserialize)]
pub(super) struct SavedSearchBody {
    #[serde(default)]
    pub(super) metadata: BodyMetadata,
    pub(super) spec: SavedSearchDraft,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BodyMetadata {
    pub(super) name: String,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// A patch of a SavedSearch.
#[derive(Debug)]
pub(super) enum Patch {
    Merge(Value),
    Json(Value),
}

impl SavedSearchBody {
    pub(super) async fn read(request: Request, validation: FieldValidation) -> Result<Self, ApiError> {
        if content_negotiation::body_encoding(content_type(request.headers()))? != Encoding::Json {
            return Err(unsupported_media_type(&["application/json"]));
        }
        let body = collect_within(request.into_body(), MAX_BODY_BYTES).await?;
        Self::parse(json(&body)?, validation)
    }

    /// Fails for other kinds, and with [`FieldValidation::Strict`] for unknown fields.
    pub(super) fn parse(object: Value, validation: FieldValidation) -> Result<Self, ApiError> {
        if !object.is_object() {
            return Err(ApiError::bad_request(format!("the body must be a {KIND} object")));
        }
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if !matches!(api_version, "" | API_VERSION) || !matches!(kind, "" | KIND) {
            let text = format!("{kind} in version {api_version:?} cannot be handled as a {KIND} of {API_VERSION}");
            return Err(ApiError::bad_request(text));
        }
        let unknown = unknown_fields(&object);
        if validation == FieldValidation::Strict && !unknown.is_empty() {
            let text = format!("strict decoding error: {}", unknown.join(", "));
            return Err(ApiError::bad_request(text));
        }
        Self::deserialize(object).map_err(|error| ApiError::bad_request(format!("cannot decode the {KIND}: {error}")))
    }

    /// Fails unless the object has no name or the name of the path.
    pub(super) fn check_name(&self, name: &str) -> Result<(), ApiError> {
        let sent = &self.metadata.name;
        if sent.is_empty() || sent == name {
            return Ok(());
        }
        let text = format!("the name of the object ({sent}) does not match the name on the URL ({name})");
        Err(ApiError::bad_request(text))
    }
}

/// Annotations that record the original metadata of a migrated object. Clients see the values in the metadata fields.
pub(super) fn is_migration_annotation(annotation: &str) -> bool {
    [MIGRATED_UID, MIGRATED_CREATED].contains(&annotation)
}

impl BodyMetadata {
    /// Replaces labels, annotations and, if sent, the resourceVersion that must still be current. Annotations of a
    /// migration are kept.
    pub(super) fn apply_to(self, metadata: &mut ObjectMeta) {
        metadata.labels = self.labels;
        let kept = metadata.annotations.take().into_iter().flatten().filter(|(key, _)| is_migration_annotation(key));
        let sent = self.annotations.into_iter().flatten().filter(|(key, _)| !is_migration_annotation(key));
        metadata.annotations = Some(sent.chain(kept).collect()).filter(|all: &BTreeMap<_, _>| !all.is_empty());
        if self.resource_version.is_some() {
            metadata.resource_version = self.resource_version;
        }
    }
}

impl Patch {
    pub(super) async fn read(request: Request) -> Result<Self, ApiError> {
        let media_type = content_negotiation::media_type(content_type(request.headers()));
        if !PATCH_MEDIA_TYPES.contains(&media_type.as_str()) {
            return Err(unsupported_media_type(&PATCH_MEDIA_TYPES));
        }
        let body = collect_within(request.into_body(), MAX_BODY_BYTES).await?;
        match media_type == JSON_PATCH {
            true => Ok(Self::Json(patch::decode_json_patch(&body)?.value)),
            false => Ok(Self::Merge(patch::parse_merge_patch(&body)?)),
        }
    }

    pub(super) fn apply(&self, object: &Value) -> Result<Value, ApiError> {
        match self {
            Self::Merge(changes) => patch::merge_patch(object, changes),
            Self::Json(operations) => patch::json_patch(object, operations),
        }
    }

    /// True if the patch names a resourceVersion, so that it conflicts if the object has another one.
    pub(super) fn expects_version(&self) -> bool {
        match self {
            Self::Merge(changes) => changes.pointer(RESOURCE_VERSION_POINTER).is_some(),
            Self::Json(operations) => operations
                .as_array()
                .into_iter()
                .flatten()
                .any(|operation| operation["path"] == RESOURCE_VERSION_POINTER),
        }
    }
}

/// The options of a list. Field selectors for anything but the name are refused.
pub(super) fn list_options(query: &Query) -> Result<ListOptions, ApiError> {
    let options = ListOptions::parse(query)?;
    match options.fields.requirements().iter().find(|requirement| requirement.field != "metadata.name") {
        Some(unsupported) => Err(ApiError::bad_request(format!("field label not supported: {}", unsupported.field))),
        None => Ok(options),
    }
}

/// True if the selectors match the labels and the name.
pub(super) fn selects(options: &ListOptions, metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    // `list_options` accepts no other field.
    let name_value = |_: &str| Some(Cow::Borrowed(metadata.name.as_deref().unwrap_or_default()));
    options.labels.matches_with(|key| labels?.get(key).map(String::as_str)) && options.fields.matches_with(name_value)
}

/// The options of a create, update or patch; `kind` is the kind of options in errors.
pub(super) fn write_options(kind: &str, query: &Query) -> Result<WriteOptions, ApiError> {
    WriteOptions::parse(kind, query, "", false)
}

/// The options of a deletion: those of its body, or of the query if it has none.
pub(super) async fn delete_params(request: Request, query: &Query) -> Result<DeleteParams, ApiError> {
    let body = collect_within(request.into_body(), MAX_BODY_BYTES).await?;
    let body = if body.is_empty() { None } else { Some(json(&body)?) };
    let DeleteOptions { preconditions, dry_run, .. } = DeleteOptions::parse(body, query)?;
    let preconditions = Preconditions { uid: preconditions.uid, resource_version: preconditions.resource_version };
    Ok(DeleteParams { dry_run, preconditions: Some(preconditions), ..DeleteParams::default() })
}

fn json(body: &Bytes) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("error decoding JSON: {error}")))
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok())
}

/// Fields that a SavedSearch does not have, as apimachinery's strict decoder names them.
fn unknown_fields(object: &Value) -> Vec<String> {
    const SPEC: [&str; 6] = ["description", "owner", "query", "shared", "syntax", "title"];
    let fields = |value: &Value| value.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect::<Vec<_>>();
    let top =
        fields(object).into_iter().filter(|field| !["apiVersion", "kind", "metadata", "spec"].contains(&&**field));
    let spec = fields(&object["spec"]).into_iter().filter(|field| !SPEC.contains(&&**field));
    let spec = spec.map(|field| format!("spec.{field}"));
    top.chain(spec).map(|field| format!("unknown field {field:?}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn query(text: &str) -> Query {
        Query::parse(Some(text))
    }

    #[rstest]
    #[case::array(json!([{"name": "a"}, {"title": "a"}]), FieldValidation::Warn, "the body must be a SavedSearch object")]
    #[case::kind(json!({"apiVersion": "v1", "kind": "Pod", "spec": {}}), FieldValidation::Warn,
        "Pod in version \"v1\" cannot be handled as a SavedSearch of search.crowsnest.io/v1alpha1")]
    #[case::strict(json!({"spec": {"titel": "a"}, "x": 1}), FieldValidation::Strict,
        "strict decoding error: unknown field \"x\", unknown field \"spec.titel\"")]
    #[case::no_spec(json!({"metadata": {}}), FieldValidation::Warn, "cannot decode the SavedSearch: missing field `spec`")]
    fn bodies_that_are_not_a_saved_search_are_refused(
        #[case] object: Value,
        #[case] validation: FieldValidation,
        #[case] message: &str,
    ) {
        let error = SavedSearchBody::parse(object, validation).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, message));
    }

    #[test]
    fn labels_and_annotations_are_kept() {
        let annotations = json!({"n": "2", MIGRATED_CREATED: "never"});
        let object = json!({"metadata": {"name": "a", "labels": {"l": "1"}, "annotations": annotations}, "spec": {"title": "a"}});
        let sent = SavedSearchBody::parse(object, FieldValidation::Strict).unwrap();
        let entries = |entries: &[(&str, &str)]| {
            Some(
                entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>(),
            )
        };
        let annotations = entries(&[("old", "1"), (MIGRATED_UID, "u")]);
        let mut metadata = ObjectMeta { resource_version: Some("7".into()), annotations, ..ObjectMeta::default() };
        sent.metadata.apply_to(&mut metadata);
        assert_eq!(metadata.labels, entries(&[("l", "1")]));
        assert_eq!(metadata.annotations, entries(&[("n", "2"), (MIGRATED_UID, "u")]));
        assert_eq!(metadata.resource_version.as_deref(), Some("7"));
    }

    #[rstest]
    #[case::nothing("", "", Ok((false, None)))]
    #[case::query("dryRun=All", "", Ok((true, None)))]
    #[case::kubectl("", r#"{"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}"#, Ok((true, None)))]
    #[case::unknown("", r#"{"dryRun": ["some"]}"#, Err(422))]
    #[case::preconditions("", r#"{"preconditions": {"uid": "u"}}"#, Ok((false, Some("u"))))]
    #[case::no_json("", "x", Err(400))]
    #[tokio::test]
    async fn options_of_deletions_are_parsed(
        #[case] text: &str,
        #[case] body: &'static str,
        #[case] expected: Result<(bool, Option<&str>), u16>,
    ) {
        let params = delete_params(Request::new(body.into()), &query(text)).await.map_err(|error| error.code);
        let uid = |params: &DeleteParams| params.preconditions.as_ref().and_then(|found| found.uid.clone());
        let found = params.map(|params| (params.dry_run, uid(&params)));
        assert_eq!(found, expected.map(|(dry_run, uid)| (dry_run, uid.map(str::to_owned))));
    }

    #[rstest]
    #[case("", Ok(true))]
    #[case("labelSelector=team%3Da", Ok(true))]
    #[case("labelSelector=team%3Db", Ok(false))]
    #[case("fieldSelector=metadata.name%3Dmine", Ok(true))]
    #[case("fieldSelector=metadata.name!%3Dmine", Ok(false))]
    #[case("fieldSelector=spec.title%3Dx", Err("field label not supported: spec.title"))]
    fn selectors_match_labels_and_names(#[case] text: &str, #[case] expected: Result<bool, &str>) {
        let labels = Some(BTreeMap::from([("team".to_owned(), "a".to_owned())]));
        let metadata = ObjectMeta { name: Some("mine".into()), labels, ..ObjectMeta::default() };
        let matched = list_options(&query(text)).map(|options| selects(&options, &metadata));
        assert_eq!(matched.map_err(|error| error.message), expected.map_err(str::to_owned));
    }

    fn patch_request(media_type: &str, body: &Value) -> Request {
        Request::builder().header(header::CONTENT_TYPE, media_type).body(body.to_string().into()).unwrap()
    }

    #[rstest]
    #[case::merge(MERGE_PATCH, json!({"spec": {"shared": null}}), Ok(json!({"title": "a"})))]
    #[case::json(JSON_PATCH, json!([{"op": "replace", "path": "/spec/title", "value": "b"}]),
        Ok(json!({"title": "b", "shared": true})))]
    #[case::missing(JSON_PATCH, json!([{"op": "remove", "path": "/spec/nope"}]), Err(422))]
    #[case::wrong_shape(MERGE_PATCH, json!([]), Err(400))]
    #[case::apply("application/apply-patch+yaml", json!({}), Err(415))]
    #[tokio::test]
    async fn patches_are_applied(#[case] media_type: &str, #[case] body: Value, #[case] expected: Result<Value, u16>) {
        let object = json!({"metadata": {"name": "a"}, "spec": {"title": "a", "shared": true}});
        let patched = Patch::read(patch_request(media_type, &body)).await.and_then(|patch| patch.apply(&object));
        assert_eq!(patched.map(|mut patched| patched["spec"].take()).map_err(|error| error.code), expected);
    }
}
