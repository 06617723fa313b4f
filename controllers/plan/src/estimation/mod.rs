//! How many more replicas fit into a cluster: from its nodes and pods where the cache has them, and from the summary
//! and models in the Cluster's status, less what was promised to other bindings. The smaller answer counts. Quotas of the
//! member bound it further.
//!
//! A decision asks every cluster the same [`ask::Ask`]. [`ledger::Ledger`] keeps a [`room::Room`] for each of them, which
//! stays the same one until something changes there, so [`room::Remembered`] answers what was asked before. [`accurate`]
//! counts what estimators elsewhere say, [`answering`] is what we say where we are one.

pub mod accurate;
pub mod answering;
pub mod ask;
pub mod bounds;
pub mod capacity;
pub mod ledger;
pub mod nodes;
pub mod quotas;
pub mod resources;
pub mod room;
pub mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crowsnest_api::work::{Component, ReplicaRequirements};

use self::ask::Ask;
use self::room::{Remembered, Room};
use super::scheduling::Estimate;

/// The estimator over everything known at one moment.
#[derive(Debug, Clone)]
pub struct Estimator<'a> {
    /// The clusters' rooms, in the order of the clusters. None at all for bindings that need no room.
    pub rooms: Vec<Arc<Room>>,
    pub remembered: &'a Remembered,
}

impl Estimate for Estimator<'_> {
    fn replicas(&self, among: &[usize], requirements: Option<&ReplicaRequirements>) -> Vec<Option<i32>> {
        let namespace = requirements.map_or("", |requirements| &requirements.namespace);
        self.estimate(among, Ask::replicas(requirements), namespace)
    }

    fn component_sets(&self, among: &[usize], components: &[Component], namespace: &str) -> Vec<Option<i32>> {
        self.estimate(among, Ask::sets(components), namespace)
    }
}

impl Estimator<'_> {
    fn estimate(&self, among: &[usize], ask: Ask, namespace: &str) -> Vec<Option<i32>> {
        let (ask, fits) = self.remembered.fits(ask, &self.rooms, among);
        let bounded = |(place, fits): (&usize, i64)| {
            let room = self.rooms.get(*place)?;
            let allowed = room.allows(&ask, namespace).unwrap_or(i64::MAX);
            Some(i32::try_from(fits.min(allowed)).unwrap_or(i32::MAX))
        };
        among.iter().zip(fits).map(bounded).collect()
    }
}
