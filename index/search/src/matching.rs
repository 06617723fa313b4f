//! Evaluation of a query on given objects, for followers of the store that copy only objects that match a query and that a
//! caller may read.

use crate::Searcher;
use crate::authorization::DecisionBasis;
use crate::execute::{TRUNCATED, resolve_with_notices};
use crate::plan::predicate::Match;
use crate::plan::{PlanningContext, TimeScope, plan};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{LimitExceeded, Limits, Query, parse};
use crowsnest_store::{Error, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Objects that a caller may read and that a query matches.
#[derive(Debug)]
pub struct MatchingObjects {
    /// Record ids.
    pub ids: BTreeSet<u64>,
    /// Clusters in which the caller's permissions are unknown at present. `ids` contains none of their objects.
    pub undecided: BTreeSet<ClusterName>,
    /// The rules on which the result is based; None if some of them changed during the evaluation.
    pub basis: Option<DecisionBasis>,
}

/// A parsed query that can be evaluated continuously, on each object that changes.
#[derive(Debug, Clone, PartialEq)]
pub struct StandingQuery(Query);

/// Reason why a query cannot be evaluated continuously.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StandingQueryError {
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    /// A search would ignore this part, or search for it as text, so that other objects than intended are selected.
    #[error("at byte {byte}: {message}")]
    Syntax { byte: usize, message: String },
    #[error("scope: names a saved search, which may change; write its query here")]
    SavedSearch,
    #[error("limit: selects by rank, which other objects change; remove it")]
    ResultLimit,
    #[error("only current objects can be selected; remove at:, during: and is:deleted")]
    PastObjects,
}

impl StandingQuery {
    /// Parses a query. Fails if a part of it is not understood, or if it depends on more than objects, permissions and the
    /// current time.
    pub fn parse(text: &str) -> Result<Self, StandingQueryError> {
        let query = parse(text, &Limits::default())?;
        if let Some(notice) = query.notices.first() {
            return Err(StandingQueryError::Syntax { byte: notice.span.start, message: notice.message.clone() });
        }
        if query.output.scope.is_some() {
            return Err(StandingQueryError::SavedSearch);
        }
        if query.output.limit.is_some() {
            return Err(StandingQueryError::ResultLimit);
        }
        if plan(&query, &PlanningContext::default()).scope != TimeScope::Now {
            return Err(StandingQueryError::PastObjects);
        }
        Ok(Self(query))
    }
}

impl Searcher {
    /// Selects the objects among `ids` that a caller may read and that a query matches, in a state that includes the change
    /// `as_of`. Fails with [`Error::Incomplete`] on a timeout, or if a limit is reached.
    pub async fn matching_ids(
        &self,
        caller: &UserInfo,
        query: &StandingQuery,
        ids: BTreeSet<u64>,
        as_of: Seq,
        timeout: Duration,
    ) -> Result<MatchingObjects, Error> {
        let deadline = Instant::now() + timeout;
        self.wait_until_seq_is_searchable(as_of, deadline).await?;
        let sources = self.sources(caller, deadline.saturating_duration_since(Instant::now())).await;
        let planning_context = self.planning_context(&sources.context.permissions.lock());
        let matches = plan(&query.0, &planning_context).matches;
        let (matches, notices) = resolve_with_notices(&sources, matches).await?;
        let lookup = sources.engine.ids(&sources.context, &matches.and(Match::Ids(Arc::new(ids)))).await?;
        if lookup.incomplete || notices.contains(TRUNCATED) {
            return Err(Error::Incomplete);
        }
        let permissions = sources.context.permissions.lock();
        let clusters = self.inner.cache.fleet.cluster_names().into_iter();
        let undecided = clusters.filter(|cluster| permissions.missing_reason(cluster).is_some()).collect();
        Ok(MatchingObjects { ids: lookup.values, undecided, basis: permissions.basis() })
    }

    /// True if a caller's permissions, or the clusters in which they are known, may differ from those of an earlier decision.
    pub async fn permissions_may_differ(&self, caller: &UserInfo, basis: &DecisionBasis, timeout: Duration) -> bool {
        let permissions = self.permissions_of(caller, Instant::now() + timeout).await;
        permissions.changed_from(basis).is_none_or(|changed| !changed.is_empty())
    }

    /// Digests of a caller's permissions by cluster, in a state that includes the change `as_of`. Clusters in which the
    /// permissions are unknown are omitted. Equal rules have equal digests in all processes of a version.
    pub async fn permission_digests(
        &self,
        caller: &UserInfo,
        as_of: Seq,
        timeout: Duration,
    ) -> Result<BTreeMap<ClusterName, u128>, Error> {
        let deadline = Instant::now() + timeout;
        self.wait_until_seq_is_searchable(as_of, deadline).await?;
        let mut permissions = self.permissions_of(caller, deadline).await;
        let clusters = self.inner.cache.fleet.cluster_names().into_iter();
        let digest = |cluster: ClusterName| permissions.digest(&cluster).map(|digest| (cluster, digest));
        Ok(clusters.filter_map(digest).collect())
    }

    /// Waits until searches find a change and the rules up to it are applied.
    async fn wait_until_seq_is_searchable(&self, seq: Seq, deadline: Instant) -> Result<(), Error> {
        let (mut searchable, mut applied) = (self.searchable(), self.applied_seq());
        let both = async {
            let is_searchable = searchable.wait_for(|reached| *reached >= seq).await.is_ok();
            is_searchable && applied.wait_for(|reached| *reached >= seq).await.is_ok()
        };
        match tokio::time::timeout_at(deadline.into(), both).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Stopped),
            Err(_) => Err(Error::Incomplete),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::all("", None)]
    #[case::fields("kind:pod -kind:event label:app=web", None)]
    #[case::text("\"error: no space\"", None)]
    #[case::limit("kind:pod limit:10", Some("limit:"))]
    #[case::scope("scope:mine", Some("scope:"))]
    #[case::time("kind:pod at:2026-01-01", Some("current objects"))]
    #[case::unknown_field("kind:pod -colour:red", Some("at byte 10: unknown field \"colour\", searched as text"))]
    #[case::parenthesis("kind:pod) -kind:secret", Some("at byte 8: unmatched closing parenthesis, ignored"))]
    #[case::open_quote("kind:pod \"a", Some("at byte 9: this quote is never closed"))]
    #[case::number("kind:pod restarts:many", Some("at byte 9: \"many\" is not a number"))]
    fn standing_queries_are_checked(#[case] text: &str, #[case] reason: Option<&str>) {
        match (StandingQuery::parse(text), reason) {
            (Ok(_), None) => {}
            (Err(found), Some(reason)) => assert!(found.to_string().contains(reason), "{found}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn standing_queries_have_the_limits_of_searches() {
        let result = StandingQuery::parse(&"a ".repeat(300));
        assert_eq!(result, Err(StandingQueryError::LimitExceeded(LimitExceeded::Terms(256))));
    }
}
