//! ResourceQuota: what objects use, and the refusal of writes that would exceed a namespace's quota.
//!
//! Usage is charged to `status.used` before a write. What deletions give back is recounted by whoever keeps quota status in
//! sync, with [`usage`] of all objects of the namespace.

mod usage;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use crowsnest_apimachinery::quantity::{Format, Quantity};
use crowsnest_apimachinery::request::options::WriteOptions;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::admission::{Admission, Attributes, Operation, Validation};
use crowsnest_registry::resource::Gvr;
use crowsnest_registry::storage::ResourceKey;
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::{Value, json};

use self::usage::{Amounts, containers, in_scope, usage};
use super::limits::{add, amounts};

/// See the module.
pub struct ResourceQuota(pub Weak<Registry>);

impl ResourceQuota {
    fn quotas(registry: &Registry, namespace: &str) -> Vec<Value> {
        registry.store.objects(&ResourceKey::new("", "resourcequotas"), namespace)
    }
}

#[async_trait]
impl Admission for ResourceQuota {
    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        let (Some(object), Some(registry)) = (object, self.0.upgrade()) else { return Ok(()) };
        if !writes || !matches!(a.ctx.subresource.as_str(), "" | "resize") || a.ctx.namespace.is_empty() {
            return Ok(());
        }
        let quotas = Self::quotas(&registry, &a.ctx.namespace);
        if quotas.is_empty() {
            return Ok(());
        }
        let (group, resource) = (a.resource.gvr.group.as_str(), a.resource.gvr.resource.as_str());
        let mut wanted = usage(group, resource, object);
        if let Some(old) = a.old {
            for (name, amount) in usage(group, resource, old) {
                if let Some(now) = wanted.get_mut(&name) {
                    *now -= amount;
                }
            }
        }
        wanted.retain(|_, amount| amount.sign() > 0);
        let creating_pod = group.is_empty() && resource == "pods" && a.operation == Operation::Create;
        let forbid = |why: String| ApiError::forbidden(group, resource, a.name, why);
        // All are looked at before one is charged: what one of them refuses must not weigh on the others.
        let mut charges = Vec::new();
        for quota in quotas.iter().filter(|quota| in_scope(quota, group, resource, object)) {
            let hard = amounts(quota.pointer("/status/hard"));
            if creating_pod && let Some(why) = unspecified(quota, &hard, object) {
                return Err(forbid(why));
            }
            let charge: Amounts =
                wanted.iter().filter(|(n, _)| hard.contains_key(*n)).map(|(n, q)| (n.clone(), *q)).collect();
            if let Some(why) = exceeded(quota, &charge) {
                return Err(forbid(why));
            }
            if !charge.is_empty() {
                charges.push((quota, charge));
            }
        }
        if !a.ctx.dry_run {
            for (quota, charge) in charges {
                self.charge(&registry, a, quota, charge).await?;
            }
        }
        Ok(())
    }
}

impl ResourceQuota {
    /// Checks and adds in one compare-and-swap on the quota's status.
    async fn charge(
        &self,
        registry: &Arc<Registry>,
        a: &Attributes<'_>,
        quota: &Value,
        charge: Amounts,
    ) -> ApiResult<()> {
        let name = quota.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("").to_owned();
        let resource = registry.resource(&Gvr::new("", "v1", "resourcequotas"))?;
        let mut ctx = a.ctx.clone();
        ctx.subresource = "status".into();
        let (group, plural, object) =
            (a.resource.gvr.group.clone(), a.resource.gvr.resource.clone(), a.name.to_owned());
        let edit = Edit(Arc::new(move |live: &mut Value| {
            let exceeded = exceeded(live, &charge);
            if let Some(why) = exceeded {
                return Err(ApiError::forbidden(&group, &plural, &object, why));
            }
            let mut used = amounts(live.pointer("/status/used"));
            add(&mut used, &charge);
            for (name, amount) in used {
                live["status"]["used"][name.as_str()] = json!(amount.to_string());
            }
            Ok(())
        }));
        let options = WriteOptions::default();
        registry.update(&resource, &ctx, &name, &Change::Edit(edit), &options, &mut Vec::new()).await.map(|_| ())
    }
}

fn exceeded(quota: &Value, charge: &Amounts) -> Option<String> {
    let (hard, used) = (amounts(quota.pointer("/status/hard")), amounts(quota.pointer("/status/used")));
    let zero = || Quantity::new(0, Format::DecimalSI);
    let over: Vec<&String> = charge
        .iter()
        .filter(|(name, amount)| {
            let total = used.get(*name).cloned().unwrap_or_else(zero) + *(*amount);
            hard.get(*name).is_some_and(|limit| total > *limit)
        })
        .map(|(name, _)| name)
        .collect();
    if over.is_empty() {
        return None;
    }
    let print = |amounts: &Amounts| {
        let shown = over.iter().map(|name| format!("{name}={}", amounts.get(*name).cloned().unwrap_or_else(zero)));
        shown.collect::<Vec<_>>().join(",")
    };
    let name = quota.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
    Some(format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        print(charge),
        print(&used),
        print(&hard)
    ))
}

