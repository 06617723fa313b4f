//! In-memory data of the text index's segments: ordinals of facet columns, names, and readers of terms. Segments
//! are immutable except for deletions. The writer creates their data once; searches read it.

use super::names::SegmentNames;
use super::schema::ID;
use super::values::{FacetValues, NONE, Ordinals, number_terms};
use crate::document::columns::Facet;
use crate::tantivy::doc_set::{DocSet, DocSetBuilder, difference};
use crowsnest_store::Seq;
use std::collections::HashMap;
use std::sync::Arc;
use tantivy::columnar::Column;
use tantivy::index::SegmentId;
use tantivy::{DocId, Searcher, SegmentReader};

/// Number of values up to which they are not renumbered, even if no document uses most of them.
pub const MIN_RENUMBERED: usize = 100_000;

/// The text index at a commit.
pub struct Snapshot {
    /// It contains exactly the changes of the store up to this seq.
    pub seq: Seq,
    pub searcher: Searcher,
    pub segments: Vec<Segment>,
    pub values: Arc<FacetValues>,
    /// Number of used values at the last count.
    used: usize,
}

/// A segment with its current deletions.
pub struct Segment {
    pub data: Arc<SegmentData>,
    /// Documents deleted since the segment was first loaded.
    deleted: DocSet,
}

/// The immutable data of a segment.
pub struct SegmentData {
    /// Reader from the time when the segment was first loaded, with the deletions of that time.
    pub reader: SegmentReader,
    columns: Vec<Ordinals>,
    pub names: SegmentNames,
    pub ids: Column<u64>,
    /// Generation of the [`FacetValues`] whose numbers the columns contain.
    generation: u32,
}

/// Identifies a segment and the numbering of its values.
pub type SegmentDataId = (SegmentId, u32);

impl SegmentData {
    fn new(reader: &SegmentReader, values: &FacetValues) -> tantivy::Result<Arc<Self>> {
        let (mut columns, mut names) = (Vec::with_capacity(Facet::ALL.len()), SegmentNames::default());
        for (facet, texts) in Facet::ALL.iter().zip(&values.facets) {
            let Some(column) = reader.fast_fields().str(facet.column())? else {
                columns.push(Ordinals::Empty);
                continue;
            };
            columns.push(match facet {
                Facet::Name => {
                    names = SegmentNames::from_column(&column)?;
                    Ordinals::from_column(&column, reader.max_doc(), |ordinal| u32::try_from(ordinal).unwrap_or(NONE))
                }
                _ => {
                    let numbers = number_terms(&column, &mut texts.write())?;
                    let number = |ordinal: u64| numbers.get(ordinal as usize).copied().unwrap_or(NONE);
                    Ordinals::from_column(&column, reader.max_doc(), number)
                }
            });
        }
        names.sort(&columns[Facet::Name as usize], reader.max_doc());
        let (reader, ids, generation) = (reader.clone(), reader.fast_fields().u64(ID)?, values.generation);
        Ok(Arc::new(Self { reader, columns, names, ids, generation }))
    }

    pub fn id(&self) -> SegmentDataId {
        (self.reader.segment_id(), self.generation)
    }

    pub fn max_doc(&self) -> DocId {
        self.reader.max_doc()
    }

    pub fn column(&self, facet: Facet) -> &Ordinals {
        &self.columns[facet as usize]
    }
}

impl Segment {
    fn new(data: Arc<SegmentData>, reader: &SegmentReader, before: Option<&Segment>) -> Self {
        let unchanged = before
            .map(|before| &before.deleted)
            .filter(|deleted| deleted.len(0) == u64::from(reader.num_deleted_docs()));
        let deleted = match (unchanged, reader.alive_bitset()) {
            (Some(deleted), _) => deleted.clone(),
            (None, None) => DocSet::empty(),
            (None, Some(alive)) => {
                let mut deleted = DocSetBuilder::new(reader.max_doc(), u64::from(reader.num_deleted_docs()));
                (0..reader.max_doc()).filter(|doc| alive.is_deleted(*doc)).for_each(|doc| deleted.add(&[doc]));
                deleted.build()
            }
        };
        Self { data, deleted }
    }

    /// Removes deleted documents from a set.
    pub fn without_deleted(&self, docs: DocSet) -> DocSet {
        difference(docs, &self.deleted, self.data.max_doc())
    }
}

impl Snapshot {
    /// Reuses the in-memory data of `before`. Renumbers the values if more than half of them are unused and there are
    /// more than `min_renumbered`.
    pub fn new(
        (searcher, seq): (Searcher, Seq),
        before: Option<&Snapshot>,
        min_renumbered: usize,
    ) -> tantivy::Result<Self> {
        if let Some(before) = before {
            let values = Arc::clone(&before.values);
            let next =
                Self { used: before.used, ..Self::from_segments((searcher.clone(), seq), values, &before.segments)? };
            let all = next.values.count();
            if all <= min_renumbered.max(2 * before.used) {
                return Ok(next);
            }
            let used = next.count_used();
            if all <= min_renumbered.max(2 * used) {
                return Ok(Self { used, ..next });
            }
        }
        let generation = before.map_or(0, |before| before.values.generation.wrapping_add(1));
        Self::from_segments((searcher, seq), Arc::new(FacetValues::new(generation)), &[])
    }

