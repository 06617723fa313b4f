//! Details of one object for a caller: history, comparison with other clusters, and related objects.

use crate::Searcher;
use crate::authorization::decision::permits;
use crate::document::columns::{Key, scope_of};
use crowsnest_apimachinery::differences::{ComparisonKind, Difference, differences};
use crowsnest_apimachinery::rbac::ReadKind;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::{Error, Object, RecordKey, Version};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of old versions.
pub const MAX_VERSIONS: usize = 100;
/// Maximum number of objects in a graph.
pub const MAX_NODES: usize = 200;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Current state and history of an object.
#[derive(Debug, Clone)]
pub struct ObjectRevisions {
    /// The current object; None if it was deleted.
    pub now: Option<Object>,
    /// Newest first.
    pub versions: Vec<Version>,
}

/// Differences of two manifests.
#[derive(Debug, Clone)]
pub struct Diff {
    pub differences: Vec<Difference>,
    /// There are more differences.
    pub more: bool,
}

/// Related objects.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The requested object is first.
    pub nodes: Vec<Object>,
    pub edges: Vec<Edge>,
    /// There are more objects.
    pub more: bool,
}

/// A reference from one object to another, as indices of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    pub relation: &'static str,
}

impl Diff {
    /// Compares two manifests.
    pub fn between(before: &Object, after: &Object) -> Result<Self, Error> {
        let same = before.record.key.cluster() == after.record.key.cluster();
        let compared = if same { ComparisonKind::Versions } else { ComparisonKind::Clusters };
        let (differences, more) = differences(&before.parse()?, &after.parse()?, compared);
        Ok(Self { differences, more })
    }
}

impl Searcher {
    /// True if a caller may read an object, whether or not it exists.
    pub(crate) async fn may_get(&self, caller: &UserInfo, key: &RecordKey) -> bool {
        let sources = self.sources(caller, TIMEOUT).await;
        permits(&mut sources.context.rights.lock(), ReadKind::ByName, &scope_of(key), &key.name)
    }

    /// State and history of an object; None if the caller may not read it or the store has no record of it.
    pub async fn object_history(&self, caller: &UserInfo, key: &RecordKey) -> Result<Option<ObjectRevisions>, Error> {
        if !self.may_get(caller, key).await {
            return Ok(None);
        }
        let store = &self.inner.store;
        let history =
            ObjectRevisions { now: store.get(key).await?, versions: store.versions(key, MAX_VERSIONS).await? };
        Ok((history.now.is_some() || !history.versions.is_empty()).then_some(history))
    }

    /// Objects related to an object within `depth` steps; None as in [`Searcher::object_history`].
    pub async fn graph(&self, caller: &UserInfo, key: &RecordKey, depth: u8) -> Result<Option<Graph>, Error> {
        if !self.may_get(caller, key).await {
            return Ok(None);
        }
        let Some(root) = self.inner.store.get(key).await? else { return Ok(None) };
        let mut fleet = self.fleet_graph(caller, TIMEOUT).await;
        let mut here = BTreeSet::from([root.record.id]);
        let mut visited = here.clone();
        let mut nodes = vec![root];
        let mut more = false;
        fleet.read(&here).await?;
        for _ in 0..depth {
            let mut new: Vec<u64> = fleet.neighbours(&here).await?.difference(&visited).copied().collect();
            let room = MAX_NODES - nodes.len();
            more |= new.len() > room;
            new.truncate(room);
            here = new.into_iter().collect();
            fleet.read(&here).await?;
            let mut objects: Vec<Object> = here.iter().filter_map(|id| fleet.object(*id).cloned()).collect();
            objects.sort_by(|a, b| a.record.key.cmp(&b.record.key));
            visited.extend(&here);
            nodes.extend(objects);
            if here.is_empty() {
                break;
            }
        }
        let positions: BTreeMap<u64, usize> =
            nodes.iter().enumerate().map(|(nth, object)| (object.record.id, nth)).collect();
        // Objects that a lookup left out.
        more |= !fleet.limits_reached.is_empty();
        let references = fleet.references(&visited).into_iter();
        let edges: BTreeSet<Edge> = references
            .filter_map(|(from, to, column)| {
                let relation = match column {
                    Key::Own => return None,
                    Key::Owner => "owner",
                    Key::Uses => "uses",
                    Key::About => "about",
                };
                Some(Edge { from: *positions.get(&from)?, to: *positions.get(&to)?, relation })
            })
            .collect();
        Ok(Some(Graph { nodes, edges: edges.into_iter().collect(), more }))
    }
}
