//! The terms of a column that most of some documents have.
//!
//! Where a segment has very many of them, its most frequent ones stand for it: a term that is among the most frequent of all
//! is among those of some segment, but for very even spreads, of which any are as good.

use super::look::Looking;
use super::matches::Match;
use crate::Error;
use crate::text::columns::Word;
use crate::text::segments::Segment;
use crate::text::sets::Docs;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Instant;
use tantivy::index::InvertedIndexReader;
use tantivy::postings::TermInfo;
use tantivy::schema::IndexRecordOption;
use tantivy::{BitSet, DocId};

/// Terms of one segment that are looked at, at most.
const MOST_TERMS: usize = 20_000;
/// Terms of one segment that may be among the most frequent of all, and of all segments together.
const MOST_OF_A_SEGMENT: usize = 128;
const MOST_OF_ALL: usize = 256;
/// Documents of terms that are looked at, at most.
const MOST_POSTINGS: u64 = 4_000_000;
/// Terms between two looks at the time.
const LOOK_UP: usize = 64;
/// Looking a document up in bits is so many times faster than in a set, and making the bits costs about a step for each.
const FASTER: u64 = 16;

/// Terms, each with how many of the documents have it.
pub(super) type Counted = Vec<(String, u64)>;

/// Which terms are wanted.
pub(super) struct Wanted<'w> {
    pub word: Word,
    /// They begin so,
    pub prefix: &'w str,
    /// and this is somewhere in them.
    pub part: &'w str,
    /// The most frequent ones, so many; else all, in their order.
    pub most: Option<usize>,
}

impl Looking<'_> {
    /// Terms that readable objects which match have. Some may be left out, which is noted as cut.
    pub(super) fn terms(&mut self, matches: &Match, wanted: &Wanted<'_>) -> Result<Counted, Error> {
        let deadline = self.deadline;
        let field = self.text.columns.word(wanted.word);
        let met = self.each(matches, |segment, docs| {
            if docs.is_none() {
                return Ok(None);
            }
            let terms = segment.parts.reader.inverted_index(field)?;
            let found = Terms::of(&terms, wanted, deadline)?;
            Ok(Some((Among::new(segment, docs, terms), found)))
        })?;
        let (mut among, mut found) = (Vec::new(), HashMap::<String, Term>::new());
        let mut partly = Vec::new();
        for (segment, terms) in met.into_iter().flatten() {
            self.cut |= terms.cut;
            for (text, info) in terms.all {
                found.entry(text).or_default().is_in(among.len(), info);
            }
            if terms.left_out {
                partly.push(among.len());
            }
            among.push(segment);
        }
        let fail = |error| Error::text("cannot be searched", error);
        let mut found = in_order(found);
        if !partly.is_empty() {
            found.truncate(MOST_OF_ALL);
            let again = self.text.map(partly.iter(), |at| met_again(&among[*at].terms, wanted.prefix, &found));
            let again = again.map_err(fail)?;
            for (at, met) in partly.into_iter().zip(again) {
                for (term, info) in met {
                    found[term].1.is_in(at, info);
                }
            }
            found.sort_unstable_by(by_frequency);
        }
        let (counted, cut) = counted(&mut among, found, wanted.most, deadline);
        self.cut |= cut;
        counted.map_err(fail)
    }
}

/// A term in all segments.
#[derive(Default)]
struct Term {
    /// Documents that have it, deleted and unreadable ones among them: no fewer than are wanted.
    frequency: u64,
    /// By segment.
    places: Vec<(usize, TermInfo)>,
}

impl Term {
    /// The same segment may tell of it again.
    fn is_in(&mut self, segment: usize, info: TermInfo) {
        if self.places.iter().any(|(known, _)| *known == segment) {
            return;
        }
        self.frequency += u64::from(info.doc_freq);
        self.places.push((segment, info));
    }
}

fn by_frequency((a, x): &(String, Term), (b, y): &(String, Term)) -> Ordering {
    y.frequency.cmp(&x.frequency).then_with(|| a.cmp(b))
}

/// Those of most documents first.
fn in_order(found: HashMap<String, Term>) -> Vec<(String, Term)> {
    let mut terms: Vec<(String, Term)> = found.into_iter().collect();
    terms.sort_unstable_by(by_frequency);
    terms
}

