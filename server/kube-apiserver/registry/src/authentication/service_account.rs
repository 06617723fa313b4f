//! Service account tokens: TokenRequest, verification (including bound objects), and legacy token Secrets.

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::authn::token::{ISSUER, TokenSigner};
use serde_json::{Value, json};

use crate::Registry;
use crate::object::{Object, format_time};
use crate::storage::{ObjectKey, ResourceKey};
use crate::strategy::RequestContext;
use crowsnest_apimachinery::names::Gvr;

/// Issuer of tokens stored in Secrets.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
const DEFAULT_TOKEN_SECONDS: i64 = 3600;
const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;
/// Tolerated clock difference in seconds.
const CLOCK_LEEWAY_SECONDS: i64 = 10;

/// An object in the store of this server.
pub(super) fn stored_object(
    registry: &Registry,
    group: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> Option<Value> {
    registry.store.object(&ResourceKey::new(group, resource), &ObjectKey::new(namespace, name))
}

/// Issues a token: evaluates a TokenRequest and returns it with its status.
pub(super) async fn issue(
    registry: &Registry,
    signer: &TokenSigner,
    ctx: &RequestContext,
    account: &Value,
    request: &Value,
) -> ApiResult<Value> {
    let spec = &request["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_TOKEN_SECONDS);
    let mut errors = Vec::new();
    const FIELD: &str = "spec.expirationSeconds";
    if seconds < MIN_TOKEN_SECONDS {
        errors.push(FieldError::invalid(FIELD, &json!(seconds), "may not specify a duration less than 10 minutes"));
    }
    if seconds > MAX_TOKEN_SECONDS {
        errors.push(FieldError::invalid(FIELD, &json!(seconds), "may not specify a duration larger than 2^32 seconds"));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid("authentication.k8s.io", "TokenRequest", "", errors));
    }
    let uid = request.uid();
    if !uid.is_empty() && uid != account.uid() {
        let reason = format!(
            "the UID in the token request ({uid}) does not match the UID of the service account ({})",
            account.uid()
        );
        return Err(ApiError::conflict("authentication.k8s.io", "TokenRequest", account.name(), reason));
    }
    let audiences: Vec<String> = match spec["audiences"].as_array() {
        Some(requested) if !requested.is_empty() => {
            requested.iter().filter_map(|a| a.as_str().map(str::to_owned)).collect()
        }
        _ => signer.audiences().to_vec(),
    };
    let mut private = json!({
        "namespace": account.namespace(),
        "serviceaccount": {"name": account.name(), "uid": account.uid()},
    });
    let bound_object = &spec["boundObjectRef"];
    if bound_object.is_object() {
        bind_to_object(registry, account.namespace(), bound_object, &mut private).await?;
    }
    let now = ctx.now.as_second();
    let claims = json!({
        "aud": audiences, "exp": now + seconds, "iat": now, "nbf": now, "iss": ISSUER,
        "jti": uuid::Uuid::new_v4().to_string(),
        "sub": format!("system:serviceaccount:{}:{}", account.namespace(), account.name()),
        "kubernetes.io": private,
    });
    let token = signer.sign(&claims).map_err(ApiError::internal)?;
    let expiry = jiff::Timestamp::from_second(now + seconds).unwrap_or(ctx.now);
    let mut metadata = json!({"name": account.name(), "namespace": account.namespace(), "uid": account.uid()});
    metadata["creationTimestamp"] = format_time(ctx.now).into();
    Ok(json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": metadata,
        "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound_object},
        "status": {"token": token, "expirationTimestamp": format_time(expiry)},
    }))
}

