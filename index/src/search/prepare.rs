//! Segments that were merged, asked what was asked of their parts before searches see them: whoever asks next does not
//! wait for it.

use super::docs::Question;
use super::matches::Match;
use super::permitted::permitted;
use super::tallies::Tallying;
use crate::rights::Rights;
use crate::text::segments::{PartsId, Segment, Snapshot};
use crate::text::terms::{Asked, Looks};
use crate::text::{Prepare, TextIndex};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tantivy::index::SegmentId;

/// Changes wait for it: what is not done by then is done by the first who asks.
const WITHIN: Duration = Duration::from_millis(300);
/// Of what was asked last, so much is asked again.
const MOST_ASKED: usize = 500;

/// Prepares snapshots for callers with these rights.
pub(crate) fn prepare(rights: Arc<Rights>) -> Box<Prepare> {
    Box::new(move |text, before, next| prepared(text, &rights, before, next))
}

fn prepared(text: &TextIndex, rights: &Arc<Rights>, before: &Snapshot, next: &Snapshot) {
    let ids = |snapshot: &Snapshot| -> HashSet<PartsId> {
        snapshot.segments.iter().map(|segment| segment.parts.id()).collect()
    };
    let (known, left) = (ids(before), ids(next));
    let gone: HashSet<PartsId> = known.difference(&left).copied().collect();
    if gone.is_empty() {
        return;
    }
    let deadline = Instant::now() + WITHIN;
    let mut new: Vec<&Segment> = next.segments.iter().filter(|segment| !known.contains(&segment.parts.id())).collect();
    // Who has to wait for a large one waits longest.
    new.sort_by_key(|segment| std::cmp::Reverse(segment.parts.max_doc()));
    // First of all: without it nobody sees anything.
    for (caller, facets) in rights.forget(&gone) {
        let caller = Mutex::new(caller);
        for segment in &new {
            let may_read = permitted(&segment.parts, &next.values, &caller);
            let tallying = Tallying { segment, values: &next.values, facets: &facets, rights: &caller, deadline };
            if tallying.of_permitted(&may_read).is_none() {
                return;
            }
        }
    }
    // Numbering values anew changes nothing there.
    let there: HashSet<SegmentId> = left.iter().map(|(segment, _)| *segment).collect();
    let gone = gone.iter().map(|(segment, _)| *segment).filter(|segment| !there.contains(segment));
    let mut asked = text.remembered.forget(&gone.collect());
    asked.truncate(MOST_ASKED);
    let pattern =
        |asked: &Asked| if let Asked::Terms(_, Looks::Matches(pattern)) = asked { Some(pattern.clone()) } else { None };
    let nothing = Match::None;
    let question = Question::with(&nothing, asked.iter().filter_map(pattern).collect(), text, deadline);
    for asked in asked {
        for segment in &new {
            // What cannot be found now is told to whoever asks.
            if question.look_up(&segment.parts, asked.clone()).is_err() && Instant::now() > deadline {
                return;
            }
        }
    }
}
