//! Patterns of paths between objects: openCypher's pattern with kinds as labels, and a shorthand with arrows.
//!
//! `(:Secret {name: "db"})<-[:USES]-(d:Deployment)-[:OWNS*1..3]->(:Pod)` is the same pattern as
//! `secret/db <-USES- deploy -OWNS*..3-> pod`. Printing a pattern gives the first form, which graph databases read.
//! docs/PATHS.md is the user documentation.

mod parse;
mod print;
#[cfg(test)]
mod tests;

use serde::Serialize;
use std::collections::BTreeSet;
use std::str::FromStr;

/// Maximum number of steps of a pattern, summed over its hops.
pub const MAX_STEPS: u8 = 8;
/// Maximum length of a pattern in bytes.
pub const MAX_BYTES: usize = 4096;
/// Maximum number of steps of a hop without an upper bound, such as `*` or `*2..`.
const DEFAULT_MAX_STEPS: u8 = 5;

/// Types of edges, directed as their names read: `(owner)-[:OWNS]->(owned)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EdgeType {
    /// Event to its object.
    About,
    /// Namespace to its objects.
    Contains,
    /// Owner to the objects that name it in `ownerReferences`.
    Owns,
    /// Template to binding, Work and the objects in members.
    PropagatedTo,
    /// Binding to its role.
    RoleRef,
    /// Gateway, route, Ingress, Service or EndpointSlice to the next hop of its traffic, the last of which is a Pod.
    RoutesTo,
    /// Pod to its node.
    RunsOn,
    /// Service, NetworkPolicy or PodDisruptionBudget to Pods with matching labels.
    Selects,
    /// Binding to its ServiceAccounts.
    Subject,
    /// Object to the objects that its fields name.
    Uses,
}

/// Error for an unknown edge type; the message lists the types.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown type {0:?}; types are {names}", names = EdgeType::names())]
pub struct UnknownEdgeType(String);

impl EdgeType {
    pub const ALL: [Self; 10] = [
        Self::About,
        Self::Contains,
        Self::Owns,
        Self::PropagatedTo,
        Self::RoleRef,
        Self::RoutesTo,
        Self::RunsOn,
        Self::Selects,
        Self::Subject,
        Self::Uses,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::About => "ABOUT",
            Self::Contains => "CONTAINS",
            Self::Owns => "OWNS",
            Self::PropagatedTo => "PROPAGATED_TO",
            Self::RoleRef => "ROLE_REF",
            Self::RoutesTo => "ROUTES_TO",
            Self::RunsOn => "RUNS_ON",
            Self::Selects => "SELECTS",
            Self::Subject => "SUBJECT",
            Self::Uses => "USES",
        }
    }

    /// True for types that connect a few objects to most others, for example a namespace to its objects. A hop follows
    /// them only if it names them.
    pub fn is_hub(self) -> bool {
        matches!(self, Self::About | Self::Contains | Self::RunsOn)
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl FromStr for EdgeType {
    type Err = UnknownEdgeType;

    fn from_str(text: &str) -> Result<Self, UnknownEdgeType> {
        let found = Self::ALL.into_iter().find(|edge_type| edge_type.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownEdgeType(text.to_owned()))
    }
}

/// Direction in which a hop follows edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    Out,
    In,
    Both,
}

impl Direction {
    /// The direction as seen from the other end.
    pub fn inverse(self) -> Self {
        match self {
            Self::Out => Self::In,
            Self::In => Self::Out,
            Self::Both => Self::Both,
        }
    }
}

/// Properties of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Property {
    ApiGroup,
    Cluster,
    Name,
    Namespace,
    /// A query in the query language.
    Q,
    Status,
    Uid,
}

impl Property {
    pub const ALL: [Self; 7] =
        [Self::ApiGroup, Self::Cluster, Self::Name, Self::Namespace, Self::Q, Self::Status, Self::Uid];

