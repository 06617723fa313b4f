//! Watches: the changes a controller is notified of, and the keys that each of them enqueues.

use std::time::Duration;

use futures::future::BoxFuture;

use super::controller::Controller;
use crate::Error;
use crate::cache::Change;
use crate::runtime::context::WellKnownKinds;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::workqueue::Priority;

/// A key to reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<K> {
    pub key: K,
    /// `None`: the current priority of the key, or the default.
    pub priority: Option<Priority>,
    /// Delay, to batch several changes in one reconcile.
    pub after: Duration,
}

/// Keys that a change enqueues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requests<K> {
    pub(super) requests: Vec<Request<K>>,
    /// Every key of the controller, after a delay.
    pub(super) all: Option<Duration>,
}

impl<K> Requests<K> {
    pub fn none() -> Self {
        Requests { requests: Vec::new(), all: None }
    }

    /// Every key of the controller, as in a full resync.
    pub fn all() -> Self {
        Requests { requests: Vec::new(), all: Some(Duration::ZERO) }
    }

    /// All keys, if the condition is met.
    pub fn all_if(condition: bool) -> Self {
        if condition { Self::all() } else { Self::none() }
    }

    /// One key, if the condition is met.
    pub fn one_if(condition: bool, key: impl FnOnce() -> K) -> Self {
        condition.then(key).into()
    }

    pub fn with_priority(key: K, priority: Priority) -> Self {
        let request = Request { key, priority: Some(priority), after: Duration::ZERO };
        Requests { requests: vec![request], all: None }
    }

    /// Delays all requests.
    pub fn after(mut self, delay: Duration) -> Self {
        self.requests.iter_mut().for_each(|request| request.after = delay);
        self.all = self.all.map(|_| delay);
        self
    }

    pub fn push(&mut self, key: K) {
        self.requests.push(Request { key, priority: None, after: Duration::ZERO });
    }
}

impl<K> From<K> for Requests<K> {
    fn from(key: K) -> Self {
        [key].into_iter().collect()
    }
}

impl<K> From<Option<K>> for Requests<K> {
    fn from(key: Option<K>) -> Self {
        key.into_iter().collect()
    }
}

impl<K> FromIterator<K> for Requests<K> {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut requests = Requests::none();
        keys.into_iter().for_each(|key| requests.push(key));
        requests
    }
}

impl<K> FromIterator<Request<K>> for Requests<K> {
    fn from_iter<I: IntoIterator<Item = Request<K>>>(requests: I) -> Self {
        Requests { requests: requests.into_iter().collect(), all: None }
    }
}

/// Objects that are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// These resources of the control plane. The runtime collects them and waits for their initial lists.
    ControlPlane(Vec<Resource>),
    /// These resources of the control plane, if it serves them. The detector collects them as templates.
    Templates(Vec<Resource>),
    /// Every collected resource of the control plane.
    AllOfControlPlane,
    /// A resource of members by group and plural name, in any version.
    Members(&'static str, &'static str),
    /// Every collected resource of members.
    AllOfMembers,
}

impl Source {
    /// Resources of the control plane, see [`Source::ControlPlane`].
    pub fn control_plane<'r>(resources: impl IntoIterator<Item = &'r Resource>) -> Self {
        Source::ControlPlane(resources.into_iter().cloned().collect())
    }

    /// Clusters.
    pub fn clusters(kinds: &WellKnownKinds) -> Self {
        Source::control_plane([&kinds.cluster])
    }

    /// Bindings of namespaced and of cluster-scoped templates.
    pub fn bindings(kinds: &WellKnownKinds) -> Self {
        Source::control_plane(kinds.bindings())
    }

    /// Resources of the control plane that it may not serve, see [`Source::Templates`].
    pub fn templates<'r>(resources: impl IntoIterator<Item = &'r Resource>) -> Self {
        Source::Templates(resources.into_iter().cloned().collect())
    }

    /// True if the changed object belongs to this source.
    fn matches(&self, change: &Change) -> bool {
        let gvr = &change.resource.gvr;
        match self {
            Source::AllOfMembers => !change.cluster.is_control_plane(),
            Source::Members(group, resource) => {
                !change.cluster.is_control_plane() && (&*gvr.group, &*gvr.resource) == (*group, *resource)
            }
            Source::AllOfControlPlane => change.cluster.is_control_plane(),
            Source::ControlPlane(resources) | Source::Templates(resources) => {
                change.cluster.is_control_plane() && resources.iter().any(|resource| resource.gvr == *gvr)
            }
        }
    }

    /// Watches with a function from a change to keys, which uses only the controller's in-memory state.
    pub fn map<C: Controller>(self, map: fn(&C, &Change) -> Requests<C::Key>) -> Watch<C> {
        Watch { source: self, handler: Handler::Map(map) }
    }

    /// Watches with a function that reads the cache to find the keys.
    pub fn find<C: Controller>(self, find: KeyLookup<C>) -> Watch<C> {
        Watch { source: self, handler: Handler::Find(find) }
    }
}

/// Function that reads the cache to find the keys that a change enqueues.
pub type KeyLookup<C> = for<'a> fn(&'a C, &'a Change) -> BoxFuture<'a, Result<Requests<<C as Controller>::Key>, Error>>;

enum Handler<C: Controller> {
    Map(fn(&C, &Change) -> Requests<C::Key>),
    Find(KeyLookup<C>),
}

/// A watched source and its event handler.
pub struct Watch<C: Controller> {
    pub(super) source: Source,
    handler: Handler<C>,
}

impl<C: Controller> Watch<C> {
    /// Keys that a change enqueues: none unless the changed object belongs to the source.
    pub(super) async fn requests(&self, controller: &C, change: &Change) -> Result<Requests<C::Key>, Error> {
        if !self.source.matches(change) {
            return Ok(Requests::none());
        }
        match self.handler {
            Handler::Map(map) => Ok(map(controller, change)),
            Handler::Find(find) => find(controller, change).await,
        }
    }
}
