//! Everything that a plan finds, in order and as it was at one moment: for exports.
//!
//! The engine reads hits of objects that exist, in its order; earlier versions, which it does not hold, are merged in.

use crate::search::collect::TopHitsRequest;
use crate::search::engine::Scan;
use crate::search::plan::sort::{Ranked, Sort, compare};
use crate::{Error, Seq};
use std::collections::VecDeque;

/// All hits of a plan, read one page after another.
#[derive(Debug)]
pub struct FullScan {
    engine: Box<dyn Scan>,
    /// Hits of the engine that were read and not returned.
    ready: VecDeque<Ranked>,
    /// The engine has no more.
    ended: bool,
    /// Earlier versions, in order.
    before: VecDeque<Ranked>,
    sort: Vec<Sort>,
    /// Hits that are still wanted.
    left: usize,
}

impl FullScan {
    pub fn new(engine: Box<dyn Scan>, before: Vec<Ranked>, request: TopHitsRequest) -> Self {
        let (sort, left) = (request.sort, request.keep);
        Self { engine, ready: VecDeque::new(), ended: false, before: before.into(), sort, left }
    }

    /// The change as of which objects that exist were read.
    pub fn seq(&self) -> Seq {
        self.engine.seq()
    }

    /// The next hits, `most` of them; fewer only at the end.
    pub async fn next(&mut self, most: usize) -> Result<Vec<Ranked>, Error> {
        let most = most.min(self.left);
        let mut hits = Vec::with_capacity(most);
        while hits.len() < most {
            if self.ready.is_empty() && !self.ended {
                self.ready = self.engine.next(most).await?.into();
                self.ended = self.ready.is_empty();
            }
            let Some(hit) = self.first() else { break };
            hits.push(hit);
        }
        self.left -= hits.len();
        Ok(hits)
    }

    fn first(&mut self) -> Option<Ranked> {
        let before = match (self.before.front(), self.ready.front()) {
            (Some(before), Some(now)) => compare(&before.place, &now.place, &self.sort).is_le(),
            (before, _) => before.is_some(),
        };
        if before { self.before.pop_front() } else { self.ready.pop_front() }
    }
}
