//! `crowsnest bench graph`: measures a graph sink with synthetic pods and an empty Neo4j database: the first load, the
//! lag while pods change, and the time to catch up after the database was unreachable. The graph is compared with the
//! cache at the end.
//!
//! The sink runs as in the controller, with the permissions of a user that are evaluated in every member.

mod comparison;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_graph::bolt::parse_address;
use crowsnest_graph::{
    Bolt, BoltTarget, CacheVisibility, GraphSink, SinkConfig, SinkOptions, SinkProgress, SinkSource, SinkState,
};
use crowsnest_index::{Follower, GlobalCache};
use crowsnest_search::matching::StandingQuery;
use serde::Deserialize;
use tokio::sync::watch;

use self::comparison::Comparison;
use super::super::cache_options::CacheOptionsArgs;
use super::cache::MeasurementPrinter;
use super::environment::{BenchEnvironment, PodArgs, set_churn, stop, wait_until_complete};
use super::forwarder::Forwarder;
use super::scratch::ScratchArgs;

/// Time limit of each wait for the sink.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(900);
/// Interval between two samples of the memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Context of errors while counting.
const COUNT_CONTEXT: &str = "cannot count in the graph database";
const COUNT_ALL: &str = "MATCH (n) RETURN count(n) AS count";
const COUNT_NODES: &str = "MATCH (n:Resource) RETURN count(n) AS count";
const COUNT_EDGES: &str = "MATCH (:Resource)-[e]->(:Resource) RETURN count(e) AS count";

#[derive(Debug, Clone, Args)]
pub(super) struct GraphArgs {
    /// Address of an empty Neo4j database without authentication: bolt://HOST:PORT
    #[arg(long, value_name = "URL")]
    address: String,
    #[command(flatten)]
    pods: PodArgs,
    /// Changes per second while the lag is measured, and while the database is unreachable
    #[arg(long, default_value_t = 500.0, value_name = "N")]
    churn: f64,
    /// Duration of the lag measurement, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Duration of a subsequent database outage, in seconds, at least 10 [default: not measured]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..))]
    absent: Option<u64>,
    #[command(flatten)]
    cache: CacheOptionsArgs,
}

pub(super) async fn run(args: &GraphArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(args.churn > 0.0, "--churn must be more than 0");
    let database = Bolt::new(&target(&args.address))?;
    ensure!(count(&database, COUNT_ALL).await? == 0, "the database at {} is not empty; start a new one", args.address);
    let forwarder = if args.absent.is_some() { Some(start_forwarder(&args.address).await?) } else { None };
    let environment = BenchEnvironment::start(&args.pods, scratch).await?;
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    printer.print("graph/objects", args.pods.pods as f64, "")?;
    let (cache, interest) = environment.open(&args.cache).await?;
    wait_until_complete(&cache, args.pods.clusters).await?;
    // Changes increase the memory of the cache even without a sink, so the sink's memory is measured relative to it.
    let members = environment.members.address.as_str();
    let changes = change_pods(members, args.churn, Duration::from_secs(args.seconds));
    let ((), memory_during_changes) = with_peak_memory(changes).await?;
    super::wait_until_idle().await?;
    let memory_before = super::resident_bytes()?;
    printer.print_megabytes("graph/rss-before", memory_before)?;
    printer.print_megabytes("graph/rss-before-churn", memory_during_changes)?;

    let address = match &forwarder {
        Some(forwarder) => format!("bolt://{}", forwarder.address()),
        None => args.address.clone(),
    };
    let start = Instant::now();
    let sink = RunningSink::start(&cache, &address)?;
    let (_, peak) = with_peak_memory(sink.wait_until_caught_up(&cache)).await?;
    printer.print("graph/loaded", start.elapsed().as_secs_f64(), "s")?;
    printer.print_megabytes("graph/rss-loaded", peak.saturating_sub(memory_before))?;
    printer.print("graph/nodes", count(&database, COUNT_NODES).await? as f64, "")?;
    printer.print("graph/edges", count(&database, COUNT_EDGES).await? as f64, "")?;

    let (lags, peak) = with_peak_memory(measure_lags(&cache, &sink, members, args)).await?;
    ensure!(!lags.is_empty(), "no change was written to the graph");
    printer.print("graph/churn/changes", lags.len() as f64 / args.seconds as f64, "changes/s")?;
    printer.print_percentiles("graph/churn/lag", lags)?;
    printer.print_megabytes("graph/churn/rss", peak.saturating_sub(memory_during_changes))?;

    if let (Some(outage), Some(forwarder)) = (args.absent.map(Duration::from_secs), &forwarder) {
        let loads = sink.sink.progress().counters.loads;
        let measurement = measure_outage(&cache, &sink, forwarder, members, (args.churn, outage));
        let (caught_up, peak) = with_peak_memory(measurement).await?;
        printer.print("graph/absent/caught-up", caught_up.as_secs_f64(), "s")?;
        printer.print("graph/absent/loads", sink.sink.progress().counters.loads.saturating_sub(loads) as f64, "")?;
        printer.print_megabytes("graph/absent/rss", peak.saturating_sub(memory_during_changes))?;
    }
    let comparison = compare(&cache, &sink, &database).await?;
    printer.print("graph/equal", comparison.equal_percent(), "%")?;
    comparison.check()?;
    sink.tasks.stop().await;
    if let Some(forwarder) = forwarder {
        forwarder.stop().await;
    }
    stop(cache, interest).await;
    environment.stop().await
}

