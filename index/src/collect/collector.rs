//! Collector of one resource of one cluster: lists and watches it, and resumes from the stored position.

use super::budget::Share;
use super::feed;
use super::pages::PageSizer;
use super::watch::WatchEnd;
use super::{Scope, Shared};
use crowsnest_component_base::retry::jitter;
use crowsnest_store::ingest::RawObject;
use crowsnest_store::{Batch, Progress, RecordWrite};
use crowsnest_store::{CollectionKey, Epoch, Error};
use kube::Client;
use kube::client::Body;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After a watch of this duration, the backoff is reset.
const STABLE_WATCH_DURATION: Duration = Duration::from_secs(20);
/// Number of failures to decode the same response before the resource is listed instead.
const MAX_INVALID_RESPONSES: u32 = 2;

pub(super) struct Collector {
    pub shared: Arc<Shared>,
    pub key: CollectionKey,
    pub epoch: Epoch,
    pub scope: Scope,
    pub client: Client,
}

/// Result of converting an object.
pub(super) enum ConversionOutcome {
    Write(RecordWrite),
    /// The object is in a namespace that is not collected.
    OtherNamespace,
    /// The object is invalid and is not stored.
    Rejected,
}

/// Progress of a collector, kept over interruptions.
#[derive(Default)]
pub(super) struct CollectorProgress {
    /// resourceVersion from which to watch. It advances with each event, so that the next watch resumes there.
    /// None if the resource must be listed first.
    pub position: Option<String>,
    /// resourceVersion of the last list if it was older than the stored one. A second such list is accepted.
    pub suspect_version: Option<String>,
    pub page_sizer: PageSizer,
    /// True if the next list is paged, because streaming failed the last time.
    pub must_list_by_pages: bool,
    /// Undecodable responses since the position last advanced.
    invalid_responses: u32,
}

impl CollectorProgress {
    pub fn advance(&mut self, version: String) {
        self.position = Some(version);
        self.invalid_responses = 0;
    }
}

impl Collector {
    /// Runs until dropped.
    pub async fn run(self, stored_position: Option<String>) {
        let timeouts = self.shared.options.timeouts;
        let mut progress = CollectorProgress { position: stored_position, ..CollectorProgress::default() };
        let mut delays = timeouts.backoff.delays();
        loop {
            let started_at = Instant::now();
            let error = match self.list_and_watch(&mut progress).await {
                Err(Error::Stopped) => return,
                Err(error) => error,
                Ok(()) => continue,
            };
            progress.invalid_responses += u32::from(error.is_invalid_response());
            if progress.invalid_responses >= MAX_INVALID_RESPONSES {
                // The same position would return the same undecodable response.
                progress = CollectorProgress {
                    must_list_by_pages: true,
                    page_sizer: progress.page_sizer,
                    ..CollectorProgress::default()
                };
            }
            self.shared.metrics.watch_failures.add(1);
            let reason = error.chain();
            tracing::debug!(collection = %self.key, reason, "collector interrupted");
            self.shared.states.update(&self.key, |state| state.stale_reason = Some(reason));
            if started_at.elapsed() > STABLE_WATCH_DURATION {
                delays.reset();
            }
            let delay = match error {
                Error::ErrorResponse { retry_after: Some(after), .. } => after.min(timeouts.retry_after),
                _ => Duration::ZERO,
            };
            // Randomized, so that a recovered member does not receive all requests at the same time.
            tokio::time::sleep(delay + jitter(delays.next_delay(), (0.5, 1.5), rand::random())).await;
        }
    }

    /// Lists if there is no position, then watches until the watch ends.
    async fn list_and_watch(&self, progress: &mut CollectorProgress) -> Result<(), Error> {
        if progress.position.is_none()
            && let Some(end) = self.list(progress).await?
        {
            // The streamed list continued as a watch and has ended.
            return self.handle_end(end, progress);
        }
        let end = self.watch(progress).await?;
        self.handle_end(end, progress)
    }

    fn handle_end(&self, end: WatchEnd, progress: &mut CollectorProgress) -> Result<(), Error> {
        match end {
            WatchEnd::Closed => Ok(()),
            WatchEnd::Expired(reason) => {
                progress.position = None;
                Err(self.interruption_error(reason))
            }
        }
    }

    pub fn uri(&self, query: &str) -> String {
        format!("{}?{query}", self.key.resource.path(self.scope.path_namespace()))
    }

    pub async fn get(&self, query: &str) -> Result<Body, Error> {
        feed::get(&self.client, &self.key, &self.uri(query), self.shared.options.timeouts.response).await
    }

    pub fn interruption_error(&self, reason: impl Into<String>) -> Error {
        feed::interruption_error(&self.key, reason)
    }

    /// Kind of the objects and whether they are namespaced, from discovery or stored objects. An unknown kind is empty.
    pub fn known_kind(&self) -> (String, Option<bool>) {
        if let Some((kind, namespaced)) = self.shared.kind_of(&self.key) {
            return (kind, Some(namespaced));
        }
        let stored = self.shared.states.get(&self.key).filter(|state| !state.kind.is_empty());
        stored.map(|state| (state.kind.to_string(), Some(state.namespaced))).unwrap_or_default()
    }

