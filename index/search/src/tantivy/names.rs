//! Names of a segment's documents in memory, for sorting and substring search.

use super::values::{Ordinals, len_u32};
use crate::tantivy::doc_set::{DocSet, DocSetBuilder};
use memchr::memmem;
use std::cmp::Ordering;
use tantivy::DocId;
use tantivy::columnar::StrColumn;

/// The distinct names of a segment in ascending order.
#[derive(Default)]
pub struct SegmentNames {
    ends: Vec<u32>,
    text: String,
    /// Names that are not lower-case, in lower case.
    lowered: Vec<(u32, String)>,
    /// Start of each name's documents in `by_name`.
    starts: Vec<u32>,
    by_name: Vec<DocId>,
}

impl SegmentNames {
    pub(super) fn from_column(column: &StrColumn) -> tantivy::Result<Self> {
        let mut names = Self::default();
        let mut terms = column.dictionary().stream()?;
        while terms.advance() {
            let name = String::from_utf8_lossy(terms.key());
            let lower = name.to_lowercase();
            if lower != name {
                names.lowered.push((len_u32(&names.ends), lower));
            }
            names.text.push_str(&name);
            names.ends.push(u32::try_from(names.text.len()).unwrap_or(u32::MAX));
        }
        names.text.shrink_to_fit();
        Ok(names)
    }

    /// Sorts the documents by a counting sort.
    pub(super) fn sort(&mut self, column: &Ordinals, docs: DocId) {
        let bucket = |doc: DocId| self.ends.len().min(column.first(doc) as usize);
        let mut starts = vec![0_u32; self.ends.len() + 2];
        (0..docs).for_each(|doc| starts[bucket(doc) + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let (mut next, mut by_name) = (starts.clone(), vec![0; docs as usize]);
        for doc in 0..docs {
            let at = &mut next[bucket(doc)];
            by_name[*at as usize] = doc;
            *at += 1;
        }
        (self.starts, self.by_name) = (starts, by_name);
    }

    /// All documents in name order; those without a name last.
    pub fn sorted(&self) -> &[DocId] {
        &self.by_name
    }

    fn docs(&self, ordinal: u32) -> &[DocId] {
        match self.starts.get(ordinal as usize..ordinal as usize + 2) {
            Some([from, to]) => self.by_name.get(*from as usize..*to as usize).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Documents whose lower-case names contain `part`.
    pub fn docs_containing(&self, part: &str) -> DocSet {
        if part.is_empty() {
            return DocSet::All;
        }
        let mut ordinals = Vec::new();
        let (finder, text) = (memmem::Finder::new(part), self.text.as_bytes());
        let (mut from, mut ordinal) = (0, 0);
        while let Some(at) = finder.find(&text[from..]).map(|at| from + at) {
            // Matches are in order, and most names have one.
            ordinal += self.ends[ordinal..].partition_point(|end| *end as usize <= at);
            let end = self.ends[ordinal] as usize;
            if at + part.len() <= end {
                ordinals.push(ordinal as u32);
                from = end;
            } else {
                from = at + 1;
            }
        }
        ordinals.extend(self.lowered.iter().filter(|(_, name)| name.contains(part)).map(|(ordinal, _)| *ordinal));
        let docs = |ordinals: &[u32]| ordinals.iter().map(|ordinal| self.docs(*ordinal).len() as u64).sum();
        let mut builder = DocSetBuilder::new(len_u32(&self.by_name), docs(&ordinals));
        ordinals.iter().for_each(|ordinal| builder.add(self.docs(*ordinal)));
        builder.build()
    }

    pub fn get(&self, ordinal: u32) -> Option<&str> {
        let end = *self.ends.get(ordinal as usize)?;
        let start = ordinal.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        self.text.get(start as usize..end as usize)
    }

    /// Position of a name, or its insertion point.
    pub fn search(&self, name: &str) -> Result<u32, u32> {
        let (mut from, mut to) = (0, u32::try_from(self.ends.len()).unwrap_or(u32::MAX));
        while from < to {
            let middle = from + (to - from) / 2;
            match self.get(middle).unwrap_or_default().cmp(name) {
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;
    use crate::tantivy::TextIndex;
    use crowsnest_store::fixtures::stored;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;
    use tantivy::IndexWriter;

    proptest! {
        #[test]
        fn names_are_found_by_substring(names in vec("[abA-]{1,6}", 1..40), part in "[ab-]{1,3}") {
            let text = TextIndex::in_memory().unwrap();
            let mut writer: IndexWriter = text.writer(15_000_000).unwrap();
            for (id, name) in (0..).zip(&names) {
                let pod = json!({"kind": "Pod", "metadata": {"name": name, "namespace": "a"}});
                let document = Document::from_object(&stored("member1", id, &pod)).unwrap();
                writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            }
            writer.commit().unwrap();
            text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
            let snapshot = text.snapshot();
            let mut found = Vec::new();
            let mut sorted = Vec::new();
            for segment in &snapshot.segments {
                let name = |doc: &DocId| names[segment.data.ids.first(*doc).unwrap() as usize].clone();
                let docs = segment.data.names.docs_containing(&part);
                docs.for_each_block(segment.data.max_doc(), |block| {
                    found.extend(block.iter().map(name));
                    true
                });
                sorted.push(segment.data.names.sorted().iter().map(name).collect::<Vec<_>>());
            }
            let mut expected: Vec<String> = names.iter().filter(|n| n.to_lowercase().contains(&part)).cloned().collect();
            expected.sort();
            found.sort();
            prop_assert_eq!(found, expected);
            prop_assert!(sorted.iter().all(|names| names.is_sorted()));
            prop_assert_eq!(sorted.iter().flatten().count(), names.len());
        }
    }
}
