//! One look at documents that a search has to take before it can answer: keys they hold, and their ids.

use crate::Error;
use crate::rights::CallerRights;
use crate::search::plan::predicate::Match;
use crate::search::plan::relations::Objects;
use crate::search::tantivy::TextIndex;
use crate::search::tantivy::doc_set::Docs;
use crate::search::tantivy::reader::doc_sets::Question;
use crate::search::tantivy::segments::Segment;
use crate::search::tantivy::terms::Unfound;
use crate::text::columns::Key;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Numbers one look may find: relations of more objects are followed in part, and the answer says so.
pub const MOST: usize = 200_000;

/// The text index, as one caller may look at it.
pub struct Looking<'t> {
    pub text: &'t TextIndex,
    pub rights: Arc<Mutex<CallerRights>>,
    pub deadline: Instant,
    /// A look found more than it may, or came too late.
    pub cut: bool,
    /// What is to be said of what was seen.
    pub notices: BTreeSet<String>,
}

impl Looking<'_> {
    /// Ids of the readable objects that match.
    pub fn ids(&mut self, matches: &Match) -> Result<BTreeSet<u64>, Error> {
        self.numbers(matches, &["id"])
    }

    fn numbers(&mut self, matches: &Match, columns: &[&'static str]) -> Result<BTreeSet<u64>, Error> {
        let deadline = self.deadline;
        let seen = self.each(matches, |segment, docs| numbers(segment, docs, columns, deadline))?;
        let mut all = BTreeSet::new();
        for (numbers, cut) in seen {
            all.extend(numbers);
            self.cut |= cut;
        }
        Ok(all)
    }

    /// Looks into each segment, at the readable documents that match.
    pub(crate) fn each<T: Send>(
        &mut self,
        matches: &Match,
        look: impl Fn(&Segment, &Docs) -> tantivy::Result<T> + Sync,
    ) -> Result<Vec<T>, Error> {
        let (snapshot, question) = (self.text.snapshot(), Question::new(matches, self.text, self.deadline));
        let seen = self.text.each(&snapshot, |segment| match question.ask(segment, &snapshot.values, &self.rights) {
            Ok(matching) => look(segment, &matching.docs).map(Some),
            Err(Unfound::Late) => Ok(None),
            Err(Unfound::Failed(error)) => Err(error),
        });
        let seen = seen.map_err(|error| Error::text("cannot be searched", error))?;
        self.cut |= seen.iter().any(Option::is_none);
        self.notices.extend(question.notices());
        Ok(seen.into_iter().flatten().collect())
    }
}

impl Objects for Looking<'_> {
    fn keys(&mut self, matches: &Match, columns: &[Key]) -> Result<BTreeSet<u64>, Error> {
        self.numbers(matches, &columns.iter().map(|key| key.name()).collect::<Vec<_>>())
    }
}

/// The numbers documents have in the columns; whether some were left out.
fn numbers(
    segment: &Segment,
    docs: &Docs,
    columns: &[&str],
    deadline: Instant,
) -> tantivy::Result<(BTreeSet<u64>, bool)> {
    let fast = segment.parts.reader.fast_fields();
    let columns = columns.iter().map(|name| fast.u64(name)).collect::<tantivy::Result<Vec<_>>>()?;
    let (mut numbers, mut cut) = (BTreeSet::new(), false);
    docs.in_blocks(segment.parts.max_doc(), |block| {
        cut = numbers.len() >= MOST || Instant::now() > deadline;
        if !cut {
            for column in &columns {
                numbers.extend(block.iter().flat_map(|doc| column.values_for_doc(*doc)));
            }
        }
        !cut
    });
    Ok((numbers, cut))
}