/// Binds a token to a pod, Secret or node: it becomes invalid when that object is deleted.
async fn bind_to_object(registry: &Registry, namespace: &str, bound: &Value, private: &mut Value) -> ApiResult<()> {
    let text = |key: &str| bound[key].as_str().unwrap_or_default();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    let is_core = !text("apiVersion").contains('/');
    let (resource, namespace) = match (text("apiVersion"), kind) {
        (_, "Pod") if is_core => ("pods", namespace),
        (_, "Secret") if is_core => ("secrets", namespace),
        (_, "Node") if is_core => ("nodes", ""),
        (api_version, _) => {
            let gvk = if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
            return Err(ApiError::bad_request(format!("cannot bind token to object of type {gvk}, Kind={kind}")));
        }
    };
    if name.is_empty() {
        return Err(ApiError::bad_request("Name parameter required."));
    }
    let resource = registry.resource(&Gvr::new("", "v1", resource))?;
    let object = registry.get(&resource, namespace, name).await?;
    let account = private["serviceaccount"]["name"].as_str().unwrap_or_default();
    let runs_as = object["spec"]["serviceAccountName"].as_str().filter(|name| !name.is_empty()).unwrap_or("default");
    if kind == "Pod" && runs_as != account {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    if !uid.is_empty() && uid != object.uid() {
        let reason = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(ApiError::conflict("", kind, name, reason));
    }
    private[kind.to_lowercase()] = json!({"name": name, "uid": object.uid()});
    if kind == "Pod"
        && let Some(node) = object["spec"]["nodeName"].as_str().filter(|n| !n.is_empty())
        && let Some(node) = stored_object(registry, "", "nodes", "", node)
    {
        private["node"] = json!({"name": node.name(), "uid": node.uid()});
    }
    Ok(())
}

/// Authenticates a token. Returns its user and the audiences that the token and `accepted_audiences` have in common.
pub(super) fn authenticate(
    registry: &Registry,
    signer: &TokenSigner,
    token: &str,
    accepted_audiences: &[String],
) -> Result<(UserInfo, Vec<String>), String> {
    let claims = signer.verify(token).ok_or("invalid bearer token")?;
    if claims["iss"] == LEGACY_ISSUER {
        return authenticate_legacy(registry, token, &claims, accepted_audiences, signer);
    }
    if claims["iss"] != ISSUER {
        return Err("invalid bearer token".into());
    }
    let now = jiff::Timestamp::now().as_second();
    if claims["exp"].as_i64().is_none_or(|exp| exp + CLOCK_LEEWAY_SECONDS < now) {
        return Err("[invalid bearer token, service account token has expired]".into());
    }
    if claims["nbf"].as_i64().is_some_and(|nbf| nbf - CLOCK_LEEWAY_SECONDS > now) {
        return Err("[invalid bearer token, service account token is not valid yet]".into());
    }
    let audiences: Vec<String> =
        claims["aud"].as_array().into_iter().flatten().filter_map(|a| a.as_str().map(str::to_owned)).collect();
    let common_audiences: Vec<String> = audiences.iter().filter(|a| accepted_audiences.contains(a)).cloned().collect();
    if common_audiences.is_empty() {
        return Err(format!(
            "[invalid bearer token, token audiences {} is invalid for the target audiences {}]",
            quote_all(&audiences),
            quote_all(accepted_audiences)
        ));
    }
    let private = &claims["kubernetes.io"];
    let namespace = private["namespace"].as_str().unwrap_or_default();
    let mut user = find_account_user(registry, namespace, &private["serviceaccount"])?;
    for (kind, resource, in_namespace) in [("pod", "pods", true), ("secret", "secrets", true), ("node", "nodes", false)]
    {
        let Some(bound) = private.get(kind) else { continue };
        let (name, uid) = (bound["name"].as_str().unwrap_or_default(), bound["uid"].as_str().unwrap_or_default());
        // The node in a pod's token is informational only.
        let is_informational = kind == "node" && private.get("pod").is_some();
        let object = stored_object(registry, "", resource, if in_namespace { namespace } else { "" }, name);
        if !is_informational && object.is_none_or(|o| o.uid() != uid || is_deleted_since(&o, DELETION_LEEWAY_SECONDS)) {
            return Err(format!(
                "[invalid bearer token, service account token has been invalidated: bound {kind} is gone]"
            ));
        }
        if kind != "secret" {
            user.extra.insert(format!("authentication.kubernetes.io/{kind}-name"), vec![name.to_owned()]);
            user.extra.insert(format!("authentication.kubernetes.io/{kind}-uid"), vec![uid.to_owned()]);
        }
    }
    if let Some(id) = claims["jti"].as_str() {
        user.extra.insert(crowsnest_apiserver::authn::certificate::CREDENTIAL.into(), vec![format!("JTI={id}")]);
    }
    Ok((user, common_audiences))
}

fn quote_all(items: &[String]) -> String {
    format!("[{}]", items.iter().map(|i| format!("{i:?}")).collect::<Vec<_>>().join(" "))
}

/// Seconds for which tokens stay valid after deletion of their bound object has started, as in kube-apiserver.
const DELETION_LEEWAY_SECONDS: i64 = 60;

/// True if the deletion of an object started at least this many seconds ago; finalizers may keep it longer.
fn is_deleted_since(object: &Value, seconds: i64) -> bool {
    let deleted = object["metadata"]["deletionTimestamp"].as_str().map(str::parse::<jiff::Timestamp>);
    match deleted {
        None => false,
        Some(Ok(deleted)) => deleted.as_second() + seconds <= jiff::Timestamp::now().as_second(),
        Some(Err(_)) => true,
    }
}

fn find_account_user(registry: &Registry, namespace: &str, account: &Value) -> Result<UserInfo, String> {
    let (name, uid) = (account["name"].as_str().unwrap_or_default(), account["uid"].as_str().unwrap_or_default());
    let stored = stored_object(registry, "", "serviceaccounts", namespace, name)
        .filter(|a| a.uid() == uid && !is_deleted_since(a, DELETION_LEEWAY_SECONDS))
        .ok_or("[invalid bearer token, service account token has been invalidated]")?;
    Ok(UserInfo {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        uid: stored.uid().to_owned(),
        groups: vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")],
        ..UserInfo::default()
    })
}

/// Authenticates a legacy token, which is valid as long as its Secret contains it.
fn authenticate_legacy(
    registry: &Registry,
    token: &str,
    claims: &Value,
    accepted_audiences: &[String],
    signer: &TokenSigner,
) -> Result<(UserInfo, Vec<String>), String> {
    use base64::Engine;
    let claim = |key: &str| claims[format!("kubernetes.io/serviceaccount/{key}")].as_str().unwrap_or_default();
    let namespace = claim("namespace");
    let secret = stored_object(registry, "", "secrets", namespace, claim("secret.name"))
        .ok_or("[invalid bearer token, token has been invalidated]")?;
    if is_deleted_since(&secret, 0) {
        return Err("[invalid bearer token, token has been invalidated]".into());
    }
    let encoded = base64::engine::general_purpose::STANDARD.encode(token);
    if secret["data"]["token"] != encoded.as_str() {
        return Err("[invalid bearer token, token does not match server's copy]".into());
    }
    let account = json!({"name": claim("service-account.name"), "uid": claim("service-account.uid")});
    let user = find_account_user(registry, namespace, &account)?;
    let common_audiences: Vec<String> =
        signer.audiences().iter().filter(|a| accepted_audiences.contains(a)).cloned().collect();
    if common_audiences.is_empty() { Err("invalid bearer token".into()) } else { Ok((user, common_audiences)) }
}

/// The token of a legacy Secret of type `kubernetes.io/service-account-token`.
pub fn legacy_token(
    signer: &TokenSigner,
    secret: &Value,
    account: &Value,
) -> crowsnest_apiserver::error::Result<String> {
    signer.sign(&json!({
        "iss": LEGACY_ISSUER,
        "sub": format!("system:serviceaccount:{}:{}", account.namespace(), account.name()),
        "kubernetes.io/serviceaccount/namespace": account.namespace(),
        "kubernetes.io/serviceaccount/secret.name": secret.name(),
        "kubernetes.io/serviceaccount/service-account.name": account.name(),
        "kubernetes.io/serviceaccount/service-account.uid": account.uid(),
    }))
}
