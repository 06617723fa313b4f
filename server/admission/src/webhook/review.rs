//! AdmissionReview: the request to a webhook and its response. Has no side effects.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_registry::admission::{Attributes, Operation};
use crowsnest_schema::decode::decode_value;
use crowsnest_schema::patch::go_kind;
use crowsnest_schema::schema_set::SchemaSet;
use serde_json::{Map, Value, json};

use super::patching;

/// Parsed response of a webhook.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AdmissionResponse {
    /// The Status of a denial; `None` if the webhook allows the request.
    pub denial: Option<Value>,
    pub warnings: Vec<String>,
    /// JSON patch operations.
    pub patch: Vec<Value>,
    /// Keys and values of annotations for the audit log.
    pub audit_annotations: Vec<(String, String)>,
}

/// Builds `request` of an AdmissionReview; `gvr` is the version that the webhook's rules name.
pub fn build_request(a: &Attributes<'_>, gvr: &Gvr, uid: &str, object: Option<&Value>, old: Option<&Value>) -> Value {
    let request_gvr = &a.resource.gvr;
    let (kind, request_kind) = kinds(a, gvr);
    let resource = |gvr: &Gvr| json!({"group": gvr.group, "version": gvr.version, "resource": gvr.resource});
    let mut request = json!({
        "uid": uid,
        "kind": kind,
        "resource": resource(gvr),
        "requestKind": request_kind,
        "requestResource": resource(request_gvr),
        "operation": a.operation.as_str(),
        "userInfo": user_info(a),
        "object": object,
        "oldObject": old,
        "dryRun": a.ctx.dry_run,
        "options": options(a),
    });
    let mut set_unless_empty = |key: &str, text: &str| {
        if !text.is_empty() {
            request[key] = text.into();
        }
    };
    set_unless_empty("name", a.name);
    set_unless_empty("namespace", if a.resource.namespaced { &a.ctx.namespace } else { "" });
    set_unless_empty("subResource", &a.ctx.subresource);
    set_unless_empty("requestSubResource", &a.ctx.subresource);
    let is_namespace = request_gvr.group.is_empty() && &*request_gvr.resource == "namespaces";
    if is_namespace {
        set_unless_empty("namespace", a.name);
    }
    request
}

/// `kind` and `requestKind`; both are the subresource's kind if it has its own.
fn kinds(a: &Attributes<'_>, gvr: &Gvr) -> (Value, Value) {
    let kind_in = |gvr: &Gvr| match a.subresource_of_other_kind() {
        Some(sub) => json!({"group": sub.group, "version": sub.version, "kind": sub.kind}),
        None => json!({"group": gvr.group, "version": gvr.version, "kind": a.resource.kind}),
    };
    (kind_in(gvr), kind_in(&a.resource.gvr))
}

fn user_info(a: &Attributes<'_>) -> Value {
    let user = &a.ctx.user;
    let mut info = Map::new();
    info.insert("username".into(), json!(user.name));
    if !user.uid.is_empty() {
        info.insert("uid".into(), json!(user.uid));
    }
    if !user.groups.is_empty() {
        info.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".into(), json!(user.extra));
    }
    Value::Object(info)
}

/// The options with their kind; webhooks receive UpdateOptions for a patch.
fn options(a: &Attributes<'_>) -> Value {
    let kind = match a.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return a.options.clone(),
    };
    let mut options = a.options.as_object().cloned().unwrap_or_default();
    options.insert("kind".into(), kind.into());
    options.insert("apiVersion".into(), "meta.k8s.io/v1".into());
    options.remove("force");
    Value::Object(options)
}

/// Builds an AdmissionReview of a version of `admission.k8s.io`.
pub fn build_review(version: &str, request: Value) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": request})
}

/// Reason why a response cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// The response cannot be parsed.
    #[error("failed to call webhook: {0}")]
    Malformed(String),
    /// The response does not match the request.
    #[error("received invalid webhook response: {0}")]
    Invalid(String),
    #[error("received undecodable patch in webhook response: {0}")]
    MalformedPatch(String),
    #[error("unsupported patch type {0:?}")]
    UnsupportedPatchType(String),
}

/// Name of kube-apiserver's runtime scheme in error messages.
const SCHEME: &str = "k8s.io/apiserver/pkg/util/webhook/client.go:71";

