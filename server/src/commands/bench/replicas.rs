//! `crowsnest bench replicas`: measures processes that share one Postgres: their throughput, the resources of each, and
//! the gap in a cluster's changes after its replica is killed.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use crowsnest_index::{CacheOptions, GlobalCache, PostgresOptions, StoreOptions};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_store::{Clusters, Interest, InterestReason, Interests, Namespaces};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

use super::super::serve::DatabaseUrl;
use super::cache::{MeasurementPrinter, folder_bytes};
use super::environment::{POD_BYTES, PodArgs, pods, register, set_churn, start_members, wait_until_complete};
use super::processes::{BenchProcess, stdin_lines, write_line};
use super::reads;
use super::scratch::ScratchArgs;

/// Environment variable with the Postgres URL for the replica processes.
const DATABASE_VARIABLE: &str = "CROWSNEST_DB";
/// Concurrent users per replica.
const USERS_PER_REPLICA: usize = 16;
/// Time after which a replica is killed.
const KILL_AFTER: Duration = Duration::from_secs(3);
/// Time for which the remaining replicas measure changes; it begins before the kill.
const FAILOVER_DURATION: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
pub(super) struct ReplicasArgs {
    /// Postgres URL of the cache; its existing content is deleted
    #[arg(long, env = DATABASE_VARIABLE, hide_env_values = true, value_name = "URL")]
    db: DatabaseUrl,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=16))]
    replicas: u32,
    /// Number of clusters for the pods
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clusters: u32,
    #[arg(long, default_value_t = 30_000)]
    pods: usize,
    /// Approximate size of each pod in bytes
    #[arg(long, default_value_t = POD_BYTES, value_name = "BYTES")]
    pod_bytes: usize,
    /// Changes per second while latencies are measured
    #[arg(long, default_value_t = 500.0, value_name = "N")]
    churn: f64,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// Resource usage of a replica, in bytes.
#[derive(Debug, Serialize, Deserialize)]
struct ResourceUsage {
    resident: u64,
    text_index: u64,
    database: u64,
}

/// Times from changes in members until a replica received them (`watch`), and until they were searchable (`text`).
#[derive(Debug, Default, Serialize, Deserialize)]
struct ChangeLatencies {
    watch: Vec<Duration>,
    text: Vec<Duration>,
}

pub(super) async fn run(args: &ReplicasArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let scratch = scratch.create()?;
    let (StoreOptions::Postgres(options), _) = args.db.store_options()? else { bail!("--db must be a Postgres URL") };
    crowsnest_index::check::delete_all(&StoreOptions::Postgres(options), None).await?;
    let members =
        start_members(&PodArgs { clusters: args.clusters, pods: args.pods, pod_bytes: args.pod_bytes }).await?;
    let control_plane = BenchProcess::start_server("control-plane", false).await?;
    let connection = control_plane.connection()?;
    register(&connection.client().await?, &members.address, args.clusters).await?;
    let kubeconfig = scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, &connection.kubeconfig)?;
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };

    let start = Instant::now();
    let starts = (0..args.replicas).map(|number| {
        let (dir, kubeconfig) = (scratch.path().join(number.to_string()), kubeconfig.clone());
        async move { BenchProcess::start_replica(&dir, &kubeconfig, (DATABASE_VARIABLE, args.db.reveal())).await }
    });
    let mut replicas = Replicas { processes: try_join_all(starts).await?, seconds: args.seconds };
    replicas.request(&format!("complete {}", args.clusters)).await?;
    printer.print_milliseconds("replicas/complete", start.elapsed())?;
    printer.print("replicas/ingest", args.pods as f64 / start.elapsed().as_secs_f64(), "objects/s")?;
    replicas.request("searchable").await?;
    printer.print_milliseconds("replicas/searchable", start.elapsed())?;
    replicas.print_resource_usage("replicas", &mut printer).await?;
    replicas.measure_searches("replicas", &mut printer).await?;

    set_churn(&members.address, args.churn).await?;
    replicas.measure_changes("replicas/churn", &mut printer).await?;
    replicas.measure_searches("replicas/churn", &mut printer).await?;
    replicas.print_resource_usage("replicas/churn", &mut printer).await?;
    let killed = replicas.processes.pop().context("no replica is left")?;
    let command = format!("changes {}", FAILOVER_DURATION.as_secs());
    let (_, reports) = tokio::try_join!(
        async {
            tokio::time::sleep(KILL_AFTER).await;
            killed.kill().await
        },
        replicas.request(&command),
    )?;
    set_churn(&members.address, 0.0).await?;
    let reports: Vec<ChangeLatencies> = parse_all(&reports)?;
    let longest = reports.iter().flat_map(|report| &report.watch).max().copied().unwrap_or_default();
    printer.print_milliseconds("replicas/killed/longest-silence", longest)?;
    for replica in replicas.processes {
        replica.stop().await?;
    }
    control_plane.stop().await
}

/// Parses the responses of all replicas.
fn parse_all<T: serde::de::DeserializeOwned>(lines: &[String]) -> anyhow::Result<Vec<T>> {
    Ok(lines.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?)
}

/// The replicas, and the duration of each measurement in seconds.
struct Replicas {
    processes: Vec<BenchProcess>,
    seconds: u64,
}

impl Replicas {
    /// Sends a request to all replicas concurrently.
    async fn request(&mut self, line: &str) -> anyhow::Result<Vec<String>> {
        try_join_all(self.processes.iter_mut().map(|replica| replica.request(line))).await
    }