/// A database without authentication.
fn target(address: &str) -> BoltTarget {
    BoltTarget {
        address: address.to_owned(),
        username: String::new(),
        password: String::new(),
        database: String::new(),
        ca_certificates: None,
    }
}

async fn start_forwarder(address: &str) -> anyhow::Result<Forwarder> {
    let address = parse_address(address)?;
    ensure!(!address.has_tls, "--absent requires a database without TLS");
    Forwarder::start(address.host, address.port).await
}

#[derive(Deserialize)]
struct CountRow {
    count: u64,
}

/// Runs a statement that returns a count.
async fn count(database: &Bolt, text: &str) -> anyhow::Result<u64> {
    let mut transaction = database.begin().await?;
    let rows: Vec<CountRow> = transaction.query(COUNT_CONTEXT, text, Vec::new()).await?;
    transaction.commit().await?;
    Ok(rows.first().context("the graph database returned no count")?.count)
}

/// Changes pods for `time`, with `churn` changes per second.
async fn change_pods(members: &str, churn: f64, time: Duration) -> anyhow::Result<()> {
    set_churn(members, churn).await?;
    tokio::time::sleep(time).await;
    set_churn(members, 0.0).await
}

/// A sink of the benchmark and its task.
struct RunningSink {
    sink: Arc<GraphSink>,
    tasks: Tasks,
}

impl RunningSink {
    fn start(cache: &GlobalCache, address: &str) -> anyhow::Result<Self> {
        let config = SinkConfig {
            name: "bench".to_owned(),
            target: target(address),
            selection: String::new(),
            is_stable: true,
            options: SinkOptions::default(),
        };
        let source = SinkSource {
            changes: cache.change_source(),
            states: cache.collection_states(),
            store_name: "bench".to_owned(),
            now_ms: cache.options().clock,
            rules: cache.options().references.clone(),
        };
        let reader = UserInfo::new("reader", ["system:authenticated"]);
        let visibility = CacheVisibility::new(cache.clone(), reader, StandingQuery::parse("")?);
        let sink = Arc::new(GraphSink::new(config, source, Arc::new(visibility)));
        let tasks = Tasks::default();
        let (task_sink, stop) = (Arc::clone(&sink), tasks.stop_token().clone());
        tasks.spawn_until_stop("graph sink", async move { task_sink.run(stop).await });
        Ok(Self { sink, tasks })
    }

    /// Waits until the graph has all changes of the cache, and returns the sequence number of the last one.
    async fn wait_until_caught_up(&self, cache: &GlobalCache) -> anyhow::Result<u64> {
        let mut progress = self.sink.watch();
        loop {
            let latest = cache.seq().0;
            let has_caught_up =
                |progress: &SinkProgress| progress.state == SinkState::Following && progress.position >= latest;
            let caught_up = async { progress.wait_for(has_caught_up).await.map(drop) };
            let result = tokio::time::timeout(CATCH_UP_TIMEOUT, caught_up).await;
            let seconds = CATCH_UP_TIMEOUT.as_secs();
            result.with_context(|| {
                format!("the sink did not catch up within {seconds} s: {:?}", self.sink.progress())
            })??;
            if cache.seq().0 == latest {
                return Ok(latest);
            }
        }
    }
}

/// Runs an operation; returns its result and the highest resident memory of this process during it, in bytes.
async fn with_peak_memory<T>(operation: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, u64)> {
    let mut operation = std::pin::pin!(operation);
    let (mut tick, mut peak) = (tokio::time::interval(SAMPLE_INTERVAL), 0);
    loop {
        let result = tokio::select! {
            result = &mut operation => Some(result?),
            _ = tick.tick() => None,
        };
        peak = super::resident_bytes()?.max(peak);
        if let Some(result) = result {
            return Ok((result, peak));
        }
    }
}

/// Changes that are not committed in the graph yet, and the lags of those that are.
#[derive(Default)]
struct Lags {
    /// Sequence number of each change and the time at which the store wrote it, in Unix milliseconds.
    pending: VecDeque<(u64, i64)>,
    lags: Vec<Duration>,
}