    /// Creates the snapshot of a searcher with data of the segments `before` that still exist.
    fn from_segments(
        (searcher, seq): (Searcher, Seq),
        values: Arc<FacetValues>,
        before: &[Segment],
    ) -> tantivy::Result<Self> {
        let segments_before: HashMap<SegmentId, &Segment> =
            before.iter().map(|segment| (segment.data.reader.segment_id(), segment)).collect();
        let mut segments = Vec::with_capacity(searcher.segment_readers().len());
        for reader in searcher.segment_readers() {
            let before = segments_before.get(&reader.segment_id()).copied();
            let data = match before {
                Some(before) => Arc::clone(&before.data),
                None => SegmentData::new(reader, &values)?,
            };
            segments.push(Segment::new(data, reader, before));
        }
        Ok(Self { seq, searcher, segments, values, used: 0 })
    }

    /// Number of values that at least one document has.
    fn count_used(&self) -> usize {
        let count = |facet: &Facet| {
            let mut used = vec![false; self.values.column(*facet).count()];
            for segment in &self.segments {
                let (Ordinals::One(values) | Ordinals::Many(_, values)) = segment.data.column(*facet) else {
                    continue;
                };
                for value in values {
                    if let Some(used) = used.get_mut(*value as usize) {
                        *used = true;
                    }
                }
            }
            used.into_iter().filter(|used| *used).count()
        };
        Facet::ALL.iter().filter(|facet| **facet != Facet::Name).map(count).sum()
    }

    /// Number of documents including deleted ones.
    pub fn docs(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.data.max_doc())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;
    use crate::tantivy::TextIndex;
    use crowsnest_store::fixtures::stored;
    use serde_json::{Value, json};
    use tantivy::{IndexWriter, Term};

    fn values(snapshot: &Snapshot, facet: Facet) -> Vec<Vec<String>> {
        let texts = snapshot.values.column(facet);
        let values_of = |segment: &Segment, doc: DocId| -> Vec<String> {
            let values = segment.data.column(facet).of_doc(doc).iter();
            values.filter(|value| **value != NONE).map(|value| texts.text(*value).unwrap().to_string()).collect()
        };
        let values_of_all = |segment: &Segment| -> Vec<Vec<String>> {
            (0..segment.data.reader.max_doc())
                .filter(|doc| segment.without_deleted(DocSet::All).contains(*doc))
                .map(|doc| values_of(segment, doc))
                .collect()
        };
        let mut all: Vec<Vec<String>> = snapshot.segments.iter().flat_map(values_of_all).collect();
        all.sort();
        all
    }

    fn pod(id: u64, images: usize) -> Value {
        let containers: Vec<Value> = (0..images).map(|nth| json!({"image": format!("image-{id}-{nth}")})).collect();
        json!({"kind": "Pod", "metadata": {"name": format!("pod-{id}"), "namespace": format!("team-{id}")},
            "spec": {"containers": containers}})
    }

    #[test]
    fn unused_values_are_dropped() {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        let mut before: Option<Snapshot> = None;
        let mut renumberings = 0;
        for round in 0..12_u64 {
            // Pods with no image, one and several, in different orders.
            let ids = round * 4..round * 4 + 4;
            for id in ids.clone() {
                let document =
                    Document::from_object(&stored("member1", id, &pod(id, [2, 0, 1, 3][(id + round) as usize % 4])));
                writer.add_document(document.unwrap().to_tantivy(&text.columns)).unwrap();
            }
            if let Some(old) = ids.start.checked_sub(4) {
                for id in old..ids.start {
                    writer.delete_term(Term::from_field_u64(text.columns.id, id));
                }
            }
            writer.commit().unwrap();
            text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
            let snapshot = Snapshot::new((text.searcher(), Seq(0)), before.as_ref(), 10).unwrap();
            let images =
                |id: u64| (0..[2, 0, 1, 3][(id + round) as usize % 4]).map(move |nth| format!("image-{id}-{nth}"));
            let mut expected: Vec<Vec<String>> = ids.clone().map(|id| images(id).collect()).collect();
            expected.sort();
            assert_eq!(values(&snapshot, Facet::Image), expected, "round {round}");
            let mut expected: Vec<Vec<String>> = ids.map(|id| vec![format!("team-{id}")]).collect();
            expected.sort();
            assert_eq!(values(&snapshot, Facet::Namespace), expected, "round {round}");
            renumberings += usize::from(before.is_some_and(|before| before.values.count() > snapshot.values.count()));
            before = Some(snapshot);
        }
        assert!(renumberings > 0, "no values were dropped");
    }
}
