//! Scheduling: clusters and replicas of a binding.
//!
//! [`plan`] makes the whole decision: is one needed ([`Trigger`]), which affinity term is used, which clusters pass the
//! filters, and how they are scored, selected and assigned replicas. It is a pure function of a [`SchedulingContext`]
//! and a [`Binding`]; the scheduler executes the [`Plan`], and the [`Report`] explains it.

mod assignment;
mod changes;
mod filters;
mod groups;
mod observer;
mod plugins;
mod report;
mod selection;
#[cfg(test)]
mod tests;
mod webster;

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{ClusterAffinityTerm, Placement, SpreadFieldValue};
use crowsnest_api::work::{Component, ReplicaRequirements, ResourceBindingSpec, ResourceBindingStatus, TargetCluster};

pub use assignment::AssignmentMode;
pub use changes::{is_affected_by_cluster, is_placement_changed, is_reschedule_required};
pub use observer::{NoopObserver, Observer, Step};
pub use plugins::{Plugin, Plugins, UnknownPlugin};
pub use report::{ClusterReport, Rejection, Report, TermReport, Trigger};
pub use selection::scheduling_type;
pub use webster::{TieBreak, divide};

use super::gates::Gates;
use super::selector::cluster_matches;
use assignment::Assignment;
use filters::{CandidateCluster, FilterInput};
use selection::{Candidate, Demand};

/// Annotation with the placement of the current result.
pub const APPLIED_PLACEMENT: &str = "policy.karmada.io/applied-placement";

/// A member cluster as seen by the scheduler, prepared once per change of the Cluster.
#[derive(Debug, Clone)]
pub struct ClusterFacts {
    pub cluster: Cluster,
    /// Served kinds by API version.
    kinds: BTreeMap<String, BTreeSet<String>>,
}

impl ClusterFacts {
    pub fn new(cluster: Cluster) -> Self {
        let mut kinds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for group in &cluster.status.api_enablements {
            let served = group.resources.iter().map(|resource| resource.kind.clone());
            kinds.entry(group.group_version.clone()).or_default().extend(served);
        }
        ClusterFacts { cluster, kinds }
    }

    pub fn name(&self) -> &str {
        self.cluster.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn is_terminating(&self) -> bool {
        self.cluster.metadata.deletion_timestamp.is_some()
    }

    /// True if the cluster serves a kind that it did not serve before.
    pub fn newly_serves(&self, before: &ClusterFacts, api_version: &str, kind: &str) -> bool {
        self.serves(api_version, kind) && !before.serves(api_version, kind)
    }

    /// True if the cluster serves any kind that it did not serve before.
    pub fn newly_serves_any(&self, before: &ClusterFacts) -> bool {
        self.kinds.iter().any(|(version, kinds)| before.kinds.get(version).is_none_or(|had| !kinds.is_subset(had)))
    }

    /// True if the cluster serves a kind.
    pub fn serves(&self, api_version: &str, kind: &str) -> bool {
        self.kinds.get(api_version).is_some_and(|kinds| kinds.contains(kind))
    }

    /// True if a change of the cluster can make an unschedulable binding fit.
    pub fn may_fit_more_bindings(&self, before: &ClusterFacts) -> bool {
        let (new, old) = (&self.cluster, &before.cluster);
        new.metadata.labels != old.metadata.labels
            || new.spec != old.spec
            || new.status.resource_summary != old.status.resource_summary
            || self.kinds != before.kinds
            || self.is_terminating() != before.is_terminating()
    }
}

/// Another binding of the namespace that has workload affinity groups.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    pub affinity_group: String,
    pub anti_affinity_group: String,
    pub clusters: Vec<String>,
}

/// Estimates how many more replicas or component sets fit into clusters, given by their indexes in
/// [`SchedulingContext::clusters`]. `None` if unknown.
pub trait Estimate {
    fn replicas(&self, cluster_indexes: &[usize], requirements: Option<&ReplicaRequirements>) -> Vec<Option<i32>>;
    fn component_sets(&self, cluster_indexes: &[usize], components: &[Component], namespace: &str) -> Vec<Option<i32>>;
}

