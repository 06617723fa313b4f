//! Rollout of a Deployment: distribution of replicas over its ReplicaSets, with the arithmetic of Kubernetes'
//! Deployment controller. Has no side effects.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DeploymentSpec, DeploymentStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A ReplicaSet of a Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSetView {
    pub name: String,
    pub created: Timestamp,
    /// True if it has the Deployment's current template.
    pub is_new: bool,
    pub revision: i64,
    /// `spec.replicas`
    pub spec_replicas: i32,
    pub replicas: i32,
    pub ready: i32,
    pub available: i32,
    /// Existing pods, including terminating ones.
    pub pods: i32,
    /// Annotation `deployment.kubernetes.io/desired-replicas`: replicas of the Deployment at the last scaling.
    pub desired: Option<i32>,
    /// Annotation `deployment.kubernetes.io/max-replicas`: maximum number of pods at the last scaling.
    pub max: Option<i32>,
}

/// Desired state of a Deployment, with percentages resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutTargets {
    pub replicas: i32,
    /// True for the strategy Recreate, false for RollingUpdate.
    pub is_recreate: bool,
    pub is_paused: bool,
    pub max_surge: i32,
    pub max_unavailable: i32,
}

impl RolloutTargets {
    pub fn new(spec: &DeploymentSpec) -> Self {
        let replicas = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.clone().unwrap_or_default();
        let is_recreate = strategy.type_.as_deref() == Some("Recreate");
        let (max_surge, max_unavailable) =
            if is_recreate { (0, replicas) } else { rolling_limits(&strategy, replicas) };
        Self { replicas, is_recreate, is_paused: spec.paused.unwrap_or_default(), max_surge, max_unavailable }
    }

    /// Maximum number of pods at any time.
    pub fn max_pods(&self) -> i32 {
        if self.replicas == 0 { 0 } else { self.replicas + self.max_surge }
    }

    /// Minimum number of available pods at any time.
    pub fn min_available(&self) -> i32 {
        self.replicas - self.max_unavailable
    }
}

/// `maxSurge` and `maxUnavailable` as numbers of pods.
fn rolling_limits(strategy: &DeploymentStrategy, replicas: i32) -> (i32, i32) {
    let rolling = strategy.rolling_update.clone().unwrap_or_default();
    let quarter = || IntOrString::String("25%".into());
    let surge = resolve_int_or_percent(&rolling.max_surge.unwrap_or_else(quarter), replicas, true);
    let unavailable = resolve_int_or_percent(&rolling.max_unavailable.unwrap_or_else(quarter), replicas, false);
    // Without this, a rollout with both zero could not progress.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    (surge, unavailable.min(replicas))
}

/// Resolves an integer or a percentage of `total`, rounded up or down.
pub fn resolve_int_or_percent(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(count) => (*count).max(0),
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or_default();
            let product = percent * i64::from(total);
            let share = if round_up { (product + 99).div_euclid(100) } else { product.div_euclid(100) };
            i32::try_from(share).unwrap_or(i32::MAX).max(0)
        }
    }
}

/// A new size of a ReplicaSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetScale {
    pub name: String,
    pub replicas: i32,
}

/// The next action of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutAction {
    /// Create the ReplicaSet of the current template with this size.
    pub create: Option<i32>,
    /// Scale existing ReplicaSets.
    pub scale: Vec<SetScale>,
}

