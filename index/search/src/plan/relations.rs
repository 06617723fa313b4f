//! Relations between objects of a cluster: owner, uses, about. Resolved step by step, each step within the caller's
//! permissions.
//!
//! Pure except for [`Objects`], which returns the keys of matching objects: an engine does so for one step of all
//! objects at a time, tests use a list of documents.

use crate::document::columns::Key;
use crate::plan::predicate::Match;
use async_trait::async_trait;
use crowsnest_store::Error;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;

/// Maximum number of steps in any query.
pub const MOST_STEPS: u8 = 5;
/// Default and maximum number of steps to dependent objects.
pub const CLOSURE_STEPS: u8 = 8;
const EDGES: [Key; 3] = [Key::Owner, Key::Uses, Key::About];

/// Which side of dependencies is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Objects that depend on an object.
    Dependents,
    /// Objects on which an object depends.
    Dependencies,
}

/// Objects related to those that match the inner condition.
#[derive(Debug, Clone, PartialEq)]
pub enum Reach {
    /// Subjects of events.
    Subjects { of: Match, condition: String },
    /// Direct and indirect owners, and users of the objects.
    Holders { of: Match, condition: String },
    /// The objects themselves and those they own.
    Owned { by: Match, depth: u8, condition: String },
    /// The objects themselves and those that use them.
    Using { first: Match, depth: u8, condition: String },
    /// Objects used by them.
    Used { by: Match, depth: u8, condition: String },
    /// Neighbours in any direction.
    Near { to: Match, depth: u8, condition: String },
    /// Objects that depend on them, or on which they depend.
    Dependent { of: Match, side: Side, depth: u8, condition: String },
    /// Related objects of one kind.
    Family { of: Match, kind: Match, condition: String },
}

impl Reach {
    pub fn inner(&self) -> &Match {
        match self {
            Self::Subjects { of, .. } | Self::Holders { of, .. } => of,
            Self::Dependent { of, .. } | Self::Family { of, .. } => of,
            Self::Owned { by, .. } | Self::Used { by, .. } => by,
            Self::Using { first, .. } => first,
            Self::Near { to, .. } => to,
        }
    }

    /// This relation with another inner condition.
    pub fn with_inner(mut self, inner: Match) -> Self {
        match &mut self {
            Self::Subjects { of, .. } | Self::Holders { of, .. } => *of = inner,
            Self::Dependent { of, .. } | Self::Family { of, .. } => *of = inner,
            Self::Owned { by, .. } | Self::Used { by, .. } => *by = inner,
            Self::Using { first, .. } => *first = inner,
            Self::Near { to, .. } => *to = inner,
        }
        self
    }

    pub fn label(&self) -> (&'static str, &str) {
        match self {
            Self::Subjects { condition, .. } | Self::Holders { condition, .. } => ("has", condition),
            Self::Owned { condition, .. } => ("owner", condition),
            Self::Using { condition, .. } => ("uses", condition),
            Self::Used { condition, .. } => ("usedby", condition),
            Self::Near { condition, .. } => ("related", condition),
            Self::Dependent { side: Side::Dependents, condition, .. } => ("reaches", condition),
            Self::Dependent { side: Side::Dependencies, condition, .. } => ("reachedby", condition),
            Self::Family { condition, .. } => ("select", condition),
        }
    }
}

/// The objects in which relations are resolved.
#[async_trait]
pub trait Objects: Send {
    /// Keys in the columns of the readable objects that match.
    async fn keys(&mut self, matches: &Match, columns: &[Key]) -> Result<BTreeSet<u64>, Error>;

    /// Ids of the readable objects that depend on matching ones, or on which these depend, within a number of steps.
    async fn dependent(&mut self, of: &Match, side: Side, depth: u8) -> Result<BTreeSet<u64>, Error>;
}

type Resolved<'o> = Pin<Box<dyn Future<Output = Result<Match, Error>> + Send + 'o>>;

/// Resolves every relation of a plan.
pub fn resolve<'o>(matches: Match, objects: &'o mut dyn Objects) -> Resolved<'o> {
    Box::pin(async move {
        Ok(match matches {
            Match::And(parts) => Match::And(resolve_all(parts, objects).await?),
            Match::Or(parts) => Match::Or(resolve_all(parts, objects).await?),
            Match::Not(inner) => resolve(*inner, objects).await?.negated(),
            Match::Because(field, value, inner) => {
                Match::Because(field, value, Box::new(resolve(*inner, objects).await?))
            }
            Match::Reach(reach) => follow(*reach, objects).await?,
            leaf => leaf,
        })
    })
}

async fn resolve_all(parts: Vec<Match>, objects: &mut dyn Objects) -> Result<Vec<Match>, Error> {
    let mut resolved = Vec::with_capacity(parts.len());
    for part in parts {
        resolved.push(resolve(part, objects).await?);
    }
    Ok(resolved)
}

