//! Graph sink: writes the selected and permitted objects of the store to a graph, and follows their changes.

use crate::batch::{Batch, NodeChange, Removal};
use crate::bolt::{Bolt, BoltTarget};
use crate::error::SinkError;
use crate::generation::{Claim, ClaimedGraph};
use crate::model::{RowBuilder, ServedKinds, collection_node_key};
use crate::progress::{SinkProgress, SinkState};
use crate::selectors::PodSelectors;
use crate::sweep::{Sweeps, collections_of_removed_clusters};
use crate::visibility::{Visibility, VisibilityDecision};
use crate::writer::{Position, Writer};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_component_base::retry::{Backoff, jitter};
use crowsnest_index::export::{ChangeSource, ObjectChange};
use crowsnest_store::{CollectionKey, States};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

/// Range of factors by which a retry delay is multiplied.
const RETRY_JITTER: (f64, f64) = (0.8, 1.2);

/// Settings of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkOptions {
    /// Maximum number of rows of a transaction.
    pub batch_size: usize,
    /// Delays between sessions after errors.
    pub backoff: Backoff,
    /// Interval at which the claim on the graph is checked.
    pub check_interval: Duration,
    /// Interval at which all objects are written again if the selection is not stable ([`SinkConfig::is_stable`]).
    pub reload_interval: Duration,
    /// Minimum time between two loads that are caused by changes of permissions.
    pub min_reload_interval: Duration,
}

impl Default for SinkOptions {
    fn default() -> Self {
        Self {
            batch_size: 1_000,
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(30)),
            check_interval: Duration::from_secs(30),
            reload_interval: Duration::from_secs(3600),
            min_reload_interval: Duration::from_secs(30),
        }
    }
}

/// Configuration of a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkConfig {
    /// Name in the graph, unique among all sinks that could use the database.
    pub name: String,
    pub target: BoltTarget,
    /// The query and the ServiceAccount: if they change, everything is written again.
    pub selection: String,
    /// True if the selection of an object depends only on the object itself and the permissions, not on other objects
    /// or time.
    pub is_stable: bool,
    pub options: SinkOptions,
}

/// Inputs of a sink from the cache.
pub struct SinkSource {
    pub changes: ChangeSource,
    pub states: Arc<States>,
    /// Name of the store in the graph. It is public to all readers of the graph, unlike the store's secret identity.
    pub store_name: String,
    /// References that the configuration adds.
    pub rules: Vec<CustomRule>,
}

/// A sink, which keeps a graph equal to the selected objects.
pub struct GraphSink {
    config: SinkConfig,
    source: SinkSource,
    visibility: Arc<dyn Visibility>,
    progress: watch::Sender<SinkProgress>,
}

/// State that is carried from one session to the next.
#[derive(Default)]
struct CarriedState {
    /// Failures since the sink last reached [`SinkState::Following`].
    failures: u32,
    /// Everything must be written again, and no generation has been started for it yet.
    needs_reload: bool,
    /// Clusters in which permissions were unknown in the last session.
    undecided_clusters: BTreeSet<ClusterName>,
}

/// One connection to a graph, in one generation.
struct Session {
    bolt: Bolt,
    /// Random name of this session in the graph.
    token: String,
    generation: u64,
    /// Seq up to which all changes are in the graph.
    position: u64,
    kinds: ServedKinds,
    selectors: PodSelectors,
    sweeps: Sweeps,
    /// Collections with positions in the graph.
    known_collections: BTreeSet<CollectionKey>,
    /// Clusters in which permissions were unknown.
    undecided_clusters: BTreeSet<ClusterName>,
    loaded_at: Instant,
    /// Time at which everything is written again because permissions have changed.
    reload_at: Option<Instant>,
    /// Time at which unknown permissions are determined again.
    next_decision_at: Instant,
}

impl GraphSink {
    pub fn new(config: SinkConfig, source: SinkSource, visibility: Arc<dyn Visibility>) -> Self {
        Self { config, source, visibility, progress: watch::Sender::default() }
    }

    /// State and counters; `latest` is the store's current newest change.
    pub fn progress(&self) -> SinkProgress {
        SinkProgress { latest: self.source.changes.latest(), ..self.progress.borrow().clone() }
    }

    /// Notifies of changes of the progress; `latest` is the value at the time of the change.
    pub fn watch(&self) -> watch::Receiver<SinkProgress> {
        self.progress.subscribe()
    }

