//! Filters of the numbers that a segment has in a column, in memory.
//!
//! A search for objects by id or key looks its numbers up in each segment, but most occur in only one of them. A lookup in a
//! dictionary of terms decompresses a block of some hundred terms; the filter avoids those without effect.

use parking_lot::Mutex;
use roaring::RoaringBitmap;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use tantivy::SegmentReader;
use tantivy::index::SegmentId;
use tantivy::schema::Field;

/// Limit on the memory of all filters of an index.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum bytes of a filter per distinct number, by which the memory of a filter is counted before it is created.
const BYTES_PER_NUMBER: u64 = 4;
/// Mean number of documents per distinct number above which a filter is created from the dictionary of terms, which has each
/// number once but is slower to read, instead of from the documents' values.
const REPETITIONS: usize = 4;
/// Bits of a hash in addition to those that count the numbers: about one in 2^7 absent numbers passes, and more only if
/// [`NumberFilter::bits`] reaches its maximum.
const EXTRA_BITS: u32 = 7;
/// Multiplier of Fibonacci hashing: 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// A set of numbers that may contain others. It needs two to four bytes per distinct number.
#[derive(Debug)]
pub struct NumberFilter {
    hashes: RoaringBitmap,
    /// Number of bits of each hash: the bits of the count of distinct numbers and [`EXTRA_BITS`], so 8 to 32.
    bits: u32,
}

impl NumberFilter {
    /// A filter of numbers, of which `distinct` are different.
    pub fn new(numbers: impl Iterator<Item = u64>, distinct: usize) -> Self {
        let bits = (distinct.max(1).ilog2() + 1 + EXTRA_BITS).min(u32::BITS);
        let mut hashes: Vec<u32> = numbers.map(|number| hash(number, bits)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        Self { hashes: hashes.into_iter().collect(), bits }
    }

    /// False only if the number is not in the set. May return true for numbers outside of it.
    pub fn may_contain(&self, number: u64) -> bool {
        self.hashes.contains(hash(number, self.bits))
    }
}

/// The filters of an index, created when they are used first. They remain valid until their segment is merged, because
/// deletions and renumbered facet values do not affect them.
///
/// Their memory is limited. A filter avoids about as many lookups in a small segment as in a large one, so the largest
/// filters are left out.
pub struct NumberFilters {
    entries: Mutex<HashMap<FilterId, Entry>>,
    /// Columns that are left out, so that their size is not read from the segment at each lookup. Locked after `entries`.
    left_out: Mutex<HashSet<FilterId>>,
    max_bytes: u64,
}

/// A column of a segment.
type FilterId = (SegmentId, Field);

/// A filter that one of its users creates while the others wait.
type SharedFilter = Arc<OnceLock<Arc<NumberFilter>>>;

struct Entry {
    filter: SharedFilter,
    /// Maximum memory of the filter.
    bytes: u64,
}

impl Default for NumberFilters {
    fn default() -> Self {
        Self::with_limit(MAX_BYTES)
    }
}

impl NumberFilters {
    fn with_limit(max_bytes: u64) -> Self {
        Self { entries: Mutex::default(), left_out: Mutex::default(), max_bytes }
    }

    /// The filter of a column; None if it is left out. Only users of the same filter wait while it is created.
    pub fn get(&self, reader: &SegmentReader, field: Field) -> tantivy::Result<Option<Arc<NumberFilter>>> {
        let id = (reader.segment_id(), field);
        let existing = self.entries.lock().get(&id).map(|entry| Arc::clone(&entry.filter));
        if let Some(filter) = existing.as_ref().and_then(|filter| filter.get()) {
            return Ok(Some(Arc::clone(filter)));
        }
        if self.left_out.lock().contains(&id) {
            return Ok(None);
        }
        let index = reader.inverted_index(field)?;
        let distinct = index.terms().num_terms();
        let Some(filter) = self.reserve(id, (distinct as u64).saturating_mul(BYTES_PER_NUMBER)) else {
            return Ok(None);
        };
        let values = reader.fast_fields().u64(reader.schema().get_field_name(field))?.values;
        // Many objects may have the same numbers, such as that of a ConfigMap that all Pods of a namespace use.
        let is_repetitive = distinct < values.num_vals() as usize / REPETITIONS;
        let mut terms = index.terms().stream()?;
        let create = || {
            Arc::new(match is_repetitive {
                true => {
                    NumberFilter::new(std::iter::from_fn(|| terms.advance().then(|| number(terms.key()))), distinct)
                }
                false => NumberFilter::new((0..values.num_vals()).map(|row| values.get_val(row)), distinct),
            })
        };
        Ok(Some(Arc::clone(filter.get_or_init(create))))
    }

