//! What searches keep in memory of the text index's segments: the values of countable columns as small numbers, and the
//! readers of terms. A segment never changes but for its deletions, so this is made once, by whoever commits; read by
//! [`crate`].

use super::names::Names;
use super::schema::ID;
use super::values::{NONE, Ordinals, Values, numbers};
use crate::document::columns::Facet;
use crate::tantivy::doc_set::{Docs, Marks, without};
use crowsnest_store::Seq;
use std::collections::HashMap;
use std::sync::Arc;
use tantivy::columnar::Column;
use tantivy::index::SegmentId;
use tantivy::{DocId, Searcher, SegmentReader};

/// So many values are kept whether anybody has them still or not.
pub const KEPT: usize = 100_000;

/// The text index at a commit.
pub struct Snapshot {
    /// It holds what the store's changes up to here made, and nothing else.
    pub seq: Seq,
    pub searcher: Searcher,
    pub segments: Vec<Segment>,
    pub values: Arc<Values>,
    /// Values that were somebody's when they were counted last.
    used: usize,
}

/// Documents written together.
pub struct Segment {
    pub parts: Arc<Parts>,
    /// Deleted since.
    dead: Docs,
}

/// Of a segment, what does not change.
pub struct Parts {
    /// As the segment was first seen: its deletions are those of then.
    pub reader: SegmentReader,
    columns: Vec<Ordinals>,
    pub names: Names,
    pub ids: Column<u64>,
    /// Of [`Values`], whose numbers these columns hold.
    generation: u32,
}

/// A segment while its values have the same numbers.
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
            (None, None) => Docs::none(),
            (None, Some(alive)) => {
                let mut dead = Marks::new(reader.max_doc(), u64::from(reader.num_deleted_docs()));
                (0..reader.max_doc()).filter(|doc| alive.is_deleted(*doc)).for_each(|doc| dead.add(&[doc]));
                dead.done()
            }
        };
        Self { parts, dead }
    }

    /// Those of the documents that are not deleted.
    pub fn living(&self, docs: Docs) -> Docs {
        without(docs, &self.dead, self.parts.max_doc())
    }
}

impl Snapshot {
    /// What is in memory already of `before` is taken from there; values nobody has any more are forgotten when there are
    /// more of them than of the others, and more than `kept` in all.
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

    /// Values that some document has.
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

    /// Documents, with those that are deleted.
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
                .filter(|doc| segment.living(Docs::All).has(*doc))
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
    fn values_are_those_of_the_documents_while_others_go_and_are_forgotten() {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        let mut before: Option<Snapshot> = None;
        let mut forgot = 0;
        for round in 0..12_u64 {
            // None, one and several values, in every order.
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
        assert!(forgot > 0, "nothing was forgotten");
    }
}
