//! Settings of simulated members before validation. The fields are those of the YAML or JSON file that `--members`
//! names.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// Settings of one member.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemberSettings {
    pub name: String,
    /// Kubernetes version such as `v1.35.4` or `1.35`.
    pub kubernetes_version: Option<String>,
    /// `spec.provider` of the Cluster.
    pub provider: Option<String>,
    /// `spec.region` of the Cluster, and the region of the nodes.
    pub region: Option<String>,
    /// `spec.zones` of the Cluster, and the zones of node groups without their own.
    #[serde(default)]
    pub zones: Vec<String>,
    /// Labels of the Cluster.
    #[serde(default)]
    pub labels: Labels,
    /// `None` creates three small nodes.
    pub nodes: Option<Vec<NodeSettings>>,
}

/// A node pool: a group of identical nodes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSettings {
    /// Number of nodes.
    pub count: Option<i64>,
    pub instance_type: Option<String>,
    /// Zones over which the nodes are distributed in turn.
    #[serde(default)]
    pub zones: Vec<String>,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub taints: Vec<TaintSettings>,
    /// Quantities by resource name, each a string or a number.
    #[serde(default)]
    pub allocatable: BTreeMap<String, Value>,
}

/// A taint of the nodes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaintSettings {
    pub key: String,
    #[serde(default)]
    pub value: String,
    pub effect: String,
}
