//! Follows the changes of the store and keeps a graph equal to what may be written of them.

use crate::batch::{Batch, NodeChange, Removal};
use crate::bolt::{Bolt, BoltTarget};
use crate::error::SinkError;
use crate::generation::{Claim, Claimed};
use crate::model::{RowReader, ServedKinds, key_in};
use crate::progress::{SinkProgress, SinkState};
use crate::selectors::PodSelectors;
use crate::sweep::{Sweeps, vanished};
use crate::visibility::{Visibility, Visible};
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

const JITTER: (f64, f64) = (0.8, 1.2);

/// Settings of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkOptions {
    /// Rows of a transaction.
    pub batch: usize,
    pub backoff: Backoff,
    /// Interval of checking the database.
    pub check_interval: Duration,
    /// Interval of writing all objects again, if the query may depend on other objects or on the time.
    pub reload_interval: Duration,
    /// Minimum time between two loads that changes of permissions cause.
    pub min_reload_interval: Duration,
}

impl Default for SinkOptions {
    fn default() -> Self {
        Self {
            batch: 1_000,
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(30)),
            check_interval: Duration::from_secs(30),
            reload_interval: Duration::from_secs(3600),
            min_reload_interval: Duration::from_secs(30),
        }
    }
}

/// Parameters of a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkConfig {
    /// Name in the graph, unique among all sinks that might use the database.
    pub name: String,
    pub target: BoltTarget,
    /// What is selected, and for whom: if it changes, everything is written again.
    pub selection: String,
    /// The selection depends on nothing but each object and the permissions.
    pub is_stable: bool,
    pub options: SinkOptions,
}

/// What a sink reads from the cache.
pub struct SinkSource {
    pub changes: ChangeSource,
    pub states: Arc<States>,
    /// Names the store in the graph, which is read by others: not its secret identity.
    pub identity: String,
    /// References that users add.
    pub rules: Vec<CustomRule>,
}

/// Keeps a graph equal to the selected objects.
pub struct GraphSink {
    config: SinkConfig,
    source: SinkSource,
    visibility: Arc<dyn Visibility>,
    progress: watch::Sender<SinkProgress>,
}

/// State that outlives a session.
#[derive(Default)]
struct Carried {
    /// Failures since the sink last followed.
    failures: u32,
    /// Everything has to be written again, and no session has begun to.
    reload: bool,
    /// Clusters in which permissions were unknown in the last session.
    undecided: BTreeSet<ClusterName>,
}

