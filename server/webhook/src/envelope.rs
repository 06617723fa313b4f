//! Size, time and concurrency limits of review requests, and validation of the review that a request contains.

use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::StatusResponse;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Maximum request size in bytes. An API server stores objects of up to 3 MiB, and a review contains the old and the
/// new object.
pub(super) const MAX_REQUEST_BYTES: usize = 8 << 20;
/// Time limit for reading a request's body.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a review. API servers wait 30 s at most, and our configurations set less.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent reviews.
const MAX_CONCURRENT_REVIEWS: usize = 256;
/// Maximum length of a review's UID; API servers use shorter ones.
const MAX_UID_BYTES: usize = 256;

/// Limits the time and the number of concurrent reviews.
#[derive(Clone)]
pub(super) struct ReviewLimits(Arc<Semaphore>);

impl Default for ReviewLimits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONCURRENT_REVIEWS)))
    }
}

pub(super) async fn limit(State(ReviewLimits(permits)): State<ReviewLimits>, request: Request, next: Next) -> Response {
    // A permit is acquired before the body is read, because bodies take memory. The semaphore is never closed.
    let Ok(Ok(_permit)) = tokio::time::timeout(REVIEW_TIMEOUT, permits.acquire()).await else {
        return ApiError::too_many_requests().into_response();
    };
    let (parts, body) = request.into_parts();
    let body = match tokio::time::timeout(READ_TIMEOUT, axum::body::to_bytes(body, MAX_REQUEST_BYTES)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            return ApiError::bad_request(format!("cannot read the body (at most {MAX_REQUEST_BYTES} bytes): {error}"))
                .into_response();
        }
        Err(_) => return ApiError::timeout().into_response(),
    };
    let request = Request::from_parts(parts, axum::body::Body::from(body));
    tokio::time::timeout(REVIEW_TIMEOUT, next.run(request))
        .await
        .unwrap_or_else(|_| ApiError::timeout().into_response())
}

