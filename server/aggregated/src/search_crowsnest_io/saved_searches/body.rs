//! Requests for saved searches: bodies, patches, selectors and options, checked as kube-apiserver checks those of custom resources.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::Request;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::json_patch::{self, Copied};
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::selector::{FieldSelector, Selector};
use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_process::reply::collect_within;
use crowsnest_search::saved_search::Draft;
use http::{HeaderMap, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};
use kube::api::{DeleteParams, Preconditions};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::search_crowsnest_io::API_VERSION;

const KIND: &str = "SavedSearch";
/// Bytes of the largest body.
const MAX_BODY: usize = 64 << 10;
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
/// Media types of patches.
pub(super) const PATCHES: [&str; 2] = [JSON_PATCH, MERGE_PATCH];

/// A SavedSearch in a request.
#[derive(Debug, Deserialize)]
pub(super) struct Sent {
    #[serde(default)]
    pub(super) metadata: SentMetadata,
    pub(super) spec: Draft,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SentMetadata {
    pub(super) name: String,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// A patch of a SavedSearch.
#[derive(Debug)]
pub(super) enum Patch {
    Merge(Value),
    Json(Vec<Value>),
}

/// Selectors of a list.
#[derive(Debug)]
pub(super) struct Selectors {
    labels: Selector,
    fields: FieldSelector,
}

impl Sent {
    pub(super) async fn read(request: Request, query: &Query) -> Result<Self, ApiError> {
        if !matches!(media_type(request.headers()).as_ref(), "" | "application/json") {
            return Err(unknown_format(&["application/json"]));
        }
        let body = collect_within(request.into_body(), MAX_BODY).await?;
        Self::parse(json(&body)?, query)
    }

    /// Fails for other kinds, and with `fieldValidation=Strict` for unknown fields.
    pub(super) fn parse(object: Value, query: &Query) -> Result<Self, ApiError> {
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
        if query.get("fieldValidation") == Some("Strict") && !unknown.is_empty() {
            let text = format!("strict decoding error: {}", unknown.join(", "));
            return Err(ApiError::bad_request(text));
        }
        Self::deserialize(object)
            .map_err(|error| ApiError::bad_request(format!("the {KIND} can't be decoded: {error}")))
    }

    /// Fails if the object has another name than its path.
    pub(super) fn check_name(&self, name: &str) -> Result<(), ApiError> {
        let sent = &self.metadata.name;
        if sent.is_empty() || sent == name {
            return Ok(());
        }
        let text = format!("the name of the object ({sent}) does not match the name on the URL ({name})");
        Err(ApiError::bad_request(text))
    }
}

impl SentMetadata {
    /// Replaces labels, annotations and, where it is sent, the version that must still be current.
    pub(super) fn apply_to(self, metadata: &mut ObjectMeta) {
        metadata.labels = self.labels;
        metadata.annotations = self.annotations;
        if self.resource_version.is_some() {
            metadata.resource_version = self.resource_version;
        }
    }
}

impl Patch {
    pub(super) async fn read(request: Request) -> Result<Self, ApiError> {
        let media_type = media_type(request.headers()).into_owned();
        if !PATCHES.contains(&media_type.as_str()) {
            return Err(unknown_format(&PATCHES));
        }
        let patch = json(&collect_within(request.into_body(), MAX_BODY).await?)?;
        match patch {
            Value::Array(operations) if media_type == JSON_PATCH => Ok(Self::Json(operations)),
            Value::Object(_) if media_type == MERGE_PATCH => Ok(Self::Merge(patch)),
            _ => Err(ApiError::bad_request(format!("the body is no patch of type {media_type}"))),
        }
    }

    pub(super) fn apply(&self, mut object: Value) -> Result<Value, ApiError> {
        match self {
            Self::Merge(patch) => ::json_patch::merge(&mut object, patch),
            Self::Json(operations) => {
                let mut copied = Copied::default();
                for operation in operations {
                    json_patch::apply(&mut object, operation, &mut copied).ok_or_else(|| {
                        let text =
                            format!("the server rejected our request due to an error in our request: {operation}");
                        ApiError::new(Reason::Invalid, text)
                    })?;
                }
            }
        }
        Ok(object)
    }

    /// Returns true if the patch sets `metadata.resourceVersion`.
    pub(super) fn names_version(&self) -> bool {
        match self {
            Self::Merge(patch) => patch.pointer("/metadata/resourceVersion").is_some(),
            Self::Json(operations) => {
                operations.iter().any(|operation| operation["path"] == "/metadata/resourceVersion")
            }
        }
    }
}

impl Selectors {
    pub(super) fn read(query: &Query) -> Result<Self, ApiError> {
        let text = |name: &str| query.get(name).unwrap_or_default();
        let labels =
            Selector::parse(text("labelSelector")).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields =
            FieldSelector::parse(text("fieldSelector")).map_err(|error| ApiError::bad_request(error.to_string()))?;
        if let Some(other) = fields.requirements().iter().find(|requirement| requirement.field != "metadata.name") {
            return Err(ApiError::bad_request(format!("field label not supported: {}", other.field)));
        }
        Ok(Self { labels, fields })
    }

    pub(super) fn match_object(&self, metadata: &ObjectMeta) -> bool {
        let labels = metadata.labels.as_ref();
        let name = |_: &str| Some(Cow::Borrowed(metadata.name.as_deref().unwrap_or_default()));
        self.labels.matches_with(|key| labels?.get(key).map(String::as_str)) && self.fields.matches_with(name)
    }
}

/// Returns true if the query parameter `dryRun` requests a dry run. Any value other than `All` is an error (422).
pub(super) fn dry_run(query: &Query) -> Result<bool, ApiError> {
    is_dry_run(query.all("dryRun"))
}

fn is_dry_run<'v>(values: impl Iterator<Item = &'v str>) -> Result<bool, ApiError> {
    let values: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
    if values.iter().any(|value| *value != "All") {
        let error = FieldError::not_supported_sorted("dryRun", &json!(values), &["All"]);
        return Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", vec![error]));
    }
    Ok(!values.is_empty())
}

/// Options of a deletion: those of the query, and those of a body with `DeleteOptions`.
pub(super) async fn deletion(request: Request, query: &Query) -> Result<DeleteParams, ApiError> {
    let body = collect_within(request.into_body(), MAX_BODY).await?;
    delete_params(&body, query)
}

fn delete_params(body: &Bytes, query: &Query) -> Result<DeleteParams, ApiError> {
    let mut params = DeleteParams { dry_run: dry_run(query)?, ..DeleteParams::default() };
    if body.is_empty() {
        return Ok(params);
    }
    let options = DeleteOptions::deserialize(json(body)?);
    let options =
        options.map_err(|error| ApiError::bad_request(format!("the DeleteOptions can't be decoded: {error}")))?;
    params.dry_run |= is_dry_run(options.dry_run.iter().flatten().map(String::as_str))?;
    let taken = |found: k8s_openapi::apimachinery::pkg::apis::meta::v1::Preconditions| Preconditions {
        uid: found.uid,
        resource_version: found.resource_version,
    };
    params.preconditions = options.preconditions.map(taken);
    Ok(params)
}

fn json(body: &Bytes) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("error decoding JSON: {error}")))
}

