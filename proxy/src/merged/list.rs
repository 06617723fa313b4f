//! A list that is streamed part by part: the objects of the first cluster, then those of the next one.

use std::collections::VecDeque;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::composite::{CompositeVersion, Continue, ListId};
use crate::{BodySource, BoxError, Error};

/// The objects of a cluster that are still to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub cluster: ClusterName,
    /// Position within the cluster in the form of its source; empty: the start.
    pub after: String,
}

impl Part {
    /// All objects of a cluster.
    pub fn all(cluster: ClusterName) -> Self {
        Self { cluster, after: String::new() }
    }
}

/// Consecutive objects of a part.
#[derive(Debug)]
pub struct Page<I> {
    pub items: Vec<I>,
    /// Position of the rest; None at the end of the cluster.
    pub next: Option<String>,
    /// Position of the last object, if this page ends the cluster and the cluster can be read from that position. A
    /// continue token after this page then names the same cluster, as Karmada's does, and the page that it requests
    /// begins with the next cluster.
    pub end: Option<String>,
}

/// A cluster whose part is missing or incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingCluster {
    pub cluster: ClusterName,
    pub reason: String,
}

impl MissingCluster {
    /// Text of the `Warning` header. Most reasons already name the cluster.
    pub fn warning_text(&self) -> String {
        let Self { cluster, reason } = self;
        let names_cluster = reason.contains(&format!("cluster {cluster}"));
        if names_cluster { reason.clone() } else { format!("cluster {cluster} {reason}") }
    }

    /// Entry of `metadata.incompleteClusters`.
    pub fn metadata_entry(&self) -> Value {
        json!({"cluster": self.cluster, "reason": self.reason})
    }
}

/// Reads the objects of a list from its clusters.
pub trait Source: Send + 'static {
    type Item: Send + 'static;

    /// Reads the next objects of a part, about `target_count` of them.
    fn read(&mut self, part: &Part, target_count: usize) -> BoxFuture<'static, Result<Page<Self::Item>, BoxError>>;

    /// Number of clusters after the current one whose first page is read ahead.
    fn clusters_ahead(&self) -> usize;

    /// Estimated length of an encoded object in bytes.
    fn encoded_length(&self, item: &Self::Item) -> usize;

    /// Appends an object in the form of the list.
    fn write(&mut self, item: &Self::Item, out: &mut Vec<u8>) -> Result<(), Error>;

    /// Handles a part that cannot be read. The list continues without the part, or fails with the returned error.
    fn omit_part(&mut self, part: &Part, error: BoxError) -> Result<(), BoxError>;

    /// Object with the fields that follow the items of the list, with this `metadata`.
    fn trailing_fields(&self, metadata: Value) -> Value;
}

/// Size in bytes from which a piece of JSON is sent. Small pieces bound the memory of a list, however large its pages
/// are, and let other requests run between two of them.
const PIECE_BYTES: usize = 128 << 10;

/// A page that is being read by a task.
type PendingPage<I> = AbortOnDropHandle<Result<Page<I>, BoxError>>;

/// A list response that is being streamed.
pub struct Listing<S: Source> {
    source: S,
    is_table: bool,
    /// The resourceVersion of all pages.
    version: CompositeVersion,
    list: ListId,
    /// The remaining clusters. The first one may be partly sent.
    parts: VecDeque<Part>,
    /// Pages being read ahead while the client receives the current one: first the rest of the current cluster,
    /// then the first pages of the next clusters.
    ahead: VecDeque<PendingPage<S::Item>>,
    /// Objects that were read and are still to be written.
    ready: std::vec::IntoIter<S::Item>,
    /// Remaining limit of the page after the objects that were read; `None` means no limit.
    remaining: Option<usize>,
    /// Set once everything was read: the first part of the next page, if there is one.
    next_page_part: Option<Option<Part>>,
    /// True once an item has been written, so that further ones follow a comma.
    has_items: bool,
    has_started: bool,
    has_ended: bool,
}

/// Parameters of a [`Listing`].
pub struct ListParameters {
    pub is_table: bool,
    pub version: CompositeVersion,
    pub list: ListId,
    pub parts: VecDeque<Part>,
    pub limit: Option<usize>,
}

impl<S: Source> Listing<S> {
    pub fn new(source: S, parameters: ListParameters) -> Self {
        let ListParameters { is_table, version, list, parts, limit } = parameters;
        Self {
            source,
            is_table,
            version,
            list,
            parts,
            ahead: VecDeque::new(),
            ready: Vec::new().into_iter(),
            remaining: limit,
            next_page_part: None,
            has_items: false,
            has_started: false,
            has_ended: false,
        }
    }

