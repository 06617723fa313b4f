//! Objects that a sink may write: those that its ServiceAccount may read and that its query selects.

use crate::error::SinkError;
use async_trait::async_trait;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::Index;
use crowsnest_search::authorization::DecisionBasis;
use crowsnest_store::Seq;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;

/// Time limit of a decision.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);

/// A decision about some objects.
#[derive(Debug, Default)]
pub struct Visible {
    /// Records by id.
    pub ids: BTreeSet<u64>,
    /// Clusters in which permissions are unknown at present; none of their objects are in `ids`.
    pub undecided: BTreeSet<ClusterName>,
}

/// Decides which objects a sink may write.
#[async_trait]
pub trait Visibility: Send + Sync + 'static {
    /// Those of the objects with these ids that may be written, as of a change or later.
    async fn visible(&self, ids: BTreeSet<u64>, as_of: u64) -> Result<Visible, SinkError>;

    /// Notified when decisions may be different.
    fn rules(&self) -> watch::Receiver<u64>;

    /// True if decisions since [`Visibility::restart`] may be different now.
    async fn has_changed(&self) -> bool;

    /// Forgets earlier decisions: everything is decided again.
    fn restart(&self);

    /// The clusters that exist, with the control plane.
    fn clusters(&self) -> BTreeSet<ClusterName>;
}

/// Decides by the rights of a caller in each cluster and a query, like a search.
pub struct IndexVisibility {
    index: Index,
    caller: UserInfo,
    query: String,
    /// Rules of the first decision since the restart; `Some(None)`: rules changed during it.
    basis: Mutex<Option<Option<DecisionBasis>>>,
}

impl IndexVisibility {
    pub fn new(index: Index, caller: UserInfo, query: String) -> Self {
        Self { index, caller, query, basis: Mutex::default() }
    }
}

#[async_trait]
impl Visibility for IndexVisibility {
    async fn visible(&self, ids: BTreeSet<u64>, as_of: u64) -> Result<Visible, SinkError> {
        let searcher = self.index.searcher();
        let matching = searcher.matching(&self.caller, &self.query, ids, Seq(as_of), DECISION_TIMEOUT).await?;
        self.basis.lock().get_or_insert(matching.basis);
        Ok(Visible { ids: matching.ids, undecided: matching.undecided })
    }

    fn rules(&self) -> watch::Receiver<u64> {
        self.index.searcher().rule_changes()
    }

    async fn has_changed(&self) -> bool {
        let basis = self.basis.lock().clone();
        match basis {
            None => false,
            Some(None) => true,
            Some(Some(basis)) => self.index.searcher().has_other_rights(&self.caller, &basis, DECISION_TIMEOUT).await,
        }
    }

    fn restart(&self) {
        *self.basis.lock() = None;
    }

    fn clusters(&self) -> BTreeSet<ClusterName> {
        let members = self.index.fleet().members();
        members.iter().map(|member| member.name().clone()).chain([ClusterName::control_plane()]).collect()
    }
}
