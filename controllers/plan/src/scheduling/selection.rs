//! Selection of feasible clusters by spread constraints over clusters and regions.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crowsnest_api::policy::{
    Placement, ReplicaDivisionPreference, ReplicaSchedulingType, SpreadConstraint, SpreadFieldValue,
};
use crowsnest_api::work::TargetCluster;

use super::groups::{self, Bounds, Group};
use super::{ClusterFacts, ScheduleError};

/// A cluster that passed all filters.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub facts: &'a ClusterFacts,
    /// Index in the list of clusters.
    pub index: usize,
    /// The binding's current target in this cluster.
    pub current: Option<&'a TargetCluster>,
    pub score: i64,
    /// 0 for the affinity itself, then 1, 2, … for its overflow tiers.
    pub overflow_order: i32,
    /// Number of additional replicas that fit.
    pub allocatable: i32,
    /// `allocatable` plus the current replicas.
    pub available: i64,
}

impl<'a> Candidate<'a> {
    pub fn name(&self) -> &'a str {
        self.facts.name()
    }

    fn region(&self) -> &'a str {
        &self.facts.cluster.spec.region
    }
}

/// Sorts by preference: overflow tier, score, available replicas, name.
pub fn sort(candidates: &mut [Candidate<'_>]) {
    candidates.sort_by(|a, b| {
        let key = |candidate: &Candidate<'_>| {
            (candidate.overflow_order, Reverse(candidate.score), Reverse(candidate.available))
        };
        key(a).cmp(&key(b)).then_with(|| a.name().cmp(b.name()))
    });
}

/// Scheduling type of a placement. `Duplicated` by default.
pub fn scheduling_type(placement: &Placement) -> ReplicaSchedulingType {
    let strategy = placement.replica_scheduling.as_ref();
    strategy.and_then(|strategy| strategy.replica_scheduling_type.clone()).unwrap_or(ReplicaSchedulingType::Duplicated)
}

/// Replicas for which the selected clusters must have capacity.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Required capacity in total. A component set counts as one.
    pub capacity: i32,
    /// `spec.replicas`.
    pub replicas: i32,
}

/// Reduces sorted candidates to those selected by the spread constraints.
pub fn select<'a>(
    placement: &Placement,
    candidates: Vec<Candidate<'a>>,
    demand: Demand,
) -> Result<Vec<Candidate<'a>>, ScheduleError> {
    if placement.spread_constraints.is_empty() || ignores_constraints(placement) {
        return Ok(candidates);
    }
    let find_constraint = |field: SpreadFieldValue| {
        placement.spread_constraints.iter().rev().find(|constraint| constraint.spread_by_field.as_ref() == Some(&field))
    };
    let cluster = find_constraint(SpreadFieldValue::Cluster);
    match (find_constraint(SpreadFieldValue::Region), cluster) {
        (Some(region), cluster) => select_by_region(placement, candidates, region, cluster, demand.replicas),
        (None, Some(cluster)) => {
            let duplicated = scheduling_type(placement) == ReplicaSchedulingType::Duplicated;
            select_by_cluster(candidates, cluster, (!duplicated).then_some(demand.capacity))
        }
        (None, None) => Err(ScheduleError::Select("just support cluster and region spread constraint".to_owned())),
    }
}

/// True for static weights, which name their clusters, so that constraints do not apply.
fn ignores_constraints(placement: &Placement) -> bool {
    let Some(strategy) = &placement.replica_scheduling else { return false };
    strategy.replica_scheduling_type == Some(ReplicaSchedulingType::Divided)
        && strategy.replica_division_preference == Some(ReplicaDivisionPreference::Weighted)
        && strategy
            .weight_preference
            .as_ref()
            .is_none_or(|preference| !preference.static_weight_list.is_empty() && preference.dynamic_weight.is_none())
}

/// Number of groups of a constraint. A negative number counts as 0.
fn group_count(groups: i64) -> usize {
    usize::try_from(groups).unwrap_or_default()
}

/// Selects the first clusters in order. If they have less than the required `capacity`, clusters are exchanged for
/// larger ones, beginning with the last.
fn select_by_cluster<'a>(
    mut candidates: Vec<Candidate<'a>>,
    constraint: &SpreadConstraint,
    capacity: Option<i32>,
) -> Result<Vec<Candidate<'a>>, ScheduleError> {
    if candidates.len() < group_count(constraint.min_groups) {
        let message = "the number of feasible clusters is less than spreadConstraint.MinGroups";
        return Err(ScheduleError::Select(message.to_owned()));
    }
    let max_selected = candidates.len().min(group_count(constraint.max_groups));
    let mut rest = candidates.split_off(max_selected);
    let Some(capacity) = capacity.map(i64::from) else { return Ok(candidates) };
    let enough = |chosen: &[Candidate<'_>]| chosen.iter().map(|candidate| candidate.available).sum::<i64>() >= capacity;
    for index in (0..max_selected).rev() {
        if enough(&candidates) {
            break;
        }
        if let Some(larger) = find_larger(&rest, candidates[index].available) {
            std::mem::swap(&mut candidates[index], &mut rest[larger]);
        }
    }
    if candidates.is_empty() || !enough(&candidates) {
        return Err(ScheduleError::Select(format!("no enough resource when selecting {max_selected} clusters")));
    }
    Ok(candidates)
}

