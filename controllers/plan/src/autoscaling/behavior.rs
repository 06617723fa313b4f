//! Scaling behaviour of a FederatedHPA: recent recommendations and scale events limit how far replicas may change
//! now. The rules are those of Kubernetes' HorizontalPodAutoscaler.

use std::borrow::Cow;

use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::defaults::fill_behavior;

/// Scale-up limit without a behavior: twice the current replicas, but at least 4.
const DEFAULT_SCALE_UP_FACTOR: i32 = 2;
const MIN_DEFAULT_SCALE_UP_LIMIT: i32 = 4;

/// A recommendation (replicas) or a scale event (change in replicas) at a time.
pub type TimedReplicas = (Timestamp, i32);

/// Recent recommendations and scale events of one autoscaler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScaleHistory {
    /// Recommendations as computed from the metrics, before any limit.
    pub recommendations: Vec<TimedReplicas>,
    /// Scale-up and scale-down events, as positive changes in replicas.
    pub scale_up_events: Vec<TimedReplicas>,
    pub scale_down_events: Vec<TimedReplicas>,
}

/// Current replicas and the minimum and maximum of the FederatedHPA.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub current: i32,
    pub min: i32,
    pub max: i32,
}

/// Reason and message of a condition.
pub type ConditionText = (&'static str, &'static str);

/// A recommendation after stabilization and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitedRecommendation {
    pub replicas: i32,
    /// Effect of stabilization, for the condition `AbleToScale`.
    pub able_to_scale: ConditionText,
    /// True if limits changed the stabilized recommendation, for the condition `ScalingLimited`.
    pub is_limited: bool,
    /// Reason and message of the condition `ScalingLimited`.
    pub limit: ConditionText,
}

const READY: ConditionText = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: ConditionText = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: ConditionText = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const IN_RANGE: ConditionText = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: ConditionText = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: ConditionText = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const UP_LIMIT: ConditionText =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: ConditionText =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

