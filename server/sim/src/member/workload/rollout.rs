//! Rollout of a Deployment: distribution of replicas over its ReplicaSets, with Kubernetes' arithmetic. Pure.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DeploymentSpec, DeploymentStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A ReplicaSet of a Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetView {
    pub name: String,
    pub created: Timestamp,
    /// True if it has the Deployment's current template.
    pub is_new: bool,
    pub revision: i64,
    /// `spec.replicas`
    pub wanted: i32,
    pub replicas: i32,
    pub ready: i32,
    pub available: i32,
    /// Existing pods, including terminating ones.
    pub pods: i32,
    /// `deployment.kubernetes.io/desired-replicas` and `/max-replicas` at its last scaling.
    pub desired: Option<i32>,
    pub max: Option<i32>,
}

/// Desired state of a Deployment, with percentages resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutTargets {
    pub replicas: i32,
    pub recreate: bool,
    pub paused: bool,
    pub surge: i32,
    pub unavailable: i32,
}

impl RolloutTargets {
    pub fn new(spec: &DeploymentSpec) -> Self {
        let replicas = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.clone().unwrap_or_default();
        let recreate = strategy.type_.as_deref() == Some("Recreate");
        let (surge, unavailable) = if recreate { (0, replicas) } else { bounds(&strategy, replicas) };
        Self { replicas, recreate, paused: spec.paused.unwrap_or_default(), surge, unavailable }
    }

    /// Most pods at any time.
    pub fn max(&self) -> i32 {
        if self.replicas == 0 { 0 } else { self.replicas + self.surge }
    }

    /// Fewest available pods at any time.
    pub fn min_available(&self) -> i32 {
        self.replicas - self.unavailable
    }
}

fn bounds(strategy: &DeploymentStrategy, replicas: i32) -> (i32, i32) {
    let rolling = strategy.rolling_update.clone().unwrap_or_default();
    let quarter = || IntOrString::String("25%".into());
    let surge = resolve(&rolling.max_surge.unwrap_or_else(quarter), replicas, true);
    let unavailable = resolve(&rolling.max_unavailable.unwrap_or_else(quarter), replicas, false);
    // With both zero, no progress would be possible.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    (surge, unavailable.min(replicas))
}

/// Resolves an integer or a percentage of `total`, rounded up or down.
pub fn resolve(value: &IntOrString, total: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(count) => (*count).max(0),
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or_default();
            let product = percent * i64::from(total);
            let share = if up { (product + 99).div_euclid(100) } else { product.div_euclid(100) };
            i32::try_from(share).unwrap_or(i32::MAX).max(0)
        }
    }
}

/// A new size of a ReplicaSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    pub name: String,
    pub to: i32,
}

/// The next action of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Move {
    /// Create the ReplicaSet of the current template with this size.
    pub create: Option<i32>,
    pub scale: Vec<Scale>,
}

