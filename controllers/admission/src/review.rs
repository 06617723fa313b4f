//! Admission requests and responses, and their wire format (admission.k8s.io/v1 AdmissionReview).

use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_apimachinery::field::{self, FieldError};
use serde::Deserialize;
use serde_json::{Value, json};

use crowsnest_plan::quota::ExceededQuota;

/// Operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// An admission request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    #[serde(default)]
    pub uid: String,
    pub operation: Operation,
    #[serde(default)]
    pub name: String,
    /// Empty for cluster-scoped objects.
    #[serde(default)]
    pub namespace: String,
    /// The object to be stored. Null on deletion.
    #[serde(default)]
    pub object: Value,
    /// The stored object. Null on creation.
    #[serde(default)]
    pub old_object: Value,
    #[serde(default)]
    pub dry_run: Option<bool>,
}

impl Request {
    /// Decodes the request of an AdmissionReview.
    pub fn from_review(review: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(&review["request"])
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }
}

/// Rejection of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP status code of the response.
    pub code: u16,
    /// `reason` of the Status, if any.
    pub reason: Option<&'static str>,
    pub message: String,
}

impl Refusal {
    /// The object violates a rule.
    pub fn denied(message: impl Into<String>) -> Self {
        Self { code: 403, reason: Some("Forbidden"), message: message.into() }
    }

    /// The object cannot be decoded.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: 400, reason: None, message: message.into() }
    }

    /// No decision could be made.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: 500, reason: None, message: message.into() }
    }

    /// A quota would be exceeded.
    pub fn quota_exceeded(exceeded: &ExceededQuota) -> Self {
        Self { code: 403, reason: Some("QuotaExceeded"), message: exceeded.to_string() }
    }

    /// Returns an error that lists `errors`, or `Ok` if there are none.
    pub fn check(errors: &[FieldError]) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self::denied(field::aggregate(errors))) }
    }
}

/// Result for an admitted object.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is stored unchanged.
    Unchanged,
    /// This object is stored instead.
    Changed(Value),
}

/// Response to an admission request.
#[derive(Clone, Debug)]
pub struct Review {
    pub outcome: Result<Outcome, Refusal>,
    /// Quotas with increased usage, to be written when the object is stored.
    pub quota_usage: Vec<FederatedResourceQuota>,
}

impl From<Result<Outcome, Refusal>> for Review {
    fn from(outcome: Result<Outcome, Refusal>) -> Self {
        Self { outcome, quota_usage: Vec::new() }
    }
}

impl Review {
    pub fn is_allowed(&self) -> bool {
        self.outcome.is_ok()
    }

    /// The AdmissionReview of the response. A changed object is encoded as a JSON patch.
    pub fn to_wire(&self, request: &Request) -> Value {
        let mut response = json!({ "uid": request.uid, "allowed": self.is_allowed() });
        match &self.outcome {
            Ok(Outcome::Unchanged) => {}
            Ok(Outcome::Changed(object)) => {
                let patch = json_patch::diff(&request.object, object);
                if !patch.0.is_empty() {
                    let patch = serde_json::to_vec(&patch).unwrap_or_default();
                    response["patchType"] = "JSONPatch".into();
                    response["patch"] =
                        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, patch).into();
                }
            }
            Err(refusal) => {
                response["status"] = json!({ "code": refusal.code, "message": refusal.message });
                if let Some(reason) = refusal.reason {
                    response["status"]["reason"] = reason.into();
                }
            }
        }
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
    }
}
