//! Why a binding goes where it goes: one entry per affinity term tried, one per cluster in it for who asks why
//! ([`super::explain`]); the scheduler's loop reads only what became of the terms.

use serde::Serialize;

/// What made the scheduler look at a binding's placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Trigger {
    PlacementChanged,
    ReplicasChanged,
    RescheduleRequested,
    /// Duplicated or not a workload: the clusters that fit may have changed.
    Reconcile,
    TargetTerminating,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    pub trigger: Option<Trigger>,
    pub terms: Vec<TermReport>,
}

/// One pass over all clusters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TermReport {
    /// Where the term is in the placement's list.
    pub index: usize,
    /// The affinity term tried; empty when the placement has none.
    pub affinity: String,
    pub clusters: Vec<ClusterReport>,
    pub error: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterReport {
    pub name: String,
    pub rejected: Option<Rejection>,
    pub score: i64,
    /// Replicas that still fit, as estimated.
    pub allocatable: Option<i32>,
    /// Whether the cluster passed selection (spread constraints).
    pub selected: bool,
    pub replicas: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    pub filter: &'static str,
    pub reason: String,
}
