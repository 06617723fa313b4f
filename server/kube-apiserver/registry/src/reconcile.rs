//! Loop of controllers that reconcile all objects of a resource whenever one of them changes.

use crowsnest_apimachinery::status::ApiResult;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::storage::{ResourceKey, Store};

/// Runs `reconcile`, and again after every change of the resource, until cancelled or the store is closed. If it fails,
/// `error_message` is logged and the next change retries it.
pub async fn reconcile_on_change<F>(
    store: &Store,
    resource: &ResourceKey,
    stop: &CancellationToken,
    error_message: &'static str,
    reconcile: impl Fn() -> F,
) where
    F: Future<Output = ApiResult<()>>,
{
    loop {
        let since = store.revision();
        if let Err(error) = reconcile().await {
            tracing::warn!(%error, "{error_message}");
        }
        let Ok(mut watcher) = store.watch(resource, since) else { continue };
        tokio::select! {
            changes = watcher.next() => if matches!(changes, Err(Error::Closed)) { return },
            () = stop.cancelled() => return,
        }
    }
}
