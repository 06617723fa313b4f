//! Scheduling: to which clusters a binding goes and with how many replicas.
//!
//! [`plan`] is the whole decision: is there anything to decide ([`Trigger`]), which affinity term is used, which
//! clusters pass the filters, how they are scored, selected and filled. It reads a [`World`] and a [`Binding`] and
//! writes nothing; the scheduling loop obeys the [`Plan`], the [`Report`] says why.

mod assignment;
mod changes;
mod filters;
mod groups;
mod report;
mod selection;
mod webster;

use std::collections::BTreeSet;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{ClusterAffinityTerm, Placement, SpreadFieldValue};
use crowsnest_api::work::{Component, ReplicaRequirements, ResourceBindingSpec, ResourceBindingStatus, TargetCluster};

pub use assignment::Mode;
pub use changes::{affected_by_cluster, is_placement_changed, is_reschedule_required};
pub use report::{ClusterReport, Rejection, Report, TermReport, Trigger};
pub use selection::scheduling_type;
pub use webster::{TieBreak, divide};

use super::gates::Gates;
use super::selector::cluster_matches;
use assignment::Assignment;
use filters::Subject;
use selection::{Candidate, Demand};

/// Annotation with the placement the current result was made for.
pub const APPLIED_PLACEMENT: &str = "policy.karmada.io/applied-placement";

/// What the scheduler knows of a member cluster, prepared once per change of the Cluster.
#[derive(Debug, Clone)]
pub struct ClusterFacts {
    pub cluster: Cluster,
    kinds: BTreeSet<(String, String)>,
}

impl ClusterFacts {
    pub fn new(cluster: Cluster) -> Self {
        let kinds = cluster
            .status
            .api_enablements
            .iter()
            .flat_map(|group| {
                group.resources.iter().map(|resource| (group.group_version.clone(), resource.kind.clone()))
            })
            .collect();
        ClusterFacts { cluster, kinds }
    }

    pub fn name(&self) -> &str {
        self.cluster.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn is_terminating(&self) -> bool {
        self.cluster.metadata.deletion_timestamp.is_some()
    }

    /// Whether the cluster serves a kind it was not known to serve before.
    pub fn gained(&self, before: &ClusterFacts, api_version: &str, kind: &str) -> bool {
        self.serves(api_version, kind) && !before.serves(api_version, kind)
    }

    /// Whether the cluster is known to serve anything it was not known to serve before.
    pub fn gained_any(&self, before: &ClusterFacts) -> bool {
        !self.kinds.is_subset(&before.kinds)
    }

    /// Whether the cluster is known to serve a kind.
    pub fn serves(&self, api_version: &str, kind: &str) -> bool {
        self.kinds.contains(&(api_version.to_owned(), kind.to_owned()))
    }
}

/// Another binding of the same namespace that belongs to affinity groups.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    pub affinity_group: String,
    pub anti_affinity_group: String,
    pub clusters: Vec<String>,
}

/// How many more replicas (or component sets) fit into a cluster. `None`: nobody can say.
pub trait Estimate {
    fn replicas(&self, cluster: &Cluster, requirements: Option<&ReplicaRequirements>) -> Option<i32>;
    fn component_sets(&self, cluster: &Cluster, components: &[Component], namespace: &str) -> Option<i32>;
}

/// Everything a decision reads beside the binding.
pub struct World<'a> {
    /// All clusters, by name.
    pub clusters: &'a [std::sync::Arc<ClusterFacts>],
    pub estimate: &'a dyn Estimate,
    /// Other bindings of the namespace with affinity groups.
    pub peers: &'a [Peer],
    pub gates: Gates,
    /// Keep selected clusters without replicas in the result.
    pub propagate_empty_workloads: bool,
}

/// The binding to decide about.
pub struct Binding<'a> {
    pub generation: i64,
    pub applied_placement: Option<&'a str>,
    pub spec: &'a ResourceBindingSpec,
    pub status: &'a ResourceBindingStatus,
}

/// Why no result could be made. The text is what the `Scheduled` condition shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No cluster passed the filters.
    #[error("{0}")]
    NoFit(String),
    /// The clusters that fit have too little room.
    #[error("failed to assign replicas: {0}")]
    Unschedulable(String),
    #[error("failed to select clusters: {0}")]
    Select(String),
    #[error("failed to assign replicas: {0}")]
    Assign(String),
    #[error("binding has no placement")]
    NoPlacement,
}

