//! Starts and stops collectors as interests, members and connections change.

use super::collector::Collector;
use super::discovery_expectations::DiscoveryExpectations;
use super::{Scope, Shared, discovery};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::{Connection, MemberChange};
use crowsnest_store::{CollectionKey, Epoch};
use kube::Client;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Stale reason of a collection that has no collector.
const NOT_COLLECTED: &str = "it is not collected at present";

/// Starts, stops and owns all collectors.
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    /// Scopes of the collections that were stored before the start.
    stored_scopes: HashMap<CollectionKey, String>,
    /// Epochs of the claims whose stored scopes were loaded.
    epochs: BTreeMap<ClusterName, Epoch>,
    running: BTreeMap<CollectionKey, RunningCollector>,
    discovery_tasks: BTreeMap<ClusterName, RunningDiscovery>,
    tasks: JoinSet<EndedTask>,
}

struct RunningCollector {
    scope: Scope,
    epoch: Epoch,
    connection: TaskConnection,
    abort: AbortHandle,
}

struct RunningDiscovery {
    connection: TaskConnection,
    expectations: Arc<DiscoveryExpectations>,
    abort: AbortHandle,
}

/// Connection that a task uses. If it changes, the task is restarted.
#[derive(Clone)]
enum TaskConnection {
    ControlPlane,
    Member(Arc<Connection>),
}

