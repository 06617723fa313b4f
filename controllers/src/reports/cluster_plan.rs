//! The planned manifest of a template in one cluster, compared to that of the current Work.

use std::collections::BTreeMap;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::{ResourceBindingSpec, TargetCluster};
use crowsnest_apimachinery::differences::ComparisonKind;
use crowsnest_apimachinery::differences::find_differences;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::{OverrideObjects, Planner, Reports, manifest_for_target, unserved_kind};
use crate::Error;
use crate::reports::assumed_state::TaintEviction;
use crate::runtime::dynamic_client::Target;
use crowsnest_plan::report::{
    Change, ClusterPlan, OverrideReport, SchedulingReport, TemplatePlan, empty_secret, target_replicas,
};
use crowsnest_plan::waiting::{self, Cause, TargetState};
use crowsnest_plan::whatif::{UNKNOWN_ID, manifest_of};
use crowsnest_plan::work::apply::{self, ApplyPlan, ManifestComparison};
use crowsnest_plan::work::construct::{self, BindingIdentity, WorkPlan};

/// Timeout of the request for a member's object with the name of the template.
const MEMBER_OBJECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A planned template with its binding before and after the change.
pub(super) struct PlannedTemplate<'s> {
    pub template: &'s Value,
    pub spec_before: Option<ResourceBindingSpec>,
    pub binding: &'s Value,
    pub spec: ResourceBindingSpec,
    pub evicted: Vec<TaintEviction>,
    /// True if the caller may read the stored content of the template.
    pub readable: bool,
}

