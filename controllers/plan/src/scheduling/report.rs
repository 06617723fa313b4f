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

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    pub terms: Vec<TermReport>,
}

/// One pass over all clusters.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TermReport {
    /// Where the term is in the placement's list.
    #[serde(skip)]
    pub index: usize,
    /// The affinity term tried; empty when the placement has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub affinity: String,
    pub clusters: Vec<ClusterReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReport {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejection>,
    pub score: i64,
    /// Replicas that still fit, as estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<i32>,
    /// Whether the cluster passed selection (spread constraints).
    pub selected: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    pub filter: &'static str,
    pub reason: String,
}
