//! Benchmarks of the cache, for `crowsnest bench cache`: how fast objects go in, what they cost, how fast they come out.
//!
//! The objects are made here, one by one as they are taken in, and go through ingest, codec, store, tail and text index
//! as a member's would; only the network is missing.

use crate::collect::Shared;
use crate::ingest::{Expected, read};
use crate::record::CollectionKey;
use crate::store::codec::Codec;
use crate::store::sqlite::SqliteStore;
use crate::store::{Batch, Progress, Step, Store};
use crate::{Error, Index, IndexOptions, ListQuery, SearchRequest};
use crowsnest_api::names::{ClusterName, Gvr};
use crowsnest_api::user::UserInfo;
use crowsnest_fleet::Fleet;
use futures::TryStreamExt;
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much to put in.
#[derive(Debug, Clone)]
pub struct CacheBench {
    pub clusters: usize,
    pub pods: usize,
    /// About how large each pod is, in bytes of JSON.
    pub pod_bytes: usize,
    /// Searches and lists measured.
    pub reads: usize,
}

impl Default for CacheBench {
    fn default() -> Self {
        Self { clusters: 3, pods: 30_000, pod_bytes: 9_500, reads: 50 }
    }
}

/// What came out. Times are milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct CacheFigures {
    pub objects: usize,
    pub stored_in_ms: f64,
    pub objects_per_second: f64,
    /// Until the last object could be searched.
    pub searchable_in_ms: f64,
    pub database_bytes: u64,
    /// Of the process: before, after the store has all, after the text index has all, after two full lists.
    pub rss_bytes: [u64; 4],
    /// Growth of RSS from before to the end, for each object.
    pub rss_bytes_per_object: f64,
    pub list_all_ms: f64,
    pub list_500_p50_ms: f64,
    pub namespace_and_label_p50_ms: f64,
    pub search_p50_ms: f64,
    pub search_p99_ms: f64,
}

const NAMESPACES: usize = 50;
const BATCH: usize = 500;

/// Runs against a cache of its own in the given data directory, without collectors.
pub async fn run(options: IndexOptions, bench: &CacheBench) -> Result<CacheFigures, Error> {
    let nowhere = kube::Config::new(http::Uri::from_static("http://127.0.0.1:1"));
    let client = kube::Client::try_from(nowhere).map_err(|e| crowsnest_fleet::Error::kube("preparing a client", e))?;
    let codec = Arc::new(Codec::default());
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&options, Arc::clone(&codec)).await?);
    let index = Index::with_store(Fleet::detached(client), options, store, None, codec, false).await?;
    let figures = measure(&index, bench).await;
    index.stop().await;
    figures
}