impl Planner<'_> {
    pub(super) async fn plan_target(
        &self,
        planned_template: &PlannedTemplate<'_>,
        target: &TargetCluster,
        targets: &[TargetCluster],
        overrides: &OverrideObjects,
        plan: &mut TemplatePlan,
    ) -> Result<ClusterPlan, Error> {
        let (spec, template, name) = (&planned_template.spec, planned_template.template, target.name.as_str());
        let reports = self.reports;
        let member = reports.assumed_cluster(&self.assumed, name).await?;
        let work = reports.work(name, planned_template.binding, template).await?;
        let mut cluster_plan = ClusterPlan {
            replicas: target_replicas(target).filter(|_| spec.is_workload()),
            replicas_before: planned_template
                .target_before(name)
                .as_ref()
                .and_then(target_replicas)
                .filter(|_| spec.is_workload()),
            ..unchanged_cluster(name)
        };
        let completions = construct::job_completions(spec, template, targets);
        let mut override_error = None;
        if let Some(member) = &member {
            let mut manifest =
                manifest_for_target(self.interpreter(), spec, template, target, completions.get(name).copied()).await?;
            let traced = overrides.apply(&mut manifest, member);
            cluster_plan.overrides = OverrideReport::all(&traced, unstructured::namespace(template));
            override_error = traced.failed.as_ref().map(ToString::to_string);
            if override_error.is_none() {
                let inject = reports.context.config.gates.stateful_failover_injection;
                let single = targets.len() == 1;
                let identity = BindingIdentity::from_binding(planned_template.binding);
                let report = traced.report();
                let desired = construct::work_for_binding(spec, identity, name, manifest, &report, single, inject);
                self.compare(planned_template, member, work.as_deref(), desired, &mut cluster_plan).await?;
            }
        }
        let state = TargetState {
            cluster: name,
            member: member.as_deref(),
            unserved_kind: member.as_ref().and_then(|member| {
                unserved_kind(member, unstructured::api_version(template), unstructured::kind(template))
            }),
            is_suspended: construct::is_suspended(spec.suspension.as_ref(), name),
            override_error,
            work: work.as_deref(),
        };
        // The plan itself resolves pending Works, and a previous apply failure is not part of it.
        let is_resolved = |cause: Cause| matches!(cause, Cause::WorkPending | Cause::ApplyFailed);
        plan.waiting.extend(waiting::explain_target(&state).into_iter().filter(|reason| !is_resolved(reason.cause)));
        Ok(cluster_plan)
    }

    /// Compares the planned Work with the current one.
    async fn compare(
        &self,
        planned_template: &PlannedTemplate<'_>,
        member: &Cluster,
        existing: Option<&Value>,
        desired: construct::DesiredWork,
        cluster_plan: &mut ClusterPlan,
    ) -> Result<(), Error> {
        let existing = existing.map(|work| planned_template.readable_work(work));
        let existing = existing.as_ref();
        let before = existing.and_then(manifest_of).cloned();
        let work = match desired.plan(existing, UNKNOWN_ID) {
            WorkPlan::Create(work) | WorkPlan::Update(work) => Some(work),
            WorkPlan::Keep | WorkPlan::WaitForDeletion => None,
        };
        let after = work.as_ref().and_then(manifest_of).or(before.as_ref()).cloned().unwrap_or_default();
        let is_same = |old: &Value, new: &Value| {
            let spec = |work: &Value| work.get("spec").cloned().unwrap_or_default();
            unstructured::semantically_equal(&spec(old), &spec(new))
        };
        cluster_plan.change = match (existing, &work) {
            (None, _) => Change::Added,
            (Some(existing), Some(work)) if !is_same(existing, work) => Change::Changed,
            _ => Change::Unchanged,
        };
        if cluster_plan.change == Change::Added {
            cluster_plan.message = self.reports.find_conflict(member, &after).await?;
        }
        if let Some(before) = &before {
            cluster_plan.differences = find_differences(before, &after, ComparisonKind::Versions).0;
        }
        cluster_plan.manifest_before =
            before.filter(|manifest| cluster_plan.change == Change::Changed && self.reserve_space(manifest));
        cluster_plan.manifest = Some(after).filter(|manifest| self.reserve_space(manifest));
        Ok(())
    }

    /// Clusters from which the template is removed.
    pub(super) async fn plan_removed_clusters(
        &self,
        planned_template: &PlannedTemplate<'_>,
        targets: &[TargetCluster],
        work_clusters: Vec<String>,
        scheduling: Option<&SchedulingReport>,
    ) -> Result<Vec<ClusterPlan>, Error> {
        let mut plans = Vec::new();
        for (name, replicas_before) in planned_template.removed_clusters(targets, work_clusters) {
            let work = self.reports.work(&name, planned_template.binding, planned_template.template).await?;
            let manifest = work
                .as_ref()
                .and_then(|work| manifest_of(work))
                .map(|manifest| planned_template.readable_manifest(manifest.clone()));
            let message = match planned_template.is_evicted(&name) {
                true if construct::directly_purged_clusters(&planned_template.spec).contains(&name.as_str()) => {
                    Some("its taints are not tolerated; the copy is deleted before it is replaced".to_owned())
                }
                true => Some("its taints are not tolerated; the copy is kept until it is replaced".to_owned()),
                false if self.assumed.is_deleted(&name) => Some(format!("cluster {name} is being removed")),
                false => reason_not_selected(scheduling, &name),
            };
            plans.push(ClusterPlan {
                change: Change::Removed,
                replicas_before,
                manifest_before: manifest.filter(|manifest| self.reserve_space(manifest)),
                message,
                ..unchanged_cluster(&name)
            });
        }
        Ok(plans)
    }
}

impl Reports {
    /// Reason why a manifest would not be applied: the member has an object with this name that Crowsnest does not
    /// manage. If the object cannot be read, the message says so. `None` also if the member is not known to serve the
    /// kind.
    async fn find_conflict(&self, member: &Cluster, manifest: &Value) -> Result<Option<String>, Error> {
        let name = member.metadata.name.as_deref().unwrap_or_default();
        let Ok(cluster) = ClusterName::parse(name) else { return Ok(None) };
        let (api_version, kind) = (unstructured::api_version(manifest), unstructured::kind(manifest));
        let Some(resource) = self.context.rest_mapper.find_cached(&cluster, api_version, kind) else { return Ok(None) };
        let (namespace, name) = (unstructured::namespace(manifest), unstructured::name(manifest));
        let cache = &self.context.cache;
        let observed = match cache.is_synced(&cluster, &resource.gvr) {
            true => Ok(cache.get(&cluster, &resource.gvr, namespace, name).await?.map(|cached| cached.view().clone())),
            false => {
                let read = async {
                    let member = self.context.member_client(&cluster, MEMBER_OBJECT_TIMEOUT)?;
                    member.get(Target::new(&resource, namespace, name)).await
                };
                read.await
            }
        };
        Ok(conflict_message(cluster.as_str(), manifest, observed))
    }
}