/// Input of a scheduling decision, apart from the binding.
pub struct SchedulingContext<'a> {
    /// All clusters, sorted by name.
    pub clusters: &'a [std::sync::Arc<ClusterFacts>],
    pub estimate: &'a dyn Estimate,
    /// Other bindings of the namespace with affinity groups.
    pub peers: &'a [Peer],
    pub gates: Gates,
    pub plugins: Plugins,
    /// If true, selected clusters without replicas stay in the result (`--enable-empty-workload-propagation`).
    pub propagate_empty_workloads: bool,
    /// Is notified of the steps of a decision.
    pub observer: &'a dyn Observer,
}

impl SchedulingContext<'_> {
    /// Runs a step and notifies the observer.
    fn step<T>(&self, step: Step, run: impl FnOnce() -> T) -> T {
        self.observer.step_started(step);
        let result = run();
        self.observer.step_ended(step);
        result
    }
}

/// The binding to schedule.
pub struct Binding<'a> {
    pub generation: i64,
    pub applied_placement: Option<&'a str>,
    pub spec: &'a ResourceBindingSpec,
    pub status: &'a ResourceBindingStatus,
}

/// Scheduling failure. Its `Display` is the message of the `Scheduled` condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No cluster passed the filters.
    #[error("{0}")]
    NoFit(String),
    /// The feasible clusters have too little capacity.
    #[error("failed to assign replicas: {0}")]
    Unschedulable(String),
    /// The spread constraints cannot be satisfied or are not supported.
    #[error("failed to select clusters: {0}")]
    Select(String),
    /// There is no cluster to assign replicas to, or the strategy is not supported.
    #[error("failed to assign replicas: {0}")]
    Assign(String),
    #[error("binding has no placement")]
    NoPlacement,
}

impl ScheduleError {
    /// Reason of the `Scheduled` condition.
    pub fn reason(&self) -> &'static str {
        match self {
            ScheduleError::NoFit(_) => "NoClusterFit",
            ScheduleError::Unschedulable(_) => "Unschedulable",
            _ => "SchedulerError",
        }
    }
}

/// Action of the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// Keep the result; only the observed generation is recorded.
    Keep,
    /// Write `clusters` as result; `affinity` names the affinity term.
    Schedule { clusters: Vec<TargetCluster>, affinity: Option<String> },
    /// No cluster fits: clear the result, and wait for a change of clusters.
    Clear { error: ScheduleError },
    /// Keep the previous result and retry.
    Fail { error: ScheduleError },
}

/// Level of detail of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// Affinity terms and their outcome only. Default for decisions, which are frequent.
    Terms,
    /// Every cluster.
    Clusters,
}

/// Schedules a binding.
pub fn plan(context: &SchedulingContext<'_>, binding: &Binding<'_>) -> (Plan, Report) {
    decide(context, binding, Detail::Terms)
}

/// Decides like [`plan`] with a detailed report, which evaluates every cluster even if no decision is needed.
pub fn explain(context: &SchedulingContext<'_>, binding: &Binding<'_>) -> (Plan, Report) {
    let (decided, mut report) = decide(context, binding, Detail::Clusters);
    if let (None, Some(placement)) = (report.trigger, &binding.spec.placement) {
        place(context, binding, placement, Detail::Clusters, &mut report);
    }
    (decided, report)
}

fn decide(context: &SchedulingContext<'_>, binding: &Binding<'_>, detail: Detail) -> (Plan, Report) {
    let mut report = Report::default();
    let Some(placement) = &binding.spec.placement else {
        return (Plan::Fail { error: ScheduleError::NoPlacement }, report);
    };
    let Some(trigger) = changes::trigger(context, binding, placement) else {
        return (Plan::Keep, report);
    };
    report.trigger = Some(trigger);
    (place(context, binding, placement, detail, &mut report), report)
}