    /// Prints the maximum resource usage over all replicas.
    async fn print_resource_usage(
        &mut self,
        name: &str,
        printer: &mut MeasurementPrinter<impl Write>,
    ) -> anyhow::Result<()> {
        let reports: Vec<ResourceUsage> = parse_all(&self.request("usage").await?)?;
        let max = |field: fn(&ResourceUsage) -> u64| reports.iter().map(field).max().unwrap_or_default();
        printer.print_megabytes(&format!("{name}/rss"), max(|usage| usage.resident))?;
        printer.print_megabytes(&format!("{name}/text-index"), max(|usage| usage.text_index))?;
        printer.print_megabytes(&format!("{name}/database"), max(|usage| usage.database))
    }

    /// Measures the searches of concurrent users on all replicas.
    async fn measure_searches(
        &mut self,
        name: &str,
        printer: &mut MeasurementPrinter<impl Write>,
    ) -> anyhow::Result<()> {
        let latencies: Vec<Vec<Duration>> = parse_all(&self.request(&format!("searches {}", self.seconds)).await?)?;
        let all: Vec<Duration> = latencies.into_iter().flatten().collect();
        let name = format!("{name}/users-{}", USERS_PER_REPLICA * self.processes.len());
        printer.print(&name, all.len() as f64 / self.seconds as f64, "answers/s")?;
        printer.print_percentiles(&name, all)
    }

    /// Measures the latencies of changes on all replicas.
    async fn measure_changes(
        &mut self,
        name: &str,
        printer: &mut MeasurementPrinter<impl Write>,
    ) -> anyhow::Result<()> {
        let reports: Vec<ChangeLatencies> = parse_all(&self.request(&format!("changes {}", self.seconds)).await?)?;
        let count = reports.len().max(1);
        let all = reports.into_iter().fold(ChangeLatencies::default(), |mut all, report| {
            all.watch.extend(report.watch);
            all.text.extend(report.text);
            all
        });
        printer.print(
            &format!("{name}/changes"),
            (all.watch.len() / count) as f64 / self.seconds as f64,
            "changes/s",
        )?;
        printer.print_percentiles(&format!("{name}/change-to-watch"), all.watch)?;
        printer.print_percentiles(&format!("{name}/change-to-text"), all.text)
    }
}

/// Runs a replica with its text index in `dir`.
pub(super) async fn run_replica(dir: &Path, kubeconfig: &Path, db: &DatabaseUrl) -> anyhow::Result<()> {
    let config = crowsnest_component_base::kubeconfig::load_config(Some(kubeconfig), None).await?;
    let fleet = Fleet::start(kube::Client::try_from(config)?, FleetOptions::on_loopback()).await?;
    let reason = InterestReason::ResourceRegistry("bench".to_owned());
    let interest = Interest { clusters: Clusters::All, resource: pods(), namespaces: Namespaces::All, reason };
    let (StoreOptions::Postgres(postgres), _) = db.store_options()? else {
        bail!("{DATABASE_VARIABLE} must be a Postgres URL")
    };
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let store = StoreOptions::Postgres(PostgresOptions { replica: name, ..postgres });
    let options = CacheOptions::new(dir);
    let options = CacheOptions { store, collect_everything: false, collect_control_plane: false, ..options };
    let interests = Interests::default();
    let interest = interests.declare(interest);
    let cache = GlobalCache::open_with(fleet, options, interests).await?;
    write_line("{}")?;
    let mut commands = stdin_lines();
    while let Some(line) = commands.next_line().await? {
        write_line(&execute(&cache, dir, &line).await.with_context(|| format!("request {line:?}"))?)?;
    }
    cache.stop().await;
    cache.fleet().stop().await;
    drop(interest);
    Ok(())
}

/// Executes a request of the parent process and returns the response.
async fn execute(cache: &GlobalCache, dir: &Path, line: &str) -> anyhow::Result<String> {
    let (command, number) = line.split_once(' ').unwrap_or((line, "0"));
    let number: u64 = number.parse()?;
    Ok(match command {
        "complete" => {
            wait_until_complete(cache, number as u32).await?;
            "{}".to_owned()
        }
        "searchable" => {
            let target = cache.seq();
            cache.searcher().searchable().wait_for(|seq| *seq >= target).await?;
            "{}".to_owned()
        }
        "usage" => serde_json::to_string(&ResourceUsage {
            resident: super::resident_bytes()?,
            text_index: folder_bytes(&dir.join("text"))?,
            database: cache.size().await?.bytes,
        })?,
        "changes" => {
            let (watch, text) = reads::measure_latencies(cache.clone(), Duration::from_secs(number)).await?;
            serde_json::to_string(&ChangeLatencies { watch, text })?
        }
        "searches" => serde_json::to_string(&search_concurrently(cache, Duration::from_secs(number)).await?)?,
        _ => bail!("unknown request"),
    })
}

/// Search latencies of concurrent users, each searching continuously.
async fn search_concurrently(cache: &GlobalCache, time: Duration) -> anyhow::Result<Vec<Duration>> {
    let end = Instant::now() + time;
    let searches = (0..USERS_PER_REPLICA).map(|user| async move {
        let reader = reads::reader();
        let mut all = Vec::new();
        while Instant::now() < end {
            let query = reads::QUERIES[(user + all.len()) % reads::QUERIES.len()];
            let start = Instant::now();
            let response = cache.searcher().search_all(reads::search_request(query, reader.clone())).await?;
            all.push(start.elapsed());
            ensure!(response.summary.is_some_and(|summary| !summary.incomplete), "{query} timed out");
        }
        anyhow::Ok(all)
    });
    Ok(try_join_all(searches).await?.into_iter().flatten().collect())
}
