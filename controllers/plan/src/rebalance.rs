//! WorkloadRebalancer decisions: workloads that still need rescheduling, their bindings, and completion. Users write
//! the spec, the workload rebalancer writes the status.

use std::collections::BTreeSet;

use crowsnest_api::apps::{
    ObjectReference, ObservedWorkload, RebalanceFailedReason, RebalanceResult, WorkloadRebalancerSpec,
    WorkloadRebalancerStatus,
};
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::names::format;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

type Identity<'a> = (&'a str, &'a str, &'a str, &'a str);

fn identity(workload: &ObjectReference) -> Identity<'_> {
    (&workload.api_version, &workload.kind, &workload.namespace, &workload.name)
}

/// Next status. A workload of the spec keeps its result, a new one has none yet, and one that was removed from the
/// spec is kept if it was rescheduled.
pub fn observe(
    spec: &WorkloadRebalancerSpec,
    old: &WorkloadRebalancerStatus,
    generation: i64,
) -> WorkloadRebalancerStatus {
    let mut unseen: BTreeSet<Identity<'_>> = spec.workloads.iter().map(identity).collect();
    let stays = |item: &&ObservedWorkload| item.result == Some(RebalanceResult::Successful);
    let before = old.observed_workloads.iter();
    let mut observed: Vec<ObservedWorkload> =
        before.filter(|item| unseen.remove(&identity(&item.workload)) || stays(item)).cloned().collect();
    for workload in &spec.workloads {
        if unseen.remove(&identity(workload)) {
            observed.push(ObservedWorkload { workload: workload.clone(), ..ObservedWorkload::default() });
        }
    }
    observed.sort_by_cached_key(|item| {
        let (api_version, kind, namespace, name) = identity(&item.workload);
        format!("{api_version} {kind} {namespace} {name}")
    });
    WorkloadRebalancerStatus {
        observed_workloads: observed,
        observed_generation: generation,
        finish_time: old.finish_time.clone(),
    }
}

/// Identity of the object that a workload refers to. `None` if its namespace is invalid.
pub fn template_of(workload: &ObjectReference) -> Option<ObjectIdentity<'_>> {
    let ObjectReference { api_version, kind, namespace, name } = workload;
    let is_valid = namespace.is_empty() || format::validate_dns1123_label(namespace).is_empty();
    is_valid.then(|| ObjectIdentity::new(api_version, kind, namespace, name))
}

/// True if the spec contains the workload.
pub fn contains_workload(spec: &WorkloadRebalancerSpec, workload: &ObjectReference) -> bool {
    spec.workloads.iter().any(|listed_workload| identity(listed_workload) == identity(workload))
}

/// True if a rebalancer created at `created` must request rescheduling of a binding for which it was last requested at
/// `triggered`. The creation time counts as the time of the request, so editing the rebalancer later does not
/// reschedule the binding again.
pub fn needs_trigger(created: &Time, triggered: Option<&Time>) -> bool {
    triggered.is_none_or(|triggered| created.0 > triggered.0)
}

/// Sets the result of a workload. Without a binding it has failed permanently.
pub fn set_result(item: &mut ObservedWorkload, has_binding: bool) {
    item.result = Some(if has_binding { RebalanceResult::Successful } else { RebalanceResult::Failed });
    item.reason = (!has_binding).then_some(RebalanceFailedReason::ReferencedBindingNotFound);
}

/// Finish time: now if the status changed and no workload is pending, otherwise the previous finish time. A finished
/// rebalancer without one gets the current time.
pub fn finish_time(old: &WorkloadRebalancerStatus, new: &WorkloadRebalancerStatus, now: Timestamp) -> Option<Time> {
    let pending = new.observed_workloads.iter().any(|item| item.result.is_none());
    let changed =
        (old.observed_generation, &old.observed_workloads) != (new.observed_generation, &new.observed_workloads);
    match (pending, changed) {
        (true, _) => old.finish_time.clone(),
        (false, true) => Some(Time(now)),
        (false, false) => old.finish_time.clone().or(Some(Time(now))),
    }
}

