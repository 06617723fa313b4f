//! Replica assignment: number of replicas per selected cluster.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crowsnest_api::policy::{ReplicaDivisionPreference, ReplicaSchedulingType, StaticClusterWeight};
use crowsnest_api::work::{ResourceBindingSpec, TargetCluster, TargetComponent};

use super::ScheduleError;
use super::selection::{Candidate, scheduling_type};
use super::webster::{TieBreak, divide};
use crate::selector::cluster_matches;

/// Treatment of the previous assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignmentMode {
    /// It is kept as far as possible.
    Steady,
    /// It is discarded, because rescheduling was requested.
    Fresh,
}

enum Strategy<'a> {
    Duplicated,
    StaticWeight(Option<&'a [StaticClusterWeight]>),
    DynamicWeight,
    Aggregated,
}

/// Input of the assignment, apart from the candidates.
pub struct Assignment<'a> {
    pub spec: &'a ResourceBindingSpec,
    pub mode: AssignmentMode,
    /// True if the active affinity term has overflow tiers, which are filled in order.
    pub overflows: bool,
    /// True if several components are placed as one set in one cluster, with their replicas recorded in the result.
    pub records_components: bool,
}

fn target(name: &str, replicas: i32) -> TargetCluster {
    TargetCluster { name: name.to_owned(), replicas, ..TargetCluster::default() }
}

impl Assignment<'_> {
    /// Assigns replicas to the candidates. Clusters without replicas are omitted.
    pub fn assign(&self, candidates: &[Candidate<'_>]) -> Result<Vec<TargetCluster>, ScheduleError> {
        if candidates.is_empty() {
            return Err(ScheduleError::Assign("no clusters available to schedule".to_owned()));
        }
        let has_replicas = self.spec.replicas > 0 || self.spec.replica_requirements.is_some();
        if !has_replicas || self.spec.components.len() > 1 {
            return Ok(candidates.iter().map(|candidate| self.without_replicas(candidate.name())).collect());
        }
        if self.overflows {
            return self.assign_tiers(candidates);
        }
        self.assign_replicas(candidates, self.spec.replicas)
    }

    fn without_replicas(&self, name: &str) -> TargetCluster {
        let mut target = target(name, 0);
        if self.records_components {
            let component = |component: &crowsnest_api::work::Component| TargetComponent {
                name: component.name.clone(),
                replicas: component.replicas,
            };
            target.components = self.spec.components.iter().map(component).collect();
        }
        target
    }

    /// Fills each tier to its capacity before the next one.
    fn assign_tiers(&self, candidates: &[Candidate<'_>]) -> Result<Vec<TargetCluster>, ScheduleError> {
        let mut tiers: BTreeMap<i32, Vec<Candidate<'_>>> = BTreeMap::new();
        for candidate in candidates {
            tiers.entry(candidate.overflow_order).or_default().push(*candidate);
        }
        let mut remaining = self.spec.replicas;
        let mut targets = Vec::new();
        for tier in tiers.values() {
            let capacity: i64 = tier.iter().map(|candidate| candidate.available).sum();
            let share = i32::try_from(capacity).map_or(remaining, |capacity| remaining.min(capacity));
            targets.extend(self.assign_replicas(tier, share)?);
            remaining -= share;
            if remaining <= 0 {
                return Ok(targets);
            }
        }
        let message = "Clusters available replicas are not enough to schedule.";
        Err(ScheduleError::Unschedulable(message.to_owned()))
    }

    fn strategy(&self) -> Result<Strategy<'_>, ScheduleError> {
        let Some(placement) = &self.spec.placement else { return Ok(Strategy::Duplicated) };
        if scheduling_type(placement) == ReplicaSchedulingType::Duplicated {
            return Ok(Strategy::Duplicated);
        }
        let strategy = placement.replica_scheduling.as_ref();
        let preference = strategy.and_then(|strategy| strategy.replica_division_preference.as_ref());
        match preference {
            Some(ReplicaDivisionPreference::Aggregated) => Ok(Strategy::Aggregated),
            Some(ReplicaDivisionPreference::Weighted) => {
                let weights = strategy.and_then(|strategy| strategy.weight_preference.as_ref());
                match weights {
                    Some(weights) if weights.dynamic_weight.is_some() => Ok(Strategy::DynamicWeight),
                    weights => Ok(Strategy::StaticWeight(weights.map(|weights| weights.static_weight_list.as_slice()))),
                }
            }
            other => Err(ScheduleError::Assign(format!(
                "unsupported replica scheduling strategy, replicaSchedulingType: {}, replicaDivisionPreference: {}, \
                 please try another scheduling strategy",
                scheduling_type(placement),
                other.map_or("", ReplicaDivisionPreference::as_str),
            ))),
        }
    }

    fn assign_replicas(
        &self,
        candidates: &[Candidate<'_>],
        replicas: i32,
    ) -> Result<Vec<TargetCluster>, ScheduleError> {
        let mut targets = match self.strategy()? {
            Strategy::Duplicated => candidates.iter().map(|candidate| target(candidate.name(), replicas)).collect(),
            Strategy::StaticWeight(weights) => self.divide_replicas(replicas, static_votes(candidates, weights)),
            Strategy::DynamicWeight => self.divide_dynamically(candidates, replicas, false)?,
            Strategy::Aggregated => self.divide_dynamically(candidates, replicas, true)?,
        };
        targets.retain(|target| target.replicas > 0);
        Ok(targets)
    }

    fn divide_replicas<'n>(
        &self,
        replicas: i32,
        votes: impl IntoIterator<Item = (&'n str, i64)>,
    ) -> Vec<TargetCluster> {
        let tie_break = TieBreak::from_uid(&self.spec.resource.uid);
        divide(replicas, votes, tie_break).into_iter().map(|(name, seats)| target(name, seats)).collect()
    }

    /// Divides by available replicas. `Steady` scaling up adds to the existing replicas and scaling down reduces them
    /// proportionally; `Fresh` divides all replicas again.
    fn divide_dynamically(
        &self,
        candidates: &[Candidate<'_>],
        replicas: i32,
        is_aggregated: bool,
    ) -> Result<Vec<TargetCluster>, ScheduleError> {
        let mut names: Vec<&str> =
            candidates.iter().filter(|candidate| candidate.current.is_some()).map(Candidate::name).collect();
        names.sort_unstable();
        let is_candidate = |target: &&TargetCluster| names.binary_search(&target.name.as_str()).is_ok();
        let scheduled: Vec<TargetCluster> = self.spec.clusters.iter().filter(is_candidate).cloned().collect();
        // Users can write these numbers, so their sum may exceed an i32.
        let assigned = scheduled.iter().fold(0_i32, |sum, target| sum.saturating_add(target.replicas));
        let current_replicas = |candidate: &Candidate<'_>| candidate.current.map_or(0, |current| current.replicas);
        let capacity = |extra: &dyn Fn(&Candidate<'_>) -> i32| -> Vec<(&str, i32)> {
            let capacity = |candidate: &Candidate<'_>| candidate.allocatable.saturating_add(extra(candidate));
            candidates.iter().map(|candidate| (candidate.facts.name(), capacity(candidate))).collect()
        };
        let (failure, weights, missing, keep) = match self.mode {
            AssignmentMode::Fresh => ("failed to do fresh scale", capacity(&current_replicas), replicas, Vec::new()),
            AssignmentMode::Steady if assigned > replicas => {
                let weights = scheduled.iter().map(|target| (target.name.as_str(), target.replicas)).collect();
                ("failed to scale down", weights, replicas, Vec::new())
            }
            AssignmentMode::Steady if assigned < replicas => {
                ("failed to scale up", capacity(&|_| 0), replicas - assigned, scheduled.clone())
            }
            AssignmentMode::Steady => return Ok(scheduled),
        };
        let mut weights = weights;
        weights.sort_by_key(|(_, replicas)| Reverse(*replicas));
        let total: i64 = weights.iter().map(|(_, replicas)| i64::from(*replicas)).sum();
        if total < i64::from(missing) {
            let message = format!("{failure}: Clusters available replicas {total} are not enough to schedule.");
            return Err(ScheduleError::Unschedulable(message));
        }
        if is_aggregated {
            weights = shortest_prefix(weights, missing, &keep);
        }
        let votes = weights.iter().map(|(name, replicas)| (*name, i64::from(*replicas)));
        Ok(merge_targets(keep, self.divide_replicas(missing, votes)))
    }
}

/// Static weight per cluster: the highest of the rules that match it. Without any match, all clusters have equal
/// weight.
fn static_votes<'a>(candidates: &[Candidate<'a>], weights: Option<&[StaticClusterWeight]>) -> Vec<(&'a str, i64)> {
    let rules = weights.unwrap_or_default();
    let weight = |candidate: &Candidate<'_>| {
        let matching = rules.iter().filter(|rule| cluster_matches(&candidate.facts.cluster, &rule.target_cluster));
        matching.map(|rule| rule.weight).max().filter(|weight| *weight > 0)
    };
    let votes: Vec<_> =
        candidates.iter().filter_map(|candidate| Some((candidate.name(), weight(candidate)?))).collect();
    if votes.is_empty() { candidates.iter().map(|candidate| (candidate.name(), 1)).collect() } else { votes }
}

