//! Which documents of a segment a caller may read (invariant I9). Decided once per distinct (cluster, resource,
//! namespace), and remembered for the whole segment until a rule changes.

use super::tallies::Tally;
use crate::rights::CallerRights;
use crate::text::columns::{Facet, SCOPE_SEPARATOR};
use crate::text::segments::Parts;
use crate::text::values::{NONE, Values};
use crate::text::sets::{Docs, Marks};
use crowsnest_api::names::ClusterName;
use crowsnest_api::rbac::Readable;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What may be read of a scope.
#[derive(Debug, Clone)]
pub enum Decided {
    Yes,
    No,
    Named(Arc<BTreeSet<String>>),
}

/// A segment's documents that a caller may read, deleted or not, and what was counted of them.
#[derive(Debug)]
pub struct Permitted {
    pub docs: Docs,
    tallies: RwLock<HashMap<Facet, Tally>>,
}

impl Permitted {
    fn new(docs: Docs) -> Arc<Self> {
        Arc::new(Self { docs, tallies: RwLock::default() })
    }

    pub fn nothing() -> Arc<Self> {
        Self::new(Docs::none())
    }

    /// How often they have which values, where that was counted.
    pub fn tallies(&self, facets: &[Facet]) -> Vec<Option<Tally>> {
        let tallies = self.tallies.read();
        facets.iter().map(|facet| tallies.get(facet).cloned()).collect()
    }

    pub fn counted(&self, tallies: impl IntoIterator<Item = (Facet, Tally)>) {
        self.tallies.write().extend(tallies);
    }

    /// What was counted.
    pub fn facets(&self) -> Vec<Facet> {
        self.tallies.read().keys().copied().collect()
    }

    /// Memory, about.
    pub fn bytes(&self) -> usize {
        self.docs.bytes() + self.tallies.read().values().map(|tally| size_of_val(&**tally)).sum::<usize>()
    }
}

/// What of a segment a caller may read.
pub fn permitted(parts: &Parts, values: &Values, rights: &Mutex<CallerRights>) -> Arc<Permitted> {
    let unlimited = {
        let rights = rights.lock();
        if let Some(permitted) = rights.remembered(parts.id()) {
            return permitted;
        }
        rights.is_unlimited()
    };
    let docs = if unlimited { Docs::All } else { readable(parts, &verdicts(parts, values, rights)) };
    let permitted = Permitted::new(docs);
    rights.lock().remember(parts.id(), &permitted);
    permitted
}

/// By number of the scopes that are in the segment. Others are not kept waiting: nothing is locked for longer than it
/// takes to decide one of them.
fn verdicts(parts: &Parts, values: &Values, rights: &Mutex<CallerRights>) -> HashMap<u32, Decided> {
    let docs = 0..parts.max_doc();
    let mut numbers: Vec<u32> = docs.map(|doc| parts.column(Facet::Scope).first(doc)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let decided = |number: u32| {
        let scope = values.of(Facet::Scope).text(number).cloned()?;
        let decided = rights.lock().decided(&scope, decide);
        Some((number, decided))
    };
    numbers.into_iter().filter_map(decided).collect()
}

fn readable(parts: &Parts, verdicts: &HashMap<u32, Decided>) -> Docs {
    let max_doc = parts.max_doc();
    let mut marks = Marks::new(max_doc, u64::MAX);
    let mut last = (NONE, None);
    for doc in 0..max_doc {
        let scope = parts.column(Facet::Scope).first(doc);
        // Neighbours often share theirs.
        if scope != last.0 {
            last = (scope, verdicts.get(&scope));
        }
        let may_read = match last.1 {
            Some(Decided::Yes) => true,
            Some(Decided::Named(names)) => {
                parts.names.get(parts.column(Facet::Name).first(doc)).is_some_and(|name| names.contains(name))
            }
            // What has no scope is nobody's to see.
            Some(Decided::No) | None => false,
        };
        if may_read {
            marks.add(&[doc]);
        }
    }
    marks.done()
}

/// Whether one object may be read, by its [`Facet::Scope`] and name.
pub fn permits(rights: &mut CallerRights, scope: &str, name: &str) -> bool {
    match decide(rights, scope) {
        Decided::Yes => true,
        Decided::No => false,
        Decided::Named(names) => names.contains(name),
    }
}

fn decide(rights: &mut CallerRights, scope: &str) -> Decided {
    let mut parts = scope.split(SCOPE_SEPARATOR);
    let (Some(cluster), Some(resource), Some(namespace)) = (parts.next(), parts.next(), parts.next()) else {
        return Decided::No;
    };
    let (Ok(cluster), Some((group, resource))) = (ClusterName::parse(cluster), resource.split_once('/')) else {
        return Decided::No;
    };
    match rights.verdict(&cluster, group, resource, namespace) {
        Readable::All => Decided::Yes,
        Readable::Nothing => Decided::No,
        Readable::Named(names) => Decided::Named(Arc::new(names)),
    }
}
