//! Reads all hits of a plan in order from one snapshot, for exports.
//!
//! The engine reads hits among current objects, in its order; earlier versions, which it does not contain, are
//! merged in.

use crate::collect::TopHitsRequest;
use crate::engine::Scan;
use crate::plan::sort::{RankedHit, Sort, compare};
use crowsnest_store::{Error, Seq};
use std::collections::VecDeque;

/// All hits of a plan, read page by page.
#[derive(Debug)]
pub struct FullScan {
    engine: Box<dyn Scan>,
    /// Hits read from the engine but not returned yet.
    ready: VecDeque<RankedHit>,
    /// The engine has returned all hits.
    is_at_end: bool,
    /// Remaining hits among earlier versions, in order.
    earlier_versions: VecDeque<RankedHit>,
    sort: Vec<Sort>,
    /// Number of hits that may still be returned.
    remaining: usize,
}

impl FullScan {
    pub fn new(engine: Box<dyn Scan>, earlier_versions: Vec<RankedHit>, request: TopHitsRequest) -> Self {
        let (sort, remaining) = (request.sort, request.max_hits);
        Self {
            engine,
            ready: VecDeque::new(),
            is_at_end: false,
            earlier_versions: earlier_versions.into(),
            sort,
            remaining,
        }
    }

    /// Seq of the snapshot of current objects.
    pub fn seq(&self) -> Seq {
        self.engine.seq()
    }

    /// The next `limit` hits; fewer only at the end.
    pub async fn next(&mut self, limit: usize) -> Result<Vec<RankedHit>, Error> {
        let limit = limit.min(self.remaining);
        let mut hits = Vec::with_capacity(limit);
        while hits.len() < limit {
            if self.ready.is_empty() && !self.is_at_end {
                self.ready = self.engine.next(limit).await?.into();
                self.is_at_end = self.ready.is_empty();
            }
            let Some(hit) = self.pop_first() else { break };
            hits.push(hit);
        }
        self.remaining -= hits.len();
        Ok(hits)
    }

    /// Removes the first hit in the order of the plan. An earlier version precedes a current object of the same position.
    fn pop_first(&mut self) -> Option<RankedHit> {
        let is_earlier_version = match (self.earlier_versions.front(), self.ready.front()) {
            (Some(earlier), Some(current)) => compare(&earlier.position, &current.position, &self.sort).is_le(),
            (earlier, _) => earlier.is_some(),
        };
        if is_earlier_version { self.earlier_versions.pop_front() } else { self.ready.pop_front() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::sort::SortPosition;
    use async_trait::async_trait;
    use futures::executor::block_on;
    use rstest::rstest;

    /// Pages that an engine returns in sequence.
    #[derive(Debug)]
    struct Pages(VecDeque<Vec<RankedHit>>);

    #[async_trait]
    impl Scan for Pages {
        fn seq(&self) -> Seq {
            Seq(7)
        }

        async fn next(&mut self, limit: usize) -> Result<Vec<RankedHit>, Error> {
            let page = self.0.pop_front().unwrap_or_default();
            assert!(page.len() <= limit);
            Ok(page)
        }
    }

    fn hit(name: &str, ended_by: Option<u64>) -> RankedHit {
        let position = SortPosition { ranks: Vec::new(), name: name.to_owned(), id: 1 };
        RankedHit { position, score: 0.0, ended_by: ended_by.map(Seq) }
    }

    /// Pages are separated by bars; earlier versions are marked with a prime in the expectation.
    #[rstest]
    #[case::engine_only("a c|d", "", usize::MAX, "a c d")]
    #[case::earlier_versions_only("", "a b", usize::MAX, "a' b'")]
    #[case::merged("b d|e", "a c f", usize::MAX, "a' b c' d e f'")]
    #[case::ties_with_the_earlier_version_first("a", "a", usize::MAX, "a' a")]
    #[case::up_to_a_limit("b d|e", "a c", 3, "a' b c'")]
    fn earlier_versions_are_merged_in(
        #[case] pages: &str,
        #[case] before: &str,
        #[case] max_hits: usize,
        #[case] expected: &str,
    ) {
        let hits = |names: &str, ended_by| names.split_whitespace().map(|name| hit(name, ended_by)).collect::<Vec<_>>();
        let pages = pages.split('|').map(|page| hits(page, None)).collect();
        let before = hits(before, Some(3));
        let request = TopHitsRequest { max_hits, ..TopHitsRequest::total_only() };
        let mut scan = FullScan::new(Box::new(Pages(pages)), before, request);
        let mut found = Vec::new();
        loop {
            let hits = block_on(scan.next(2)).unwrap();
            if hits.is_empty() {
                break;
            }
            found.extend(hits);
        }
        let name = |hit: &RankedHit| format!("{}{}", hit.position.name, if hit.ended_by.is_some() { "'" } else { "" });
        assert_eq!(found.iter().map(name).collect::<Vec<_>>().join(" "), expected);
        assert_eq!(scan.seq(), Seq(7));
    }
}