    /// Writes until stopped. Errors are retried and reported in the progress.
    pub async fn run(&self, stop: CancellationToken) {
        let mut carried = CarriedState::default();
        while let Some(result) = stop.run_until_cancelled(self.run_session(&mut carried)).await {
            let error = match result {
                Ok(()) => {
                    carried.needs_reload = true;
                    continue;
                }
                // The store has no deletions after the position any more.
                Err(SinkError::Source(crowsnest_index::export::ExportError::Pruned)) => {
                    carried.needs_reload = true;
                    continue;
                }
                Err(error) => error,
            };
            carried.failures += 1;
            self.report_error(&error);
            let delay = jitter(self.config.options.backoff.delay(carried.failures), RETRY_JITTER, rand::random());
            stop.run_until_cancelled(tokio::time::sleep(delay)).await;
        }
    }

    fn report_error(&self, error: &SinkError) {
        let (failure, message) = (error.failure(), error.message());
        let mut is_new = false;
        self.update_progress(|progress| {
            let state = SinkState::Waiting { failure, message: message.clone() };
            is_new = progress.state != state;
            progress.state = state;
            progress.is_connected = false;
            progress.failures += 1;
        });
        if is_new {
            tracing::warn!(sink = self.config.name, error = message, "cannot write to a graph database");
        }
    }

    /// Runs one session. Returns without an error if everything must be written again.
    async fn run_session(&self, carried: &mut CarriedState) -> Result<(), SinkError> {
        let bolt = Bolt::new(&self.config.target)?;
        let token = format!("{:016x}", rand::random::<u64>());
        let claim = Claim { bolt: &bolt, name: &self.config.name, token: &token };
        let ClaimedGraph { state, last_generation, collections } = claim.acquire().await?;
        self.update_progress(|progress| progress.is_connected = true);
        let source = &self.source;
        let digest = format!("{:016x}", xxh3_64(self.config.selection.as_bytes()));
        let resumable = state.filter(|state| {
            let is_current = state.store == source.store_name && state.selection == digest;
            !carried.needs_reload && is_current && state.is_complete && state.seq <= source.changes.latest()
        });
        let known_collections = collections.iter().map(|(key, _)| key.clone()).collect();
        let mut session = Session {
            generation: resumable.as_ref().map_or(last_generation + 1, |state| state.generation),
            position: resumable.as_ref().map_or(0, |state| state.seq),
            kinds: ServedKinds::default(),
            selectors: PodSelectors::default(),
            sweeps: Sweeps::default(),
            undecided_clusters: BTreeSet::new(),
            loaded_at: Instant::now(),
            reload_at: None,
            next_decision_at: Instant::now() + self.config.options.min_reload_interval,
            known_collections,
            bolt,
            token,
        };
        match resumable {
            Some(_) => {
                source.changes.check_replayable(session.position).await?;
                let is_swept = |(_, generation): &(_, Option<u64>)| *generation == Some(session.generation);
                session.sweeps = Sweeps::new(collections.into_iter().filter(is_swept).map(|(key, _)| key).collect());
                session.selectors = self.load_pod_selectors().await?;
                // The decision is the basis for detecting later changes of permissions.
                let VisibilityDecision { undecided_clusters, .. } = self.visibility.decide(BTreeSet::new(), 0).await?;
                session.undecided_clusters = &undecided_clusters | &carried.undecided_clusters;
            }
            None => {
                self.update_progress(|progress| progress.state = SinkState::Loading);
                self.claim(&session).begin_generation(session.generation, &source.store_name, &digest).await?;
                // The graph records from now on that it is not complete.
                carried.needs_reload = false;
                self.visibility.reset();
                let result = self.load(&mut session).await;
                carried.undecided_clusters.clone_from(&session.undecided_clusters);
                result?;
            }
        }
        let result = self.follow(&mut session, &mut carried.failures).await;
        carried.undecided_clusters = session.undecided_clusters;
        result
    }

    /// Writes all objects of the store.
    async fn load(&self, session: &mut Session) -> Result<(), SinkError> {
        // Read before the first object: later changes are followed after the load.
        let start = self.source.changes.latest();
        let mut after = 0;
        loop {
            let page = self.source.changes.objects_after(after, self.config.options.batch_size).await?;
            let (objects, Some(next)) = page else { break };
            let changes = objects.into_iter().map(|object| ObjectChange {
                seq: object.record.seq.0,
                key: object.record.key.clone(),
                kind: Arc::clone(&object.record.kind),
                uid: object.record.uid.clone(),
                object: Some(object),
            });
            self.write(session, changes.collect(), Position { seq: 0, is_complete: false }).await?;
            after = next;
        }
        session.position = start;
        let writer = self.writer(session);
        let mut transaction = writer.claim.begin().await?;
        writer.set_position(&mut transaction, Position { seq: start, is_complete: true }).await?;
        transaction.commit().await?;
        self.update_progress(|progress| progress.loads += 1);
        Ok(())
    }