impl Move {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Computes the next action. The rollout is complete when there is none and all pods are available.
pub fn next_move(rollout_targets: &RolloutTargets, sets: &[SetView]) -> Move {
    let active = || sets.iter().filter(|set| set.wanted > 0);
    let resized = active().any(|set| set.desired.is_some_and(|desired| desired != rollout_targets.replicas));
    if rollout_targets.paused || resized {
        return Move { create: None, scale: proportional(rollout_targets, sets) };
    }
    if rollout_targets.recreate { recreate(rollout_targets, sets) } else { roll(rollout_targets, sets) }
}

fn recreate(rollout_targets: &RolloutTargets, sets: &[SetView]) -> Move {
    let old: Vec<_> = sets.iter().filter(|set| !set.is_new).collect();
    let shrink: Vec<_> =
        old.iter().filter(|set| set.wanted > 0).map(|set| Scale { name: set.name.clone(), to: 0 }).collect();
    if !shrink.is_empty() {
        return Move { create: None, scale: shrink };
    }
    if old.iter().any(|set| set.pods > 0) {
        return Move::default();
    }
    match sets.iter().find(|set| set.is_new) {
        None => Move { create: Some(rollout_targets.replicas), scale: Vec::new() },
        Some(set) if set.wanted != rollout_targets.replicas => {
            Move { create: None, scale: vec![Scale { name: set.name.clone(), to: rollout_targets.replicas }] }
        }
        Some(_) => Move::default(),
    }
}

fn roll(rollout_targets: &RolloutTargets, sets: &[SetView]) -> Move {
    let total: i32 = sets.iter().map(|set| set.wanted).sum();
    let grown = |from: i32| {
        if from >= rollout_targets.replicas {
            return rollout_targets.replicas;
        }
        let room = (rollout_targets.replicas + rollout_targets.surge - total).max(0);
        from + room.min(rollout_targets.replicas - from)
    };
    let Some(new) = sets.iter().find(|set| set.is_new) else {
        return Move { create: Some(grown(0)), scale: Vec::new() };
    };
    let to = grown(new.wanted);
    if to != new.wanted {
        return Move { create: None, scale: vec![Scale { name: new.name.clone(), to }] };
    }
    Move { create: None, scale: shrink_old(rollout_targets, sets, new, total) }
}

/// Scales down old ReplicaSets as far as availability allows: unavailable replicas first, then the oldest sets.
fn shrink_old(rollout_targets: &RolloutTargets, sets: &[SetView], new: &SetView, total: i32) -> Vec<Scale> {
    let mut old: Vec<SetView> = sets.iter().filter(|set| !set.is_new && set.wanted > 0).cloned().collect();
    old.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    let before = old.clone();
    let mut budget = total - rollout_targets.min_available() - (new.wanted - new.available);
    if budget <= 0 {
        return Vec::new();
    }
    for set in &mut old {
        let broken = (set.wanted - set.available).max(0).min(budget);
        set.wanted -= broken;
        budget -= broken;
    }
    let available: i32 = sets.iter().map(|set| set.available).sum();
    let mut spare = (available - rollout_targets.min_available()).max(0);
    for set in &mut old {
        let less = set.wanted.min(spare);
        set.wanted -= less;
        spare -= less;
    }
    let changed = old.into_iter().zip(before).filter(|(set, was)| set.wanted != was.wanted);
    changed.map(|(set, _)| Scale { name: set.name, to: set.wanted }).collect()
}

/// Distributes a changed size over the active sets in proportion to their sizes.
fn proportional(rollout_targets: &RolloutTargets, sets: &[SetView]) -> Vec<Scale> {
    let mut active: Vec<&SetView> = sets.iter().filter(|set| set.wanted > 0).collect();
    let new = sets.iter().find(|set| set.is_new);
    if active.len() <= 1 {
        let latest = sets.iter().max_by_key(|set| (set.is_new, set.revision));
        let only = active.first().copied().or(latest);
        let scale = only.filter(|set| set.wanted != rollout_targets.replicas);
        return scale.map(|set| Scale { name: set.name.clone(), to: rollout_targets.replicas }).into_iter().collect();
    }
    if new.is_some_and(|new| {
        new.wanted == new.desired.unwrap_or(rollout_targets.replicas)
            && new.available == new.wanted
            && new.desired == Some(rollout_targets.replicas)
    }) {
        let old = active.iter().filter(|set| !set.is_new);
        return old.map(|set| Scale { name: set.name.clone(), to: 0 }).collect();
    }
    if rollout_targets.recreate {
        return Vec::new();
    }
    let total: i32 = active.iter().map(|set| set.wanted).sum();
    let mut left = rollout_targets.max() - total;
    // Scaling up prefers newer sets, scaling down older ones; the largest set comes first.
    active.sort_by(|a, b| {
        let by_age = if left >= 0 { b.created.cmp(&a.created) } else { a.created.cmp(&b.created) };
        b.wanted.cmp(&a.wanted).then(by_age).then(a.name.cmp(&b.name))
    });
    let mut sizes: Vec<i32> = Vec::with_capacity(active.len());
    for set in &active {
        let was_max = set.max.filter(|max| *max > 0).unwrap_or(total.max(1));
        let share = (f64::from(set.wanted) * f64::from(rollout_targets.max()) / f64::from(was_max)).round();
        // Sizes are far below 2^31.
        let share = share as i32 - set.wanted;
        let step = if left > 0 { share.clamp(0, left) } else { share.clamp(left, 0) };
        sizes.push(set.wanted + step);
        left -= step;
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + left).max(0);
    }
    let scaled = active.into_iter().zip(sizes).filter(|(set, to)| {
        // A set with unchanged size also needs the new total in its annotation.
        set.wanted != *to || set.desired != Some(rollout_targets.replicas)
    });
    scaled.map(|(set, to)| Scale { name: set.name.clone(), to }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(name: &str, age: i64, is_new: bool, wanted: i32, available: i32) -> SetView {
        SetView {
            name: name.into(),
            created: Timestamp::from_second(age).unwrap(),
            is_new,
            revision: age,
            wanted,
            replicas: wanted,
            ready: available,
            available,
            pods: wanted,
            desired: None,
            max: None,
        }
    }

    fn rollout_targets(replicas: i32, surge: i32, unavailable: i32) -> RolloutTargets {
        RolloutTargets { replicas, recreate: false, paused: false, surge, unavailable }
    }

    #[rstest::rstest]
    #[case("25%", 10, true, 3)]
    #[case("25%", 10, false, 2)]
    #[case("100%", 3, false, 3)]
    fn percentages(#[case] text: &str, #[case] total: i32, #[case] up: bool, #[case] expected: i32) {
        assert_eq!(resolve(&IntOrString::String(text.into()), total, up), expected);
    }

    #[test]
    fn steps_of_each_strategy() {
        let rollout_targets10 = rollout_targets(10, 3, 2);
        assert_eq!(next_move(&rollout_targets10, &[]).create, Some(10));
        assert_eq!(next_move(&rollout_targets10, &[set("old", 1, false, 10, 10)]).create, Some(3));
        let both = [set("old", 1, false, 10, 10), set("new", 2, true, 3, 0)];
        assert_eq!(next_move(&rollout_targets10, &both).scale, [Scale { name: "old".into(), to: 8 }]);
        let broken = [set("old", 1, false, 10, 6), set("new", 2, true, 3, 0)];
        assert_eq!(next_move(&rollout_targets10, &broken).scale, [Scale { name: "old".into(), to: 8 }]);

        let recreate = RolloutTargets { recreate: true, ..rollout_targets10 };
        assert_eq!(next_move(&recreate, &both[..1]).scale, [Scale { name: "old".into(), to: 0 }]);
        let mut ending = set("old", 1, false, 0, 0);
        ending.pods = 1;
        assert!(next_move(&recreate, &[ending.clone()]).is_none());
        ending.pods = 0;
        assert_eq!(next_move(&recreate, &[ending]).create, Some(10));
    }

    #[test]
    fn resizes_during_a_rollout_are_proportional() {
        let mut sets = [set("old", 1, false, 8, 8), set("new", 2, true, 5, 5)];
        for set in &mut sets {
            (set.desired, set.max) = (Some(10), Some(13));
        }
        let scale = next_move(&rollout_targets(20, 5, 5), &sets).scale;
        assert_eq!(scale.iter().map(|scale| scale.to).sum::<i32>(), 25);
        let paused = RolloutTargets { paused: true, ..rollout_targets(4, 1, 1) };
        assert_eq!(next_move(&paused, &[set("only", 1, false, 2, 2)]).scale, [Scale { name: "only".into(), to: 4 }]);
    }

    proptest! {
        /// A rollout ends with only the new set, never above the surge and never below the required availability.
        #[test]
        fn rollouts_stay_within_their_limits(replicas in 0i32..30, old in 0i32..30, surge in 0i32..5, down in 0i32..5) {
            let down = if surge == 0 && down == 0 { 1 } else { down }.min(replicas.max(1));
            let rollout_targets = rollout_targets(replicas, surge, down.min(replicas));
            let rollout_targets = if rollout_targets.surge == 0 && rollout_targets.unavailable == 0 { RolloutTargets { surge: 1, ..rollout_targets } } else { rollout_targets };
            let mut sets = vec![set("old", 1, false, old.min(replicas), old.min(replicas))];
            for _ in 0..200 {
                let step = next_move(&rollout_targets, &sets);
                if let Some(size) = step.create {
                    sets.push(set("new", 2, true, size, 0));
                }
                for scale in &step.scale {
                    let set = sets.iter_mut().find(|set| set.name == scale.name).unwrap();
                    set.wanted = scale.to;
                    set.available = set.available.min(scale.to);
                }
                let total: i32 = sets.iter().map(|set| set.wanted).sum();
                prop_assert!(total <= replicas + rollout_targets.surge);
                let available: i32 = sets.iter().map(|set| set.available).sum();
                prop_assert!(available >= rollout_targets.min_available().min(old.min(replicas)));
                if step.is_none() {
                    // One pod becomes available per step.
                    match sets.iter_mut().find(|set| set.available < set.wanted) {
                        Some(set) => set.available += 1,
                        None => break,
                    }
                }
            }
            prop_assert_eq!(sets.iter().find(|set| set.is_new).unwrap().wanted, replicas);
            prop_assert_eq!(sets[0].wanted, 0);
        }
    }
}
