//! Scaling behaviour of a FederatedHPA: recent recommendations and scale events limit how far replicas may change
//! now. The rules are those of Kubernetes' HorizontalPodAutoscaler.

use std::borrow::Cow;

use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::defaults::fill_behavior;

/// Scale-up limit without a behavior: twice the current replicas, but at least 4.
const UP_FACTOR: i32 = 2;
const UP_LEAST: i32 = 4;

/// A recommendation (replicas) or a scale event (change in replicas) at a time.
pub type Noted = (Timestamp, i32);

/// Recent recommendations and scale events of one autoscaler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScaleHistory {
    /// Recommendations as computed from the metrics, before any limit.
    pub recommended: Vec<Noted>,
    /// Scale-up and scale-down events, as positive changes in replicas.
    pub grown: Vec<Noted>,
    pub shrunk: Vec<Noted>,
}

/// Current replicas and the minimum and maximum of the FederatedHPA.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub current: i32,
    pub least: i32,
    pub most: i32,
}

/// Reason and message of a condition.
pub type ConditionText = (&'static str, &'static str);

/// A recommendation after stabilization and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitedRecommendation {
    pub replicas: i32,
    /// Effect of stabilization, for the condition `AbleToScale`.
    pub able: ConditionText,
    /// True if limits changed the stabilized recommendation, for the condition `ScalingLimited`.
    pub limited: bool,
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
    pub fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommended.is_empty() {
            self.recommended.push((now, current));
        }
    }

    /// Limits the recommendation `wanted`. `window` is the scale-down stabilization window if the behavior sets none.
    pub fn bound(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        bounds: Bounds,
        wanted: i32,
        window: SignedDuration,
        now: Timestamp,
    ) -> LimitedRecommendation {
        let Some(behavior) = behavior else {
            let stable = self.stable(wanted, window, now);
            let able = if stable == wanted { READY } else { DOWN_STABILIZED };
            let (replicas, limit) = by_default(bounds, stable);
            return LimitedRecommendation { replicas, able, limited: replicas != stable, limit };
        };
        let (up, down) = rules(behavior);
        let up_window = seconds(up.stabilization_window_seconds.unwrap_or_default());
        let down_window = down.stabilization_window_seconds.map_or(window, seconds);
        let stable = self.stable_between(bounds.current, wanted, (up_window, down_window), now);
        let able = match (stable == wanted, wanted >= bounds.current) {
            (true, _) => READY,
            (false, true) => UP_STABILIZED,
            (false, false) => DOWN_STABILIZED,
        };
        let (replicas, limit) = self.by_rules(&up, &down, bounds, stable, now);
        LimitedRecommendation { replicas, able, limited: replicas != stable, limit }
    }

    /// Records a scale event, for the scaling policies of a behavior. Without a behavior nothing is recorded.
    pub fn rescaled(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        before: i32,
        after: i32,
        now: Timestamp,
    ) {
        let Some(behavior) = behavior else { return };
        let (up, down) = rules(behavior);
        let (changes, rules, by) = match after > before {
            true => (&mut self.grown, up, after.saturating_sub(before)),
            false => (&mut self.shrunk, down, before.saturating_sub(after)),
        };
        let longest = policies(&rules).iter().map(|policy| policy.period_seconds).max().unwrap_or_default();
        let cutoff = before_now(now, seconds(longest));
        changes.retain(|(at, _)| *at >= cutoff);
        changes.push((now, by));
    }

    /// The highest recommendation within the window.
    fn stable(&mut self, wanted: i32, window: SignedDuration, now: Timestamp) -> i32 {
        let cutoff = before_now(now, window);
        self.recommended.retain(|(at, _)| *at >= cutoff);
        let highest = self.recommended.iter().map(|(_, replicas)| *replicas).fold(wanted, i32::max);
        self.recommended.push((now, wanted));
        highest
    }

    /// Stabilizes a recommendation within the scale-up and scale-down windows: at most the lowest recent
    /// recommendation when scaling up, at least the highest one when scaling down.
    fn stable_between(
        &mut self,
        current: i32,
        wanted: i32,
        (up, down): (SignedDuration, SignedDuration),
        now: Timestamp,
    ) -> i32 {
        let (up, down) = (before_now(now, up), before_now(now, down));
        let within = |cutoff: Timestamp| self.recommended.iter().filter(move |(at, _)| *at > cutoff).map(|(_, of)| *of);
        let lowest = within(up).fold(wanted, i32::min);
        let highest = within(down).fold(wanted, i32::max);
        self.recommended.retain(|(at, _)| *at >= up.min(down));
        self.recommended.push((now, wanted));
        current.max(lowest).min(highest)
    }

    /// Applies scaling policies and minimum and maximum replicas.
    fn by_rules(
        &self,
        up: &HPAScalingRules,
        down: &HPAScalingRules,
        bounds: Bounds,
        wanted: i32,
        now: Timestamp,
    ) -> (i32, ConditionText) {
        let Bounds { current, least, most } = bounds;
        if wanted > current {
            let limit = self.most_by(up, current, now).max(current);
            let (allowed, why) = if most > limit { (limit, UP_LIMIT) } else { (most, TOO_MANY) };
            if wanted > allowed {
                return (allowed, why);
            }
        } else if wanted < current {
            let limit = self.least_by(down, current, now).min(current);
            let (allowed, why) = if least < limit { (limit, DOWN_LIMIT) } else { (least, TOO_FEW) };
            if wanted < allowed {
                return (allowed, why);
            }
        }
        (wanted, IN_RANGE)
    }

    /// The most replicas that the scale-up policies allow now.
    fn most_by(&self, rules: &HPAScalingRules, current: i32, now: Timestamp) -> i32 {
        let allowed = policies(rules).iter().map(|policy| {
            let start = self.at_start(policy, current, now);
            match policy.type_.as_str() {
                // Rounded up; otherwise a small number of replicas could never grow.
                "Percent" => (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32,
                _ => start.saturating_add(policy.value),
            }
        });
        match rules.select_policy.as_deref() {
            Some("Disabled") => current,
            Some("Min") => allowed.min().unwrap_or(i32::MAX),
            _ => allowed.max().unwrap_or(i32::MIN),
        }
    }

    /// The fewest replicas that the scale-down policies allow now.
    fn least_by(&self, rules: &HPAScalingRules, current: i32, now: Timestamp) -> i32 {
        let allowed = policies(rules).iter().map(|policy| {
            let start = self.at_start(policy, current, now);
            match policy.type_.as_str() {
                "Percent" => (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32,
                _ => start.saturating_sub(policy.value),
            }
        });
        match rules.select_policy.as_deref() {
            Some("Disabled") => current,
            Some("Min") => allowed.max().unwrap_or(i32::MIN),
            _ => allowed.min().unwrap_or(i32::MAX),
        }
    }

    /// Number of replicas when a policy's period began.
    fn at_start(&self, policy: &HPAScalingPolicy, current: i32, now: Timestamp) -> i32 {
        let cutoff = before_now(now, seconds(policy.period_seconds));
        let within = |changes: &[Noted]| -> i32 {
            let recent = changes.iter().filter(|(at, _)| *at > cutoff);
            recent.fold(0, |sum, (_, by)| sum.saturating_add(*by))
        };
        current.saturating_sub(within(&self.grown)).saturating_add(within(&self.shrunk))
    }
}

/// Applies the limits of an autoscaler without a behavior.
fn by_default(bounds: Bounds, wanted: i32) -> (i32, ConditionText) {
    let limit = bounds.current.saturating_mul(UP_FACTOR).max(UP_LEAST);
    let (most, why) = if bounds.most > limit { (limit, UP_LIMIT) } else { (bounds.most, TOO_MANY) };
    if wanted < bounds.least {
        (bounds.least, TOO_FEW)
    } else if wanted > most {
        (most, why)
    } else {
        (wanted, IN_RANGE)
    }
}

/// Scale-up and scale-down rules, with the defaults of admission filled in.
fn rules(behavior: &HorizontalPodAutoscalerBehavior) -> (Cow<'_, HPAScalingRules>, Cow<'_, HPAScalingRules>) {
    let is_whole = |rules: &HPAScalingRules| rules.policies.is_some() && rules.select_policy.is_some();
    match (&behavior.scale_up, &behavior.scale_down) {
        (Some(up), Some(down)) if is_whole(up) && is_whole(down) => (Cow::Borrowed(up), Cow::Borrowed(down)),
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

fn before_now(now: Timestamp, by: SignedDuration) -> Timestamp {
    now.checked_sub(by).unwrap_or(Timestamp::MIN)
}
