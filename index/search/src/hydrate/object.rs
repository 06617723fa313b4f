//! Details of one object for a caller: history, comparison with other clusters, and related objects.

use crate::Searcher;
use crate::authorization::decision::permits;
use crate::document::Document;
use crate::document::columns::{Key, scope_of};
use crate::execute::Sources;
use crate::plan::predicate::Match;
use crowsnest_apimachinery::differences::{Compared, Difference, differences};
use crowsnest_apimachinery::rbac::Reading;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::BodyMode;
use crowsnest_store::{Error, Object, RecordKey, Version};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of old versions.
pub const MOST_VERSIONS: usize = 100;
/// Maximum number of objects in a graph.
pub const MOST_NODES: usize = 200;
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
        let compared = if same { Compared::Versions } else { Compared::Clusters };
        let (differences, more) = differences(&before.parse()?, &after.parse()?, compared);
        Ok(Self { differences, more })
    }
}

impl Searcher {
    /// True if a caller may read an object, whether or not it exists.
    async fn permitted(&self, caller: &UserInfo, key: &RecordKey) -> bool {
        let sources = self.sources(caller, TIMEOUT).await;
        permits(&mut sources.context.rights.lock(), Reading::ByName, &scope_of(key), &key.name)
    }

    /// State and history of an object; None if the caller may not read it or the store has no record of it.
    pub async fn past(&self, caller: &UserInfo, key: &RecordKey) -> Result<Option<ObjectRevisions>, Error> {
        if !self.permitted(caller, key).await {
            return Ok(None);
        }
        let store = &self.inner.store;
        let past = ObjectRevisions { now: store.get(key).await?, versions: store.versions(key, MOST_VERSIONS).await? };
        Ok((past.now.is_some() || !past.versions.is_empty()).then_some(past))
    }

    /// Objects related to an object within `depth` steps; None as in [`Searcher::past`].
    pub async fn graph(&self, caller: &UserInfo, key: &RecordKey, depth: u8) -> Result<Option<Graph>, Error> {
        if !self.permitted(caller, key).await {
            return Ok(None);
        }
        let Some(root) = self.inner.store.get(key).await? else { return Ok(None) };
        let sources = self.sources(caller, TIMEOUT).await;
        let mut visited = BTreeSet::from([root.record.id]);
        let mut documents = vec![Document::of(&root)?];
        let mut graph = Graph { nodes: vec![root], ..Graph::default() };
        let mut from = 0;
        for _ in 0..depth {
            let near = neighbours(&sources, &documents[from..]).await?;
            let mut new: Vec<u64> = near.into_iter().filter(|id| !visited.contains(id)).collect();
            if new.is_empty() {
                break;
            }
            let room = MOST_NODES - graph.nodes.len();
            graph.more |= new.len() > room;
            new.truncate(room);
            from = graph.nodes.len();
            let mut objects = sources.store.by_ids(&new, BodyMode::Read).await?;
            objects.sort_by(|a, b| a.record.key.cmp(&b.record.key));
            for object in objects {
                visited.insert(object.record.id);
                documents.push(Document::of(&object)?);
                graph.nodes.push(object);
            }
        }
        graph.edges = edges(&documents);
        Ok(Some(graph))
    }
}

/// Ids of the readable objects that reference some of these, or that these reference.
async fn neighbours(sources: &Sources, documents: &[Document]) -> Result<BTreeSet<u64>, Error> {
    let keys = |wanted: &dyn Fn(Key) -> bool| -> BTreeSet<u64> {
        documents.iter().flat_map(|d| &d.keys).filter(|(column, _)| wanted(*column)).map(|(_, key)| *key).collect()
    };
    let to = Match::keys(&[Key::Own], keys(&|column| column != Key::Own));
    let from = Match::keys(&[Key::Owner, Key::Uses, Key::About], keys(&|column| column == Key::Own));
    let lookup = sources.engine.ids(&sources.context, &Match::Or(vec![to, from])).await?;
    Ok(lookup.numbers)
}

fn edges(documents: &[Document]) -> Vec<Edge> {
    // Several objects may share a key, such as the bindings that a quota limits.
    let mut owners: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (nth, document) in documents.iter().enumerate() {
        for (_, key) in document.keys.iter().filter(|(column, _)| *column == Key::Own) {
            owners.entry(*key).or_default().push(nth);
        }
    }
    let mut edges = BTreeSet::new();
    for (from, document) in documents.iter().enumerate() {
        for (column, key) in &document.keys {
            let relation = match column {
                Key::Own => continue,
                Key::Owner => "owner",
                Key::Uses => "uses",
                Key::About => "about",
            };
            let to = owners.get(key).into_iter().flatten().filter(|to| **to != from);
            edges.extend(to.map(|to| Edge { from, to: *to, relation }));
        }
    }
    edges.into_iter().collect()
}
