//! Catalog of served resources. Written at start (built-in kinds) and when definitions change; read by every
//! request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::resource::{ResourceInfo, ResourceRef};
use crate::storage::ResourceKey;
use crowsnest_apimachinery::names::Gvr;

/// Snapshot of the catalog.
#[derive(Debug, Clone, Default)]
pub struct CatalogSnapshot {
    resources: BTreeMap<Gvr, ResourceRef>,
    /// By apiVersion and kind.
    kinds: HashMap<(String, String), ResourceRef>,
    /// Preferred version of each table.
    tables: HashMap<ResourceKey, ResourceRef>,
    /// Incremented on each change; cache key of discovery and OpenAPI documents.
    pub generation: u64,
}

impl CatalogSnapshot {
    pub fn get(&self, gvr: &Gvr) -> Option<&ResourceRef> {
        self.resources.get(gvr)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ResourceRef> {
        self.resources.values()
    }

    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.iter().any(|r| *r.gvr.group == *group && *r.gvr.version == *version)
    }

    /// The resource of a kind.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<&ResourceRef> {
        self.kinds.get(&(api_version.to_owned(), kind.to_owned()))
    }

    /// Preferred version of the resource that is stored in a table.
    pub fn by_table(&self, table: &ResourceKey) -> Option<&ResourceRef> {
        self.tables.get(table)
    }

    /// One version of each group and resource: the storage version, or the first one.
    pub fn preferred_versions(&self) -> Vec<ResourceRef> {
        let mut chosen: BTreeMap<(&str, &str), &ResourceRef> = BTreeMap::new();
        for resource in self.iter() {
            let key = (&*resource.gvr.group, &*resource.gvr.resource);
            let slot = chosen.entry(key).or_insert(resource);
            if *resource.gvr.version == *resource.storage.version {
                *slot = resource;
            }
        }
        chosen.into_values().cloned().collect()
    }
}

/// Set of served resources, replaced atomically.
#[derive(Debug, Default)]
pub struct Catalog {
    served: ArcSwap<CatalogSnapshot>,
    edit_lock: Mutex<()>,
    generation: watch::Sender<u64>,
}

impl Catalog {
    pub fn new(resources: Vec<ResourceInfo>) -> Self {
        let catalog = Self::default();
        catalog.edit(|served| {
            for resource in resources {
                served.insert(resource.gvr.clone(), Arc::new(resource));
            }
        });
        catalog
    }

    pub fn snapshot(&self) -> Arc<CatalogSnapshot> {
        self.served.load_full()
    }

    pub fn get(&self, gvr: &Gvr) -> Option<ResourceRef> {
        self.served.load().get(gvr).cloned()
    }

    /// Notifies of changes; the value is the generation.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Adds or replaces resources.
    pub fn install(&self, resources: Vec<ResourceInfo>) {
        self.edit(|served| {
            for resource in resources {
                served.insert(resource.gvr.clone(), Arc::new(resource));
            }
        });
    }

    /// Removes every version of a resource.
    pub fn remove(&self, group: &str, resource: &str) {
        self.edit(|served| served.retain(|gvr, _| *gvr.group != *group || *gvr.resource != *resource));
    }

    /// Replaces all versions of a resource in one step, so that no reader sees it missing.
    pub fn replace(&self, group: &str, resource: &str, versions: Vec<ResourceInfo>) {
        self.edit(|served| {
            served.retain(|gvr, _| *gvr.group != *group || *gvr.resource != *resource);
            for resource in versions {
                served.insert(resource.gvr.clone(), Arc::new(resource));
            }
        });
    }

    fn edit(&self, change: impl FnOnce(&mut BTreeMap<Gvr, ResourceRef>)) {
        let _guard = self.edit_lock.lock();
        let mut next = CatalogSnapshot::clone(&self.served.load());
        change(&mut next.resources);
        next.generation += 1;
        next.tables = next.preferred_versions().into_iter().rev().map(|r| (r.table(), r)).collect();
        // Resources without `list`, such as `bindings`, only return objects of another kind.
        next.kinds = next
            .resources
            .values()
            .filter(|r| r.verbs.contains(&"list"))
            .map(|r| ((r.gvr.api_version(), r.kind.clone()), r.clone()))
            .collect();
        let generation = next.generation;
        self.served.store(Arc::new(next));
        self.generation.send_replace(generation);
    }
}
