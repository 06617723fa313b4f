//! Paged lists. After a complete list, paged or streamed, stored objects that it did not contain are deleted.

use super::budget::Share;
use super::collector::{Collector, CollectorProgress, ConversionOutcome};
use super::feed::{self, Page, PartialObject};
use super::list_permit::ListPermit;
use super::pages::{PageLimits, PageSize};
use super::versions::is_older;
use super::watch::WatchEnd;
use bytes::Bytes;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::request::percent_encode;
use crowsnest_component_base::spans;
use crowsnest_store::Error;
use crowsnest_store::ingest::RawObject;
use crowsnest_store::{Progress, RecordWrite};
use kube::client::Body;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::time::Duration;
use tracing::field::Empty;
use tracing::{Instrument, Span};

/// Maximum number of writes per batch.
const MAX_BATCH_WRITES: usize = 500;
/// Time for which the request of a page keeps its share of the byte budget while the member does not respond.
const SHARE_TIMEOUT: Duration = Duration::from_secs(1);

/// Names in the list in progress, as 128-bit hashes.
pub(super) struct SeenNames {
    hashes: HashSet<u128>,
    /// Hashers of the two halves of a hash.
    high: RandomState,
    low: RandomState,
    /// Number of objects without a readable name. If there are any, no stored objects are deleted.
    nameless: usize,
    /// Number of invalid objects.
    rejected: usize,
    /// Number of all other objects.
    valid: usize,
}

impl SeenNames {
    pub fn new() -> Self {
        let (high, low) = (RandomState::new(), RandomState::new());
        Self { hashes: HashSet::new(), high, low, nameless: 0, rejected: 0, valid: 0 }
    }

    fn hash(&self, namespace: &str, name: &str) -> u128 {
        let key = (namespace, name);
        (u128::from(self.high.hash_one(key)) << 64) | u128::from(self.low.hash_one(key))
    }

    /// Returns false if the name was already seen.
    fn add(&mut self, namespace: &str, name: &str) -> bool {
        self.hashes.insert(self.hash(namespace, name))
    }

    /// Records an object of the list and the result of its conversion. Returns false if its name was already seen.
    pub fn record(&mut self, json: &str, outcome: &ConversionOutcome) -> bool {
        match outcome {
            ConversionOutcome::Rejected => self.rejected += 1,
            ConversionOutcome::Write(_) | ConversionOutcome::OtherNamespace => self.valid += 1,
        }
        if let ConversionOutcome::Write(write) = outcome {
            let (namespace, name) = write.key();
            return self.add(namespace, name);
        }
        // The object exists although it is not stored, so its name counts as seen.
        match PartialObject::parse(json) {
            Some(object) => self.add(object.namespace(), &object.metadata.name),
            None => {
                self.nameless += 1;
                false
            }
        }
    }

    /// Number of valid objects.
    pub fn valid(&self) -> usize {
        self.valid
    }

    fn contains(&self, namespace: &str, name: &str) -> bool {
        self.hashes.contains(&self.hash(namespace, name))
    }
}

/// A list in progress.
struct Listing {
    seen: SeenNames,
    token: Option<String>,
    /// Version of the first page. If later pages are newer, a watch from here sends the differences.
    version: Option<String>,
}

impl Collector {
    /// Lists the resource completely. Returns Some if the stream continued as a watch and has ended.
    pub async fn list(&self, progress: &mut CollectorProgress) -> Result<Option<WatchEnd>, Error> {
        // A streamed list reports its version only at its end, too late to detect an outdated list before its objects
        // overwrite stored ones. Therefore only a first list is streamed; pages report the version at the beginning.
        let stored_version = self.shared.states.get(&self.key).map(|state| state.resource_version);
        let stored_version = stored_version.filter(|version| !version.is_empty());
        let can_stream = !self.shared.clusters_without_watch_list.lock().contains(&self.key.cluster);
        if can_stream && stored_version.is_none() && !progress.must_list_by_pages {
            // Stays set if the stream fails.
            progress.must_list_by_pages = true;
            if let Some(end) = self.watch_list(progress).await? {
                return Ok(Some(end));
            }
        }
        progress.must_list_by_pages = false;
        let span = self.list_span();
        let listed = self.list_by_pages(stored_version.as_deref(), progress).instrument(span.clone()).await;
        if let Err(error) = &listed {
            spans::record_error(&span, failure_reason(error));
        }
        progress.advance(listed?);
        Ok(None)
    }