/// Message about a conflict of a manifest with the member's object, or about a failed read of that object.
fn conflict_message(cluster: &str, manifest: &Value, observed: Result<Option<Value>, Error>) -> Option<String> {
    match observed {
        Ok(observed) => match apply::compare_with_member(cluster, manifest, observed.as_ref()) {
            ManifestComparison::Planned(ApplyPlan::Conflict(message)) => Some(message),
            _ => None,
        },
        Err(error) => {
            let kind = unstructured::kind(manifest);
            Some(format!("cannot check whether the cluster has an unmanaged {kind} with this name: {error}"))
        }
    }
}

impl PlannedTemplate<'_> {
    /// A stored manifest, without content that the caller is not allowed to read.
    pub(super) fn readable_manifest(&self, manifest: Value) -> Value {
        if self.readable { manifest } else { empty_secret(manifest) }
    }

    /// A stored Work, without content that the caller is not allowed to read.
    fn readable_work(&self, work: &Value) -> Value {
        let mut work = work.clone();
        let manifests = work.pointer_mut("/spec/workload/manifests").and_then(Value::as_array_mut);
        manifests.into_iter().flatten().for_each(|manifest| *manifest = self.readable_manifest(manifest.take()));
        work
    }

    fn target_before(&self, cluster: &str) -> Option<TargetCluster> {
        construct::targets(self.spec_before.as_ref()?).into_iter().find(|target| target.name == cluster)
    }

    fn is_evicted(&self, cluster: &str) -> bool {
        self.evicted.iter().any(|eviction| matches!(eviction, TaintEviction::Now(name) if name == cluster))
    }

    /// Clusters from which the template is removed, with the replicas they had.
    fn removed_clusters(&self, targets: &[TargetCluster], work_clusters: Vec<String>) -> BTreeMap<String, Option<i32>> {
        let before = self.spec_before.as_ref().map(construct::targets).unwrap_or_default();
        let mut removed: BTreeMap<String, Option<i32>> =
            work_clusters.into_iter().map(|cluster| (cluster, None)).collect();
        removed.extend(before.into_iter().map(|target| (target.name.clone(), target_replicas(&target))));
        removed.retain(|cluster, _| {
            let is_suspended = construct::is_suspended(self.spec.suspension.as_ref(), cluster);
            let is_kept = is_suspended || construct::is_expected_in(&self.spec, cluster) && !self.is_evicted(cluster);
            !targets.iter().any(|target| target.name == *cluster) && !is_kept
        });
        removed
    }
}

pub(super) fn unchanged_cluster(cluster: &str) -> ClusterPlan {
    ClusterPlan {
        name: cluster.to_owned(),
        change: Change::Unchanged,
        replicas_before: None,
        replicas: None,
        overrides: Vec::new(),
        manifest_before: None,
        manifest: None,
        differences: Vec::new(),
        message: None,
    }
}

/// Reason why a cluster was not selected, according to the scheduling report.
fn reason_not_selected(scheduling: Option<&SchedulingReport>, cluster: &str) -> Option<String> {
    let term = scheduling?.terms.last()?;
    let result = term.clusters.iter().find(|target| target.name == cluster)?;
    Some(match &result.rejected {
        Some(rejected) => rejected.reason.clone(),
        None if !result.selected => "not selected by the spread constraints".to_owned(),
        None => "no replicas are assigned to it".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn failed_read() -> Result<Option<Value>, Error> {
        let operation = "GET /api/v1/namespaces/shop/configmaps/c".to_owned();
        Err(Error::Timeout { operation, after: MEMBER_OBJECT_TIMEOUT })
    }

    #[rstest]
    #[case::absent(Ok(None), None)]
    #[case::unmanaged(
        Ok(Some(json!({"metadata": {"name": "c", "namespace": "shop"}}))),
        Some("resource(kind=ConfigMap, shop/c) already exists in the cluster m1")
    )]
    #[case::unreadable(
        failed_read(),
        Some(
            "cannot check whether the cluster has an unmanaged ConfigMap with this name: \
             GET /api/v1/namespaces/shop/configmaps/c: no complete response within 3s"
        )
    )]
    fn conflicts_and_failed_reads_are_reported(
        #[case] observed: Result<Option<Value>, Error>,
        #[case] expected: Option<&str>,
    ) {
        let manifest = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "shop"}});
        let message = conflict_message("m1", &manifest, observed);
        assert_eq!(message.is_some(), expected.is_some());
        assert!(message.unwrap_or_default().starts_with(expected.unwrap_or_default()));
    }
}
