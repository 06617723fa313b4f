//! In-memory data of the text index's segments: ordinals of facet columns, names, and readers of terms. Segments
//! are immutable except for deletions, so this is created once by the writer; read by [`crate`].

use super::names::Names;
use super::schema::ID;
use super::values::{NONE, Ordinals, Values, numbers};
use crate::document::columns::Facet;
use crate::tantivy::doc_set::{DocSet, Marks, without};
use crowsnest_store::Seq;
use std::collections::HashMap;
use std::sync::Arc;
use tantivy::columnar::Column;
use tantivy::index::SegmentId;
use tantivy::{DocId, Searcher, SegmentReader};

/// Number of values that are kept even if no document uses them any more.
pub const KEPT: usize = 100_000;

/// The text index at a commit.
pub struct Snapshot {
    /// It contains exactly the changes of the store up to this seq.
    pub seq: Seq,
    pub searcher: Searcher,
    pub segments: Vec<Segment>,
    pub values: Arc<Values>,
    /// Number of used values at the last count.
    used: usize,
}

/// A segment with its current deletions.
pub struct Segment {
    pub parts: Arc<Parts>,
    /// Documents deleted since the segment was first loaded.
    dead: DocSet,
}

/// The immutable part of a segment.
pub struct Parts {
    /// Reader from the time when the segment was first loaded, with the deletions of that time.
    pub reader: SegmentReader,
    columns: Vec<Ordinals>,
    pub names: Names,
    pub ids: Column<u64>,
    /// Generation of the [`Values`] whose numbers the columns contain.
    generation: u32,
}

/// Identifies a segment and the numbering of its values.
pub type PartsId = (SegmentId, u32);

impl Parts {
    fn new(reader: &SegmentReader, values: &Values) -> tantivy::Result<Arc<Self>> {
        let (mut columns, mut names) = (Vec::with_capacity(Facet::ALL.len()), Names::default());
        for (facet, texts) in Facet::ALL.iter().zip(&values.facets) {
            let Some(column) = reader.fast_fields().str(facet.column())? else {
                columns.push(Ordinals::Nowhere);
                continue;
            };
            columns.push(match facet {
                Facet::Name => {
                    names = Names::of(&column)?;
                    Ordinals::of(&column, reader.max_doc(), |ordinal| u32::try_from(ordinal).unwrap_or(NONE))
                }
                _ => {
                    let numbers = numbers(&column, &mut texts.write())?;
                    let number = |ordinal: u64| numbers.get(ordinal as usize).copied().unwrap_or(NONE);
                    Ordinals::of(&column, reader.max_doc(), number)
                }
            });
        }
        names.sort(&columns[Facet::Name as usize], reader.max_doc());
        let (reader, ids, generation) = (reader.clone(), reader.fast_fields().u64(ID)?, values.generation);
        Ok(Arc::new(Self { reader, columns, names, ids, generation }))
    }

    pub fn id(&self) -> PartsId {
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
    fn new(parts: Arc<Parts>, reader: &SegmentReader, before: Option<&Segment>) -> Self {
        let known =
            before.map(|before| &before.dead).filter(|dead| dead.len(0) == u64::from(reader.num_deleted_docs()));
        let dead = match (known, reader.alive_bitset()) {
            (Some(dead), _) => dead.clone(),
            (None, None) => DocSet::none(),
            (None, Some(alive)) => {
                let mut dead = Marks::new(reader.max_doc(), u64::from(reader.num_deleted_docs()));
                (0..reader.max_doc()).filter(|doc| alive.is_deleted(*doc)).for_each(|doc| dead.add(&[doc]));
                dead.done()
            }
        };
        Self { parts, dead }
    }

    /// Removes deleted documents.
    pub fn living(&self, docs: DocSet) -> DocSet {
        without(docs, &self.dead, self.parts.max_doc())
    }
}

impl Snapshot {
    /// Reuses the in-memory data of `before`. Renumbers the values if the unused ones outnumber the used ones and all
    /// together exceed `kept`.
    pub fn new((searcher, seq): (Searcher, Seq), before: Option<&Snapshot>, kept: usize) -> tantivy::Result<Self> {
        if let Some(before) = before {
            let values = Arc::clone(&before.values);
            let next = Self { used: before.used, ..Self::with((searcher.clone(), seq), values, &before.segments)? };
            let all = next.values.number();
            if all <= kept.max(2 * before.used) {
                return Ok(next);
            }
            let used = next.used();
            if all <= kept.max(2 * used) {
                return Ok(Self { used, ..next });
            }
        }
        let generation = before.map_or(0, |before| before.values.generation.wrapping_add(1));
        Self::with((searcher, seq), Arc::new(Values::new(generation)), &[])
    }

    fn with((searcher, seq): (Searcher, Seq), values: Arc<Values>, before: &[Segment]) -> tantivy::Result<Self> {
        let known: HashMap<SegmentId, &Segment> =
            before.iter().map(|segment| (segment.parts.reader.segment_id(), segment)).collect();
        let mut segments = Vec::with_capacity(searcher.segment_readers().len());
        for reader in searcher.segment_readers() {
            let before = known.get(&reader.segment_id()).copied();
            let parts = match before {
                Some(before) => Arc::clone(&before.parts),
                None => Parts::new(reader, &values)?,
            };
            segments.push(Segment::new(parts, reader, before));
        }
        Ok(Self { seq, searcher, segments, values, used: 0 })
    }

    /// Number of values that some document has.
    fn used(&self) -> usize {
        let of = |facet: &Facet| {
            let mut used = vec![false; self.values.of(*facet).end()];
            for segment in &self.segments {
                let (Ordinals::One(values) | Ordinals::Many(_, values)) = segment.parts.column(*facet) else {
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
        Facet::ALL.iter().filter(|facet| **facet != Facet::Name).map(of).sum()
    }

    /// Number of documents including deleted ones.
    pub fn docs(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.parts.max_doc())).sum()
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
        let texts = snapshot.values.of(facet);
        let of = |segment: &Segment, doc: DocId| -> Vec<String> {
            let values = segment.parts.column(facet).of_doc(doc).iter();
            values.filter(|value| **value != NONE).map(|value| texts.text(*value).unwrap().to_string()).collect()
        };
        let living = |segment: &Segment| -> Vec<Vec<String>> {
            (0..segment.parts.reader.max_doc())
                .filter(|doc| segment.living(DocSet::All).has(*doc))
                .map(|doc| of(segment, doc))
                .collect()
        };
        let mut all: Vec<Vec<String>> = snapshot.segments.iter().flat_map(living).collect();
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
        let mut forgot = 0;
        for round in 0..12_u64 {
            // None, one and several values in any order.
            let ids = round * 4..round * 4 + 4;
            for id in ids.clone() {
                let document = Document::of(&stored("member1", id, &pod(id, [2, 0, 1, 3][(id + round) as usize % 4])));
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
            forgot += usize::from(before.is_some_and(|before| before.values.number() > snapshot.values.number()));
            before = Some(snapshot);
        }
        assert!(forgot > 0, "no values were dropped");
    }
}
