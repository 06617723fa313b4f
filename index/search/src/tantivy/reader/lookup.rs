//! Lookups of keys and ids that resolve a plan before the search.

use crate::authorization::CallerRights;
use crate::document::columns::Key;
use crate::engine::{Lookup, MOST_NUMBERS, SearchContext};
use crate::plan::predicate::Match;
use crate::tantivy::TextIndex;
use crate::tantivy::doc_set::DocSet;
use crate::tantivy::reader::doc_sets::PreparedQuery;
use crate::tantivy::schema::ID;
use crate::tantivy::segments::Segment;
use crate::tantivy::terms::EvaluationError;
use crowsnest_store::Error;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Lookup of numbers and terms for one caller.
pub struct Looking<'t> {
    pub text: &'t TextIndex,
    rights: Arc<Mutex<CallerRights>>,
    pub deadline: Instant,
    /// It reached a limit or the deadline.
    pub cut: bool,
    /// Remarks for the caller.
    notices: BTreeSet<String>,
}

impl<'t> Looking<'t> {
    pub fn new(text: &'t TextIndex, context: &SearchContext) -> Self {
        let (rights, deadline) = (Arc::clone(&context.rights), context.deadline);
        Self { text, rights, deadline, cut: false, notices: BTreeSet::new() }
    }

    /// Ids of the matching objects that the caller may read.
    pub fn ids(self, matches: &Match) -> Result<Lookup, Error> {
        self.numbers(matches, &[ID])
    }

    /// Keys in the columns of the matching objects that the caller may read.
    pub fn keys(self, matches: &Match, columns: &[Key]) -> Result<Lookup, Error> {
        self.numbers(matches, &columns.iter().map(|key| key.name()).collect::<Vec<_>>())
    }

    fn numbers(mut self, matches: &Match, columns: &[&'static str]) -> Result<Lookup, Error> {
        let deadline = self.deadline;
        let seen = self.each(matches, |segment, docs| numbers(segment, docs, columns, deadline))?;
        let mut all = BTreeSet::new();
        for (numbers, cut) in seen {
            all.extend(numbers);
            self.cut |= cut;
        }
        Ok(Lookup { numbers: all, incomplete: self.cut, notices: self.notices })
    }

    /// Evaluates each segment and visits the readable documents that match.
    pub(crate) fn each<T: Send>(
        &mut self,
        matches: &Match,
        look: impl Fn(&Segment, &DocSet) -> tantivy::Result<T> + Sync,
    ) -> Result<Vec<T>, Error> {
        let (snapshot, question) = (self.text.snapshot(), PreparedQuery::new(matches, self.text, self.deadline));
        let seen = self.text.each(&snapshot, |segment| match question.ask(segment, &snapshot.values, &self.rights) {
            Ok(matching) => look(segment, &matching.docs).map(Some),
            Err(EvaluationError::Late) => Ok(None),
            Err(EvaluationError::Failed(error)) => Err(error),
        });
        let seen = seen.map_err(|error| Error::text("cannot be searched", error))?;
        self.cut |= seen.iter().any(Option::is_none);
        self.notices.extend(question.notices());
        Ok(seen.into_iter().flatten().collect())
    }
}

/// The numbers of documents in the columns, and whether some were omitted.
fn numbers(
    segment: &Segment,
    docs: &DocSet,
    columns: &[&str],
    deadline: Instant,
) -> tantivy::Result<(BTreeSet<u64>, bool)> {
    let fast = segment.parts.reader.fast_fields();
    let columns = columns.iter().map(|name| fast.u64(name)).collect::<tantivy::Result<Vec<_>>>()?;
    let (mut numbers, mut cut) = (BTreeSet::new(), false);
    docs.in_blocks(segment.parts.max_doc(), |block| {
        cut = numbers.len() >= MOST_NUMBERS || Instant::now() > deadline;
        if !cut {
            for column in &columns {
                numbers.extend(block.iter().flat_map(|doc| column.values_for_doc(*doc)));
            }
        }
        !cut
    });
    Ok((numbers, cut))
}
