//! Candidate terms of one segment, and their counts within a set of documents.

use super::Term;
use crate::collect::terms::TermsRequest;
use crate::document::columns::Number;
use crate::engine::SearchContext;
use crate::tantivy::doc_set::DocSet;
use crate::tantivy::segments::Segment;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use tantivy::columnar::Column;
use tantivy::index::InvertedIndexReader;
use tantivy::postings::TermInfo;
use tantivy::schema::IndexRecordOption;
use tantivy::{BitSet, DocId};

/// Maximum number of terms of a segment that are visited.
const MAX_TERMS: usize = 20_000;
/// Maximum number of candidates of a segment.
const MAX_TERMS_PER_SEGMENT: usize = 128;
/// Number of terms between checks for the end of the request.
const TERMS_BETWEEN_CHECKS: usize = 64;
/// Factor by which a lookup in a bit set is faster than in a document set; creating the bit set costs about one step
/// per document.
const BITSET_SPEEDUP: u64 = 16;

/// Terms of a segment.
pub(super) struct Candidates {
    pub all: Vec<(String, TermInfo)>,
    /// Less frequent terms were omitted.
    pub left_out: bool,
    /// Terms were omitted, of unknown frequency.
    pub truncated: bool,
}

impl Candidates {
    pub fn read(
        terms: &InvertedIndexReader,
        terms_request: &TermsRequest,
        context: &SearchContext,
    ) -> tantivy::Result<Self> {
        let (from, to) = (terms_request.prefix.as_str(), format!("{}\u{10ffff}", terms_request.prefix));
        let mut stream = terms.terms().range().ge(from).lt(to).into_stream()?;
        let keep = terms_request.limit.map_or(usize::MAX, |_| MAX_TERMS_PER_SEGMENT);
        let mut found = Self { all: Vec::new(), left_out: false, truncated: false };
        // The least frequent kept term; among equal ones the last.
        let (mut worst, mut seen) = (BinaryHeap::<(Reverse<u32>, usize)>::new(), 0);
        while stream.advance() {
            seen += 1;
            if seen > MAX_TERMS || seen % TERMS_BETWEEN_CHECKS == 0 && context.is_over() {
                found.truncated = true;
                break;
            }
            let frequency = stream.value().doc_freq;
            let full = found.all.len() >= keep;
            if full && worst.peek().is_some_and(|(Reverse(least), _)| frequency <= *least) {
                found.left_out |=
                    std::str::from_utf8(stream.key()).is_ok_and(|text| text.contains(&terms_request.substring));
                continue;
            }
            let text = String::from_utf8_lossy(stream.key());
            if !text.contains(&terms_request.substring) {
                continue;
            }
            let term = (text.into_owned(), stream.value().clone());
            if full && let Some(mut least) = worst.peek_mut() {
                found.left_out = true;
                let at = least.1;
                found.all[at] = term;
                *least = (Reverse(frequency), at);
                continue;
            }
            if terms_request.limit.is_some() {
                worst.push((Reverse(frequency), found.all.len()));
            }
            found.all.push(term);
        }
        Ok(found)
    }
}

/// Looks up candidates of other segments in a segment that omitted terms. Reads all terms again, because individual
/// lookups would each decompress a block.
pub(super) fn find_candidates(
    terms: &InvertedIndexReader,
    prefix: &str,
    candidates: &[(String, Term)],
) -> tantivy::Result<Vec<(usize, TermInfo)>> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_unstable_by(|a, b| candidates[*a].0.cmp(&candidates[*b].0));
    let (mut order, mut found) = (order.into_iter().peekable(), Vec::new());
    let mut stream = terms.terms().range().ge(prefix).into_stream()?;
    let mut visited = 0;
    while visited < MAX_TERMS && stream.advance() {
        visited += 1;
        while order.next_if(|at| candidates[*at].0.as_bytes() < stream.key()).is_some() {}
        match order.peek() {
            None => break,
            Some(at) if candidates[*at].0.as_bytes() == stream.key() => found.push((*at, stream.value().clone())),
            Some(_) => {}
        }
    }
    Ok(found)
}

/// A set of documents within which terms are counted and numbers summed.
pub(super) struct TermCounter {
    pub terms: Arc<InvertedIndexReader>,
    docs: DocSet,
    max_doc: DocId,
    bits: Option<BitSet>,
    looked_up: u64,
    /// Columns of the numbers to sum.
    amounts: Vec<Column<i64>>,
}

impl TermCounter {
    pub fn new(
        segment: &Segment,
        docs: &DocSet,
        terms: Arc<InvertedIndexReader>,
        numbers: &[Number],
    ) -> tantivy::Result<Self> {
        let fast = segment.data.reader.fast_fields();
        let amounts = numbers.iter().map(|number| fast.i64(number.name())).collect::<tantivy::Result<_>>()?;
        let max_doc = segment.data.max_doc();
        Ok(Self { terms, docs: docs.clone(), max_doc, bits: None, looked_up: 0, amounts })
    }

    /// Number of documents that contain the term. Adds their amounts to `sums`, which has an element for each number.
    pub fn count(&mut self, term: &TermInfo, sums: &mut [i64]) -> tantivy::Result<u64> {
        if matches!(self.docs, DocSet::All) && self.amounts.is_empty() {
            return Ok(term.doc_freq.into());
        }
        self.prepare_lookups(term);
        let has = |doc: &DocId| self.bits.as_ref().map_or_else(|| self.docs.contains(*doc), |bits| bits.contains(*doc));
        let mut postings = self.terms.read_block_postings_from_terminfo(term, IndexRecordOption::Basic)?;
        let mut count = 0;
        while !postings.docs().is_empty() {
            for doc in postings.docs().iter().copied().filter(has) {
                count += 1;
                for (sum, amounts) in sums.iter_mut().zip(&self.amounts) {
                    *sum = sum.saturating_add(amounts.first(doc).unwrap_or(0));
                }
            }
            postings.advance();
        }
        Ok(count)
    }

    /// Creates the bit set if the lookups of the term's documents make it worthwhile.
    fn prepare_lookups(&mut self, term: &TermInfo) {
        let DocSet::Some(docs) = &self.docs else { return };
        self.looked_up += u64::from(term.doc_freq);
        if self.bits.is_none() && self.looked_up > docs.len() / BITSET_SPEEDUP {
            let mut bits = BitSet::with_max_value(self.max_doc);
            for doc in docs.iter() {
                bits.insert(doc);
            }
            self.bits = Some(bits);
        }
    }
}
