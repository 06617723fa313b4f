//! Token controller: fills Secrets of type `kubernetes.io/service-account-token`, and deletes those whose service
//! account no longer exists.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::request::options::{DeleteOptions, Preconditions};
use crowsnest_apimachinery::status::{ApiError, ApiResult, Reason};
use crowsnest_registry::authentication::legacy_token;
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{ChangeKind, ResourceKey};
use crowsnest_registry::{Change, Edit};
use serde_json::{Value, json};

use super::{core_resource, run_with_restart};
use crate::ApiServer;

const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME_ANNOTATION: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID_ANNOTATION: &str = "kubernetes.io/service-account.uid";

/// Reconciles Secrets and service accounts until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "service-account tokens", reconcile_changes).await;
}

/// Checks all Secrets at start and when a service account is created or deleted, otherwise those that change.
async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let registry = server.registry();
    let secrets = core_resource(registry, "secrets")?;
    let since = registry.store.revision();
    let mut changed_secrets = registry.store.watch(&ResourceKey::new("", "secrets"), since)?;
    let mut changed_accounts = registry.store.watch(&ResourceKey::new("", "serviceaccounts"), since)?;
    let (mut should_check_all, mut has_failures) = (true, false);
    loop {
        if std::mem::take(&mut should_check_all) {
            has_failures = false;
            for secret in registry.list_all(&secrets).await? {
                has_failures |= !try_reconcile(&server, &secrets, &secret).await;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_INTERVAL), if has_failures => should_check_all = true,
            changes = changed_secrets.next() => {
                for change in changes? {
                    if change.kind != ChangeKind::Deleted {
                        let secret = change.body.decode(change.revision)?;
                        has_failures |= !try_reconcile(&server, &secrets, &secret).await;
                    }
                }
            }
            changes = changed_accounts.next() => {
                let kinds: Vec<ChangeKind> = changes?.iter().map(|change| change.kind).collect();
                should_check_all = kinds.contains(&ChangeKind::Added) || kinds.contains(&ChangeKind::Deleted);
            }
        }
    }
}

/// Interval of checks while some Secrets cannot be filled.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Reconciles a Secret. If that fails, for example because the Secret is immutable or a webhook rejects the change,
/// logs the error and returns false, so that other Secrets are not affected.
async fn try_reconcile(server: &ApiServer, secrets: &ResourceRef, secret: &Value) -> bool {
    match reconcile(server, secrets, secret).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(namespace = secret.namespace(), name = secret.name(), %error, "cannot update a service account token");
            false
        }
    }
}

/// Fills a token Secret, or deletes it if its service account does not exist.
async fn reconcile(server: &ApiServer, secrets: &ResourceRef, secret: &Value) -> ApiResult<()> {
    if secret["type"] != TOKEN_TYPE || secret.is_deleting() {
        return Ok(());
    }
    let registry = server.registry();
    let accounts = core_resource(registry, "serviceaccounts")?;
    let annotation = |key: &str| secret["metadata"]["annotations"][key].as_str().unwrap_or_default();
    let account = match registry.get(&accounts, secret.namespace(), annotation(ACCOUNT_NAME_ANNOTATION)).await {
        Ok(account) => Some(account),
        Err(error) if error.is(Reason::NotFound) => None,
        Err(error) => return Err(error),
    };
    let bound_uid = annotation(ACCOUNT_UID_ANNOTATION);
    let Some(account) = account.filter(|account| bound_uid.is_empty() || bound_uid == account.uid()) else {
        let preconditions = Preconditions::for_uid(secret.uid());
        let options = DeleteOptions { preconditions, raw: json!({}), ..DeleteOptions::default() };
        let ctx = loopback(secret.namespace());
        return match registry.delete(secrets, &ctx, secret.name(), &options, &mut Vec::new()).await {
            Ok(_) => Ok(()),
            Err(error) if error.is(Reason::NotFound) || error.is(Reason::Conflict) => Ok(()),
            Err(error) => Err(error),
        };
    };
    match fill_secret(server, secrets, secret, &account).await {
        Err(error) if error.is(Reason::NotFound) => Ok(()),
        result => result,
    }
}

/// Adds token, CA certificate and namespace to a Secret that lacks one of them.
async fn fill_secret(server: &ApiServer, secrets: &ResourceRef, secret: &Value, account: &Value) -> ApiResult<()> {
    let is_complete = ["token", "ca.crt", "namespace"].iter().all(|key| secret["data"][*key].is_string());
    if is_complete && secret["metadata"]["annotations"][ACCOUNT_UID_ANNOTATION] == account.uid() {
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
        secret["metadata"]["annotations"][ACCOUNT_UID_ANNOTATION] = uid.clone().into();
        Ok(())
    }));
    let ctx = loopback(secret.namespace());
    let change = Change::Edit(edit);
    server.registry().update(secrets, &ctx, secret.name(), &change, &loopback_options(), &mut Vec::new()).await?;
    Ok(())
}
