//! Lookups of keys and ids that resolve a plan before the search.

use crate::document::columns::Key;
use crate::engine::{Lookup, MAX_LOOKUP_VALUES, SearchContext};
use crate::plan::predicate::Match;
use crate::tantivy::TextIndex;
use crate::tantivy::doc_set::DocSet;
use crate::tantivy::reader::doc_sets::PreparedQuery;
use crate::tantivy::schema::ID;
use crate::tantivy::segments::Segment;
use crate::tantivy::terms::EvaluationError;
use crowsnest_store::Error;
use std::collections::BTreeSet;

/// Lookup of ids, keys and terms for one caller.
pub struct SegmentLookup<'t> {
    pub text: &'t TextIndex,
    pub context: SearchContext,
    /// True if values were omitted because of a limit, or because the request is over.
    pub truncated: bool,
    /// Notices for the caller.
    notices: BTreeSet<String>,
}

impl<'t> SegmentLookup<'t> {
    pub fn new(text: &'t TextIndex, context: &SearchContext) -> Self {
        Self { text, context: context.clone(), truncated: false, notices: BTreeSet::new() }
    }

    /// Ids of the matching objects that the caller may read.
    pub fn ids(self, matches: &Match) -> Result<Lookup, Error> {
        self.read_values(matches, &[ID])
    }

    /// Keys in the columns of the matching objects that the caller may read.
    pub fn keys(self, matches: &Match, columns: &[Key]) -> Result<Lookup, Error> {
        self.read_values(matches, &columns.iter().map(|key| key.name()).collect::<Vec<_>>())
    }

    fn read_values(mut self, matches: &Match, columns: &[&'static str]) -> Result<Lookup, Error> {
        let context = self.context.clone();
        let by_segment = self.map_matching(matches, |segment, docs| column_values(segment, docs, columns, &context))?;
        let mut all = BTreeSet::new();
        for (values, truncated) in by_segment {
            all.extend(values);
            self.truncated |= truncated;
        }
        Ok(Lookup { values: all, incomplete: self.truncated, notices: self.notices })
    }

    /// Evaluates each segment and visits the readable documents that match.
    pub(crate) fn map_matching<T: Send>(
        &mut self,
        matches: &Match,
        visit: impl Fn(&Segment, &DocSet) -> tantivy::Result<T> + Sync,
    ) -> Result<Vec<T>, Error> {
        let (snapshot, query) = (self.text.snapshot(), PreparedQuery::new(matches, self.text, self.context.deadline));
        let results = self.text.map_segments(&snapshot, |segment| {
            // Even without hits, many numbers take time to look up in a segment.
            if self.context.is_over() {
                return Ok(None);
            }
            match query.evaluate(segment, &snapshot.values, &self.context.permissions) {
                Ok(matching) => visit(segment, &matching.docs).map(Some),
                Err(EvaluationError::DeadlineExceeded) => Ok(None),
                Err(EvaluationError::Failed(error)) => Err(error),
            }
        });
        let results = results.map_err(|error| Error::text("cannot be searched", error))?;
        self.truncated |= results.iter().any(Option::is_none);
        self.notices.extend(query.notices());
        Ok(results.into_iter().flatten().collect())
    }
}

/// Values of the documents in the columns, and true if some were omitted.
fn column_values(
    segment: &Segment,
    docs: &DocSet,
    columns: &[&str],
    context: &SearchContext,
) -> tantivy::Result<(BTreeSet<u64>, bool)> {
    let fast = segment.data.reader.fast_fields();
    let columns = columns.iter().map(|name| fast.u64(name)).collect::<tantivy::Result<Vec<_>>>()?;
    let (mut values, mut truncated) = (BTreeSet::new(), false);
    docs.for_each_block(segment.data.max_doc(), |block| {
        truncated = values.len() >= MAX_LOOKUP_VALUES || context.is_over();
        if !truncated {
            for column in &columns {
                values.extend(block.iter().flat_map(|doc| column.values_for_doc(*doc)));
            }
        }
        !truncated
    });
    Ok((values, truncated))
}