async fn measure(index: &Index, bench: &CacheBench) -> Result<CacheFigures, Error> {
    let before = rss();
    let started = Instant::now();
    let clusters = bench.clusters.max(1);
    for cluster in 0..clusters {
        let pods = (cluster..bench.pods).step_by(clusters);
        fill(&index.inner.shared, &cluster_name(cluster)?, pods, bench.pod_bytes).await?;
    }
    let stored = started.elapsed();
    let stored_rss = rss();
    let mut searchable = index.searchable();
    let target = index.seq();
    searchable.wait_for(|seq| *seq >= target).await.map_err(|_| Error::Stopped)?;
    let all_searchable = started.elapsed();
    let searchable_rss = rss();
    let list_all = list_everything(index, clusters).await?;
    list_everything(index, clusters).await?;
    let listed_rss = rss();
    let (list_500, narrow) = lists(index, bench.reads).await?;
    let searches = searches(index, bench.reads).await?;
    let per_second = bench.pods as f64 / stored.as_secs_f64();
    Ok(CacheFigures {
        objects: bench.pods,
        stored_in_ms: ms(stored),
        objects_per_second: per_second,
        searchable_in_ms: ms(all_searchable),
        database_bytes: index.size().await?.bytes,
        rss_bytes: [before, stored_rss, searchable_rss, listed_rss],
        rss_bytes_per_object: listed_rss.saturating_sub(before) as f64 / bench.pods.max(1) as f64,
        list_all_ms: ms(list_all),
        list_500_p50_ms: percentile(list_500, 0.5),
        namespace_and_label_p50_ms: percentile(narrow, 0.5),
        search_p50_ms: percentile(searches.clone(), 0.5),
        search_p99_ms: percentile(searches, 0.99),
    })
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn percentile(mut times: Vec<f64>, part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = ((times.len() as f64 * part).ceil() as usize).clamp(1, times.len().max(1)) - 1;
    times.get(at).copied().unwrap_or_default()
}

fn cluster_name(nth: usize) -> Result<ClusterName, Error> {
    ClusterName::parse(&format!("bench{nth}")).map_err(|error| Error::StoreFormat(error.to_string()))
}

fn pods() -> Gvr {
    Gvr::new("", "v1", "pods")
}

async fn fill(
    shared: &Arc<Shared>,
    cluster: &ClusterName,
    numbers: impl Iterator<Item = usize>,
    bytes: usize,
) -> Result<(), Error> {
    let key = CollectionKey::new(cluster.clone(), pods());
    let mut steps = Vec::with_capacity(BATCH);
    let mut numbers = numbers.peekable();
    while let Some(nth) = numbers.next() {
        let text = pod(nth, bytes);
        let expected = Expected { group: "", api_version: "v1", kind: "Pod" };
        let malformed = |source| Error::Decode { what: "benchmark pod".to_owned(), source };
        let raw: &RawValue = serde_json::from_str(&text).map_err(malformed)?;
        let draft = read(raw, expected, crate::ingest::Keep::default()).map_err(malformed)?;
        let (packed, training) = shared.codec.pack("/Pod", &draft.body)?;
        if let Some(set) = training {
            shared.writer.train(set);
        }
        steps.push(Step::Put(Box::new(draft), packed));
        if steps.len() == BATCH || numbers.peek().is_none() {
            let progress = Progress {
                resource_version: Some(nth.to_string()),
                kind: Some(("Pod".to_owned(), true)),
                complete: numbers.peek().is_none(),
                ..Progress::default()
            };
            let epoch = crate::Epoch::ALONE;
            let batch = Batch { collection: key.clone(), epoch, steps: std::mem::take(&mut steps), progress };
            if numbers.peek().is_none() {
                shared.writer.apply_and_wait(batch).await?;
            } else {
                shared.writer.apply(batch).await?;
            }
        }
    }
    Ok(())
}

/// A pod that looks like its neighbours and differs where pods differ.
fn pod(nth: usize, bytes: usize) -> String {
    let app = nth % 97;
    let mut hash = nth as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut random = || {
        hash ^= hash << 13;
        hash ^= hash >> 7;
        hash ^= hash << 17;
        hash
    };
    let uid = format!("{:08x}-{:04x}-4000-8000-{nth:012x}", random() as u32, random() as u16);
    let mut environment = String::new();
    let head = 1400;
    let mut n = 0;
    while environment.len() + head < bytes {
        if n > 0 {
            environment.push(',');
        }
        environment.push_str(&format!(
            r#"{{"name":"SETTING_{n}","value":"app-{app} setting {n} of {}, token {:016x}"}}"#,
            nth % 7,
            random()
        ));
        n += 1;
    }
    let ready = !nth.is_multiple_of(50);
    let state = if ready {
        r#"{"running":{"startedAt":"2026-09-21T10:00:05Z"}}"#
    } else {
        r#"{"waiting":{"reason":"CrashLoopBackOff","message":"back-off restarting failed container"}}"#
    };
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"app-{app}-{nth}","namespace":"team-{}","uid":"{uid}","resourceVersion":"{}","creationTimestamp":"2026-09-21T10:00:00Z","labels":{{"app":"app-{app}","tier":"t{}","pod-template-hash":"{:x}"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"app-{app}","uid":"{uid}","controller":true}}]}},"spec":{{"nodeName":"node-{}","serviceAccountName":"default","containers":[{{"name":"main","image":"registry.example/team/app-{app}:1.{}","resources":{{"requests":{{"cpu":"100m","memory":"128Mi"}}}},"env":[{environment}]}}]}},"status":{{"phase":"Running","podIP":"10.{}.{}.{}","conditions":[{{"type":"Ready","status":"{}"}}],"containerStatuses":[{{"name":"main","ready":{ready},"restartCount":{},"image":"registry.example/team/app-{app}:1.{}","state":{state}}}]}}}}"#,
        nth % NAMESPACES,
        nth + 1,
        nth % 3,
        random() as u32,
        nth % 500,
        nth % 20,
        nth >> 16 & 255,
        nth >> 8 & 255,
        nth & 255,
        if ready { "True" } else { "False" },
        if ready { 0 } else { 7 },
        nth % 20,
    )
}

async fn list_everything(index: &Index, clusters: usize) -> Result<Duration, Error> {
    let started = Instant::now();
    for cluster in 0..clusters {
        let objects = index.list(ListQuery::new(cluster_name(cluster)?, pods()));
        objects.try_fold(0, |bytes, object| async move { Ok(bytes + object.body.len()) }).await?;
    }
    Ok(started.elapsed())
}

async fn lists(index: &Index, times: usize) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let (mut pages, mut narrow) = (Vec::new(), Vec::new());
    for nth in 0..times {
        let started = Instant::now();
        index.page(&ListQuery::new(cluster_name(0)?, pods()), 500).await?;
        pages.push(ms(started.elapsed()));
        let label = crowsnest_api::selector::Selector::parse(&format!("app=app-{}", nth % 97));
        let label = label.map_err(|error| Error::StoreFormat(error.to_string()))?;
        let query = ListQuery::new(cluster_name(0)?, pods()).in_namespace(&format!("team-{}", nth % NAMESPACES));
        let started = Instant::now();
        index.page(&query.with_labels(label), 500).await?;
        narrow.push(ms(started.elapsed()));
    }
    Ok((pages, narrow))
}

async fn searches(index: &Index, times: usize) -> Result<Vec<f64>, Error> {
    let queries = [
        "kind:pod status:CrashLoopBackOff",
        "app-42",
        "namespace:team-7 restarts:>3",
        "image:app-13 -status:Running",
        "label:tier=t1 node:node-17",
        "\"setting 3\"",
        "cluster:bench0 kind:pod sort:-restarts",
    ];
    let mut took = Vec::with_capacity(times);
    for nth in 0..times {
        let request =
            SearchRequest { limit: Some(20), ..SearchRequest::new(queries[nth % queries.len()], UserInfo::system()) };
        let started = Instant::now();
        index.search_all(request).await?;
        took.push(ms(started.elapsed()));
    }
    Ok(took)
}

/// Resident memory of this process in bytes; 0 where the system does not tell.
pub fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_small_run_measures_everything() {
        let directory = tempfile::tempdir().unwrap();
        let bench = CacheBench { clusters: 2, pods: 300, pod_bytes: 3000, reads: 7 };
        let figures = run(IndexOptions::new(directory.path()), &bench).await.unwrap();
        assert!(figures.objects_per_second > 0.0 && figures.search_p99_ms >= figures.search_p50_ms);
        assert!(figures.list_all_ms > 0.0 && figures.database_bytes > 0, "{figures:?}");
    }
}
