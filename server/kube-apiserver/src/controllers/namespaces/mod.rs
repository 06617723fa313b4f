//! Namespace controller: deletes the content of namespaces that are being deleted, then the namespaces, and reports in conditions
//! what remains.

mod conditions;
mod content;

use std::collections::HashSet;
use std::time::Duration;

use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_component_base::retry::Backoff;
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::ResourceKey;
use serde_json::Value;
use tokio::task::JoinSet;

use self::content::Content;
use super::core;
use crate::ApiServer;

const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Follows namespaces until the server stops; one task per namespace that is being deleted.
pub async fn run(server: ApiServer) {
    let (registry, stopped) = (server.registry().clone(), server.stopped());
    let content = Content::new(&server);
    let table = ResourceKey::new("", "namespaces");
    let mut leaving: JoinSet<String> = JoinSet::new();
    let mut known: HashSet<String> = HashSet::new();
    loop {
        let Ok(namespaces) = core(&registry, "namespaces") else { return };
        let since = registry.store.revision();
        for namespace in registry.list_all(&namespaces).await.unwrap_or_default() {
            let name = namespace.name().to_owned();
            if namespace.is_deleting() && known.insert(name.clone()) {
                leaving.spawn(finish(content.clone(), namespaces.clone(), name));
            }
        }
        let Ok(mut watcher) = registry.store.watch(&table, since) else { continue };
        tokio::select! {
            changes = watcher.next() => if matches!(changes, Err(Error::Closed)) { return },
            Some(Ok(name)) = leaving.join_next(), if !leaving.is_empty() => { known.remove(&name); },
            () = stopped.cancelled() => return,
        }
    }
}

/// Works on one namespace until it is gone.
async fn finish(content: Content, namespaces: ResourceRef, name: String) -> String {
    let mut delays = RETRY.delays();
    loop {
        match pass(&content, &namespaces, &name).await {
            Ok(true) => return name,
            Ok(false) => {}
            Err(error) if error.is(Reason::NotFound) => return name,
            Err(error) if error.is(Reason::ServiceUnavailable) => return name,
            Err(error) => tracing::warn!(namespace = name, %error, "emptying a namespace"),
        }
        tokio::time::sleep(delays.next_delay()).await;
    }
}

/// One attempt; true when the namespace needs no more work.
async fn pass(content: &Content, namespaces: &ResourceRef, name: &str) -> ApiResult<bool> {
    let registry = content.registry();
    let namespace = registry.get(namespaces, "", name).await?;
    if !namespace.is_deleting() {
        return Ok(true);
    }
    let remains = content.delete(&namespace).await;
    let namespace = registry.get(namespaces, "", name).await?;
    let mut next = namespace.clone();
    conditions::set(&mut next["status"]["conditions"], &remains, jiff::Timestamp::now());
    if remains.is_empty() {
        let finalizers = next["spec"]["finalizers"].as_array().into_iter().flatten();
        let kept: Vec<Value> = finalizers.filter(|finalizer| *finalizer != "kubernetes").cloned().collect();
        next["spec"]["finalizers"] = kept.into();
    }
    if next == namespace {
        return Ok(remains.is_empty());
    }
    let written = registry.replace_raw(namespaces, &next).await?;
    Ok(remains.is_empty() && written.is_some())
}