/// Where a segment has terms that others have most of, though it told others of its own. All are passed once more: each by
/// itself would be looked up in a block that has to be unpacked.
fn met_again(
    terms: &InvertedIndexReader,
    prefix: &str,
    wanted: &[(String, Term)],
) -> tantivy::Result<Vec<(usize, TermInfo)>> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by(|a, b| wanted[*a].0.cmp(&wanted[*b].0));
    let (mut order, mut met) = (order.into_iter().peekable(), Vec::new());
    let mut stream = terms.terms().range().ge(prefix).into_stream()?;
    let mut seen = 0;
    while seen < MOST_TERMS && stream.advance() {
        seen += 1;
        while order.next_if(|at| wanted[*at].0.as_bytes() < stream.key()).is_some() {}
        match order.peek() {
            None => break,
            Some(at) if wanted[*at].0.as_bytes() == stream.key() => met.push((*at, stream.value().clone())),
            Some(_) => {}
        }
    }
    Ok(met)
}

/// Counts terms, those of most documents first: once no other can be among the most frequent, the rest is left alone.
/// Whether some were left out though they might have been.
fn counted(
    among: &mut [Among],
    terms: Vec<(String, Term)>,
    most: Option<usize>,
    deadline: Instant,
) -> (tantivy::Result<Counted>, bool) {
    let (mut best, mut looked_at, mut cut) = (Vec::<(Reverse<u64>, String)>::new(), 0, false);
    for (text, term) in terms {
        let rank = (Reverse(term.frequency), text);
        if most.is_some_and(|most| best.len() >= most && best.last().is_none_or(|worst| *worst <= rank)) {
            break;
        }
        // Something is better than nothing, however late.
        if looked_at > MOST_POSTINGS || !best.is_empty() && Instant::now() > deadline {
            cut = true;
            break;
        }
        looked_at += term.frequency;
        let mut count = 0;
        for (segment, info) in &term.places {
            count += match among[*segment].count(info) {
                Ok(count) => count,
                Err(error) => return (Err(error), cut),
            };
        }
        if count == 0 {
            continue;
        }
        let rank = (Reverse(count), rank.1);
        if let Some(most) = most {
            let at = best.partition_point(|other| *other < rank);
            best.insert(at, rank);
            best.truncate(most);
        } else {
            best.push(rank);
        }
    }
    (Ok(best.into_iter().map(|(Reverse(count), text)| (text, count)).collect()), cut)
}

/// Terms of a segment.
struct Terms {
    all: Vec<(String, TermInfo)>,
    /// There are more, which are less frequent.
    left_out: bool,
    /// There are more, of which nothing is known.
    cut: bool,
}

impl Terms {
    fn of(terms: &InvertedIndexReader, wanted: &Wanted<'_>, deadline: Instant) -> tantivy::Result<Self> {
        let (from, to) = (wanted.prefix, format!("{}\u{10ffff}", wanted.prefix));
        let mut stream = terms.terms().range().ge(from).lt(to).into_stream()?;
        let keep = wanted.most.map_or(usize::MAX, |_| MOST_OF_A_SEGMENT);
        let mut found = Self { all: Vec::new(), left_out: false, cut: false };
        // The least frequent of those that are kept; of the same frequency the last one.
        let (mut worst, mut seen) = (BinaryHeap::<(Reverse<u32>, usize)>::new(), 0);
        while stream.advance() {
            seen += 1;
            if seen > MOST_TERMS || seen % LOOK_UP == 0 && Instant::now() > deadline {
                found.cut = true;
                break;
            }
            let frequency = stream.value().doc_freq;
            let full = found.all.len() >= keep;
            if full && worst.peek().is_some_and(|(Reverse(least), _)| frequency <= *least) {
                found.left_out |= std::str::from_utf8(stream.key()).is_ok_and(|text| text.contains(wanted.part));
                continue;
            }
            let text = String::from_utf8_lossy(stream.key());
            if !text.contains(wanted.part) {
                continue;
            }
            let term = (text.into_owned(), stream.value().clone());
            if full && let Some(mut least) = worst.peek_mut() {
                found.left_out = true;
                let at = least.1;
                found.all[at] = term;
                *least = (Reverse(frequency), at);
                continue;
            }
            if wanted.most.is_some() {
                worst.push((Reverse(frequency), found.all.len()));
            }
            found.all.push(term);
        }
        Ok(found)
    }
}

