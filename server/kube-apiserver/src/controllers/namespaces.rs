//! Empties namespaces that are being deleted, then lets them go. Tells in conditions what still remains.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::request::options::{DeleteOptions, Propagation};
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_component_base::retry::Backoff;
use crowsnest_registry::Registry;
use crowsnest_registry::authz::bootstrap::loopback;
use crowsnest_registry::error::Error;
use crowsnest_registry::object::{Object, time};
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::ResourceKey;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::core;

const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// What is left of a namespace's content.
#[derive(Debug, Default)]
struct Remains {
    /// Objects left, by `resource.group`.
    resources: BTreeMap<String, usize>,
    /// Objects that wait for a finalizer, by finalizer.
    finalizers: BTreeMap<String, usize>,
    failures: Vec<String>,
}

/// Follows namespaces until cancelled; one task per namespace on its way out.
pub async fn run(registry: Arc<Registry>, stopped: CancellationToken) {
    let table = ResourceKey::new("", "namespaces");
    let mut leaving: JoinSet<String> = JoinSet::new();
    let mut known: HashMap<String, ()> = HashMap::new();
    loop {
        let Ok(namespaces) = core(&registry, "namespaces") else { return };
        let since = registry.store.revision();
        for namespace in registry.list_all(&namespaces).await.unwrap_or_default() {
            let name = namespace.name().to_owned();
            if namespace.is_deleting() && known.insert(name.clone(), ()).is_none() {
                leaving.spawn(finish(registry.clone(), namespaces.clone(), name));
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
async fn finish(registry: Arc<Registry>, namespaces: ResourceRef, name: String) -> String {
    let mut delays = RETRY.delays();
    loop {
        match pass(&registry, &namespaces, &name).await {
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
async fn pass(registry: &Arc<Registry>, namespaces: &ResourceRef, name: &str) -> ApiResult<bool> {
    let mut remains = Remains::default();
    for resource in registry.catalog.served().preferred() {
        if !resource.namespaced || !["delete", "list"].iter().all(|v| resource.verbs.contains(v)) {
            continue;
        }
        empty(registry, &resource, name, &mut remains).await;
    }
    let namespace = registry.get(namespaces, "", name).await?;
    if !namespace.is_deleting() {
        return Ok(true);
    }
    let done = remains.resources.is_empty() && remains.failures.is_empty();
    let mut next = namespace.clone();
    if done {
        let kept: Vec<Value> = next["spec"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|f| *f != "kubernetes")
            .cloned()
            .collect();
        next["spec"]["finalizers"] = kept.into();
    } else {
        tell(&mut next, &remains);
    }
    if next != namespace {
        let written = registry.replace_raw(namespaces, &next).await?;
        return Ok(done && written.is_some());
    }
    Ok(done)
}

async fn empty(registry: &Arc<Registry>, resource: &ResourceRef, namespace: &str, remains: &mut Remains) {
    let qualified = match resource.gvr.group.as_str() {
        "" => format!("{}.", resource.gvr.resource),
        group => format!("{}.{group}", resource.gvr.resource),
    };
    let listed = registry.list(resource, namespace, &Default::default()).await;
    let objects = match listed {
        Ok(list) => list.objects,
        Err(error) => return remains.failures.push(format!("{qualified}: {error}")),
    };
    let propagation = Some(Propagation::Background);
    let options = DeleteOptions { propagation, raw: json!({}), ..DeleteOptions::default() };
    for object in objects {
        let deleted = registry.delete(resource, &loopback(namespace), object.name(), &options, &mut Vec::new()).await;
        match deleted {
            Ok(crowsnest_registry::Deleted::Waiting(object)) => {
                *remains.resources.entry(qualified.clone()).or_default() += 1;
                for finalizer in object.finalizers() {
                    *remains.finalizers.entry(finalizer).or_default() += 1;
                }
            }
            Ok(_) => {}
            Err(error) if error.is(Reason::NotFound) => {}
            Err(error) => {
                *remains.resources.entry(qualified.clone()).or_default() += 1;
                remains.failures.push(format!("{qualified}: {error}"));
            }
        }
    }
}

fn tell(namespace: &mut Value, remains: &Remains) {
    let list = |map: &BTreeMap<String, usize>, word: &str| {
        map.iter()
            .map(|(name, count)| format!("{name} {word} {count} resource instances"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let failed = !remains.failures.is_empty();
    let conditions = [
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".into(),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".into(),
        ),
        (
            "NamespaceDeletionContentFailure",
            failed,
            if failed { "ContentDeletionFailed" } else { "ContentDeleted" },
            if failed {
                format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    remains.failures.len(),
                    remains.failures.join(", ")
                )
            } else {
                "All content successfully deleted, may be waiting on finalization".into()
            },
        ),
        (
            "NamespaceContentRemaining",
            !remains.resources.is_empty(),
            if remains.resources.is_empty() { "ContentRemoved" } else { "SomeResourcesRemain" },
            if remains.resources.is_empty() {
                "All content successfully removed".into()
            } else {
                format!("Some resources are remaining: {}", list(&remains.resources, "has"))
            },
        ),
        (
            "NamespaceFinalizersRemaining",
            !remains.finalizers.is_empty(),
            if remains.finalizers.is_empty() { "ContentHasNoFinalizers" } else { "SomeFinalizersRemain" },
            if remains.finalizers.is_empty() {
                "All content-preserving finalizers finished".into()
            } else {
                format!("Some content in the namespace has finalizers remaining: {}", list(&remains.finalizers, "in"))
            },
        ),
    ];
    let old = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let now = time(jiff::Timestamp::now());
    let new: Vec<Value> = conditions
        .into_iter()
        .map(|(kind, holds, reason, message)| {
            let status = if holds { "True" } else { "False" };
            let before = old.iter().find(|c| c["type"] == kind && c["status"] == status);
            let since = before.map_or(json!(now), |c| c["lastTransitionTime"].clone());
            json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
        })
        .collect();
    namespace["status"]["conditions"] = new.into();
}
