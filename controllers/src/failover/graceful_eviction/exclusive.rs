//! Exclusive workloads, of which only one copy may run: how they are declared, which copies exist, and copies that
//! were not confirmed to have stopped.

use std::collections::BTreeSet;
use std::sync::Arc;

use crowsnest_api::Scope;
use crowsnest_api::constants::{annotation, condition, event};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_api::permanent_id;
use crowsnest_api::policy::PurgeMode;
use crowsnest_api::work::{GracefulEvictionTask, ResourceBinding, ResourceBindingSpec, Work};
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::Header;
use crate::failover::failback::find_effective_annotation;
use crate::runtime::context::{Context, decode};
use crate::runtime::event_recorder::Severity;
use crate::shared::templates::template_of;
use crowsnest_plan::conditions;
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::journal::workloads::{self as journal, BindingChange};
use crowsnest_plan::work::construct;
use crowsnest_plan::work::exclusive::WorkloadCopy;
use crowsnest_plan::work::owner::binding_of_work;

/// Exclusiveness of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusiveness {
    No,
    /// Its policy purges directly in all cases, and the failover safety is not `karmada`.
    ByPurgeMode,
    /// Its template, binding or policy has the annotation.
    Declared,
}

impl Exclusiveness {
    /// Reads the annotations of the template, the binding and its policy.
    pub async fn determine(
        context: &Context,
        binding: &Value,
        spec: &ResourceBindingSpec,
        template: &Value,
    ) -> Result<Self, Error> {
        if has_exclusive_annotation(template) {
            return Ok(Exclusiveness::Declared);
        }
        let value = find_effective_annotation(context, binding, annotation::EXCLUSIVE).await?;
        Ok(match value.as_deref() {
            Some(annotation::EXCLUSIVE_VALUE) => Exclusiveness::Declared,
            _ if context.config.failover_safety == Safety::Safe && purges_directly(spec) => Exclusiveness::ByPurgeMode,
            _ => Exclusiveness::No,
        })
    }

    /// True if the binding's Work may stay in a cluster. An exclusive workload does not wait for its replacement,
    /// unless an administrator suppressed the deletion.
    pub fn may_stay_in(self, spec: &ResourceBindingSpec, cluster: &str) -> bool {
        if self != Exclusiveness::Declared {
            return construct::is_expected_in(spec, cluster);
        }
        let is_suppressed = |task: &&GracefulEvictionTask| task.suppress_deletion == Some(true);
        let is_deletion_suppressed =
            spec.graceful_eviction_tasks.iter().filter(is_suppressed).any(|task| task.from_cluster == cluster);
        construct::targets(spec).iter().any(|target| target.name == cluster) || is_deletion_suppressed
    }

    /// True if a copy in a cluster prevents others from starting.
    pub fn blocks_others(self, spec: &ResourceBindingSpec, cluster: &str) -> bool {
        let is_target = construct::targets(spec).iter().any(|target| target.name == cluster);
        self == Exclusiveness::Declared || is_target || !self.may_stay_in(spec, cluster)
    }
}

/// True if the workload is declared exclusive. For callers without the template.
pub async fn is_declared_exclusive(
    context: &Context,
    binding: &Value,
    spec: &ResourceBindingSpec,
) -> Result<bool, Error> {
    let template = template_of(context, binding).await?;
    let template = template.map(|(_, template)| template).unwrap_or_default();
    Ok(Exclusiveness::determine(context, binding, spec, &template).await? == Exclusiveness::Declared)
}

/// True if a template or Work has the annotation.
pub fn has_exclusive_annotation(object: &Value) -> bool {
    unstructured::annotation(object, annotation::EXCLUSIVE) == Some(annotation::EXCLUSIVE_VALUE)
}

/// Annotations of a policy that apply to its bindings.
pub const INHERITED_ANNOTATIONS: [&str; 2] = [annotation::EXCLUSIVE, annotation::FAILBACK];

/// Bindings of a policy.
pub async fn bindings_of_policy(context: &Context, policy: &Value) -> Result<Vec<BindingKey>, Error> {
    let (kinds, namespace) = (&context.kinds, unstructured::namespace(policy));
    let scopes: &[_] = match namespace {
        "" => &[&kinds.resource_binding, &kinds.cluster_resource_binding],
        _ => &[&kinds.resource_binding],
    };
    let label = permanent_id::policy_label(Scope::from_namespace(namespace));
    let id = permanent_id::policy_id(policy);
    let mut bindings_of_policy = Vec::new();
    for resource in scopes {
        let bindings = context.headers_with_id(resource, label, id).await?;
        bindings_of_policy.extend(bindings.into_iter().map(|binding| BindingKey::new(binding.namespace, binding.name)));
    }
    Ok(bindings_of_policy)
}

