//! Which documents of a segment a caller may read (invariant I9). Decided once per distinct (cluster, resource,
//! namespace), not per document.

use super::block::Block;
use crate::rights::CallerRights;
use crate::text::columns::{Facet, SCOPE_SEPARATOR};
use crowsnest_api::names::ClusterName;
use crowsnest_api::rbac::Readable;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tantivy::columnar::StrColumn;
use tantivy::{DocId, SegmentReader};

/// Scopes of a segment read at once: of more, a search meets few, and reads those.
pub const SCOPES_AT_ONCE: usize = 4096;

/// A caller's rights in one segment.
pub struct Permitted {
    rights: Arc<Mutex<CallerRights>>,
    /// Everything may be read.
    unlimited: bool,
    scope: Option<StrColumn>,
    /// By ordinal of the column, where it has few enough to read them all.
    scopes: Vec<String>,
    /// By ordinal of the column.
    verdicts: Vec<Option<Decided>>,
    names: Option<StrColumn>,
}

#[derive(Debug, Clone)]
enum Decided {
    Yes,
    No,
    Named(Arc<BTreeSet<String>>),
}

impl Permitted {
    pub fn new(segment: &SegmentReader, rights: &Arc<Mutex<CallerRights>>) -> tantivy::Result<Self> {
        let text = |facet: Facet| segment.fast_fields().str(facet.column());
        let unlimited = rights.lock().is_unlimited();
        let scope = if unlimited { None } else { text(Facet::Scope)? };
        let number = scope.as_ref().map_or(0, |column| column.num_terms());
        let scopes = match &scope {
            Some(column) if number <= SCOPES_AT_ONCE => texts_of(column, &(0..number as u64).collect::<Vec<_>>())?,
            _ => Vec::new(),
        };
        let names = text(Facet::Name)?;
        Ok(Self { rights: Arc::clone(rights), unlimited, scope, scopes, verdicts: vec![None; number], names })
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
        let at = ordinal as usize;
        let Some(verdict) = self.verdicts.get_mut(at) else { return false };
        let decided = || match self.scopes.get(at) {
            Some(scope) => decide(&mut self.rights.lock(), scope),
            None => match texts_of(scopes, &[ordinal]).as_deref() {
                Ok([scope]) => decide(&mut self.rights.lock(), scope),
                // What cannot be read is nobody's to see.
                _ => Decided::No,
            },
        };
        match verdict.get_or_insert_with(decided) {
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
