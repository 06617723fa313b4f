//! Registry of members: watches Cluster objects and their Secrets in the control plane.
//!
//! One task, `RegistryTask`, owns the state. Readers get immutable [`Member`] snapshots behind an atomic pointer and
//! never block.

use crate::connection::Connection;
use crate::credentials::{ConnectionSpec, MemberRoute, Secrets, impersonator_token};
use crate::endpoints::EndpointRules;
use crate::tunnel::Tunnels;
use crate::{Error, Member};
use arc_swap::ArcSwap;
use crowsnest_api::cluster::Cluster;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_component_base::requests::RequestCounters;
use crowsnest_component_base::tasks::Tasks;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// Capacity of the change channel. A reader that falls further behind receives every member again.
const CHANGE_BUFFER: usize = 1024;

/// Options of the registry.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    pub connect_timeout: Duration,
    /// Time limit of [`Fleet::start`] for the first list of Clusters.
    pub start_timeout: Duration,
    /// Counts the requests to members.
    pub requests: RequestCounters,
    /// Endpoints to which members' tokens may be sent.
    pub endpoints: EndpointRules,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(30),
            requests: RequestCounters::default(),
            endpoints: EndpointRules::default(),
        }
    }
}

impl FleetOptions {
    /// Options for tests and benchmarks whose members listen on loopback, possibly without TLS.
    pub fn on_loopback() -> Self {
        Self { endpoints: EndpointRules { allow_local: true, allow_plain_http: true }, ..Self::default() }
    }
}

/// A change of a member.
#[derive(Debug, Clone)]
pub enum MemberChange {
    Joined(Arc<Member>),
    /// Spec, status, labels, credentials or connection changed.
    Changed(Arc<Member>),
    Left(Arc<Member>),
}

impl MemberChange {
    pub fn member(&self) -> &Arc<Member> {
        match self {
            Self::Joined(member) | Self::Changed(member) | Self::Left(member) => member,
        }
    }
}

/// Maximum delay until an opened tunnel is part of its member's snapshot.
const SNAPSHOT_DELAY: Duration = Duration::from_secs(1);

type Members = BTreeMap<ClusterName, Arc<Member>>;

/// The registry of all members. Cheap to clone; [`Fleet::stop`] ends its task.
#[derive(Clone)]
pub struct Fleet {
    inner: Arc<Inner>,
}

struct Inner {
    control_plane: Client,
    members: ArcSwap<Members>,
    changes: broadcast::Sender<MemberChange>,
    tunnels: Tunnels,
    health: watch::Sender<Result<(), String>>,
    tasks: Tasks,
}

impl Fleet {
    /// Starts watching Clusters; returns after the first list.
    pub async fn start(control_plane: Client, options: FleetOptions) -> Result<Self, Error> {
        let fleet = Self::empty(control_plane);
        let _ = fleet.inner.health.send_replace(Err("the first list of Clusters has not completed".to_owned()));
        let mut health = fleet.inner.health.subscribe();
        let inner = Arc::clone(&fleet.inner);
        let task = RegistryTask::new(inner, options.clone());
        fleet.inner.tasks.spawn_until_stop("registry of members", task.run());
        let first = tokio::time::timeout(options.start_timeout, health.wait_for(Result::is_ok));
        let is_listed = tokio::select! {
            // A completed list counts even if the task died right after it.
            biased;
            first = first => matches!(first, Ok(Ok(_))),
            _ = fleet.inner.tasks.wait_for_failure() => false,
        };
        if is_listed {
            return Ok(fleet);
        }
        let reason = fleet.ready().err().unwrap_or_default();
        fleet.stop().await;
        Err(Error::WatchEnded { resource: "Clusters", reason })
    }

