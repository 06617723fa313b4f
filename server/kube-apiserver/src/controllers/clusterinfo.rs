//! Signs the public cluster information, ConfigMap `kube-public/cluster-info`, with each bootstrap token that is
//! enabled for signing, so that the bearer of a token can verify the control plane.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::request::options::ListOptions;
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::authentication::bootstrap::sign_cluster_info;
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use crowsnest_registry::{Change, Edit};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{core, run_with_restart};
use crate::ApiServer;

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
/// Namespace and name prefix of tokens.
const TOKENS: &str = "kube-system";
const TOKEN: &str = "bootstrap-token-";
const TEXT: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";
/// Longest interval between checks: tokens expire without a change of their Secret.
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
    let tokens = ObjectKey::new(TOKENS, TOKEN);
    loop {
        if let Err(error) = sign_all(&server).await {
            tracing::warn!(%error, "cannot sign cluster-info");
        }
        let until = Instant::now() + RESYNC_INTERVAL;
        let mut concerns = false;
        while !concerns && Instant::now() < until {
            concerns = tokio::select! {
                changes = secrets.next() => changes?.iter().any(|change| change.key.as_str().starts_with(tokens.as_str())),
                changes = maps.next() => changes?.iter().any(|change| change.key == map),
                () = tokio::time::sleep_until(until) => true,
            };
        }
    }
}

async fn sign_all(server: &ApiServer) -> ApiResult<()> {
    let registry = server.registry();
    let maps = core(registry, "configmaps")?;
    let map = match registry.get(&maps, NAMESPACE, NAME).await {
        Ok(map) => map,
        Err(error) if error.is(Reason::NotFound) => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(text) = map["data"][TEXT].as_str() else { return Ok(()) };
    let secrets = registry.list(&core(registry, "secrets")?, TOKENS, &ListOptions::default()).await?.objects;
    let now = Timestamp::now();
    let wanted: BTreeMap<String, String> = secrets
        .iter()
        .filter_map(|secret| sign_cluster_info(secret, text, now))
        .map(|(id, signed)| (format!("{SIGNATURE}{id}"), signed))
        .collect();
    if signatures(&map) == wanted {
        return Ok(());
    }
    let edit = Edit(Arc::new(move |map: &mut Value| {
        if !map["data"].is_object() {
            map["data"] = Value::Object(Map::new());
        }
        if let Some(data) = map["data"].as_object_mut() {
            data.retain(|key, _| !key.starts_with(SIGNATURE));
            data.extend(wanted.iter().map(|(key, signed)| (key.clone(), json!(signed))));
        }
        Ok(())
    }));
    let change = Change::Edit(edit);
    registry.update(&maps, &loopback(NAMESPACE), NAME, &change, &loopback_options(), &mut Vec::new()).await?;
    Ok(())
}

fn signatures(map: &Value) -> BTreeMap<String, String> {
    let data = map["data"].as_object().into_iter().flatten();
    let signed = data.filter(|(key, _)| key.starts_with(SIGNATURE));
    signed.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}
