//! Evaluation of a query on given objects, for followers of the store that copy only objects that match a query and that a
//! caller may read.

use crate::Searcher;
use crate::authorization::DecisionBasis;
use crate::execute::{TRUNCATED, resolve_with_notices};
use crate::plan::predicate::Match;
use crate::plan::{FleetFacts, TimeScope, plan};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{Limits, Query, parse};
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

/// Checks that a query can be evaluated continuously, on each object that changes. Fails with the reason.
pub fn check_standing_query(text: &str) -> Result<(), String> {
    parse_standing_query(text).map(drop)
}

fn parse_standing_query(text: &str) -> Result<Query, String> {
    let query = parse(text, &Limits::default()).map_err(|error| error.to_string())?;
    if query.output.scope.is_some() {
        return Err("scope: names a saved search, which may change; write its query here".to_owned());
    }
    if query.output.limit.is_some() {
        return Err("limit: selects by rank, which other objects change; remove it".to_owned());
    }
    if plan(&query, &FleetFacts::default()).scope != TimeScope::Now {
        return Err("only current objects can be selected; remove at:, during: and is:deleted".to_owned());
    }
    Ok(query)
}

impl Searcher {
    /// Selects the objects among `ids` that a caller may read and that a query matches, in a state that includes the change
    /// `as_of`. Fails with [`Error::Incomplete`] if the query is invalid, on a timeout, or if a limit is reached.
    pub async fn matching(
        &self,
        caller: &UserInfo,
        text: &str,
        ids: BTreeSet<u64>,
        as_of: Seq,
        timeout: Duration,
    ) -> Result<MatchingObjects, Error> {
        let deadline = Instant::now() + timeout;
        let Ok(query) = parse_standing_query(text) else { return Err(Error::Incomplete) };
        self.searchable_at(as_of, deadline).await?;
        let sources = self.sources(caller, deadline.saturating_duration_since(Instant::now())).await;
        let facts = self.fleet_facts(&sources.context.rights.lock());
        let matches = plan(&query, &facts).matches;
        let (matches, notices) = resolve_with_notices(&sources, matches).await?;
        let lookup = sources.engine.ids(&sources.context, &matches.and(Match::Ids(Arc::new(ids)))).await?;
        if lookup.incomplete || notices.contains(TRUNCATED) {
            return Err(Error::Incomplete);
        }
        let rights = sources.context.rights.lock();
        let members = self.inner.fleet.members();
        let clusters = members.iter().map(|member| member.name().clone()).chain([ClusterName::control_plane()]);
        let undecided = clusters.filter(|cluster| rights.missing_reason(cluster).is_some()).collect();
        Ok(MatchingObjects { ids: lookup.numbers, undecided, basis: rights.basis() })
    }

    /// True if a caller's permissions, or the clusters in which they are known, may differ from those of an earlier decision.
    pub async fn has_other_rights(&self, caller: &UserInfo, basis: &DecisionBasis, timeout: Duration) -> bool {
        let rights = self.rights_of(caller, Instant::now() + timeout).await;
        rights.changed_from(basis).is_none_or(|changed| !changed.is_empty())
    }

    /// Digests of a caller's permissions by cluster, in a state that includes the change `as_of`. Clusters in which the
    /// permissions are unknown are omitted. Equal rules have equal digests in all processes of a version.
    pub async fn rights_digests(
        &self,
        caller: &UserInfo,
        as_of: Seq,
        timeout: Duration,
    ) -> Result<BTreeMap<ClusterName, u128>, Error> {
        let deadline = Instant::now() + timeout;
        self.searchable_at(as_of, deadline).await?;
        let mut rights = self.rights_of(caller, deadline).await;
        let members = self.inner.fleet.members();
        let clusters = members.iter().map(|member| member.name().clone()).chain([ClusterName::control_plane()]);
        let digest = |cluster: ClusterName| rights.digest(&cluster).map(|digest| (cluster, digest));
        Ok(clusters.filter_map(digest).collect())
    }

    /// Waits until searches find a change and the rules up to it are applied.
    async fn searchable_at(&self, seq: Seq, deadline: Instant) -> Result<(), Error> {
        let (mut searchable, mut applied) = (self.searchable(), self.applied_seq());
        let both = async {
            let found = searchable.wait_for(|reached| *reached >= seq).await.is_ok();
            found && applied.wait_for(|reached| *reached >= seq).await.is_ok()
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
    #[case("", None)]
    #[case("kind:pod -kind:event label:app=web", None)]
    #[case("kind:pod limit:10", Some("limit:"))]
    #[case("scope:mine", Some("scope:"))]
    #[case("kind:pod at:2026-01-01", Some("current objects"))]
    fn standing_queries_are_checked(#[case] text: &str, #[case] reason: Option<&str>) {
        match (check_standing_query(text), reason) {
            (Ok(()), None) => {}
            (Err(found), Some(reason)) => assert!(found.contains(reason), "{found}"),
            (found, _) => panic!("{found:?}"),
        }
    }
}
