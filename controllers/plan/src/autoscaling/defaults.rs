//! Defaults of `spec.behavior` of a FederatedHPA: those of Kubernetes' HorizontalPodAutoscaler (KEP-853).

use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// Fills in the scaling rules that a behavior leaves out. The stabilization window for scaling down is left unset: it
/// is a setting of the controllers.
pub fn fill_behavior(behavior: &mut HorizontalPodAutoscalerBehavior) {
    let up = default_rules(Some(0), &[("Pods", 4), ("Percent", 100)]);
    let down = default_rules(None, &[("Percent", 100)]);
    behavior.scale_up = Some(fill_rules(behavior.scale_up.take(), up));
    behavior.scale_down = Some(fill_rules(behavior.scale_down.take(), down));
}

/// Default scaling rules: the larger of the policies' changes within 15 seconds.
fn default_rules(window: Option<i32>, policies: &[(&str, i32)]) -> HPAScalingRules {
    let policy = |(type_, value): &(&str, i32)| HPAScalingPolicy {
        type_: (*type_).to_owned(),
        value: *value,
        period_seconds: 15,
    };
    HPAScalingRules {
        stabilization_window_seconds: window,
        select_policy: Some("Max".to_owned()),
        policies: Some(policies.iter().map(policy).collect()),
        ..HPAScalingRules::default()
    }
}

fn fill_rules(rules: Option<HPAScalingRules>, default: HPAScalingRules) -> HPAScalingRules {
    let rules = rules.unwrap_or_default();
    HPAScalingRules {
        select_policy: rules.select_policy.or(default.select_policy),
        stabilization_window_seconds: rules.stabilization_window_seconds.or(default.stabilization_window_seconds),
        policies: rules.policies.or(default.policies),
        tolerance: rules.tolerance,
    }
}