impl RolloutAction {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Computes the next action. The rollout is complete when there is none and all pods are available.
pub fn next_action(rollout_targets: &RolloutTargets, sets: &[ReplicaSetView]) -> RolloutAction {
    let active = || sets.iter().filter(|set| set.spec_replicas > 0);
    let is_resized = active().any(|set| set.desired.is_some_and(|desired| desired != rollout_targets.replicas));
    if rollout_targets.is_paused || is_resized {
        return RolloutAction { create: None, scale: scale_proportionally(rollout_targets, sets) };
    }
    if rollout_targets.is_recreate {
        next_recreate_action(rollout_targets, sets)
    } else {
        next_rolling_action(rollout_targets, sets)
    }
}

fn next_recreate_action(rollout_targets: &RolloutTargets, sets: &[ReplicaSetView]) -> RolloutAction {
    let old: Vec<_> = sets.iter().filter(|set| !set.is_new).collect();
    let scale_down: Vec<_> = old
        .iter()
        .filter(|set| set.spec_replicas > 0)
        .map(|set| SetScale { name: set.name.clone(), replicas: 0 })
        .collect();
    if !scale_down.is_empty() {
        return RolloutAction { create: None, scale: scale_down };
    }
    if old.iter().any(|set| set.pods > 0) {
        return RolloutAction::default();
    }
    match sets.iter().find(|set| set.is_new) {
        None => RolloutAction { create: Some(rollout_targets.replicas), scale: Vec::new() },
        Some(set) if set.spec_replicas != rollout_targets.replicas => RolloutAction {
            create: None,
            scale: vec![SetScale { name: set.name.clone(), replicas: rollout_targets.replicas }],
        },
        Some(_) => RolloutAction::default(),
    }
}

fn next_rolling_action(rollout_targets: &RolloutTargets, sets: &[ReplicaSetView]) -> RolloutAction {
    let total: i32 = sets.iter().map(|set| set.spec_replicas).sum();
    let scaled_up = |from: i32| {
        if from >= rollout_targets.replicas {
            return rollout_targets.replicas;
        }
        let available_surge = (rollout_targets.replicas + rollout_targets.max_surge - total).max(0);
        from + available_surge.min(rollout_targets.replicas - from)
    };
    let Some(new) = sets.iter().find(|set| set.is_new) else {
        return RolloutAction { create: Some(scaled_up(0)), scale: Vec::new() };
    };
    let replicas = scaled_up(new.spec_replicas);
    if replicas != new.spec_replicas {
        return RolloutAction { create: None, scale: vec![SetScale { name: new.name.clone(), replicas }] };
    }
    RolloutAction { create: None, scale: scale_down_old(rollout_targets, sets, new, total) }
}

/// Scales down old ReplicaSets as far as availability allows: unavailable replicas first, then the oldest sets.
fn scale_down_old(
    rollout_targets: &RolloutTargets,
    sets: &[ReplicaSetView],
    new: &ReplicaSetView,
    total: i32,
) -> Vec<SetScale> {
    let mut old: Vec<ReplicaSetView> =
        sets.iter().filter(|set| !set.is_new && set.spec_replicas > 0).cloned().collect();
    old.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    let before = old.clone();
    let mut budget = total - rollout_targets.min_available() - (new.spec_replicas - new.available);
    if budget <= 0 {
        return Vec::new();
    }
    for set in &mut old {
        let unavailable = (set.spec_replicas - set.available).max(0).min(budget);
        set.spec_replicas -= unavailable;
        budget -= unavailable;
    }
    let available: i32 = sets.iter().map(|set| set.available).sum();
    let mut spare = (available - rollout_targets.min_available()).max(0);
    for set in &mut old {
        let decrease = set.spec_replicas.min(spare);
        set.spec_replicas -= decrease;
        spare -= decrease;
    }
    let changed = old.into_iter().zip(before).filter(|(set, before)| set.spec_replicas != before.spec_replicas);
    changed.map(|(set, _)| SetScale { name: set.name, replicas: set.spec_replicas }).collect()
}

/// Distributes a changed size over the active sets in proportion to their sizes.
fn scale_proportionally(rollout_targets: &RolloutTargets, sets: &[ReplicaSetView]) -> Vec<SetScale> {
    let mut active: Vec<&ReplicaSetView> = sets.iter().filter(|set| set.spec_replicas > 0).collect();
    let new = sets.iter().find(|set| set.is_new);
    if active.len() <= 1 {
        let latest = sets.iter().max_by_key(|set| (set.is_new, set.revision));
        let only = active.first().copied().or(latest);
        let scale = only.filter(|set| set.spec_replicas != rollout_targets.replicas);
        return scale
            .map(|set| SetScale { name: set.name.clone(), replicas: rollout_targets.replicas })
            .into_iter()
            .collect();
    }
    if new.is_some_and(|new| {
        new.spec_replicas == new.desired.unwrap_or(rollout_targets.replicas)
            && new.available == new.spec_replicas
            && new.desired == Some(rollout_targets.replicas)
    }) {
        let old = active.iter().filter(|set| !set.is_new);
        return old.map(|set| SetScale { name: set.name.clone(), replicas: 0 }).collect();
    }
    if rollout_targets.is_recreate {
        return Vec::new();
    }
    let total: i32 = active.iter().map(|set| set.spec_replicas).sum();
    let mut remaining = rollout_targets.max_pods() - total;
    // The largest set is first. Among equal sets, newer ones are scaled up first, and older ones are scaled down first.
    active.sort_by(|a, b| {
        let by_age = if remaining >= 0 { b.created.cmp(&a.created) } else { a.created.cmp(&b.created) };
        b.spec_replicas.cmp(&a.spec_replicas).then(by_age).then(a.name.cmp(&b.name))
    });
    let mut sizes: Vec<i32> = Vec::with_capacity(active.len());
    for set in &active {
        let previous_max = set.max.filter(|max| *max > 0).unwrap_or(total.max(1));
        let share =
            (f64::from(set.spec_replicas) * f64::from(rollout_targets.max_pods()) / f64::from(previous_max)).round();
        // Sizes are far below 2^31.
        let share = share as i32 - set.spec_replicas;
        let step = if remaining > 0 { share.clamp(0, remaining) } else { share.clamp(remaining, 0) };
        sizes.push(set.spec_replicas + step);
        remaining -= step;
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + remaining).max(0);
    }
    let scaled = active.into_iter().zip(sizes).filter(|(set, replicas)| {
        // A set with unchanged size still needs the new number of replicas in its annotation.
        set.spec_replicas != *replicas || set.desired != Some(rollout_targets.replicas)
    });
    scaled.map(|(set, replicas)| SetScale { name: set.name.clone(), replicas }).collect()
}

