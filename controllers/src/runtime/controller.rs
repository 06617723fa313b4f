//! The interface between a controller and the runtime.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::setup::Setup;
use super::watch::Watch;
use crate::Error;
use crate::metrics::Durations;
use crate::runtime::config::Config;
use crate::runtime::context::{Context, WellKnownKinds};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::workqueue::Outcome;

/// Names of a controller in `--controllers`, and whether it runs by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// The controller has no name in `--controllers` and always runs.
    Always,
    /// The controller always runs. Each name enables a part of it; the controller checks [`super::Selection`] for them.
    Parts(&'static [&'static str]),
    /// The controller runs unless a list disables it. Several names are enabled and disabled together.
    OnByDefault(&'static [&'static str]),
    /// The controller runs only where a list enables it.
    OffByDefault(&'static [&'static str]),
}

impl Switch {
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Switch::Always => &[],
            Switch::Parts(names) | Switch::OnByDefault(names) | Switch::OffByDefault(names) => names,
        }
    }

    pub const fn is_on_by_default(self) -> bool {
        !matches!(self, Switch::OffByDefault(_))
    }
}

/// Key of a reconcile.
pub trait Key: Hash + Eq + Clone + Debug + Send + Sync + 'static {}

impl<K: Hash + Eq + Clone + Debug + Send + Sync + 'static> Key for K {}

/// A level-triggered controller: its watches map changes to keys, and a reconcile reads the current state of one key
/// and acts on it.
pub trait Controller: Sized + Send + Sync + 'static {
    type Key: Key;

    /// Name in metrics, traces and logs. The name of Karmada's controller, if there is one.
    const NAME: &'static str;

    const SWITCH: Switch;

    fn new(setup: &Setup) -> Self;

    /// Resources whose changes enqueue keys. None by default: only resyncs and triggers enqueue keys.
    fn watches(_kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        Vec::new()
    }

    /// Every key that a full resync enqueues.
    fn keys(&self) -> impl Future<Output = Result<Vec<Self::Key>, Error>> + Send;

    /// Removes in-memory state of objects that are not in `keys` (namespace and name). Called after changes were
    /// missed, once all existing objects of a resource in a cluster have been dispatched again.
    fn retain(&self, _cluster: &ClusterName, _resource: &Resource, _keys: &HashSet<NamespacedName>) {}

    /// Reconciles a key. Never runs concurrently for the same key.
    fn reconcile(self: Arc<Self>, key: Self::Key) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// Period of the resync. `None` (default): the controller is part of the full resync.
    fn resync_period(_config: &Config) -> Option<Duration> {
        None
    }

    /// Number of keys that are reconciled concurrently.
    fn workers(config: &Config) -> usize {
        config.workers.others
    }

    /// Member whose responses the reconcile of a key waits for. The keys of one member occupy at most half of the
    /// workers. `None` (default): the key is not limited.
    fn group(_key: &Self::Key) -> Option<ClusterName> {
        None
    }

    /// Additional histogram for the duration of each reconcile.
    fn durations(_context: &Context) -> Option<Durations> {
        None
    }

    /// Runs once, after the initial sync with the control plane and before the first reconcile.
    fn prepare(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Task that enqueues keys in addition to the watches, until `stop`.
    fn key_source(self: Arc<Self>, _stop: CancellationToken) -> Option<BoxFuture<'static, Result<(), String>>> {
        None
    }

    /// True if a write is deferred, so that its key will be requeued.
    fn has_deferred_writes(&self) -> bool {
        false
    }
}