/// One connection to a graph, in one generation.
struct Session {
    bolt: Bolt,
    token: String,
    generation: u64,
    position: u64,
    kinds: ServedKinds,
    selectors: PodSelectors,
    sweeps: Sweeps,
    /// Collections with positions in the graph.
    written: BTreeSet<CollectionKey>,
    /// Clusters in which permissions were unknown.
    undecided: BTreeSet<ClusterName>,
    loaded_at: Instant,
    /// Permissions have changed: everything is written again at this time.
    reload_at: Option<Instant>,
    /// Unknown permissions are determined again at this time.
    decide_at: Instant,
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
        let mut carried = Carried::default();
        while let Some(end) = stop.run_until_cancelled(self.run_session(&mut carried)).await {
            let error = match end {
                Ok(()) => {
                    carried.reload = true;
                    continue;
                }
                // Deletions after the position are unknown.
                Err(SinkError::Source(crowsnest_index::export::ExportError::Pruned)) => {
                    carried.reload = true;
                    continue;
                }
                Err(error) => error,
            };
            carried.failures += 1;
            self.report(&error);
            let delay = jitter(self.config.options.backoff.delay(carried.failures), JITTER, rand::random());
            stop.run_until_cancelled(tokio::time::sleep(delay)).await;
        }
    }

    fn report(&self, error: &SinkError) {
        let (failure, message) = (error.failure(), error.message());
        let mut is_new = false;
        self.update_progress(|progress| {
            let state = SinkState::Waiting { failure, message: message.clone() };
            is_new = progress.state != state;
            progress.state = state;
            progress.connected = false;
            progress.failures += 1;
        });
        if is_new {
            tracing::warn!(sink = self.config.name, error = message, "cannot write to a graph database");
        }
    }

    /// Ends without an error if everything has to be written again.
    async fn run_session(&self, carried: &mut Carried) -> Result<(), SinkError> {
        let bolt = Bolt::new(&self.config.target)?;
        let token = format!("{:016x}", rand::random::<u64>());
        let claim = Claim { bolt: &bolt, name: &self.config.name, token: &token };
        let Claimed { state, last_generation, syncs } = claim.take().await?;
        self.update_progress(|progress| progress.connected = true);
        let source = &self.source;
        let digest = format!("{:016x}", xxh3_64(self.config.selection.as_bytes()));
        let resumable = state.filter(|state| {
            let is_current = state.store == source.identity && state.selection == digest;
            !carried.reload && is_current && state.complete && state.seq <= source.changes.latest()
        });
        let written = syncs.iter().map(|(key, _)| key.clone()).collect();
        let mut session = Session {
            generation: resumable.as_ref().map_or(last_generation + 1, |state| state.generation),
            position: resumable.as_ref().map_or(0, |state| state.seq),
            kinds: ServedKinds::default(),
            selectors: PodSelectors::default(),
            sweeps: Sweeps::default(),
            undecided: BTreeSet::new(),
            loaded_at: Instant::now(),
            reload_at: None,
            decide_at: Instant::now() + self.config.options.min_reload_interval,
            written,
            bolt,
            token,
        };
        match resumable {
            Some(_) => {
                source.changes.check_replayable(session.position).await?;
                let is_swept = |(_, generation): &(_, Option<u64>)| *generation == Some(session.generation);
                session.sweeps = Sweeps::new(syncs.into_iter().filter(is_swept).map(|(key, _)| key).collect());
                session.selectors = self.read_selectors().await?;
                // Decided now, so that later changes of permissions are noticed.
                let Visible { undecided, .. } = self.visibility.visible(BTreeSet::new(), 0).await?;
                session.undecided = &undecided | &carried.undecided;
            }
            None => {
                self.update_progress(|progress| progress.state = SinkState::Loading);
                self.claim(&session).begin_generation(session.generation, &source.identity, &digest).await?;
                // The graph says from now on that it is not complete.
                carried.reload = false;
                self.visibility.restart();
                let loaded = self.load(&mut session).await;
                carried.undecided.clone_from(&session.undecided);
                loaded?;
            }
        }
        let end = self.follow(&mut session, &mut carried.failures).await;
        carried.undecided = session.undecided;
        end
    }

    /// Writes all objects of the store.
    async fn load(&self, session: &mut Session) -> Result<(), SinkError> {
        // Read before the first object: changes after it are followed.
        let begin = self.source.changes.latest();
        let mut after = 0;
        loop {
            let page = self.source.changes.objects_after(after, self.config.options.batch).await?;
            let (objects, Some(next)) = page else { break };
            let changes = objects.into_iter().map(|object| ObjectChange {
                seq: object.record.seq.0,
                key: object.record.key.clone(),
                kind: Arc::clone(&object.record.kind),
                uid: object.record.uid.clone(),
                object: Some(object),
            });
            self.write(session, changes.collect(), Position { seq: 0, complete: false }).await?;
            after = next;
        }
        session.position = begin;
        let writer = self.writer(session);
        let mut transaction = writer.claim.begin().await?;
        writer.advance(&mut transaction, Position { seq: begin, complete: true }).await?;
        transaction.commit().await?;
        self.update_progress(|progress| progress.loads += 1);
        Ok(())
    }

    /// Ends if everything has to be written again.
    async fn follow(&self, session: &mut Session, failures: &mut u32) -> Result<(), SinkError> {
        let options = self.config.options;
        let mut rules = self.visibility.rules();
        rules.mark_changed();
        let mut completed = self.source.states.version();
        let mut check_at = Instant::now() + options.check_interval;
        loop {
            if self.must_reload(session, &mut rules).await? {
                return Ok(());
            }
            completed.borrow_and_update();
            self.observe(session);
            self.catch_up(session).await?;
            self.sweep(session).await?;
            *failures = 0;
            let (position, undecided) = (session.position, &session.undecided);
            self.update_progress(|progress| {
                progress.state = SinkState::Following;
                progress.connected = true;
                progress.position = position;
                progress.undecided = undecided.iter().map(ToString::to_string).collect();
            });
            if Instant::now() >= check_at {
                // Another process may have become the writer, or the database may be another one.
                self.claim(session).begin().await?;
                check_at = Instant::now() + options.check_interval;
            }
            let decide_at = (!session.undecided.is_empty()).then_some(session.decide_at);
            let wake_at = self.next_reload(session).into_iter().chain(decide_at).fold(check_at, Instant::min);
            tokio::select! {
                () = self.source.changes.wait_for_changes(position) => {}
                _ = completed.changed() => {}
                _ = rules.changed() => rules.mark_changed(),
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
    }

    /// True if everything has to be written again now.
    async fn must_reload(&self, session: &mut Session, rules: &mut watch::Receiver<u64>) -> Result<bool, SinkError> {
        let pause = self.config.options.min_reload_interval;
        if rules.has_changed().unwrap_or(false) {
            rules.borrow_and_update();
            if self.visibility.has_changed().await {
                session.reload_at.get_or_insert(session.loaded_at + pause);
            }
        }
        if !session.undecided.is_empty() && session.decide_at <= Instant::now() {
            session.decide_at = Instant::now() + pause;
            let still = self.visibility.visible(BTreeSet::new(), 0).await?.undecided;
            if !session.undecided.is_subset(&still) {
                return Ok(true);
            }
        }
        Ok(self.next_reload(session).is_some_and(|at| at <= Instant::now()))
    }

    /// Time at which everything is written again.
    fn next_reload(&self, session: &Session) -> Option<Instant> {
        let options = self.config.options;
        let regular = (!self.config.is_stable).then(|| session.loaded_at + options.reload_interval);
        regular.into_iter().chain(session.reload_at).min()
    }

    fn observe(&self, session: &mut Session) {
        let states = self.source.states.all();
        // Read after the states.
        let latest = self.source.changes.latest();
        let states = states.iter().map(|(key, state)| (key, state));
        session.sweeps.observe(states, &session.undecided, latest);
    }

    /// Writes all changes after the position.
    async fn catch_up(&self, session: &mut Session) -> Result<(), SinkError> {
        loop {
            let mut page = self.source.changes.changes_after(session.position).await?;
            if page.position == session.position {
                return Ok(());
            }
            while !page.changes.is_empty() {
                let rest = page.changes.split_off(page.changes.len().min(self.config.options.batch));
                let changes = std::mem::replace(&mut page.changes, rest);
                let end = match (page.changes.is_empty(), changes.last()) {
                    (false, Some(last)) => last.seq,
                    _ => page.position,
                };
                self.write(session, changes, Position { seq: end, complete: true }).await?;
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
        let changes = self.node_changes(session, changes).await?;
        let batch = Batch::from_changes(changes);
        let written = self.writer(session).write(&batch, position).await?;
        session.written.extend(batch.collections.into_keys());
        self.update_progress(|progress| {
            progress.written += written.nodes;
            progress.linked += written.linked;
            progress.removed += written.removed;
            progress.transactions += 1;
        });
        Ok(())
    }

    /// Decides about changes, in order.
    async fn node_changes(
        &self,
        session: &mut Session,
        changes: Vec<ObjectChange>,
    ) -> Result<Vec<NodeChange>, SinkError> {
        session.kinds = ServedKinds::from_states(self.source.states.all().iter().map(|(key, state)| (key, state)));
        let as_of = changes.iter().map(|change| change.seq).max().unwrap_or_default();
        let ids = changes.iter().filter_map(|change| Some(change.object.as_ref()?.record.id));
        let ids: BTreeSet<u64> = ids.collect();
        let visible = if ids.is_empty() { Visible::default() } else { self.visibility.visible(ids, as_of).await? };
        for cluster in visible.undecided {
            session.sweeps.withhold(&cluster);
            session.undecided.insert(cluster);
        }
        let (mut nodes, mut refused) = (Vec::new(), 0);
        for change in changes {
            let is_visible = change.object.as_ref().is_some_and(|object| visible.ids.contains(&object.record.id));
            match change.object {
                Some(object) if is_visible => {
                    let reader =
                        RowReader { kinds: &session.kinds, rules: &self.source.rules, selectors: &session.selectors };
                    let row = match reader.row(&object) {
                        Ok(row) => row,
                        // One object that cannot be read must not keep the others from the graph.
                        Err(error) => {
                            tracing::warn!(error = error.chain(), "cannot write an object to a graph");
                            refused += 1;
                            continue;
                        }
                    };
                    session.selectors.set(&object.record, row.selects.clone());
                    nodes.push(NodeChange::Put(Box::new(row)));
                }
                // The node stays as it is until the permissions are known.
                Some(_) if session.undecided.contains(change.key.cluster()) => {}
                _ => nodes.push(removal(session, &change.key, &change.kind, change.seq)),
            }
        }
        self.update_progress(|progress| progress.refused += refused);
        Ok(nodes)
    }

    /// Selectors of the objects in the store.
    async fn read_selectors(&self) -> Result<PodSelectors, SinkError> {
        crate::load_selectors::read(&self.source.changes, &self.source.states, &self.source.rules).await
    }

    /// Removes nodes of earlier generations from collections that are complete, and those of clusters that have left.
    async fn sweep(&self, session: &mut Session) -> Result<(), SinkError> {
        session.kinds = ServedKinds::from_states(self.source.states.all().iter().map(|(key, state)| (key, state)));
        for key in session.sweeps.ready(session.position) {
            // Without a known kind there are no nodes yet.
            let Some(kind) = session.kinds.kind(&key).map(str::to_owned) else { continue };
            self.sweep_kind(session, &key, &kind).await?;
            session.sweeps.finish(&key);
            session.written.insert(key);
        }
        let gone = vanished(&session.written, &self.visibility.clusters());
        for key in gone.into_iter().filter(|key| !session.undecided.contains(&key.cluster)) {
            let claim = self.claim(session);
            if let Some(kind) = claim.kind_of(&key).await? {
                self.sweep_kind(session, &key, &kind).await?;
            }
            claim.forget(&key).await?;
            session.written.remove(&key);
        }
        Ok(())
    }

    async fn sweep_kind(&self, session: &Session, key: &CollectionKey, kind: &str) -> Result<(), SinkError> {
        loop {
            match self.writer(session).sweep(key, kind, self.config.options.batch).await? {
                0 => return Ok(()),
                swept => self.update_progress(|progress| progress.swept += swept),
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

/// The end of an object, or of the permission to write it.
fn removal(session: &mut Session, key: &crowsnest_store::RecordKey, kind: &str, seq: u64) -> NodeChange {
    let node = key_in(&key.collection, kind, &key.namespace, &key.name);
    session.selectors.set_key((key.cluster().to_string(), key.namespace.to_string()), node.clone(), None);
    let label = session.kinds.label(&key.collection, kind);
    NodeChange::Remove(Removal { key: node, collection: key.collection.clone(), label, seq })
}
