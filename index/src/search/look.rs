//! One look at documents that a search has to take before it can answer: keys they hold, and their ids.

use super::docs::Question;
use super::gather::in_blocks;
use super::matches::Match;
use super::relations::Objects;
use crate::Error;
use crate::rights::CallerRights;
use crate::text::TextIndex;
use crate::text::columns::Key;
use crate::text::segments::Segment;
use crate::text::terms::{Docs, Unfound};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use tantivy::BitSet;
use tantivy::schema::{Field, IndexRecordOption};

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

    /// Terms of a column that begin so, each with how many readable objects that match have it; those nobody has are left
    /// out.
    pub fn terms(&mut self, matches: &Match, field: Field, prefix: &str) -> Result<BTreeMap<String, u64>, Error> {
        let deadline = self.deadline;
        let counted = self.each(matches, |segment, docs| counts(segment, docs, field, prefix, deadline))?;
        let mut all = BTreeMap::new();
        for (counts, cut) in counted {
            counts.into_iter().for_each(|(term, count)| *all.entry(term).or_default() += count);
            self.cut |= cut;
        }
        Ok(all)
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
    fn each<T: Send>(
        &mut self,
        matches: &Match,
        look: impl Fn(&Segment, &Docs) -> tantivy::Result<T> + Sync,
    ) -> Result<Vec<T>, Error> {
        let (snapshot, question) = (self.text.snapshot(), Question::new(matches, self.text, self.deadline));
        let seen =
            self.text.each(&snapshot, |segment| match question.ask(&segment.parts, &snapshot.values, &self.rights) {
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
    in_blocks(segment, docs, |block| {
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

/// Terms of one segment that are counted at most.
const MOST_TERMS: usize = 5_000;

/// How many of the documents have each term that begins so; whether some were left out.
fn counts(
    segment: &Segment,
    docs: &Docs,
    field: Field,
    prefix: &str,
    deadline: Instant,
) -> tantivy::Result<(BTreeMap<String, u64>, bool)> {
    let mut counts = BTreeMap::new();
    if docs.is_none() {
        return Ok((counts, false));
    }
    let mut found = BitSet::with_max_value(segment.parts.reader.max_doc());
    in_blocks(segment, docs, |block| {
        for doc in block {
            found.insert(*doc);
        }
        true
    });
    let terms = segment.parts.reader.inverted_index(field)?;
    let (from, to) = (prefix, format!("{prefix}\u{10ffff}"));
    let mut stream = terms.terms().range().ge(from).lt(to).into_stream()?;
    while stream.advance() {
        if counts.len() >= MOST_TERMS || Instant::now() > deadline {
            return Ok((counts, true));
        }
        let mut postings = terms.read_block_postings_from_terminfo(stream.value(), IndexRecordOption::Basic)?;
        let mut count = 0;
        while !postings.docs().is_empty() {
            count += postings.docs().iter().filter(|doc| found.contains(**doc)).count() as u64;
            postings.advance();
        }
        if count > 0 {
            counts.insert(String::from_utf8_lossy(stream.key()).into_owned(), count);
        }
    }
    Ok((counts, false))
}
