//! Graph sink: writes the selected and permitted objects of the store to a graph, and follows their changes.

mod load;

use crate::batch::{Batch, NodeChange, is_full_batch, place_pods_last, take_batch};
use crate::bolt::Bolt;
use crate::config::{SinkConfig, SinkSource};
use crate::continuation::{Continuation, ContinuationInput, Load};
use crate::error::SinkError;
use crate::generation::{Claim, ClaimedGraph, GraphState};
use crate::load_selectors::load_pod_selectors;
use crate::model::{NodeRow, RowBuilder, ServedKinds};
use crate::progress::{SinkProgress, SinkState};
use crate::selectors::PodSelectors;
use crate::session::{ClusterRemoval, ProcessState, Session};
use crate::sweep::{Sweeps, collections_of_removed_clusters};
use crate::visibility::{RuleDigests, Visibility, VisibilityDecision, has_equal_rules};
use crate::writer::{Position, Writer};
use crowsnest_component_base::retry::jitter;
use crowsnest_index::export::ObjectChange;
use crowsnest_store::{CollectionKey, Object, Seq};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

/// Range of factors by which a retry delay is multiplied.
const RETRY_JITTER: (f64, f64) = (0.8, 1.2);
/// Time after which changes of permissions are checked while there are more changes to write.
const MAX_CATCH_UP: Duration = Duration::from_secs(5);

/// Keeps a graph in sync with the selected objects.
pub struct GraphSink {
    config: SinkConfig,
    source: SinkSource,
    visibility: Arc<dyn Visibility>,
    progress: watch::Sender<SinkProgress>,
}

impl GraphSink {
    pub fn new(config: SinkConfig, source: SinkSource, visibility: Arc<dyn Visibility>) -> Self {
        Self { config, source, visibility, progress: watch::Sender::default() }
    }

    /// State and counters; `latest` and `oldest_pending_ms` are those of the store at present.
    pub fn progress(&self) -> SinkProgress {
        let progress = self.progress.borrow().clone();
        let changes = &self.source.changes;
        let pending = changes.tail.follow(Seq(progress.position)).ready_now();
        let oldest_pending_ms = match &pending {
            Ok(pending) => pending.first().map(|change| change.object.record.changed_at),
            // The change is no longer in memory.
            Err(_) => progress.caught_up_ms,
        };
        SinkProgress { latest: changes.latest(), oldest_pending_ms, ..progress }
    }

    /// Notifies of changes of the progress; `latest` is the value at the time of the change, `oldest_pending_ms` is None.
    pub fn watch(&self) -> watch::Receiver<SinkProgress> {
        self.progress.subscribe()
    }

