//! Request bodies and their fields.

use axum::extract::Request;
use crowsnest_apimachinery::content_negotiation::{Encoding, body_encoding, unsupported_media_type};
use crowsnest_apimachinery::field::{FieldError, FieldErrorKind, aggregate};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::unstructured::remove_nulls;
use crowsnest_apimachinery::yaml;
use crowsnest_process::reply::collect;
use http::header;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::{API_VERSION, NAME};

/// Maximum number of invalid fields that an error names: a small body can have many.
const MAX_NAMED_FIELDS: usize = 20;

/// Fields of the spec that both kinds have.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Coverage {
    /// Clusters to review. Empty means all that the caller may see.
    pub clusters: Vec<String>,
    /// Namespaces to review; `*` means all.
    pub namespaces: Vec<String>,
    /// RBAC objects that the evaluation ignores.
    #[serde(deserialize_with = "deserialize_objects")]
    pub without: Vec<ObjectReference>,
    pub indirect: bool,
    pub limit: Option<i64>,
    #[serde(rename = "continue")]
    pub continue_token: String,
}

const SHARED_FIELDS: [&str; 6] = ["clusters", "namespaces", "without", "indirect", "limit", "continue"];

/// Reference to an RBAC object: in one cluster, or in each reviewed cluster if `cluster` is empty.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ObjectReference {
    pub cluster: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

/// The action of a ResourceAccessReview, in the attributes of a SubjectAccessReview.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ActionSpec {
    #[serde(deserialize_with = "deserialize_optional_object")]
    pub resource_attributes: Option<ResourceAttributes>,
    #[serde(deserialize_with = "deserialize_optional_object")]
    pub non_resource_attributes: Option<NonResourceAttributes>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ResourceAttributes {
    pub verb: String,
    pub group: String,
    /// Accepted for compatibility; RBAC has no versions.
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// Accepted for compatibility; RBAC does not evaluate selectors.
    #[serde(deserialize_with = "deserialize_optional_object")]
    pub field_selector: Option<SelectorAttributes>,
    #[serde(deserialize_with = "deserialize_optional_object")]
    pub label_selector: Option<SelectorAttributes>,
}

/// A field or label selector, as text or as requirements.
#[derive(Debug, Default, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct SelectorAttributes {
    raw_selector: String,
    #[serde(deserialize_with = "deserialize_objects")]
    requirements: Vec<SelectorRequirement>,
}

#[derive(Debug, Default, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct SelectorRequirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl ResourceAttributes {
    /// The selectors as in the attributes of a SubjectAccessReview.
    pub fn selectors(&self) -> Value {
        json!({"fieldSelector": self.field_selector, "labelSelector": self.label_selector})
    }
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct NonResourceAttributes {
    pub verb: String,
    pub path: String,
}

/// The subject of a SubjectRulesReview.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct SubjectSpec {
    pub user: String,
    /// Accepted for compatibility; RBAC has no rules about UIDs.
    pub uid: String,
    pub groups: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewBody {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    spec: Map<String, Value>,
}

/// A value that is decoded from a JSON object only. Derived implementations also accept arrays, by the position of
/// fields.
struct FromObject<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for FromObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Map::<String, Value>::deserialize(deserializer)?;
        serde_json::from_value(fields.into()).map(Self).map_err(D::Error::custom)
    }
}

fn deserialize_optional_object<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<FromObject<T>>::deserialize(deserializer)?.map(|FromObject(value)| value))
}

fn deserialize_objects<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let values = Vec::<FromObject<T>>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|FromObject(value)| value).collect())
}

/// Reads the body of a review, in JSON or YAML. Returns the whole spec as it was sent but without null
/// fields, the fields of this kind, and the fields that both kinds have.
pub(super) async fn read_review<S: DeserializeOwned>(
    kind: &str,
    request: Request,
) -> Result<(Value, S, Coverage), ApiError> {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("invalid"));
    let encoding = encoding(content_type)?;
    parse_review(kind, encoding, &collect(request.into_body()).await?)
}

/// The encoding of a body; 415 for media types other than JSON and YAML.
fn encoding(content_type: Option<&str>) -> Result<Encoding, ApiError> {
    match body_encoding(content_type) {
        Ok(encoding @ (Encoding::Json | Encoding::Yaml)) => Ok(encoding),
        _ => Err(unsupported_media_type(&["application/json", "application/yaml"])),
    }
}

