//! get and list of registered resources, streamed from the cache.

use std::collections::VecDeque;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_index::{Index, ListQuery, Object, Page, Record, RecordKey, Seq};
use futures::future::try_join_all;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::watch::{LAG, reached};
use super::{View, warning};
use crate::cluster::read;
use crate::composite::{CachePosition, CompositeVersion, Continue, ListId, Portion};
use crate::native::Native;
use crate::object::{Form, MARK, mark, mark_live, write_marked};
use crate::options::ListOptions;
use crate::table::{Content, Shape, columns, row};
use crate::{Body, BoxError, Caller, Error, Pieces, Proxy, full};

/// Number of objects read from the cache at once.
const CHUNK: usize = 200;
/// Number of clusters read ahead by a list that selects only some of their objects.
const CLUSTERS_AHEAD: usize = 8;

type Reading = AbortOnDropHandle<Result<Page, crowsnest_index::Error>>;

/// A list response that is being streamed.
struct Listing {
    index: Index,
    view: View,
    shape: Shape,
    kind: String,
    position: CompositeVersion,
    /// Sequence number of the snapshot that all pages show, so that a watch from this list sends no event twice.
    /// The store may be ahead of it: replicas publish changes shortly after they are stored.
    seq: Seq,
    incomplete: Vec<Value>,
    /// The remaining queries, one per cluster.
    wanted: VecDeque<ListQuery>,
    /// Key after which the first query continues.
    after: Option<(String, String)>,
    list: ListId,
    /// True for a page after the first one, which shows the snapshot of the first one.
    is_continued: bool,
    /// Pages being read ahead while the client receives the current one: first the rest of the current cluster,
    /// then the first pages of the next clusters.
    ahead: VecDeque<Reading>,
    /// Remaining limit of the page; None: no limit.
    left: Option<usize>,
    any: bool,
    started: bool,
    ended: bool,
    now: i64,
}