    /// Writes until stopped. Errors are retried and reported in the progress.
    pub async fn run(&self, stop: CancellationToken) {
        let options = &self.config.options;
        let mut process = ProcessState::new(options);
        while let Some(result) = stop.run_until_cancelled(self.run_session(&mut process)).await {
            let Err(error) = result else {
                process.needs_reload = true;
                continue;
            };
            let delay = process.record_failure(&error, options);
            self.report_error(&error);
            let delay = jitter(delay, RETRY_JITTER, rand::random());
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
            progress.counters.failures += 1;
        });
        if is_new {
            tracing::warn!(sink = self.config.name, error = message, "cannot write to a graph database");
        }
    }

    /// Runs one session. Returns without an error if everything must be written again.
    async fn run_session(&self, process: &mut ProcessState) -> Result<(), SinkError> {
        let bolt = Bolt::new(&self.config.target)?;
        let token = format!("{:016x}", rand::random::<u64>());
        let claim = Claim { bolt: &bolt, name: &self.config.name, token: &token };
        let ClaimedGraph { state, last_generation, collections, dialect } = claim.acquire().await?;
        self.update_progress(|progress| progress.is_connected = true);
        let selection = format!("{:016x}", xxh3_64(self.config.selection.as_bytes()));
        let continuation = self.choose_continuation(state, &selection, process).await?;
        let generation = continuation.state().map_or(last_generation + 1, |state| state.generation);
        let undecided_clusters = continuation.state().map(|state| state.undecided_clusters.clone()).unwrap_or_default();
        let is_swept = |(_, swept_in): &&(_, Option<u64>)| *swept_in == Some(generation);
        let swept = collections.iter().filter(is_swept).map(|(key, _)| key.clone()).collect();
        let now = Instant::now();
        let mut session = Session {
            generation,
            position: 0,
            batch_size: process.batch_size,
            kinds: ServedKinds::default(),
            selectors: PodSelectors::default(),
            sweeps: Sweeps::new(swept),
            states_version: None,
            undecided_clusters,
            rule_digests: None,
            loaded_at: now,
            reload_at: None,
            next_decision_at: now + self.config.options.min_reload_interval,
            known_collections: collections.into_iter().map(|(key, _)| key).collect(),
            last_cluster_removal: None,
            bolt,
            dialect,
            token,
        };
        let load = self.prepare(&mut session, continuation, &selection, process).await?;
        let result = self.load_and_follow(&mut session, load, process).await;
        process.undecided_clusters = session.undecided_clusters;
        process.batch_size = session.batch_size;
        result
    }

    async fn choose_continuation(
        &self,
        state: Option<GraphState>,
        selection: &str,
        process: &mut ProcessState,
    ) -> Result<Continuation, SinkError> {
        let input = ContinuationInput {
            store: &self.source.store_name,
            selection,
            latest: self.source.changes.latest(),
            needs_reload: process.needs_reload,
            load: process.load.as_ref(),
        };
        Ok(match Continuation::new(state, input) {
            Continuation::Follow(state) => {
                self.compare_rules(state, process).await?.map_or(Continuation::NewGeneration, Continuation::Follow)
            }
            Continuation::ResumeLoad(mut state, start) => {
                state.undecided_clusters.extend(process.undecided_clusters.iter().cloned());
                Continuation::ResumeLoad(state, start)
            }
            Continuation::NewGeneration => Continuation::NewGeneration,
        })
    }

    /// Prepares a session for its continuation, and returns the load to begin with, if there is one.
    async fn prepare(
        &self,
        session: &mut Session,
        continuation: Continuation,
        selection: &str,
        process: &mut ProcessState,
    ) -> Result<Option<Load>, SinkError> {
        let source = &self.source;
        match continuation {
            Continuation::Follow(state) => {
                process.load = None;
                source.changes.check_replayable(state.seq).await?;
                let age = state.load_age((source.now_ms)(), self.config.options.reload_interval);
                let now = session.loaded_at;
                session.loaded_at = *process.loaded_at.get_or_insert(now.checked_sub(age).unwrap_or(now));
                session.position = state.seq;
                session.rule_digests = state.rule_digests;
                self.update_progress(|progress| progress.position = state.seq);
                session.selectors = self.load_pod_selectors().await?;
                Ok(None)
            }
            Continuation::ResumeLoad(state, start) => {
                self.update_progress(|progress| progress.state = SinkState::Loading);
                // Changes since the load began are followed after it.
                source.changes.check_replayable(start.seq).await?;
                session.loaded_at = process.loaded_at.unwrap_or(session.loaded_at);
                session.selectors = self.load_pod_selectors().await?;
                Ok(Some(Load { start, position: state.seq }))
            }
            Continuation::NewGeneration => {
                self.update_progress(|progress| progress.state = SinkState::Loading);
                self.begin_load(session, selection, process).await.map(Some)
            }
        }
    }

    async fn load_and_follow(
        &self,
        session: &mut Session,
        load: Option<Load>,
        process: &mut ProcessState,
    ) -> Result<(), SinkError> {
        if let Some(load) = load {
            self.load(session, load).await?;
            process.load = None;
        }
        self.follow(session, process).await
    }

    /// Returns the state of a graph, with all clusters in which permissions are or were unknown, if its generation can be
    /// continued. None if the rules changed while no process followed them, or while it was written.
    async fn compare_rules(
        &self,
        mut state: GraphState,
        process: &mut ProcessState,
    ) -> Result<Option<GraphState>, SinkError> {
        let latest = self.source.changes.latest();
        // This decision is also the basis for detecting later changes of permissions, unless there is an earlier one.
        let decision = self.visibility.decide(BTreeSet::new(), latest).await?;
        state.undecided_clusters.extend(decision.undecided_clusters);
        state.undecided_clusters.extend(process.undecided_clusters.iter().cloned());
        if process.has_compared_rules {
            return Ok(Some(state));
        }
        let current = self.visibility.rule_digests(latest).await?;
        let is_equal = |saved: &RuleDigests| has_equal_rules(saved, &current, &state.undecided_clusters);
        process.has_compared_rules = state.rule_digests.as_ref().is_some_and(is_equal);
        Ok(process.has_compared_rules.then_some(state))
    }

    /// Writes changes as they happen. Returns without an error if everything must be written again.
    async fn follow(&self, session: &mut Session, process: &mut ProcessState) -> Result<(), SinkError> {
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
            session.follow_states(&self.source);
            self.catch_up(session).await?;
            self.sweep(session).await?;
            process.failures = 0;
            let is_caught_up = session.position >= self.source.changes.latest();
            let (position, undecided_clusters) = (session.position, &session.undecided_clusters);
            let now_ms = (self.source.now_ms)();
            self.update_progress(|progress| {
                progress.state = SinkState::Following;
                progress.is_connected = true;
                progress.position = position;
                if is_caught_up {
                    progress.caught_up_ms = Some(now_ms);
                }
                progress.undecided_clusters = undecided_clusters.iter().map(ToString::to_string).collect();
            });
            if Instant::now() >= check_at {
                // Fails if another process or sink has become the writer, or if the database was replaced.
                self.claim(session).begin().await?.commit().await?;
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
                session.rule_digests = None;
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

    /// Writes the changes after the position, for a limited time. Pages of the store are smaller than a batch, so they are
    /// joined.
    async fn catch_up(&self, session: &mut Session) -> Result<(), SinkError> {
        let end_at = Instant::now() + MAX_CATCH_UP;
        let (mut read_until, mut pending) = (session.position, Vec::new());
        loop {
            let page = self.source.changes.changes_after(read_until).await?;
            let is_last = page.position == read_until;
            read_until = page.position;
            pending.extend(page.changes);
            while !pending.is_empty() && (is_last || is_full_batch(&pending, session.batch_size.get())) {
                let changes = take_batch(&mut pending, session.batch_size.get());
                let end = match (pending.is_empty(), changes.last()) {
                    (false, Some(last)) => last.seq,
                    _ => read_until,
                };
                self.write(session, changes, Position { seq: end, is_complete: true }).await?;
                session.position = end;
                self.update_progress(|progress| progress.position = end);
                if Instant::now() >= end_at {
                    return Ok(());
                }
            }
            if is_last {
                session.position = read_until;
                return Ok(());
            }
        }
    }

    async fn write(
        &self,
        session: &mut Session,
        changes: Vec<ObjectChange>,
        position: Position,
    ) -> Result<(), SinkError> {
        let objects = changes.len();
        let changes = self.to_node_changes(session, changes).await?;
        let batch = Batch::from_changes(changes);
        let counts = self.writer(session).write(&batch, position).await?;
        session.batch_size.record_success(objects);
        session.known_collections.extend(batch.collections.into_keys());
        self.update_progress(|progress| {
            progress.counters.nodes_written += counts.written;
            progress.counters.nodes_relinked += counts.relinked;
            progress.counters.nodes_removed += counts.removed;
            progress.counters.transactions += 1;
        });
        Ok(())
    }

    /// Converts changes of objects to changes of nodes, those of Pods last.
    async fn to_node_changes(
        &self,
        session: &mut Session,
        mut changes: Vec<ObjectChange>,
    ) -> Result<Vec<NodeChange>, SinkError> {
        place_pods_last(&mut changes);
        let as_of = changes.iter().map(|change| change.seq).max().unwrap_or_default();
        let ids = changes.iter().filter_map(|change| Some(change.object.as_ref()?.record.id));
        let ids: BTreeSet<u64> = ids.collect();
        let decision =
            if ids.is_empty() { VisibilityDecision::default() } else { self.visibility.decide(ids, as_of).await? };
        for cluster in decision.undecided_clusters {
            session.sweeps.cancel(&cluster);
            session.undecided_clusters.insert(cluster);
        }
        // Read after the decision, which waits for the newest of these objects.
        session.follow_states(&self.source);
        let (mut nodes, mut skipped) = (Vec::new(), 0);
        for change in changes {
            let is_visible =
                change.object.as_ref().is_some_and(|object| decision.visible_ids.contains(&object.record.id));
            match change.object {
                Some(object) if is_visible => match self.build_row(session, object) {
                    Ok(row) => nodes.push(NodeChange::Put(Box::new(row))),
                    // An object that cannot be decoded must not block the others.
                    Err(error) => {
                        tracing::warn!(error = error.chain(), "cannot write an object to a graph; it is skipped");
                        skipped += 1;
                    }
                },
                // The node is not changed until the permissions are known.
                Some(_) if session.undecided_clusters.contains(change.key.cluster()) => {}
                _ => nodes.push(session.remove_node(&change.key, &change.kind, change.seq)),
            }
        }
        self.update_progress(|progress| progress.counters.objects_skipped += skipped);
        Ok(nodes)
    }

    /// Creates the row of an object without values of Secrets, and stores its selector.
    fn build_row(&self, session: &mut Session, object: Object) -> Result<NodeRow, crowsnest_store::Error> {
        let object = self.source.changes.redact(object)?;
        let builder = RowBuilder { kinds: &session.kinds, rules: &self.source.rules, selectors: &session.selectors };
        let mut row = builder.build(&object)?;
        if row.is_selecting {
            // The first write of a selecting object in a session replaces its edges even if they seem to be unchanged:
            // an earlier session may have written Pods with a later selector that the object no longer has.
            row.edges_digest = format!("{}-{}", row.edges_digest, session.token);
        }
        session.selectors.set(&object.record, row.selects.clone());
        Ok(row)
    }

    /// Reads the selectors of all objects in the store.
    async fn load_pod_selectors(&self) -> Result<PodSelectors, SinkError> {
        let SinkSource { changes, states, rules, .. } = &self.source;
        let (selectors, skipped) = load_pod_selectors(changes, states, rules).await?;
        self.update_progress(|progress| progress.counters.objects_skipped += skipped);
        Ok(selectors)
    }

    /// Removes nodes of earlier generations from complete collections, and all nodes of clusters that were removed from
    /// the fleet.
    async fn sweep(&self, session: &mut Session) -> Result<(), SinkError> {
        session.follow_states(&self.source);
        for key in session.sweeps.due_collections(session.position) {
            // A collection whose kind is unknown has no nodes yet.
            let Some(kind) = session.kinds.kind(&key).map(str::to_owned) else { continue };
            self.sweep_kind(session, &key, &kind).await?;
            session.sweeps.mark_swept(&key);
            session.known_collections.insert(key);
        }
        self.remove_clusters(session).await
    }

    /// Removes all nodes of clusters that were removed from the fleet.
    async fn remove_clusters(&self, session: &mut Session) -> Result<(), SinkError> {
        let clusters = self.visibility.clusters();
        let is_same = |last: &ClusterRemoval| {
            last.clusters == clusters && last.collection_count == session.known_collections.len()
        };
        if session.last_cluster_removal.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        let mut removed = collections_of_removed_clusters(&session.known_collections, &clusters);
        removed.retain(|key| !session.undecided_clusters.contains(&key.cluster));
        for key in removed {
            let kind = self.claim(session).read_kind(&key).await?;
            if let Some(kind) = kind {
                self.sweep_kind(session, &key, &kind).await?;
            }
            self.claim(session).delete_position(&key).await?;
            session.known_collections.remove(&key);
        }
        let collection_count = session.known_collections.len();
        session.last_cluster_removal = Some(ClusterRemoval { clusters, collection_count });
        Ok(())
    }

    async fn sweep_kind(&self, session: &mut Session, key: &CollectionKey, kind: &str) -> Result<(), SinkError> {
        loop {
            let swept = self.writer(session).sweep(key, kind, session.batch_size.get()).await?;
            if swept == 0 {
                return Ok(());
            }
            session.batch_size.record_success(usize::try_from(swept).unwrap_or(usize::MAX));
            self.update_progress(|progress| progress.counters.nodes_swept += swept);
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
            dialect: session.dialect,
            generation: session.generation,
            now_ms: (self.source.now_ms)(),
            undecided_clusters: &session.undecided_clusters,
            rule_digests: session.rule_digests.as_ref(),
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
