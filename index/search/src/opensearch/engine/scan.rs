//! All hits as of one moment: a point in time of the engine, read page by page.

use super::{DEFAULT_TIMEOUT, Failure, OpenSearchEngine, timeout};
use crate::collect::TopHitsRequest;
use crate::engine::{Scan, SearchContext};
use crate::opensearch::client::{Client, Distribution, Request};
use crate::opensearch::order::Order;
use crate::opensearch::request::{MAX_PAGE, Search};
use crate::opensearch::response::{Page, ResponseError};
use crate::plan::predicate::Match;
use crate::plan::sort::RankedHit;
use async_trait::async_trait;
use crowsnest_store::{Error, Seq};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Lifetime of a point in time after its last page; longer than exports wait for a slow reader.
const KEEP_ALIVE: &str = "6m";

impl OpenSearchEngine {
    pub(super) async fn begin_scan(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<Box<dyn Scan>, Failure> {
        let condition = self.condition(context, matches).await?;
        if condition.incomplete {
            return Err(Failure::Incomplete);
        }
        let order = Order::new(&request.sort, &request.planning_context)?;
        let search = Search {
            matches: &condition.matches,
            permissions: Some(&condition.permissions),
            order: &order,
            after: request.after.as_ref(),
            max_hits: 0,
            counts: &[],
            timeout: timeout(context.deadline),
        };
        let mut body = search.body()?;
        body["track_total_hits"] = false.into();
        // Read before the point in time is opened, so that the point in time has at least these changes.
        let seq = *self.searchable.borrow();
        let distribution = match self.client.server() {
            Some(server) => server.distribution,
            None => self.client.detect().await?.distribution,
        };
        // Elasticsearch appends a column (`_shard_doc`) to the order.
        let extra_values = usize::from(distribution == Distribution::Elasticsearch);
        if extra_values > 0
            && let Some(after) = body.get_mut("search_after").and_then(Value::as_array_mut)
        {
            after.push(i64::MAX.into());
        }
        let opened = self.search(&open_path(distribution), &Value::Null, context.deadline).await?;
        let OpenedPointInTime { id } = serde_json::from_slice(&opened)?;
        let point = PointInTime { id, close_sender: self.close_sender.clone() };
        let client = Arc::clone(&self.client);
        let reader =
            PageReader { client, point, body, order, extra_values, remaining: request.max_hits, has_ended: false };
        Ok(Box::new(OpenSearchScan { seq, reader: Some(reader) }))
    }
}

fn open_path(distribution: Distribution) -> String {
    match distribution {
        Distribution::OpenSearch => format!("/_search/point_in_time?keep_alive={KEEP_ALIVE}"),
        Distribution::Elasticsearch => format!("/_pit?keep_alive={KEEP_ALIVE}"),
    }
}

/// Closes a point in time.
pub(super) async fn close(client: &Client, id: &str) {
    let Some(server) = client.server() else { return };
    let (path, body) = match server.distribution {
        Distribution::OpenSearch => ("/_search/point_in_time", json!({"pit_id": [id]})),
        Distribution::Elasticsearch => ("/_pit", json!({ "id": id })),
    };
    if let Err(error) = client.send(&Request::new(Method::DELETE, path).json(body.to_string())).await {
        // The engine closes it at the end of its lifetime.
        tracing::debug!(error = error.chain(), "cannot close a point in time of the search engine");
    }
}

#[derive(Deserialize)]
struct OpenedPointInTime {
    #[serde(alias = "pit_id")]
    id: String,
}

/// A point in time; it is closed when dropped.
#[derive(Debug)]
struct PointInTime {
    id: String,
    close_sender: mpsc::Sender<String>,
}

impl Drop for PointInTime {
    fn drop(&mut self) {
        // If the queue is full, the engine closes it after its lifetime.
        drop(self.close_sender.try_send(std::mem::take(&mut self.id)));
    }
}

/// Reads the hits of a point in time page by page.
#[derive(Debug)]
struct PageReader {
    client: Arc<Client>,
    point: PointInTime,
    /// The next request, without its size.
    body: Value,
    order: Order,
    /// Number of sort values that the engine appends to those of the order.
    extra_values: usize,
    /// Number of hits until the limit.
    remaining: usize,
    has_ended: bool,
}

#[derive(Debug)]
struct OpenSearchScan {
    seq: Seq,
    /// None while a page is read, and after an error.
    reader: Option<PageReader>,
}

#[async_trait]
impl Scan for OpenSearchScan {
    fn seq(&self) -> Seq {
        self.seq
    }

    async fn next(&mut self, limit: usize) -> Result<Vec<RankedHit>, Error> {
        let mut reader = self.reader.take().ok_or(Error::Stopped)?;
        let hits = reader.next(limit).await.map_err(Failure::into_error)?;
        self.reader = Some(reader);
        Ok(hits)
    }
}

impl PageReader {
    async fn next(&mut self, limit: usize) -> Result<Vec<RankedHit>, Failure> {
        let size = limit.min(self.remaining).min(MAX_PAGE);
        if size == 0 || self.has_ended {
            return Ok(Vec::new());
        }
        self.body["size"] = size.into();
        self.body["timeout"] = format!("{}ms", timeout(Instant::now() + DEFAULT_TIMEOUT).as_millis()).into();
        self.body["pit"] = json!({"id": self.point.id, "keep_alive": KEEP_ALIVE});
        let request = Request::new(Method::POST, "/_search").json(self.body.to_string());
        let response = self.client.send(&Request { timeout: Some(DEFAULT_TIMEOUT), ..request }).await?;
        let page = Page::parse(&response.body)?;
        if let Some(partial) = page.partial.into_iter().next() {
            return Err(Failure::Partial(partial));
        }
        if let Some(id) = page.point_in_time {
            self.point.id = id;
        }
        self.has_ended = page.hits.len() < size;
        if let Some(last) = page.hits.last() {
            self.body["search_after"] = last.sort.as_slice().into();
        }
        let mut hits = Vec::with_capacity(page.hits.len());
        for hit in &page.hits {
            let position = hit.sort.len().checked_sub(self.extra_values).and_then(|length| hit.sort.get(..length));
            let position = position.ok_or(ResponseError::Missing("the sort values of a hit"))?;
            hits.push(self.order.parse_hit(hit.score, position)?);
        }
        self.remaining -= hits.len();
        Ok(hits)
    }
}
