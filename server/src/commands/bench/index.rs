//! `crowsnest bench index`: measures the index of a search backend with synthetic pods, from the first list to searches
//! while pods change.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use crowsnest_index::{CacheOptions, GlobalCache};
use crowsnest_search::opensearch::client::{Client, ClientOptions, Request};
use http::Method;
use serde_json::Value;

use super::super::cache_options::CacheOptionsArgs;
use super::cache::{MeasurementPrinter, folder_bytes};
use super::environment::{BenchEnvironment, PodArgs, set_churn, stop, wait_until_complete};
use super::reads::{self, QUERIES};
use super::scratch::ScratchArgs;

/// Time for the engine to merge the index.
const MERGE_TIMEOUT: Duration = Duration::from_secs(300);
/// Poll interval and time limit for the expiry of retention leases, which the engine renews every 30 s.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const LEASE_EXPIRY_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Args)]
pub(super) struct IndexArgs {
    #[command(flatten)]
    pods: PodArgs,
    /// Number of searches
    #[arg(long, default_value_t = 4000)]
    searches: usize,
    /// Changes per second while latencies are measured
    #[arg(long, default_value_t = 300.0, value_name = "N")]
    churn: f64,
    /// Duration of the changes, in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    #[command(flatten)]
    cache: CacheOptionsArgs,
}

pub(super) async fn run(args: &IndexArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    args.cache.backend.validate()?;
    let environment = BenchEnvironment::start(&args.pods, scratch).await?;
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    printer.print("index/objects", args.pods.pods as f64, "")?;
    printer.print_megabytes("index/rss-before", super::resident_bytes()?)?;

    let start = Instant::now();
    // A separate index, so that an installation on the same engine is not affected.
    let cache = args.cache.with_index_prefix(format!("crowsnest-bench-{}", std::process::id()));
    let (cache, interest) = environment.open(&cache).await?;
    wait_until_complete(&cache, args.pods.clusters).await?;
    let target = cache.seq();
    cache.searcher().searchable().wait_for(|seq| *seq >= target).await?;
    printer.print("index/searchable", start.elapsed().as_secs_f64(), "s")?;
    printer.print("index/indexed", args.pods.pods as f64 / start.elapsed().as_secs_f64(), "objects/s")?;
    printer.print_megabytes("index/rss-searchable", super::resident_bytes()?)?;
    let bytes = merged_size(cache.options(), environment.scratch.path()).await?;
    printer.print_megabytes("index/bytes", bytes)?;
    printer.print("index/bytes-each", bytes as f64 / args.pods.pods.max(1) as f64, "B/object")?;

    measure_searches(&cache, "index/search", args.searches, &mut printer).await?;
    printer.print_megabytes("index/rss-after-searches", super::resident_bytes()?)?;
    set_churn(&environment.members.address, args.churn).await?;
    let latencies = tokio::spawn(reads::measure_latencies(cache.clone(), Duration::from_secs(args.seconds)));
    measure_searches(&cache, "index/churn/search", args.searches, &mut printer).await?;
    let (watch_latencies, search_latencies) = latencies.await??;
    set_churn(&environment.members.address, 0.0).await?;
    printer.print("index/churn/changes", watch_latencies.len() as f64 / args.seconds.max(1) as f64, "changes/s")?;
    printer.print_percentiles("index/churn/change-to-search", search_latencies)?;
    printer.print_megabytes("index/churn/rss", super::resident_bytes()?)?;
    let options = cache.options().clone();
    stop(cache, interest).await;
    delete_index(&options).await?;
    environment.stop().await
}

/// Measures searches of a user with permissions in every member: total time, time spent waiting for an external engine,
/// and the rest.
async fn measure_searches(
    cache: &GlobalCache,
    name: &str,
    times: usize,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let engine_time = || Duration::from_micros(cache.metrics().text_query_microseconds.get());
    let reader = reads::reader();
    let (mut all, mut engine_times, mut own_times) = (Vec::new(), Vec::new(), Vec::new());
    for query in (0..times).map(|nth| QUERIES[nth % QUERIES.len()]) {
        let (start, before) = (Instant::now(), engine_time());
        let response = cache.searcher().search_all(reads::search_request(query, reader.clone())).await?;
        let (duration, engine) = (start.elapsed(), engine_time().saturating_sub(before));
        let summary = response.summary.with_context(|| format!("{query} has no summary"))?;
        ensure!(!summary.incomplete, "{query} timed out");
        all.push(duration);
        engine_times.push(engine);
        own_times.push(duration.saturating_sub(engine));
    }
    printer.print_percentiles(name, all)?;
    if cache.metrics().text_queries.get() > 0 {
        printer.print_percentiles(&format!("{name}/engine"), engine_times)?;
        printer.print_percentiles(&format!("{name}/own"), own_times)?;
    }
    Ok(())
}

/// Size of the index in bytes, after the engine merged it.
async fn merged_size(options: &CacheOptions, data_dir: &Path) -> anyhow::Result<u64> {
    if options.index_backend == "tantivy" {
        super::wait_until_idle().await?;
        return folder_bytes(&data_dir.join("text"));
    }
    let engine = &options.opensearch;
    let client = Client::new(ClientOptions::from_store_options(engine)?).await?;
    let alias = &engine.index_prefix;
    let post = async |operation: &str| {
        let request = Request::new(Method::POST, format!("/{alias}/{operation}"));
        client.send(&Request { timeout: Some(MERGE_TIMEOUT), ..request }).await
    };
    // A merge keeps what a recovery may need until the last commit is flushed.
    post("_flush?force=true").await?;
    let expired = wait_for_lease_expiry(&client, alias);
    tokio::time::timeout(LEASE_EXPIRY_TIMEOUT, expired)
        .await
        .context("the engine's retention leases did not expire")??;
    post("_forcemerge?max_num_segments=1").await?;
    post("_flush?force=true").await?;
    let response = client.send(&Request::get(format!("/{alias}/_stats/store"))).await?;
    let stats: Value = serde_json::from_slice(&response.body)?;
    match stats.pointer("/_all/primaries/store/size_in_bytes").and_then(Value::as_u64) {
        Some(bytes) => Ok(bytes),
        None => bail!("the engine reports no index size"),
    }
}

async fn delete_index(options: &CacheOptions) -> anyhow::Result<()> {
    if options.index_backend != "tantivy" {
        let client = Client::new(ClientOptions::from_store_options(&options.opensearch)?).await?;
        let index = format!("/{}-000001", options.opensearch.index_prefix);
        client.send(&Request::new(Method::DELETE, index)).await?;
    }
    Ok(())
}

/// Waits until retention leases of lost copies have expired; merges keep deleted documents for them until then.
async fn wait_for_lease_expiry(client: &Client, alias: &str) -> anyhow::Result<()> {
    loop {
        let response = client.send(&Request::get(format!("/{alias}/_stats?level=shards"))).await?;
        let stats: Value = serde_json::from_slice(&response.body)?;
        let indices = stats["indices"].as_object().into_iter().flat_map(|indices| indices.values());
        let shards = indices.filter_map(|index| index["shards"].as_object()).flat_map(|shards| shards.values());
        let has_lease = |copy: &Value| {
            let checkpoint = copy["seq_no"]["global_checkpoint"].as_i64();
            let leases = copy["retention_leases"]["leases"].as_array().into_iter().flatten();
            leases.filter_map(|lease| lease["retaining_seq_no"].as_i64()).any(|from| Some(from) <= checkpoint)
        };
        if !shards.filter_map(|copies| copies.as_array()).flatten().any(has_lease) {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