    /// The kind to store with these writes, and whether it is namespaced: the known kind, or that of the first object.
    pub fn reported_kind((kind, namespaced): (String, Option<bool>), writes: &[RecordWrite]) -> Option<(String, bool)> {
        let first = writes.iter().find_map(|write| match write {
            RecordWrite::Put(draft, _) => Some(draft.kind.clone()),
            RecordWrite::Delete { .. } => None,
        });
        let kind = Some(kind).filter(|kind| !kind.is_empty()).or(first)?;
        let has_namespaces = || writes.iter().any(|write| !write.key().0.is_empty());
        Some((kind, namespaced.unwrap_or_else(has_namespaces)))
    }

    pub fn parse<'b, T: serde::Deserialize<'b>>(&self, bytes: &'b [u8]) -> Result<T, Error> {
        serde_json::from_str(self.text(bytes)?).map_err(|source| feed::malformed_error(&self.key, source))
    }

    /// Parses a line of a watch.
    pub fn parse_event<'b>(&self, line: &'b [u8]) -> Result<feed::Event<'b>, Error> {
        feed::Event::parse(self.text(line)?).map_err(|source| feed::malformed_error(&self.key, source))
    }

    fn text<'b>(&self, bytes: &'b [u8]) -> Result<&'b str, Error> {
        std::str::from_utf8(bytes).map_err(|e| feed::malformed_error(&self.key, feed::json_error(e)))
    }

    pub fn status_error(&self, status: feed::StatusBody) -> Error {
        Error::ErrorResponse {
            cluster: self.key.cluster.clone(),
            resource: self.key.resource.clone(),
            status: status.code,
            message: status.message,
            retry_after: None,
        }
    }

    /// Converts an object. An invalid object is rejected and counted without affecting the others. `implied_kind`
    /// is the kind of an object that does not state one.
    pub fn convert(&self, object: RawObject<'_>, kind: &str, implied_kind: &str) -> ConversionOutcome {
        let shared = &self.shared;
        shared.metrics.objects_received.add(1);
        shared.metrics.bytes_received.add(object.json().len() as u64);
        let draft = match feed::decode_object(object, &self.key, kind, implied_kind, &shared.options.ingest) {
            Ok(draft) => draft,
            Err(error) => {
                shared.metrics.objects_refused.add(1);
                tracing::debug!(collection = %self.key, error = error.chain(), "rejected an object");
                return ConversionOutcome::Rejected;
            }
        };
        if !draft.namespace.is_empty() && !self.scope.0.contains(&draft.namespace) {
            return ConversionOutcome::OtherNamespace;
        }
        let packed = shared.codec.pack(&format!("{}/{}", self.key.resource.group, draft.kind), &draft.body);
        let (packed, training_set) = match packed {
            Ok(packed) => packed,
            Err(error) => {
                shared.metrics.objects_refused.add(1);
                tracing::warn!(collection = %self.key, error = error.chain(), "cannot compress an object");
                return ConversionOutcome::Rejected;
            }
        };
        if let Some(training_set) = training_set {
            shared.writer.train(training_set);
        }
        ConversionOutcome::Write(RecordWrite::Put(Box::new(draft), packed))
    }

    /// The deletion of an object. None if the object has another kind or no name; it is then counted in
    /// `objects_refused`.
    pub fn deletion(&self, json: &str, kind: &str) -> Option<RecordWrite> {
        let object = feed::PartialObject::parse(json);
        let object = object
            .filter(|object| kind.is_empty() || object.kind.as_deref().is_none_or(|object_kind| object_kind == kind));
        let Some(object) = object else {
            self.shared.metrics.objects_refused.add(1);
            return None;
        };
        let (namespace, name) = (object.namespace().to_owned(), object.metadata.name.into_owned());
        let resource_version = object.metadata.resource_version.unwrap_or_default().into_owned();
        Some(RecordWrite::Delete { namespace, name, resource_version })
    }

    fn batch(&self, writes: Vec<RecordWrite>, progress: Progress) -> Batch {
        Batch { collection: self.key.clone(), epoch: self.epoch, writes, progress }
    }

    /// Queues writes for the writer; the share is released once they are stored.
    pub async fn send(&self, writes: Vec<RecordWrite>, progress: Progress, share: Share) -> Result<(), Error> {
        self.shared.writer.apply_with_share(self.batch(writes, progress), share).await
    }

    /// Waits for a share of the bytes in flight for this cluster.
    pub async fn acquire_share(&self, bytes: usize) -> Result<Share, Error> {
        self.shared.budget.acquire(&self.key.cluster, bytes).await
    }

    /// Queues writes for the writer, and waits until these and all earlier ones are stored.
    pub async fn send_and_wait(&self, writes: Vec<RecordWrite>, progress: Progress) -> Result<(), Error> {
        self.shared.writer.apply_and_wait(self.batch(writes, progress)).await
    }
}