impl ScheduleError {
    /// The reason of the `Scheduled` condition.
    pub fn reason(&self) -> &'static str {
        match self {
            ScheduleError::NoFit(_) => "NoClusterFit",
            ScheduleError::Unschedulable(_) => "Unschedulable",
            _ => "SchedulerError",
        }
    }
}

/// What the scheduling loop has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// The result stands; only the observed generation is to be recorded.
    Keep,
    /// `clusters` is the result; `affinity` names the term it was made with.
    Schedule { clusters: Vec<TargetCluster>, affinity: Option<String> },
    /// Nothing fits: the result is emptied, and the binding waits for a change of clusters.
    Clear { error: ScheduleError },
    /// The old result stays and the binding is tried again.
    Fail { error: ScheduleError },
}

/// Decides about one binding.
pub fn plan(world: &World<'_>, binding: &Binding<'_>) -> (Plan, Report) {
    let mut report = Report::default();
    let Some(placement) = &binding.spec.placement else {
        return (Plan::Fail { error: ScheduleError::NoPlacement }, report);
    };
    let Some(trigger) = changes::trigger(world, binding, placement) else {
        return (Plan::Keep, report);
    };
    report.trigger = Some(trigger);
    (place(world, binding, placement, &mut report), report)
}

/// Decides as [`plan`] does; the report looks at every cluster even where there is nothing to decide.
pub fn explain(world: &World<'_>, binding: &Binding<'_>) -> (Plan, Report) {
    let (decided, mut report) = plan(world, binding);
    if let (None, Some(placement)) = (report.trigger, &binding.spec.placement) {
        place(world, binding, placement, &mut report);
    }
    (decided, report)
}

fn place(world: &World<'_>, binding: &Binding<'_>, placement: &Placement, report: &mut Report) -> Plan {
    match placement.cluster_affinities.as_slice() {
        [] => attempt(world, binding, placement, None, report)
            .map_or_else(failed, |clusters| Plan::Schedule { clusters, affinity: None }),
        terms => by_terms(world, binding, placement, terms, report),
    }
}

fn failed(error: ScheduleError) -> Plan {
    match error {
        ScheduleError::NoFit(_) => Plan::Clear { error },
        _ => Plan::Fail { error },
    }
}