fn parse_review<S: DeserializeOwned>(
    kind: &str,
    encoding: Encoding,
    body: &[u8],
) -> Result<(Value, S, Coverage), ApiError> {
    let format = if encoding == Encoding::Yaml { "YAML" } else { "JSON" };
    let decode_error =
        |error: &dyn std::fmt::Display| ApiError::bad_request(format!("error decoding the {kind}'s {format}: {error}"));
    let json_error = |error: serde_json::Error| decode_error(&error);
    let value: Value = match encoding {
        Encoding::Yaml => {
            let text = std::str::from_utf8(body).map_err(|error| decode_error(&error))?;
            yaml::parse(text).map_err(|error| decode_error(&error))?
        }
        _ => serde_json::from_slice(body).map_err(json_error)?,
    };
    // As in kube-apiserver, fields that are null are absent.
    let FromObject(review) =
        serde_json::from_value::<FromObject<ReviewBody>>(remove_nulls(value)).map_err(json_error)?;
    let is_expected = |field: &Option<String>, expected: &str| field.as_deref().is_none_or(|field| field == expected);
    if !is_expected(&review.api_version, API_VERSION) || !is_expected(&review.kind, kind) {
        return Err(ApiError::bad_request(format!("the body is not a {kind} of {API_VERSION}")));
    }
    let (shared_fields, kind_fields): (Map<_, _>, Map<_, _>) =
        review.spec.clone().into_iter().partition(|(field, _)| SHARED_FIELDS.contains(&field.as_str()));
    match (decode_fields::<S>(kind_fields), decode_fields::<Coverage>(shared_fields)) {
        (Ok(kind_fields), Ok(coverage)) => Ok((review.spec.into(), kind_fields, coverage)),
        (kind_fields, coverage) => {
            let errors: Vec<FieldError> = kind_fields.err().into_iter().chain(coverage.err()).flatten().collect();
            Err(decode_error(&aggregate(&errors)).with_causes(&errors))
        }
    }
}

/// Decodes fields of a spec. The errors name the first fields that are unknown or have another type.
fn decode_fields<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, Vec<FieldError>> {
    serde_json::from_value(fields.clone().into()).map_err(|_| {
        // All fields are optional, so each can be decoded alone.
        let errors = fields.into_iter().filter_map(|(name, value)| {
            let error = serde_json::from_value::<T>(Map::from_iter([(name.clone(), value)]).into()).err()?;
            Some(FieldError::new(FieldErrorKind::Invalid, format!("spec.{name}"), None, error.to_string()))
        });
        errors.take(MAX_NAMED_FIELDS).collect()
    })
}

