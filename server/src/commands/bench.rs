//! `crowsnest bench`: measures the results in docs/BENCHMARKS.md; prints each as `name value unit`.

mod access;
mod apiserver;
mod cache;
mod definitions;
mod environment;
mod failover;
mod fan_out;
mod floor;
mod forwarder;
mod graph;
mod growth;
mod index;
mod joined_members;
mod load;
mod mcp;
mod members;
mod paths;
mod plan;
mod pods;
mod processes;
mod propagate;
mod proxy;
mod reads;
mod replicas;
mod report;
mod schedule;
mod scratch;
mod search;
mod slow_member;
mod topology;
mod workloads;
mod writes;

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use crowsnest_cli::examples;
use crowsnest_sim::load::Load;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use self::cache::MeasurementPrinter;
use self::scratch::ScratchArgs;
use super::serve::DatabaseUrl;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest bench report",
    "crowsnest bench up",
    "crowsnest bench cache",
    "crowsnest bench propagate",
])]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    benchmark: Bench,
    #[command(flatten)]
    scratch: ScratchArgs,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Run the benchmarks of the project's targets, and compare the figures with targets and other software
    Report(report::ReportArgs),
    /// Start-up time, first answered request, warm restart and idle memory of `crowsnest up` with empty members
    Up {
        /// Number of simulated members
        #[arg(long, default_value_t = 3)]
        members: usize,
        /// Number of starts; the median is printed
        #[arg(long, default_value_t = 3)]
        runs: usize,
        /// Idle time before memory is read, in seconds
        #[arg(long, default_value_t = 10)]
        settle: u64,
    },
    /// Throughput of the embedded API server: writes, reads, lists, watches, and memory with many objects
    Apiserver(apiserver::ApiserverArgs),
    /// Delivery of many changes to many watches of the embedded API server, and watches that stop reading
    FanOut(fan_out::FanOutArgs),
    /// Memory with many CustomResourceDefinitions in control plane and members, and reads of OpenAPI documents
    Definitions(definitions::DefinitionsArgs),
    /// Cost of the cache, ingest rate and read latency with synthetic pods from another process
    Cache(cache::CacheArgs),
    /// CPU time for each change, memory for each object and search latency of fleets of several sizes
    Growth(growth::GrowthArgs),
    /// Search backends: indexing rate, time until changes are searchable, search latency, memory and disk
    Index(index::IndexArgs),
    /// Graph sink with an empty Neo4j: first load, lag behind changes, memory, and an unreachable database
    Graph(graph::GraphArgs),
    /// Replicas with a shared Postgres: throughput, and missed changes of a cluster whose replica is killed
    Replicas(replicas::ReplicasArgs),
    /// Replica process of a benchmark; exits when its standard input closes
    #[command(hide = true)]
    Replica {
        #[arg(long)]
        cache_dir: PathBuf,
        #[arg(long)]
        kubeconfig: PathBuf,
        #[arg(long, env = "CROWSNEST_DB", hide_env_values = true)]
        db: DatabaseUrl,
    },
    /// Search latency of a user with a few namespaces in each cluster, while pods change and others search
    Search(search::SearchArgs),
    /// Latency of an assistant's searches compared with the search API, and of concurrent assistants
    Mcp(mcp::McpArgs),
    /// Latency of paths between objects and of blast radius in a fleet of applications
    Paths(paths::PathsArgs),
    /// Cost of proxied requests compared with direct ones, and thousands of fleet-wide watches
    Proxy(proxy::ProxyArgs),
    /// Propagation rate of templates and their changes, and the cost of a restart in steady state
    Propagate(propagate::PropagateArgs),
    /// Requests to the control plane for each propagated Deployment, by verb and resource, and conflicts
    Writes(writes::WritesArgs),
    /// Eviction rate from tainted clusters, writes during failover, and the cost of an idle fleet
    Failover(failover::FailoverArgs),
    /// Scheduling rate of new bindings over many clusters on the embedded control plane
    Schedule(schedule::ScheduleArgs),
    /// Propagation to healthy members while another one responds late or slowly
    SlowMember(slow_member::SlowMemberArgs),
    /// API server process of a benchmark; exits when its standard input closes
    #[command(hide = true)]
    Server {
        #[arg(long)]
        name: String,
        #[arg(long)]
        control_plane: bool,
        #[arg(long)]
        audit_log: Option<PathBuf>,
    },
    /// Event source of a benchmark without an API server, as a baseline
    #[command(hide = true)]
    Floor {
        #[arg(long)]
        listeners: usize,
        #[arg(long)]
        writes: usize,
        #[arg(long)]
        bytes: usize,
        /// Interval between two writes, in milliseconds
        #[arg(long)]
        every: u64,
    },
    /// Controller process of a benchmark; exits when its standard input closes
    #[command(hide = true)]
    Controllers {
        #[arg(long)]
        cache_dir: PathBuf,
        #[arg(long)]
        kubeconfig: Option<PathBuf>,
        #[arg(long)]
        evict: bool,
    },
    /// Simulated members of a benchmark; their process exits when its standard input closes
    #[command(hide = true)]
    Simulated {
        #[arg(long)]
        count: usize,
        /// Number of nodes of each member
        #[arg(long)]
        nodes: usize,
    },
    /// Scheduling decisions per second of the planner over many clusters and nodes
    Plan(plan::PlanArgs),
    /// Access reviews over the RBAC objects of many clusters
    Access(access::AccessArgs),
    /// Member process of other benchmarks; runs until it is killed
    #[command(hide = true)]
    Members {
        #[arg(long)]
        clusters: usize,
        #[arg(long)]
        pods: usize,
        #[arg(long)]
        pod_bytes: usize,
    },
    /// Rate at which synthetic pods become ready, memory use, and the achieved churn
    Load {
        /// Number of simulated members
        #[arg(long, default_value_t = 3)]
        members: usize,
        /// Load of all members together: pods=N[,churn=N/s][,size=BYTES][,seed=N]
        #[arg(long, default_value = "pods=10000,churn=50/s")]
        load: Load,
        /// Duration of the churn measurement, in seconds
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=240))]
        seconds: u32,
    },
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let scratch = &args.scratch;
    match args.benchmark {
        Bench::Report(args) => return report::run(&args, scratch).await,
        Bench::Up { members, runs, settle } => measure_up(members, runs.max(1), settle, scratch).await?,
        Bench::Apiserver(args) => apiserver::run(&args, scratch).await?,
        Bench::FanOut(args) => fan_out::run(&args, scratch).await?,
        Bench::Definitions(args) => definitions::run(&args, scratch).await?,
        Bench::Cache(args) => cache::run(&args, scratch).await?,
        Bench::Growth(args) => growth::run(&args, scratch).await?,
        Bench::Index(args) => index::run(&args, scratch).await?,
        Bench::Graph(args) => graph::run(&args, scratch).await?,
        Bench::Search(args) => search::run(&args, scratch).await?,
        Bench::Mcp(args) => mcp::run(&args, scratch).await?,
        Bench::Paths(args) => paths::run(&args, scratch).await?,
        Bench::Replicas(args) => replicas::run(&args, scratch).await?,
        Bench::Replica { cache_dir, kubeconfig, db } => replicas::run_replica(&cache_dir, &kubeconfig, &db).await?,
        Bench::Proxy(args) => proxy::run(&args, scratch).await?,
        Bench::Propagate(args) => propagate::run(&args, scratch).await?,
        Bench::Writes(args) => writes::run(&args, scratch).await?,
        Bench::Server { name, control_plane, audit_log } => {
            processes::run_apiserver(&name, control_plane, audit_log.as_deref()).await?;
        }
        Bench::Floor { listeners, writes, bytes, every } => {
            floor::broadcast(listeners, writes, bytes, Duration::from_millis(every)).await?;
        }
        Bench::Failover(args) => failover::run(&args, scratch).await?,
        Bench::Schedule(args) => schedule::run(&args, scratch).await?,
        Bench::SlowMember(args) => slow_member::run(&args, scratch).await?,
        Bench::Controllers { cache_dir, kubeconfig, evict } => {
            processes::run_controllers(&cache_dir, kubeconfig.as_deref(), evict).await?;
        }
        Bench::Simulated { count, nodes } => processes::run_simulated_members(count, nodes).await?,
        Bench::Plan(args) => plan::run(&args)?,
        Bench::Access(args) => access::run(&args)?,
        Bench::Members { clusters, pods, pod_bytes } => {
            members::run(members::Members::new(clusters, pods, pod_bytes)).await?;
        }
        Bench::Load { members, load, seconds } => load::run(members, &load, seconds, scratch).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A running `crowsnest` process; it is killed when dropped.
struct RunningProcess {
    child: Child,
    started_at: Instant,
    /// Time from the start until the process was ready.
    ready: Duration,
    /// Keeps the pipe of the process's output open.
    _out: Lines<BufReader<ChildStdout>>,
}

async fn measure_up(members: usize, runs: usize, settle: u64, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let scratch = scratch.create()?;
    let (mut cold, mut first_gets, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    let mut resident_sizes = Vec::new();
    for run in 0..runs {
        let dir = scratch.path().join(run.to_string());
        let cold_start = start(&dir, members).await?;
        cold.push(cold_start.ready.as_millis() as u64);
        let namespaces: Api<Namespace> = Api::all(load::connect(&dir, "cp").await?);
        namespaces.get("default").await.context("the control plane does not respond")?;
        first_gets.push(cold_start.started_at.elapsed().as_millis() as u64);
        tokio::time::sleep(Duration::from_secs(settle)).await;
        resident_sizes.push(resident_kib(&cold_start.child)?);
        stop(cold_start).await?;
        let warm_start = start(&dir, members).await?;
        warm.push(warm_start.ready.as_millis() as u64);
        stop(warm_start).await?;
    }
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    printer.print("up/ready", median(&mut cold) as f64, "ms")?;
    printer.print("up/first-get", median(&mut first_gets) as f64, "ms")?;
    printer.print("up/ready-again", median(&mut warm) as f64, "ms")?;
    printer.print("up/idle-rss", median(&mut resident_sizes) as f64 / 1024.0, "MB")
}

async fn start(dir: &Path, members: usize) -> anyhow::Result<RunningProcess> {
    let members = members.to_string();
    spawn(dir, &["up", "--ui-listen", "127.0.0.1:0", "--members", &members]).await
}

/// Starts the embedded API server alone.
async fn start_apiserver(dir: &Path) -> anyhow::Result<RunningProcess> {
    spawn(dir, &["apiserver"]).await
}

async fn spawn(dir: &Path, arguments: &[&str]) -> anyhow::Result<RunningProcess> {
    let program: PathBuf = std::env::current_exe()?;
    let started_at = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .arg("--data-dir")
        .arg(dir)
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()?;
    let out = child.stdout.take().context("the process has no output")?;
    let mut lines = BufReader::new(out).lines();
    // The banner is printed when the process is ready.
    if lines.next_line().await?.is_none() {
        bail!("crowsnest {} exited before it was ready", arguments[0]);
    }
    Ok(RunningProcess { child, started_at, ready: started_at.elapsed(), _out: lines })
}

async fn stop(mut process: RunningProcess) -> anyhow::Result<()> {
    let pid = process.child.id().context("the process exited unexpectedly")?;
    let status = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
    if !status.success() {
        bail!("cannot stop the process");
    }
    let status = process.child.wait().await?;
    if !status.success() {
        bail!("the process stopped with {status}");
    }
    Ok(())
}

fn resident_kib(child: &Child) -> anyhow::Result<u64> {
    let pid = child.id().context("the process exited unexpectedly")?;
    Ok(process_resident_bytes(&pid.to_string())? / 1024)
}

/// Peak resident memory of a process in KiB.
fn peak_kib(child: &Child) -> anyhow::Result<u64> {
    let pid = child.id().context("the process exited unexpectedly")?;
    Ok(proc_status_bytes(&pid.to_string(), "VmHWM:")? / 1024)
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> anyhow::Result<u64> {
    process_resident_bytes("self")
}

/// Anonymous resident memory of this process in bytes: [`resident_bytes`] without pages of mapped files, such as those
/// of the text index, which the kernel can drop.
fn anonymous_bytes() -> anyhow::Result<u64> {
    proc_status_bytes("self", "RssAnon:")
}

fn process_resident_bytes(process: &str) -> anyhow::Result<u64> {
    proc_status_bytes(process, "VmRSS:")
}

/// A memory value of `/proc/PID/status`, in bytes.
fn proc_status_bytes(process: &str, field: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix(field)).with_context(|| format!("no {field}"))?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}

/// Waits until this process was idle for some seconds, so that merges are done.
async fn wait_until_idle() -> anyhow::Result<()> {
    const IDLE_SECONDS: u32 = 8;
    let (mut before, mut idle_seconds) = (cpu_ticks()?, 0);
    while idle_seconds < IDLE_SECONDS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = cpu_ticks()?;
        // A tick is 10 ms.
        idle_seconds = if now - before <= 10 { idle_seconds + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

/// User and system CPU time of this process in ticks.
fn cpu_ticks() -> anyhow::Result<u64> {
    process_cpu_ticks("self")
}

fn process_cpu_ticks(process: &str) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, after_name) = stat.rsplit_once(')').context("no name in stat")?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || anyhow::Ok(fields.next().context("stat is short")?.parse::<u64>()?);
    Ok(next()? + next()?)
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
