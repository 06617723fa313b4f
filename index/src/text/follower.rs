//! Keeps the text index behind the store: one writer, batched commits, the reached seq as payload.

use super::document::Document;
use super::{Payload, TextIndex};
use crate::metrics::Metrics;
use crate::record::{Happened, Object, Seq};
use crate::store::{Replayed, Store};
use crate::tail::Tail;
use crate::{Error, IndexOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tantivy::{IndexWriter, Term};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Changes read from the store at once while catching up.
const REPLAY: usize = 500;

pub(crate) struct TextFollower {
    pub text: Arc<TextIndex>,
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    pub metrics: Arc<Metrics>,
    pub payload: Payload,
    /// The seq searches can find.
    pub searchable: watch::Sender<Seq>,
    pub interval: Duration,
    pub commit_changes: usize,
    pub heap_bytes: usize,
}

impl TextFollower {
    pub fn new(
        (text, payload): (Arc<TextIndex>, Payload),
        store: Arc<dyn Store>,
        tail: Arc<Tail>,
        metrics: Arc<Metrics>,
        options: &IndexOptions,
    ) -> (Self, watch::Receiver<Seq>) {
        let (searchable, receiver) = watch::channel(Seq(payload.seq));
        let follower = Self {
            text,
            store,
            tail,
            metrics,
            payload,
            searchable,
            interval: options.text_commit_interval,
            commit_changes: options.text_commit_changes.max(1),
            heap_bytes: options.text_heap_bytes,
        };
        (follower, receiver)
    }

    /// Runs on a thread of its own until stopped: documents are built and committed there.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let runtime = Handle::current();
        match tokio::task::spawn_blocking(move || self.follow(&runtime, &stop)).await {
            Ok(result) => result,
            Err(error) => Err(Error::StoreFormat(format!("the text index's writer panicked: {error}"))),
        }
    }

    fn follow(mut self, runtime: &Handle, stop: &CancellationToken) -> Result<(), Error> {
        let mut writer = self.text.writer(self.heap_bytes)?;
        let mut tail = self.tail.follow(Seq(self.payload.seq));
        let mut pending = Pending::default();
        loop {
            let deadline = pending.since.map(|since| since + self.interval);
            let next = runtime.block_on(async {
                let until = async {
                    match deadline {
                        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = stop.cancelled() => Next::Stop,
                    () = until => Next::Commit,
                    changes = tail.next() => match changes {
                        None => Next::Stop,
                        Some(changes) => Next::Changes(changes),
                    },
                }
            });
            match next {
                Next::Stop => {
                    self.commit(&mut writer, &mut pending)?;
                    return writer.wait_merging_threads().map_err(|e| Error::text("cannot finish its merges", e));
                }
                Next::Commit => self.commit(&mut writer, &mut pending)?,
                Next::Changes(Ok(changes)) => {
                    for change in &changes {
                        match change.happened {
                            Happened::Deleted => self.delete(&writer, change.object.record.id),
                            Happened::Added | Happened::Modified => self.put(&writer, &change.object)?,
                        }
                        pending.add(change.seq);
                    }
                }
                Next::Changes(Err(_)) => {
                    let since = pending.seq.unwrap_or(Seq(self.payload.seq)).max(tail.since());
                    let reached = self.catch_up(runtime, stop, &mut writer, &mut pending, since)?;
                    tail.skip_to(reached);
                }
            }
            if pending.changes >= self.commit_changes {
                self.commit(&mut writer, &mut pending)?;
            }
            let latest = self.tail.latest().0;
            self.metrics.text_lag.set(latest.saturating_sub(pending.seq.map_or(self.payload.seq, |seq| seq.0)));
        }
    }

    /// Reads what the tail no longer has from the store.
    fn catch_up(
        &mut self,
        runtime: &Handle,
        stop: &CancellationToken,
        writer: &mut IndexWriter,
        pending: &mut Pending,
        mut since: Seq,
    ) -> Result<Seq, Error> {
        loop {
            if stop.is_cancelled() {
                return Ok(since);
            }
            // Read first: what comes later than this the tail will tell, if the store has nothing more.
            let told = self.tail.latest();
            let replayed = runtime.block_on(self.store.replay(since, REPLAY))?;
            if replayed.is_empty() {
                return Ok(since.max(told));
            }
            for change in &replayed {
                match change {
                    Replayed::Put(object) => self.put(writer, object)?,
                    Replayed::Deleted { id, .. } => self.delete(writer, *id),
                }
                since = change.seq();
                pending.add(since);
            }
            let waited = pending.since.is_some_and(|first| first.elapsed() >= self.interval);
            if pending.changes >= self.commit_changes || waited && pending.changes >= self.commit_changes / 4 {
                self.commit(writer, pending)?;
            }
            self.metrics.text_lag.set(self.tail.latest().0.saturating_sub(since.0));
        }
    }

    fn delete(&self, writer: &IndexWriter, id: u64) {
        writer.delete_term(Term::from_field_u64(self.text.columns.id, id));
    }

    fn put(&self, writer: &IndexWriter, object: &Object) -> Result<(), Error> {
        self.delete(writer, object.record.id);
        let document = Document::of(object).to_tantivy(&self.text.columns);
        writer.add_document(document).map_err(|e| Error::text("does not take a document", e))?;
        self.metrics.text_documents.add(1);
        Ok(())
    }

    fn commit(&mut self, writer: &mut IndexWriter, pending: &mut Pending) -> Result<(), Error> {
        let Some(seq) = pending.seq else { return Ok(()) };
        let started = Instant::now();
        self.payload.seq = seq.0;
        let payload = serde_json::to_string(&self.payload)
            .map_err(|source| Error::Decode { what: "commit payload".to_owned(), source })?;
        let fail = |e| Error::text("cannot commit", e);
        let mut prepared = writer.prepare_commit().map_err(fail)?;
        prepared.set_payload(&payload);
        prepared.commit().map_err(fail)?;
        self.text.reader.reload().map_err(|e| Error::text("cannot be read again", e))?;
        self.searchable.send_replace(seq);
        self.metrics.text_commits.add(1);
        self.metrics.text_commit_microseconds.add(started.elapsed().as_micros() as u64);
        *pending = Pending::default();
        Ok(())
    }
}

/// Written, not committed.
#[derive(Default)]
struct Pending {
    changes: usize,
    seq: Option<Seq>,
    since: Option<Instant>,
}

impl Pending {
    fn add(&mut self, seq: Seq) {
        self.changes += 1;
        self.seq = Some(seq);
        self.since.get_or_insert_with(Instant::now);
    }
}

enum Next {
    Stop,
    Commit,
    Changes(Result<Vec<Arc<crate::Change>>, crate::Gone>),
}
