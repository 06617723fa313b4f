//! AdmissionReview: the request a webhook gets and the answer it gives. Pure.

use base64::Engine;
use serde_json::{Map, Value, json};

use crate::admission::{Attributes, Operation};
use crate::patch::json_patch;
use crate::registry::resource::Gvr;

/// A webhook's answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The Status of a refusal.
    pub refusal: Option<Value>,
    pub warnings: Vec<String>,
    /// JSON patch operations.
    pub patch: Option<Value>,
}

/// `request` of an AdmissionReview; `gvr` is the version the webhook asked for.
pub fn request(a: &Attributes<'_>, gvr: &Gvr, uid: &str, object: Option<&Value>, old: Option<&Value>) -> Value {
    let own = &a.resource.gvr;
    let (kind, own_kind) = kinds(a, gvr);
    let resource = |gvr: &Gvr| json!({"group": gvr.group, "version": gvr.version, "resource": gvr.resource});
    let mut request = json!({
        "uid": uid,
        "kind": kind,
        "resource": resource(gvr),
        "requestKind": own_kind,
        "requestResource": resource(own),
        "operation": a.operation.as_str(),
        "userInfo": user(a),
        "object": object,
        "oldObject": old,
        "dryRun": a.ctx.dry_run,
        "options": options(a),
    });
    let mut put = |key: &str, text: &str| {
        if !text.is_empty() {
            request[key] = text.into();
        }
    };
    put("name", a.name);
    put("namespace", if a.resource.namespaced { &a.ctx.namespace } else { "" });
    put("subResource", &a.ctx.subresource);
    put("requestSubResource", &a.ctx.subresource);
    let namespaces = own.group.is_empty() && own.resource == "namespaces";
    if namespaces {
        put("namespace", a.name);
    }
    request
}

/// Kinds of the request: those of the subresource when it has its own.
fn kinds(a: &Attributes<'_>, gvr: &Gvr) -> (Value, Value) {
    let sub = a.resource.subresources.iter().find(|s| s.name == a.ctx.subresource);
    let of = |gvr: &Gvr| match sub {
        Some(sub) if sub.kind != a.resource.kind && a.ctx.subresource != "scale" => {
            json!({"group": sub.group, "version": sub.version, "kind": sub.kind})
        }
        _ => json!({"group": gvr.group, "version": gvr.version, "kind": a.resource.kind}),
    };
    (of(gvr), of(&a.resource.gvr))
}

fn user(a: &Attributes<'_>) -> Value {
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

/// The options with the kind of the operation; a patch is an update to webhooks.
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

pub fn review(version: &str, request: Value) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": request})
}

/// Checks an answer and takes it apart. `version` and `uid` are those of the review that was sent.
pub fn read(answer: &Value, version: &str, uid: &str, mutating: bool) -> Result<Answer, String> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let wanted = format!("admission.k8s.io/{version}");
    let kind = text(answer, "kind");
    let api_version = match text(answer, "apiVersion") {
        none if none.is_empty() => wanted.clone(),
        given => given,
    };
    if !kind.is_empty() && kind != "AdmissionReview" {
        return Err(format!(
            "failed to call webhook: no kind {kind:?} is registered for version {api_version:?} in scheme \"k8s.io/apiserver/pkg/util/webhook/client.go:71\""
        ));
    }
    if version == "v1" && (api_version != wanted || kind.is_empty()) {
        let got_version = text(answer, "apiVersion");
        return Err(format!(
            "received invalid webhook response: expected webhook response of {wanted}, Kind=AdmissionReview, got {got_version}, Kind={kind}"
        ));
    }
    let response = answer.get("response").filter(|r| r.is_object()).ok_or("webhook response was absent")?;
    if version == "v1" && text(response, "uid") != uid {
        return Err(format!(
            "received invalid webhook response: expected response.uid={uid:?}, got {:?}",
            text(response, "uid")
        ));
    }
    let patch = text(response, "patch");
    let patch_type = text(response, "patchType");
    if mutating && version == "v1" {
        match (patch.is_empty(), patch_type.as_str()) {
            (false, "") => {
                return Err(
                    "received invalid webhook response: webhook returned response.patch but not response.patchType"
                        .into(),
                );
            }
            (true, kind) if !kind.is_empty() => {
                return Err(
                    "received invalid webhook response: webhook returned response.patchType but not response.patch"
                        .into(),
                );
            }
            (false, kind) if kind != "JSONPatch" => {
                return Err(format!(
                    "received invalid webhook response: webhook returned invalid response.patchType of {kind:?}"
                ));
            }
            _ => {}
        }
    }
    let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned));
    if let Some(annotations) = response.get("auditAnnotations").and_then(Value::as_object) {
        for (key, value) in annotations {
            tracing::info!(target: "audit", key, value = value.as_str().unwrap_or(""), "webhook annotation");
        }
    }
    let mut read = Answer { warnings: warnings.collect(), ..Answer::default() };
    if response.get("allowed") != Some(&Value::Bool(true)) {
        read.refusal = Some(response.get("status").filter(|s| s.is_object()).cloned().unwrap_or_else(|| json!({})));
    } else if mutating && !patch.is_empty() {
        let bytes = base64::engine::general_purpose::STANDARD.decode(&patch).map_err(|e| format!("patch: {e}"))?;
        read.patch = Some(serde_json::from_slice(&bytes).map_err(|e| format!("error decoding patch: {e}"))?);
    }
    Ok(read)
}

/// Applies a webhook's JSON patch; a failure says which operation, as the library of kube-apiserver does.
pub fn apply(object: &Value, patch: &Value) -> Result<Value, String> {
    let mut current = object.clone();
    for operation in patch.as_array().into_iter().flatten() {
        current = json_patch(&current, &json!([operation])).map_err(|_| failure(&current, operation))?;
    }
    Ok(current)
}

fn failure(object: &Value, operation: &Value) -> String {
    let text = |key: &str| operation.get(key).and_then(Value::as_str).unwrap_or("");
    let (op, path) = (text("op"), text("path"));
    let (parent, key) = path.rsplit_once('/').unwrap_or(("", path));
    let has_parent = object.pointer(parent).is_some();
    match op {
        "remove" if has_parent => {
            format!("error in remove for path: '{path}': Unable to remove nonexistent key: {key}: missing value")
        }
        "remove" | "add" | "replace" if !has_parent => {
            format!("{op} operation does not apply: doc is missing path: \"{path}\": missing value")
        }
        "replace" => format!("replace operation does not apply: doc is missing key: {path}: missing value"),
        "test" => format!("testing value {path} failed: test failed"),
        "add" => format!("add operation does not apply: error in add for path: '{path}'"),
        other => format!("Unexpected kind: {other}"),
    }
}
