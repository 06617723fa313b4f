//! Caches derived from cached objects and shared by controllers: placements of bindings, keys of the bindings whose
//! name has a hash suffix, and capacity of members. They are updated before controllers are notified of a change.

use crowsnest_apimachinery::unstructured;
use std::collections::HashSet;
use std::sync::Arc;

use crowsnest_api::keys::BindingKey;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};

use super::Change;
use crate::cache::capacity::Capacity;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::{Setup, Trigger};
use crate::scheduling::scheduler::Scheduler;

/// Updates the caches that are derived from cached objects.
pub(crate) struct DerivedCaches {
    context: Arc<Context>,
    capacity: Arc<Capacity>,
    scheduler_trigger: Trigger<BindingKey>,
}

impl DerivedCaches {
    pub fn new(setup: &Setup) -> Self {
        DerivedCaches {
            context: setup.context(),
            capacity: Capacity::shared(setup),
            scheduler_trigger: setup.trigger::<Scheduler>(),
        }
    }

    /// Applies a change. Unschedulable bindings are scheduled again if the capacity of a member may have increased.
    pub fn update(&self, change: &Change) {
        if !change.cluster.is_control_plane() {
            if self.capacity.on_change(change) {
                self.scheduler_trigger.requeue_awaiting();
            }
        } else if self.context.kinds.is_binding(&change.resource) {
            self.context.placements.update(change);
            self.context.hash_suffixed_bindings.update(change);
        }
    }

    /// Removes the cached state of a cluster whose Cluster object was deleted, and stops collecting from it. Called
    /// after all controllers were notified.
    pub fn forget_deleted_cluster(&self, change: &Change) {
        if !change.deleted || change.resource.gvr != self.context.kinds.cluster.gvr {
            return;
        }
        let Ok(name) = ClusterName::parse(unstructured::name(change.object())) else { return };
        self.context.cache.forget(&name);
        self.context.rest_mapper.forget(&name);
        self.capacity.forget(&name);
        if let Some(estimators) = &self.context.config.estimators {
            estimators.forget(name.as_str());
        }
    }

    /// Removes objects that are not among `keys`, the objects of a new list: they were deleted while changes were
    /// missed.
    pub fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if !cluster.is_control_plane() {
            self.capacity.retain(cluster, resource, keys);
        } else if self.context.kinds.is_binding(resource) {
            self.context.placements.retain(resource.namespaced, keys);
            self.context.hash_suffixed_bindings.retain(resource.namespaced, keys);
        }
    }
}