/// Documents of a segment, among which those of terms are counted.
struct Among {
    terms: Arc<InvertedIndexReader>,
    docs: Docs,
    max_doc: DocId,
    bits: Option<BitSet>,
    looked_up: u64,
}

impl Among {
    fn new(segment: &Segment, docs: &Docs, terms: Arc<InvertedIndexReader>) -> Self {
        Self { terms, docs: docs.clone(), max_doc: segment.parts.max_doc(), bits: None, looked_up: 0 }
    }

    fn count(&mut self, term: &TermInfo) -> tantivy::Result<u64> {
        let Docs::Some(docs) = &self.docs else { return Ok(term.doc_freq.into()) };
        self.looked_up += u64::from(term.doc_freq);
        if self.bits.is_none() && self.looked_up > docs.len() / FASTER {
            let mut bits = BitSet::with_max_value(self.max_doc);
            for doc in docs.iter() {
                bits.insert(doc);
            }
            self.bits = Some(bits);
        }
        let has = |doc: &&DocId| self.bits.as_ref().map_or_else(|| docs.contains(**doc), |bits| bits.contains(**doc));
        let mut postings = self.terms.read_block_postings_from_terminfo(term, IndexRecordOption::Basic)?;
        let mut count = 0;
        while !postings.docs().is_empty() {
            count += postings.docs().iter().filter(has).count() as u64;
            postings.advance();
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::stored;
    use crate::rights::Rights;
    use crate::text::TextIndex;
    use crate::text::document::Document;
    use crowsnest_api::user::UserInfo;
    use parking_lot::Mutex;
    use rstest::rstest;
    use serde_json::json;
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    /// Values of a label: the smaller the number, the more pods have it, and each part of the index holds more of them than
    /// are kept of it.
    fn values() -> Vec<usize> {
        let values = (0..400).flat_map(|value| std::iter::repeat_n(value, 1 + 800 / (value + 20)));
        let mut values: Vec<usize> = values.collect();
        // As if by chance, and the same every time.
        let mut at = 0_usize;
        values.sort_by_cached_key(|_| {
            at += 1;
            at * 7919 % 4_001
        });
        values
    }

    #[rstest]
    #[case::the_most_frequent("app=v", "", Some(20))]
    #[case::those_that_hold_a_part("app=v", "9", Some(20))]
    #[case::of_few_all_are_looked_at("app=v39", "", Some(20))]
    #[case::all_of_them("app=v", "", None)]
    fn terms_are_counted_as_if_one_by_one(#[case] prefix: &str, #[case] part: &str, #[case] most: Option<usize>) {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: tantivy::IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        let values = values();
        for (nth, value) in values.iter().enumerate() {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata":
                {"namespace": "x", "name": format!("web-{nth}"), "labels": {"app": format!("v{value}")}}});
            let document = Document::of(&stored("member1", nth as u64 + 1, &pod)).unwrap();
            writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            if nth % 700 == 699 {
                writer.commit().unwrap();
            }
        }
        writer.commit().unwrap();
        text.reload(&|_, _, _| {}).unwrap();
        let rights = Arc::new(Mutex::new(Arc::new(Rights::default()).of(&UserInfo::system())));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut looking = Looking { text: &text, rights, deadline, cut: false, notices: BTreeSet::new() };
        let found = looking.terms(&Match::All, &Wanted { word: Word::Label, prefix, part, most }).unwrap();
        assert!(!looking.cut);

        let mut counts = BTreeMap::<String, u64>::new();
        for value in &values {
            *counts.entry(format!("app=v{value}")).or_default() += 1;
        }
        let mut expected: Counted =
            counts.into_iter().filter(|(text, _)| text.starts_with(prefix) && text.contains(part)).collect();
        match most {
            Some(most) => {
                expected.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
                expected.truncate(most);
                assert_eq!(found, expected);
            }
            None => assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected.into_iter().collect()),
        }
    }
}
