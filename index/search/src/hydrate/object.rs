//! Details of one object for a caller: history, comparison with other clusters, and related objects.

use crate::Searcher;
use crate::authorization::decision::allows_read;
use crate::document::columns::{Key, scope_of};
use crowsnest_apimachinery::differences::{ComparisonKind, Difference, find_differences};
use crowsnest_apimachinery::rbac::ReadKind;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::{Error, Object, RecordKey, Version};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of earlier versions in the history of an object.
pub const MAX_VERSIONS: usize = 100;
/// Maximum number of objects in a graph.
pub const MAX_NODES: usize = 200;
/// Time limit for a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Current state and history of an object.
#[derive(Debug, Clone)]
pub struct ObjectRevisions {
    /// The current object; None if it was deleted.
    pub current: Option<Object>,
    /// Newest first.
    pub versions: Vec<Version>,
}

/// Differences of two manifests.
#[derive(Debug, Clone)]
pub struct Diff {
    pub differences: Vec<Difference>,
    /// True if there are more differences than those listed.
    pub has_more: bool,
}

/// Objects that are related to a requested one, and the references between them.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The requested object is first.
    pub nodes: Vec<Object>,
    pub edges: Vec<Edge>,
    /// True if there are more related objects than those listed.
    pub has_more: bool,
}

/// A reference from one object to another. Objects are given as indices of [`Graph::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    pub relation: &'static str,
}

impl Diff {
    /// Compares two manifests, as versions of an object if they are from the same cluster, otherwise as its copies in two
    /// clusters.
    pub fn between(before: &Object, after: &Object) -> Result<Self, Error> {
        let is_same_cluster = before.record.key.cluster() == after.record.key.cluster();
        let comparison_kind = if is_same_cluster { ComparisonKind::Versions } else { ComparisonKind::Clusters };
        let (differences, has_more) = find_differences(&before.parse()?, &after.parse()?, comparison_kind);
        Ok(Self { differences, has_more })
    }
}

impl Searcher {
    /// True if a caller may read an object, whether or not it exists.
    pub(crate) async fn may_get(&self, caller: &UserInfo, key: &RecordKey) -> bool {
        let sources = self.sources(caller, TIMEOUT).await;
        allows_read(&mut sources.context.permissions.lock(), ReadKind::ByName, &scope_of(key), &key.name)
    }

    /// Current state and history of an object; None if the caller may not read it or the store has neither.
    pub async fn object_history(&self, caller: &UserInfo, key: &RecordKey) -> Result<Option<ObjectRevisions>, Error> {
        if !self.may_get(caller, key).await {
            return Ok(None);
        }
        let store = &self.inner.cache.store;
        let history =
            ObjectRevisions { current: store.get(key).await?, versions: store.versions(key, MAX_VERSIONS).await? };
        Ok((history.current.is_some() || !history.versions.is_empty()).then_some(history))
    }

    /// Objects related to an object within `depth` steps; None if the caller may not read the object or it does not exist.
    pub async fn graph(&self, caller: &UserInfo, key: &RecordKey, depth: u8) -> Result<Option<Graph>, Error> {
        if !self.may_get(caller, key).await {
            return Ok(None);
        }
        let Some(root) = self.inner.cache.store.get(key).await? else { return Ok(None) };
        let mut fleet = self.fleet_graph(caller, TIMEOUT).await;
        let mut frontier = BTreeSet::from([root.record.id]);
        let mut visited = frontier.clone();
        let mut nodes = vec![root];
        let mut has_more = false;
        fleet.read(&frontier).await?;
        for _ in 0..depth {
            let mut new: Vec<u64> = fleet.neighbours(&frontier).await?.difference(&visited).copied().collect();
            let remaining = MAX_NODES - nodes.len();
            has_more |= new.len() > remaining;
            new.truncate(remaining);
            frontier = new.into_iter().collect();
            fleet.read(&frontier).await?;
            let mut objects: Vec<Object> = frontier.iter().filter_map(|id| fleet.object(*id).cloned()).collect();
            objects.sort_by(|a, b| a.record.key.cmp(&b.record.key));
            visited.extend(&frontier);
            nodes.extend(objects);
            if frontier.is_empty() {
                break;
            }
        }
        let node_indices: BTreeMap<u64, usize> =
            nodes.iter().enumerate().map(|(nth, object)| (object.record.id, nth)).collect();
        // Lookups omit objects when they reach a limit.
        has_more |= !fleet.limits_reached.is_empty();
        let references = fleet.references(&visited).into_iter();
        let edges: BTreeSet<Edge> = references
            .filter_map(|(from, to, column)| {
                let relation = match column {
                    Key::Own => return None,
                    Key::Owner => "owner",
                    Key::Uses => "uses",
                    Key::About => "about",
                };
                Some(Edge { from: *node_indices.get(&from)?, to: *node_indices.get(&to)?, relation })
            })
            .collect();
        Ok(Some(Graph { nodes, edges: edges.into_iter().collect(), has_more }))
    }
}