impl Proxy {
    pub(super) async fn list_cached(
        &self,
        view: View,
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Error> {
        let options = ListOptions::parse(query, false, true)?;
        let limit = options.limit;
        let list = view.list_id(query);
        let view = view.select(options)?;
        let index = &self.inner.index;
        let token = Continue::decode(query.get("continue").unwrap_or_default(), list)?;
        let version = query.get("resourceVersion").unwrap_or_default();
        if !matches!(version, "" | "0") && token.is_some() {
            let text = "specifying resource version is not allowed when using continue";
            return Err(Error::BadRequest(text.to_owned()));
        }
        if !matches!(version, "" | "0") && !CompositeVersion::is_valid(version) {
            return Err(Error::BadRequest(format!("invalid resource version {version:?}")));
        }
        if let Some(seq) = CompositeVersion::decode(version).seq(index.id()) {
            // Waits until this replica reaches the client's version, so that the list does not go back in time.
            reached(index, seq).await?;
        }
        if token.is_none() {
            // Waits for changes of other replicas, so that a list shows everything that a read showed before.
            index.caught_up(LAG).await?;
        }
        let mut clusters = view.clusters(index);
        let mut position = view.position(index);
        if let Some(token) = &token {
            let first = CompositeVersion::decode(&token.rv);
            let labels: Vec<String> = clusters.iter().map(|cluster| view.label(index, cluster)).collect();
            // A cluster that left after all its pages were sent does not matter.
            let has_left = |label: &str| label >= token.cluster.as_str() && !labels.iter().any(|known| known == label);
            let is_kept = match first.seq(index.id()) {
                Some(seq) => index.knows_deletions_since(seq).await?,
                None => false,
            };
            if !is_kept || first.clusters().any(has_left) {
                let now = Continue::at(&position.encode(), &token.cluster, token.after().as_ref(), list);
                return Err(Error::ExpiredContinue(now.encode()));
            }
            clusters.retain(|cluster| cluster.as_str() >= token.cluster.as_str());
            // The snapshot lacks clusters that joined later. A watch from its version sends their objects.
            clusters.retain(|cluster| first.includes(&view.label(index, cluster)));
            position = first;
        }
        let is_continued = token.is_some();
        let wanted: VecDeque<ListQuery> = clusters.iter().filter_map(|cluster| view.query(cluster)).collect();
        // If the token's cluster has left, the next cluster is read from its beginning.
        let first = wanted.front().map(|query| query.collection.cluster.as_str());
        let after = token.filter(|token| first == Some(token.cluster.as_str())).and_then(|token| token.after());
        let now = jiff::Timestamp::now();
        let incomplete = view.incomplete(index);
        let mut response = Response::new(());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let shape = Shape::of(headers, query, Content::List)?;
        if let Some(text) = view.withholds(index).filter(|_| shape == Shape::Objects(Form::Whole)) {
            response.headers_mut().append(header::WARNING, warning(text));
        }
        for cluster in &incomplete {
            response.headers_mut().append(header::WARNING, warning(&cluster.text(now.as_millisecond())));
        }
        let listing = Listing {
            kind: view.kind(index).unwrap_or_default(),
            shape,
            index: index.clone(),
            view,
            seq: position.seq(index.id()).unwrap_or_default(),
            position,
            incomplete: incomplete.iter().map(super::view::Incomplete::meta).collect(),
            wanted,
            after,
            list,
            is_continued,
            ahead: VecDeque::new(),
            left: limit,
            any: false,
            started: false,
            ended: false,
            now: now.as_second(),
        };
        Ok(response.map(|()| listing.into_body()))
    }

    /// Gets one object, which must exist in exactly one cluster.
    pub(super) async fn get_cached(
        &self,
        caller: &Caller,
        native: &Native,
        view: View,
        path: &str,
        query: &Query,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let shape = Shape::of(request.headers(), query, Content::Object)?;
        let located = self.locate(&view, native).await;
        self.witnessed(&request, || match &located {
            Ok(object) => vec![object.record.key.cluster().clone()],
            Err(_) => view.read(&self.inner.index),
        });
        let object = located?;
        let cluster = object.record.key.cluster().clone();
        if object.record.redacted {
            return self.get_live(&cluster, caller, path, query, request).await;
        }
        let version = version_of(&self.inner.index, &object.record, view.portion(&cluster));
        let body = match shape {
            Shape::Objects(form) => mark(&object.body, cluster.as_str(), Some(&version), form)?,
            Shape::Table(include) => {
                let row = row(&object, &version, include, jiff::Timestamp::now().as_second())?;
                let head = json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version},
                    "columnDefinitions": columns(&native.resource.group, &object.record.kind),
                });
                let mut table = head.to_string().into_bytes();
                table.pop();
                table.extend_from_slice(b",\"rows\":[");
                table.extend_from_slice(&row);
                table.extend_from_slice(b"]}");
                table
            }
        };
        let mut response = Response::new(full(body));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(stale) = view.incomplete_in(&self.inner.index, cluster) {
            let text = stale.text(jiff::Timestamp::now().as_millisecond());
            response.headers_mut().append(header::WARNING, warning(&text));
        }
        Ok(response)
    }

    /// Reads an object with withheld fields from its member, and falls back to the cached object.
    async fn get_live(
        &self,
        cluster: &ClusterName,
        caller: &Caller,
        path: &str,
        query: &Query,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let Shape::Objects(form) = Shape::of(request.headers(), query, Content::Object)? else {
            return self.one_cluster(cluster.as_str(), caller, path, request).await;
        };
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        request.headers_mut().remove(header::ACCEPT_ENCODING);
        let response = self.one_cluster(cluster.as_str(), caller, path, request).await?;
        if response.status() != StatusCode::OK {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let marked = mark_live(&read(body).await?, cluster.as_str(), form)?;
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(marked.len()));
        Ok(Response::from_parts(parts, full(marked)))
    }

    /// The only object of this name in view.
    pub(super) async fn locate(&self, view: &View, native: &Native) -> Result<Object, Error> {
        let mut found = Vec::new();
        for object in self.all_named(view, native).await? {
            if view.shows(&object.record)? {
                found.push(object);
            }
        }
        let (resource, name) = (native.resource.clone(), native.name.clone());
        if found.len() > 1 {
            let clusters = found.iter().map(|object| object.record.key.cluster().to_string()).collect();
            return Err(Error::Ambiguous { resource, name, clusters });
        }
        found.pop().ok_or(Error::NotFound { resource, name })
    }

    /// All objects of this name in the view's clusters, including those that are not in view.
    pub(super) async fn all_named(&self, view: &View, native: &Native) -> Result<Vec<Object>, Error> {
        let index = &self.inner.index;
        let of = |cluster| RecordKey::new(cluster, native.resource.clone(), &native.namespace, &native.name);
        let found = view.clusters(index).into_iter().map(of).map(|key| async move { index.get(&key).await });
        Ok(try_join_all(found).await?.into_iter().flatten().collect())
    }
}

/// The resourceVersion of an object in a response.
pub(super) fn version_of(index: &Index, record: &Record, portion: Option<Portion>) -> String {
    let mut version = CompositeVersion::default();
    let (cluster, place) =
        (record.key.cluster().as_str(), CachePosition { seq: record.seq, cache: index.id().clone() });
    version.set(cluster, &record.resource_version, Some(place));
    version.set_portion(cluster, portion);
    version.encode()
}