    /// Reserves the memory of a filter, for which larger filters are dropped if necessary. None if it exceeds the limit
    /// together with the filters that are not larger. A dropped filter is therefore not created again until segments
    /// are merged.
    fn reserve(&self, id: FilterId, bytes: u64) -> Option<SharedFilter> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&id) {
            return Some(Arc::clone(&entry.filter));
        }
        let not_larger: u64 = entries.values().map(|entry| entry.bytes).filter(|other| *other <= bytes).sum();
        if not_larger.saturating_add(bytes) > self.max_bytes {
            self.left_out.lock().insert(id);
            return None;
        }
        let mut total = entries.values().map(|entry| entry.bytes).sum::<u64>().saturating_add(bytes);
        while total > self.max_bytes {
            let (largest, size) =
                entries.iter().map(|(id, entry)| (*id, entry.bytes)).max_by_key(|(_, bytes)| *bytes)?;
            entries.remove(&largest);
            total -= size;
        }
        let filter = SharedFilter::default();
        entries.insert(id, Entry { filter: Arc::clone(&filter), bytes });
        Some(filter)
    }

    /// The columns of which other segments than these have filters.
    pub fn columns_of_other_segments(&self, segments: &HashSet<SegmentId>) -> BTreeSet<Field> {
        let entries = self.entries.lock();
        entries.keys().filter(|(segment, _)| !segments.contains(segment)).map(|(_, field)| *field).collect()
    }

    /// Drops the filters of all other segments. Columns that were left out are tried again if this frees memory.
    pub fn retain(&self, segments: &HashSet<SegmentId>) {
        let mut entries = self.entries.lock();
        let count = entries.len();
        entries.retain(|(segment, _), _| segments.contains(segment));
        let is_freed = entries.len() < count;
        self.left_out.lock().retain(|(segment, _)| !is_freed && segments.contains(segment));
    }
}