/// Index of the first cluster with the most available replicas, if more than `threshold`.
fn find_larger(candidates: &[Candidate<'_>], threshold: i64) -> Option<usize> {
    let mut best = None;
    let mut max_available = threshold;
    for (index, candidate) in candidates.iter().enumerate() {
        if candidate.available > max_available {
            (best, max_available) = (Some(index), candidate.available);
        }
    }
    best
}

/// Selects the best regions, then the best cluster of each, then further clusters of these regions up to the maximum.
fn select_by_region<'a>(
    placement: &Placement,
    candidates: Vec<Candidate<'a>>,
    region: &SpreadConstraint,
    cluster: Option<&SpreadConstraint>,
    replicas: i32,
) -> Result<Vec<Candidate<'a>>, ScheduleError> {
    let mut regions: BTreeMap<&str, Vec<Candidate<'a>>> = BTreeMap::new();
    for candidate in candidates.into_iter().filter(|candidate| !candidate.region().is_empty()) {
        regions.entry(candidate.region()).or_default().push(candidate);
    }
    if regions.len() < group_count(region.min_groups) {
        let message = "the number of feasible region is less than spreadConstraint.MinGroups";
        return Err(ScheduleError::Select(message.to_owned()));
    }
    let cluster_minimum = cluster.map_or(0, |constraint| group_count(constraint.min_groups));
    let weight = |clusters: &[Candidate<'_>]| match scheduling_type(placement) {
        ReplicaSchedulingType::Duplicated => duplicated_weight(clusters, replicas),
        _ => divided_weight(clusters, replicas, group_count(region.min_groups), cluster_minimum),
    };
    let groups = regions
        .iter()
        .map(|(name, clusters)| Group { name: (*name).to_owned(), clusters: clusters.len(), weight: weight(clusters) })
        .collect();
    let bounds = Bounds {
        min_groups: group_count(region.min_groups),
        max_groups: group_count(region.max_groups),
        min_clusters: cluster_minimum,
    };
    let chosen = groups::select(groups, bounds);
    if chosen.is_empty() {
        let message = "the number of clusters is less than the cluster spreadConstraint.MinGroups";
        return Err(ScheduleError::Select(message.to_owned()));
    }
    let mut selected = Vec::new();
    let mut rest = Vec::new();
    for clusters in chosen.iter().filter_map(|name| regions.remove(name.as_str())) {
        let mut clusters = clusters.into_iter();
        selected.extend(clusters.next());
        rest.extend(clusters);
    }
    let maximum = cluster.map_or(0, |constraint| group_count(constraint.max_groups));
    let count = (selected.len() + rest.len()).min(maximum);
    sort(&mut rest);
    let missing = count.saturating_sub(selected.len());
    selected.extend(rest.into_iter().take(missing));
    Ok(selected)
}

/// Factor by which a cluster or replica weighs more than a point of score in the weight of a region.
const WEIGHT_UNIT: i64 = 1000;

/// Weight of a region for duplicated replicas: the number of its clusters with capacity for all replicas, and the mean
/// score of these.
fn duplicated_weight(clusters: &[Candidate<'_>], replicas: i32) -> i64 {
    let scores: Vec<i64> = clusters
        .iter()
        .filter(|candidate| candidate.available >= i64::from(replicas))
        .map(|candidate| candidate.score)
        .collect();
    match count(scores.len()) {
        0 => 0,
        valid => valid * WEIGHT_UNIT + scores.iter().sum::<i64>() / valid,
    }
}

/// Weight of a region for divided replicas: the part of its share of the replicas that fits into it, and the mean score
/// of the clusters needed for that part.
fn divided_weight(clusters: &[Candidate<'_>], replicas: i32, min_regions: usize, min_clusters: usize) -> i64 {
    let share = match count(min_regions) {
        // Go divides by zero in floating point here and gets +Inf, which no region reaches.
        0 => i64::MAX,
        regions => i64::from(replicas).div_euclid(regions) + i64::from(i64::from(replicas).rem_euclid(regions) > 0),
    };
    let min_used = min_clusters.max(min_regions);
    let (mut capacity, mut score, mut used) = (0_i64, 0_i64, 0_usize);
    for candidate in clusters {
        capacity += candidate.available;
        score += candidate.score;
        used += 1;
        if used >= min_used && capacity >= share {
            break;
        }
    }
    if capacity < share {
        capacity * WEIGHT_UNIT + score / count(clusters.len()).max(1)
    } else {
        share * WEIGHT_UNIT + score / count(used).max(1)
    }
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Case {
        name: String,
        candidates: Vec<Fit>,
        placement: Placement,
        replicas: i32,
        expected: String,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fit {
        name: String,
        region: String,
        score: i64,
        available: i64,
    }

    #[test]
    fn constraints_select_clusters() {
        let cases: Vec<Case> = serde_saphyr::from_str(include_str!("fixtures/selection.yaml")).expect("cases");
        for case in cases {
            let facts = |fit: &Fit| {
                let metadata = serde_json::json!({"name": fit.name});
                let spec = serde_json::json!({"syncMode": "Push", "region": fit.region});
                let cluster = serde_json::json!({"metadata": metadata, "spec": spec});
                ClusterFacts::new(serde_json::from_value(cluster).expect("a cluster"))
            };
            let facts: Vec<ClusterFacts> = case.candidates.iter().map(facts).collect();
            let candidate = |(index, (fit, facts))| {
                let Fit { score, available, .. } = fit;
                Candidate { facts, index, current: None, score, overflow_order: 0, allocatable: 0, available }
            };
            let candidates: Vec<Candidate<'_>> =
                case.candidates.into_iter().zip(&facts).enumerate().map(candidate).collect();
            let demand = Demand { capacity: case.replicas, replicas: case.replicas };
            let result = match select(&case.placement, candidates, demand) {
                Ok(chosen) => chosen.into_iter().map(|candidate| candidate.name()).collect::<Vec<_>>().join(" "),
                Err(error) => error.to_string(),
            };
            assert_eq!(result, case.expected, "{}", case.name);
        }
    }
}