    /// Tracing span of a list.
    pub fn list_span(&self) -> Span {
        tracing::info_span!(
            target: spans::SPAN_TARGET,
            "list",
            otel.name = %format_args!("list {}", self.key.resource.group_resource()),
            otel.status_code = Empty,
            k8s.cluster.name = %self.key.cluster,
            crowsnest.resource = self.key.resource.group_resource(),
            crowsnest.objects = Empty,
            error.type = Empty,
        )
    }

    async fn list_by_pages(
        &self,
        stored_version: Option<&str>,
        progress: &mut CollectorProgress,
    ) -> Result<String, Error> {
        let mut permit = ListPermit::acquire(&self.shared, &self.key.cluster).await?;
        self.shared.metrics.lists.add(1);
        let mut listing = Listing { seen: SeenNames::new(), token: None, version: None };
        loop {
            permit.renew().await?;
            let (bytes, mut share) = permit.run(self.next_page(listing.token.as_deref(), progress)).await?;
            let page: Page<'_> = self.parse(&bytes)?;
            progress.page_sizer.record_page(page.items.len(), bytes.len());
            if listing.token.is_none() {
                self.check_list_version(&page.metadata.resource_version, stored_version, progress)?;
            }
            let version = listing.version.get_or_insert(page.metadata.resource_version).clone();
            let has_new = self.store_page(&page.kind, &page.items, &mut listing.seen, &mut share).await?;
            match page.metadata.continue_token.filter(|token| !token.is_empty()) {
                Some(next) if has_new && listing.token.as_ref() != Some(&next) => listing.token = Some(next),
                Some(_) => return Err(self.interruption_error("its list does not end: it repeats the same objects")),
                None => {
                    self.finish_list(&listing.seen, &version).await?;
                    Span::current().record("crowsnest.objects", listing.seen.valid);
                    progress.suspect_version = None;
                    return Ok(version);
                }
            }
        }
    }

    /// Reads the next page. If the response is too large, fewer objects are requested.
    async fn next_page(&self, token: Option<&str>, progress: &mut CollectorProgress) -> Result<(Bytes, Share), Error> {
        let options = &self.shared.options;
        let (objects, bytes) = (options.page_size, self.shared.budget.max_cluster_bytes());
        let limits = PageLimits { objects, bytes, object_bytes: options.max_object_bytes };
        loop {
            let page_size = progress.page_sizer.next_size(limits);
            match self.read_page(token, page_size).await {
                Err(Error::TooLarge { .. }) if progress.page_sizer.record_failure(page_size.objects) => {}
                Err(error @ Error::PageTimeout { .. }) => {
                    progress.page_sizer.record_failure(page_size.objects);
                    return Err(error);
                }
                other => return other,
            }
        }
    }

    /// Reads one page. The returned share of the byte budget has the size of the page.
    pub async fn read_page(&self, token: Option<&str>, page_size: PageSize) -> Result<(Bytes, Share), Error> {
        let query = match token {
            None => format!("limit={}", page_size.objects),
            Some(token) => format!("limit={}&continue={}", page_size.objects, percent_encode(token)),
        };
        let (body, mut share) = match self.request_page(&query, page_size.bytes).await {
            Err(Error::ErrorResponse { status: 410, .. }) if token.is_some() => {
                return Err(self.interruption_error("the list took longer than the server keeps its history"));
            }
            other => other?,
        };
        let bytes = feed::read_page(body, &self.key, page_size.bytes, self.shared.options.timeouts.page).await?;
        share.shrink(bytes.len());
        Ok((bytes, share))
    }

    /// Requests a page and waits for the head of its response. The share is acquired before the request is sent, because
    /// a response that is not read for long may be aborted by the member. A silent member would keep the bytes from other
    /// members, so its share is released and acquired again for the response.
    async fn request_page(&self, query: &str, bytes: usize) -> Result<(Body, Share), Error> {
        let share = self.acquire_share(bytes).await?;
        let mut response = pin!(self.get(query));
        if let Ok(response) = tokio::time::timeout(SHARE_TIMEOUT, response.as_mut()).await {
            return Ok((response?, share));
        }
        drop(share);
        let body = response.await?;
        Ok((body, self.acquire_share(bytes).await?))
    }

