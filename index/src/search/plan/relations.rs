//! Relations between the objects of a cluster: owner, uses, about. Followed step by step, each step within what the
//! caller may read (invariant I9).
//!
//! Pure but for [`Objects`], which answers what keys the objects that match hold: the text index does, and so does a
//! plain list of documents in tests.

use crate::Error;
use crate::search::plan::predicate::Match;
use crate::text::columns::Key;
use std::collections::BTreeSet;

/// Steps followed at most, whatever a query says.
pub const MOST_STEPS: u8 = 5;
const EDGES: [Key; 3] = [Key::Owner, Key::Uses, Key::About];

/// Objects that stand in a relation to those that match inside.
#[derive(Debug, Clone, PartialEq)]
pub enum Reach {
    /// What events are about.
    Subjects { of: Match, said: String },
    /// What owns, over any number of steps, or uses an object.
    Holders { of: Match, said: String },
    /// Itself, and what is owned by it.
    Owned { by: Match, depth: u8, said: String },
    /// Itself, and what uses it.
    Using { first: Match, depth: u8, said: String },
    /// What it uses.
    Used { by: Match, depth: u8, said: String },
    /// Neighbours in any direction.
    Near { to: Match, depth: u8, said: String },
    /// What belongs to it, of one kind.
    Family { of: Match, kind: Match, said: String },
}

impl Reach {
    pub fn inner(&self) -> &Match {
        match self {
            Self::Subjects { of, .. } | Self::Holders { of, .. } | Self::Family { of, .. } => of,
            Self::Owned { by, .. } | Self::Used { by, .. } => by,
            Self::Using { first, .. } => first,
            Self::Near { to, .. } => to,
        }
    }

    /// The same relation to others.
    pub fn with_inner(mut self, inner: Match) -> Self {
        match &mut self {
            Self::Subjects { of, .. } | Self::Holders { of, .. } | Self::Family { of, .. } => *of = inner,
            Self::Owned { by, .. } | Self::Used { by, .. } => *by = inner,
            Self::Using { first, .. } => *first = inner,
            Self::Near { to, .. } => *to = inner,
        }
        self
    }

    pub fn said(&self) -> (&'static str, &str) {
        match self {
            Self::Subjects { said, .. } | Self::Holders { said, .. } => ("has", said),
            Self::Owned { said, .. } => ("owner", said),
            Self::Using { said, .. } => ("uses", said),
            Self::Used { said, .. } => ("usedby", said),
            Self::Near { said, .. } => ("related", said),
            Self::Family { said, .. } => ("select", said),
        }
    }
}

/// What relations are followed in.
pub trait Objects {
    /// Keys that the readable objects which match hold in the columns.
    fn keys(&mut self, matches: &Match, columns: &[Key]) -> Result<BTreeSet<u64>, Error>;
}

/// Looks up every relation of a plan; none is left in it.
pub fn resolve(matches: Match, objects: &mut dyn Objects) -> Result<Match, Error> {
    matches.map(&mut |leaf| match leaf {
        Match::Reach(reach) => follow(*reach, objects),
        other => Ok(other),
    })
}

fn follow(reach: Reach, objects: &mut dyn Objects) -> Result<Match, Error> {
    let (field, said) = reach.said();
    let (field, said) = (field.to_owned(), said.to_owned());
    let mut steps = Steps { objects };
    let found = match reach {
        Reach::Subjects { of, .. } => {
            let events = steps.inside(of)?;
            steps.out(&events, &[Key::About])?
        }
        Reach::Holders { of, .. } => {
            let held = steps.inside(of)?;
            let owners = steps.again(&held, MOST_STEPS, |steps, from| steps.out(from, &[Key::Owner]))?;
            Match::Or(vec![owners, steps.back(&held, &[Key::Uses])?])
        }
        Reach::Owned { by, depth, .. } => {
            let first = steps.inside(by)?;
            let more = steps.again(&first, depth - 1, |steps, from| steps.back(from, &[Key::Owner]))?;
            Match::Or(vec![first, more])
        }
        Reach::Using { first, depth, .. } => {
            let first = steps.inside(first)?;
            let more = steps.again(&first, depth - 1, |steps, from| steps.back(from, &[Key::Uses]))?;
            Match::Or(vec![first, more])
        }
        Reach::Used { by, depth, .. } => {
            let by = steps.inside(by)?;
            steps.again(&by, depth, |steps, from| steps.out(from, &[Key::Uses]))?
        }
        Reach::Near { to, depth, .. } => {
            let to = steps.inside(to)?;
            let near = steps.again(&to, depth, |steps, from| {
                Ok(Match::Or(vec![steps.out(from, &EDGES)?, steps.back(from, &EDGES)?]))
            })?;
            near.and(to.negated())
        }
        Reach::Family { of, kind, .. } => {
            let of = steps.inside(of)?;
            kind.and(steps.family(of)?)
        }
    };
    Ok(Match::Because(field, said, Box::new(found)))
}

struct Steps<'o> {
    objects: &'o mut dyn Objects,
}

impl Steps<'_> {
    /// Relations inside a relation.
    fn inside(&mut self, matches: Match) -> Result<Match, Error> {
        resolve(matches, self.objects)
    }

    /// What they point to.
    fn out(&mut self, from: &Match, edges: &[Key]) -> Result<Match, Error> {
        Ok(Match::keys(&[Key::Own], self.objects.keys(from, edges)?))
    }

    /// What points to them.
    fn back(&mut self, from: &Match, edges: &[Key]) -> Result<Match, Error> {
        Ok(Match::keys(edges, self.objects.keys(from, &[Key::Own])?))
    }

    /// All that is met in up to `depth` steps; ends early when a step leads nowhere new.
    fn again(
        &mut self,
        from: &Match,
        depth: u8,
        mut step: impl FnMut(&mut Self, &Match) -> Result<Match, Error>,
    ) -> Result<Match, Error> {
        let mut met = Vec::new();
        let mut here = from.clone();
        for _ in 0..depth {
            let next = step(self, &here)?;
            if !next.contains(&|part| matches!(part, Match::Keys(..))) || met.contains(&next) {
                break;
            }
            met.push(next.clone());
            here = next;
        }
        Ok(Match::any_of(met))
    }

    /// What belongs to objects: see `select:` in docs/QUERY.md.
    fn family(&mut self, of: Match) -> Result<Match, Error> {
        let subjects = self.out(&of, &[Key::About])?;
        let all = Match::Or(vec![of, subjects]);
        let up = |steps: &mut Self, from: &Match| steps.out(from, &[Key::Owner]);
        let owners = self.again(&all, MOST_STEPS, up)?;
        let owned = self.again(&all, MOST_STEPS, |steps, from| steps.back(from, &[Key::Owner]))?;
        let family = Match::Or(vec![all, owners, owned]);
        let used = self.out(&family, &[Key::Uses])?;
        let users = self.back(&family, &[Key::Uses, Key::About])?;
        let around = Match::Or(vec![used, users]);
        let their_owners = self.again(&around, MOST_STEPS, up)?;
        Ok(Match::Or(vec![family, around, their_owners]))
    }
}