fn place(
    context: &SchedulingContext<'_>,
    binding: &Binding<'_>,
    placement: &Placement,
    detail: Detail,
    report: &mut Report,
) -> Plan {
    match placement.cluster_affinities.as_slice() {
        [] => try_term(context, binding, placement, None, detail, report)
            .map_or_else(plan_for_error, |clusters| Plan::Schedule { clusters, affinity: None }),
        terms => try_terms(context, binding, placement, terms, detail, report),
    }
}

fn plan_for_error(error: ScheduleError) -> Plan {
    match error {
        ScheduleError::NoFit(_) => Plan::Clear { error },
        _ => Plan::Fail { error },
    }
}

/// Tries the observed affinity term and those after it; the first success is used. If all fail, the first error is
/// returned.
fn try_terms(
    context: &SchedulingContext<'_>,
    binding: &Binding<'_>,
    placement: &Placement,
    terms: &[ClusterAffinityTerm],
    detail: Detail,
    report: &mut Report,
) -> Plan {
    let observed = &binding.status.scheduler_observed_affinity_name;
    let start = match changes::is_reschedule_required(binding.spec, binding.status) {
        true => 0,
        false => terms.iter().position(|term| term.affinity_name == *observed).unwrap_or_default(),
    };
    let mut first_error = None;
    for (index, term) in terms.iter().enumerate().skip(start) {
        match try_term(context, binding, placement, Some((index, term)), detail, report) {
            Ok(clusters) => return Plan::Schedule { clusters, affinity: Some(term.affinity_name.clone()) },
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Plan::Keep, plan_for_error)
}

/// Filters, scores, selects and assigns with one affinity term.
fn try_term(
    context: &SchedulingContext<'_>,
    binding: &Binding<'_>,
    placement: &Placement,
    term: Option<(usize, &ClusterAffinityTerm)>,
    detail: Detail,
    report: &mut Report,
) -> Result<Vec<TargetCluster>, ScheduleError> {
    let (index, affinity) = term.map(|(index, term)| (index, term.affinity_name.clone())).unwrap_or_default();
    let mut term_report = TermReport { index, affinity, ..TermReport::default() };
    let mut entries = (detail == Detail::Clusters).then(|| vec![None; context.clusters.len()]);
    let term = term.map(|(_, term)| term);
    let result = schedule_with_term(context, binding, placement, term, &mut Entries(entries.as_deref_mut()));
    term_report.clusters = entries.into_iter().flatten().flatten().collect();
    term_report.error = result.as_ref().err().map(ToString::to_string);
    report.terms.push(term_report);
    result
}

/// Report entries by index of the cluster, if requested.
struct Entries<'a>(Option<&'a mut [Option<ClusterReport>]>);

impl Entries<'_> {
    fn add(&mut self, index: usize, make: impl FnOnce() -> ClusterReport) {
        if let Some(entry) = self.0.as_deref_mut().and_then(|entries| entries.get_mut(index)) {
            *entry = Some(make());
        }
    }

    fn update(&mut self, index: usize, write: impl FnOnce(&mut ClusterReport)) {
        if let Some(Some(entry)) = self.0.as_deref_mut().and_then(|entries| entries.get_mut(index)) {
            write(entry);
        }
    }
}

