//! Bootstrap signer: signs the public cluster information, ConfigMap `kube-public/cluster-info`, with each bootstrap
//! token that is enabled for signing, so that the bearer of a token can verify the control plane.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::request::options::ListOptions;
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::authentication::bootstrap::{TOKEN_NAME_PREFIX, TOKEN_NAMESPACE, sign_cluster_info};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use crowsnest_registry::{Change, Edit};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{core_resource, run_with_restart};
use crate::ApiServer;

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
/// Key of the signed text in the ConfigMap.
const KUBECONFIG_KEY: &str = "kubeconfig";
/// Prefix of the keys of signatures in the ConfigMap; the ID of the token follows.
const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";
/// Interval of checks without changes, since tokens expire without a change of their Secret.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// Reconciles the ConfigMap until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "signing cluster-info", reconcile_changes).await;
}

/// Signs once, then when the ConfigMap or a token changes and periodically.
async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let store = &server.registry().store;
    let since = store.revision();
    let mut secrets = store.watch(&ResourceKey::new("", "secrets"), since)?;
    let mut maps = store.watch(&ResourceKey::new("", "configmaps"), since)?;
    let map = ObjectKey::new(NAMESPACE, NAME);
    let token_prefix = ObjectKey::new(TOKEN_NAMESPACE, TOKEN_NAME_PREFIX);
    loop {
        if let Err(error) = sign_all(&server).await {
            tracing::warn!(%error, "cannot sign cluster-info");
        }
        let until = Instant::now() + RESYNC_INTERVAL;
        let mut needs_check = false;
        while !needs_check && Instant::now() < until {
            needs_check = tokio::select! {
                changes = secrets.next() => {
                    changes?.iter().any(|change| change.key.as_str().starts_with(token_prefix.as_str()))
                }
                changes = maps.next() => changes?.iter().any(|change| change.key == map),
                () = tokio::time::sleep_until(until) => true,
            };
        }
    }
}

/// Writes the signatures of all tokens if they differ from those in the ConfigMap.
async fn sign_all(server: &ApiServer) -> ApiResult<()> {
    let registry = server.registry();
    let maps = core_resource(registry, "configmaps")?;
    let map = match registry.get(&maps, NAMESPACE, NAME).await {
        Ok(map) => map,
        Err(error) if error.is(Reason::NotFound) => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(text) = map["data"][KUBECONFIG_KEY].as_str() else { return Ok(()) };
    let secrets =
        registry.list(&core_resource(registry, "secrets")?, TOKEN_NAMESPACE, &ListOptions::default()).await?.objects;
    let now = Timestamp::now();
    let expected: BTreeMap<String, String> = secrets
        .iter()
        .filter_map(|secret| sign_cluster_info(secret, text, now))
        .map(|(id, signature)| (format!("{SIGNATURE_PREFIX}{id}"), signature))
        .collect();
    if signatures(&map) == expected {
        return Ok(());
    }
    let edit = Edit(Arc::new(move |map: &mut Value| {
        if !map["data"].is_object() {
            map["data"] = Value::Object(Map::new());
        }
        if let Some(data) = map["data"].as_object_mut() {
            data.retain(|key, _| !key.starts_with(SIGNATURE_PREFIX));
            data.extend(expected.iter().map(|(key, signature)| (key.clone(), json!(signature))));
        }
        Ok(())
    }));
    let change = Change::Edit(edit);
    registry.update(&maps, &loopback(NAMESPACE), NAME, &change, &loopback_options(), &mut Vec::new()).await?;
    Ok(())
}

/// The signatures in the ConfigMap by key.
fn signatures(map: &Value) -> BTreeMap<String, String> {
    let data = map["data"].as_object().into_iter().flatten();
    let signatures = data.filter(|(key, _)| key.starts_with(SIGNATURE_PREFIX));
    signatures.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}
