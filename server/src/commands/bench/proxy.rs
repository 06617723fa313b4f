//! `crowsnest bench proxy`: measures proxied requests to a member compared with direct ones, and thousands of
//! fleet-wide watches.
//!
//! The first part starts `crowsnest up` with one simulated member: a proxied request passes through the control
//! plane's API server, the aggregated API server in the same process, and the member's. The second part reads the
//! merged stream in this process.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Args;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_component_base::kubeconfig::{self, KubeconfigFile};
use crowsnest_proxy::{Body, Proxy};
use futures::future::try_join_all;
use http::Request;
use http_body_util::{BodyExt, Empty};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess, LogParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::super::cache_options::CacheOptionsArgs;
use super::cache::MeasurementPrinter;
use super::environment::{BenchEnvironment, POD_BYTES, PodArgs, set_churn, stop, wait_until_complete};
use super::pods::{Pods, namespace};
use super::reads::changed_at;
use super::scratch::ScratchArgs;

#[derive(Debug, Clone, Args)]
pub(super) struct ProxyArgs {
    /// Number of proxied gets, and as many direct ones
    #[arg(long, default_value_t = 2_000)]
    gets: usize,
    /// Data moved by each measured log and exec, in megabytes
    #[arg(long, default_value_t = 100, value_name = "MB")]
    megabytes: usize,
    /// Number of concurrent exec sessions and log streams, half of each
    #[arg(long, default_value_t = 500)]
    sessions: usize,
    /// Number of fleet-wide watches
    #[arg(long, default_value_t = 5_000)]
    watches: usize,
    /// Number of watches of a namespace among them; the others watch a single object
    #[arg(long, default_value_t = 500)]
    of_namespaces: usize,
    /// Number of pods in three clusters
    #[arg(long, default_value_t = 30_000)]
    pods: usize,
    /// Changes per second
    #[arg(long, default_value_t = 500.0, value_name = "N")]
    churn: f64,
    /// Duration of the measurement, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    #[command(flatten)]
    cache: CacheOptionsArgs,
}

const CLUSTERS: u32 = 3;
const POD_NAME: &str = "talker";
const PROXY_PATH: &str = "/apis/cluster.karmada.io/v1alpha1/clusters/member1/proxy";
/// Lines of the pod's log, as many as a member keeps.
const LOG_LINES: usize = 10_000;
/// Rounds of each throughput measurement, alternating; the median counts.
const ROUNDS: usize = 9;
const CHUNK_BYTES: usize = 64 << 10;
/// Interval between checks whether the pod runs.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const POD_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Clients for the same pods: directly, and through the proxy.
struct PodClients {
    direct: Api<Pod>,
    proxied: Api<Pod>,
}

pub(super) async fn run(args: &ProxyArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    measure_transfers(args, scratch, &mut printer).await?;
    measure_sessions(args, scratch, &mut printer).await?;
    measure_watches(args, scratch, &mut printer).await
}

async fn measure_transfers(
    args: &ProxyArgs,
    scratch: &ScratchArgs,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let scratch = scratch.create()?;
    let fleet = super::start(scratch.path(), 1).await?;
    let clients = PodClients::open(scratch.path()).await?;
    let line = "x".repeat(1_000);
    clients.start_pod(&format!("for i in $(seq {LOG_LINES}); do echo $i {line}; done; sleep 100000")).await?;
    clients.wait_for_lines(&format!("{LOG_LINES} ")).await?;
    measure_gets(&clients, args.gets, printer).await?;
    let megabytes = args.megabytes;
    measure_throughput("logs", &clients, printer, |pods| transfer_logs(pods, megabytes)).await?;
    measure_throughput("exec", &clients, printer, |pods| transfer_by_exec(pods, megabytes)).await?;
    measure_throughput("copy-to", &clients, printer, |pods| copy_to_pod(pods, megabytes)).await?;
    measure_kubectl_cp(scratch.path(), megabytes, printer).await?;
    super::stop(fleet).await
}

