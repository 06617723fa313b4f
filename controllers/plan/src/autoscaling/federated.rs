//! Decisions about a FederatedHPA other than the replicas that metrics propose: the binding of its target, limits that
//! apply before any metric, ambiguous selectors, and conditions. Reasons and messages are Karmada's.

use std::collections::BTreeMap;

use crowsnest_api::permanent_id::POLICY_LABELS;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::pods::Pod;

pub const ABLE_TO_SCALE: &str = "AbleToScale";
pub const SCALING_ACTIVE: &str = "ScalingActive";
pub const SCALING_LIMITED: &str = "ScalingLimited";

/// Validates the `apiVersion` of a scale target.
pub fn validate_api_version(target: &CrossVersionObjectReference) -> Result<&str, String> {
    let text = target.api_version.as_deref().unwrap_or_default();
    match text.matches('/').count() {
        0 | 1 => Ok(text),
        _ => Err(format!("unexpected GroupVersion string: {text}")),
    }
}

/// Key and value of the target's label with the permanent id of its policy. The target's binding has the same label.
pub fn policy_label(target: &Value) -> Result<(&'static str, &str), &'static str> {
    if unstructured::labels(target).is_empty() {
        return Err("target resource has no label");
    }
    let policy_label = POLICY_LABELS.into_iter().find_map(|label| Some((label, unstructured::label(target, label)?)));
    policy_label.ok_or("no label of policy permanent-id found")
}

/// Result of checking the current replicas against minimum and maximum, before any metric is queried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitCheck {
    /// Autoscaling is disabled, because the target is scaled to zero.
    Disabled,
    /// The current replicas are outside of minimum and maximum: the replicas to scale to, and the message.
    Replicas(i32, &'static str),
    /// Metrics decide.
    Metrics,
}

/// Checks the replicas against minimum and maximum. `template` is the number in the template, `in_clusters` the sum over
/// all clusters.
pub fn check_limits(template: i32, in_clusters: i32, min: i32, max: i32) -> LimitCheck {
    if in_clusters == 0 && min != 0 {
        LimitCheck::Disabled
    } else if template > max {
        LimitCheck::Replicas(max, "Current number of replicas above Spec.MaxReplicas")
    } else if template < min {
        LimitCheck::Replicas(min, "Current number of replicas below Spec.MinReplicas")
    } else {
        LimitCheck::Metrics
    }
}

/// FederatedHPAs whose selectors match any of the pods of a namespace.
pub fn find_matching_hpas(
    selectors: &BTreeMap<NamespacedName, Option<Selector>>,
    namespace: &str,
    pods: &[Pod],
) -> Vec<NamespacedName> {
    let selects = |selector: &Selector| pods.iter().any(|pod| selector.matches(&pod.labels));
    let found =
        selectors.iter().filter(|(key, selector)| key.namespace == namespace && selector.as_ref().is_some_and(selects));
    found.map(|(key, _)| key.clone()).collect()
}

/// Message for pods that several FederatedHPAs select.
pub fn ambiguous_selector_message(selector: &str, hpas: &[NamespacedName]) -> String {
    let names: Vec<String> = hpas.iter().map(|key| format!("{{{} {}}}", key.name, key.namespace)).collect();
    format!("pods by selector {selector} are controlled by multiple HPAs: [{}]", names.join(" "))
}

/// Sets a condition. Its transition time changes only with its status.
pub fn set_condition(
    status: &mut HorizontalPodAutoscalerStatus,
    kind: &str,
    is_true: bool,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let found = conditions.iter().position(|condition| condition.type_ == kind);
    let index = found.unwrap_or_else(|| {
        conditions.push(HorizontalPodAutoscalerCondition { type_: kind.to_owned(), ..Default::default() });
        conditions.len() - 1
    });
    let condition = &mut conditions[index];
    let new = if is_true { "True" } else { "False" };
    if condition.status != new {
        condition.status = new.to_owned();
        condition.last_transition_time = Some(Time(now));
    }
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message.into());
}

