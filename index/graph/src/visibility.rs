//! Objects that a sink may write: those that its ServiceAccount may read and that its query selects.

use crate::error::SinkError;
use async_trait::async_trait;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::GlobalCache;
use crowsnest_search::authorization::DecisionBasis;
use crowsnest_search::matching::StandingQuery;
use crowsnest_store::Seq;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;

/// Time limit of a decision.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);

/// Result of a decision: the objects that may be written.
#[derive(Debug, Default)]
pub struct VisibilityDecision {
    /// Ids of the records that may be written.
    pub visible_ids: BTreeSet<u64>,
    /// Clusters in which permissions are currently unknown; none of their objects are in `visible_ids`.
    pub undecided_clusters: BTreeSet<ClusterName>,
}

/// Digests of the RBAC rules that determine which objects a sink may write, by cluster.
pub type RuleDigests = BTreeMap<ClusterName, String>;

/// True if the rules are equal in all clusters, except in those in which permissions are or were unknown.
pub(crate) fn has_equal_rules(
    saved: &RuleDigests,
    current: &RuleDigests,
    undecided_clusters: &BTreeSet<ClusterName>,
) -> bool {
    let is_equal = |cluster: &ClusterName| saved.get(cluster) == current.get(cluster);
    saved.keys().chain(current.keys()).all(|cluster| undecided_clusters.contains(cluster) || is_equal(cluster))
}

/// Decides which objects a sink may write.
#[async_trait]
pub trait Visibility: Send + Sync + 'static {
    /// Decides which of the objects with these ids may be written, in their state at seq `as_of` or later.
    async fn decide(&self, ids: BTreeSet<u64>, as_of: u64) -> Result<VisibilityDecision, SinkError>;

    /// Receives a new value when decisions may be different, because RBAC rules changed.
    fn rule_changes(&self) -> watch::Receiver<u64>;

    /// True if decisions since [`Visibility::reset`] may be different now.
    async fn has_changed(&self) -> bool;

    /// Digests of the rules, which include all changes of rules up to seq `as_of`, without the clusters in which
    /// permissions are unknown. They are equal in all processes while the rules are equal.
    async fn rule_digests(&self, as_of: u64) -> Result<RuleDigests, SinkError>;

    /// Discards earlier decisions, before everything is decided again.
    fn reset(&self);

    /// Names of the clusters of the fleet and of the control plane.
    fn clusters(&self) -> BTreeSet<ClusterName>;
}

/// Decides by the permissions of a caller in each cluster and by a query, like a search.
pub struct CacheVisibility {
    cache: GlobalCache,
    caller: UserInfo,
    query: StandingQuery,
    /// Rules of the first decision since the reset; `Some(None)` if rules changed during it.
    first_decision_rules: Mutex<Option<Option<DecisionBasis>>>,
}

impl CacheVisibility {
    pub fn new(cache: GlobalCache, caller: UserInfo, query: StandingQuery) -> Self {
        Self { cache, caller, query, first_decision_rules: Mutex::default() }
    }
}

#[async_trait]
impl Visibility for CacheVisibility {
    async fn decide(&self, ids: BTreeSet<u64>, as_of: u64) -> Result<VisibilityDecision, SinkError> {
        let searcher = self.cache.searcher();
        let decision = searcher.matching_ids(&self.caller, &self.query, ids, Seq(as_of), DECISION_TIMEOUT).await?;
        self.first_decision_rules.lock().get_or_insert(decision.basis);
        Ok(VisibilityDecision { visible_ids: decision.ids, undecided_clusters: decision.undecided })
    }

    fn rule_changes(&self) -> watch::Receiver<u64> {
        self.cache.searcher().rule_changes()
    }

    async fn has_changed(&self) -> bool {
        let rules = self.first_decision_rules.lock().clone();
        match rules {
            None => false,
            Some(None) => true,
            Some(Some(rules)) => {
                self.cache.searcher().permissions_may_differ(&self.caller, &rules, DECISION_TIMEOUT).await
            }
        }
    }

    async fn rule_digests(&self, as_of: u64) -> Result<RuleDigests, SinkError> {
        let digests = self.cache.searcher().permission_digests(&self.caller, Seq(as_of), DECISION_TIMEOUT).await?;
        Ok(digests.into_iter().map(|(cluster, digest)| (cluster, format!("{digest:032x}"))).collect())
    }

    fn reset(&self) {
        *self.first_decision_rules.lock() = None;
    }

    fn clusters(&self) -> BTreeSet<ClusterName> {
        self.cache.fleet().cluster_names()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn digests(rules: &[(&str, &str)]) -> RuleDigests {
        rules.iter().map(|(name, digest)| (ClusterName::parse(name).unwrap(), (*digest).to_owned())).collect()
    }

    #[rstest]
    #[case::equal(&[("m1", "a"), ("m2", "b")], &[], true)]
    #[case::revoked(&[("m1", "a"), ("m2", "c")], &[], false)]
    #[case::unknown_now(&[("m1", "a")], &["m2"], true)]
    #[case::left(&[("m1", "a")], &[], false)]
    #[case::joined(&[("m1", "a"), ("m2", "b"), ("m3", "a")], &[], false)]
    #[case::unknown_and_revoked_elsewhere(&[("m1", "c")], &["m2"], false)]
    fn rules_are_compared_in_clusters_with_known_permissions(
        #[case] current: &[(&str, &str)],
        #[case] undecided_clusters: &[&str],
        #[case] expected: bool,
    ) {
        let undecided_clusters = undecided_clusters.iter().map(|name| ClusterName::parse(name).unwrap()).collect();
        let saved = digests(&[("m1", "a"), ("m2", "b")]);
        assert_eq!(has_equal_rules(&saved, &digests(current), &undecided_clusters), expected);
    }
}