/// A quota on compute resources wants every container to say what it needs.
fn unspecified(quota: &Value, hard: &Amounts, pod: &Value) -> Option<String> {
    let containers: Vec<&Value> = containers(pod, "containers").chain(containers(pod, "initContainers")).collect();
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in hard.keys() {
        let (kind, resource) = match name.split_once('.') {
            Some(("limits", resource @ ("cpu" | "memory"))) => ("limits", resource),
            Some(("requests", resource @ ("cpu" | "memory"))) => ("requests", resource),
            None if name == "cpu" || name == "memory" => ("requests", name.as_str()),
            _ => continue,
        };
        for container in &containers {
            if container.pointer(&format!("/resources/{kind}/{resource}")).is_none() {
                missing.entry(name).or_default().push(container["name"].as_str().unwrap_or(""));
            }
        }
    }
    if missing.is_empty() {
        return None;
    }
    let name = quota.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
    let listed: Vec<String> =
        missing.iter().map(|(resource, names)| format!("{resource} for: {}", names.join(","))).collect();
    Some(format!("failed quota: {name}: must specify {}", listed.join("; ")))
}

/// Keeps `status.hard` and `status.used` of every quota in step with the objects of its namespace, also after deletions.
/// Not part of every server: a control plane that wants quotas enforced runs it.
pub struct QuotaStatus {
    registry: Arc<Registry>,
}

/// How often all quotas are recounted.
const RECOUNT: std::time::Duration = std::time::Duration::from_secs(10);
/// How soon after a change of a quota.
const SETTLE: std::time::Duration = std::time::Duration::from_millis(200);

impl QuotaStatus {
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }

    /// Runs until cancelled.
    pub async fn run(self, stop: tokio_util::sync::CancellationToken) {
        let table = ResourceKey::new("", "resourcequotas");
        while !stop.is_cancelled() {
            let mut watcher = match self.registry.store.watch(&table, self.registry.store.revision()) {
                Ok(watcher) => watcher,
                Err(error) => {
                    tracing::error!(%error, "quotas cannot be watched");
                    return;
                }
            };
            self.pass().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RECOUNT) => {}
                changed = watcher.next() => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(SETTLE).await;
                }
            }
        }
    }

    async fn pass(&self) {
        for quota in ResourceQuota::quotas(&self.registry, "") {
            let name = quota.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("").to_owned();
            let namespace = quota.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or("").to_owned();
            if let Err(error) = self.recount(&name, &namespace).await {
                tracing::warn!(%error, name, namespace, "quota not recounted");
            }
        }
    }

    async fn recount(&self, name: &str, namespace: &str) -> ApiResult<()> {
        let resource = self.registry.resource(&Gvr::new("", "v1", "resourcequotas"))?;
        let registry = Arc::downgrade(&self.registry);
        let own = namespace.to_owned();
        let edit = Edit(Arc::new(move |live: &mut Value| {
            if let Some(registry) = registry.upgrade() {
                let counted = count(&registry, live, &own);
                let hard = live.pointer("/spec/hard").cloned().unwrap_or_else(|| json!({}));
                let used: serde_json::Map<String, Value> = amounts(Some(&hard))
                    .into_keys()
                    .map(|name| {
                        let zero = Quantity::new(0, Format::DecimalSI);
                        let amount = counted.get(&name).cloned().unwrap_or(zero);
                        (name, json!(amount.to_string()))
                    })
                    .collect();
                live["status"] = json!({"hard": hard, "used": used});
            }
            Ok(())
        }));
        let mut ctx = crate::crd::controller::context("status");
        ctx.namespace = namespace.to_owned();
        let options = WriteOptions::default();
        self.registry.update(&resource, &ctx, name, &Change::Edit(edit), &options, &mut Vec::new()).await.map(drop)
    }
}

/// What the objects of a namespace use of what a quota limits.
fn count(registry: &Registry, quota: &Value, namespace: &str) -> Amounts {
    let hard = amounts(quota.pointer("/spec/hard"));
    let mut total = Amounts::new();
    for resource in registry.catalog.served().preferred().iter().filter(|r| r.namespaced) {
        let (group, plural) = (resource.gvr.group.as_str(), resource.gvr.resource.as_str());
        let interesting =
            usage(group, plural, &json!({"spec": {"storageClassName": ""}})).keys().any(|n| hard.contains_key(n))
                || (group.is_empty() && matches!(plural, "pods" | "services" | "persistentvolumeclaims"));
        if !interesting {
            continue;
        }
        for record in registry.store.records(&ResourceKey::new(group, plural), namespace) {
            let Ok(object) = record.body.value(record.revision) else { continue };
            if in_scope(quota, group, plural, &object) {
                add(&mut total, &usage(group, plural, &object));
            }
        }
    }
    total
}