/// Tries the observed term and those after it; the first that works is used. When none does, the first error counts.
fn by_terms(
    world: &World<'_>,
    binding: &Binding<'_>,
    placement: &Placement,
    terms: &[ClusterAffinityTerm],
    report: &mut Report,
) -> Plan {
    let observed = &binding.status.scheduler_observed_affinity_name;
    let start = match changes::is_reschedule_required(binding.spec, binding.status) {
        true => 0,
        false => terms.iter().position(|term| term.affinity_name == *observed).unwrap_or_default(),
    };
    let mut first_error = None;
    for term in &terms[start..] {
        match attempt(world, binding, placement, Some(term), report) {
            Ok(clusters) => return Plan::Schedule { clusters, affinity: Some(term.affinity_name.clone()) },
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Plan::Keep, failed)
}

/// Filter, score, select and assign with one affinity term.
fn attempt(
    world: &World<'_>,
    binding: &Binding<'_>,
    placement: &Placement,
    term: Option<&ClusterAffinityTerm>,
    report: &mut Report,
) -> Result<Vec<TargetCluster>, ScheduleError> {
    let affinity = term.map(|term| term.affinity_name.clone()).unwrap_or_default();
    let mut this = TermReport { affinity, ..TermReport::default() };
    let result = run(world, binding, placement, term, &mut this);
    this.error = result.as_ref().err().map(ToString::to_string);
    report.terms.push(this);
    result
}

fn run(
    world: &World<'_>,
    binding: &Binding<'_>,
    placement: &Placement,
    term: Option<&ClusterAffinityTerm>,
    report: &mut TermReport,
) -> Result<Vec<TargetCluster>, ScheduleError> {
    let spec = binding.spec;
    let subject = Subject { spec, term };
    let mut feasible = Vec::new();
    for cluster in world.clusters.iter().filter(|cluster| !cluster.is_terminating()) {
        let rejected = filters::reject(world, &subject, cluster);
        if rejected.is_none() {
            feasible.push(cluster.as_ref());
        }
        report.clusters.push(ClusterReport { name: cluster.name().to_owned(), rejected, ..Default::default() });
    }
    if feasible.is_empty() {
        return Err(ScheduleError::NoFit(fit_message(world.clusters.len(), &report.clusters)));
    }
    let sets = is_placed_as_set(world.gates, spec, placement);
    let mut candidates: Vec<Candidate> =
        feasible.iter().map(|cluster| candidate(world, spec, cluster, term, sets)).collect();
    selection::sort(&mut candidates);
    for candidate in &candidates {
        report.note(&candidate.name, |entry| {
            entry.score = candidate.score;
            entry.allocatable = Some(candidate.allocatable);
        });
    }
    let demand = Demand { capacity: if sets { 1 } else { spec.replicas }, replicas: spec.replicas };
    let selected = selection::select(placement, candidates, demand)?;
    for candidate in &selected {
        report.note(&candidate.name, |entry| entry.selected = true);
    }
    let mode = if changes::is_reschedule_required(spec, binding.status) { Mode::Fresh } else { Mode::Steady };
    let overflows =
        placement.cluster_affinity.is_none() && term.is_some_and(|term| !term.overflow_affinities.is_empty());
    let records_components = sets && spec.components.len() > 1;
    let find = |name: &str| feasible.iter().find(|facts| facts.name() == name).map(|facts| &facts.cluster);
    let mut targets = Assignment { spec, mode, overflows, records_components }.assign(&selected, find)?;
    if world.propagate_empty_workloads {
        let missing = |candidate: &&Candidate| !targets.iter().any(|target| target.name == candidate.name);
        let empty: Vec<TargetCluster> = selected
            .iter()
            .filter(missing)
            .map(|candidate| TargetCluster { name: candidate.name.clone(), ..Default::default() })
            .collect();
        targets.extend(empty);
    }
    for target in &targets {
        report.note(&target.name, |entry| entry.replicas = Some(target.replicas));
    }
    Ok(targets)
}

impl TermReport {
    fn note(&mut self, cluster: &str, write: impl FnOnce(&mut ClusterReport)) {
        if let Some(entry) = self.clusters.iter_mut().find(|entry| entry.name == cluster) {
            write(entry);
        }
    }
}

/// `0/3 clusters are available: 2 reason, 1 other reason.`
fn fit_message(total: usize, clusters: &[ClusterReport]) -> String {
    let mut counts: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for rejection in clusters.iter().filter_map(|cluster| cluster.rejected.as_ref()) {
        *counts.entry(rejection.reason.as_str()).or_default() += 1;
    }
    if total == 0 || counts.is_empty() {
        return format!("0/{total} clusters are available: no cluster exists.");
    }
    let mut reasons: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    format!("0/{total} clusters are available: {}.", reasons.join(", "))
}

/// Whether all components go together into one cluster, so that whole sets are counted instead of replicas.
pub fn is_placed_as_set(gates: Gates, spec: &ResourceBindingSpec, placement: &Placement) -> bool {
    gates.multiple_pod_templates_scheduling
        && !spec.components.is_empty()
        && placement.spread_constraints.iter().any(|constraint| {
            constraint.spread_by_field == Some(SpreadFieldValue::Cluster)
                && constraint.min_groups == 1
                && constraint.max_groups == 1
        })
}

/// A cluster that already holds the binding scores 100, any other 0.
const LOCALITY_SCORE: i64 = 100;

/// The order of a cluster that no overflow tier names; it can only be there as an earlier target.
const NO_TIER: i32 = 1000;

fn candidate(
    world: &World<'_>,
    spec: &ResourceBindingSpec,
    facts: &ClusterFacts,
    term: Option<&ClusterAffinityTerm>,
    sets: bool,
) -> Candidate {
    let allocatable = match (spec.replicas, spec.components.as_slice()) {
        (0, []) => i32::MAX,
        _ => {
            let estimate = match sets {
                true => world.estimate.component_sets(&facts.cluster, &spec.components, &spec.resource.namespace),
                false => world.estimate.replicas(&facts.cluster, spec.replica_requirements.as_ref()),
            };
            estimate.filter(|replicas| *replicas != i32::MAX).unwrap_or(spec.replicas)
        }
    };
    let assigned = spec.clusters.iter().find(|target| target.name == facts.name());
    Candidate {
        name: facts.name().to_owned(),
        region: facts.cluster.spec.region.clone(),
        score: if assigned.is_some() { LOCALITY_SCORE } else { 0 },
        overflow_order: overflow_order(spec, &facts.cluster, term),
        allocatable,
        available: i64::from(allocatable) + assigned.map_or(0, |target| i64::from(target.replicas)),
    }
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