    /// The next page of a part. Starts reading ahead.
    async fn page(&mut self, part: &Part) -> Result<Page<S::Item>, BoxError> {
        let read_ahead = match self.ahead.pop_front() {
            Some(pending) => Some(pending.await??),
            None => {
                // With a limit, the other clusters may not be needed.
                if self.remaining.is_none() {
                    self.read_clusters_ahead(0, usize::MAX);
                }
                None
            }
        };
        // The page may have been requested with a larger remaining limit.
        let fits = |page: &Page<S::Item>| self.remaining.is_none_or(|remaining| page.items.len() <= remaining);
        let page = match read_ahead.filter(fits) {
            Some(page) => page,
            None => self.source.read(part, self.remaining.unwrap_or(usize::MAX)).await?,
        };
        let remaining = self.remaining.map(|remaining| remaining.saturating_sub(page.items.len()));
        if remaining == Some(0) {
            return Ok(page);
        }
        let target_count = remaining.unwrap_or(usize::MAX);
        if let Some(next) = &page.next {
            let remaining_part = Part { cluster: part.cluster.clone(), after: next.clone() };
            let pending = self.start_reading(&remaining_part, target_count);
            self.ahead.push_front(pending);
        }
        self.read_clusters_ahead(self.ahead.len() - usize::from(page.next.is_some()), target_count);
        Ok(page)
    }

    /// Starts to read the first pages of the next clusters; those of the first `started` are being read already.
    fn read_clusters_ahead(&mut self, started: usize, target_count: usize) {
        for index in started + 1..=self.source.clusters_ahead() {
            let Some(part) = self.parts.get(index).cloned() else { break };
            let pending = self.start_reading(&part, target_count);
            self.ahead.push_back(pending);
        }
    }

    fn start_reading(&mut self, part: &Part, target_count: usize) -> PendingPage<S::Item> {
        AbortOnDropHandle::new(tokio::spawn(self.source.read(part, target_count)))
    }

    /// Reads the next objects. Sets `next_page_part` after the last ones.
    async fn read_more(&mut self) -> Result<(), BoxError> {
        let Some(part) = self.parts.front().cloned() else {
            self.next_page_part = Some(None);
            return Ok(());
        };
        let page = match self.page(&part).await {
            Ok(page) => page,
            Err(error) => {
                self.source.omit_part(&part, error)?;
                match self.remaining {
                    // The page ends before this part. The request for the next page reports the error.
                    Some(_) => self.next_page_part = Some(Some(part)),
                    None => drop(self.parts.pop_front()),
                }
                return Ok(());
            }
        };
        if let Some(remaining) = &mut self.remaining {
            *remaining -= page.items.len().min(*remaining);
        }
        self.ready = page.items.into_iter();
        let ends_cluster = page.next.is_none();
        match page.next {
            Some(next) => self.parts[0].after = next,
            None => drop(self.parts.pop_front()),
        }
        if self.remaining == Some(0) {
            let end = page.end.filter(|_| ends_cluster).map(|after| Part { after, ..part });
            self.next_page_part = Some(self.parts.front().map(|next_part| end.unwrap_or_else(|| next_part.clone())));
        }
        Ok(())
    }

    /// Writes objects that were read, up to the size of a piece.
    fn write_ready(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        if let Some(first) = self.ready.as_slice().first() {
            // Similar objects are similarly long. The last one may end after the limit.
            let length = self.source.encoded_length(first);
            out.reserve(length.saturating_mul(self.ready.len()).min(PIECE_BYTES.saturating_add(length)));
        }
        while out.len() < PIECE_BYTES {
            let Some(item) = self.ready.next() else { break };
            if std::mem::replace(&mut self.has_items, true) {
                out.extend_from_slice(b",");
            }
            self.source.write(&item, out)?;
        }
        Ok(())
    }

    /// Writes the end of the list. `next_page_part` is the first part of the next page.
    fn finish(&self, next_page_part: Option<&Part>, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let version = self.version.encode();
        let token =
            next_page_part.map(|part| Continue::new(&version, part.cluster.as_str(), &part.after, self.list).encode());
        let metadata = json!({"resourceVersion": version, "continue": token.unwrap_or_default()});
        out.extend_from_slice(b"],");
        out.extend_from_slice(&serde_json::to_vec(&self.source.trailing_fields(metadata))?[1..]);
        Ok(())
    }
}