/// Validates and parses a review with a response. `version` and `uid` are those of the review that was sent,
/// `is_mutating` is the type of the webhook.
pub fn parse_response(
    review: &Value,
    version: &str,
    uid: &str,
    is_mutating: bool,
) -> Result<AdmissionResponse, ResponseError> {
    check_kind(review, version).map_err(ResponseError::Malformed)?;
    let absent = Map::new();
    let response = match review.get("response") {
        None | Some(Value::Null) => return Err(ResponseError::Invalid("webhook response was absent".to_owned())),
        Some(Value::Object(response)) => response,
        Some(other) => {
            let kind = go_kind(other);
            let reason = format!(
                "json: cannot unmarshal {kind} into Go struct field AdmissionReview.response of type v1.AdmissionResponse"
            );
            return Err(ResponseError::Malformed(reason));
        }
    };
    check_types(response).map_err(ResponseError::Malformed)?;
    let text = |key: &str| response.get(key).and_then(Value::as_str).unwrap_or("");
    let patch = patching::decode_base64(text("patch")).map_err(ResponseError::Malformed)?;
    let patch_type = response.get("patchType").and_then(Value::as_str);
    if version == "v1" {
        if text("uid") != uid {
            return Err(ResponseError::Invalid(format!("expected response.uid={uid:?}, got {:?}", text("uid"))));
        }
        check_patch(!patch.is_empty(), patch_type, is_mutating).map_err(ResponseError::Invalid)?;
    }
    let list = |key: &str| response.get(key).and_then(Value::as_array).into_iter().flatten();
    let warnings = list("warnings").filter_map(|w| w.as_str().map(str::to_owned));
    let annotations = response.get("auditAnnotations").and_then(Value::as_object).unwrap_or(&absent).iter();
    let annotations = annotations.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()));
    let mut parsed = AdmissionResponse {
        warnings: warnings.collect(),
        audit_annotations: annotations.collect(),
        ..AdmissionResponse::default()
    };
    if response.get("allowed") != Some(&Value::Bool(true)) {
        parsed.denial = Some(response.get("status").filter(|s| s.is_object()).cloned().unwrap_or_else(|| json!({})));
    } else if is_mutating && !patch.is_empty() {
        parsed.patch = patching::parse_patch(&patch).map_err(ResponseError::MalformedPatch)?;
        let is_unsupported = |kind: &&str| version == "v1" && *kind != "JSONPatch" && !parsed.patch.is_empty();
        if let Some(other) = patch_type.filter(is_unsupported) {
            return Err(ResponseError::UnsupportedPatchType(other.to_owned()));
        }
    }
    Ok(parsed)
}

/// Checks apiVersion and kind of a received review; missing ones default to those of the sent review.
fn check_kind(review: &Value, version: &str) -> Result<(), String> {
    let text = |key: &str| review.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let expected = format!("admission.k8s.io/{version}");
    let (api_version, kind) = (text("apiVersion").unwrap_or(&expected), text("kind").unwrap_or("AdmissionReview"));
    if (api_version, kind) == (&expected, "AdmissionReview") {
        return Ok(());
    }
    let registered =
        [("admission.k8s.io/v1", "AdmissionReview"), ("admission.k8s.io/v1beta1", "AdmissionReview"), ("v1", "Status")];
    if registered.contains(&(api_version, kind)) {
        let received = api_version.rsplit('/').next().unwrap_or_default();
        return Err(format!("converting ({received}.{kind}) to ({version}.AdmissionReview): unknown conversion"));
    }
    Err(format!("no kind {kind:?} is registered for version {api_version:?} in scheme {SCHEME:?}"))
}

