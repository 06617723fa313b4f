//! Values of facet columns as numbers, consistent across segments, and the values of each document.

use crate::document::columns::Facet;
use parking_lot::{RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::Arc;
use tantivy::DocId;
use tantivy::columnar::StrColumn;

/// A column's values by document. For [`Facet::Name`], they are ordinals in name order, valid within the segment;
/// for all others, numbers of [`Values`].
#[derive(Debug, PartialEq, Eq)]
pub enum Ordinals {
    Nowhere,
    /// [`NONE`] for a document without a value.
    One(Vec<u32>),
    /// Start of each document's values, and the values.
    Many(Vec<u32>, Vec<u32>),
}

/// No value.
pub const NONE: u32 = u32::MAX;

/// All values of the facet columns, each with one number in all segments.
#[derive(Default)]
pub struct Values {
    pub(super) facets: Vec<RwLock<Texts>>,
    /// Incremented when the values are renumbered.
    pub(super) generation: u32,
}

/// The values of one column.
#[derive(Default)]
pub struct Texts {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let (text, number) = (Arc::<str>::from(text), u32::try_from(self.texts.len()).unwrap_or(NONE));
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    pub fn text(&self, number: u32) -> Option<&Arc<str>> {
        self.texts.get(number as usize)
    }

    /// Upper bound of the numbers, exclusive.
    pub fn end(&self) -> usize {
        self.texts.len()
    }
}

impl Values {
    pub(super) fn new(generation: u32) -> Self {
        Self { facets: Facet::ALL.iter().map(|_| RwLock::default()).collect(), generation }
    }

    pub fn of(&self, facet: Facet) -> RwLockReadGuard<'_, Texts> {
        self.facets[facet as usize].read()
    }

    pub(super) fn number(&self) -> usize {
        self.facets.iter().map(|texts| texts.read().end()).sum()
    }
}

pub(super) fn until(values: &[u32]) -> u32 {
    u32::try_from(values.len()).unwrap_or(NONE)
}

impl Ordinals {
    pub(super) fn of(column: &StrColumn, docs: DocId, mut number: impl FnMut(u64) -> u32) -> Self {
        let (ords, mut starts, mut values) = (column.ords(), Vec::new(), Vec::with_capacity(docs as usize));
        for doc in 0..docs {
            let mut all = ords.values_for_doc(doc).map(&mut number);
            if !starts.is_empty() {
                values.extend(all);
                starts.push(until(&values));
                continue;
            }
            let (first, second) = (all.next(), all.next());
            if second.is_none() {
                values.push(first.unwrap_or(NONE));
                continue;
            }
            // First document with several values; the ones before have one or none.
            starts.reserve_exact(docs as usize + 1);
            starts.push(0);
            starts.extend(values.iter().scan(0, |until, value| {
                *until += u32::from(*value != NONE);
                Some(*until)
            }));
            values.retain(|value| *value != NONE);
            values.extend(first.into_iter().chain(second).chain(all));
            starts.push(until(&values));
        }
        if starts.is_empty() { Self::One(values) } else { Self::Many(starts, values) }
    }

    /// The first value of a document.
    pub fn first(&self, doc: DocId) -> u32 {
        self.of_doc(doc).first().copied().unwrap_or(NONE)
    }

    /// May contain [`NONE`].
    pub fn of_doc(&self, doc: DocId) -> &[u32] {
        let doc = doc as usize;
        match self {
            Self::Nowhere => &[],
            Self::One(values) => values.get(doc..=doc).unwrap_or_default(),
            Self::Many(starts, values) => match starts.get(doc..doc + 2) {
                Some([from, to]) => values.get(*from as usize..*to as usize).unwrap_or_default(),
                _ => &[],
            },
        }
    }
}

/// Numbers by the column's own ordinals.
pub(super) fn numbers(column: &StrColumn, texts: &mut Texts) -> tantivy::Result<Vec<u32>> {
    let mut numbers = Vec::with_capacity(column.num_terms());
    let mut terms = column.dictionary().stream()?;
    while terms.advance() {
        numbers.push(texts.number(&String::from_utf8_lossy(terms.key())));
    }
    Ok(numbers)
}