/// The number of a term, whose bytes are in the order of their significance.
fn number(term: &[u8]) -> u64 {
    term.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// The highest bits of the product; at most 32.
fn hash(number: u64, bits: u32) -> u32 {
    (number.wrapping_mul(MULTIPLIER) >> (u64::BITS - bits)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::columns::Key;
    use crate::tantivy::TextIndex;
    use crowsnest_store::Seq;
    use proptest::prelude::*;
    use rstest::rstest;

    proptest! {
        #[test]
        fn contained_numbers_pass(numbers in prop::collection::vec(any::<u64>(), 0..200)) {
            let filter = NumberFilter::new(numbers.iter().copied(), numbers.len());
            prop_assert!(numbers.iter().all(|number| filter.may_contain(*number)));
        }
    }

    #[rstest]
    #[case::sequence(1)]
    #[case::aligned(1 << 32)]
    #[case::scattered(0x0123_4567_89AB_CDEF)]
    fn few_other_numbers_pass(#[case] distance: u64) {
        let multiples = |range: std::ops::Range<u64>| range.map(move |nth| nth.wrapping_mul(distance));
        let numbers: Vec<u64> = multiples(0..10_000).collect();
        let filter = NumberFilter::new(numbers.iter().copied(), numbers.len());
        let passed = multiples(10_000..20_000).filter(|number| filter.may_contain(*number)).count();
        assert!(passed < 200, "{passed} of 10,000");
    }

    /// An index of one segment with one document, and its reader.
    fn index() -> (Arc<TextIndex>, SegmentReader) {
        index_of(&[8])
    }

    /// An index of one segment with a document for each number that it uses, and its reader.
    fn index_of(uses: &[u64]) -> (Arc<TextIndex>, SegmentReader) {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: tantivy::IndexWriter = text.writer(15_000_000).unwrap();
        for (id, number) in (7..).zip(uses) {
            let mut document = tantivy::TantivyDocument::new();
            document.add_u64(text.columns.id, id);
            document.add_u64(text.columns.key(Key::Uses), *number);
            writer.add_document(document).unwrap();
        }
        writer.commit().unwrap();
        text.reload(Seq(0), &|_, _, _| {}).unwrap();
        let reader = text.snapshot().segments[0].data.reader.clone();
        (text, reader)
    }

    /// Filters are requested in sequence; their columns are numbered from 0.
    #[rstest]
    #[case::all_fit(&[6, 4], &[0, 1])]
    #[case::too_large(&[11], &[])]
    #[case::larger_than_the_rest(&[4, 7], &[0])]
    #[case::replaces_a_larger_one(&[7, 4], &[1])]
    #[case::replaces_only_the_largest(&[3, 6, 2], &[0, 2])]
    #[case::keeps_the_first_ones_of_the_same_size(&[4, 4, 4], &[0, 1])]
    fn the_largest_filters_are_left_out(#[case] sizes: &[u64], #[case] expected: &[u32]) {
        let (filters, segment) = (NumberFilters::with_limit(10), SegmentId::generate_random());
        let request_all = || {
            for (nth, bytes) in (0..).zip(sizes) {
                filters.reserve((segment, Field::from_field_id(nth)), *bytes);
            }
        };
        let cached_fields = || -> BTreeSet<Field> { filters.entries.lock().keys().map(|(_, field)| *field).collect() };
        let expected: BTreeSet<Field> = expected.iter().map(|nth| Field::from_field_id(*nth)).collect();
        request_all();
        assert_eq!(cached_fields(), expected);
        request_all();
        assert_eq!(cached_fields(), expected, "filters that were left out are requested again");
    }

    #[test]
    fn filters_are_kept_until_their_segment_is_merged() {
        let (text, reader) = index();
        let (filters, field) = (NumberFilters::default(), text.columns.id);
        let filter = filters.get(&reader, field).unwrap().unwrap();
        assert!(filter.may_contain(7));
        let segments = HashSet::from([reader.segment_id()]);
        assert!(filters.columns_of_other_segments(&segments).is_empty());
        filters.retain(&segments);
        assert!(Arc::ptr_eq(&filter, &filters.get(&reader, field).unwrap().unwrap()));
        assert_eq!(filters.columns_of_other_segments(&HashSet::new()), BTreeSet::from([field]));
        filters.retain(&HashSet::new());
        assert!(!Arc::ptr_eq(&filter, &filters.get(&reader, field).unwrap().unwrap()));
    }

    #[test]
    fn a_column_without_space_has_no_filter() {
        let (text, reader) = index();
        assert!(NumberFilters::with_limit(BYTES_PER_NUMBER - 1).get(&reader, text.columns.id).unwrap().is_none());
        assert!(NumberFilters::with_limit(BYTES_PER_NUMBER).get(&reader, text.columns.id).unwrap().is_some());
    }

    #[test]
    fn columns_without_space_are_tried_again_after_a_merge() {
        let (text, reader) = index();
        let filters = NumberFilters::with_limit(BYTES_PER_NUMBER);
        let (segments, left_out) = (HashSet::from([reader.segment_id()]), (reader.segment_id(), text.columns.id));
        assert!(filters.get(&reader, text.columns.key(Key::Uses)).unwrap().is_some());
        for _ in 0..2 {
            assert!(filters.get(&reader, text.columns.id).unwrap().is_none());
            assert_eq!(*filters.left_out.lock(), HashSet::from([left_out]));
            filters.retain(&segments);
        }
        filters.retain(&HashSet::new());
        assert!(filters.get(&reader, text.columns.id).unwrap().is_some());
    }

    #[rstest]
    #[case::read_from_values(2)]
    #[case::read_from_terms(20)]
    fn memory_is_counted_by_distinct_numbers(#[case] documents: usize) {
        const NUMBERS: [u64; 2] = [8, u64::MAX - 0x0102_0304];
        let (text, reader) = index_of(&NUMBERS.repeat(documents));
        let (filters, uses) = (NumberFilters::with_limit(2 * BYTES_PER_NUMBER), text.columns.key(Key::Uses));
        let (filter, expected) =
            (filters.get(&reader, uses).unwrap().unwrap(), NumberFilter::new(NUMBERS.into_iter(), 2));
        assert_eq!((&filter.hashes, filter.bits), (&expected.hashes, expected.bits));
        assert!(filters.get(&reader, text.columns.id).unwrap().is_none());
    }

    /// The filter of one column is created while the filter of another column is being created.
    #[test]
    fn filters_do_not_wait_for_those_of_other_columns() {
        let (text, reader) = index();
        let filters = NumberFilters::default();
        let slow = filters.reserve((reader.segment_id(), text.columns.id), BYTES_PER_NUMBER).unwrap();
        let get_uses = || filters.get(&reader, text.columns.key(Key::Uses)).unwrap().unwrap();
        assert!(slow.get_or_init(get_uses).may_contain(8));
    }

    #[test]
    fn an_empty_set_rejects_all() {
        let filter = NumberFilter::new(std::iter::empty(), 0);
        assert!(!filter.may_contain(0) && !filter.may_contain(u64::MAX));
    }
}