impl Pieces for Listing {
    /// The next piece of JSON. Items are written first and metadata last, because the continue token is known only at the
    /// end.
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        if self.ended {
            return Ok(None);
        }
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.started, true) {
            out.extend_from_slice(match self.shape {
                Shape::Objects(_) => b"{\"items\":[",
                Shape::Table(_) => b"{\"rows\":[",
            });
        }
        let token = loop {
            let Some(query) = self.wanted.front().cloned() else { break String::new() };
            let page = self.page(&query).await?;
            if matches!(self.shape, Shape::Objects(Form::Whole)) {
                out.reserve(page.objects.iter().map(|object| object.body.len() + MARK).sum());
            }
            let portion = self.view.portion(&query.collection.cluster);
            for object in &page.objects {
                self.item(object, portion, &mut out)?;
            }
            let told = page.objects.len();
            let last = page.objects.last().map(|object| {
                let key = &object.record.key;
                (key.namespace.to_string(), key.name.to_string())
            });
            if let Some(left) = &mut self.left {
                *left -= told.min(*left);
            }
            if page.next.is_none() {
                self.wanted.pop_front();
            }
            if self.left == Some(0) {
                let more = page.next.is_some() || !self.wanted.is_empty();
                // The token stays in the cluster even at its last object; the next page then moves on.
                let after = page.next.as_ref().or(last.as_ref());
                break if more {
                    Continue::at(&self.position.encode(), query.collection.cluster.as_str(), after, self.list).encode()
                } else {
                    String::new()
                };
            }
            self.after = page.next;
            if told > 0 {
                return Ok(Some(out.into()));
            }
        };
        self.finish(&token, &mut out)?;
        self.ended = true;
        Ok(Some(out.into()))
    }
}

impl Listing {
    /// The next page of the first cluster, with only the objects that the caller may read. Starts reading ahead.
    async fn page(&mut self, query: &ListQuery) -> Result<Page, BoxError> {
        let after = self.after.take();
        let allowed = |mut page: Page| {
            page.objects.retain(|object| self.view.allows(&object.record));
            page
        };
        let begun = match self.ahead.pop_front() {
            Some(reading) => Some(allowed(reading.await??)),
            None => None,
        };
        // The page may have been requested with a larger remaining limit.
        let fits = |page: &Page| self.left.is_none_or(|left| page.objects.len() <= left);
        let page = match begun.filter(fits) {
            Some(page) => page,
            None => allowed(self.reading(query.clone(), after, self.left).await??),
        };
        let still = self.left.map(|left| left.saturating_sub(page.objects.len()));
        if still == Some(0) {
            return Ok(page);
        }
        if let Some(next) = &page.next {
            self.ahead.push_front(self.reading(query.clone(), Some(next.clone()), still));
        }
        // Selective lists read little of each cluster, and there may be many clusters, so several are read ahead.
        let most = if self.view.is_narrow() { CLUSTERS_AHEAD } else { 0 };
        let begun = self.ahead.len() - usize::from(page.next.is_some());
        for at in begun + 1..=most {
            let Some(query) = self.wanted.get(at).cloned() else { break };
            self.ahead.push_back(self.reading(query, None, still));
        }
        Ok(page)
    }

    fn reading(&self, mut query: ListQuery, after: Option<(String, String)>, left: Option<usize>) -> Reading {
        query.after = after;
        let (index, want, seq) = (self.index.clone(), left.unwrap_or(CHUNK).min(CHUNK), self.seq);
        let is_continued = self.is_continued;
        AbortOnDropHandle::new(tokio::spawn(async move {
            match is_continued {
                true => index.page_of_snapshot(&query, want, seq).await,
                false => index.page_as_of(&query, want, seq).await,
            }
        }))
    }

    fn item(&mut self, object: &Object, portion: Option<Portion>, out: &mut Vec<u8>) -> Result<(), Error> {
        if std::mem::replace(&mut self.any, true) {
            out.extend_from_slice(b",");
        }
        let record = &object.record;
        let cluster = record.key.cluster().as_str();
        let version = version_of(&self.index, record, portion);
        match self.shape {
            Shape::Objects(form) => write_marked(&object.body, cluster, Some(&version), form, out)?,
            Shape::Table(include) => out.extend_from_slice(&row(object, &version, include, self.now)?),
        }
        Ok(())
    }

    fn finish(&self, token: &str, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let resource = &self.view.resource;
        let mut metadata = json!({"resourceVersion": self.position.encode(), "continue": token});
        if !self.incomplete.is_empty() {
            metadata["incompleteClusters"] = Value::Array(self.incomplete.clone());
        }
        let tail = match self.shape {
            Shape::Table(_) => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                "columnDefinitions": columns(&resource.group, &self.kind),
            }),
            Shape::Objects(Form::Metadata) => {
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Shape::Objects(Form::Whole) if self.kind.is_empty() => {
                json!({"kind": "List", "apiVersion": "v1", "metadata": metadata})
            }
            Shape::Objects(Form::Whole) => {
                json!({"kind": format!("{}List", self.kind), "apiVersion": resource.api_version(), "metadata": metadata})
            }
        };
        out.extend_from_slice(b"],");
        out.extend_from_slice(&serde_json::to_vec(&tail)?[1..]);
        Ok(())
    }
}
