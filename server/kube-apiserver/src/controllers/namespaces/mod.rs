//! Namespace controller: deletes the content of terminating namespaces, then the namespaces, and reports the
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

use self::content::ContentDeleter;
use super::core_resource;
use crate::ApiServer;

/// Delay before namespaces are listed again after an error.
const LIST_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delays between attempts to delete a namespace.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Watches namespaces until the server stops; runs one task per terminating namespace.
pub async fn run(server: ApiServer) {
    let (registry, stop_token) = (server.registry().clone(), server.stop_token());
    let deleter = ContentDeleter::new(&server);
    let table = ResourceKey::new("", "namespaces");
    let mut tasks: JoinSet<()> = JoinSet::new();
    let mut task_ids: HashMap<String, task::Id> = HashMap::new();
    loop {
        let since = registry.store.revision();
        match list_deleting(&registry).await {
            Ok((resource, names)) => {
                for name in names.into_iter().filter(|name| !task_ids.contains_key(name)).collect::<Vec<_>>() {
                    let task = tasks.spawn(delete_namespace(deleter.clone(), resource.clone(), name.clone()));
                    task_ids.insert(name, task.id());
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot list namespaces that are being deleted");
                tokio::select! {
                    () = tokio::time::sleep(LIST_RETRY_DELAY) => continue,
                    () = stop_token.cancelled() => return,
                }
            }
        }
        let Ok(mut watcher) = registry.store.watch(&table, since) else { continue };
        tokio::select! {
            changes = watcher.next() => if matches!(changes, Err(Error::Closed)) { return },
            Some(result) = tasks.join_next_with_id(), if !tasks.is_empty() => {
                let id = match result {
                    Ok((id, ())) => id,
                    Err(error) => {
                        tracing::error!(%error, "the task that deletes a namespace stopped unexpectedly");
                        error.id()
                    }
                };
                task_ids.retain(|_, task_id| *task_id != id);
            }
            () = stop_token.cancelled() => return,
        }
    }
}

/// The resource of namespaces, and the names of the terminating namespaces.
async fn list_deleting(registry: &Arc<Registry>) -> ApiResult<(ResourceRef, Vec<String>)> {
    let resource = core_resource(registry, "namespaces")?;
    let namespaces = registry.list_all(&resource).await?;
    let names =
        namespaces.iter().filter(|namespace| namespace.is_deleting()).map(|namespace| namespace.name().to_owned());
    let names = names.collect();
    Ok((resource, names))
}

/// Deletes the content of a namespace and then the namespace, with as many attempts as necessary.
async fn delete_namespace(deleter: ContentDeleter, namespaces: ResourceRef, name: String) {
    let mut delays = RETRY_BACKOFF.delays();
    loop {
        match try_delete(&deleter, &namespaces, &name).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) if error.is(Reason::NotFound) => return,
            Err(error) if error.is(Reason::ServiceUnavailable) => return,
            Err(error) => tracing::warn!(namespace = name, %error, "cannot delete the content of a namespace"),
        }
        tokio::time::sleep(delays.next_delay()).await;
    }
}

/// Makes one attempt and writes the conditions of the namespace. Returns true if no further attempt is needed.
async fn try_delete(deleter: &ContentDeleter, namespaces: &ResourceRef, name: &str) -> ApiResult<bool> {
    let registry = deleter.registry();
    let namespace = registry.get(namespaces, "", name).await?;
    if !namespace.is_deleting() {
        return Ok(true);
    }
    let remaining = deleter.delete(&namespace).await;
    let namespace = registry.get(namespaces, "", name).await?;
    let mut updated = namespace.clone();
    conditions::set_conditions(&mut updated["status"]["conditions"], &remaining, jiff::Timestamp::now());
    if remaining.is_empty() {
        let finalizers = updated["spec"]["finalizers"].as_array().into_iter().flatten();
        let finalizers: Vec<Value> = finalizers.filter(|finalizer| *finalizer != "kubernetes").cloned().collect();
        updated["spec"]["finalizers"] = finalizers.into();
    }
    if updated == namespace {
        return Ok(remaining.is_empty());
    }
    let replaced = registry.replace_raw(namespaces, &updated).await?;
    Ok(remaining.is_empty() && replaced.is_some())
}