/// Rejects fields of a wrong type, with Go's wording.
fn check_types(response: &Map<String, Value>) -> Result<(), String> {
    for (key, value) in response.iter().filter(|(_, value)| !value.is_null()) {
        let (has_type, go_type) = match key.as_str() {
            "allowed" => (value.is_boolean(), "bool"),
            "uid" => (value.is_string(), "types.UID"),
            "patch" => (value.is_string(), "[]uint8"),
            "patchType" => (value.is_string(), "v1.PatchType"),
            "warnings" => (value.is_array(), "[]string"),
            "auditAnnotations" => (value.is_object(), "map[string]string"),
            "status" => (value.is_object(), "v1.Status"),
            _ => continue,
        };
        let type_error = |kind: &str, go_type: &str| {
            format!(
                "json: cannot unmarshal {kind} into Go struct field AdmissionResponse.response.{key} of type {go_type}"
            )
        };
        if !has_type {
            return Err(type_error(go_kind(value), go_type));
        }
        let members = match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(fields) if key == "auditAnnotations" => fields.values().collect(),
            _ => Vec::new(),
        };
        if let Some(wrong) = members.into_iter().find(|member| !member.is_string() && !member.is_null()) {
            return Err(type_error(go_kind(wrong), "string"));
        }
        let schema = SchemaSet::builtin().definition("io.k8s.apimachinery.pkg.apis.meta.v1.Status");
        if let (Some(schema), "status") = (schema, key.as_str())
            && let Some(wrong) = decode_value(value.clone(), &schema).type_error
        {
            return Err(wrong.replacen("Go struct field Status.", "Go struct field Status.response.status.", 1));
        }
    }
    Ok(())
}

/// Checks that patch and patch type are consistent and allowed for the type of webhook.
fn check_patch(has_patch: bool, patch_type: Option<&str>, is_mutating: bool) -> Result<(), String> {
    let reason = match (has_patch, patch_type) {
        (true, _) if !is_mutating => "validating webhook may not return response.patch",
        (_, Some(_)) if !is_mutating => "validating webhook may not return response.patchType",
        (true, None) => "webhook returned response.patch but not response.patchType",
        (false, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, Some("")) => "webhook returned invalid response.patchType of \"\"",
        _ => return Ok(()),
    };
    Err(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(json!({"response": {"uid": "u", "allowed": true}}), "")]
    #[case(json!({"kind": "AdmissionReview"}), "received invalid webhook response: webhook response was absent")]
    #[case(json!({"apiVersion": "admission.k8s.io/v1beta1", "response": {"uid": "u"}}), "failed to call webhook: converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion")]
    #[case(json!({"apiVersion": "v1", "kind": "Status"}), "failed to call webhook: converting (v1.Status) to (v1.AdmissionReview): unknown conversion")]
    #[case(json!({"apiVersion": "admission.k8s.io/v2", "response": {"uid": "u"}}), "failed to call webhook: no kind \"AdmissionReview\" is registered for version \"admission.k8s.io/v2\" in scheme \"k8s.io/apiserver/pkg/util/webhook/client.go:71\"")]
    #[case(json!({"response": {"allowed": true}}), "received invalid webhook response: expected response.uid=\"u\", got \"\"")]
    #[case(json!({"response": {"uid": "u", "allowed": "yes"}}), "failed to call webhook: json: cannot unmarshal string into Go struct field AdmissionResponse.response.allowed of type bool")]
    #[case(json!({"response": {"uid": "u", "status": {"code": "5"}}}), "failed to call webhook: json: cannot unmarshal string into Go struct field Status.response.status.code of type int32")]
    #[case(json!({"response": {"uid": "u", "allowed": true, "patch": "W10="}}), "received invalid webhook response: webhook returned response.patch but not response.patchType")]
    #[case(json!({"response": {"uid": "u", "allowed": true, "patch": "***", "patchType": "JSONPatch"}}), "failed to call webhook: illegal base64 data at input byte 0")]
    #[case(json!({"response": {"uid": "u", "allowed": true, "patch": "e30=", "patchType": "JSONPatch"}}), "received undecodable patch in webhook response: json: cannot unmarshal object into Go value of type jsonpatch.Patch")]
    #[case(json!({"response": {"uid": "u", "allowed": true, "patch": "W3t9XQ==", "patchType": "MergePatch"}}), "unsupported patch type \"MergePatch\"")]
    fn unusable_responses_are_rejected(#[case] review: Value, #[case] expected: &str) {
        let error = parse_response(&review, "v1", "u", true).err();
        assert_eq!(error.map(|error| error.to_string()).unwrap_or_default(), expected);
    }

    #[test]
    fn validating_webhooks_cannot_patch() {
        let review = json!({"response": {"uid": "u", "allowed": true, "patch": "W10=", "patchType": "JSONPatch"}});
        let error = parse_response(&review, "v1", "u", false).unwrap_err().to_string();
        assert_eq!(error, "received invalid webhook response: validating webhook may not return response.patch");
    }
}
