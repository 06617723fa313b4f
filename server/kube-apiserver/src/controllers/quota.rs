//! Quota controller: updates `status.hard` and `status.used` from the objects of a namespace. Admission enforces the
//! quotas. For members.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::quantity::{Format, Quantity};
use crowsnest_apimachinery::status::{ApiError, ApiResult, Reason};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{ChangeKind, FeedChange, ObjectKey, ResourceKey};
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{core, run_with_restart};
use crate::ApiServer;
use crate::admission::limits::{add, amounts};
use crate::admission::quota::usage::{Amounts, in_scope, usage};

/// Changes of a namespace within this time are counted together.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// Interval of a full recount: a limited resource may be served only later.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);

/// Delay before a quota is counted again after its status could not be written.
const RETRY: Duration = Duration::from_secs(1);

/// Follows all objects until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "resource quotas", reconcile_changes).await;
}

async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let registry = server.registry();
    let mut feed = registry.store.feed();
    let mut pending = Pending::default();
    let mut resync = tokio::time::interval(RESYNC_INTERVAL);
    loop {
        let due = pending.due();
        let settled = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changes = feed.next() => {
                for (table, change) in changes? {
                    pending.add(&table, &change, Instant::now() + BATCH_DELAY);
                }
            }
            _ = resync.tick() => pending.add_all(Instant::now()),
            () = settled => {
                for key in pending.take(Instant::now()) {
                    match recount(registry, &key).await {
                        // A concurrent change of the quota triggers another count.
                        Err(error) if [Reason::NotFound, Reason::Conflict].iter().any(|reason| error.is(*reason)) => {}
                        Err(error) => {
                            tracing::warn!(%key, %error, "cannot update the usage of a quota");
                            pending.retry(&key, Instant::now() + RETRY);
                        }
                        Ok(()) => {}
                    }
                }
            }
        }
    }
}

/// The quotas, and the namespaces to be counted.
#[derive(Debug, Default)]
struct Pending {
    /// By namespace.
    quotas: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// By namespace: time of the next count.
    due: BTreeMap<String, Instant>,
}

impl Pending {
    fn add(&mut self, table: &ResourceKey, change: &FeedChange, at: Instant) {
        let namespace = change.key.namespace();
        let is_quota = table.as_str() == "/resourcequotas";
        if is_quota && change.kind == ChangeKind::Deleted {
            if let Some(quotas) = self.quotas.get_mut(namespace) {
                quotas.remove(&change.key);
            }
        } else if is_quota {
            self.quotas.entry(namespace.to_owned()).or_default().insert(change.key.clone());
        }
        if self.quotas.get(namespace).is_none_or(BTreeSet::is_empty) {
            return;
        }
        if is_quota {
            // Admission charges a quota before it stores the object, so the count waits until charges have settled.
            self.due.insert(namespace.to_owned(), at);
        } else if change.kind != ChangeKind::Modified
            // The usage of other kinds does not depend on their content.
            || matches!(table.as_str(), "/pods" | "/services" | "/persistentvolumeclaims")
        {
            self.retry(&change.key, at);
        }
    }

    fn retry(&mut self, key: &ObjectKey, at: Instant) {
        self.due.entry(key.namespace().to_owned()).or_insert(at);
    }

    fn add_all(&mut self, at: Instant) {
        for namespace in self.quotas.keys() {
            self.due.entry(namespace.clone()).or_insert(at);
        }
    }

    fn due(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// The quotas of the namespaces that are due.
    fn take(&mut self, now: Instant) -> Vec<ObjectKey> {
        let ready: Vec<String> =
            self.due.iter().filter(|(_, due)| **due <= now).map(|(namespace, _)| namespace.clone()).collect();
        for namespace in &ready {
            self.due.remove(namespace);
        }
        ready.iter().filter_map(|namespace| self.quotas.get(namespace)).flatten().cloned().collect()
    }
}

async fn recount(registry: &Arc<Registry>, key: &ObjectKey) -> ApiResult<()> {
    let quotas = core(registry, "resourcequotas")?;
    let live = registry.get(&quotas, key.namespace(), key.name()).await?;
    let counted = status(registry, &live, key.namespace());
    if counted == live["status"] {
        return Ok(());
    }
    let version = live.resource_version().to_owned();
    let edit = Edit(Arc::new(move |live: &mut Value| {
        if live.resource_version() != version {
            return Err(ApiError::conflict("", "resourcequotas", live.name(), "the quota was charged meanwhile"));
        }
        live["status"] = counted.clone();
        Ok(())
    }));
    let mut ctx = loopback(key.namespace());
    ctx.subresource = "status".into();
    let (change, options) = (Change::Edit(edit), loopback_options());
    registry.update(&quotas, &ctx, key.name(), &change, &options, &mut Vec::new()).await.map(drop)
}

/// The status of a quota, computed from the stored objects.
fn status(registry: &Registry, quota: &Value, namespace: &str) -> Value {
    let hard = quota.pointer("/spec/hard").cloned().unwrap_or_else(|| json!({}));
    let counted = count(registry, quota, namespace);
    let zero = Quantity::new(0, Format::DecimalSI);
    let used: Map<String, Value> = amounts(Some(&hard))
        .into_keys()
        .map(|name| {
            let amount = counted.get(&name).unwrap_or(&zero).to_string();
            (name, json!(amount))
        })
        .collect();
    json!({"hard": hard, "used": used})
}

/// Usage of the limited resources by the objects of a namespace.
fn count(registry: &Registry, quota: &Value, namespace: &str) -> Amounts {
    let hard = amounts(quota.pointer("/spec/hard"));
    let mut total = Amounts::new();
    for resource in registry.catalog.snapshot().preferred_versions().iter().filter(|r| r.namespaced) {
        let (group, plural) = (&*resource.gvr.group, &*resource.gvr.resource);
        // Only the usage of pods, services and claims depends on the object.
        let counts = group.is_empty() && matches!(plural, "pods" | "services" | "persistentvolumeclaims")
            || usage(group, plural, &Value::Null).keys().any(|name| hard.contains_key(name));
        if !counts {
            continue;
        }
        for object in registry.store.objects(&ResourceKey::new(group, plural), namespace) {
            if in_scope(quota, group, plural, &object) {
                add(&mut total, &usage(group, plural, &object));
            }
        }
    }
    total
}