    /// A registry that watches nothing and stays empty, for checks and roles without members.
    pub fn empty(control_plane: Client) -> Self {
        let inner = Inner {
            control_plane,
            members: ArcSwap::default(),
            changes: broadcast::Sender::new(CHANGE_BUFFER),
            tunnels: Tunnels::default(),
            health: watch::Sender::new(Ok(())),
            tasks: Tasks::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Client of the control plane.
    pub fn control_plane(&self) -> Client {
        self.inner.control_plane.clone()
    }

    /// Client of a member, or of the control plane by its reserved name.
    pub fn client(&self, cluster: &ClusterName) -> Result<Client, Error> {
        if cluster.is_control_plane() {
            return Ok(self.control_plane());
        }
        self.member(cluster).ok_or_else(|| Error::UnknownCluster(cluster.clone()))?.client()
    }

    pub fn member(&self, name: &ClusterName) -> Option<Arc<Member>> {
        self.inner.members.load().get(name).cloned()
    }

    /// Like [`Fleet::member`], but waits for the tunnel of the member's agent if one is expected soon.
    pub async fn wait_for_tunnel(&self, name: &ClusterName) -> Option<Arc<Member>> {
        let lacks_tunnel = |member: &Arc<Member>| matches!(member.connection, Err(Error::NoTunnel(_)));
        let member = self.member(name)?;
        if !lacks_tunnel(&member) || !self.inner.tunnels.wait_until_open(name).await {
            return Some(member);
        }
        // The registry's task observes a new tunnel with a delay; the tunnel may also end before that.
        let mut changes = self.inner.changes.subscribe();
        let reachable = async {
            while self.member(name).is_some_and(|member| lacks_tunnel(&member)) {
                if matches!(changes.recv().await, Err(broadcast::error::RecvError::Closed)) {
                    return;
                }
            }
        };
        // After a timeout, the current snapshot decides.
        let _ = tokio::time::timeout(SNAPSHOT_DELAY, reachable).await;
        self.member(name)
    }

    /// All members in name order.
    pub fn members(&self) -> Vec<Arc<Member>> {
        self.inner.members.load().values().cloned().collect()
    }

    /// Names of all members and of the control plane.
    pub fn cluster_names(&self) -> BTreeSet<ClusterName> {
        let members = self.inner.members.load();
        members.keys().cloned().chain([ClusterName::control_plane()]).collect()
    }

    /// Stream of every present member as `Joined`, then of each change. A reader that falls behind receives the members
    /// that have left since as `Left`, and the present ones again as `Changed`, or `Joined` if they are new.
    pub fn changes(&self) -> MemberChanges {
        let receiver = self.inner.changes.subscribe();
        let known: Members = (**self.inner.members.load()).clone();
        let pending = known.values().cloned().map(MemberChange::Joined).collect();
        MemberChanges { fleet: self.clone(), receiver, known, pending }
    }

    /// The open tunnels of the members' agents.
    pub fn tunnels(&self) -> &Tunnels {
        &self.inner.tunnels
    }

    /// Returns an error with the reason until the first list of Clusters has completed, and if a task has died.
    pub fn ready(&self) -> Result<(), String> {
        match self.inner.tasks.failures().as_slice() {
            [] => self.inner.health.borrow().clone(),
            failures => Err(failures.join("; ")),
        }
    }

    /// Ends the watches and the tunnels and waits for them.
    pub async fn stop(&self) {
        self.inner.tasks.stop().await;
        self.inner.tunnels.stop().await;
    }
}

/// Stream of changes; see [`Fleet::changes`].
pub struct MemberChanges {
    fleet: Fleet,
    receiver: broadcast::Receiver<MemberChange>,
    /// The members that have been returned, or are pending.
    known: Members,
    pending: std::collections::VecDeque<MemberChange>,
}

impl MemberChanges {
    /// The next change, or None when the fleet stopped.
    pub async fn next(&mut self) -> Option<MemberChange> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Some(change);
            }
            let received = tokio::select! {
                received = self.receiver.recv() => received,
                () = self.fleet.inner.tasks.stop_token().cancelled() => return None,
            };
            match received {
                Ok(MemberChange::Left(member)) => {
                    if self.known.remove(member.name()).is_some() {
                        return Some(MemberChange::Left(member));
                    }
                }
                Ok(MemberChange::Joined(member) | MemberChange::Changed(member)) => {
                    return Some(match self.known.insert(member.name().clone(), Arc::clone(&member)) {
                        None => MemberChange::Joined(member),
                        Some(_) => MemberChange::Changed(member),
                    });
                }
                Err(broadcast::error::RecvError::Lagged(_)) => self.catch_up(),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    fn catch_up(&mut self) {
        self.receiver = self.receiver.resubscribe();
        let current: Members = (**self.fleet.inner.members.load()).clone();
        let left = self.known.iter().filter(|(name, _)| !current.contains_key(*name));
        self.pending.extend(left.map(|(_, member)| MemberChange::Left(Arc::clone(member))));
        for (name, member) in &current {
            let joined = !self.known.contains_key(name);
            let member = Arc::clone(member);
            self.pending.push_back(if joined { MemberChange::Joined(member) } else { MemberChange::Changed(member) });
        }
        self.known = current;
    }
}

/// An event from the watches or tunnels.
enum RegistryEvent {
    Cluster(Event<Cluster>),
    Secret(String, Event<Secret>),
    Tunnels,
    WatchFailed(&'static str, String),
}

/// The task that owns the state.
struct RegistryTask {
    inner: Arc<Inner>,
    options: FleetOptions,
    clusters: BTreeMap<String, Arc<Cluster>>,
    /// Names seen by the list in progress; clusters missing at its end were deleted.
    listing: Option<BTreeSet<String>>,
    secrets: Secrets,
    /// Secrets seen by the list in progress, by namespace.
    secret_listings: BTreeMap<String, BTreeSet<String>>,
    secret_watches: BTreeSet<String>,
    streams: futures::stream::SelectAll<BoxStream<'static, RegistryEvent>>,
    /// True once the first list of Clusters has completed.
    is_listed: bool,
}

impl RegistryTask {
    fn new(inner: Arc<Inner>, options: FleetOptions) -> Self {
        let mut streams = futures::stream::SelectAll::new();
        let api: Api<Cluster> = Api::all(inner.control_plane.clone());
        streams.push(watch_events(api, RegistryEvent::Cluster, "Clusters"));
        streams.push(tunnel_events(&inner.tunnels));
        Self {
            inner,
            options,
            clusters: BTreeMap::new(),
            listing: None,
            secrets: Secrets::new(),
            secret_listings: BTreeMap::new(),
            secret_watches: BTreeSet::new(),
            streams,
            is_listed: false,
        }
    }

    async fn run(mut self) {
        let stop = self.inner.tasks.stop_token().clone();
        while let Some(Some(event)) = stop.run_until_cancelled(self.streams.next()).await {
            self.apply(event);
        }
    }

    fn apply(&mut self, event: RegistryEvent) {
        match event {
            RegistryEvent::WatchFailed(resource, reason) => {
                tracing::warn!(resource, reason, "watch interrupted, retrying");
                if !self.is_listed {
                    let _ = self.inner.health.send_replace(Err(reason));
                }
                return;
            }
            RegistryEvent::Cluster(event) => self.apply_cluster(event),
            RegistryEvent::Secret(namespace, event) => self.apply_secret(&namespace, event),
            RegistryEvent::Tunnels => {}
        }
        self.watch_secrets();
        self.publish();
    }

    fn apply_cluster(&mut self, event: Event<Cluster>) {
        match event {
            Event::Init => self.listing = Some(BTreeSet::new()),
            Event::InitApply(cluster) => {
                if let Some(seen) = &mut self.listing {
                    seen.insert(cluster.name_any());
                }
                self.clusters.insert(cluster.name_any(), Arc::new(cluster));
            }
            Event::InitDone => {
                if let Some(seen) = self.listing.take() {
                    self.clusters.retain(|name, _| seen.contains(name));
                }
                self.is_listed = true;
                let _ = self.inner.health.send_replace(Ok(()));
            }
            Event::Apply(cluster) => {
                self.clusters.insert(cluster.name_any(), Arc::new(cluster));
            }
            Event::Delete(cluster) => {
                self.clusters.remove(&cluster.name_any());
            }
        }
    }

    fn apply_secret(&mut self, namespace: &str, event: Event<Secret>) {
        let key = |secret: &Secret| NamespacedName::new(namespace, secret.name_any());
        match event {
            Event::Init => {
                self.secret_listings.insert(namespace.to_owned(), BTreeSet::new());
            }
            Event::InitApply(secret) => {
                self.secret_listings.entry(namespace.to_owned()).or_default().insert(secret.name_any());
                self.secrets.insert(key(&secret), Arc::new(secret));
            }
            Event::InitDone => {
                let seen = self.secret_listings.remove(namespace).unwrap_or_default();
                self.secrets.retain(|key, _| key.namespace != namespace || seen.contains(&key.name));
            }
            Event::Apply(secret) => {
                self.secrets.insert(key(&secret), Arc::new(secret));
            }
            Event::Delete(secret) => {
                self.secrets.remove(&key(&secret));
            }
        }
    }

    /// Starts a watch for each namespace with Secrets of clusters.
    fn watch_secrets(&mut self) {
        let mut namespaces = BTreeSet::new();
        for cluster in self.clusters.values() {
            let references = [&cluster.spec.secret_ref, &cluster.spec.impersonator_secret_ref];
            namespaces.extend(references.into_iter().flatten().map(|reference| reference.namespace.clone()));
        }
        for namespace in namespaces {
            if !namespace.is_empty() && self.secret_watches.insert(namespace.clone()) {
                let api: Api<Secret> = Api::namespaced(self.inner.control_plane.clone(), &namespace);
                let wrap = move |event| RegistryEvent::Secret(namespace.clone(), event);
                self.streams.push(watch_events(api, wrap, "Secrets of clusters"));
            }
        }
    }

    /// Publishes the new snapshots and sends the changes to subscribers.
    fn publish(&mut self) {
        if !self.is_listed {
            return;
        }
        let before = self.inner.members.load_full();
        let mut after = Members::new();
        let mut changes = Vec::new();
        for (name, cluster) in &self.clusters {
            let Ok(name) = ClusterName::parse(name) else { continue };
            let previous = before.get(&name);
            let member = Arc::new(self.member(&name, cluster, previous));
            match previous {
                Some(previous) if previous.is_same_as(&member) => {
                    after.insert(name, Arc::clone(previous));
                }
                Some(_) => {
                    changes.push(MemberChange::Changed(Arc::clone(&member)));
                    after.insert(name, member);
                }
                None => {
                    changes.push(MemberChange::Joined(Arc::clone(&member)));
                    after.insert(name, member);
                }
            }
        }
        for left in before.values().filter(|member| !after.contains_key(member.name())) {
            self.inner.tunnels.close(left.name());
            changes.push(MemberChange::Left(Arc::clone(left)));
        }
        if changes.is_empty() {
            return;
        }
        self.inner.members.store(Arc::new(after));
        for change in changes {
            // Without subscribers, only the snapshot is updated.
            let _ = self.inner.changes.send(change);
        }
    }

    fn member(&self, name: &ClusterName, cluster: &Arc<Cluster>, previous: Option<&Arc<Member>>) -> Member {
        let tunnels = &self.inner.tunnels;
        let connection = ConnectionSpec::from_cluster(name, cluster, &self.secrets).and_then(|spec| {
            // Without a tunnel, requests fail immediately with the reason until the agent connects.
            if spec.route == MemberRoute::AgentOnly && !tunnels.is_open(name) {
                return Err(Error::NoTunnel(name.clone()));
            }
            let current = previous.and_then(|member| member.connection.as_ref().ok());
            match current {
                Some(current) if *current.spec() == spec => Ok(Arc::clone(current)),
                _ => self.open(spec).map(Arc::new),
            }
        });
        let impersonator = impersonator_token(name, cluster, &self.secrets);
        Member { name: name.clone(), cluster: Arc::clone(cluster), connection, impersonator }
    }

    fn open(&self, spec: ConnectionSpec) -> Result<Connection, Error> {
        let FleetOptions { connect_timeout, requests, endpoints, .. } = &self.options;
        Connection::open(spec, *connect_timeout, &self.inner.tunnels, requests, *endpoints)
    }
}

fn tunnel_events(tunnels: &Tunnels) -> BoxStream<'static, RegistryEvent> {
    futures::stream::unfold(tunnels.changes(), |mut changes| async {
        changes.changed().await.ok()?;
        Some((RegistryEvent::Tunnels, changes))
    })
    .boxed()
}

fn watch_events<K>(
    api: Api<K>,
    wrap: impl Fn(Event<K>) -> RegistryEvent + Send + 'static,
    resource: &'static str,
) -> BoxStream<'static, RegistryEvent>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    use kube::runtime::WatchStreamExt as _;
    let backoff = watcher::DefaultBackoff::default();
    watcher::watcher(api, watcher::Config::default())
        .backoff(backoff)
        .map(move |event| match event {
            Ok(event) => wrap(event),
            Err(error) => RegistryEvent::WatchFailed(resource, error.to_string()),
        })
        .boxed()
}

#[cfg(test)]
mod tests;