    pub fn name(self) -> &'static str {
        match self {
            Self::ApiGroup => "apiGroup",
            Self::Cluster => "cluster",
            Self::Name => "name",
            Self::Namespace => "namespace",
            Self::Q => "q",
            Self::Status => "status",
            Self::Uid => "uid",
        }
    }
}

/// A condition on objects. Without label and properties, every object matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodePattern {
    pub variable: Option<String>,
    /// Kind, plural or short name.
    pub label: Option<String>,
    /// In order of their names, each once.
    pub properties: Vec<(Property, String)>,
}

impl NodePattern {
    pub fn property(&self, name: Property) -> Option<&str> {
        self.properties.iter().find(|(property, _)| *property == name).map(|(_, value)| value.as_str())
    }

    /// Adds a property. Returns false if the pattern already has it.
    pub fn set(&mut self, property: Property, value: String) -> bool {
        let is_new = self.property(property).is_none();
        if is_new {
            self.properties.push((property, value));
            self.properties.sort_unstable();
        }
        is_new
    }

    /// Heuristic score from the stated properties; higher if fewer objects are expected to match. A search begins at
    /// the end of the path with the higher score.
    pub fn selectivity(&self) -> u8 {
        let has = |property| self.property(property).is_some();
        u8::from(has(Property::Uid)) * 8
            + u8::from(has(Property::Name)) * 4
            + u8::from(has(Property::Q) || has(Property::Namespace)) * 2
            + u8::from(self.label.is_some())
    }
}

/// Edges between two nodes of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HopPattern {
    pub variable: Option<String>,
    /// Types as stated. Empty: every type that is not a hub, see [`EdgeType::is_hub`].
    pub types: BTreeSet<EdgeType>,
    pub direction: Direction,
    /// Minimum number of edges.
    #[serde(rename = "least")]
    pub min_steps: u8,
    /// Maximum number of edges.
    #[serde(rename = "most")]
    pub max_steps: u8,
}

impl HopPattern {
    /// The types that the hop follows, with the default if it states none.
    pub fn effective_types(&self) -> BTreeSet<EdgeType> {
        match self.types.is_empty() {
            true => EdgeType::ALL.into_iter().filter(|edge_type| !edge_type.is_hub()).collect(),
            false => self.types.clone(),
        }
    }
}

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathPattern {
    pub first: NodePattern,
    pub hops: Vec<(HopPattern, NodePattern)>,
}

impl PathPattern {
    /// Nodes in order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodePattern> {
        std::iter::once(&self.first).chain(self.hops.iter().map(|(_, node)| node))
    }

    pub fn nodes_mut(&mut self) -> impl Iterator<Item = &mut NodePattern> {
        std::iter::once(&mut self.first).chain(self.hops.iter_mut().map(|(_, node)| node))
    }

    /// Maximum number of edges of a path.
    pub fn max_steps(&self) -> u8 {
        self.hops.iter().fold(0, |sum, (hop, _)| hop.max_steps.saturating_add(sum))
    }

    /// The pattern with the types of every hop stated. In graph databases, a hop without types also follows hubs.
    pub fn with_stated_types(mut self) -> Self {
        for (hop, _) in &mut self.hops {
            hop.types = hop.effective_types();
        }
        self
    }

    /// The inverse pattern, from its last node to its first. It matches the same paths in reverse.
    pub fn inverse(&self) -> Self {
        let mut nodes: Vec<NodePattern> = self.nodes().cloned().collect();
        let mut hops = Vec::with_capacity(self.hops.len());
        let last = nodes.pop().unwrap_or_default();
        for (hop, _) in self.hops.iter().rev() {
            let hop = HopPattern { direction: hop.direction.inverse(), ..hop.clone() };
            hops.push((hop, nodes.pop().unwrap_or_default()));
        }
        Self { first: last, hops }
    }
}

/// Reason why a text is not a valid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {reason}")]
pub struct PatternError {
    /// Byte offset in the text.
    pub at: usize,
    pub reason: String,
}

impl FromStr for PathPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        parse::parse_pattern(text)
    }
}