impl Lags {
    /// Records that the graph has all changes up to a sequence number, at a time in Unix milliseconds.
    fn commit(&mut self, position: u64, now_ms: i64) {
        while let Some((_, written_ms)) = self.pending.pop_front_if(|(seq, _)| *seq <= position) {
            let milliseconds = u64::try_from(now_ms.saturating_sub(written_ms)).unwrap_or_default();
            self.lags.push(Duration::from_millis(milliseconds));
        }
    }
}

/// Follows the cache and the sink. The sink publishes its position when the database has confirmed a transaction.
struct LagRecorder {
    follower: Follower,
    progress: watch::Receiver<SinkProgress>,
    lags: Lags,
}

impl LagRecorder {
    /// Waits for changes or for a transaction, and records them. Cancel-safe.
    async fn record_next(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            changes = self.follower.next() => {
                let changes = changes.context("the cache stopped")??;
                let pending = changes.iter().map(|change| (change.seq.0, change.object.record.changed_at));
                self.lags.pending.extend(pending);
            }
            changed = self.progress.changed() => changed.context("the sink stopped")?,
        }
        let position = self.progress.borrow_and_update().position;
        self.lags.commit(position, jiff::Timestamp::now().as_millisecond());
        Ok(())
    }

    /// Records changes and transactions for `time`.
    async fn record_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = tokio::time::Instant::now() + time;
        while let Ok(result) = tokio::time::timeout_at(end, self.record_next()).await {
            result?;
        }
        Ok(())
    }

    /// Records until the graph has all changes of the cache.
    async fn record_rest(&mut self, cache: &GlobalCache) -> anyhow::Result<()> {
        while !self.lags.pending.is_empty() || self.follower.since() < cache.seq() {
            self.record_next().await?;
        }
        Ok(())
    }
}

/// Changes pods, and returns the time from the write to the cache to the commit in the graph for each change.
async fn measure_lags(
    cache: &GlobalCache,
    sink: &RunningSink,
    members: &str,
    args: &GraphArgs,
) -> anyhow::Result<Vec<Duration>> {
    let follower = cache.follow(cache.seq());
    let mut recorder = LagRecorder { follower, progress: sink.sink.watch(), lags: Lags::default() };
    set_churn(members, args.churn).await?;
    recorder.record_for(Duration::from_secs(args.seconds)).await?;
    set_churn(members, 0.0).await?;
    let rest = tokio::time::timeout(CATCH_UP_TIMEOUT, recorder.record_rest(cache)).await;
    rest.context("the changes were not written to the graph")??;
    Ok(recorder.lags.lags)
}

/// Makes the database unreachable for `outage` while pods change. Returns the time from the end of the outage until
/// the graph has all changes.
async fn measure_outage(
    cache: &GlobalCache,
    sink: &RunningSink,
    forwarder: &Forwarder,
    members: &str,
    (churn, outage): (f64, Duration),
) -> anyhow::Result<Duration> {
    let failures = sink.sink.progress().counters.failures;
    forwarder.close();
    change_pods(members, churn, outage).await?;
    ensure!(
        sink.sink.progress().counters.failures > failures,
        "the sink did not notice that the database is unreachable"
    );
    forwarder.open();
    let start = Instant::now();
    sink.wait_until_caught_up(cache).await?;
    Ok(start.elapsed())
}

/// Compares the graph with the cache after the graph has all changes; repeats this if the cache changes.
async fn compare(cache: &GlobalCache, sink: &RunningSink, database: &Bolt) -> anyhow::Result<Comparison> {
    loop {
        let seq = sink.wait_until_caught_up(cache).await?;
        let comparison = comparison::compare(cache, database).await?;
        if cache.seq().0 == seq {
            return Ok(comparison);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::nothing_committed(4, &[])]
    #[case::some(6, &[300, 200])]
    #[case::all(9, &[300, 200, 100])]
    fn lags_are_those_of_the_committed_changes(#[case] position: u64, #[case] expected: &[u64]) {
        let pending = VecDeque::from([(5, 1_000), (6, 1_100), (8, 1_200)]);
        let mut lags = Lags { pending, ..Lags::default() };
        lags.commit(position, 1_300);
        let expected: Vec<Duration> = expected.iter().copied().map(Duration::from_millis).collect();
        assert_eq!((lags.pending.len(), lags.lags), (3 - expected.len(), expected));
    }

    #[tokio::test]
    async fn the_peak_memory_is_that_of_the_process() {
        let (result, peak) = with_peak_memory(async { Ok(7) }).await.unwrap();
        assert_eq!(result, 7);
        assert!(peak > 0);
        assert!(with_peak_memory::<()>(async { Err(anyhow::anyhow!("failed")) }).await.is_err());
    }
}