fn purges_directly(spec: &ResourceBindingSpec) -> bool {
    let Some(failover) = &spec.failover else { return false };
    let application = failover.application.as_ref().map(|application| application.purge_mode.as_ref());
    let cluster = failover.cluster.as_ref().map(|cluster| cluster.purge_mode.as_ref());
    let mut modes = application.into_iter().chain(cluster).peekable();
    modes.peek().is_some() && modes.all(|mode| mode == Some(&PurgeMode::Directly))
}

/// Reads the copies that correspond to Works.
pub async fn collect_copies<'a>(
    context: &Context,
    works: impl Iterator<Item = &'a Header>,
) -> Result<Vec<WorkloadCopy>, Error> {
    let mut copies = Vec::new();
    for header in works {
        let Some(cluster) = cluster_of_execution_namespace(&header.namespace) else { continue };
        let Some(work) = context.get_full(&context.kinds.work, &header.namespace, &header.name).await? else {
            continue;
        };
        let typed: Work = decode(&work)?;
        let requested = match typed.spec.workload.manifests.first() {
            Some(manifest) => context.interpreter.replicas(&manifest.0).await?.replicas,
            None => 0,
        };
        let status = typed.status.manifest_statuses.first().and_then(|status| status.status.as_ref());
        let running = status.and_then(|status| unstructured::integer(&status.0, &["replicas"]));
        let running = running.and_then(|running| running.try_into().ok());
        copies.push(WorkloadCopy { cluster: cluster.to_owned(), requested, running });
    }
    Ok(copies)
}

fn parse_clusters(binding: &Value, key: &str) -> BTreeSet<String> {
    let list = unstructured::annotation(binding, key).unwrap_or_default();
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Records on the binding of a Work that its cluster was removed before its copy was confirmed to have stopped.
/// Called before the Work is deleted.
pub async fn mark_unconfirmed(context: &Context, work: &Value, cluster: &str) -> Result<(), Error> {
    let Some(key) = binding_of_work(work) else { return Ok(()) };
    let resource = context.kinds.binding(key.scope());
    let Some(binding) = context.get_full(resource, &key.namespace, &key.name).await? else { return Ok(()) };
    let mut unconfirmed = parse_clusters(&binding, annotation::UNCONFIRMED);
    if unstructured::is_terminating(&binding) || !unconfirmed.insert(cluster.to_owned()) {
        return Ok(());
    }
    let list = Vec::from_iter(unconfirmed).join(",");
    let patch = json!({"metadata": {"annotations": {annotation::UNCONFIRMED: list}}});
    context.merge(resource, &binding, patch).await.map(drop)
}

/// Updates the annotations and the condition of a binding about removed clusters in which a copy may still run.
/// Returns true if there is such a cluster, so that no other copy may start.
pub async fn update_unconfirmed_stops(
    context: &Context,
    binding: &Arc<Value>,
    typed: &ResourceBinding,
) -> Result<bool, Error> {
    let resource = context.kinds.binding(Scope::from_namespace(unstructured::namespace(binding)));
    let unconfirmed = parse_clusters(binding, annotation::UNCONFIRMED);
    let confirmed = parse_clusters(binding, annotation::CONFIRMED_STOPPED);
    let unconfirmed_clusters: Vec<&str> = unconfirmed.difference(&confirmed).map(String::as_str).collect();
    let mut binding = Arc::clone(binding);
    if unconfirmed_clusters.len() < unconfirmed.len() {
        // A cluster that is joined and removed again needs another confirmation.
        let rest = (!unconfirmed_clusters.is_empty()).then(|| unconfirmed_clusters.join(","));
        let patch = json!({"metadata": {"annotations": {
            annotation::UNCONFIRMED: rest, annotation::CONFIRMED_STOPPED: null,
        }}});
        binding = Arc::new(context.merge(resource, &binding, patch).await?);
    }
    let mut conditions = typed.status.conditions.clone();
    let mut entry = None;
    let is_changed = if unconfirmed_clusters.is_empty() {
        conditions.retain(|existing| existing.type_ != condition::WAITING_FOR_FENCE);
        conditions.len() != typed.status.conditions.len()
    } else {
        let message = format!(
            "the copy in {} was not confirmed to have stopped before the cluster was removed; once it has stopped, \
             annotate the binding with {}={}",
            unconfirmed_clusters.join(", "),
            annotation::CONFIRMED_STOPPED,
            unconfirmed_clusters.join(",")
        );
        let new =
            conditions::condition(condition::WAITING_FOR_FENCE, true, "NotConfirmedStopped", &message, context.now());
        let is_changed = conditions::set(&mut conditions, new);
        if is_changed {
            let change = BindingChange::from_binding(&binding, &typed.spec, context.config.clock.wall());
            entry = Some(journal::fence_wait_entry(&change, &unconfirmed_clusters, &message));
            context.events.record(&binding, Severity::Warning, event::WAITING_FOR_FENCE, message);
        }
        is_changed
    };
    if is_changed {
        context.merge_status(resource, &binding, json!({"status": {"conditions": conditions}})).await?;
        context.journal.add_all(entry).await;
    }
    Ok(!unconfirmed_clusters.is_empty())
}