/// Runs all steps with one affinity term, and records the evaluation of each cluster in `entries`.
fn schedule_with_term(
    context: &SchedulingContext<'_>,
    binding: &Binding<'_>,
    placement: &Placement,
    term: Option<&ClusterAffinityTerm>,
    entries: &mut Entries<'_>,
) -> Result<Vec<TargetCluster>, ScheduleError> {
    let spec = binding.spec;
    let input = FilterInput { context, spec, term };
    let feasible = context.step(Step::Filter, || feasible(&input, entries));
    if feasible.is_empty() {
        return Err(ScheduleError::NoFit(fit_message(&input)));
    }
    let counts_sets = is_placed_as_set(context.gates, spec, placement);
    let scores = context.step(Step::Score, || scores(context, &feasible));
    let demand = Demand { capacity: if counts_sets { 1 } else { spec.replicas }, replicas: spec.replicas };
    let selected = context.step(Step::Select, || {
        let mut candidates = candidates(context, spec, &feasible, &scores, term, counts_sets);
        selection::sort(&mut candidates);
        for candidate in &candidates {
            entries.update(candidate.index, |entry| {
                entry.score = candidate.score;
                entry.allocatable = Some(candidate.allocatable);
            });
        }
        selection::select(placement, candidates, demand)
    })?;
    let mode = if changes::is_reschedule_required(spec, binding.status) {
        AssignmentMode::Fresh
    } else {
        AssignmentMode::Steady
    };
    let overflows =
        placement.cluster_affinity.is_none() && term.is_some_and(|term| !term.overflow_affinities.is_empty());
    let records_components = counts_sets && spec.components.len() > 1;
    selected.iter().for_each(|candidate| entries.update(candidate.index, |entry| entry.selected = true));
    let assignment = Assignment { spec, mode, overflows, records_components };
    let mut targets = context.step(Step::AssignReplicas, || assignment.assign(&selected))?;
    if context.propagate_empty_workloads {
        let missing = |candidate: &&Candidate<'_>| !targets.iter().any(|target| target.name == candidate.name());
        let empty: Vec<TargetCluster> = selected
            .iter()
            .filter(missing)
            .map(|candidate| TargetCluster { name: candidate.name().to_owned(), ..Default::default() })
            .collect();
        targets.extend(empty);
    }
    if entries.0.is_some() {
        for target in &targets {
            let index = selected.iter().find(|candidate| candidate.name() == target.name).map(|found| found.index);
            entries.update(index.unwrap_or(usize::MAX), |entry| entry.replicas = Some(target.replicas));
        }
    }
    Ok(targets)
}

/// Current targets of a binding, sorted for lookup by name.
struct CurrentTargets<'a>(Vec<&'a TargetCluster>);

impl<'a> CurrentTargets<'a> {
    fn from_spec(spec: &'a ResourceBindingSpec) -> Self {
        let mut current: Vec<&TargetCluster> = spec.clusters.iter().collect();
        current.sort_by(|a, b| a.name.cmp(&b.name));
        CurrentTargets(current)
    }

    fn get(&self, cluster: &str) -> Option<&'a TargetCluster> {
        self.0.binary_search_by(|current| current.name.as_str().cmp(cluster)).ok().map(|index| self.0[index])
    }
}

/// Clusters that are not being deleted, with their indexes and the binding's current targets.
fn candidate_clusters<'a>(
    context: &SchedulingContext<'a>,
    spec: &'a ResourceBindingSpec,
) -> impl Iterator<Item = (usize, CandidateCluster<'a>)> + use<'a> {
    let current = CurrentTargets::from_spec(spec);
    let staying = context.clusters.iter().enumerate().filter(|(_, facts)| !facts.is_terminating());
    staying.map(move |(index, facts)| (index, CandidateCluster { facts, current: current.get(facts.name()) }))
}

/// Clusters that pass all filters.
fn feasible<'a>(input: &FilterInput<'a>, entries: &mut Entries<'_>) -> Vec<(usize, CandidateCluster<'a>)> {
    let mut feasible = Vec::with_capacity(input.context.clusters.len());
    for (index, candidate) in candidate_clusters(input.context, input.spec) {
        let rejected = filters::reject(input, candidate);
        if rejected.is_none() {
            feasible.push((index, candidate));
        }
        entries.add(index, || ClusterReport {
            name: candidate.facts.name().to_owned(),
            evicted_by: rejected.is_none().then(|| filters::evicting_taint(input, candidate)).flatten(),
            rejected: rejected.map(|(filter, reason)| Rejection { filter, reason: reason.into_owned() }),
            ..Default::default()
        });
    }
    feasible
}

