//! Request bodies and their fields.

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::{Body, collect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{API_VERSION, NAME};

/// Fields of the spec that both kinds have.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Coverage {
    /// Clusters to review; empty: all that the caller may see.
    pub clusters: Vec<String>,
    /// Namespaces to review; `*` means all.
    pub namespaces: Vec<String>,
    /// RBAC objects that are left out.
    pub without: Vec<ObjectReference>,
    pub indirect: bool,
    pub limit: Option<usize>,
    #[serde(rename = "continue")]
    pub continue_token: String,
}

const SHARED: [&str; 6] = ["clusters", "namespaces", "without", "indirect", "limit", "continue"];

/// An RBAC object; without a cluster, that of each reviewed one.
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
    pub resource_attributes: Option<ResourceAttributes>,
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
struct Sent {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    spec: Map<String, Value>,
}

/// Reads the body of a review: the spec, as sent, and its parts.
pub(super) async fn read<S: DeserializeOwned>(kind: &str, body: Body) -> Result<(Value, S, Coverage), ApiError> {
    parse(kind, &collect(body).await?)
}

fn parse<S: DeserializeOwned>(kind: &str, body: &[u8]) -> Result<(Value, S, Coverage), ApiError> {
    let undecoded =
        |error: serde_json::Error| ApiError::bad_request(format!("error decoding the {kind}'s JSON: {error}"));
    let sent: Sent = serde_json::from_slice(body).map_err(undecoded)?;
    let is_ours = |field: &Option<String>, ours: &str| field.as_deref().is_none_or(|field| field == ours);
    if !is_ours(&sent.api_version, API_VERSION) || !is_ours(&sent.kind, kind) {
        return Err(ApiError::bad_request(format!("the body is no {kind} of {API_VERSION}")));
    }
    let (shared, own): (Map<_, _>, Map<_, _>) =
        sent.spec.clone().into_iter().partition(|(field, _)| SHARED.contains(&field.as_str()));
    let own = serde_json::from_value(own.into()).map_err(undecoded)?;
    let coverage = serde_json::from_value(shared.into()).map_err(undecoded)?;
    Ok((sent.spec.into(), own, coverage))
}

/// An error of a review with the fields that are wrong.
pub(super) fn invalid(kind: &str, errors: Vec<FieldError>) -> ApiError {
    ApiError::invalid(NAME, kind, "", errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_read() {
        let body = json!({"spec": {"user": "ann", "clusters": ["m1"], "continue": "m1///0", "limit": 5}}).to_string();
        let (spec, subject, coverage) = parse::<SubjectSpec>("SubjectRulesReview", body.as_bytes()).unwrap();
        assert_eq!((subject.user.as_str(), coverage.limit), ("ann", Some(5)));
        assert_eq!((coverage.clusters, coverage.continue_token), (vec!["m1".to_owned()], "m1///0".to_owned()));
        assert_eq!(spec["user"], "ann");
    }

    #[rstest::rstest]
    #[case::an_unknown_field(json!({"spec": {"usr": "ann"}}), "unknown field `usr`")]
    #[case::of_the_other_kind(json!({"spec": {"resourceAttributes": {}}}), "unknown field `resourceAttributes`")]
    #[case::another_kind(json!({"kind": "Pod", "spec": {}}), "the body is no SubjectRulesReview of access.crowsnest.io/v1alpha1")]
    #[case::another_type(json!({"spec": {"indirect": "yes"}}), "expected a boolean")]
    #[case::no_object(json!("x"), "error decoding the SubjectRulesReview's JSON")]
    fn wrong_bodies_are_refused(#[case] body: Value, #[case] expected: &str) {
        let error = parse::<SubjectSpec>("SubjectRulesReview", body.to_string().as_bytes()).unwrap_err();
        assert!(error.code == 400 && error.message.contains(expected), "{}", error.message);
    }
}
