//! Token cleaner: deletes expired bootstrap tokens.

use std::convert::Infallible;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::request::options::{DeleteOptions, ListOptions, Preconditions};
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::authentication::bootstrap::{TOKEN_NAME_PREFIX, TOKEN_NAMESPACE, TOKEN_TYPE};
use crowsnest_registry::authz::bootstrap::loopback;
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{core_resource, run_with_restart};
use crate::ApiServer;

/// Longest interval between checks, in case the system clock is changed.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Reconciles tokens until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "expiry of bootstrap tokens", reconcile_changes).await;
}

/// Checks all tokens when one changes and when the next one expires.
async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let store = &server.registry().store;
    let mut secrets = store.watch(&ResourceKey::new("", "secrets"), store.revision())?;
    let token_prefix = ObjectKey::new(TOKEN_NAMESPACE, TOKEN_NAME_PREFIX);
    loop {
        let wait = match delete_expired(&server, Timestamp::now()).await {
            Ok(wait) => wait.unwrap_or(MAX_CHECK_INTERVAL).min(MAX_CHECK_INTERVAL),
            Err(error) => {
                tracing::warn!(%error, "cannot delete expired bootstrap tokens");
                MAX_CHECK_INTERVAL
            }
        };
        let until = Instant::now() + wait;
        let mut needs_check = false;
        while !needs_check {
            needs_check = tokio::select! {
                changes = secrets.next() => {
                    changes?.iter().any(|change| change.key.as_str().starts_with(token_prefix.as_str()))
                }
                () = tokio::time::sleep_until(until) => true,
            };
        }
    }
}

/// Deletes expired tokens; returns the time until the next one expires.
async fn delete_expired(server: &ApiServer, now: Timestamp) -> ApiResult<Option<Duration>> {
    let registry = server.registry();
    let secrets = core_resource(registry, "secrets")?;
    let mut next = None;
    for secret in registry.list(&secrets, TOKEN_NAMESPACE, &ListOptions::default()).await?.objects {
        let Some(expires_at) = expiration(&secret) else { continue };
        if expires_at > now {
            let wait = Duration::try_from(expires_at.duration_since(now)).unwrap_or(MAX_CHECK_INTERVAL);
            next = Some(next.map_or(wait, |next: Duration| next.min(wait)));
            continue;
        }
        let preconditions = Preconditions::for_uid(secret.uid());
        let options = DeleteOptions { preconditions, raw: json!({}), ..DeleteOptions::default() };
        match registry.delete(&secrets, &loopback(TOKEN_NAMESPACE), secret.name(), &options, &mut Vec::new()).await {
            Ok(_) => tracing::info!(token = secret.name(), "deleted an expired bootstrap token"),
            Err(error) if error.is(Reason::NotFound) || error.is(Reason::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(next)
}

/// Expiry time of a token. `None` for other Secrets, tokens that do not expire, and invalid times, with which
/// authentication rejects the token.
fn expiration(secret: &Value) -> Option<Timestamp> {
    if secret["type"] != TOKEN_TYPE || secret.is_deleting() {
        return None;
    }
    let bytes = STANDARD.decode(secret["data"]["expiration"].as_str()?).ok()?;
    String::from_utf8(bytes).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(TOKEN_TYPE, "2026-01-01T00:00:00Z", true)]
    #[case("Opaque", "2026-01-01T00:00:00Z", false)]
    #[case(TOKEN_TYPE, "soon", false)]
    #[case(TOKEN_TYPE, "", false)]
    fn valid_expirations_of_tokens_are_parsed(#[case] secret_type: &str, #[case] text: &str, #[case] expected: bool) {
        let secret = json!({"type": secret_type, "data": {"expiration": STANDARD.encode(text)}});
        assert_eq!(expiration(&secret).is_some(), expected);
    }
}
