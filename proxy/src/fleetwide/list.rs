//! get and list of registered resources, streamed from the cache.

use std::collections::VecDeque;
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_index::{GlobalCache, Object, Record, RecordKey, Seq, StoredObject};
use futures::future::{BoxFuture, try_join_all};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use serde_json::{Value, json};

use super::view::{IncompleteCluster, View};
use super::warning;
use super::watch::{MAX_LAG, wait_until_reached};
use crate::composite::{CachePosition, CompositeVersion, Continue, ListId, Portion, Snapshot};
use crate::merged::Heading;
use crate::merged::list::{ListParameters, Listing, Page, Part, Source};
use crate::native::NativePath;
use crate::object::{ANNOTATION_BYTES, Form, annotate, write_annotated};
use crate::options::ListOptions;
use crate::table::{Content, Shape, columns, row};
use crate::{Body, BodySource, BoxError, Caller, Error, Proxy, admission, full};

/// Number of objects read from the cache at once.
const PAGE_OBJECTS: usize = 200;
/// Suffix of a position after which the cluster has no further objects. Names cannot contain it.
const END: &str = "/";
/// Number of clusters read ahead by a list that selects only some of their objects.
const CLUSTERS_AHEAD: usize = 8;

/// The cached clusters of a list.
struct CachedClusters {
    cache: GlobalCache,
    view: Arc<View>,
    shape: Shape,
    heading: Heading,
    /// Sequence number of the snapshot that all pages show, so that a watch from this list sends exactly the changes of its
    /// objects. The store may contain later changes: they are stored while the list is read, and published shortly after
    /// they are stored.
    seq: Seq,
    /// `metadata.incompleteClusters`.
    incomplete_clusters: Vec<Value>,
    /// Current time in Unix seconds.
    now_seconds: i64,
    /// The cluster whose objects are being written, and the part of it that the caller can see.
    portion: Option<(ClusterName, Option<Portion>)>,
    /// The body that is being written.
    buffer: Vec<u8>,
}

