//! Watch requests: the initial state if requested, then changes, with selectors applied to the states before and
//! after each change.
//!
//! A change is encoded once per representation, regardless of the number of watches, and the changes that equal watches
//! send at once are selected and concatenated once.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use crate::error::Error;
use crate::list::{check_fields, is_decided_by_key, key_field, may_match, parse_resource_version};
use crate::object::Object as _;
use crate::resource::ResourceRef;
use crate::storage::{
    BatchKey, Body, Change, ChangeKind, LineKey, ListRange, Record, Revision, SelectorFields, SelectorStates, Watcher,
};
use crate::watch_group::{GroupMember, WatchScope};
use crate::{Registry, storage_error, table};
use crowsnest_apimachinery::request::options::{ListOptions, WatchOptions};

/// Interval of bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Initial events encoded per step.
const CHUNK_SIZE: usize = 500;
/// Estimated size in bytes of the selector data of a change.
const SELECTOR_FIELDS_BYTES: usize = 512;
/// Number of changes above which watches do not share batches: those that are far behind are at different positions.
const MAX_SHARED_CHANGES: usize = 128;
/// Estimated size in bytes of a cached batch in addition to its lines.
const BATCH_BYTES: usize = 128;

/// Encodes the events of a watch in one representation.
pub trait EventEncoder: Send + Sync {
    /// Representations with the same name encode identical lines.
    fn name(&self) -> &str;

    /// True if stored bytes can be sent unchanged when no selector requires decoding.
    fn can_send_stored(&self) -> bool;

    /// Time for which an encoded line can be reused; `None` means indefinitely.
    fn max_line_age(&self) -> Option<Duration>;

    /// True if the first line of a watch differs from later ones.
    fn has_distinct_first_line(&self) -> bool;

    /// Encodes an event. `first` is true for the first line of the watch.
    fn encode(&self, event: &str, object: Value, first: bool) -> Bytes;
}

/// A running watch.
pub struct Watch {
    registry: Arc<Registry>,
    resource: ResourceRef,
    namespace: String,
    options: ListOptions,
    encoder: Arc<dyn EventEncoder>,
    /// Name and version of the representation, as part of cache keys.
    representation: Arc<str>,
    version: Arc<str>,
    /// Version in which the data for the selectors is read; empty if they need only labels and the key.
    selector_version: Arc<str>,
    group: GroupMember,
    /// True until the first line has been encoded.
    first: bool,
    /// Objects of the initial state that have not been sent.
    initial: std::vec::IntoIter<Record>,
    /// Revision of the bookmark after the initial state, until it has been sent.
    initial_end: Option<Revision>,
    watcher: Watcher,
    next_bookmark: Pin<Box<Sleep>>,
    /// Reports the generation of the catalog when it changes.
    catalog_changes: tokio::sync::watch::Receiver<u64>,
    /// True while changes taken from the watcher are being encoded: its position is ahead of the events sent.
    is_encoding: bool,
    /// Error that ends the watch before its first event.
    initial_error: Option<ApiError>,
    has_ended: bool,
}

