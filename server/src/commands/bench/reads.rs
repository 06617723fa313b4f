//! Reads of the benchmark's cache: lists through the fleet-wide proxy, searches, and the change stream.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{ChangeKind, GlobalCache, SearchRequest, Seq};
use crowsnest_proxy::{Body, Proxy};
use http::Request;
use http_body_util::{BodyExt, Empty};

use super::cache::MeasurementPrinter;
use super::pods::{CHANGED_AT, Pods, namespace};

/// Number of pods above which the list of all pods is not measured.
const MAX_FULL_LIST: usize = 200_000;

pub(super) const QUERIES: [&str; 8] = [
    "kind:pod status:CrashLoopBackOff",
    "app-42",
    "namespace:team-7 restarts:>3",
    "image:app-13 -status:Running",
    "label:tier=t1 node:node-17",
    "\"setting 3\"",
    "cluster:bench0 kind:pod sort:-restarts",
    "back-off failed",
];

/// A user with permissions in every member.
pub(super) fn reader() -> UserInfo {
    UserInfo::new("reader", ["system:authenticated"])
}

pub(super) fn search_request(query: &str, caller: UserInfo) -> SearchRequest {
    SearchRequest::new(query, caller).with_limit(20)
}

/// Lists objects, reading the response chunk by chunk, and returns its size in bytes.
async fn list(proxy: &Proxy, path: &str) -> anyhow::Result<usize> {
    let request = Request::get(format!("/{path}")).body(Body::new(Empty::<Bytes>::new().map_err(|e| match e {})))?;
    let (path, _) = path.split_once('?').unwrap_or((path, ""));
    let response = proxy.fleet_wide(&UserInfo::system(), path, request).await;
    let status = response.status();
    let (mut body, mut bytes) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        bytes += frame.map_err(anyhow::Error::from_boxed)?.data_ref().map_or(0, Bytes::len);
    }
    ensure!(status.is_success(), "GET {path}: {status}");
    Ok(bytes)
}

pub(super) async fn measure_lists(
    proxy: &Proxy,
    pods: usize,
    times: usize,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    if pods <= MAX_FULL_LIST {
        for _ in 0..2 {
            let start = Instant::now();
            list(proxy, "api/v1/pods").await?;
            printer.print_milliseconds("cache/list-all", start.elapsed())?;
        }
    }
    let (mut pages, mut narrow) = (Vec::new(), Vec::new());
    let names = Pods { fleet_pods: pods, bytes: 0 };
    for nth in 0..times {
        let start = Instant::now();
        list(proxy, "api/v1/pods?limit=500").await?;
        pages.push(start.elapsed());
        let (app, namespace) = (names.app(nth), namespace(nth));
        let path = format!("api/v1/namespaces/{namespace}/pods?labelSelector=app%3Dapp-{app}");
        let start = Instant::now();
        list(proxy, &path).await?;
        narrow.push(start.elapsed());
    }
    printer.print_percentiles("cache/list-500", pages)?;
    printer.print_percentiles("cache/namespace-and-label", narrow)
}

/// Measures searches of a user with permissions in every member; prints the slowest query.
pub(super) async fn measure_searches(
    cache: &GlobalCache,
    name: &str,
    times: usize,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let reader = reader();
    let mut durations = Vec::with_capacity(times);
    let mut slowest = (Duration::ZERO, "");
    for query in (0..times).map(|nth| QUERIES[nth % QUERIES.len()]) {
        let start = Instant::now();
        let response = cache.searcher().search_all(search_request(query, reader.clone())).await?;
        let duration = start.elapsed();
        ensure!(response.summary.is_some_and(|summary| !summary.incomplete), "{query} timed out");
        slowest = slowest.max((duration, query));
        durations.push(duration);
    }
    printer.print_percentiles(name, durations)?;
    printer.print_milliseconds(&format!("{name}-slowest[{}]", slowest.1), slowest.0)
}

/// Measures the time from a change in a member to the change log, and to its commit in the text index.
pub(super) async fn measure_latencies(
    cache: GlobalCache,
    time: Duration,
) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut watch, mut text) = (Vec::new(), Vec::new());
    let (mut follower, mut searchable) = (cache.follow(cache.seq()), cache.searcher().searchable());
    let mut unsearchable: std::collections::VecDeque<(Seq, i64)> = std::collections::VecDeque::new();
    let end = tokio::time::Instant::now() + time;
    loop {
        let now_us = || jiff::Timestamp::now().as_microsecond();
        let since = |at: i64| Duration::from_micros(now_us().saturating_sub(at).max(0) as u64);
        tokio::select! {
            () = tokio::time::sleep_until(end) => return Ok((watch, text)),
            changes = follower.next() => {
                let Some(changes) = changes else { return Ok((watch, text)) };
                for change in changes? {
                    // A deleted object has its old annotation. (Synthetic pods may share a name and replace each
                    // other.)
                    let stays = change.kind != ChangeKind::Deleted;
                    let Some(at) = changed_at(&change.object.body).filter(|_| stays) else { continue };
                    watch.push(since(at));
                    unsearchable.push_back((change.seq, at));
                }
            }
            moved = searchable.changed() => {
                moved?;
                let reached = *searchable.borrow_and_update();
                while let Some((_, at)) = unsearchable.pop_front_if(|(seq, _)| *seq <= reached) {
                    text.push(since(at));
                }
            }
        }
    }
}

pub(super) fn changed_at(body: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once(CHANGED_AT)?;
    rest.strip_prefix("\":\"")?.split('"').next()?.parse().ok().filter(|at| *at > 0)
}