/// Measures the memory of idle sessions, direct and proxied. Each of the two has its own process, because the second would
/// reuse the memory that the first freed.
async fn measure_sessions(
    args: &ProxyArgs,
    scratch: &ScratchArgs,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    for name in ["direct", "through"] {
        let scratch = scratch.create()?;
        let fleet = super::start(scratch.path(), 1).await?;
        let clients = PodClients::open(scratch.path()).await?;
        clients.start_pod("echo ready; sleep 100000").await?;
        let before = super::resident_kib(&fleet.child)?;
        let open =
            open_sessions(if name == "direct" { &clients.direct } else { &clients.proxied }, args.sessions).await?;
        let growth = super::resident_kib(&fleet.child)?.saturating_sub(before) as f64 / 1024.0;
        drop(open);
        printer.print(&format!("proxy/sessions-{}/{name}-rss", args.sessions), growth, "MB")?;
        super::stop(fleet).await?;
    }
    Ok(())
}

impl PodClients {
    async fn open(dir: &Path) -> anyhow::Result<Self> {
        let direct = open_pods(dir, "member1", "").await?;
        let proxied = open_pods(dir, "cp", PROXY_PATH).await?;
        Ok(Self { direct, proxied })
    }

    /// Starts a pod that runs a script and waits until both clients see it running; a new member does not accept
    /// proxied requests immediately.
    async fn start_pod(&self, script: &str) -> anyhow::Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": POD_NAME},
            "spec": {"containers": [{"name": "main", "image": "busybox", "command": ["sh", "-c", script]}]}}))?;
        self.direct.create(&PostParams::default(), &pod).await?;
        let wait = async {
            for pods in [&self.direct, &self.proxied] {
                let phase = |pod: Pod| pod.status.and_then(|status| status.phase);
                while pods.get(POD_NAME).await.ok().and_then(phase).as_deref() != Some("Running") {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        };
        tokio::time::timeout(POD_START_TIMEOUT, wait).await.context("the pod did not start")
    }

    /// Waits until the last line of the pod's log starts with this text.
    async fn wait_for_lines(&self, last: &str) -> anyhow::Result<()> {
        let tail = LogParams { tail_lines: Some(1), ..LogParams::default() };
        let polling = async {
            while !self.direct.logs(POD_NAME, &tail).await.is_ok_and(|line| line.starts_with(last)) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(POD_START_TIMEOUT, polling).await.context("the log of the pod is incomplete")
    }
}

async fn open_pods(dir: &Path, kubeconfig: &str, path: &str) -> anyhow::Result<Api<Pod>> {
    let file = dir.join(format!("kubeconfigs/{kubeconfig}.kubeconfig"));
    let mut config = kubeconfig::load_config(Some(&file), None).await?;
    config.read_timeout = None;
    let mut parts = config.cluster_url.into_parts();
    parts.path_and_query = Some(format!("{}/", path).parse()?);
    config.cluster_url = http::Uri::from_parts(parts)?;
    Ok(Api::namespaced(Client::try_from(config)?, "default"))
}

/// Measures sequential gets, alternating between direct and proxied ones.
async fn measure_gets(
    clients: &PodClients,
    times: usize,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let (mut direct, mut proxied) = (Vec::new(), Vec::new());
    for _ in 0..times {
        for (pods, times) in [(&clients.direct, &mut direct), (&clients.proxied, &mut proxied)] {
            let start = Instant::now();
            pods.get(POD_NAME).await?;
            times.push(start.elapsed());
        }
    }
    printer.print_percentiles("proxy/get/direct", direct)?;
    printer.print_percentiles("proxy/get/through", proxied)
}

async fn measure_throughput<F: Future<Output = anyhow::Result<usize>>>(
    name: &str,
    clients: &PodClients,
    printer: &mut MeasurementPrinter<impl Write>,
    transfer: impl Fn(Api<Pod>) -> F,
) -> anyhow::Result<()> {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (pods, rates) in [&clients.direct, &clients.proxied].into_iter().zip(&mut rates) {
            let start = Instant::now();
            let bytes = transfer(pods.clone()).await?;
            rates.push(bytes as f64 / 1e6 / start.elapsed().as_secs_f64());
        }
    }
    printer.print_throughput(name, rates)
}