impl TaskConnection {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ControlPlane, Self::ControlPlane) => true,
            (Self::Member(a), Self::Member(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// A task that ended.
enum EndedTask {
    Collector(CollectionKey),
    Discovery(ClusterName),
}

impl Supervisor {
    pub fn new(shared: Arc<Shared>, stored_scopes: HashMap<CollectionKey, String>) -> Self {
        let (epochs, running, discovery_tasks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { shared, stored_scopes, epochs, running, discovery_tasks, tasks: JoinSet::new() }
    }

    /// Runs until stopped; then all collectors have ended.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), crowsnest_store::Error> {
        let mut interests = self.shared.interests.version();
        let mut members = self.shared.fleet.changes();
        let mut claims = self.shared.claims.changes();
        let mut tail = self.shared.tail.follow(self.shared.tail.latest());
        let mut must_reconcile = true;
        loop {
            if must_reconcile {
                interests.borrow_and_update();
                claims.mark_unchanged();
                if self.shared.writer.is_stopped() && !stop.is_cancelled() {
                    // The store has stopped. Collectors would end at their first write, and restarting them would
                    // list members in a loop.
                    return Err(crowsnest_store::Error::Stopped);
                }
                self.reconcile().await?;
            }
            must_reconcile = tokio::select! {
                () = stop.cancelled() => break,
                changed = interests.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => break,
                },
                changed = claims.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => break,
                },
                change = members.next() => match change {
                    Some(change) => self.changes_connection(&change),
                    None => break,
                },
                changes = tail.next() => match changes {
                    None => break,
                    // Changes were missed: discover every cluster again.
                    Some(Err(_)) => {
                        tail.skip_to(self.shared.tail.latest());
                        self.discovery_tasks.values().for_each(|discovery| discovery.expectations.wake.notify_one());
                        false
                    }
                    Some(Ok(changes)) => {
                        self.notify_discovery_tasks(&changes);
                        false
                    }
                },
                Some(result) = self.tasks.join_next() => self.handle_ended(result),
            };
        }
        self.tasks.shutdown().await;
        Ok(())
    }

    /// True if a member joined, left, or has another connection. The status of a Cluster, which does not concern collectors,
    /// changes as often as the pods of the cluster.
    fn changes_connection(&self, change: &MemberChange) -> bool {
        let MemberChange::Changed(member) = change else { return true };
        match (member.connection(), self.discovery_tasks.get(member.name())) {
            (Ok(current), Some(task)) => !task.connection.is_same(&TaskConnection::Member(Arc::clone(current))),
            // The reason may be another one.
            (Err(_), _) | (Ok(_), None) => true,
        }
    }

    /// Passes changes of definitions to the discovery tasks, because they announce new kinds.
    fn notify_discovery_tasks(&self, changes: &[Arc<crowsnest_store::Change>]) {
        let is_definition = |change: &&Arc<crowsnest_store::Change>| {
            let resource = change.object.record.key.resource();
            matches!(&*resource.resource, "customresourcedefinitions" | "apiservices")
        };
        for change in changes.iter().filter(is_definition) {
            let cluster = change.object.record.key.cluster();
            if let Some(discovery) = self.discovery_tasks.get(cluster) {
                let found = self.shared.served.read().get(cluster).cloned();
                discovery.expectations.add(change, found.as_deref());
            }
        }
    }

    /// Returns true if a task has to be restarted.
    fn handle_ended(&mut self, result: Result<EndedTask, tokio::task::JoinError>) -> bool {
        match result {
            Ok(EndedTask::Collector(key)) => drop(self.running.remove(&key)),
            Ok(EndedTask::Discovery(cluster)) => drop(self.discovery_tasks.remove(&cluster)),
            Err(error) if error.is_cancelled() => return false,
            Err(error) => {
                // The task is identified by its finished handle.
                tracing::error!(%error, "a collector panicked");
                self.running.retain(|_, running| !running.abort.is_finished());
                self.discovery_tasks.retain(|_, discovery| !discovery.abort.is_finished());
            }
        }
        true
    }

    /// Clients and connections of the control plane and of all members; for a member without a connection, the reason.
    fn sources(&self) -> BTreeMap<ClusterName, Result<(Client, TaskConnection), String>> {
        let mut sources = BTreeMap::new();
        sources.insert(
            ClusterName::control_plane(),
            Ok((self.shared.fleet.control_plane(), TaskConnection::ControlPlane)),
        );
        for member in self.shared.fleet.members() {
            let connection = member
                .connection()
                .map(|connection| (connection.client(), TaskConnection::Member(Arc::clone(connection))));
            sources.insert(member.name().clone(), connection.map_err(|error| error.to_string()));
        }
        sources
    }

    /// Starts and stops discovery tasks and collectors according to the current interests, members and claims.
    async fn reconcile(&mut self) -> Result<(), crowsnest_store::Error> {
        let sources = self.sources();
        self.start_discovery_tasks(&sources);
        self.load_claimed_scopes();
        let mut interest_keys = BTreeSet::new();
        let mut interests = self.shared.interests.by_cluster(sources.keys());
        for (cluster, source) in &sources {
            let epoch = self.shared.claims.epoch_of(cluster);
            for (resource, namespaces) in interests.remove(cluster).unwrap_or_default() {
                let key = CollectionKey::new(cluster.clone(), resource);
                interest_keys.insert(key.clone());
                match (source, epoch) {
                    // Collected by another replica, which also reports its errors.
                    (_, None) => self.stop_collector(&key),
                    (Ok((client, connection)), Some(epoch)) => {
                        self.ensure_collector(key, Scope(namespaces), epoch, client, connection);
                    }
                    (Err(reason), Some(_)) => {
                        self.stop_collector(&key);
                        self.shared.states.update(&key, |state| state.stale_reason = Some(reason.clone()));
                    }
                }
            }
        }
        for (key, state) in self.shared.states.all() {
            let is_claimed = self.shared.claims.epoch_of(&key.cluster).is_some();
            if is_claimed && state.stale_reason.is_none() && !self.running.contains_key(&key) {
                let reason = match sources.get(&key.cluster) {
                    Some(Err(reason)) => reason.clone(),
                    _ => NOT_COLLECTED.to_owned(),
                };
                self.shared.states.update(&key, |state| state.stale_reason = Some(reason));
            }
        }
        self.drop_unneeded(&interest_keys, &sources).await
    }

    /// Loads the stored state of newly claimed clusters.
    fn load_claimed_scopes(&mut self) {
        for (cluster, claim) in self.shared.claims.all().iter() {
            if self.epochs.insert(cluster.clone(), claim.epoch) != Some(claim.epoch) {
                self.stored_scopes.retain(|key, _| key.cluster != *cluster);
                self.stored_scopes.extend(claim.scopes.clone());
            }
        }
    }

    fn stop_collector(&mut self, key: &CollectionKey) {
        if let Some(running) = self.running.remove(key) {
            running.abort.abort();
        }
    }

    fn ensure_collector(
        &mut self,
        key: CollectionKey,
        scope: Scope,
        epoch: Epoch,
        client: &Client,
        connection: &TaskConnection,
    ) {
        if let Some(running) = self.running.get(&key) {
            if running.scope == scope && running.epoch == epoch && running.connection.is_same(connection) {
                return;
            }
            running.abort.abort();
        }
        let has_same_scope = match self.running.get(&key) {
            Some(running) if running.epoch == epoch => running.scope == scope,
            _ => self.stored_scopes.get(&key).is_some_and(|stored| *stored == scope.text()),
        };
        let state = self.shared.states.get(&key);
        let position = state.filter(|state| state.complete && has_same_scope).map(|state| state.resource_version);
        // With another scope, the collection is incomplete until it is listed.
        self.shared.states.update(&key, |state| state.complete &= has_same_scope);
        let collector = Collector {
            shared: Arc::clone(&self.shared),
            key: key.clone(),
            epoch,
            scope: scope.clone(),
            client: client.clone(),
        };
        self.stored_scopes.insert(key.clone(), scope.text());
        let name = key.clone();
        let abort = self.tasks.spawn(async move {
            collector.run(position.filter(|position| !position.is_empty())).await;
            EndedTask::Collector(name)
        });
        self.running.insert(key, RunningCollector { scope, epoch, connection: connection.clone(), abort });
    }

    /// Starts a discovery task for each cluster, and stops those of other connections.
    fn start_discovery_tasks(&mut self, sources: &BTreeMap<ClusterName, Result<(Client, TaskConnection), String>>) {
        let shared = &self.shared;
        self.discovery_tasks.retain(|cluster, discovery| {
            let is_current =
                matches!(sources.get(cluster), Some(Ok((_, connection))) if discovery.connection.is_same(connection));
            if !is_current {
                discovery.abort.abort();
                // The interests of the task end with it; their records are kept until the next discovery.
                shared.declared_clusters.lock().remove(cluster);
            }
            is_current
        });
        for (cluster, source) in sources {
            let Ok((client, connection)) = source else { continue };
            if self.discovery_tasks.contains_key(cluster) {
                continue;
            }
            let expectations = Arc::new(DiscoveryExpectations::default());
            let (shared, client, name, discovery_expectations) =
                (Arc::clone(&self.shared), client.clone(), cluster.clone(), Arc::clone(&expectations));
            let abort = self.tasks.spawn(async move {
                discovery::run(shared, name.clone(), client, discovery_expectations).await;
                EndedTask::Discovery(name)
            });
            self.discovery_tasks
                .insert(cluster.clone(), RunningDiscovery { connection: connection.clone(), expectations, abort });
        }
    }

    /// Stops collectors without an interest and deletes their records, and all records of removed clusters.
    async fn drop_unneeded(
        &mut self,
        needed: &BTreeSet<CollectionKey>,
        sources: &BTreeMap<ClusterName, Result<(Client, TaskConnection), String>>,
    ) -> Result<(), crowsnest_store::Error> {
        let unneeded: Vec<_> = self.running.keys().filter(|key| !needed.contains(key)).cloned().collect();
        unneeded.iter().for_each(|key| self.stop_collector(key));
        self.shared.metrics.collectors.set(self.running.len() as u64);
        for (key, _) in self.shared.states.all() {
            let Some(epoch) = self.shared.claims.epoch_of(&key.cluster) else { continue };
            let is_known = sources.contains_key(&key.cluster);
            let is_declared = self.shared.declared_clusters.lock().contains(&key.cluster);
            if !needed.contains(&key) && (!is_known || is_declared) {
                match self.shared.writer.drop_collection(key.clone(), epoch).await {
                    Err(error) if self.shared.writer.is_stopped() => return Err(error),
                    // The claims were given up. After they are claimed again, the new holder deletes the records.
                    Err(_) => return Ok(()),
                    Ok(()) => drop(self.stored_scopes.remove(&key)),
                }
            }
        }
        let has_left = |cluster: &ClusterName| !sources.contains_key(cluster);
        self.shared.declared_clusters.lock().retain(|cluster| !has_left(cluster));
        self.shared.served.write().retain(|cluster, _| !has_left(cluster));
        self.shared.lists_per_cluster.lock().retain(|cluster, _| !has_left(cluster));
        self.shared.budget.retain(|cluster| !has_left(cluster));
        Ok(())
    }
}
