//! Which documents of a segment a caller may read (invariant I9). Decided once per distinct (cluster, resource,
//! namespace) of a segment, and remembered until a rule changes, not per document.

use super::block::Block;
use crate::rights::CallerRights;
use crate::text::columns::{Facet, SCOPE_SEPARATOR};
use crowsnest_api::names::ClusterName;
use crowsnest_api::rbac::Readable;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tantivy::columnar::StrColumn;
use tantivy::{DocId, SegmentReader};

/// Scopes of a segment decided at once: of more, a search meets few, and decides those.
pub const SCOPES_AT_ONCE: usize = 16_384;

/// By ordinal of the scopes; None where a search has to decide itself.
pub type Verdicts = Vec<Option<Decided>>;

/// A caller's rights in one segment.
pub struct Permitted {
    rights: Arc<Mutex<CallerRights>>,
    /// Everything may be read.
    unlimited: bool,
    scope: Option<StrColumn>,
    /// Those that hold for every search under the same rules.
    verdicts: Arc<Verdicts>,
    /// Those of this search.
    decided: HashMap<u64, Decided>,
    names: Option<StrColumn>,
}

/// What may be read of a scope.
#[derive(Debug, Clone)]
pub enum Decided {
    Yes,
    No,
    Named(Arc<BTreeSet<String>>),
}

impl Permitted {
    pub fn new(segment: &SegmentReader, rights: &Arc<Mutex<CallerRights>>) -> tantivy::Result<Self> {
        let text = |facet: Facet| segment.fast_fields().str(facet.column());
        let unlimited = rights.lock().is_unlimited();
        let scope = if unlimited { None } else { text(Facet::Scope)? };
        let verdicts = match &scope {
            Some(column) => verdicts(segment, column, rights)?,
            None => Arc::default(),
        };
        let names = text(Facet::Name)?;
        Ok(Self { rights: Arc::clone(rights), unlimited, scope, verdicts, decided: HashMap::new(), names })
    }

    /// Leaves the readable ones.
    pub fn retain(&mut self, block: &mut Block) {
        if self.unlimited {
            return;
        }
        match self.scope.take() {
            Some(scope) => {
                block.retain(&scope, |doc, ordinal| self.may_read(&scope, doc, ordinal));
                self.scope = Some(scope);
            }
            None => block.clear(),
        }
    }

    /// By the ordinal of the document's scope.
    fn may_read(&mut self, scopes: &StrColumn, doc: DocId, scope: Option<u64>) -> bool {
        let Some(ordinal) = scope else { return false };
        let remembered = self.verdicts.get(ordinal as usize).and_then(Option::as_ref);
        let decided = || match texts_of(scopes, &[ordinal]).as_deref() {
            Ok([scope]) => decide(&mut self.rights.lock(), scope),
            // What cannot be read is nobody's to see.
            _ => Decided::No,
        };
        let verdict = match remembered {
            Some(verdict) => verdict,
            None => self.decided.entry(ordinal).or_insert_with(decided),
        };
        match verdict {
            Decided::Yes => true,
            Decided::No => false,
            Decided::Named(names) => {
                let mut name = String::new();
                let column = self.names.as_ref().and_then(|column| Some((column, column.ords().first(doc)?)));
                let read = column.map(|(column, ordinal)| column.ord_to_str(ordinal, &mut name));
                matches!(read, Some(Ok(true))) && names.contains(&name)
            }
        }
    }
}

/// What was decided of a segment under these rules, or is now. Left open is what its cluster is asked.
fn verdicts(
    segment: &SegmentReader,
    scopes: &StrColumn,
    rights: &Mutex<CallerRights>,
) -> tantivy::Result<Arc<Verdicts>> {
    let number = scopes.num_terms();
    if number > SCOPES_AT_ONCE {
        return Ok(Arc::default());
    }
    let mut rights = rights.lock();
    if let Some(verdicts) = rights.remembered(segment.segment_id()) {
        return Ok(verdicts);
    }
    let scopes = texts_of(scopes, &(0..number as u64).collect::<Vec<_>>())?;
    let verdict = |scope: &String| {
        let cluster = scope.split(SCOPE_SEPARATOR).next().and_then(|cluster| ClusterName::parse(cluster).ok());
        let asked = cluster.is_some_and(|cluster| rights.is_reviewed(&cluster));
        (!asked).then(|| decide(&mut rights, scope))
    };
    let verdicts = Arc::new(scopes.iter().map(verdict).collect::<Verdicts>());
    rights.remember(segment.segment_id(), &verdicts);
    Ok(verdicts)
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

/// The strings of ordinals in ascending order. One by one, each would unpack the block it lies in.
pub fn texts_of(column: &StrColumn, ordinals: &[u64]) -> std::io::Result<Vec<String>> {
    let mut texts = Vec::with_capacity(ordinals.len());
    let text = |bytes: &[u8]| texts.push(String::from_utf8_lossy(bytes).into_owned());
    column.dictionary().sorted_ords_to_term_cb(ordinals, text)?;
    Ok(texts)
}