impl<W: Write> MeasurementPrinter<W> {
    /// Prints the direct and the proxied throughput, and their ratio.
    fn print_throughput(&mut self, name: &str, rates: [Vec<f64>; 2]) -> anyhow::Result<()> {
        let [direct, proxied] = rates.map(|mut rates| {
            let middle = rates.len() / 2;
            *rates.select_nth_unstable_by(middle, f64::total_cmp).1
        });
        self.print(&format!("proxy/{name}/direct"), direct, "MB/s")?;
        self.print(&format!("proxy/{name}/through"), proxied, "MB/s")?;
        self.print(&format!("proxy/{name}/ratio"), proxied / direct * 100.0, "%")
    }
}

/// Reads the pod's log repeatedly until enough bytes were read.
async fn transfer_logs(pods: Api<Pod>, megabytes: usize) -> anyhow::Result<usize> {
    let mut bytes = 0;
    while bytes < megabytes * 1_000_000 {
        let log = pods.logs(POD_NAME, &LogParams::default()).await?;
        ensure!(log.len() > LOG_LINES * 1_000, "the log has {} bytes", log.len());
        bytes += log.len();
    }
    Ok(bytes)
}

/// Writes this many bytes to a command and ends its input.
async fn write_bytes(mut stdin: Stdin, count: usize) -> anyhow::Result<()> {
    let chunk = vec![b'x'; CHUNK_BYTES];
    let mut remaining = count;
    while remaining > 0 {
        let length = remaining.min(CHUNK_BYTES);
        stdin.write_all(&chunk[..length]).await?;
        remaining -= length;
    }
    Ok(stdin.shutdown().await?)
}

/// Pipes bytes through a command.
async fn transfer_by_exec(pods: Api<Pod>, megabytes: usize) -> anyhow::Result<usize> {
    let mut process = exec_command(&pods, &["cat"]).await?;
    let (stdin, mut stdout) = take_stdio(&mut process)?;
    let total_bytes = megabytes * 1_000_000;
    let writing = write_bytes(stdin, total_bytes);
    let reading = async move {
        let (mut bytes, mut chunk) = (0, vec![0; CHUNK_BYTES]);
        while bytes < total_bytes {
            let read_count = stdout.read(&mut chunk).await?;
            ensure!(read_count > 0, "the exec session ended after {bytes} bytes");
            bytes += read_count;
        }
        anyhow::Ok(bytes)
    };
    let ((), bytes) = futures::try_join!(writing, reading)?;
    process.abort();
    Ok(bytes)
}

/// Sends bytes to a command, as `kubectl cp` does; the command responds after it has read all of them.
async fn copy_to_pod(pods: Api<Pod>, megabytes: usize) -> anyhow::Result<usize> {
    let bytes = megabytes * 1_000_000;
    let script = format!("head -c {bytes} > /dev/null; echo read");
    let mut process = exec_command(&pods, &["sh", "-c", &script]).await?;
    let (stdin, mut stdout) = take_stdio(&mut process)?;
    write_bytes(stdin, bytes).await?;
    let mut output = String::new();
    stdout.read_to_string(&mut output).await?;
    ensure!(output == "read\n", "unexpected output of the command: {output:?}");
    Ok(bytes)
}

