//! The process under test: runs the cache and answers requests, one JSON line each, on a port that it prints.

use crate::members::{TOKEN, name};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{
    CacheOptions, GlobalCache, Hit, ListQuery, Object, PostgresOptions, SearchRequest, StoreOptions,
};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_store::ingest;
use crowsnest_store::{Clusters, Interest, InterestReason, Interests, Namespaces};
use futures::TryStreamExt;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Start options.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    pub control_plane: String,
    /// None: SQLite in `directory`.
    pub database: Option<String>,
    /// None: a new name.
    pub replica: Option<String>,
    pub directory: PathBuf,
    /// Offset of its clock.
    pub skew_ms: i64,
}

/// State of the process, as far as the test waits for it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Status {
    /// Reason why it is not ready.
    pub unready: Option<String>,
    pub seq: u64,
    pub searchable: u64,
    pub lists: u64,
    /// cluster, resource, resourceVersion reached, complete, reason why it is not followed.
    pub collections: Vec<(String, String, String, bool, Option<String>)>,
}

/// One object of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedObject {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub body: String,
    /// The columns derived from the body, as text.
    pub columns: String,
}

/// Result of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// cluster/resource/namespace/name, in order.
    pub hits: Vec<String>,
    /// Total as counted by the text index.
    pub total: u64,
    pub skipped: Vec<String>,
}

/// Collected resources.
pub fn resources() -> [Gvr; 3] {
    [
        Gvr::new("", "v1", "configmaps"),
        Gvr::new("", "v1", "pods"),
        Gvr::new("scheduling.k8s.io", "v1", "priorityclasses"),
    ]
}

/// The columns of a draft, in the same text form as those of a stored record.
pub fn columns_of(draft: &ingest::Draft) -> String {
    let ingest::Draft { generation, created, deleting, labels, details, redacted, .. } = draft;
    format!("{:?}", (generation, created, deleting, labels, &details.owners, &details.printed, redacted))
}

static SKEW: AtomicI64 = AtomicI64::new(0);

fn clock() -> i64 {
    jiff::Timestamp::now().as_millisecond() + SKEW.load(Ordering::Relaxed)
}

/// Runs until it is stopped or its parent process has ended.
pub async fn run(start: Start) {
    SKEW.store(start.skew_ms, Ordering::Relaxed);
    let mut config = kube::Config::new(start.control_plane.parse().unwrap());
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(TOKEN.to_owned().into());
    let fleet = Fleet::start(Client::try_from(config).unwrap(), FleetOptions::on_loopback()).await.unwrap();
    let mut options = CacheOptions::new(&start.directory);
    (options.collect_everything, options.collect_control_plane) = (false, false);
    options.clock = clock;
    // Small limits, so that few objects already cause several pages and expired readers.
    (options.page_size, options.tail_changes, options.text_commit_changes) = (7, 64, 20);
    options.text_commit_interval = Duration::from_millis(50);
    if let Some(database) = start.database {
        let replica = start.replica;
        options.store = StoreOptions::Postgres(PostgresOptions { replica, ..PostgresOptions::new(database) });
    }
    let declared = Interests::default();
    let interest = |resource| {
        let (clusters, namespaces, reason) =
            (Clusters::All, Namespaces::All, InterestReason::Other("the test".to_owned()));
        declared.declare(Interest { clusters, resource, namespaces, reason })
    };
    let _interests = resources().map(interest);
    let cache = GlobalCache::open_with(fleet.clone(), options, declared.clone()).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    let stop = CancellationToken::new();
    let parent = stop.clone();
    tokio::spawn(async move {
        // Nothing is ever written to stdin; it is closed when the parent ends.
        drop(tokio::io::stdin().read(&mut [0]).await);
        parent.cancel();
    });
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            () = stop.cancelled() => break,
        };
        let (cache, stop) = (cache.clone(), stop.clone());
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut command = String::new();
            if stream.read_line(&mut command).await.is_err() {
                return;
            }
            let command: Vec<String> = serde_json::from_str(&command).unwrap();
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let response = execute_command(&cache, &words, &stop).await.unwrap_or_else(|error| json!({"error": error}));
            // The client may have timed out.
            drop(stream.get_mut().write_all(response.to_string().as_bytes()).await);
        });
    }
    cache.stop().await;
    fleet.stop().await;
}

async fn execute_command(cache: &GlobalCache, command: &[&str], stop: &CancellationToken) -> Result<Value, String> {
    Ok(match command {
        ["status"] => json!(status(cache)),
        ["list", cluster, resource] => {
            let resource = resources().into_iter().find(|known| &*known.resource == *resource).unwrap();
            let query = ListQuery::new(name(cluster), resource);
            let objects: Vec<Object> = cache.list(query).try_collect().await.map_err(|error| error.chain())?;
            json!(objects.iter().map(list_item).collect::<Vec<_>>())
        }
        ["search", queries @ ..] => {
            let mut found = BTreeMap::new();
            for query in queries {
                found.insert(*query, search(cache, query).await?);
            }
            json!(found)
        }
        ["abort", worker] => json!(cache.abort_worker(worker)),
        ["stop"] => {
            stop.cancel();
            json!(true)
        }
        other => return Err(format!("unknown request: {other:?}")),
    })
}

fn status(cache: &GlobalCache) -> Status {
    let collection = |(key, state): (crowsnest_index::CollectionKey, crowsnest_index::CollectionState)| {
        let resource = key.resource.resource.to_string();
        (key.cluster.to_string(), resource, state.resource_version, state.complete, state.stale_reason)
    };
    Status {
        unready: cache.check_ready().err(),
        seq: cache.seq().0,
        searchable: cache.searcher().searchable().borrow().0,
        lists: cache.metrics().lists.get(),
        collections: cache.states().into_iter().map(collection).collect(),
    }
}

fn list_item(object: &Object) -> ListedObject {
    let record = &object.record;
    let columns = (
        &record.generation,
        &record.created,
        &record.deleting,
        &record.labels,
        record.owners().unwrap(),
        record.printed_object().unwrap(),
        &record.redacted,
    );
    ListedObject {
        namespace: record.key.namespace.to_string(),
        name: record.key.name.to_string(),
        uid: record.uid.clone(),
        resource_version: record.resource_version.clone(),
        body: String::from_utf8(object.body.to_vec()).unwrap(),
        columns: format!("{columns:?}"),
    }
}

async fn search(cache: &GlobalCache, query: &str) -> Result<SearchResult, String> {
    let request = SearchRequest::new(query, UserInfo::system()).with_limit(1000);
    let response = cache.searcher().search_all(request).await.map_err(|error| error.chain())?;
    let text = |hit: &Hit| {
        let key = &hit.object.record.key;
        format!("{}/{}/{}/{}", key.cluster(), key.resource().resource, key.namespace, key.name)
    };
    let mut hits: Vec<String> = response.hits.iter().map(text).collect();
    hits.sort();
    let skipped = response.skipped.iter().map(|skipped| format!("{}: {}", skipped.cluster, skipped.reason)).collect();
    Ok(SearchResult { hits, total: response.summary.map_or(0, |summary| summary.total), skipped })
}
