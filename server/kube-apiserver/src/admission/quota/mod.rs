//! `ResourceQuota` admission: computes the usage of objects and rejects writes that exceed a namespace's quota.
//!
//! The usage of an object is added to `status.used` (charged) before the write. The quota controller
//! (`controllers/quota.rs`) recomputes it after deletions, with [`usage`] of all objects in the namespace.

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

use self::usage::{Amounts, containers, is_in_scope, usage};
use super::limits::{add_amounts, parse_amounts};

/// The admission plugin.
pub struct ResourceQuota(pub Weak<Registry>);

impl ResourceQuota {
    fn list_quotas(registry: &Registry, namespace: &str) -> Vec<Value> {
        registry.store.objects(&ResourceKey::new("", "resourcequotas"), namespace)
    }
}

#[async_trait]
impl Admission for ResourceQuota {
    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let is_write = matches!(a.operation, Operation::Create | Operation::Update);
        let (Some(object), Some(registry)) = (object, self.0.upgrade()) else { return Ok(()) };
        if !is_write || !matches!(a.ctx.subresource.as_str(), "" | "resize") || a.ctx.namespace.is_empty() {
            return Ok(());
        }
        let quotas = Self::list_quotas(&registry, &a.ctx.namespace);
        if quotas.is_empty() {
            return Ok(());
        }
        let (group, resource) = (&*a.resource.gvr.group, &*a.resource.gvr.resource);
        let mut added_usage = usage(group, resource, object);
        if let Some(old) = a.old {
            for (name, old_amount) in usage(group, resource, old) {
                if let Some(amount) = added_usage.get_mut(&name) {
                    *amount -= old_amount;
                }
            }
        }
        added_usage.retain(|_, amount| amount.sign() > 0);
        let is_pod_create = group.is_empty() && resource == "pods" && a.operation == Operation::Create;
        let forbidden_error = |reason: String| ApiError::forbidden(group, resource, a.name, reason);
        // All quotas are checked before any is charged, so that a rejection by one does not charge the others.
        let mut charges = Vec::new();
        for quota in quotas.iter().filter(|quota| is_in_scope(quota, group, resource, object)) {
            let hard = parse_amounts(quota.pointer("/status/hard"));
            if is_pod_create && let Some(reason) = unspecified_message(quota, &hard, object) {
                return Err(forbidden_error(reason));
            }
            let limited = added_usage.iter().filter(|(name, _)| hard.contains_key(*name));
            let charge: Amounts = limited.map(|(name, amount)| (name.clone(), *amount)).collect();
            if let Some(reason) = exceeded_message(quota, &charge) {
                return Err(forbidden_error(reason));
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
    /// Adds usage to a quota's status. Checks the quota again, because it can have changed.
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
            if let Some(reason) = exceeded_message(live, &charge) {
                return Err(ApiError::forbidden(&group, &plural, &object, reason));
            }
            let mut used = parse_amounts(live.pointer("/status/used"));
            add_amounts(&mut used, &charge);
            for (name, amount) in used {
                live["status"]["used"][name.as_str()] = json!(amount.to_string());
            }
            Ok(())
        }));
        let options = WriteOptions::default();
        registry.update(&resource, &ctx, &name, &Change::Edit(edit), &options, &mut Vec::new()).await.map(|_| ())
    }
}

/// Message about the limits that a charge exceeds; `None` if there are none.
fn exceeded_message(quota: &Value, charge: &Amounts) -> Option<String> {
    let (hard, used) = (parse_amounts(quota.pointer("/status/hard")), parse_amounts(quota.pointer("/status/used")));
    let zero = || Quantity::new(0, Format::DecimalSI);
    let exceeded: Vec<&String> = charge
        .iter()
        .filter(|(name, amount)| {
            let total = used.get(*name).cloned().unwrap_or_else(zero) + *(*amount);
            hard.get(*name).is_some_and(|limit| total > *limit)
        })
        .map(|(name, _)| name)
        .collect();
    if exceeded.is_empty() {
        return None;
    }
    let format_amounts = |amounts: &Amounts| {
        let amount = |name: &str| amounts.get(name).cloned().unwrap_or_else(zero);
        exceeded.iter().map(|name| format!("{name}={}", amount(name))).collect::<Vec<_>>().join(",")
    };
    let name = quota.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
    Some(format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        format_amounts(charge),
        format_amounts(&used),
        format_amounts(&hard)
    ))
}

/// Message about containers without the requests or limits that a quota for compute resources requires; `None` if there
/// are none.
fn unspecified_message(quota: &Value, hard: &Amounts, pod: &Value) -> Option<String> {
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
    let missing: Vec<String> =
        missing.iter().map(|(resource, names)| format!("{resource} for: {}", names.join(","))).collect();
    Some(format!("failed quota: {name}: must specify {}", missing.join("; ")))
}
