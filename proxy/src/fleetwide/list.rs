//! get and list of registered resources, streamed from the cache.

use std::collections::VecDeque;
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_index::{Index, Object, Record, RecordKey, Seq};
use futures::future::{BoxFuture, try_join_all};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use serde_json::{Value, json};

use super::watch::{LAG, reached};
use super::{View, warning};
use crate::composite::{CachePosition, CompositeVersion, Continue, ListId, Portion, Snapshot};
use crate::merged::Heading;
use crate::merged::list::{ListParameters, Listing, Page, Part, Source};
use crate::native::NativePath;
use crate::object::{Form, MARK, mark, write_marked};
use crate::options::ListOptions;
use crate::table::{Content, Shape, columns, row};
use crate::{Body, BoxError, Caller, Error, Pieces, Proxy, admission, full};

/// Number of objects read from the cache at once.
const CHUNK: usize = 200;
/// Number of clusters read ahead by a list that selects only some of their objects.
const CLUSTERS_AHEAD: usize = 8;

/// The cached clusters of a list.
struct CachedClusters {
    index: Index,
    view: Arc<View>,
    shape: Shape,
    heading: Heading,
    /// Sequence number of the snapshot that all pages show, so that a watch from this list sends no event twice.
    /// The store may be ahead of it: replicas publish changes shortly after they are stored.
    seq: Seq,
    /// True if the list shows an earlier snapshot, with objects that have been deleted since.
    is_earlier: bool,
    incomplete: Vec<Value>,
    /// In Unix seconds.
    now: i64,
}