/// Writes replicas and metrics to the status, and the last scale time if the target was scaled now. An empty list of
/// metrics is omitted.
pub fn set_scale(
    status: &mut HorizontalPodAutoscalerStatus,
    (current, desired): (i32, i32),
    metrics: Vec<MetricStatus>,
    scaled_at: Option<Timestamp>,
) {
    set_current_replicas(status, current);
    status.desired_replicas = desired;
    status.current_metrics = (!metrics.is_empty()).then_some(metrics);
    if let Some(at) = scaled_at {
        status.last_scale_time = Some(Time(at));
    }
}

/// Writes the current replicas. Zero is omitted.
pub fn set_current_replicas(status: &mut HorizontalPodAutoscalerStatus, current: i32) {
    status.current_replicas = (current != 0).then_some(current);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(3, 6, 1, 10, LimitCheck::Metrics)]
    #[case(3, 0, 1, 10, LimitCheck::Disabled)]
    #[case(3, 0, 0, 10, LimitCheck::Metrics)]
    #[case(11, 22, 1, 10, LimitCheck::Replicas(10, "Current number of replicas above Spec.MaxReplicas"))]
    #[case(1, 2, 2, 10, LimitCheck::Replicas(2, "Current number of replicas below Spec.MinReplicas"))]
    fn bounds_before_metrics(
        #[case] template: i32,
        #[case] in_clusters: i32,
        #[case] min: i32,
        #[case] max: i32,
        #[case] expected: LimitCheck,
    ) {
        assert_eq!(check_limits(template, in_clusters, min, max), expected);
    }

    #[rstest]
    #[case(json!({}), Err("target resource has no label"))]
    #[case(json!({"app": "web"}), Err("no label of policy permanent-id found"))]
    #[case(
        json!({"propagationpolicy.karmada.io/permanent-id": "1", "clusterpropagationpolicy.karmada.io/permanent-id": "2"}),
        Ok(("propagationpolicy.karmada.io/permanent-id", "1"))
    )]
    #[case(
        json!({"clusterpropagationpolicy.karmada.io/permanent-id": "2"}),
        Ok(("clusterpropagationpolicy.karmada.io/permanent-id", "2"))
    )]
    fn policy_labels(#[case] labels: Value, #[case] expected: Result<(&'static str, &str), &'static str>) {
        assert_eq!(policy_label(&json!({"metadata": {"labels": labels}})), expected);
    }

    #[test]
    fn transition_time_changes_only_with_status() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut status = HorizontalPodAutoscalerStatus::default();
        set_condition(&mut status, ABLE_TO_SCALE, false, "FailedGetScale", "no", at(1));
        set_condition(&mut status, ABLE_TO_SCALE, false, "FailedGetBinding", "still no", at(2));
        let first = status.conditions.as_ref().expect("conditions")[0].clone();
        assert_eq!(
            (first.reason.as_deref(), first.last_transition_time),
            (Some("FailedGetBinding"), Some(Time(at(1))))
        );
        set_condition(&mut status, ABLE_TO_SCALE, true, "SucceededGetScale", "yes", at(3));
        let conditions = status.conditions.expect("conditions");
        assert_eq!((conditions.len(), &conditions[0].last_transition_time), (1, &Some(Time(at(3)))));
    }

    #[test]
    fn pods_selected_by_several_hpas() {
        let selector = |text| Some(Selector::parse(text).expect("a selector"));
        let key = |namespace: &str, name: &str| NamespacedName::new(namespace, name);
        let selectors = BTreeMap::from([
            (key("a", "one"), selector("app=web")),
            (key("a", "two"), selector("app in (web,api)")),
            (key("a", "unparsed"), None),
            (key("a", "other"), selector("app=api")),
            (key("b", "other-namespace"), selector("app=web")),
        ]);
        let pod = Pod::from_json("m1", &json!({"metadata": {"name": "p", "labels": {"app": "web"}}}));
        let found = find_matching_hpas(&selectors, "a", &[pod]);
        assert_eq!(found, [key("a", "one"), key("a", "two")]);
        let expected = "pods by selector app=web are controlled by multiple HPAs: [{one a} {two a}]";
        assert_eq!(ambiguous_selector_message("app=web", &found), expected);
    }
}
