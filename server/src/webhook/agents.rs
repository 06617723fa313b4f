//! Admission of writes by members' agents: only the Secrets that report their tokens are allowed.

use axum::body::Bytes;
use axum::response::Response;
use crowsnest_apiserver::status::ApiError;
use crowsnest_controllers::admission::agents::{MATCH_CONDITION, check_secret};
use http::StatusCode;
use serde_json::{Value, json};

use super::{allow, envelope, refuse, user_of};
use crate::aggregated::reply::{Failure, json as reply};

pub(super) const PATH: &str = "/agents/secrets";
const NAME: &str = "agents.crowsnest.io";

/// API servers before 1.28 have no match conditions and send every Secret for review; the result is the same.
pub(super) fn configuration(ca_bundle: &str, base_url: &str) -> Value {
    let hook = json!({
        "name": format!("secrets.{NAME}"),
        "clientConfig": {"url": format!("{base_url}{PATH}"), "caBundle": ca_bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"],
                   "scope": "Namespaced"}],
        "matchConditions": [{"name": "agents", "expression": MATCH_CONDITION}],
        "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
    });
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": NAME},
           "webhooks": [hook]})
}

pub(super) async fn review(body: Bytes) -> Result<Response, Failure> {
    let (review, _) = envelope::admission_review(&body)?;
    Ok(reply(StatusCode::OK, &answer(&review["request"])))
}

fn answer(request: &Value) -> Value {
    let secret = &request["object"];
    match check_secret(&user_of(request), secret) {
        Ok(()) => allow(&request["uid"], None),
        Err(why) => {
            let name = secret.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            refuse(&request["uid"], &ApiError::forbidden("", "secrets", name, why).to_status())
        }
    }
}
