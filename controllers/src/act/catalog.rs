//! Which resource a kind is, per cluster: discovery, asked again when a kind is unknown or time has passed. A cluster that offers
//! what it offered before is asked no more than that, and one that does not answer keeps nobody waiting for another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::names::ClusterName;
use crowsnest_fleet::discovery::{Discovered, discover_again};
use crowsnest_fleet::{ApiResources, Fleet};
use parking_lot::RwLock;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::objects::Resource;
use crate::Error;

/// A kind that is still unknown is not asked for again within this time.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long a cluster may take to say what it serves.
const ANSWER: Duration = Duration::from_secs(10);

struct Entry {
    found: Discovered,
    asked: Instant,
}

/// The served resources of every cluster.
pub struct Catalog {
    fleet: Fleet,
    known: RwLock<HashMap<ClusterName, Entry>>,
    /// Held while a cluster is asked for a kind.
    asking: RwLock<HashMap<ClusterName, Arc<Mutex<()>>>>,
}

impl Catalog {
    pub fn new(fleet: Fleet) -> Self {
        Catalog { fleet, known: RwLock::default(), asking: RwLock::default() }
    }

    /// The resource of a kind, if it is known without asking.
    pub fn known(&self, cluster: &ClusterName, api_version: &str, kind: &str) -> Option<Resource> {
        let known = self.known.read();
        let resources = &known.get(cluster)?.found.resources.resources;
        let found =
            resources.iter().find(|resource| resource.kind == kind && resource.gvr.api_version() == api_version)?;
        Some(Resource { gvr: found.gvr.clone(), kind: found.kind.clone(), namespaced: found.namespaced })
    }

    /// The resource of a kind; discovery is asked when it is not known.
    pub async fn find(&self, cluster: &ClusterName, api_version: &str, kind: &str) -> Result<Resource, Error> {
        if let Some(resource) = self.known(cluster, api_version, kind) {
            return Ok(resource);
        }
        let turn = Arc::clone(self.asking.write().entry(cluster.clone()).or_default());
        let _one_asks = turn.lock().await;
        if let Some(resource) = self.known(cluster, api_version, kind) {
            return Ok(resource);
        }
        let fresh = self.known.read().get(cluster).is_some_and(|entry| entry.asked.elapsed() < ASK_AGAIN);
        if !fresh {
            self.refresh(cluster).await?;
        }
        self.known(cluster, api_version, kind).ok_or_else(|| Error::UnknownKind {
            cluster: cluster.clone(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })
    }

    /// Asks a cluster what it serves.
    pub async fn refresh(&self, cluster: &ClusterName) -> Result<Arc<ApiResources>, Error> {
        let client = self.fleet.client(cluster)?;
        let before = self.known.read().get(cluster).map(|entry| entry.found.clone());
        let Ok(found) = tokio::time::timeout(ANSWER, discover_again(&client, before.as_ref())).await else {
            let late = format!("cluster {cluster} does not say within {} s what it serves", ANSWER.as_secs());
            return Err(Error::Waiting(late));
        };
        let found = found?;
        let resources = Arc::clone(&found.resources);
        self.known.write().insert(cluster.clone(), Entry { found, asked: Instant::now() });
        Ok(resources)
    }

    pub fn forget(&self, cluster: &ClusterName) {
        self.known.write().remove(cluster);
        self.asking.write().remove(cluster);
    }
}