impl Registry {
    /// Starts a watch.
    pub async fn watch(
        self: &Arc<Self>,
        resource: &ResourceRef,
        namespace: &str,
        options: ListOptions,
        encoder: Arc<dyn EventEncoder>,
    ) -> ApiResult<Watch> {
        check_fields(resource, &options.fields)?;
        let requested = parse_resource_version(&options.resource_version)?;
        self.check_cache_readiness(resource).await?;
        let initial = match options.watch_options.send_initial_events {
            Some(requested) => requested,
            None => requested == 0,
        };
        let (records, since, initial_end) = if initial {
            self.wait_for_revision(requested).await?;
            let listing = self.store.list(&table(resource), namespace, ListRange::ALL).map_err(storage_error)?;
            let WatchOptions { allows_bookmarks, send_initial_events } = options.watch_options;
            let end = (send_initial_events == Some(true) && allows_bookmarks).then_some(listing.revision);
            (listing.records, listing.revision, end)
        } else {
            let since = if requested == 0 { self.store.revision() } else { requested };
            (Vec::new(), since, None)
        };
        let floor = resource.strategy.history_floor();
        let mut initial_error =
            (!initial && since < floor).then(|| storage_error(Error::Expired { requested: since, oldest: floor }));
        // An expired version is reported as an event in the stream, as clients expect.
        let watcher = match self.store.watch(&table(resource), since) {
            Ok(watcher) => watcher,
            Err(expired @ Error::Expired { .. }) => {
                initial_error = Some(storage_error(expired));
                self.store.watch(&table(resource), self.store.revision()).map_err(storage_error)?
            }
            Err(error) => return Err(storage_error(error)),
        };
        let version: Arc<str> = resource.gvr.api_version().into();
        let representation: Arc<str> = format!("{version} {}", encoder.name()).into();
        let selector_version = if is_decided_by_key(&options.fields) { Arc::from("") } else { version.clone() };
        let scope = WatchScope {
            table: table(resource),
            representation: representation.clone(),
            namespace: namespace.to_owned(),
            labels: options.labels.clone(),
            fields: options.fields.clone(),
        };
        let mut catalog_changes = self.catalog.subscribe();
        // The resource may have been removed since the request was dispatched.
        catalog_changes.mark_changed();
        Ok(Watch {
            registry: self.clone(),
            resource: resource.clone(),
            namespace: namespace.to_owned(),
            representation,
            encoder,
            version,
            selector_version,
            group: self.watch_groups.join(scope),
            first: true,
            initial: records.into_iter(),
            initial_end,
            watcher,
            options,
            next_bookmark: Box::pin(tokio::time::sleep(BOOKMARK_INTERVAL)),
            catalog_changes,
            is_encoding: false,
            initial_error,
            has_ended: false,
        })
    }
}

impl Watch {
    /// The lines of the next events, possibly empty; `None` after an error ended the watch.
    pub async fn next(&mut self) -> Option<Bytes> {
        if self.has_ended {
            return None;
        }
        let batch = match self.initial_error.take() {
            Some(error) => Err(error),
            None => match self.step().await {
                Err(Error::Closed) => {
                    self.has_ended = true;
                    return None;
                }
                // As in kube-apiserver, a change that cannot be converted ends all watches of the version.
                Err(Error::Status(error)) if self.resource.is_custom() => {
                    tracing::warn!(%error, resource = %self.resource.gvr, "a custom resource cannot be converted: ending a watch");
                    self.has_ended = true;
                    return None;
                }
                batch => batch.map_err(storage_error),
            },
        };
        Some(batch.unwrap_or_else(|error| {
            self.has_ended = true;
            self.write("ERROR", error.to_status())
        }))
    }

    /// The final bookmark before a watch times out; `None` if [`Watch::next`] was cancelled while it encoded lines,
    /// which were not sent.
    pub fn last_bookmark(&mut self) -> Option<Bytes> {
        let is_complete = !self.is_encoding && self.initial.as_slice().is_empty() && self.initial_end.is_none();
        (self.options.watch_options.allows_bookmarks && !self.has_ended && is_complete).then(|| {
            let position = self.watcher.position();
            self.bookmark(position, false)
        })
    }

    async fn step(&mut self) -> Result<Bytes, Error> {
        let records: Vec<Record> = self.initial.by_ref().take(CHUNK_SIZE).collect();
        if !records.is_empty() {
            self.is_encoding = true;
            let events = self.initial_events(records).await;
            self.is_encoding = false;
            return events;
        }
        if let Some(revision) = self.initial_end.take() {
            return Ok(self.bookmark(revision, true));
        }
        let changes = loop {
            tokio::select! {
                biased;
                changes = self.watcher.next() => break changes?,
                Ok(()) = self.catalog_changes.changed() => {
                    // As in kube-apiserver, a watch ends when the definition stops serving its version.
                    if self.registry.catalog.get(&self.resource.gvr).is_none() {
                        return Err(Error::Closed);
                    }
                }
                () = &mut self.next_bookmark, if self.options.watch_options.allows_bookmarks => {
                    self.next_bookmark.as_mut().reset(Instant::now() + BOOKMARK_INTERVAL);
                    let position = self.watcher.position();
                    return Ok(self.bookmark(position, false));
                }
            }
        };
        self.is_encoding = true;
        let events = self.events(changes).await;
        self.is_encoding = false;
        events
    }