/// Time when a finished rebalancer is deleted. `None` without TTL.
pub fn expiry(spec: &WorkloadRebalancerSpec, status: &WorkloadRebalancerStatus) -> Option<Timestamp> {
    let ttl = SignedDuration::from_secs(spec.ttl_seconds_after_finished?.into());
    let finished = status.finish_time.as_ref()?;
    Some(finished.0.saturating_add(ttl).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Parses `kind namespace name`, with `-` for no namespace.
    fn parse_workload(text: &str) -> ObjectReference {
        let words: Vec<&str> = text.split(' ').collect();
        ObjectReference {
            api_version: "apps/v1".to_owned(),
            kind: words[0].to_owned(),
            namespace: words[1].trim_matches('-').to_owned(),
            name: words[2].to_owned(),
        }
    }

    /// Parses a workload with a prefix: `+` successful, `!` failed, `?` pending.
    fn parse_observed_workload(text: &str) -> ObservedWorkload {
        let (sign, rest) = text.split_at(1);
        let mut item = ObservedWorkload { workload: parse_workload(rest), ..ObservedWorkload::default() };
        if sign != "?" {
            set_result(&mut item, sign == "+");
        }
        item
    }

    fn status(items: &[&str]) -> WorkloadRebalancerStatus {
        WorkloadRebalancerStatus {
            observed_workloads: items.iter().map(|item| parse_observed_workload(item)).collect(),
            observed_generation: 1,
            finish_time: None,
        }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[rstest]
    #[case::new(&["Deployment ns b", "Deployment ns a"], &[], &["?Deployment ns a", "?Deployment ns b"])]
    #[case::listed_twice(&["Deployment ns a", "Deployment ns a"], &[], &["?Deployment ns a"])]
    #[case::results_stay(
        &["Deployment ns a", "Deployment ns b", "Deployment ns c"],
        &["+Deployment ns a", "!Deployment ns b", "?Deployment ns c"],
        &["+Deployment ns a", "!Deployment ns b", "?Deployment ns c"]
    )]
    #[case::removed_from_the_spec(
        &["Deployment ns d"],
        &["+Deployment ns a", "!Deployment ns b", "?Deployment ns c"],
        &["+Deployment ns a", "?Deployment ns d"]
    )]
    #[case::ordered_by_kind_then_namespace(
        &["StatefulSet a x", "Deployment b a", "Deployment a z", "ClusterRole - y"],
        &[],
        &["?ClusterRole - y", "?Deployment a z", "?Deployment b a", "?StatefulSet a x"]
    )]
    #[case::another_namespace_is_another_workload(
        &["Deployment ns2 a"], &["!Deployment ns a"], &["?Deployment ns2 a"]
    )]
    fn observed_workloads(#[case] requested: &[&str], #[case] before: &[&str], #[case] after: &[&str]) {
        let spec = WorkloadRebalancerSpec {
            workloads: requested.iter().map(|text| parse_workload(text)).collect(),
            ..WorkloadRebalancerSpec::default()
        };
        let found = observe(&spec, &status(before), 7);
        assert_eq!(found.observed_workloads, status(after).observed_workloads);
        assert_eq!(found.observed_generation, 7);
    }

    #[rstest]
    #[case("Deployment ns Web", Some("web-deployment"))]
    #[case("ClusterRole - system:view", Some("system.view-clusterrole"))]
    #[case::invalid_name("Deployment ns ../x", Some("x-38513b39"))]
    #[case::invalid_namespace("Deployment a/b x", None)]
    fn workloads_refer_to_bindings(#[case] text: &str, #[case] binding: Option<&str>) {
        let workload = parse_workload(text);
        let key = template_of(&workload).map(|template| template.default_binding_key());
        assert_eq!(key.as_ref().map(|key| key.name.as_str()), binding);
    }

    #[rstest]
    #[case::never_triggered(None, true)]
    #[case::triggered_before(Some(9), true)]
    #[case::triggered_at_the_same_time(Some(10), false)]
    #[case::triggered_later(Some(11), false)]
    fn rescheduling_is_triggered_once(#[case] triggered: Option<i64>, #[case] expected: bool) {
        let triggered = triggered.map(|at| Time(second(at)));
        assert_eq!(needs_trigger(&Time(second(10)), triggered.as_ref()), expected);
    }

    #[rstest]
    #[case::first_time(&[], None, &["+Deployment ns a"], Some(50))]
    #[case::failed_counts_as_finished(&[], None, &["!Deployment ns a"], Some(50))]
    #[case::pending(&[], None, &["+Deployment ns a", "?Deployment ns b"], None)]
    #[case::unchanged(&["+Deployment ns a"], Some(9), &["+Deployment ns a"], Some(9))]
    #[case::one_more(&["+Deployment ns a"], Some(9), &["+Deployment ns a", "+Deployment ns b"], Some(50))]
    #[case::one_more_pending(&["+Deployment ns a"], Some(9), &["+Deployment ns a", "?Deployment ns b"], Some(9))]
    #[case::finished_without_finish_time(&["+Deployment ns a"], None, &["+Deployment ns a"], Some(50))]
    fn finish_times(
        #[case] before: &[&str],
        #[case] finished: Option<i64>,
        #[case] after: &[&str],
        #[case] expected: Option<i64>,
    ) {
        let old = WorkloadRebalancerStatus { finish_time: finished.map(|at| Time(second(at))), ..status(before) };
        assert_eq!(finish_time(&old, &status(after), second(50)), expected.map(|at| Time(second(at))));
    }

    #[rstest]
    #[case::without_ttl(None, Some(9), None)]
    #[case::not_finished(Some(2), None, None)]
    #[case::at_once(Some(0), Some(9), Some(9))]
    #[case::later(Some(2), Some(9), Some(11))]
    fn expiry_times(#[case] ttl: Option<i32>, #[case] finished: Option<i64>, #[case] expected: Option<i64>) {
        let spec = WorkloadRebalancerSpec { ttl_seconds_after_finished: ttl, ..WorkloadRebalancerSpec::default() };
        let done = WorkloadRebalancerStatus { finish_time: finished.map(|at| Time(second(at))), ..status(&[]) };
        assert_eq!(expiry(&spec, &done), expected.map(second));
    }
}
