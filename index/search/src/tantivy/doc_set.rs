//! Sets of documents of one segment, and operations on them.

use roaring::RoaringBitmap;
use std::sync::Arc;
use tantivy::DocId;

/// A set is collected as a list if it is expected to have less than one document per this number of the segment's
/// documents.
const SPARSE_RATIO: u32 = 32;
/// Number of documents processed at once.
const BLOCK_DOCS: usize = 1_024;

/// Documents of one segment.
#[derive(Debug, Clone, PartialEq)]
pub enum DocSet {
    All,
    Some(Arc<RoaringBitmap>),
}

impl DocSet {
    pub fn empty() -> Self {
        Self::Some(Arc::default())
    }

    pub fn new(docs: RoaringBitmap) -> Self {
        Self::Some(Arc::new(docs))
    }

    /// Approximate memory size in bytes.
    pub fn bytes(&self) -> usize {
        if let Self::Some(docs) = self { docs.serialized_size() } else { 0 }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Some(docs) if docs.is_empty())
    }

    /// Number of documents, in a segment with `max_doc` documents.
    pub fn len(&self, max_doc: DocId) -> u64 {
        if let Self::Some(docs) = self { docs.len() } else { max_doc.into() }
    }

    pub fn contains(&self, doc: DocId) -> bool {
        if let Self::Some(docs) = self { docs.contains(doc) } else { true }
    }

    /// True if this set contains all of the others.
    pub fn is_superset(&self, others: &Self) -> bool {
        match (self, others) {
            (Self::All, _) => true,
            (Self::Some(_), Self::All) => false,
            (Self::Some(docs), Self::Some(others)) => docs.is_superset(others),
        }
    }

    /// Visits the documents in ascending order, in blocks, until `visit` returns false.
    pub fn for_each_block(&self, max_doc: DocId, mut visit: impl FnMut(&[DocId]) -> bool) {
        let mut block = [0; BLOCK_DOCS];
        match self {
            Self::Some(docs) => {
                let mut docs = docs.iter();
                loop {
                    let next = docs.next_many(&mut block);
                    if next.is_empty() || !visit(next) {
                        return;
                    }
                }
            }
            Self::All => {
                let mut next = 0;
                while next < max_doc {
                    let count = max_doc.min(next + BLOCK_DOCS as DocId) - next;
                    let block = &mut block[..count as usize];
                    block.iter_mut().zip(next..).for_each(|(into, doc)| *into = doc);
                    if !visit(block) {
                        return;
                    }
                    next += count;
                }
            }
        }
    }
}

/// Collects documents in any order.
pub enum DocSetBuilder {
    Few(Vec<DocId>),
    /// A bit per document, and the number of documents in the segment.
    Many(Vec<u64>, DocId),
}

impl DocSetBuilder {
    pub fn new(max_doc: DocId, expected: u64) -> Self {
        match expected < u64::from(max_doc / SPARSE_RATIO) {
            true => Self::Few(Vec::with_capacity(expected as usize)),
            false => Self::Many(vec![0; max_doc.div_ceil(64) as usize], max_doc),
        }
    }

    pub fn add(&mut self, docs: &[DocId]) {
        match self {
            Self::Few(few) => few.extend_from_slice(docs),
            Self::Many(words, _) => {
                for doc in docs {
                    if let Some(word) = words.get_mut((doc / 64) as usize) {
                        *word |= 1 << (doc % 64);
                    }
                }
            }
        }
    }

    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Many(words, docs) if words.iter().map(|word| word.count_ones()).sum::<u32>() >= *docs)
    }

    pub fn build(self) -> DocSet {
        if self.is_complete() {
            return DocSet::All;
        }
        let mut docs = match self {
            Self::Few(mut few) => {
                few.sort_unstable();
                few.dedup();
                few.into_iter().collect::<RoaringBitmap>()
            }
            Self::Many(words, _) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                RoaringBitmap::from_lsb0_bytes(0, &bytes)
            }
        };
        docs.optimize();
        DocSet::new(docs)
    }
}

/// Union of the sets.
pub fn union(parts: &[DocSet]) -> DocSet {
    let mut bitmaps: Vec<&Arc<RoaringBitmap>> = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            DocSet::All => return DocSet::All,
            DocSet::Some(docs) if docs.is_empty() => {}
            DocSet::Some(docs) => bitmaps.push(docs),
        }
    }
    match bitmaps.as_slice() {
        [] => DocSet::empty(),
        [one] => DocSet::Some(Arc::clone(one)),
        [first, rest @ ..] => {
            let mut docs = RoaringBitmap::clone(first);
            rest.iter().for_each(|other| docs |= &***other);
            DocSet::new(docs)
        }
    }
}

/// Intersection of the sets, beginning with the smallest ones.
pub fn intersection(parts: &[DocSet]) -> DocSet {
    let bitmaps = parts.iter().filter_map(|part| if let DocSet::Some(docs) = part { Some(docs) } else { None });
    let mut bitmaps: Vec<&Arc<RoaringBitmap>> = bitmaps.collect();
    bitmaps.sort_by_key(|docs| docs.len());
    match bitmaps.as_slice() {
        [] => DocSet::All,
        [one] => DocSet::Some(Arc::clone(one)),
        [first, second, rest @ ..] => {
            let mut docs = &***first & &***second;
            rest.iter().for_each(|other| docs &= &***other);
            DocSet::new(docs)
        }
    }
}

/// Difference of two sets: `docs` without `others`, in a segment with `max_doc` documents.
pub fn difference(docs: DocSet, others: &DocSet, max_doc: DocId) -> DocSet {
    match (docs, others) {
        (_, DocSet::All) => DocSet::empty(),
        (docs, DocSet::Some(others)) if others.is_empty() => docs,
        (DocSet::All, DocSet::Some(others)) => {
            let mut docs = RoaringBitmap::new();
            docs.insert_range(0..max_doc);
            docs -= &**others;
            DocSet::new(docs)
        }
        (DocSet::Some(docs), DocSet::Some(others)) => DocSet::new(&*docs - &**others),
    }
}