/// The clusters that a list shows, and their versions.
struct Extent {
    version: CompositeVersion,
    parts: VecDeque<Part>,
    is_earlier: bool,
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
        let [version, matching] =
            ["resourceVersion", "resourceVersionMatch"].map(|name| query.get(name).unwrap_or_default());
        let snapshot = Snapshot::of(version, matching, limit.is_some(), token)?;
        let Extent { version, parts, is_earlier } = Extent::of(index, &view, snapshot, list).await?;
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
        let source = CachedClusters {
            heading: view.heading(index, "List"),
            seq: version.seq(index.id()).unwrap_or_default(),
            index: index.clone(),
            view: Arc::new(view),
            shape,
            is_earlier,
            incomplete: incomplete.iter().map(super::view::Incomplete::meta).collect(),
            now: now.as_second(),
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
        let shape = Shape::of(request.headers(), query, Content::Object)?;
        let located = self.locate(&view, native).await;
        self.report_clusters(&request, || match &located {
            Ok(object) => vec![object.record.key.cluster().clone()],
            Err(_) => view.read(&self.inner.index),
        });
        let object = located?;
        let cluster = object.record.key.cluster().clone();
        admission::admit(&mut request, &cluster).await?;
        if object.record.redacted {
            return self.get_live(&cluster, caller, path, query, request).await;
        }
        let version = version_of(&self.inner.index, &object.record, view.portion(&cluster));
        let body = match shape {
            Shape::Objects(form) => mark(&object.body, cluster.as_str(), Some(&version), form)?,
            Shape::Table(table) => {
                let row = row(&object, &version, table, jiff::Timestamp::now().as_second())?;
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
        if let Some(stale) = view.incomplete_in(&self.inner.index, cluster) {
            let text = stale.text(jiff::Timestamp::now().as_millisecond());
            response.headers_mut().append(header::WARNING, warning(&text));
        }
        Ok(response)
    }

    /// The only object of this name in view.
    pub(super) async fn locate(&self, view: &View, native: &NativePath) -> Result<Object, Error> {
        let mut found = Vec::new();
        for object in self.all_named(view, native).await? {
            if view.shows(&object.record)? {
                found.push(object);
            }
        }
        native.only_one(found, |object| object.record.key.cluster())
    }

    /// All objects of this name in the view's clusters, including those that are not in view.
    pub(super) async fn all_named(&self, view: &View, native: &NativePath) -> Result<Vec<Object>, Error> {
        let index = &self.inner.index;
        let of = |cluster| RecordKey::new(cluster, native.resource.clone(), &native.namespace, &native.name);
        let found = view.clusters(index).into_iter().map(of).map(|key| async move { index.get(&key).await });
        Ok(try_join_all(found).await?.into_iter().flatten().collect())
    }
}

/// The resourceVersion of an object in a response.
pub(super) fn version_of(index: &Index, record: &Record, portion: Option<Portion>) -> String {
    let mut version = CompositeVersion::default();
    let (cluster, position) =
        (record.key.cluster().as_str(), CachePosition { seq: record.seq, cache: index.id().clone() });
    version.set(cluster, &record.resource_version, Some(position));
    version.set_portion(cluster, portion);
    version.encode()
}

impl Extent {
    async fn of(index: &Index, view: &View, snapshot: Snapshot, list: ListId) -> Result<Self, Error> {
        if let Snapshot::NotOlderThan(version) | Snapshot::Exact(version) = &snapshot
            && let Some(seq) = version.seq(index.id())
        {
            // Waits until this replica reaches the client's version, so that the list does not go back in time.
            reached(index, seq).await?;
        }
        let token = match snapshot {
            Snapshot::Latest | Snapshot::NotOlderThan(_) => {
                // Waits for changes of other replicas, so that a list shows everything that a read showed before.
                index.wait_until_published(LAG).await?;
                let clusters = view.clusters(index).into_iter();
                let parts = clusters.filter(|cluster| view.query(cluster).is_some()).map(Part::all).collect();
                return Ok(Self { version: view.position(index), parts, is_earlier: false });
            }
            Snapshot::Exact(version) => Continue::at(&version.encode(), "", "", list),
            Snapshot::Rest(token) => token,
        };
        Self::earlier(index, view, &token, list).await
    }

    /// The rest of an earlier snapshot. A token without a cluster means all of it.
    async fn earlier(index: &Index, view: &View, token: &Continue, list: ListId) -> Result<Self, Error> {
        let first = CompositeVersion::decode(&token.rv);
        let mut clusters = view.clusters(index);
        let labels: Vec<String> = clusters.iter().map(|cluster| view.label(index, cluster)).collect();
        // A cluster that left after all its pages were sent does not matter.
        let has_left = |label: &str| label >= token.cluster.as_str() && !labels.iter().any(|known| known == label);
        let is_kept = match first.seq(index.id()) {
            Some(seq) => index.has_deletions_since(seq).await?,
            None => false,
        };
        if !is_kept || first.clusters().any(has_left) {
            if token.cluster.is_empty() {
                return Err(Error::Expired);
            }
            let now = Continue::at(&view.position(index).encode(), &token.cluster, &token.after(), list);
            return Err(Error::ExpiredContinue(now.encode()));
        }
        clusters.retain(|cluster| cluster.as_str() >= token.cluster.as_str());
        // The snapshot lacks clusters that joined later. A watch from its version sends their objects.
        clusters.retain(|cluster| first.includes(&view.label(index, cluster)) && view.query(cluster).is_some());
        // If the token's cluster has left, the next cluster is read from its beginning.
        let after = |cluster: &ClusterName| match cluster.as_str() == token.cluster {
            true => token.after(),
            false => String::new(),
        };
        let parts = clusters.into_iter().map(|cluster| Part { after: after(&cluster), cluster }).collect();
        Ok(Self { version: first, parts, is_earlier: true })
    }
}

/// Position of an object within its cluster.
fn position((namespace, name): (String, String)) -> String {
    format!("{namespace}/{name}")
}

impl Source for CachedClusters {
    type Item = Object;

    fn read(&mut self, part: &Part, want: usize) -> BoxFuture<'static, Result<Page<Object>, BoxError>> {
        let (index, view, seq, is_earlier) = (self.index.clone(), Arc::clone(&self.view), self.seq, self.is_earlier);
        let part = part.clone();
        Box::pin(async move {
            let Some(mut query) = view.query(&part.cluster) else {
                return Ok(Page { items: Vec::new(), next: None, end: None });
            };
            query.after = part.after.split_once('/').map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
            let mut page = match is_earlier {
                true => index.page_of_snapshot(&query, want.min(CHUNK), seq).await?,
                false => index.page_as_of(&query, want.min(CHUNK), seq).await?,
            };
            page.objects.retain(|object| view.allows(&object.record));
            let end = page
                .objects
                .last()
                .map(|Object { record, .. }| position((record.key.namespace.to_string(), record.key.name.to_string())));
            Ok(Page { items: page.objects, next: page.next.map(position), end })
        })
    }

    /// Selective lists read little of each cluster, and there may be many clusters, so several are read ahead.
    fn clusters_ahead(&self) -> usize {
        if self.view.is_narrow() { CLUSTERS_AHEAD } else { 0 }
    }

    fn length(&self, objects: &[Object]) -> usize {
        match self.shape {
            Shape::Objects(Form::Whole) => objects.iter().map(|object| object.body.len() + MARK).sum(),
            _ => 0,
        }
    }

    fn write(&mut self, object: &Object, out: &mut Vec<u8>) -> Result<(), Error> {
        let record = &object.record;
        let cluster = record.key.cluster();
        let version = version_of(&self.index, record, self.view.portion(cluster));
        match self.shape {
            Shape::Objects(form) => write_marked(&object.body, cluster.as_str(), Some(&version), form, out)?,
            Shape::Table(table) => out.extend_from_slice(&row(object, &version, table, self.now)?),
        }
        Ok(())
    }

    fn leave_out(&mut self, _part: &Part, error: BoxError) -> Result<(), BoxError> {
        Err(error)
    }

    fn trailing_fields(&self, mut metadata: Value) -> Value {
        if !self.incomplete.is_empty() {
            metadata["incompleteClusters"] = Value::Array(self.incomplete.clone());
        }
        self.heading.trailing_fields(self.shape, metadata)
    }
}
