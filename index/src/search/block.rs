//! Matching documents of a segment, looked at column by column: much faster than one by one.

use tantivy::columnar::{Column, RowId, StrColumn};
use tantivy::{DocId, Score};

/// Documents looked at together.
const SIZE: usize = 512;

/// Documents in ascending order with their scores, and room to read a column of them.
#[derive(Default)]
pub(super) struct Block {
    met: Vec<(DocId, Score)>,
    docs: Vec<DocId>,
    with_value: Vec<DocId>,
    rows: Vec<RowId>,
    values: Vec<u64>,
}

impl Block {
    /// Whether it is full now.
    pub fn add(&mut self, doc: DocId, score: Score) -> bool {
        self.met.push((doc, score));
        self.docs.push(doc);
        self.docs.len() >= SIZE
    }

    pub fn clear(&mut self) {
        self.met.clear();
        self.docs.clear();
    }

    pub fn met(&self) -> &[(DocId, Score)] {
        &self.met
    }

    /// Keeps the documents that pass, each with its first ordinal in the column.
    pub fn retain(&mut self, column: &StrColumn, mut passes: impl FnMut(DocId, Option<u64>) -> bool) {
        self.read(column.ords());
        let mut values = self.with_value.iter().zip(&self.values).peekable();
        self.met.retain(|(doc, _)| {
            let value = values.next_if(|(with, _)| *with == doc).map(|(_, value)| *value);
            while values.next_if(|(with, _)| *with == doc).is_some() {}
            passes(*doc, value)
        });
        self.docs.clear();
        self.docs.extend(self.met.iter().map(|(doc, _)| doc));
    }

    /// Counts each ordinal of the column.
    pub fn count(&mut self, column: &StrColumn, counts: &mut [u64]) {
        self.read(column.ords());
        for ordinal in &self.values {
            if let Some(count) = counts.get_mut(*ordinal as usize) {
                *count += 1;
            }
        }
    }

    /// The first value of each document in the column, in the order of [`Block::met`].
    pub fn firsts(&mut self, column: &Column<u64>, firsts: &mut Vec<Option<u64>>) {
        self.read(column);
        firsts.clear();
        let mut values = self.with_value.iter().zip(&self.values).peekable();
        for doc in &self.docs {
            firsts.push(values.next_if(|(with, _)| *with == doc).map(|(_, value)| *value));
            while values.next_if(|(with, _)| *with == doc).is_some() {}
        }
    }

    /// Every value of the column.
    pub fn numbers(&mut self, column: &Column<u64>) -> impl Iterator<Item = u64> {
        self.read(column);
        self.values.iter().copied()
    }

    fn read(&mut self, column: &Column<u64>) {
        self.with_value.clear();
        self.rows.clear();
        column.row_ids_for_docs(&self.docs, &mut self.with_value, &mut self.rows);
        self.values.resize(self.rows.len(), 0);
        column.values.get_vals(&self.rows, &mut self.values);
    }
}
