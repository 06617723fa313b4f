//! Signs approved CertificateSigningRequests of the Kubernetes signers with the server's authority.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apiserver::ApiServer;
use crowsnest_apiserver::authz::bootstrap::{loopback, loopback_options};
use crowsnest_apiserver::error::Error;
use crowsnest_apiserver::registry::object::{Object, time};
use crowsnest_apiserver::registry::resource::{Gvr, ResourceRef};
use crowsnest_apiserver::registry::{Change, Edit};
use crowsnest_apiserver::status::ApiResult;
use crowsnest_apiserver::storage::ResourceKey;
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
const DEFAULT_DAYS: i64 = 365;
const SECONDS_PER_DAY: i64 = 86_400;

/// Follows requests until the server stops.
pub async fn run(server: ApiServer) {
    let registry = server.registry().clone();
    let stopped = server.stopped();
    let Ok(resource) = registry.resource(&Gvr::new(GROUP, "v1", PLURAL)) else { return };
    loop {
        let since = registry.store.revision();
        if let Err(error) = pass(&server, &resource).await {
            tracing::warn!(%error, "certificate signing requests");
        }
        let Ok(mut watcher) = registry.store.watch(&ResourceKey::new(GROUP, PLURAL), since) else { continue };
        tokio::select! {
            changes = watcher.next() => if matches!(changes, Err(Error::Closed)) { return },
            () = stopped.cancelled() => return,
        }
    }
}

/// Key usages by signer; `None` for signers that are not ours.
fn usages(signer: &str) -> Option<Vec<ExtendedKeyUsagePurpose>> {
    match signer {
        "kubernetes.io/kube-apiserver-client" | "kubernetes.io/kube-apiserver-client-kubelet" => {
            Some(vec![ExtendedKeyUsagePurpose::ClientAuth])
        }
        "kubernetes.io/kubelet-serving" => Some(vec![ExtendedKeyUsagePurpose::ServerAuth]),
        "kubernetes.io/legacy-unknown" => {
            Some(vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth])
        }
        _ => None,
    }
}

async fn pass(server: &ApiServer, resource: &ResourceRef) -> ApiResult<()> {
    for request in server.registry().list_all(resource).await? {
        let has = |kind: &str| {
            let conditions = request["status"]["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|c| c["type"] == kind)
        };
        let signed = request["status"]["certificate"].is_string();
        if signed || !has("Approved") || has("Denied") || has("Failed") {
            continue;
        }
        let Some(usages) = usages(request["spec"]["signerName"].as_str().unwrap_or_default()) else { continue };
        sign(server, resource, &request, usages).await?;
    }
    Ok(())
}

async fn sign(
    server: &ApiServer,
    resource: &ResourceRef,
    request: &Value,
    usages: Vec<ExtendedKeyUsagePurpose>,
) -> ApiResult<()> {
    let pem = STANDARD
        .decode(request["spec"]["request"].as_str().unwrap_or_default())
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_default();
    let seconds = request["spec"]["expirationSeconds"].as_i64();
    let days = seconds.map_or(DEFAULT_DAYS, |s| (s + SECONDS_PER_DAY - 1) / SECONDS_PER_DAY);
    let outcome = server.authority().sign(&pem, usages, days).map_err(|e| e.to_string());
    let now = time(jiff::Timestamp::now());
    let edit = Edit(Arc::new(move |request: &mut Value| {
        match &outcome {
            Ok(certificate) => request["status"]["certificate"] = STANDARD.encode(certificate).into(),
            Err(why) => {
                let condition = json!({
                    "type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": why,
                    "lastUpdateTime": now, "lastTransitionTime": now,
                });
                if let Some(conditions) = request["status"]["conditions"].as_array_mut() {
                    conditions.push(condition);
                }
            }
        }
        Ok(())
    }));
    let mut ctx = loopback("");
    ctx.subresource = "status".into();
    let change = Change::Edit(edit);
    server.registry().update(resource, &ctx, request.name(), &change, &loopback_options(), &mut Vec::new()).await?;
    Ok(())
}
