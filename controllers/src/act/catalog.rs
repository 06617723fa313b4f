//! Which resource a kind is, per cluster: discovery, asked again when a kind is unknown or time has passed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::names::ClusterName;
use crowsnest_fleet::discovery::discover;
use crowsnest_fleet::{ApiResources, Fleet};
use parking_lot::RwLock;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::objects::Resource;
use crate::Error;

/// A kind that is still unknown is not asked for again within this time.
const ASK_AGAIN: Duration = Duration::from_millis(500);

struct Entry {
    resources: Arc<ApiResources>,
    asked: Instant,
}

/// The served resources of every cluster.
pub struct Catalog {
    fleet: Fleet,
    known: RwLock<HashMap<ClusterName, Entry>>,
    asking: Mutex<()>,
}

impl Catalog {
    pub fn new(fleet: Fleet) -> Self {
        Catalog { fleet, known: RwLock::default(), asking: Mutex::new(()) }
    }

    /// The resource of a kind, if it is known without asking.
    pub fn known(&self, cluster: &ClusterName, api_version: &str, kind: &str) -> Option<Resource> {
        let known = self.known.read();
        let resources = &known.get(cluster)?.resources.resources;
        let found =
            resources.iter().find(|resource| resource.kind == kind && resource.gvr.api_version() == api_version)?;
        Some(Resource { gvr: found.gvr.clone(), kind: found.kind.clone(), namespaced: found.namespaced })
    }

    /// The resource of a kind; discovery is asked when it is not known.
    pub async fn find(&self, cluster: &ClusterName, api_version: &str, kind: &str) -> Result<Resource, Error> {
        if let Some(resource) = self.known(cluster, api_version, kind) {
            return Ok(resource);
        }
        let _one_asks = self.asking.lock().await;
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
        let resources = Arc::new(discover(&client).await?);
        let entry = Entry { resources: Arc::clone(&resources), asked: Instant::now() };
        self.known.write().insert(cluster.clone(), entry);
        Ok(resources)
    }

    pub fn forget(&self, cluster: &ClusterName) {
        self.known.write().remove(cluster);
    }
}
