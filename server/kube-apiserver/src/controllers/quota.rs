//! Quota controller: updates `status.hard` and `status.used` from the objects of a namespace. Admission enforces the
//! quotas. The controller runs in simulated members.

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

use super::{core_resource, run_with_restart};
use crate::ApiServer;
use crate::admission::limits::{add_amounts, parse_amounts};
use crate::admission::quota::usage::{Amounts, is_in_scope, usage};

/// Delay between a change and the recount, which covers all changes of the namespace in this time.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// Interval of a full recount, since a limited resource can be served after the quota was counted.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);

/// Delay before a quota is counted again after its status could not be written.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Follows all objects until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "resource quotas", reconcile_changes).await;
}

async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let registry = server.registry();
    let mut feed = registry.store.feed();
    let mut pending = PendingRecounts::default();
    let mut resync = tokio::time::interval(RESYNC_INTERVAL);
    loop {
        let next_due = pending.next_due();
        let wait_until_due = async {
            match next_due {
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
            _ = resync.tick() => pending.schedule_all(Instant::now()),
            () = wait_until_due => {
                for key in pending.take_due(Instant::now()) {
                    match recount(registry, &key).await {
                        // A concurrent change of the quota triggers another count.
                        Err(error) if [Reason::NotFound, Reason::Conflict].iter().any(|reason| error.is(*reason)) => {}
                        Err(error) => {
                            tracing::warn!(%key, %error, "cannot update the usage of a quota");
                            pending.schedule(&key, Instant::now() + RETRY_DELAY);
                        }
                        Ok(()) => {}
                    }
                }
            }
        }
    }
}

/// The quotas, and the times at which their namespaces must be recounted.
#[derive(Debug, Default)]
struct PendingRecounts {
    /// Quotas by namespace.
    quotas: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// Times of the next recount by namespace.
    due_times: BTreeMap<String, Instant>,
}

impl PendingRecounts {
    /// Schedules a recount at `due` if a change can affect the usage of a quota.
    fn add(&mut self, table: &ResourceKey, change: &FeedChange, due: Instant) {
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
            // Admission charges a quota before the object is stored, so each charge postpones the recount.
            self.due_times.insert(namespace.to_owned(), due);
        } else if change.kind != ChangeKind::Modified
            // The usage of other kinds does not depend on their content.
            || matches!(table.as_str(), "/pods" | "/services" | "/persistentvolumeclaims")
        {
            self.schedule(&change.key, due);
        }
    }

    /// Schedules a recount of the namespace of an object, unless there is one already.
    fn schedule(&mut self, key: &ObjectKey, due: Instant) {
        self.due_times.entry(key.namespace().to_owned()).or_insert(due);
    }

    fn schedule_all(&mut self, due: Instant) {
        for namespace in self.quotas.keys() {
            self.due_times.entry(namespace.clone()).or_insert(due);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.due_times.values().min().copied()
    }

    /// Removes the namespaces that are due and returns their quotas.
    fn take_due(&mut self, now: Instant) -> Vec<ObjectKey> {
        let is_due = |(_, due): &(&String, &Instant)| **due <= now;
        let namespaces: Vec<String> =
            self.due_times.iter().filter(is_due).map(|(namespace, _)| namespace.clone()).collect();
        for namespace in &namespaces {
            self.due_times.remove(namespace);
        }
        namespaces.iter().filter_map(|namespace| self.quotas.get(namespace)).flatten().cloned().collect()
    }
}

/// Updates the status of a quota if its computed status differs.
async fn recount(registry: &Arc<Registry>, key: &ObjectKey) -> ApiResult<()> {
    let quotas = core_resource(registry, "resourcequotas")?;
    let live = registry.get(&quotas, key.namespace(), key.name()).await?;
    let status = compute_status(registry, &live, key.namespace());
    if status == live["status"] {
        return Ok(());
    }
    let version = live.resource_version().to_owned();
    let edit = Edit(Arc::new(move |live: &mut Value| {
        if live.resource_version() != version {
            return Err(ApiError::conflict("", "resourcequotas", live.name(), "the quota was charged meanwhile"));
        }
        live["status"] = status.clone();
        Ok(())
    }));
    let mut ctx = loopback(key.namespace());
    ctx.subresource = "status".into();
    let (change, options) = (Change::Edit(edit), loopback_options());
    registry.update(&quotas, &ctx, key.name(), &change, &options, &mut Vec::new()).await.map(drop)
}

/// The status of a quota, computed from the stored objects.
fn compute_status(registry: &Registry, quota: &Value, namespace: &str) -> Value {
    let hard = quota.pointer("/spec/hard").cloned().unwrap_or_else(|| json!({}));
    let usage = count_usage(registry, quota, namespace);
    let zero = Quantity::new(0, Format::DecimalSI);
    let used: Map<String, Value> = parse_amounts(Some(&hard))
        .into_keys()
        .map(|name| {
            let amount = usage.get(&name).unwrap_or(&zero).to_string();
            (name, json!(amount))
        })
        .collect();
    json!({"hard": hard, "used": used})
}

/// Usage of the limited resources by the objects of a namespace.
fn count_usage(registry: &Registry, quota: &Value, namespace: &str) -> Amounts {
    let hard = parse_amounts(quota.pointer("/spec/hard"));
    let mut total = Amounts::new();
    for resource in registry.catalog.snapshot().preferred_versions().iter().filter(|r| r.namespaced) {
        let (group, plural) = (&*resource.gvr.group, &*resource.gvr.resource);
        // The usage of pods, services and claims depends on the object; other objects are read only if they are
        // limited.
        let can_be_limited = group.is_empty() && matches!(plural, "pods" | "services" | "persistentvolumeclaims")
            || usage(group, plural, &Value::Null).keys().any(|name| hard.contains_key(name));
        if !can_be_limited {
            continue;
        }
        for object in registry.store.objects(&ResourceKey::new(group, plural), namespace) {
            if is_in_scope(quota, group, plural, &object) {
                add_amounts(&mut total, &usage(group, plural, &object));
            }
        }
    }
    total
}