/// Copies files to and from the pod with the kubectl in `$KUBECTL` or `$PATH`.
async fn measure_kubectl_cp(
    dir: &Path,
    megabytes: usize,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let kubectl = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
    let version = Command::new(&kubectl).args(["version", "--client"]).stdout(Stdio::null()).status().await;
    if !version.is_ok_and(|status| status.success()) {
        tracing::warn!("cannot find kubectl in $KUBECTL or $PATH; kubectl cp is not measured");
        return Ok(());
    }
    let (file, back) = (dir.join("copied"), dir.join("copied-back"));
    tokio::fs::write(&file, vec![b'x'; megabytes * 1_000_000]).await?;
    let in_pod = format!("{POD_NAME}:/tmp/copied");
    let (to, from) = ([file.as_os_str(), in_pod.as_ref()], [in_pod.as_ref(), back.as_os_str()]);
    for (name, paths) in [("kubectl-cp-to", to), ("kubectl-cp-from", from)] {
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for ((cluster, path), rates) in [("member1", ""), ("cp", PROXY_PATH)].into_iter().zip(&mut rates) {
                let config = dir.join(format!("kubeconfigs/{cluster}.kubeconfig"));
                let server = read_server(&config)?;
                let mut command = Command::new(&kubectl);
                command.arg("--kubeconfig").arg(&config).arg("--server").arg(format!("{server}{path}"));
                let start = Instant::now();
                let output = command.arg("cp").args(paths).stdout(Stdio::null()).output().await?;
                ensure!(output.status.success(), "kubectl cp: {}", String::from_utf8_lossy(&output.stderr));
                rates.push(megabytes as f64 / start.elapsed().as_secs_f64());
            }
        }
        printer.print_throughput(name, rates)?;
    }
    let copied = tokio::fs::metadata(&back).await?.len();
    ensure!(copied == megabytes as u64 * 1_000_000, "{copied} bytes were copied back");
    Ok(())
}

fn read_server(kubeconfig: &Path) -> anyhow::Result<String> {
    let file = KubeconfigFile::read(kubeconfig)?.into_content();
    let cluster = file.clusters.into_iter().next().and_then(|named| named.cluster);
    cluster.and_then(|cluster| cluster.server).context("the kubeconfig has no server")
}

async fn exec_command(pods: &Api<Pod>, command: &[&str]) -> anyhow::Result<AttachedProcess> {
    let params = AttachParams::default().stdin(true).stdout(true).stderr(false).max_stdin_buf_size(CHUNK_BYTES);
    Ok(pods.exec(POD_NAME, command.iter().copied(), &params.max_stdout_buf_size(CHUNK_BYTES)).await?)
}

type Stdin = std::pin::Pin<Box<dyn tokio::io::AsyncWrite + Send>>;
type Stdout = std::pin::Pin<Box<dyn tokio::io::AsyncRead + Send>>;

fn take_stdio(process: &mut AttachedProcess) -> anyhow::Result<(Stdin, Stdout)> {
    let stdin = process.stdin().context("exec has no stdin")?;
    let stdout = process.stdout().context("exec has no stdout")?;
    Ok((Box::pin(stdin), Box::pin(stdout)))
}

/// An open session; dropping it ends it.
struct Session {
    _process: Option<AttachedProcess>,
    /// Standard input and output of the process, or the log.
    _streams: Box<dyn std::any::Any + Send>,
}

/// Opens sessions and waits for their first output.
async fn open_sessions(pods: &Api<Pod>, count: usize) -> anyhow::Result<Vec<Session>> {
    let mut open = Vec::new();
    let all: Vec<usize> = (0..count).collect();
    for chunk in all.chunks(50) {
        open.extend(try_join_all(chunk.iter().map(|nth| open_session(pods, *nth))).await?);
    }
    Ok(open)
}

