//! Token cleaner: deletes expired bootstrap tokens.

use std::convert::Infallible;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::request::options::{DeleteOptions, ListOptions};
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::authz::bootstrap::loopback;
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{core, run_with_restart};
use crate::ApiServer;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";
/// Longest interval between checks, in case the system clock is changed.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Reconciles tokens until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "cleaning up tokens", reconcile_changes).await;
}

/// Checks all tokens when one changes and when the next one expires.
async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let store = &server.registry().store;
    let mut secrets = store.watch(&ResourceKey::new("", "secrets"), store.revision())?;
    let tokens = ObjectKey::new(NAMESPACE, PREFIX);
    loop {
        let wait = match delete_expired(&server, Timestamp::now()).await {
            Ok(wait) => wait.unwrap_or(MAX_CHECK_INTERVAL).min(MAX_CHECK_INTERVAL),
            Err(error) => {
                tracing::warn!(%error, "cannot clean up bootstrap tokens");
                MAX_CHECK_INTERVAL
            }
        };
        let until = Instant::now() + wait;
        let mut concerns = false;
        while !concerns {
            concerns = tokio::select! {
                changes = secrets.next() => changes?.iter().any(|change| change.key.as_str().starts_with(tokens.as_str())),
                () = tokio::time::sleep_until(until) => true,
            };
        }
    }
}

/// Deletes expired tokens; returns the time until the next one expires.
async fn delete_expired(server: &ApiServer, now: Timestamp) -> ApiResult<Option<Duration>> {
    let registry = server.registry();
    let secrets = core(registry, "secrets")?;
    let mut next = None;
    for secret in registry.list(&secrets, NAMESPACE, &ListOptions::default()).await?.objects {
        let Some(expires) = expiration(&secret) else { continue };
        if expires > now {
            let wait = Duration::try_from(expires.duration_since(now)).unwrap_or(MAX_CHECK_INTERVAL);
            next = Some(next.map_or(wait, |next: Duration| next.min(wait)));
            continue;
        }
        let options = DeleteOptions { uid: Some(secret.uid().to_owned()), raw: json!({}), ..DeleteOptions::default() };
        match registry.delete(&secrets, &loopback(NAMESPACE), secret.name(), &options, &mut Vec::new()).await {
            Ok(_) => tracing::info!(token = secret.name(), "deleted an expired bootstrap token"),
            Err(error) if error.is(Reason::NotFound) || error.is(Reason::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(next)
}

/// Expiry time of a token; `None` if it is unreadable, in which case authentication rejects the token anyway.
fn expiration(secret: &Value) -> Option<Timestamp> {
    if secret["type"] != TYPE || secret.is_deleting() {
        return None;
    }
    let bytes = STANDARD.decode(secret["data"]["expiration"].as_str()?).ok()?;
    String::from_utf8(bytes).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(TYPE, "2026-01-01T00:00:00Z", true)]
    #[case("Opaque", "2026-01-01T00:00:00Z", false)]
    #[case(TYPE, "soon", false)]
    #[case(TYPE, "", false)]
    fn expiration_is_read(#[case] of: &str, #[case] text: &str, #[case] expected: bool) {
        let secret = json!({"type": of, "data": {"expiration": STANDARD.encode(text)}});
        assert_eq!(expiration(&secret).is_some(), expected);
    }
}