impl<S: Source> BodySource for Listing<S> {
    /// The next piece of JSON. Items come first and metadata last, because the continue token is known only at the
    /// end.
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        if self.has_ended {
            return Ok(None);
        }
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.has_started, true) {
            out.extend_from_slice(if self.is_table { b"{\"rows\":[" } else { b"{\"items\":[" });
        }
        loop {
            let has_ready = !self.ready.as_slice().is_empty();
            self.write_ready(&mut out)?;
            match self.next_page_part.take_if(|_| self.ready.as_slice().is_empty()) {
                Some(next_page_part) => {
                    self.finish(next_page_part.as_ref(), &mut out)?;
                    self.has_ended = true;
                    return Ok(Some(out.into()));
                }
                // The client need not wait for the next page.
                None if has_ready => return Ok(Some(out.into())),
                None => self.read_more().await?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::composite::Snapshot;
    use futures::FutureExt;
    use http_body_util::BodyExt;

    /// Clusters with the numbers 0, 1, … as objects; a negative count is a cluster that cannot be read.
    struct Numbers {
        counts: Vec<(&'static str, i64)>,
        missing: Vec<String>,
        ahead: usize,
        has_ends: bool,
    }

    impl Source for Numbers {
        type Item = String;

        fn read(&mut self, part: &Part, target_count: usize) -> BoxFuture<'static, Result<Page<String>, BoxError>> {
            let cluster = part.cluster.to_string();
            let count = self.counts.iter().find(|(name, _)| *name == cluster).map_or(0, |(_, count)| *count);
            let (from, has_ends) = (part.after.parse().unwrap_or(0), self.has_ends);
            async move {
                let count = usize::try_from(count).map_err(|_| BoxError::from("no response"))?;
                let end = count.min(from + target_count.min(2));
                let items = (from..end).map(|n| format!("\"{cluster}/{n}\"")).collect();
                Ok(Page { items, next: (end < count).then(|| end.to_string()), end: has_ends.then(|| end.to_string()) })
            }
            .boxed()
        }

        fn clusters_ahead(&self) -> usize {
            self.ahead
        }

        fn encoded_length(&self, item: &String) -> usize {
            item.len()
        }

        fn write(&mut self, item: &String, out: &mut Vec<u8>) -> Result<(), Error> {
            out.extend_from_slice(item.as_bytes());
            Ok(())
        }

        fn omit_part(&mut self, part: &Part, _error: BoxError) -> Result<(), BoxError> {
            self.missing.push(part.cluster.to_string());
            Ok(())
        }

        fn trailing_fields(&self, metadata: Value) -> Value {
            json!({"metadata": metadata, "missing": self.missing})
        }
    }

    fn cluster(name: &str) -> ClusterName {
        ClusterName::parse(name).unwrap()
    }

    async fn list(counts: &[(&'static str, i64)], limit: Option<usize>, from: Option<Part>, ahead: usize) -> Value {
        list_of(Numbers { counts: counts.to_vec(), missing: Vec::new(), ahead, has_ends: ahead == 1 }, limit, from)
            .await
    }

    async fn list_of(source: Numbers, limit: Option<usize>, from: Option<Part>) -> Value {
        let counts = source.counts.clone();
        let mut parts: VecDeque<Part> = counts.iter().map(|(name, _)| Part::all(cluster(name))).collect();
        if let Some(from) = from {
            parts.retain(|part| part.cluster >= from.cluster);
            parts[0] = from;
        }
        let list = ListId::new(&"numbers");
        let parameters = ListParameters { is_table: false, version: CompositeVersion::default(), list, parts, limit };
        let body = Listing::new(source, parameters).into_body();
        serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap()
    }

    #[rstest::rstest]
    #[tokio::test]
    async fn pages_of_any_size_have_the_same_items(#[values(0, 1, 8)] ahead: usize) {
        let counts = [("m1", 5), ("m2", 0), ("m3", 1), ("m4", 3)];
        let complete_list = list(&counts, None, None, ahead).await;
        let items = complete_list["items"].as_array().unwrap();
        assert_eq!((items.len(), &complete_list["metadata"]["continue"]), (9, &json!("")));
        for limit in 1..=10 {
            let (mut paged, mut from) = (Vec::new(), None);
            loop {
                let page = list(&counts, Some(limit), from, ahead).await;
                let page_items = page["items"].as_array().unwrap();
                assert!(page_items.len() <= limit, "{page}");
                paged.extend(page_items.clone());
                let token = page["metadata"]["continue"].as_str().unwrap();
                let Some(token) = Continue::decode(token, ListId::new(&"numbers")).unwrap() else { break };
                assert!(matches!(Snapshot::from_parameters("", "", true, Some(token.clone())), Ok(Snapshot::Rest(_))));
                from = Some(Part { cluster: cluster(&token.cluster), after: token.after() });
            }
            assert_eq!(&paged, items, "limit {limit}");
        }
    }

    #[rstest::rstest]
    #[case::resumable(true, 2, Some("m1"))]
    #[case::opaque(false, 2, Some("m2"))]
    #[case::last_cluster(true, 3, None)]
    #[tokio::test]
    async fn a_page_that_ends_with_a_cluster_stays_in_it_if_that_can_be_resumed(
        #[case] has_ends: bool,
        #[case] limit: usize,
        #[case] next_cluster: Option<&str>,
    ) {
        let counts = vec![("m1", 2), ("m2", 1)];
        let page = list_of(Numbers { counts, missing: Vec::new(), ahead: 0, has_ends }, Some(limit), None).await;
        let token = Continue::decode(page["metadata"]["continue"].as_str().unwrap(), ListId::new(&"numbers")).unwrap();
        assert_eq!(token.map(|token| token.cluster), next_cluster.map(str::to_owned));
    }

    #[rstest::rstest]
    #[case::unlimited(None, 3, &["m2"], None)]
    #[case::limited(Some(9), 2, &["m2"], Some("m2"))]
    #[case::limit_reached_before(Some(2), 2, &[], Some("m2"))]
    #[tokio::test]
    async fn a_part_that_cannot_be_read_is_omitted_or_ends_the_page(
        #[case] limit: Option<usize>,
        #[case] items: usize,
        #[case] missing: &[&str],
        #[case] next_cluster: Option<&str>,
    ) {
        let list = list(&[("m1", 2), ("m2", -1), ("m3", 1)], limit, None, 0).await;
        assert_eq!((list["items"].as_array().unwrap().len(), &list["missing"]), (items, &json!(missing)));
        let token = list["metadata"]["continue"].as_str().unwrap();
        let token = Continue::decode(token, ListId::new(&"numbers")).unwrap();
        assert_eq!(token.map(|token| token.cluster), next_cluster.map(str::to_owned));
    }

    /// One page of strings of this length.
    struct Strings {
        count: usize,
        length: usize,
    }

    impl Source for Strings {
        type Item = String;

        fn read(&mut self, _part: &Part, target_count: usize) -> BoxFuture<'static, Result<Page<String>, BoxError>> {
            let items = vec![json!("x".repeat(self.length)).to_string(); self.count.min(target_count)];
            futures::future::ready(Ok(Page { items, next: None, end: None })).boxed()
        }

        fn clusters_ahead(&self) -> usize {
            0
        }

        fn encoded_length(&self, item: &String) -> usize {
            item.len()
        }

        fn write(&mut self, item: &String, out: &mut Vec<u8>) -> Result<(), Error> {
            out.extend_from_slice(item.as_bytes());
            Ok(())
        }

        fn omit_part(&mut self, _part: &Part, error: BoxError) -> Result<(), BoxError> {
            Err(error)
        }

        fn trailing_fields(&self, metadata: Value) -> Value {
            json!({"metadata": metadata})
        }
    }

    #[rstest::rstest]
    #[case::none(0, 10, 1)]
    #[case::short(100, 10, 1)]
    #[case::several_pieces(100, 10_000, 8)]
    #[case::long(3, 2 * PIECE_BYTES, 3)]
    #[tokio::test]
    async fn a_page_is_sent_in_small_pieces(#[case] count: usize, #[case] length: usize, #[case] pieces: usize) {
        let parameters = ListParameters {
            is_table: false,
            version: CompositeVersion::default(),
            list: ListId::new(&"strings"),
            parts: VecDeque::from([Part::all(cluster("m1"))]),
            limit: Some(count.max(1)),
        };
        let mut listing = Listing::new(Strings { count, length }, parameters);
        let (mut text, mut sent) = (Vec::new(), 0);
        while let Some(piece) = listing.next().await.unwrap() {
            assert!(piece.len() < PIECE_BYTES + length + 200, "{}", piece.len());
            text.extend_from_slice(&piece);
            sent += 1;
        }
        let list: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((list["items"].as_array().unwrap().len(), sent), (count, pieces));
    }

    #[test]
    fn warnings_name_the_cluster_once() {
        let text = |reason: &str| MissingCluster { cluster: cluster("m1"), reason: reason.to_owned() }.warning_text();
        assert_eq!(text("responded 403"), "cluster m1 responded 403");
        assert_eq!(text("error trying to reach cluster m1: x"), "error trying to reach cluster m1: x");
    }
}