impl ScaleHistory {
    /// Records the current replicas as the first recommendation, so that a new autoscaler does not scale down
    /// immediately.
    pub fn record_initial(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Limits the recommendation `desired`. `window` is the scale-down stabilization window if the behavior sets none.
    pub fn limit_recommendation(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        bounds: Bounds,
        desired: i32,
        window: SignedDuration,
        now: Timestamp,
    ) -> LimitedRecommendation {
        let Some(behavior) = behavior else {
            let stable = self.stabilize_scale_down(desired, window, now);
            let able_to_scale = if stable == desired { READY } else { DOWN_STABILIZED };
            let (replicas, limit) = apply_default_limits(bounds, stable);
            return LimitedRecommendation { replicas, able_to_scale, is_limited: replicas != stable, limit };
        };
        let (up, down) = rules(behavior);
        let up_window = seconds(up.stabilization_window_seconds.unwrap_or_default());
        let down_window = down.stabilization_window_seconds.map_or(window, seconds);
        let stable = self.stabilize(bounds.current, desired, (up_window, down_window), now);
        let able_to_scale = match (stable == desired, desired >= bounds.current) {
            (true, _) => READY,
            (false, true) => UP_STABILIZED,
            (false, false) => DOWN_STABILIZED,
        };
        let (replicas, limit) = self.apply_policies(&up, &down, bounds, stable, now);
        LimitedRecommendation { replicas, able_to_scale, is_limited: replicas != stable, limit }
    }

    /// Records a scale event, for the scaling policies of a behavior. Without a behavior nothing is recorded.
    pub fn record_scale_event(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        before: i32,
        after: i32,
        now: Timestamp,
    ) {
        let Some(behavior) = behavior else { return };
        let (up, down) = rules(behavior);
        let (changes, rules, change) = match after > before {
            true => (&mut self.scale_up_events, up, after.saturating_sub(before)),
            false => (&mut self.scale_down_events, down, before.saturating_sub(after)),
        };
        let longest = policies(&rules).iter().map(|policy| policy.period_seconds).max().unwrap_or_default();
        let cutoff = before_now(now, seconds(longest));
        changes.retain(|(at, _)| *at >= cutoff);
        changes.push((now, change));
    }

    /// Records the recommendation, and returns the highest one within the window.
    fn stabilize_scale_down(&mut self, desired: i32, window: SignedDuration, now: Timestamp) -> i32 {
        let cutoff = before_now(now, window);
        self.recommendations.retain(|(at, _)| *at >= cutoff);
        let highest = self.recommendations.iter().map(|(_, replicas)| *replicas).fold(desired, i32::max);
        self.recommendations.push((now, desired));
        highest
    }

    /// Records the recommendation, and stabilizes it within the scale-up and scale-down windows: scaling up is limited
    /// to the lowest recent recommendation, scaling down to the highest one.
    fn stabilize(
        &mut self,
        current: i32,
        desired: i32,
        (up, down): (SignedDuration, SignedDuration),
        now: Timestamp,
    ) -> i32 {
        let (up, down) = (before_now(now, up), before_now(now, down));
        let within = |cutoff: Timestamp| {
            self.recommendations.iter().filter(move |(at, _)| *at > cutoff).map(|(_, replicas)| *replicas)
        };
        let lowest = within(up).fold(desired, i32::min);
        let highest = within(down).fold(desired, i32::max);
        self.recommendations.retain(|(at, _)| *at >= up.min(down));
        self.recommendations.push((now, desired));
        current.max(lowest).min(highest)
    }

    /// Applies scaling policies and minimum and maximum replicas.
    fn apply_policies(
        &self,
        up: &HPAScalingRules,
        down: &HPAScalingRules,
        bounds: Bounds,
        desired: i32,
        now: Timestamp,
    ) -> (i32, ConditionText) {
        let Bounds { current, min, max } = bounds;
        if desired > current {
            let limit = self.scale_limit(ScaleDirection::Up, up, current, now).max(current);
            let (allowed, condition) = if max > limit { (limit, UP_LIMIT) } else { (max, TOO_MANY) };
            if desired > allowed {
                return (allowed, condition);
            }
        } else if desired < current {
            let limit = self.scale_limit(ScaleDirection::Down, down, current, now).min(current);
            let (allowed, condition) = if min < limit { (limit, DOWN_LIMIT) } else { (min, TOO_FEW) };
            if desired < allowed {
                return (allowed, condition);
            }
        }
        (desired, IN_RANGE)
    }

    /// Number of replicas that the policies of a direction allow now: the maximum when scaling up, the minimum when
    /// scaling down.
    fn scale_limit(&self, direction: ScaleDirection, rules: &HPAScalingRules, current: i32, now: Timestamp) -> i32 {
        let allowed = policies(rules).iter().map(|policy| {
            let start = self.replicas_at_period_start(policy, current, now);
            direction.allowed_by_policy(policy, start)
        });
        let allows_smallest_change = match rules.select_policy.as_deref() {
            Some("Disabled") => return current,
            select_policy => select_policy == Some("Min"),
        };
        match (direction, allows_smallest_change) {
            (ScaleDirection::Up, true) | (ScaleDirection::Down, false) => allowed.min().unwrap_or(i32::MAX),
            (ScaleDirection::Up, false) | (ScaleDirection::Down, true) => allowed.max().unwrap_or(i32::MIN),
        }
    }

    /// Number of replicas when a policy's period began.
    fn replicas_at_period_start(&self, policy: &HPAScalingPolicy, current: i32, now: Timestamp) -> i32 {
        let cutoff = before_now(now, seconds(policy.period_seconds));
        let within = |changes: &[TimedReplicas]| -> i32 {
            let recent = changes.iter().filter(|(at, _)| *at > cutoff);
            recent.fold(0, |sum, (_, change)| sum.saturating_add(*change))
        };
        current.saturating_sub(within(&self.scale_up_events)).saturating_add(within(&self.scale_down_events))
    }
}

/// Direction of a scale event.
#[derive(Debug, Clone, Copy)]
enum ScaleDirection {
    Up,
    Down,
}

impl ScaleDirection {
    /// Number of replicas that a policy allows. `start` is their number when the policy's period began.
    fn allowed_by_policy(self, policy: &HPAScalingPolicy, start: i32) -> i32 {
        let is_percentage = policy.type_ == "Percent";
        let fraction = f64::from(policy.value) / 100.0;
        match self {
            // Rounded up; otherwise a small number of replicas could never grow.
            Self::Up if is_percentage => (f64::from(start) * (1.0 + fraction)).ceil() as i32,
            Self::Up => start.saturating_add(policy.value),
            Self::Down if is_percentage => (f64::from(start) * (1.0 - fraction)) as i32,
            Self::Down => start.saturating_sub(policy.value),
        }
    }
}

/// Applies the limits of an autoscaler without a behavior.
fn apply_default_limits(bounds: Bounds, desired: i32) -> (i32, ConditionText) {
    let limit = bounds.current.saturating_mul(DEFAULT_SCALE_UP_FACTOR).max(MIN_DEFAULT_SCALE_UP_LIMIT);
    let (max, condition) = if bounds.max > limit { (limit, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
    if desired < bounds.min {
        (bounds.min, TOO_FEW)
    } else if desired > max {
        (max, condition)
    } else {
        (desired, IN_RANGE)
    }
}

/// Scale-up and scale-down rules, with the defaults of admission filled in.
fn rules(behavior: &HorizontalPodAutoscalerBehavior) -> (Cow<'_, HPAScalingRules>, Cow<'_, HPAScalingRules>) {
    let is_complete = |rules: &HPAScalingRules| rules.policies.is_some() && rules.select_policy.is_some();
    match (&behavior.scale_up, &behavior.scale_down) {
        (Some(up), Some(down)) if is_complete(up) && is_complete(down) => (Cow::Borrowed(up), Cow::Borrowed(down)),
        _ => {
            let mut behavior = behavior.clone();
            fill_behavior(&mut behavior);
            let rules = |rules: Option<HPAScalingRules>| Cow::Owned(rules.unwrap_or_default());
            (rules(behavior.scale_up), rules(behavior.scale_down))
        }
    }
}

fn policies(rules: &HPAScalingRules) -> &[HPAScalingPolicy] {
    rules.policies.as_deref().unwrap_or_default()
}

fn seconds(seconds: i32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(seconds))
}

fn before_now(now: Timestamp, duration: SignedDuration) -> Timestamp {
    now.checked_sub(duration).unwrap_or(Timestamp::MIN)
}
