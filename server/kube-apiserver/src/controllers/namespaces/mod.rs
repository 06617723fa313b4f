//! Namespace controller: deletes the content of namespaces in deletion, then the namespaces, and reports the
//! remaining content in conditions.

mod conditions;
mod content;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_component_base::retry::Backoff;
use crowsnest_registry::Registry;
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::ResourceKey;
use serde_json::Value;
use tokio::task::{self, JoinSet};

use self::content::Content;
use super::core;
use crate::ApiServer;

/// Pause after a failed list.
const RETRY_LIST: Duration = Duration::from_secs(1);
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Follows namespaces until the server stops; one task per namespace in deletion.
pub async fn run(server: ApiServer) {
    let (registry, stopped) = (server.registry().clone(), server.stopped());
    let content = Content::new(&server);
    let table = ResourceKey::new("", "namespaces");
    let mut leaving: JoinSet<()> = JoinSet::new();
    let mut known: HashMap<String, task::Id> = HashMap::new();
    loop {
        let since = registry.store.revision();
        match deleted(&registry).await {
            Ok((resource, names)) => {
                for name in names.into_iter().filter(|name| !known.contains_key(name)).collect::<Vec<_>>() {
                    let task = leaving.spawn(finish(content.clone(), resource.clone(), name.clone()));
                    known.insert(name, task.id());
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot list namespaces that are being deleted");
                tokio::select! {
                    () = tokio::time::sleep(RETRY_LIST) => continue,
                    () = stopped.cancelled() => return,
                }
            }
        }
        let Ok(mut watcher) = registry.store.watch(&table, since) else { continue };
        tokio::select! {
            changes = watcher.next() => if matches!(changes, Err(Error::Closed)) { return },
            Some(ended) = leaving.join_next_with_id(), if !leaving.is_empty() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => {
                        tracing::error!(%error, "the task that deletes a namespace stopped unexpectedly");
                        error.id()
                    }
                };
                known.retain(|_, task| *task != id);
            }
            () = stopped.cancelled() => return,
        }
    }
}

/// Names of the namespaces in deletion.
async fn deleted(registry: &Arc<Registry>) -> ApiResult<(ResourceRef, Vec<String>)> {
    let resource = core(registry, "namespaces")?;
    let namespaces = registry.list_all(&resource).await?;
    let names =
        namespaces.iter().filter(|namespace| namespace.is_deleting()).map(|namespace| namespace.name().to_owned());
    let names = names.collect();
    Ok((resource, names))
}

/// Deletes the content of a namespace and then the namespace.
async fn finish(content: Content, namespaces: ResourceRef, name: String) {
    let mut delays = RETRY.delays();
    loop {
        match delete_content(&content, &namespaces, &name).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) if error.is(Reason::NotFound) => return,
            Err(error) if error.is(Reason::ServiceUnavailable) => return,
            Err(error) => tracing::warn!(namespace = name, %error, "cannot delete the content of a namespace"),
        }
        tokio::time::sleep(delays.next_delay()).await;
    }
}

/// Makes one attempt; true if no further one is needed.
async fn delete_content(content: &Content, namespaces: &ResourceRef, name: &str) -> ApiResult<bool> {
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