/// The error of a review with invalid fields.
pub(super) fn invalid(kind: &str, errors: Vec<FieldError>) -> ApiError {
    ApiError::invalid(NAME, kind, "", errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read() {
        let body = json!({"spec": {"user": "ann", "clusters": ["m1"], "continue": "m1///0", "limit": 5}}).to_string();
        let (spec, subject, coverage) =
            parse_review::<SubjectSpec>("SubjectRulesReview", Encoding::Json, body.as_bytes()).unwrap();
        assert_eq!((subject.user.as_str(), coverage.limit), ("ann", Some(5)));
        assert_eq!((coverage.clusters, coverage.continue_token), (vec!["m1".to_owned()], "m1///0".to_owned()));
        assert_eq!(spec["user"], "ann");
    }

    #[test]
    fn yaml_is_read() {
        let body = "spec: {user: ann, without: [{kind: Role, namespace: shop, name: web}]}";
        let (_, subject, coverage) =
            parse_review::<SubjectSpec>("SubjectRulesReview", Encoding::Yaml, body.as_bytes()).unwrap();
        assert_eq!((subject.user.as_str(), coverage.without[0].name.as_str()), ("ann", "web"));
    }

    #[rstest::rstest]
    #[case::selectors(json!({"fieldSelector": null, "labelSelector": null}), json!({"fieldSelector": null, "labelSelector": null}))]
    #[case::raw_selector(
        json!({"fieldSelector": {"rawSelector": null, "requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}}),
        json!({"fieldSelector": {"rawSelector": "", "requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}, "labelSelector": null})
    )]
    #[case::requirements(
        json!({"labelSelector": {"rawSelector": "a=b", "requirements": null}}),
        json!({"fieldSelector": null, "labelSelector": {"rawSelector": "a=b", "requirements": []}})
    )]
    #[case::values(
        json!({"verb": null, "labelSelector": {"requirements": [{"key": "a", "operator": "Exists", "values": null}]}}),
        json!({"fieldSelector": null, "labelSelector": {"rawSelector": "", "requirements": [{"key": "a", "operator": "Exists", "values": []}]}})
    )]
    fn null_fields_are_absent(#[case] attributes: Value, #[case] expected: Value) {
        let body = json!({"metadata": null, "spec": {"clusters": null, "resourceAttributes": attributes}}).to_string();
        let (_, action, coverage) =
            parse_review::<ActionSpec>("ResourceAccessReview", Encoding::Json, body.as_bytes()).unwrap();
        let attributes = action.resource_attributes.unwrap();
        assert_eq!((attributes.selectors(), attributes.verb.as_str(), coverage.clusters.len()), (expected, "", 0));
    }

    #[rstest::rstest]
    #[case::none(None, Ok(Encoding::Json))]
    #[case::json(Some("application/json; charset=utf-8"), Ok(Encoding::Json))]
    #[case::yaml(Some("application/yaml"), Ok(Encoding::Yaml))]
    #[case::text(Some("text/plain"), Err(415))]
    #[case::protobuf(Some("application/vnd.kubernetes.protobuf"), Err(415))]
    fn media_types_are_checked(#[case] content_type: Option<&str>, #[case] expected: Result<Encoding, u16>) {
        assert_eq!(encoding(content_type).map_err(|error| error.code), expected);
    }

    #[rstest::rstest]
    #[case::the_action(json!({"spec": {"resourceAttributes": ["get", "", "v1", "pods"]}}))]
    #[case::a_path(json!({"spec": {"nonResourceAttributes": ["get", "/metrics"]}}))]
    #[case::an_ignored_object(json!({"spec": {"without": [["m1", "Role", "shop", "web"]]}}))]
    fn arrays_are_not_objects(#[case] body: Value) {
        let body = body.to_string();
        let error = parse_review::<ActionSpec>("ResourceAccessReview", Encoding::Json, body.as_bytes()).unwrap_err();
        assert!(error.code == 400 && error.message.contains("expected a map"), "{}", error.message);
    }

    #[rstest::rstest]
    #[case::an_unknown_field(json!({"usr": "ann"}), &["spec.usr"])]
    #[case::other_types(json!({"groups": "sre", "user": "ann", "indirect": "yes"}), &["spec.groups", "spec.indirect"])]
    #[case::an_unknown_field_of_an_object(json!({"user": "ann", "without": [{"kind": "Role", "uid": "1"}]}), &["spec.without"])]
    fn wrong_fields_are_causes(#[case] spec: Value, #[case] expected: &[&str]) {
        let body = json!({"spec": spec}).to_string();
        let error = parse_review::<SubjectSpec>("SubjectRulesReview", Encoding::Json, body.as_bytes()).unwrap_err();
        assert_eq!((error.code, error.reason.as_str()), (400, "BadRequest"));
        let causes = &error.details.as_ref().unwrap().causes;
        assert_eq!(causes.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(), expected);
        for cause in causes {
            assert!(cause.reason == "FieldValueInvalid" && error.message.contains(&cause.message), "{error:?}");
        }
    }

    #[test]
    fn wrong_fields_are_limited() {
        let spec: Map<String, Value> = (0..1000).map(|nth| (format!("f{nth}"), json!(1))).collect();
        let body = json!({"spec": spec}).to_string();
        let error = parse_review::<SubjectSpec>("SubjectRulesReview", Encoding::Json, body.as_bytes()).unwrap_err();
        assert_eq!(error.details.as_ref().unwrap().causes.len(), MAX_NAMED_FIELDS);
    }

    #[rstest::rstest]
    #[case::an_unknown_field(json!({"spec": {"usr": "ann"}}), "unknown field `usr`")]
    #[case::of_the_other_kind(json!({"spec": {"resourceAttributes": {}}}), "unknown field `resourceAttributes`")]
    #[case::another_kind(json!({"kind": "Pod", "spec": {}}), "the body is not a SubjectRulesReview of access.crowsnest.io/v1alpha1")]
    #[case::another_type(json!({"spec": {"indirect": "yes"}}), "expected a boolean")]
    #[case::an_array(json!(["access.crowsnest.io/v1alpha1", "SubjectRulesReview", {"user": "ann"}]), "expected a map")]
    #[case::no_object(json!("x"), "error decoding the SubjectRulesReview's JSON")]
    fn wrong_bodies_are_refused(#[case] body: Value, #[case] expected: &str) {
        let body = body.to_string();
        let error = parse_review::<SubjectSpec>("SubjectRulesReview", Encoding::Json, body.as_bytes()).unwrap_err();
        assert!(error.code == 400 && error.message.contains(expected), "{}", error.message);
    }
}