    /// Writes changes as they happen. Returns without an error if everything must be written again.
    async fn follow(&self, session: &mut Session, failures: &mut u32) -> Result<(), SinkError> {
        let options = self.config.options;
        let mut rule_changes = self.visibility.rule_changes();
        rule_changes.mark_changed();
        let mut state_changes = self.source.states.version();
        let mut check_at = Instant::now() + options.check_interval;
        loop {
            if self.must_reload(session, &mut rule_changes).await? {
                return Ok(());
            }
            state_changes.borrow_and_update();
            self.schedule_sweeps(session);
            self.catch_up(session).await?;
            self.sweep(session).await?;
            *failures = 0;
            let (position, undecided_clusters) = (session.position, &session.undecided_clusters);
            self.update_progress(|progress| {
                progress.state = SinkState::Following;
                progress.is_connected = true;
                progress.position = position;
                progress.undecided_clusters = undecided_clusters.iter().map(ToString::to_string).collect();
            });
            if Instant::now() >= check_at {
                // Fails if another process has become the writer, or if the database was replaced.
                self.claim(session).begin().await?;
                check_at = Instant::now() + options.check_interval;
            }
            let next_decision_at = (!session.undecided_clusters.is_empty()).then_some(session.next_decision_at);
            let wake_at = self.next_reload(session).into_iter().chain(next_decision_at).fold(check_at, Instant::min);
            tokio::select! {
                () = self.source.changes.wait_for_changes(position) => {}
                _ = state_changes.changed() => {}
                _ = rule_changes.changed() => rule_changes.mark_changed(),
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
    }

    /// True if everything must be written again now.
    async fn must_reload(
        &self,
        session: &mut Session,
        rule_changes: &mut watch::Receiver<u64>,
    ) -> Result<bool, SinkError> {
        let interval = self.config.options.min_reload_interval;
        if rule_changes.has_changed().unwrap_or(false) {
            rule_changes.borrow_and_update();
            if self.visibility.has_changed().await {
                session.reload_at.get_or_insert(session.loaded_at + interval);
            }
        }
        if !session.undecided_clusters.is_empty() && session.next_decision_at <= Instant::now() {
            session.next_decision_at = Instant::now() + interval;
            let still_undecided = self.visibility.decide(BTreeSet::new(), 0).await?.undecided_clusters;
            if !session.undecided_clusters.is_subset(&still_undecided) {
                return Ok(true);
            }
        }
        Ok(self.next_reload(session).is_some_and(|at| at <= Instant::now()))
    }

    /// Time at which everything is written again, if there is one.
    fn next_reload(&self, session: &Session) -> Option<Instant> {
        let options = self.config.options;
        let regular = (!self.config.is_stable).then(|| session.loaded_at + options.reload_interval);
        regular.into_iter().chain(session.reload_at).min()
    }

    fn schedule_sweeps(&self, session: &mut Session) {
        let states = self.source.states.all();
        // Read after the states, so that all objects of complete collections precede it.
        let latest = self.source.changes.latest();
        let states = states.iter().map(|(key, state)| (key, state));
        session.sweeps.schedule(states, &session.undecided_clusters, latest);
    }

    /// Writes all changes after the position.
    async fn catch_up(&self, session: &mut Session) -> Result<(), SinkError> {
        loop {
            let mut page = self.source.changes.changes_after(session.position).await?;
            if page.position == session.position {
                return Ok(());
            }
            while !page.changes.is_empty() {
                let rest = page.changes.split_off(page.changes.len().min(self.config.options.batch_size));
                let changes = std::mem::replace(&mut page.changes, rest);
                let end = match (page.changes.is_empty(), changes.last()) {
                    (false, Some(last)) => last.seq,
                    _ => page.position,
                };
                self.write(session, changes, Position { seq: end, is_complete: true }).await?;
                session.position = end;
                self.update_progress(|progress| progress.position = end);
            }
            session.position = page.position;
        }
    }

    async fn write(
        &self,
        session: &mut Session,
        changes: Vec<ObjectChange>,
        position: Position,
    ) -> Result<(), SinkError> {
        let changes = self.to_node_changes(session, changes).await?;
        let batch = Batch::from_changes(changes);
        let counts = self.writer(session).write(&batch, position).await?;
        session.known_collections.extend(batch.collections.into_keys());
        self.update_progress(|progress| {
            progress.nodes_written += counts.written;
            progress.nodes_relinked += counts.relinked;
            progress.nodes_removed += counts.removed;
            progress.transactions += 1;
        });
        Ok(())
    }

    /// Converts changes of objects to changes of nodes, in order.
    async fn to_node_changes(
        &self,
        session: &mut Session,
        changes: Vec<ObjectChange>,
    ) -> Result<Vec<NodeChange>, SinkError> {
        session.kinds = ServedKinds::from_states(self.source.states.all().iter().map(|(key, state)| (key, state)));
        let as_of = changes.iter().map(|change| change.seq).max().unwrap_or_default();
        let ids = changes.iter().filter_map(|change| Some(change.object.as_ref()?.record.id));
        let ids: BTreeSet<u64> = ids.collect();
        let decision =
            if ids.is_empty() { VisibilityDecision::default() } else { self.visibility.decide(ids, as_of).await? };
        for cluster in decision.undecided_clusters {
            session.sweeps.cancel(&cluster);
            session.undecided_clusters.insert(cluster);
        }
        let (mut nodes, mut skipped) = (Vec::new(), 0);
        for change in changes {
            let is_visible =
                change.object.as_ref().is_some_and(|object| decision.visible_ids.contains(&object.record.id));
            match change.object {
                Some(object) if is_visible => {
                    let builder =
                        RowBuilder { kinds: &session.kinds, rules: &self.source.rules, selectors: &session.selectors };
                    let row = match builder.build(&object) {
                        Ok(row) => row,
                        // An object that cannot be decoded must not block the others.
                        Err(error) => {
                            tracing::warn!(error = error.chain(), "cannot write an object to a graph; it is skipped");
                            skipped += 1;
                            continue;
                        }
                    };
                    session.selectors.set(&object.record, row.selects.clone());
                    nodes.push(NodeChange::Put(Box::new(row)));
                }
                // The node is not changed until the permissions are known.
                Some(_) if session.undecided_clusters.contains(change.key.cluster()) => {}
                _ => nodes.push(remove_node(session, &change.key, &change.kind, change.seq)),
            }
        }
        self.update_progress(|progress| progress.objects_skipped += skipped);
        Ok(nodes)
    }

    /// Reads the selectors of all objects in the store.
    async fn load_pod_selectors(&self) -> Result<PodSelectors, SinkError> {
        crate::load_selectors::load_pod_selectors(&self.source.changes, &self.source.states, &self.source.rules).await
    }

    /// Removes nodes of earlier generations from complete collections, and all nodes of clusters that were removed from
    /// the fleet.
    async fn sweep(&self, session: &mut Session) -> Result<(), SinkError> {
        session.kinds = ServedKinds::from_states(self.source.states.all().iter().map(|(key, state)| (key, state)));
        for key in session.sweeps.due(session.position) {
            // A collection whose kind is unknown has no nodes yet.
            let Some(kind) = session.kinds.kind(&key).map(str::to_owned) else { continue };
            self.sweep_kind(session, &key, &kind).await?;
            session.sweeps.mark_swept(&key);
            session.known_collections.insert(key);
        }
        let removed = collections_of_removed_clusters(&session.known_collections, &self.visibility.clusters());
        for key in removed.into_iter().filter(|key| !session.undecided_clusters.contains(&key.cluster)) {
            let claim = self.claim(session);
            if let Some(kind) = claim.read_kind(&key).await? {
                self.sweep_kind(session, &key, &kind).await?;
            }
            claim.delete_position(&key).await?;
            session.known_collections.remove(&key);
        }
        Ok(())
    }

    async fn sweep_kind(&self, session: &Session, key: &CollectionKey, kind: &str) -> Result<(), SinkError> {
        loop {
            match self.writer(session).sweep(key, kind, self.config.options.batch_size).await? {
                0 => return Ok(()),
                swept => self.update_progress(|progress| progress.nodes_swept += swept),
            }
        }
    }

    fn claim<'s>(&'s self, session: &'s Session) -> Claim<'s> {
        Claim { bolt: &session.bolt, name: &self.config.name, token: &session.token }
    }

    fn writer<'s>(&'s self, session: &'s Session) -> Writer<'s> {
        Writer {
            claim: self.claim(session),
            source: &self.source.changes,
            kinds: &session.kinds,
            generation: session.generation,
        }
    }

    fn update_progress(&self, change: impl FnOnce(&mut SinkProgress)) {
        let latest = self.source.changes.latest();
        self.progress.send_modify(|progress| {
            change(progress);
            progress.latest = latest;
        });
    }
}

/// Removes the selector of an object that was deleted or may no longer be written, and returns the removal of its node.
fn remove_node(session: &mut Session, key: &crowsnest_store::RecordKey, kind: &str, seq: u64) -> NodeChange {
    let node = collection_node_key(&key.collection, kind, &key.namespace, &key.name);
    session.selectors.set_by_key((key.cluster().to_string(), key.namespace.to_string()), node.clone(), None);
    let label = session.kinds.label(&key.collection, kind);
    NodeChange::Remove(Removal { key: node, collection: key.collection.clone(), label, seq })
}