#[cfg(test)]
impl ReplicaSetView {
    /// A new set that has all of its pods.
    pub fn with_replicas(name: &str, replicas: i32, available: i32) -> Self {
        Self {
            name: name.to_owned(),
            created: Timestamp::default(),
            is_new: true,
            revision: 1,
            spec_replicas: replicas,
            replicas,
            ready: available,
            available,
            pods: replicas,
            desired: None,
            max: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(name: &str, created_second: i64, is_new: bool, replicas: i32, available: i32) -> ReplicaSetView {
        ReplicaSetView {
            created: Timestamp::from_second(created_second).unwrap(),
            is_new,
            revision: created_second,
            ..ReplicaSetView::with_replicas(name, replicas, available)
        }
    }

    fn rollout_targets(replicas: i32, max_surge: i32, max_unavailable: i32) -> RolloutTargets {
        RolloutTargets { replicas, is_recreate: false, is_paused: false, max_surge, max_unavailable }
    }

    #[rstest::rstest]
    #[case("25%", 10, true, 3)]
    #[case("25%", 10, false, 2)]
    #[case("100%", 3, false, 3)]
    fn percentages_are_rounded(#[case] text: &str, #[case] total: i32, #[case] round_up: bool, #[case] expected: i32) {
        assert_eq!(resolve_int_or_percent(&IntOrString::String(text.into()), total, round_up), expected);
    }

    #[test]
    fn rolling_updates_keep_the_limits_and_recreate_deletes_old_pods_first() {
        let ten_replicas = rollout_targets(10, 3, 2);
        assert_eq!(next_action(&ten_replicas, &[]).create, Some(10));
        assert_eq!(next_action(&ten_replicas, &[set("old", 1, false, 10, 10)]).create, Some(3));
        let both = [set("old", 1, false, 10, 10), set("new", 2, true, 3, 0)];
        assert_eq!(next_action(&ten_replicas, &both).scale, [SetScale { name: "old".into(), replicas: 8 }]);
        let broken = [set("old", 1, false, 10, 6), set("new", 2, true, 3, 0)];
        assert_eq!(next_action(&ten_replicas, &broken).scale, [SetScale { name: "old".into(), replicas: 8 }]);

        let recreate = RolloutTargets { is_recreate: true, ..ten_replicas };
        assert_eq!(next_action(&recreate, &both[..1]).scale, [SetScale { name: "old".into(), replicas: 0 }]);
        let mut terminating = set("old", 1, false, 0, 0);
        terminating.pods = 1;
        assert!(next_action(&recreate, &[terminating.clone()]).is_none());
        terminating.pods = 0;
        assert_eq!(next_action(&recreate, &[terminating]).create, Some(10));
    }

    #[test]
    fn resizes_during_a_rollout_are_proportional() {
        let mut sets = [set("old", 1, false, 8, 8), set("new", 2, true, 5, 5)];
        for set in &mut sets {
            (set.desired, set.max) = (Some(10), Some(13));
        }
        let scale = next_action(&rollout_targets(20, 5, 5), &sets).scale;
        assert_eq!(scale.iter().map(|scale| scale.replicas).sum::<i32>(), 25);
        let paused = RolloutTargets { is_paused: true, ..rollout_targets(4, 1, 1) };
        assert_eq!(
            next_action(&paused, &[set("only", 1, false, 2, 2)]).scale,
            [SetScale { name: "only".into(), replicas: 4 }]
        );
    }

    proptest! {
        /// A rollout ends with only the new set, never above the surge and never below the required availability.
        #[test]
        fn rollouts_stay_within_their_limits(replicas in 0i32..30, old in 0i32..30, max_surge in 0i32..5, max_unavailable in 0i32..5) {
            let max_unavailable = if max_surge == 0 && max_unavailable == 0 { 1 } else { max_unavailable }.min(replicas.max(1));
            let rollout_targets = rollout_targets(replicas, max_surge, max_unavailable.min(replicas));
            let rollout_targets = if rollout_targets.max_surge == 0 && rollout_targets.max_unavailable == 0 { RolloutTargets { max_surge: 1, ..rollout_targets } } else { rollout_targets };
            let mut sets = vec![set("old", 1, false, old.min(replicas), old.min(replicas))];
            for _ in 0..200 {
                let action = next_action(&rollout_targets, &sets);
                if let Some(size) = action.create {
                    sets.push(set("new", 2, true, size, 0));
                }
                for scale in &action.scale {
                    let set = sets.iter_mut().find(|set| set.name == scale.name).unwrap();
                    set.spec_replicas = scale.replicas;
                    set.available = set.available.min(scale.replicas);
                }
                let total: i32 = sets.iter().map(|set| set.spec_replicas).sum();
                prop_assert!(total <= replicas + rollout_targets.max_surge);
                let available: i32 = sets.iter().map(|set| set.available).sum();
                prop_assert!(available >= rollout_targets.min_available().min(old.min(replicas)));
                if action.is_none() {
                    // One pod becomes available per step.
                    match sets.iter_mut().find(|set| set.available < set.spec_replicas) {
                        Some(set) => set.available += 1,
                        None => break,
                    }
                }
            }
            prop_assert_eq!(sets.iter().find(|set| set.is_new).unwrap().spec_replicas, replicas);
            prop_assert_eq!(sets[0].spec_replicas, 0);
        }
    }
}
