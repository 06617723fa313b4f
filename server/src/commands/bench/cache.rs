//! `crowsnest bench cache`: measures the cache with synthetic pods from another process, from the first list to a warm
//! restart.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::GlobalCache;
use crowsnest_proxy::Proxy;

use super::super::cache_options::CacheOptionsArgs;
use super::environment::{BenchEnvironment, MembersProcess, PodArgs, set_churn, stop, wait_until_complete};
use super::reads;
use super::scratch::ScratchArgs;

#[derive(Debug, Clone, Args)]
pub(super) struct CacheArgs {
    #[command(flatten)]
    pods: PodArgs,
    /// Number of lists and searches
    #[arg(long, default_value_t = 200)]
    reads: usize,
    /// Changes per second while latencies are measured
    #[arg(long, default_value_t = 500.0, value_name = "N")]
    churn: f64,
    /// Duration of each measurement with changes, in seconds
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    #[command(flatten)]
    cache: CacheOptionsArgs,
}

pub(super) async fn run(args: &CacheArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let environment = BenchEnvironment::start(&args.pods, scratch).await?;
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    printer.print("cache/objects", args.pods.pods as f64, "")?;
    let before = super::resident_bytes()?;
    printer.print_megabytes("cache/rss-before", before)?;

    let start = Instant::now();
    let (cache, interest) = environment.open(&args.cache).await?;
    let proxy = Proxy::new(cache.clone());
    let bench = CacheBench { cache: &cache, members: &environment.members, args };
    bench.measure_fill(start, &mut printer).await?;
    printer.print_megabytes("cache/rss-searchable", super::resident_bytes()?)?;
    printer.print_megabytes("cache/database", cache.size().await?.bytes)?;
    printer.print_megabytes("cache/text-index", folder_bytes(&environment.scratch.path().join("text"))?)?;
    reads::measure_lists(&proxy, args.pods.pods, args.reads, &mut printer).await?;
    let resident = super::resident_bytes()?;
    printer.print_megabytes("cache/rss-after-lists", resident)?;
    printer.print(
        "cache/rss-each",
        resident.saturating_sub(before) as f64 / args.pods.pods.max(1) as f64,
        "B/object",
    )?;
    reads::measure_searches(&cache, "cache/search", args.reads, &mut printer).await?;
    bench.measure_change_cost(&mut printer).await?;
    bench.measure_churn(&mut printer).await?;
    printer.print_megabytes("cache/rss-after-churn", super::resident_bytes()?)?;
    proxy.stop().await;
    stop(cache, interest).await;

    let start = Instant::now();
    let (cache, interest) = environment.open(&args.cache).await?;
    let response = cache
        .searcher()
        .search_all(reads::search_request("kind:pod status:CrashLoopBackOff", UserInfo::system()))
        .await?;
    printer.print_milliseconds("cache/restart", start.elapsed())?;
    ensure!(response.summary.is_some_and(|summary| summary.total > 0), "no object is found after the restart");
    stop(cache, interest).await;
    environment.stop().await
}

/// Prints measurements, one per line.
pub(super) struct MeasurementPrinter<W> {
    pub out: W,
}

impl<W: Write> MeasurementPrinter<W> {
    /// Prints `name value unit`.
    pub(super) fn print(&mut self, name: &str, value: f64, unit: &str) -> anyhow::Result<()> {
        let value = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        writeln!(self.out, "{name} {value} {unit}")?;
        Ok(self.out.flush()?)
    }

    pub(super) fn print_megabytes(&mut self, name: &str, bytes: u64) -> anyhow::Result<()> {
        self.print(name, bytes as f64 / 1e6, "MB")
    }

    pub(super) fn print_milliseconds(&mut self, name: &str, time: Duration) -> anyhow::Result<()> {
        self.print(name, time.as_secs_f64() * 1e3, "ms")
    }

    /// Prints the median and the 99th percentile.
    pub(super) fn print_percentiles(&mut self, name: &str, mut times: Vec<Duration>) -> anyhow::Result<()> {
        times.sort_unstable();
        for (label, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let index = ((times.len() as f64 * quantile).ceil() as usize).clamp(1, times.len().max(1)) - 1;
            self.print_milliseconds(&format!("{name}-{label}"), times.get(index).copied().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// The cache to measure, and the members whose pods it collects.
struct CacheBench<'a> {
    cache: &'a GlobalCache,
    members: &'a MembersProcess,
    args: &'a CacheArgs,
}

impl CacheBench<'_> {
    /// Measures the time from opening an empty cache until all objects are searchable.
    async fn measure_fill(&self, start: Instant, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
        wait_until_complete(self.cache, self.args.pods.clusters).await?;
        let fill_time = start.elapsed();
        printer.print_milliseconds("cache/complete", fill_time)?;
        printer.print("cache/ingest", self.args.pods.pods as f64 / fill_time.as_secs_f64(), "objects/s")?;
        printer.print_megabytes("cache/rss-complete", super::resident_bytes()?)?;
        let target = self.cache.seq();
        self.cache.searcher().searchable().wait_for(|seq| *seq >= target).await?;
        printer.print_milliseconds("cache/searchable", start.elapsed())
    }

    /// Measures the CPU time of this process for each change, without reads.
    async fn measure_change_cost(&self, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
        super::wait_until_idle().await?;
        let before = super::cpu_ticks()?;
        set_churn(&self.members.address, self.args.churn).await?;
        let (changes, _) = reads::measure_latencies(self.cache.clone(), Duration::from_secs(self.args.seconds)).await?;
        // A tick is 10 ms.
        let milliseconds = (super::cpu_ticks()? - before) as f64 * 10.0;
        set_churn(&self.members.address, 0.0).await?;
        ensure!(!changes.is_empty(), "no change arrived");
        printer.print("cache/change-cpu", milliseconds / changes.len() as f64, "ms")
    }

    /// Measures latencies and searches while pods change.
    async fn measure_churn(&self, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
        super::wait_until_idle().await?;
        set_churn(&self.members.address, self.args.churn).await?;
        let start = Instant::now();
        let latencies =
            tokio::spawn(reads::measure_latencies(self.cache.clone(), Duration::from_secs(self.args.seconds)));
        while start.elapsed() < Duration::from_secs(self.args.seconds) {
            reads::measure_searches(self.cache, "cache/churn/search", self.args.reads, printer).await?;
        }
        let (watch, text) = latencies.await??;
        set_churn(&self.members.address, 0.0).await?;
        printer.print("cache/churn/changes", watch.len() as f64 / self.args.seconds as f64, "changes/s")?;
        printer.print_percentiles("cache/churn/change-to-watch", watch)?;
        ensure!(!text.is_empty(), "no change became searchable within the time of the measurement");
        printer.print_percentiles("cache/churn/change-to-text", text)
    }
}

/// Total size of the files in a folder, in bytes.
pub(super) fn folder_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        // Merges of the index can delete a file before its size is read.
        bytes += entry?.metadata().map_or(0, |metadata| metadata.len());
    }
    Ok(bytes)
}