    fn write(&mut self, event: &str, object: Value) -> Bytes {
        self.encoder.encode(event, object, std::mem::take(&mut self.first))
    }

    /// True if bodies of this version can be sent as stored.
    fn sends_stored(&self, body: &Body) -> bool {
        self.encoder.can_send_stored() && body.api_version() == &*self.version
    }

    async fn initial_events(&mut self, records: Vec<Record>) -> Result<Bytes, Error> {
        let matching = self.registry.filter_records(&self.resource, &self.options, records).await?;
        let records: Vec<Record> = matching.into_iter().map(|(_, record)| record).collect();
        if records.is_empty() {
            // Yields to other tasks when no record in the chunk matches.
            tokio::task::yield_now().await;
            return Ok(Bytes::new());
        }
        if records.iter().all(|record| self.sends_stored(&record.body)) {
            self.first = false;
            let lines = records.iter().map(|record| stored_line("ADDED", &record.body, record.revision));
            return Ok(concatenate(lines.collect::<Result<_, Error>>()?));
        }
        let objects = self.registry.decode_all(&self.resource, records).await?;
        Ok(concatenate(objects.into_iter().map(|object| self.write("ADDED", object)).collect()))
    }

    /// The lines of consecutive changes; watches of a group share them.
    async fn events(&mut self, changes: Vec<Arc<Change>>) -> Result<Bytes, Error> {
        let shares_batch = changes.len() <= MAX_SHARED_CHANGES && self.shares_batches();
        let ends = changes.first().zip(changes.last()).filter(|_| shares_batch);
        let batch = match ends {
            Some((first, last)) => {
                let key = BatchKey { first: first.revision, group: self.group.group_number() };
                last.cache.batch(key).get_or_try_init(|| self.shared_batch(&changes, last)).await?.clone()
            }
            None => concatenate(self.lines(&changes).await?),
        };
        self.first &= batch.is_empty();
        Ok(batch)
    }

    /// True if this watch sends the same lines as the others of its group. Lines that contain a time expire earlier than
    /// batches.
    fn shares_batches(&self) -> bool {
        let has_own_line = self.first && self.encoder.has_distinct_first_line();
        self.group.has_peers() && !has_own_line && self.encoder.max_line_age().is_none()
    }

    async fn shared_batch(&self, changes: &[Arc<Change>], last: &Arc<Change>) -> Result<Bytes, Error> {
        let lines = self.lines(changes).await?;
        // A single line is not copied.
        let copied: usize = if lines.len() > 1 { lines.iter().map(Bytes::len).sum() } else { 0 };
        self.registry.event_cache.retain(last, copied + BATCH_BYTES);
        Ok(concatenate(lines))
    }

    async fn lines(&self, changes: &[Arc<Change>]) -> Result<Vec<Bytes>, Error> {
        let mut lines = Vec::with_capacity(changes.len());
        for change in changes {
            if !self.namespace.is_empty() && change.key.namespace() != self.namespace {
                continue;
            }
            if let Some(event) = self.event_type(change).await? {
                lines.push(self.line(change, event, self.first && lines.is_empty()).await?);
            }
        }
        Ok(lines)
    }