    /// Detects a list that is older than the stored version. One such list may come from an outdated replica of the
    /// API server; a member that was restored from a backup repeats it and is then accepted.
    fn check_list_version(
        &self,
        version: &str,
        stored_version: Option<&str>,
        progress: &mut CollectorProgress,
    ) -> Result<(), Error> {
        let Some(stored) = stored_version.filter(|stored| is_older(version, stored)) else { return Ok(()) };
        if progress.suspect_version.as_deref().is_some_and(|suspect| !is_older(version, suspect)) {
            tracing::warn!(collection = %self.key, version, stored, "the member returned to an older version, as after a restore");
            return Ok(());
        }
        progress.suspect_version = Some(version.to_owned());
        let reason = format!("its list has resourceVersion {version} after {stored}: it is outdated or was restored");
        Err(self.interruption_error(reason))
    }

    /// Queues the objects of a page. Returns false if it contains no new ones.
    async fn store_page(
        &self,
        kind: &str,
        items: &[&RawValue],
        seen: &mut SeenNames,
        share: &mut Share,
    ) -> Result<bool, Error> {
        let item_kind = kind.strip_suffix("List").unwrap_or_default();
        let (known_kind, namespaced) = self.known_kind();
        let kind = if known_kind.is_empty() { item_kind } else { &known_kind };
        // Objects may omit their kind only if the kind of the list implies it.
        let implied_kind = if item_kind == kind { kind } else { "" };
        let mut has_new = false;
        for chunk in items.chunks(MAX_BATCH_WRITES) {
            let mut writes = Vec::with_capacity(chunk.len());
            for raw in chunk {
                let outcome = self.convert(RawObject::new(raw.get()), kind, implied_kind);
                has_new |= seen.record(raw.get(), &outcome);
                if let ConversionOutcome::Write(write) = outcome {
                    writes.push(write);
                }
            }
            let namespaced = namespaced.unwrap_or_else(|| writes.iter().any(|write| !write.key().0.is_empty()));
            let kind = Some((kind.to_owned(), namespaced)).filter(|(kind, _)| !kind.is_empty());
            let part = share.split(chunk.iter().map(|raw| raw.get().len()).sum());
            self.send(writes, Progress { kind, ..Progress::default() }, part).await?;
        }
        Ok(has_new)
    }

    /// Deletes the objects that the list did not contain, then marks the collection complete.
    pub async fn finish_list(&self, seen: &SeenNames, version: &str) -> Result<(), Error> {
        if seen.valid == 0 && seen.rejected > 0 {
            return Err(self.interruption_error(format!("none of the {} listed objects is valid", seen.rejected)));
        }
        // Queued batches have to be stored before the keys are compared.
        self.send_and_wait(Vec::new(), Progress::default()).await?;
        let mut deletions = Vec::new();
        if seen.nameless == 0 {
            let keys = self.shared.store.keys(&self.key).await?;
            let unseen = keys.into_iter().filter(|key| !seen.contains(&key.namespace, &key.name));
            deletions.extend(unseen.map(|NamespacedName { namespace, name }| {
                let resource_version = String::new();
                RecordWrite::Delete { namespace, name, resource_version }
            }));
        } else {
            let nameless = seen.nameless;
            tracing::warn!(collection = %self.key, nameless, "the list contains objects without a name; no stored objects are deleted");
        }
        let progress = Progress {
            resource_version: Some(version.to_owned()),
            complete: true,
            scope: Some(self.scope.text()),
            kind: self.shared.kind_of(&self.key),
        };
        self.send_and_wait(deletions, progress).await?;
        self.shared.states.update(&self.key, |state| state.stale_reason = None);
        Ok(())
    }
}

/// Short reason for a failed list, without the content of the response.
fn failure_reason(error: &Error) -> &'static str {
    match error {
        Error::ErrorResponse { .. } => "refused",
        Error::PageTimeout { .. } => "timeout",
        error if error.is_invalid_response() => "unreadable",
        _ => "interrupted",
    }
}
