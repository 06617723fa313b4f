//! Fills Secrets of type `kubernetes.io/service-account-token`, and removes those whose account is gone.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apiserver::ApiServer;
use crowsnest_apiserver::authn::legacy_token;
use crowsnest_apiserver::authz::bootstrap::{loopback, loopback_options};
use crowsnest_apiserver::error::Error;
use crowsnest_apiserver::registry::object::Object;
use crowsnest_apiserver::registry::options::DeleteOptions;
use crowsnest_apiserver::registry::{Change, Edit};
use crowsnest_apiserver::status::{ApiError, ApiResult, Reason};
use crowsnest_apiserver::storage::ResourceKey;
use serde_json::{Value, json};

use super::core;

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// Follows secrets and service accounts until the server stops.
pub async fn run(server: ApiServer) {
    let registry = server.registry().clone();
    let stopped = server.stopped();
    loop {
        let since = registry.store.revision();
        if let Err(error) = pass(&server).await {
            tracing::warn!(%error, "service-account tokens");
        }
        let watch = |plural: &str| registry.store.watch(&ResourceKey::new("", plural), since);
        let (Ok(mut secrets), Ok(mut accounts)) = (watch("secrets"), watch("serviceaccounts")) else { continue };
        let changes = tokio::select! {
            changes = secrets.next() => changes,
            changes = accounts.next() => changes,
            () = stopped.cancelled() => return,
        };
        if matches!(changes, Err(Error::Closed)) {
            return;
        }
    }
}

async fn pass(server: &ApiServer) -> ApiResult<()> {
    let registry = server.registry();
    let secrets = core(registry, "secrets")?;
    let accounts = core(registry, "serviceaccounts")?;
    for secret in registry.list_all(&secrets).await? {
        if secret["type"] != TYPE || secret.is_deleting() {
            continue;
        }
        let annotation = |key: &str| secret["metadata"]["annotations"][key].as_str().unwrap_or_default();
        let account = match registry.get(&accounts, secret.namespace(), annotation(ACCOUNT)).await {
            Ok(account) => Some(account),
            Err(error) if error.is(Reason::NotFound) => None,
            Err(error) => return Err(error),
        };
        let bound_to = annotation(ACCOUNT_UID);
        match account.filter(|a| bound_to.is_empty() || bound_to == a.uid()) {
            Some(account) => fill(server, &secrets, &secret, &account).await?,
            None => {
                let ctx = loopback(secret.namespace());
                let uid = Some(secret.uid().to_owned());
                let options = DeleteOptions { uid, raw: json!({}), ..DeleteOptions::default() };
                if let Err(error) = registry.delete(&secrets, &ctx, secret.name(), &options, &mut Vec::new()).await {
                    tracing::debug!(%error, "removing the token of an absent account");
                }
            }
        }
    }
    Ok(())
}

async fn fill(
    server: &ApiServer,
    secrets: &crowsnest_apiserver::registry::resource::ResourceRef,
    secret: &Value,
    account: &Value,
) -> ApiResult<()> {
    let complete = ["token", "ca.crt", "namespace"].iter().all(|key| secret["data"][*key].is_string());
    if complete && secret["metadata"]["annotations"][ACCOUNT_UID] == account.uid() {
        return Ok(());
    }
    let token = legacy_token(&server.api().authenticator.signer, secret, account).map_err(ApiError::internal)?;
    let data = [
        ("token", STANDARD.encode(token)),
        ("ca.crt", STANDARD.encode(server.authority().certificate())),
        ("namespace", STANDARD.encode(account.namespace())),
    ];
    let uid = account.uid().to_owned();
    let edit = Edit(Arc::new(move |secret: &mut Value| {
        for (key, value) in &data {
            secret["data"][*key] = value.clone().into();
        }
        secret["metadata"]["annotations"][ACCOUNT_UID] = uid.clone().into();
        Ok(())
    }));
    let ctx = loopback(secret.namespace());
    let change = Change::Edit(edit);
    server.registry().update(secrets, &ctx, secret.name(), &change, &loopback_options(), &mut Vec::new()).await?;
    Ok(())
}
