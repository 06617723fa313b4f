//! Relations between objects of a cluster: owner, uses, about. Resolved step by step, each step within the caller's
//! permissions.
//!
//! Has no side effects except for [`RelatedObjectLookup`], which returns the keys of matching objects: an engine does
//! so for one step of all objects at a time, tests use a list of documents.

use crate::document::columns::Key;
use crate::plan::predicate::Match;
use async_trait::async_trait;
use crowsnest_store::Error;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;

/// Maximum number of steps in any query.
pub const MAX_STEPS: u8 = 5;
/// Default and maximum number of steps to dependent objects.
pub const CLOSURE_STEPS: u8 = 8;
const EDGES: [Key; 3] = [Key::Owner, Key::Uses, Key::About];

/// Direction in which dependencies are followed from an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyDirection {
    /// Objects that depend on an object.
    Dependents,
    /// Objects on which an object depends.
    Dependencies,
}

/// Objects that are related to other objects: those that match the condition `inner`. `condition` is the text of the
/// query that is shown as the reason of a hit. `depth` is the maximum number of steps.
#[derive(Debug, Clone, PartialEq)]
pub enum Relation {
    /// Objects that the matching objects, such as events, are about.
    Subjects { inner: Match, condition: String },
    /// Direct and indirect owners of the matching objects, and objects that use them.
    Holders { inner: Match, condition: String },
    /// The matching objects and those that they own.
    Owned { inner: Match, depth: u8, condition: String },
    /// The matching objects and those that use them.
    Using { inner: Match, depth: u8, condition: String },
    /// Objects that the matching objects use.
    Used { inner: Match, depth: u8, condition: String },
    /// Neighbours of the matching objects in any direction.
    Near { inner: Match, depth: u8, condition: String },
    /// Objects that depend on the matching objects, or on which these depend.
    Dependent { inner: Match, direction: DependencyDirection, depth: u8, condition: String },
    /// Objects of one kind that are related to the matching objects: see `select:` in docs/QUERY.md.
    Family { inner: Match, kind: Match, condition: String },
}

impl Relation {
    pub fn inner(&self) -> &Match {
        match self {
            Self::Subjects { inner, .. } | Self::Holders { inner, .. } => inner,
            Self::Owned { inner, .. } | Self::Using { inner, .. } | Self::Used { inner, .. } => inner,
            Self::Near { inner, .. } | Self::Dependent { inner, .. } | Self::Family { inner, .. } => inner,
        }
    }

    /// This relation with another inner condition.
    pub fn with_inner(mut self, other: Match) -> Self {
        match &mut self {
            Self::Subjects { inner, .. } | Self::Holders { inner, .. } => *inner = other,
            Self::Owned { inner, .. } | Self::Using { inner, .. } | Self::Used { inner, .. } => *inner = other,
            Self::Near { inner, .. } | Self::Dependent { inner, .. } | Self::Family { inner, .. } => *inner = other,
        }
        self
    }

    /// Field and text of the query, as they are shown as the reason of a hit.
    pub fn label(&self) -> (&'static str, &str) {
        match self {
            Self::Subjects { condition, .. } | Self::Holders { condition, .. } => ("has", condition),
            Self::Owned { condition, .. } => ("owner", condition),
            Self::Using { condition, .. } => ("uses", condition),
            Self::Used { condition, .. } => ("usedby", condition),
            Self::Near { condition, .. } => ("related", condition),
            Self::Dependent { direction: DependencyDirection::Dependents, condition, .. } => ("reaches", condition),
            Self::Dependent { direction: DependencyDirection::Dependencies, condition, .. } => ("reachedby", condition),
            Self::Family { condition, .. } => ("select", condition),
        }
    }
}

/// The objects in which relations are resolved.
#[async_trait]
pub trait RelatedObjectLookup: Send {
    /// Keys in the columns of the readable objects that match.
    async fn keys(&mut self, matches: &Match, columns: &[Key]) -> Result<BTreeSet<u64>, Error>;

    /// Ids of the readable objects that depend on matching ones, or on which these depend, within a number of steps.
    async fn closure_ids(
        &mut self,
        matches: &Match,
        direction: DependencyDirection,
        depth: u8,
    ) -> Result<BTreeSet<u64>, Error>;
}

type ResolveFuture<'o> = Pin<Box<dyn Future<Output = Result<Match, Error>> + Send + 'o>>;

/// Resolves every relation of a plan.
pub fn resolve<'o>(matches: Match, objects: &'o mut dyn RelatedObjectLookup) -> ResolveFuture<'o> {
    Box::pin(async move {
        Ok(match matches {
            Match::And(parts) => Match::And(resolve_all(parts, objects).await?),
            Match::Or(parts) => Match::Or(resolve_all(parts, objects).await?),
            Match::Not(inner) => resolve(*inner, objects).await?.negated(),
            Match::WithReason(field, value, inner) => {
                Match::WithReason(field, value, Box::new(resolve(*inner, objects).await?))
            }
            Match::Relation(relation) => resolve_relation(*relation, objects).await?,
            leaf => leaf,
        })
    })
}