/// The clusters that a list shows, and their versions.
struct ListScope {
    version: CompositeVersion,
    parts: VecDeque<Part>,
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
        let cache = &self.inner.cache;
        let token = Continue::decode(query.get("continue").unwrap_or_default(), list)?;
        let [version, version_match] =
            ["resourceVersion", "resourceVersionMatch"].map(|name| query.get(name).unwrap_or_default());
        let snapshot = Snapshot::from_parameters(version, version_match, limit.is_some(), token)?;
        let ListScope { version, parts } = ListScope::resolve(cache, &view, snapshot, list).await?;
        let now = jiff::Timestamp::now();
        let incomplete_clusters = view.incomplete_clusters(cache);
        let mut response = Response::new(());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let shape = Shape::from_accept_header(headers, query, Content::List)?;
        if let Some(text) = view.withheld_warning(cache).filter(|_| shape == Shape::Objects(Form::Full)) {
            response.headers_mut().append(header::WARNING, warning(text));
        }
        for cluster in &incomplete_clusters {
            response.headers_mut().append(header::WARNING, warning(&cluster.warning_text(now.as_millisecond())));
        }
        let source = CachedClusters {
            heading: view.heading(cache, "List"),
            seq: version.seq(cache.id()).unwrap_or_default(),
            cache: cache.clone(),
            view: Arc::new(view),
            shape,
            incomplete_clusters: incomplete_clusters.iter().map(IncompleteCluster::metadata_entry).collect(),
            now_seconds: now.as_second(),
            portion: None,
            buffer: Vec::new(),
        };
        let is_table = matches!(shape, Shape::Table(_));
        let listing = Listing::new(source, ListParameters { is_table, version, list, parts, limit });
        Ok(response.map(|()| listing.into_body()))
    }

    /// Gets one object, which must exist in exactly one cluster.
    pub(super) async fn get_cached(
        &self,
        caller: &Caller,
        native: &NativePath,
        view: View,
        path: &str,
        query: &Query,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let shape = Shape::from_accept_header(request.headers(), query, Content::Object)?;
        let found = self.find_only_object(&view, native).await;
        self.report_clusters(&request, || match &found {
            Ok(object) => vec![object.record.key.cluster().clone()],
            Err(_) => view.readable_clusters(&self.inner.cache),
        });
        let object = found?;
        let cluster = object.record.key.cluster().clone();
        admission::admit(&mut request, &cluster).await?;
        if object.record.redacted {
            return self.get_live(&cluster, caller, path, query, request).await;
        }
        let version = object_version(&self.inner.cache, &object.record, view.portion(&cluster));
        let body = match shape {
            Shape::Objects(form) => annotate(&object.body, cluster.as_str(), Some(&version), form)?,
            Shape::Table(table) => {
                let now_seconds = jiff::Timestamp::now().as_second();
                let row = row(&object.record, &object.body, &version, table, now_seconds)?;
                let columns = columns(&native.resource.group, &object.record.kind);
                let head = table.head(json!({"resourceVersion": version}), Some(columns));
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
        if let Some(incomplete) = view.incomplete_cluster(&self.inner.cache, cluster) {
            let text = incomplete.warning_text(jiff::Timestamp::now().as_millisecond());
            response.headers_mut().append(header::WARNING, warning(&text));
        }
        Ok(response)
    }

    /// Reads the object of this name that is in view. Fails if there is none or more than one.
    pub(super) async fn find_only_object(&self, view: &View, native: &NativePath) -> Result<Object, Error> {
        let mut objects = Vec::new();
        for object in self.find_all_named(view, native).await? {
            if view.shows(&object.record)? {
                objects.push(object);
            }
        }
        native.require_only_one(objects, |object| object.record.key.cluster())
    }

    /// Reads all objects of this name in the view's clusters, including those that are not in view.
    pub(super) async fn find_all_named(&self, view: &View, native: &NativePath) -> Result<Vec<Object>, Error> {
        let cache = &self.inner.cache;
        let key = |cluster| RecordKey::new(cluster, native.resource.clone(), &native.namespace, &native.name);
        let found = view.clusters(cache).into_iter().map(key).map(|key| async move { cache.get(&key).await });
        Ok(try_join_all(found).await?.into_iter().flatten().collect())
    }
}

/// The resourceVersion of an object in a response.
pub(super) fn object_version(cache: &GlobalCache, record: &Record, portion: Option<Portion>) -> String {
    let mut version = CompositeVersion::default();
    let (cluster, position) =
        (record.key.cluster().as_str(), CachePosition { seq: record.seq, cache: cache.id().clone() });
    version.set(cluster, &record.resource_version, Some(position));
    version.set_portion(cluster, portion);
    version.encode()
}

impl ListScope {
    async fn resolve(cache: &GlobalCache, view: &View, snapshot: Snapshot, list: ListId) -> Result<Self, Error> {
        if let Snapshot::NotOlderThan(version) | Snapshot::Exact(version) = &snapshot
            && let Some(seq) = version.seq(cache.id())
        {
            // Waits until this replica reaches the client's version, so that the list does not go back in time.
            wait_until_reached(cache, seq).await?;
        }
        let token = match snapshot {
            Snapshot::Latest | Snapshot::NotOlderThan(_) => {
                // Waits for changes of other replicas, so that a list shows everything that a read showed before.
                cache.wait_until_published(MAX_LAG).await?;
                let clusters = view.clusters(cache).into_iter();
                let parts = clusters.filter(|cluster| view.query(cluster).is_some()).map(Part::all).collect();
                return Ok(Self { version: view.position(cache), parts });
            }
            Snapshot::Exact(version) => Continue::new(&version.encode(), "", "", list),
            Snapshot::Rest(token) => token,
        };
        Self::resolve_earlier(cache, view, &token, list).await
    }

    /// The rest of an earlier snapshot; all of it if the token has no cluster.
    async fn resolve_earlier(cache: &GlobalCache, view: &View, token: &Continue, list: ListId) -> Result<Self, Error> {
        let first = CompositeVersion::decode(&token.rv);
        let mut clusters = view.clusters(cache);
        let keys: Vec<String> = clusters.iter().map(|cluster| view.version_key(cache, cluster)).collect();
        // A cluster that left after all its objects were sent does not matter.
        let after = token.after();
        let is_sent = |key: &str| key < token.cluster.as_str() || (key == token.cluster && after.ends_with(END));
        let has_left = |key: &str| !is_sent(key) && !keys.iter().any(|current| current == key);
        let is_available = match first.seq(cache.id()) {
            Some(seq) => cache.retains_deletions_since(seq).await?,
            None => false,
        };
        if !is_available || first.clusters().any(has_left) {
            if token.cluster.is_empty() {
                return Err(Error::Expired);
            }
            // In the current state, further objects may follow the last one.
            let restarted = Continue::new(&view.position(cache).encode(), &token.cluster, without_end(&after), list);
            return Err(Error::ExpiredContinue(restarted.encode()));
        }
        clusters.retain(|cluster| cluster.as_str() >= token.cluster.as_str());
        // The snapshot lacks clusters that joined later. A watch from its version sends their objects.
        clusters.retain(|cluster| first.includes(&view.version_key(cache, cluster)) && view.query(cluster).is_some());
        // If the token's cluster has left, the next cluster is read from its beginning.
        let start = |cluster: &ClusterName| match cluster.as_str() == token.cluster {
            true => after.clone(),
            false => String::new(),
        };
        let parts = clusters.into_iter().map(|cluster| Part { after: start(&cluster), cluster }).collect();
        Ok(Self { version: first, parts })
    }
}

/// Position of an object within its cluster.
fn position((namespace, name): (String, String)) -> String {
    format!("{namespace}/{name}")
}

/// A position without [`END`].
fn without_end(position: &str) -> &str {
    position.strip_suffix(END).unwrap_or(position)
}

impl CachedClusters {
    /// See [`View::portion`]. Objects are written cluster by cluster, so it is computed once for each cluster.
    fn portion(&mut self, cluster: &ClusterName) -> Option<Portion> {
        match &self.portion {
            Some((current, portion)) if current == cluster => *portion,
            _ => {
                let portion = self.view.portion(cluster);
                self.portion = Some((cluster.clone(), portion));
                portion
            }
        }
    }
}

impl Source for CachedClusters {
    type Item = StoredObject;

    fn read(&mut self, part: &Part, target_count: usize) -> BoxFuture<'static, Result<Page<StoredObject>, BoxError>> {
        let (cache, view, seq) = (self.cache.clone(), Arc::clone(&self.view), self.seq);
        let part = part.clone();
        Box::pin(async move {
            let Some(mut query) = view.query(&part.cluster) else {
                return Ok(Page { items: Vec::new(), next: None, end: None });
            };
            let after = without_end(&part.after).split_once('/');
            query.after = after.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
            let mut page = cache.page_as_of(&query, target_count.min(PAGE_OBJECTS), seq).await?;
            page.objects.retain(|object| view.allows(&object.record));
            let end = page.objects.last().map(|StoredObject { record, .. }| {
                position((record.key.namespace.to_string(), record.key.name.to_string())) + END
            });
            Ok(Page { items: page.objects, next: page.next.map(position), end })
        })
    }

    /// Selective lists read little of each cluster, and there may be many clusters, so several are read ahead.
    fn clusters_ahead(&self) -> usize {
        if self.view.is_narrow() { CLUSTERS_AHEAD } else { 0 }
    }

    fn encoded_length(&self, object: &StoredObject) -> usize {
        match self.shape {
            Shape::Objects(Form::Full) => object.body.plain_length() + ANNOTATION_BYTES,
            _ => 0,
        }
    }

    fn write(&mut self, object: &StoredObject, out: &mut Vec<u8>) -> Result<(), Error> {
        let record = &object.record;
        let cluster = record.key.cluster();
        let portion = self.portion(cluster);
        let version = object_version(&self.cache, record, portion);
        let body: &[u8] = match self.shape {
            Shape::Table(table) if table.object_form().is_none() => &[],
            _ => self.cache.read_body(&object.body, &mut self.buffer)?,
        };
        match self.shape {
            Shape::Objects(form) => write_annotated(body, cluster.as_str(), Some(&version), form, out)?,
            Shape::Table(table) => out.extend_from_slice(&row(record, body, &version, table, self.now_seconds)?),
        }
        Ok(())
    }

    fn omit_part(&mut self, _part: &Part, error: BoxError) -> Result<(), BoxError> {
        Err(error)
    }

    fn trailing_fields(&self, mut metadata: Value) -> Value {
        if !self.incomplete_clusters.is_empty() {
            metadata["incompleteClusters"] = Value::Array(self.incomplete_clusters.clone());
        }
        self.heading.trailing_fields(self.shape, metadata)
    }
}