async fn open_session(pods: &Api<Pod>, nth: usize) -> anyhow::Result<Session> {
    if nth.is_multiple_of(2) {
        let mut process = exec_command(pods, &["cat"]).await?;
        let (mut stdin, mut stdout) = take_stdio(&mut process)?;
        stdin.write_all(b"?").await?;
        ensure!(stdout.read(&mut [0]).await? == 1, "the session ended");
        return Ok(Session { _process: Some(process), _streams: Box::new(Mutex::new((stdin, stdout))) });
    }
    let params = LogParams { follow: true, tail_lines: Some(1), ..LogParams::default() };
    let mut log = Box::pin(pods.log_stream(POD_NAME, &params).await?);
    let mut first = [0; 1];
    futures::AsyncReadExt::read_exact(&mut log, &mut first).await?;
    Ok(Session { _process: None, _streams: Box::new(Mutex::new(log)) })
}

/// Measures thousands of watches of the merged stream.
async fn measure_watches(
    args: &ProxyArgs,
    scratch: &ScratchArgs,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let pods = PodArgs { clusters: CLUSTERS, pods: args.pods, pod_bytes: POD_BYTES };
    let environment = BenchEnvironment::start(&pods, scratch).await?;
    let (cache, interest) = environment.open(&args.cache).await?;
    wait_until_complete(&cache, CLUSTERS).await?;
    let proxy = Proxy::new(cache.clone());
    let before = super::resident_bytes()?;
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let mut watches = JoinSet::new();
    let names = Pods { fleet_pods: args.pods, bytes: 0 };
    for nth in 0..args.watches {
        let path = match nth < args.of_namespaces {
            true => format!("api/v1/namespaces/{}/pods", namespace(nth)),
            false => pod_watch_path(names, nth * args.pods / args.watches),
        };
        watches.spawn(watch(proxy.clone(), path, Arc::clone(&latencies)));
    }
    set_churn(&environment.members.address, args.churn).await?;
    // Events during the start of the watches are not counted.
    tokio::time::sleep(Duration::from_secs(args.seconds.min(3))).await;
    latencies.lock().clear();
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let times = std::mem::take(&mut *latencies.lock());
    set_churn(&environment.members.address, 0.0).await?;
    ensure!(!times.is_empty(), "no event was delivered");
    printer.print("proxy/watches", args.watches as f64, "")?;
    printer.print("proxy/watches/delivered", times.len() as f64 / args.seconds as f64, "events/s")?;
    printer.print_percentiles("proxy/watches/delivery", times)?;
    let growth = super::resident_bytes()?.saturating_sub(before);
    printer.print("proxy/watches/rss", growth as f64 / 1e6, "MB")?;
    if let Some(result) = watches.try_join_next() {
        result??;
        anyhow::bail!("the watch ended");
    }
    watches.shutdown().await;
    stop(cache, interest).await;
    environment.stop().await
}

/// Path of a watch of one pod.
fn pod_watch_path(pods: Pods, nth: usize) -> String {
    let (namespace, name) = (namespace(nth), pods.name(nth));
    format!("api/v1/namespaces/{namespace}/pods?fieldSelector=metadata.name%3D{name}")
}

async fn watch(proxy: Proxy, path: String, latencies: Arc<Mutex<Vec<Duration>>>) -> anyhow::Result<()> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let uri = format!("/{path}{separator}watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan");
    let request = Request::get(&uri).body(Body::new(Empty::<Bytes>::new().map_err(|e| match e {})))?;
    let path = path.split_once('?').map_or(path.as_str(), |(path, _)| path);
    let response = proxy.fleet_wide(&UserInfo::system(), path, request).await;
    ensure!(response.status().is_success(), "GET {uri}: {}", response.status());
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(anyhow::Error::from_boxed)?.into_data() else { continue };
        let now = jiff::Timestamp::now().as_microsecond();
        let since = |at: i64| Duration::from_micros(u64::try_from(now - at).unwrap_or_default());
        latencies.lock().extend(data.split(|byte| *byte == b'\n').filter_map(changed_at).map(since));
    }
    Ok(())
}