async fn follow(reach: Reach, objects: &mut dyn Objects) -> Result<Match, Error> {
    let (field, condition) = reach.label();
    let (field, condition) = (field.to_owned(), condition.to_owned());
    let mut steps = Steps { objects };
    let found = match reach {
        Reach::Subjects { of, .. } => {
            let events = steps.inside(of).await?;
            steps.out(&events, &[Key::About]).await?
        }
        Reach::Holders { of, .. } => {
            let held = steps.inside(of).await?;
            let owners = steps.again(&held, MOST_STEPS, Step::Out(&[Key::Owner])).await?;
            Match::Or(vec![owners, steps.back(&held, &[Key::Uses]).await?])
        }
        Reach::Owned { by, depth, .. } => {
            let first = steps.inside(by).await?;
            let more = steps.again(&first, depth - 1, Step::Back(&[Key::Owner])).await?;
            Match::Or(vec![first, more])
        }
        Reach::Using { first, depth, .. } => {
            let first = steps.inside(first).await?;
            let more = steps.again(&first, depth - 1, Step::Back(&[Key::Uses])).await?;
            Match::Or(vec![first, more])
        }
        Reach::Used { by, depth, .. } => {
            let by = steps.inside(by).await?;
            steps.again(&by, depth, Step::Out(&[Key::Uses])).await?
        }
        Reach::Near { to, depth, .. } => {
            let to = steps.inside(to).await?;
            let near = steps.again(&to, depth, Step::Both(&EDGES)).await?;
            near.and(to.negated())
        }
        Reach::Dependent { of, side, depth, .. } => {
            let of = steps.inside(of).await?;
            Match::Ids(Arc::new(steps.objects.dependent(&of, side, depth).await?))
        }
        Reach::Family { of, kind, .. } => {
            let of = steps.inside(of).await?;
            kind.and(steps.family(of).await?)
        }
    };
    Ok(Match::Because(field, condition, Box::new(found)))
}

/// A step along edges of these kinds.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// To the referenced objects.
    Out(&'static [Key]),
    /// To the referencing objects.
    Back(&'static [Key]),
    Both(&'static [Key]),
}

struct Steps<'o> {
    objects: &'o mut dyn Objects,
}

impl Steps<'_> {
    /// Resolves nested relations.
    async fn inside(&mut self, matches: Match) -> Result<Match, Error> {
        resolve(matches, self.objects).await
    }

    /// The objects that they reference.
    async fn out(&mut self, from: &Match, edges: &[Key]) -> Result<Match, Error> {
        Ok(Match::keys(&[Key::Own], self.objects.keys(from, edges).await?))
    }

    /// The objects that reference them.
    async fn back(&mut self, from: &Match, edges: &[Key]) -> Result<Match, Error> {
        Ok(Match::keys(edges, self.objects.keys(from, &[Key::Own]).await?))
    }

    async fn take(&mut self, step: Step, from: &Match) -> Result<Match, Error> {
        match step {
            Step::Out(edges) => self.out(from, edges).await,
            Step::Back(edges) => self.back(from, edges).await,
            Step::Both(edges) => Ok(Match::Or(vec![self.out(from, edges).await?, self.back(from, edges).await?])),
        }
    }

    /// All objects reached in up to `depth` steps; stops when a step reaches no new objects.
    async fn again(&mut self, from: &Match, depth: u8, step: Step) -> Result<Match, Error> {
        let mut met = Vec::new();
        let mut here = from.clone();
        for _ in 0..depth {
            let next = self.take(step, &here).await?;
            if !next.contains(&|part| matches!(part, Match::Keys(..))) || met.contains(&next) {
                break;
            }
            met.push(next.clone());
            here = next;
        }
        Ok(Match::any_of(met))
    }

    /// Related objects: see `select:` in docs/QUERY.md.
    async fn family(&mut self, of: Match) -> Result<Match, Error> {
        let subjects = self.out(&of, &[Key::About]).await?;
        let all = Match::Or(vec![of, subjects]);
        let owners = self.again(&all, MOST_STEPS, Step::Out(&[Key::Owner])).await?;
        let owned = self.again(&all, MOST_STEPS, Step::Back(&[Key::Owner])).await?;
        let family = Match::Or(vec![all, owners, owned]);
        let used = self.out(&family, &[Key::Uses]).await?;
        let users = self.back(&family, &[Key::Uses, Key::About]).await?;
        let around = Match::Or(vec![used, users]);
        let their_owners = self.again(&around, MOST_STEPS, Step::Out(&[Key::Owner])).await?;
        Ok(Match::Or(vec![family, around, their_owners]))
    }
}
