//! `ResourceQuota` admission: computes the usage of objects and rejects writes that exceed a namespace's quota.
//!
//! Usage is charged to `status.used` before a write. The quota controller (`controllers/quota.rs`) recomputes it
//! after deletions, with [`usage`] of all objects in the namespace.

pub(crate) mod usage;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::quantity::{Format, Quantity};
use crowsnest_apimachinery::request::options::WriteOptions;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::admission::{Admission, Attributes, Operation, Validation};
use crowsnest_registry::storage::ResourceKey;
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::{Value, json};

use self::usage::{Amounts, containers, in_scope, usage};
use super::limits::{add, amounts};

/// The admission plugin.
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
        let (group, resource) = (&*a.resource.gvr.group, &*a.resource.gvr.resource);
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
        // All quotas are checked before any is charged, so that a rejection by one does not charge the others.
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
    /// Checks and charges a quota by compare-and-swap on its status.
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

/// A quota for compute resources requires requests or limits in all containers.
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
