//! Explanation of a scheduling decision: an entry per affinity term and, in detailed reports ([`super::explain`]),
//! per cluster. The scheduler itself reads only the outcome of the terms.

use serde::Serialize;

/// Reason for scheduling a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Trigger {
    PlacementChanged,
    ReplicasChanged,
    RescheduleRequested,
    /// Replica scheduling type Duplicated, or a resource without replicas: the set of fitting clusters may have
    /// changed.
    Reconcile,
    TargetTerminating,
}

/// Report of one scheduling decision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Reason for scheduling. `None` if the current result is kept.
    pub trigger: Option<Trigger>,
    pub terms: Vec<TermReport>,
}

/// Evaluation of all clusters with one affinity term.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TermReport {
    /// Index of the term in the placement.
    pub index: usize,
    /// Name of the affinity term. Empty for a placement without terms.
    pub affinity: String,
    /// Empty unless the report is detailed.
    pub clusters: Vec<ClusterReport>,
    /// Scheduling failure with this term.
    pub error: Option<String>,
}

/// Evaluation of one cluster with an affinity term.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterReport {
    pub name: String,
    /// `None` if the cluster passed all filters.
    pub rejected: Option<Rejection>,
    /// The untolerated NoExecute taint of a current target, which is kept by the filters but will be evicted.
    pub evicted_by: Option<String>,
    pub score: i64,
    /// Estimated number of additional replicas that fit.
    pub allocatable: Option<i32>,
    /// True if the cluster was selected by spread constraints.
    pub selected: bool,
    /// Replicas assigned to the cluster.
    pub replicas: Option<i32>,
}

/// A filter that rejected a cluster, and its reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    pub filter: &'static str,
    pub reason: String,
}
