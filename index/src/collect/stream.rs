//! Streamed lists: watches that begin with the current objects (WatchList).

use super::collector::{Collector, CollectorProgress, ConversionOutcome};
use super::feed::{Bookmark, Lines, StatusBody};
use super::list::SeenNames;
use super::list_permit::ListPermit;
use super::watch::{WatchEnd, WatchState};
use bytes::Bytes;
use crowsnest_component_base::spans::SpanGuard;
use crowsnest_store::Error;
use crowsnest_store::Progress;
use futures::Stream;
use http_body_util::BodyExt;
use tokio::time::Instant;
use tracing::Instrument;

/// State of the initial events.
struct InitialEvents {
    seen: SeenNames,
    /// Time of the last object that was not seen before.
    progressed_at: Instant,
}

impl Collector {
    /// Lists with a streamed list, and continues as its watch until that ends. Returns None if the server does not support streamed lists.
    /// The tracing span covers the list only.
    pub async fn watch_list(&self, progress: &mut CollectorProgress) -> Result<Option<WatchEnd>, Error> {
        let span = SpanGuard(self.list_span());
        let timeouts = self.shared.options.timeouts;
        let mut permit = ListPermit::acquire(&self.shared, &self.key.cluster).await?;
        let duration = self.watch_duration();
        let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let query = format!("{query}&timeoutSeconds={}", duration.as_secs());
        let requested_at = Instant::now();
        let body = match permit.run(self.get(&query)).instrument(span.0.clone()).await {
            // Older servers reject the parameters.
            Err(Error::ErrorResponse { status: 400 | 422, .. }) => return Ok(self.disable_streams()),
            other => other?,
        };
        self.shared.metrics.lists.add(1);
        let mut lines = Lines::new(body.into_data_stream(), &self.key, self.shared.options.max_object_bytes);
        let mut initial = InitialEvents { seen: SeenNames::new(), progressed_at: Instant::now() };
        let version = loop {
            if let Some(version) = permit.run(self.initial_events(&mut lines, &mut initial)).await? {
                break version;
            }
            let idle_deadline = Instant::now() + timeouts.stream_idle;
            let progress_deadline = initial.progressed_at + timeouts.stream_progress;
            match permit.run(tokio::time::timeout_at(idle_deadline.min(progress_deadline), lines.fill())).await {
                Ok(more) => match more? {
                    true => {}
                    false => return Err(self.interruption_error("the initial list ended early")),
                },
                // The server ignored the parameters: list by pages.
                Err(_) if idle_deadline <= progress_deadline => return Ok(self.disable_streams()),
                Err(_) => {}
            }
            if initial.progressed_at.elapsed() > timeouts.stream_progress {
                return Err(self.interruption_error("the initial list does not end: it repeats the same objects"));
            }
        };
        self.finish_list(&initial.seen, &version).await?;
        progress.must_list_by_pages = false;
        progress.advance(version);
        span.0.record("crowsnest.objects", initial.seen.valid());
        drop((permit, span));
        self.watch_lines(&mut lines, WatchState::new(&timeouts, requested_at, duration), progress).await.map(Some)
    }

    /// Disables streaming for all lists of the cluster.
    fn disable_streams(&self) -> Option<WatchEnd> {
        self.shared.clusters_without_watch_list.lock().insert(self.key.cluster.clone());
        None
    }

    /// Processes the available lines. Returns the version at the end of the initial events.
    async fn initial_events<S, E>(
        &self,
        lines: &mut Lines<S>,
        initial: &mut InitialEvents,
    ) -> Result<Option<String>, Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::error::Error + 'static,
    {
        let (kind, namespaced) = self.known_kind();
        let share = self.acquire_share(lines.buffered_bytes()).await?;
        let mut writes = Vec::new();
        let mut ended = None;
        while let Some(line) = lines.next_buffered()? {
            if line.is_empty() {
                continue;
            }
            let event = self.parse_event(&line)?;
            let json = event.object.json();
            match &*event.type_ {
                "BOOKMARK" => {
                    let bookmark: Bookmark = self.parse(json.as_bytes())?;
                    if bookmark.ends_initial_events() {
                        ended = Some(bookmark.metadata.resource_version);
                        break;
                    }
                }
                "ERROR" => {
                    let status: StatusBody = self.parse(json.as_bytes()).unwrap_or_default();
                    return Err(self.status_error(status));
                }
                "DELETED" => writes.extend(self.deletion(json, &kind)),
                _ => {
                    let outcome = self.convert(event.object, &kind, &kind);
                    if initial.seen.record(json, &outcome) {
                        initial.progressed_at = Instant::now();
                    }
                    if let ConversionOutcome::Write(write) = outcome {
                        writes.push(write);
                    }
                }
            }
        }
        if !writes.is_empty() {
            let kind = Self::reported_kind((kind, namespaced), &writes);
            self.send(writes, Progress { kind, ..Progress::default() }, share).await?;
        }
        Ok(ended)
    }
}