/// Message in Karmada's format: `0/3 clusters are available: 2 reason, 1 other reason.`
fn fit_message(input: &FilterInput<'_>) -> String {
    let total = input.context.clusters.len();
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for (_, candidate) in candidate_clusters(input.context, input.spec) {
        if let Some((_, reason)) = filters::reject(input, candidate) {
            *counts.entry(reason).or_default() += 1;
        }
    }
    if counts.is_empty() {
        return format!("0/{total} clusters are available: no cluster exists.");
    }
    let mut reasons: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    format!("0/{total} clusters are available: {}.", reasons.join(", "))
}

/// True if all components are placed together in one cluster, so that sets are counted instead of replicas.
pub fn is_placed_as_set(gates: Gates, spec: &ResourceBindingSpec, placement: &Placement) -> bool {
    gates.multiple_pod_templates_scheduling
        && !spec.components.is_empty()
        && placement.spread_constraints.iter().any(|constraint| {
            constraint.spread_by_field == Some(SpreadFieldValue::Cluster)
                && constraint.min_groups == 1
                && constraint.max_groups == 1
        })
}

/// Score of a cluster that is a target already; others score 0.
const LOCALITY_SCORE: i64 = 100;

/// Overflow order of a cluster that matches no tier. Only a current target can be such a cluster.
const NO_TIER: i32 = 1000;

/// Scores of the feasible clusters.
fn scores(context: &SchedulingContext<'_>, feasible: &[(usize, CandidateCluster<'_>)]) -> Vec<i64> {
    let is_locality_enabled = context.plugins.has(Plugin::ClusterLocality);
    feasible
        .iter()
        .map(|(_, candidate)| if is_locality_enabled && candidate.current.is_some() { LOCALITY_SCORE } else { 0 })
        .collect()
}

/// Feasible clusters with their capacity. A binding without requests fits everywhere.
fn candidates<'a>(
    context: &SchedulingContext<'a>,
    spec: &ResourceBindingSpec,
    feasible: &[(usize, CandidateCluster<'a>)],
    scores: &[i64],
    term: Option<&ClusterAffinityTerm>,
    counts_sets: bool,
) -> Vec<Candidate<'a>> {
    let indexes: Vec<usize> = feasible.iter().map(|(index, _)| *index).collect();
    let estimates = match (spec.replicas, spec.components.as_slice()) {
        (0, []) => vec![None; indexes.len()],
        (_, components) if counts_sets => {
            context.estimate.component_sets(&indexes, components, &spec.resource.namespace)
        }
        _ => context.estimate.replicas(&indexes, spec.replica_requirements.as_ref()),
    };
    let default_allocatable = if spec.replicas == 0 && spec.components.is_empty() { i32::MAX } else { spec.replicas };
    let candidate = |(((index, candidate), score), estimate): ((&(usize, CandidateCluster<'a>), &i64), Option<i32>)| {
        let allocatable = estimate.filter(|replicas| *replicas != i32::MAX).unwrap_or(default_allocatable);
        Candidate {
            facts: candidate.facts,
            index: *index,
            current: candidate.current,
            score: *score,
            overflow_order: overflow_order(spec, &candidate.facts.cluster, term),
            allocatable,
            available: i64::from(allocatable) + candidate.current.map_or(0, |current| i64::from(current.replicas)),
        }
    };
    feasible.iter().zip(scores).zip(estimates).map(candidate).collect()
}

fn overflow_order(spec: &ResourceBindingSpec, cluster: &Cluster, term: Option<&ClusterAffinityTerm>) -> i32 {
    let has_affinity = spec.placement.as_ref().is_some_and(|placement| placement.cluster_affinity.is_some());
    let Some(term) = term.filter(|_| !has_affinity) else { return 0 };
    if cluster_matches(cluster, &term.affinity) {
        return 0;
    }
    let tier = term.overflow_affinities.iter().position(|tier| cluster_matches(cluster, &tier.affinity));
    tier.and_then(|tier| i32::try_from(tier + 1).ok()).unwrap_or(NO_TIER)
}
