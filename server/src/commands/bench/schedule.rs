//! `crowsnest bench schedule`: measures how many new bindings per second are assigned clusters after the policy is
//! created, with simulated members and the control plane in the controllers' process, as in `crowsnest up`.
//!
//! The Deployments exist before the policy, so their creation is not measured. Detector, scheduler and the creation of
//! Works share the controllers' process and the control plane.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use crowsnest_api::work::ResourceBinding;
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

use super::cache::MeasurementPrinter;
use super::joined_members::JoinedMembers;
use super::processes::BenchProcess;
use super::propagate::wait_for_clusters;
use super::scratch::ScratchArgs;
use super::workloads::{self, Deployments, NAMESPACE};

#[derive(Debug, Args)]
pub(super) struct ScheduleArgs {
    /// Number of Deployments of one replica, each with its binding
    #[arg(long, default_value_t = 10_000)]
    bindings: usize,
    /// Number of simulated members
    #[arg(long, default_value_t = 100)]
    members: usize,
}

/// Maximum number of concurrent requests of the benchmark.
const MAX_CONCURRENT_REQUESTS: usize = 32;
/// Maximum time between two scheduled bindings.
const STEP_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) async fn run(args: &ScheduleArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(args.bindings > 0 && args.members > 0, "--bindings and --members must be at least 1");
    let mut printer = MeasurementPrinter { out: std::io::stdout() };
    measure(args, scratch.create()?.path(), &mut printer).await
}

async fn measure(args: &ScheduleArgs, dir: &Path, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
    let mut controllers = BenchProcess::start_controllers(&dir.join("cache"), None).await?;
    let client = controllers.connection()?.client().await?;
    let members = JoinedMembers::simulate(&client, args.members, args.bindings).await?;
    wait_for_clusters(&client, args.members).await?;
    workloads::create_namespace(&client).await?;
    let deployments =
        Deployments { count: args.bindings, replicas: 1, max_concurrent_creates: MAX_CONCURRENT_REQUESTS };
    deployments.create(&client).await?;
    controllers.wait_until_idle().await?;

    let cpu_before = controllers.cpu_time()?;
    let start = Instant::now();
    let scheduled = watch_scheduled_bindings(client.clone(), args.bindings);
    // The policy places each Deployment in one cluster, by free resources.
    let ((), times) = tokio::try_join!(workloads::create_dividing_policy(&client, "Aggregated"), scheduled)?;
    let elapsed = times.last().context("no binding was scheduled")?.duration_since(start);
    printer.print("schedule/rate", times.len() as f64 / elapsed.as_secs_f64(), "bindings/s")?;
    printer.print("schedule/all", elapsed.as_secs_f64(), "s")?;
    printer.print_percentiles("schedule/after-policy", times.iter().map(|at| at.duration_since(start)).collect())?;
    let idle_report = controllers.wait_until_idle().await?;
    printer.print("schedule/settled", start.elapsed().as_secs_f64(), "s")?;
    let cpu = controllers.cpu_time()? - cpu_before;
    printer.print("schedule/cpu-each", cpu.as_secs_f64() * 1e3 / args.bindings as f64, "ms/binding")?;
    printer.print_megabytes("schedule/peak-rss", idle_report.peak_bytes)?;
    controllers.stop().await?;
    members.stop().await
}

/// Waits until this many bindings have clusters; returns the times in order.
async fn watch_scheduled_bindings(client: Client, count: usize) -> anyhow::Result<Vec<Instant>> {
    let api: Api<ResourceBinding> = Api::namespaced(client, NAMESPACE);
    let mut bindings = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
    let mut times: HashMap<String, Instant> = HashMap::new();
    while times.len() < count {
        let next = tokio::time::timeout(STEP_TIMEOUT, bindings.next()).await;
        let next = next.with_context(|| format!("only {} of {count} bindings were scheduled", times.len()))?;
        // The watcher recovers from errors by itself.
        let Ok(binding) = next.context("the watch ended")? else { continue };
        if !binding.spec.clusters.is_empty() {
            times.entry(binding.spec.resource.name).or_insert_with(Instant::now);
        }
    }
    let mut times: Vec<Instant> = times.into_values().collect();
    times.sort_unstable();
    Ok(times)
}