async fn resolve_all(parts: Vec<Match>, objects: &mut dyn RelatedObjectLookup) -> Result<Vec<Match>, Error> {
    let mut resolved = Vec::with_capacity(parts.len());
    for part in parts {
        resolved.push(resolve(part, objects).await?);
    }
    Ok(resolved)
}

async fn resolve_relation(relation: Relation, objects: &mut dyn RelatedObjectLookup) -> Result<Match, Error> {
    let (field, condition) = relation.label();
    let (field, condition) = (field.to_owned(), condition.to_owned());
    let mut steps = Steps { objects };
    let found = match relation {
        Relation::Subjects { inner, .. } => {
            let events = steps.resolve_inner(inner).await?;
            steps.find_referenced(&events, &[Key::About]).await?
        }
        Relation::Holders { inner, .. } => {
            let held_objects = steps.resolve_inner(inner).await?;
            let owners = steps.follow_repeatedly(&held_objects, MAX_STEPS, Step::Out(&[Key::Owner])).await?;
            Match::Or(vec![owners, steps.find_referrers(&held_objects, &[Key::Uses]).await?])
        }
        Relation::Owned { inner, depth, .. } => {
            let first = steps.resolve_inner(inner).await?;
            let more = steps.follow_repeatedly(&first, depth - 1, Step::Back(&[Key::Owner])).await?;
            Match::Or(vec![first, more])
        }
        Relation::Using { inner, depth, .. } => {
            let first = steps.resolve_inner(inner).await?;
            let more = steps.follow_repeatedly(&first, depth - 1, Step::Back(&[Key::Uses])).await?;
            Match::Or(vec![first, more])
        }
        Relation::Used { inner, depth, .. } => {
            let users = steps.resolve_inner(inner).await?;
            steps.follow_repeatedly(&users, depth, Step::Out(&[Key::Uses])).await?
        }
        Relation::Near { inner, depth, .. } => {
            let center = steps.resolve_inner(inner).await?;
            let neighbours = steps.follow_repeatedly(&center, depth, Step::Both(&EDGES)).await?;
            neighbours.and(center.negated())
        }
        Relation::Dependent { inner, direction, depth, .. } => {
            let roots = steps.resolve_inner(inner).await?;
            Match::Ids(Arc::new(steps.objects.closure_ids(&roots, direction, depth).await?))
        }
        Relation::Family { inner, kind, .. } => {
            let roots = steps.resolve_inner(inner).await?;
            kind.and(steps.find_family(roots).await?)
        }
    };
    Ok(Match::WithReason(field, condition, Box::new(found)))
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
    objects: &'o mut dyn RelatedObjectLookup,
}

impl Steps<'_> {
    /// Resolves nested relations.
    async fn resolve_inner(&mut self, matches: Match) -> Result<Match, Error> {
        resolve(matches, self.objects).await
    }

    /// The objects that matching objects reference.
    async fn find_referenced(&mut self, from: &Match, edges: &[Key]) -> Result<Match, Error> {
        Ok(Match::keys(&[Key::Own], self.objects.keys(from, edges).await?))
    }

    /// The objects that reference matching objects.
    async fn find_referrers(&mut self, from: &Match, edges: &[Key]) -> Result<Match, Error> {
        Ok(Match::keys(edges, self.objects.keys(from, &[Key::Own]).await?))
    }

    async fn follow(&mut self, step: Step, from: &Match) -> Result<Match, Error> {
        match step {
            Step::Out(edges) => self.find_referenced(from, edges).await,
            Step::Back(edges) => self.find_referrers(from, edges).await,
            Step::Both(edges) => {
                Ok(Match::Or(vec![self.find_referenced(from, edges).await?, self.find_referrers(from, edges).await?]))
            }
        }
    }

    /// All objects reached in up to `depth` steps; stops when a step reaches no new objects.
    async fn follow_repeatedly(&mut self, from: &Match, depth: u8, step: Step) -> Result<Match, Error> {
        let mut reached = Vec::new();
        let mut frontier = from.clone();
        for _ in 0..depth {
            let next = self.follow(step, &frontier).await?;
            if !next.contains(&|part| matches!(part, Match::Keys(..))) || reached.contains(&next) {
                break;
            }
            reached.push(next.clone());
            frontier = next;
        }
        Ok(Match::any_of(reached))
    }

    /// Related objects: see `select:` in docs/QUERY.md.
    async fn find_family(&mut self, roots: Match) -> Result<Match, Error> {
        let subjects = self.find_referenced(&roots, &[Key::About]).await?;
        let all = Match::Or(vec![roots, subjects]);
        let owners = self.follow_repeatedly(&all, MAX_STEPS, Step::Out(&[Key::Owner])).await?;
        let owned = self.follow_repeatedly(&all, MAX_STEPS, Step::Back(&[Key::Owner])).await?;
        let family = Match::Or(vec![all, owners, owned]);
        let used = self.find_referenced(&family, &[Key::Uses]).await?;
        let users = self.find_referrers(&family, &[Key::Uses, Key::About]).await?;
        let neighbours = Match::Or(vec![used, users]);
        let their_owners = self.follow_repeatedly(&neighbours, MAX_STEPS, Step::Out(&[Key::Owner])).await?;
        Ok(Match::Or(vec![family, neighbours, their_owners]))
    }
}