/// The fewest clusters, in order, with capacity for `missing` replicas. Clusters that already have replicas (`keep`)
/// come first.
fn shortest_prefix<'n>(weights: Vec<(&'n str, i32)>, missing: i32, keep: &[TargetCluster]) -> Vec<(&'n str, i32)> {
    let has = |name: &str| keep.iter().any(|target| target.name == name && target.replicas > 0);
    let (mut ordered, others): (Vec<_>, Vec<_>) = weights.into_iter().partition(|(name, _)| has(name));
    ordered.extend(others);
    let mut sum = 0_i64;
    let last_index = ordered.iter().position(|(_, replicas)| {
        sum += i64::from(*replicas);
        sum >= i64::from(missing)
    });
    ordered.truncate(last_index.map_or(ordered.len(), |last| last + 1));
    ordered
}

/// Adds the previous replicas (`keep`) to the new ones (`added`) per cluster. Clusters without new replicas are
/// appended.
fn merge_targets(keep: Vec<TargetCluster>, mut added: Vec<TargetCluster>) -> Vec<TargetCluster> {
    let new = added.len();
    for old in keep {
        match added[..new].binary_search_by(|new| new.name.cmp(&old.name)) {
            Ok(index) => added[index].replicas += old.replicas,
            Err(_) => added.push(target(&old.name, old.replicas)),
        }
    }
    added
}
