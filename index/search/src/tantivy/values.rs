//! Numbers the values of facet columns, with one number per value in all segments, and stores the numbers of each
//! document's values.

use crate::document::columns::Facet;
use parking_lot::{RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::Arc;
use tantivy::DocId;
use tantivy::columnar::StrColumn;

/// A column's values by document. For [`Facet::Name`], they are ordinals in name order, valid within the segment;
/// for all others, numbers of [`FacetValues`].
#[derive(Debug, PartialEq, Eq)]
pub enum Ordinals {
    /// The segment has no such column.
    Empty,
    /// [`NONE`] for a document without a value.
    One(Vec<u32>),
    /// Start of each document's values, and the values.
    Many(Vec<u32>, Vec<u32>),
}

/// Ordinal of a document without a value.
pub const NONE: u32 = u32::MAX;

/// All values of the facet columns, each with one number in all segments.
#[derive(Default)]
pub struct FacetValues {
    pub(super) facets: Vec<RwLock<ColumnValues>>,
    /// Incremented when the values are renumbered.
    pub(super) generation: u32,
}

/// The values of one column.
#[derive(Default)]
pub struct ColumnValues {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl ColumnValues {
    /// The number of a value; a new value gets the next number.
    fn number_of(&mut self, text: &str) -> u32 {
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

    /// Number of values; all numbers are less.
    pub fn count(&self) -> usize {
        self.texts.len()
    }
}

impl FacetValues {
    pub(super) fn new(generation: u32) -> Self {
        Self { facets: Facet::ALL.iter().map(|_| RwLock::default()).collect(), generation }
    }

    pub fn column(&self, facet: Facet) -> RwLockReadGuard<'_, ColumnValues> {
        self.facets[facet as usize].read()
    }

    /// Number of values in all columns.
    pub(super) fn count(&self) -> usize {
        self.facets.iter().map(|texts| texts.read().count()).sum()
    }
}

/// The length as an ordinal.
pub(super) fn len_u32(values: &[u32]) -> u32 {
    u32::try_from(values.len()).unwrap_or(NONE)
}

impl Ordinals {
    /// Reads the values of a column of `docs` documents; `number` maps ordinals of the column.
    pub(super) fn from_column(column: &StrColumn, docs: DocId, mut number: impl FnMut(u64) -> u32) -> Self {
        let (ords, mut starts, mut values) = (column.ords(), Vec::new(), Vec::with_capacity(docs as usize));
        for doc in 0..docs {
            let mut all = ords.values_for_doc(doc).map(&mut number);
            if !starts.is_empty() {
                values.extend(all);
                starts.push(len_u32(&values));
                continue;
            }
            let (first, second) = (all.next(), all.next());
            if second.is_none() {
                values.push(first.unwrap_or(NONE));
                continue;
            }
            // This is the first document with several values. The previous ones have one value or none.
            starts.reserve_exact(docs as usize + 1);
            starts.push(0);
            starts.extend(values.iter().scan(0, |end, value| {
                *end += u32::from(*value != NONE);
                Some(*end)
            }));
            values.retain(|value| *value != NONE);
            values.extend(first.into_iter().chain(second).chain(all));
            starts.push(len_u32(&values));
        }
        if starts.is_empty() { Self::One(values) } else { Self::Many(starts, values) }
    }

    /// The first value of a document, or [`NONE`].
    pub fn first(&self, doc: DocId) -> u32 {
        self.of_doc(doc).first().copied().unwrap_or(NONE)
    }

    /// All values of a document. The list may contain [`NONE`].
    pub fn of_doc(&self, doc: DocId) -> &[u32] {
        let doc = doc as usize;
        match self {
            Self::Empty => &[],
            Self::One(values) => values.get(doc..=doc).unwrap_or_default(),
            Self::Many(starts, values) => match starts.get(doc..doc + 2) {
                Some([from, to]) => values.get(*from as usize..*to as usize).unwrap_or_default(),
                _ => &[],
            },
        }
    }
}

/// Numbers the terms of a column. Returns the numbers by the column's own ordinals.
pub(super) fn number_terms(column: &StrColumn, texts: &mut ColumnValues) -> tantivy::Result<Vec<u32>> {
    let mut numbers = Vec::with_capacity(column.num_terms());
    let mut terms = column.dictionary().stream()?;
    while terms.advance() {
        numbers.push(texts.number_of(&String::from_utf8_lossy(terms.key())));
    }
    Ok(numbers)
}