    /// The encoded line of a change, shared by all watches with the same representation. `is_first` is true for the first
    /// line of the watch.
    async fn line(&self, change: &Arc<Change>, event: &'static str, is_first: bool) -> Result<Bytes, Error> {
        let first = is_first && self.encoder.has_distinct_first_line();
        let key = LineKey { event, representation: self.representation.clone(), first };
        let cell = change.cache.line(key, self.encoder.max_line_age());
        let line = cell.get_or_try_init(|| self.encode(change, event, first)).await?;
        Ok(line.clone())
    }

    async fn encode(&self, change: &Arc<Change>, event: &'static str, first: bool) -> Result<Bytes, Error> {
        // An object that leaves the selection is sent in its last selected state.
        let body = match &change.previous {
            Some((_, before)) if event == "DELETED" && change.kind != ChangeKind::Deleted => before,
            _ => &change.body,
        };
        let line = if self.sends_stored(body) {
            stored_line(event, body, change.revision)?
        } else {
            self.encoder.encode(event, self.decode(change, body).await?, first)
        };
        self.registry.event_cache.record_encoded(change, line.len());
        Ok(line)
    }

    async fn decode(&self, change: &Change, body: &Body) -> ApiResult<Value> {
        let record = Record { key: change.key.clone(), revision: change.revision, body: body.clone() };
        self.registry.decode(&self.resource, record).await
    }

    /// Type of the event that this watch sends for a change: objects may enter or leave its selection.
    async fn event_type(&self, change: &Arc<Change>) -> Result<Option<&'static str>, Error> {
        if self.options.selects_everything() {
            return Ok(Some(match change.kind {
                ChangeKind::Added => "ADDED",
                ChangeKind::Modified => "MODIFIED",
                ChangeKind::Deleted => "DELETED",
            }));
        }
        if !may_match(&self.options.fields, &change.key) {
            return Ok(None);
        }
        let cell = change.cache.states(&self.selector_version);
        let states = cell.get_or_try_init(|| self.read_states(change)).await?;
        let selects = |state: &SelectorFields| {
            self.options.labels.matches_json(state.labels.as_ref())
                && self.options.fields.matches_with(|path| match key_field(&change.key, path) {
                    Some(value) => Some(value.into()),
                    None => state.fields.iter().find(|(k, _)| k == path).map(|(_, v)| v.as_str().into()),
                })
        };
        let was_in = states.previous.as_ref().is_some_and(selects);
        Ok(match (was_in, change.kind != ChangeKind::Deleted && selects(&states.current)) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        })
    }

    /// Labels and fields of a change for selectors; labels alone are read without conversion.
    async fn read_states(&self, change: &Arc<Change>) -> Result<SelectorStates, Error> {
        let read_state = async |body: &Body| match self.selector_version.is_empty() {
            true => Ok(SelectorFields { labels: body.labels()?, fields: Vec::new() }),
            false => {
                let object = self.decode(change, body).await?;
                let labels = object.labels().cloned();
                Ok::<_, Error>(SelectorFields { labels, fields: self.resource.strategy.selectable_fields(&object) })
            }
        };
        let current = read_state(&change.body).await?;
        let previous = match &change.previous {
            Some((_, body)) => Some(read_state(body).await?),
            None => None,
        };
        self.registry.event_cache.retain(change, SELECTOR_FIELDS_BYTES);
        Ok(SelectorStates { current, previous })
    }

    fn bookmark(&mut self, revision: Revision, initial_end: bool) -> Bytes {
        let mut object = json!({
            "kind": self.resource.kind, "apiVersion": self.resource.gvr.api_version(),
            "metadata": {"resourceVersion": revision.to_string()},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        self.write("BOOKMARK", object)
    }
}

/// Concatenates event lines. A single line is not copied.
fn concatenate(lines: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(lines) {
        Ok([line]) => line,
        Err(lines) => lines.concat().into(),
    }
}

/// Encodes an event line from a stored body.
fn stored_line(event: &str, body: &Body, revision: Revision) -> Result<Bytes, Error> {
    let mut line = Vec::with_capacity(256);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(event.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    body.write_json(&mut line, revision, true)?;
    line.extend_from_slice(b"}\n");
    Ok(line.into())
}
