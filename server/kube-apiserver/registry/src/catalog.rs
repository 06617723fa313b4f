//! The served resources. Written by the server's start (built-in kinds) and at run time by definitions; read by every request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::resource::{ResourceInfo, ResourceRef};
use crate::storage::ResourceKey;
use crowsnest_apimachinery::names::Gvr;

/// One state of the catalog.
#[derive(Debug, Clone, Default)]
pub struct Served {
    resources: BTreeMap<Gvr, ResourceRef>,
    /// By apiVersion and kind.
    kinds: HashMap<(String, String), ResourceRef>,
    /// The preferred version of each table.
    tables: HashMap<ResourceKey, ResourceRef>,
    /// Grows with every change; keys caches of discovery and OpenAPI documents.
    pub generation: u64,
}

impl Served {
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

    /// The resource whose objects a table holds, in its preferred version.
    pub fn by_table(&self, table: &ResourceKey) -> Option<&ResourceRef> {
        self.tables.get(table)
    }

    /// One version of each (group, resource): the one it is stored in, else the first.
    pub fn preferred(&self) -> Vec<ResourceRef> {
        let mut chosen: BTreeMap<(&str, &str), &ResourceRef> = BTreeMap::new();
        for resource in self.iter() {
            let key = (&*resource.gvr.group, &*resource.gvr.resource);
            let slot = chosen.entry(key).or_insert(resource);
            if *resource.gvr.version == *resource.storage_version {
                *slot = resource;
            }
        }
        chosen.into_values().cloned().collect()
    }
}

/// Swappable set of served resources.
#[derive(Debug, Default)]
pub struct Catalog {
    served: ArcSwap<Served>,
    change: Mutex<()>,
    changed: watch::Sender<u64>,
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

    pub fn served(&self) -> Arc<Served> {
        self.served.load_full()
    }

    pub fn get(&self, gvr: &Gvr) -> Option<ResourceRef> {
        self.served.load().get(gvr).cloned()
    }

    /// Wakes when the served resources changed; the value is their generation.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
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

    /// Replaces every version of a resource in one step; watchers of the catalog see no gap.
    pub fn replace(&self, group: &str, resource: &str, with: Vec<ResourceInfo>) {
        self.edit(|served| {
            served.retain(|gvr, _| *gvr.group != *group || *gvr.resource != *resource);
            for resource in with {
                served.insert(resource.gvr.clone(), Arc::new(resource));
            }
        });
    }

    fn edit(&self, change: impl FnOnce(&mut BTreeMap<Gvr, ResourceRef>)) {
        let _one_at_a_time = self.change.lock();
        let mut next = Served::clone(&self.served.load());
        change(&mut next.resources);
        next.generation += 1;
        next.tables = next.preferred().into_iter().rev().map(|r| (r.table(), r)).collect();
        // Resources without list are answers in another kind's name, such as `bindings`.
        next.kinds = next
            .resources
            .values()
            .filter(|r| r.verbs.contains(&"list"))
            .map(|r| ((r.gvr.api_version(), r.kind.clone()), r.clone()))
            .collect();
        let generation = next.generation;
        self.served.store(Arc::new(next));
        self.changed.send_replace(generation);
    }
}