/// The media type of a body, without parameters; empty if there is none.
fn media_type(headers: &HeaderMap) -> Cow<'_, str> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim();
    if kind.bytes().any(|byte| byte.is_ascii_uppercase()) { kind.to_ascii_lowercase().into() } else { kind.into() }
}

fn unknown_format(accepted: &[&str]) -> ApiError {
    let text = "the body of the request was in an unknown format - accepted media types include";
    ApiError::new(Reason::UnsupportedMediaType, format!("{text}: {}", accepted.join(", ")))
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

    fn query(text: &str) -> Query {
        Query::parse(Some(text))
    }

    #[rstest]
    #[case::array(json!([{"name": "a"}, {"title": "a"}]), "", "the body must be a SavedSearch object")]
    #[case::kind(json!({"apiVersion": "v1", "kind": "Pod", "spec": {}}), "",
        "Pod in version \"v1\" cannot be handled as a SavedSearch of search.crowsnest.io/v1alpha1")]
    #[case::strict(json!({"spec": {"titel": "a"}, "x": 1}), "fieldValidation=Strict",
        "strict decoding error: unknown field \"x\", unknown field \"spec.titel\"")]
    #[case::no_spec(json!({"metadata": {}}), "", "the SavedSearch can't be decoded: missing field `spec`")]
    fn bodies_that_are_no_saved_search(#[case] object: Value, #[case] options: &str, #[case] message: &str) {
        let error = Sent::parse(object, &query(options)).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, message));
    }

    #[test]
    fn labels_and_annotations_are_kept() {
        let object =
            json!({"metadata": {"name": "a", "labels": {"l": "1"}, "annotations": {"n": "2"}}, "spec": {"title": "a"}});
        let sent = Sent::parse(object, &query("fieldValidation=Strict")).unwrap();
        let mut metadata = ObjectMeta { resource_version: Some("7".into()), ..ObjectMeta::default() };
        sent.metadata.apply_to(&mut metadata);
        assert_eq!(metadata.labels, Some(BTreeMap::from([("l".to_owned(), "1".to_owned())])));
        assert_eq!(metadata.annotations, Some(BTreeMap::from([("n".to_owned(), "2".to_owned())])));
        assert_eq!(metadata.resource_version.as_deref(), Some("7"));
    }

    #[rstest]
    #[case("", Ok(false))]
    #[case("dryRun=", Ok(false))]
    #[case("dryRun=All", Ok(true))]
    #[case("dryRun=some", Err(422))]
    #[case("dryRun=All&dryRun=some", Err(422))]
    fn dry_runs(#[case] text: &str, #[case] expected: Result<bool, u16>) {
        assert_eq!(dry_run(&query(text)).map_err(|error| error.code), expected);
    }

    #[rstest]
    #[case::nothing("", "", Ok((false, None)))]
    #[case::query("dryRun=All", "", Ok((true, None)))]
    #[case::kubectl("", r#"{"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}"#, Ok((true, None)))]
    #[case::unknown("", r#"{"dryRun": ["some"]}"#, Err(422))]
    #[case::preconditions("", r#"{"preconditions": {"uid": "u"}}"#, Ok((false, Some("u"))))]
    #[case::no_json("", "x", Err(400))]
    fn deletions(#[case] text: &str, #[case] body: &'static str, #[case] expected: Result<(bool, Option<&str>), u16>) {
        let params = delete_params(&Bytes::from_static(body.as_bytes()), &query(text)).map_err(|error| error.code);
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
    fn selectors(#[case] text: &str, #[case] expected: Result<bool, &str>) {
        let labels = Some(BTreeMap::from([("team".to_owned(), "a".to_owned())]));
        let metadata = ObjectMeta { name: Some("mine".into()), labels, ..ObjectMeta::default() };
        let matched = Selectors::read(&query(text)).map(|selectors| selectors.match_object(&metadata));
        assert_eq!(matched.map_err(|error| error.message), expected.map_err(str::to_owned));
    }

    #[test]
    fn patches_apply_to_what_callers_read() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"title": "a", "shared": true}});
        let merged = Patch::Merge(json!({"spec": {"shared": null}})).apply(object.clone()).unwrap();
        assert_eq!(merged["spec"], json!({"title": "a"}));
        let operation = json!({"op": "replace", "path": "/spec/title", "value": "b"});
        let patched = Patch::Json(vec![operation]).apply(object.clone()).unwrap();
        assert_eq!(patched["spec"]["title"], "b");
        let missing = json!({"op": "remove", "path": "/spec/nope"});
        assert_eq!(Patch::Json(vec![missing]).apply(object).unwrap_err().code, 422);
    }
}