/// Reason why a body is not a valid review.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewFormatError {
    #[error("the body is not JSON: {0}")]
    Json(#[source] serde_json::Error),
    #[error("expected {kind} of {api_version}, got {found}")]
    Kind { kind: &'static str, api_version: &'static str, found: String },
    #[error("request.uid must be a string of 1 to {MAX_UID_BYTES} bytes")]
    Uid,
    #[error("cannot decode the request: {0}")]
    Request(#[source] serde_json::Error),
}

impl From<ReviewFormatError> for ApiError {
    fn from(error: ReviewFormatError) -> Self {
        ApiError::bad_request(error.to_string())
    }
}

fn parse_review(body: &Bytes, kind: &'static str, api_version: &'static str) -> Result<Value, ReviewFormatError> {
    let review: Value = serde_json::from_slice(body).map_err(ReviewFormatError::Json)?;
    let text = |field: &str| review.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("kind") != kind || text("apiVersion") != api_version {
        let found: String =
            format!("{:?} of {:?}", text("kind"), text("apiVersion")).chars().take(MAX_UID_BYTES).collect();
        return Err(ReviewFormatError::Kind { kind, api_version, found });
    }
    let uid = review.pointer("/request/uid").and_then(Value::as_str).unwrap_or_default();
    match (1..=MAX_UID_BYTES).contains(&uid.len()) {
        true => Ok(review),
        false => Err(ReviewFormatError::Uid),
    }
}

/// Parses an AdmissionReview; returns the whole review and its request.
pub(super) fn parse_admission_review(body: &Bytes) -> Result<(Value, crowsnest_admission::Request), ReviewFormatError> {
    let review = parse_review(body, "AdmissionReview", "admission.k8s.io/v1")?;
    let request = crowsnest_admission::Request::from_review(&review).map_err(ReviewFormatError::Request)?;
    Ok((review, request))
}

pub(super) fn parse_conversion_review(body: &Bytes) -> Result<Value, ReviewFormatError> {
    parse_review(body, "ConversionReview", "apiextensions.k8s.io/v1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use rstest::rstest;
    use serde_json::json;

    fn bytes(value: &Value) -> Bytes {
        Bytes::from(value.to_string())
    }

    fn review() -> Value {
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
               "request": {"uid": "u", "operation": "CREATE", "namespace": "shop", "object": {"kind": "A"}}})
    }

    #[test]
    fn reviews_are_parsed() {
        let (_, request) = parse_admission_review(&bytes(&review())).unwrap();
        assert_eq!((request.uid.as_str(), request.namespace.as_str(), request.is_dry_run()), ("u", "shop", false));
    }

    #[rstest]
    #[case::another_kind("/kind", json!("ConversionReview"), "expected AdmissionReview of admission.k8s.io/v1, got \"ConversionReview\"")]
    #[case::another_version("/apiVersion", json!("admission.k8s.io/v1beta1"), "got \"AdmissionReview\" of \"admission.k8s.io/v1beta1\"")]
    #[case::no_uid("/request/uid", json!(""), "request.uid must be")]
    #[case::a_number_as_uid("/request/uid", json!(7), "request.uid must be")]
    #[case::a_long_uid("/request/uid", json!("u".repeat(300)), "request.uid must be")]
    #[case::another_operation("/request/operation", json!("PATCH"), "unknown variant")]
    #[case::a_number_as_namespace("/request/namespace", json!(7), "cannot decode the request")]
    #[case::no_request("/request", json!(null), "request.uid must be")]
    fn malformed_reviews_are_refused(#[case] field: &str, #[case] value: Value, #[case] expected: &str) {
        let mut review = review();
        *review.pointer_mut(field).unwrap() = value;
        let error = parse_admission_review(&bytes(&review)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(parse_admission_review(&Bytes::from(deep)), Err(ReviewFormatError::Json(_))));
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~]{0,12}".prop_map(Value::from),
        ];
        let key = prop::sample::select(vec![
            "kind",
            "apiVersion",
            "metadata",
            "name",
            "namespace",
            "spec",
            "clusters",
            "replicas",
            "placement",
            "status",
            "resource",
            "annotations",
            "labels",
            "components",
            "overall",
            "customizations",
            "target",
            "luaScript",
            "x",
        ]);
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..6)
                    .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
            ]
        })
    }

    fn cases() -> u32 {
        std::env::var("CROWSNEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500)
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic() {
        let config = ProptestConfig { cases: cases(), rng_seed: RngSeed::Fixed(31), ..ProptestConfig::default() };
        proptest!(config, |(body in prop::collection::vec(any::<u8>(), 0..200))| {
            prop_assert!(parse_admission_review(&Bytes::from(body)).is_err());
        });
    }

    /// Every webhook responds to every review, for any content, with the UID of that review.
    #[test]
    fn arbitrary_objects_are_answered() {
        let config = ProptestConfig { cases: cases(), rng_seed: RngSeed::Fixed(31), ..ProptestConfig::default() };
        let paths = super::super::metrics::PATHS;
        let operation = prop::sample::select(vec!["CREATE", "UPDATE", "DELETE", "CONNECT"]);
        proptest!(config, |(object in json_value(), old in json_value(), operation in operation, path in prop::sample::select(paths.to_vec()))| {
            let body = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
                              "request": {"uid": "u", "operation": operation, "object": object, "oldObject": old}});
            let (review, request) = parse_admission_review(&bytes(&body)).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let context = crowsnest_admission::AdmissionContext {
                permanent_id: "id", gates: crowsnest_admission::Gates::default(), allow_no_execute_taint_policy: false,
                customizations: &[], quotas: &[], compile_lua: &|_| Ok(()),
            };
            let response = crowsnest_admission::review(path, &request, &context).map(|review| review.to_wire(&request));
            prop_assert_eq!(response.and_then(|response| response.pointer("/response/uid").cloned()), Some(json!("u")));
            for resource in ["clusters", "resourceregistries"] {
                let settings = super::super::stored::AdmissionSettings { adds_default_models: true, allow_local_endpoints: false };
                let response = super::super::stored::review(resource, &review, settings, jiff::Timestamp::UNIX_EPOCH);
                prop_assert_eq!(response.pointer("/response/uid"), Some(&json!("u")));
            }
        });
    }
}
