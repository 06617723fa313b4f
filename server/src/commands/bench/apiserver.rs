//! `crowsnest bench apiserver`: measures the embedded API server with durable storage, in its own process and over its
//! socket; or another API server for comparison.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Args;
use crowsnest_component_base::kubeconfig;
use futures::future::try_join_all;
use futures::{Stream, StreamExt, TryStreamExt};
use http::Request;
use http::header::ACCEPT_ENCODING;
use http_body_util::{BodyDataStream, BodyExt};
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::client::ConfigExt;
use kube::{Api, Client};
use memchr::{memchr, memmem};
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::io::ReaderStream;
use tower::{BoxError, ServiceBuilder};

use super::cache::MeasurementPrinter;
use super::scratch::ScratchArgs;

#[derive(Debug, Clone, Args)]
pub(super) struct ApiserverArgs {
    /// Number of ConfigMaps of 2 KB to create, read and list
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Number of concurrent clients that create objects
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Number of sequential gets
    #[arg(long, default_value_t = 5_000)]
    gets: usize,
    /// Number of watches of one resource
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// Number of writes that all watches receive
    #[arg(long, default_value_t = 200)]
    writes: usize,
    /// Number of ConfigMaps of 5 KB whose memory is measured; 0 skips this
    #[arg(long, default_value_t = 100_000)]
    stored: usize,
    /// Kubeconfig file of another API server to measure; memory is not measured then
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace on that server; it is created and deleted
    #[arg(long, default_value = "crowsnest-bench", requires = "kubeconfig")]
    namespace: String,
}

/// API server and namespace to use.
pub(super) struct Target {
    kubeconfig: PathBuf,
    namespace: String,
}

impl Target {
    /// The server that was started in this directory.
    pub(super) fn local(dir: &Path) -> Self {
        Self { kubeconfig: dir.join("kubeconfigs/cp.kubeconfig"), namespace: "default".to_owned() }
    }
}

const SMALL_OBJECT_BYTES: usize = 2_000;
/// Approximate size of an event in addition to the text, in bytes: names, times, versions, managed fields.
const EVENT_OVERHEAD_BYTES: usize = 600;
const LARGE_OBJECT_BYTES: usize = 5_000;
const LIST_RUNS: usize = 5;
/// Annotation with the time of the write.
pub(super) const WRITE_TIME_ANNOTATION: &str = "bench/written";
/// Maximum number of streams per connection in kube-apiserver.
const MAX_STREAMS_PER_CONNECTION: usize = 100;
/// Maximum number of watches opened concurrently.
pub(super) const MAX_CONCURRENT_OPENS: usize = 32;
/// Interval between two watched writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(20);
const SETTLE_TIME: Duration = Duration::from_secs(5);

pub(super) async fn run(args: &ApiserverArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    if let Some(kubeconfig) = &args.kubeconfig {
        let target = Target { kubeconfig: kubeconfig.clone(), namespace: args.namespace.clone() };
        let namespaces: Api<Namespace> = Api::all(client(&target).await?);
        let namespace = serde_json::from_value(json!({"metadata": {"name": target.namespace}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        let result = ApiserverBench { target: &target, server: None, args }.measure(&mut printer).await;
        namespaces.delete(&target.namespace, &DeleteParams::default()).await?;
        return result;
    }
    measure_local_server(args, scratch.create()?.path(), &mut printer).await?;
    if args.stored > 0 {
        measure_stored_objects(args, scratch.create()?.path(), &mut printer).await?;
    }
    Ok(())
}

/// Starts a server and runs all measurements.
async fn measure_local_server(
    args: &ApiserverArgs,
    dir: &Path,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let target = Target::local(dir);
    let server = super::start_apiserver(dir).await?;
    ApiserverBench { target: &target, server: Some(&server), args }.measure(printer).await?;
    super::stop(server).await
}

/// Measurements of one server.
struct ApiserverBench<'a> {
    target: &'a Target,
    /// The server's process; `None` for a server that was started by others.
    server: Option<&'a super::RunningProcess>,
    args: &'a ApiserverArgs,
}

impl ApiserverBench<'_> {
    /// Runs all measurements.
    async fn measure(&self, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
        let Self { target, args, .. } = *self;
        let maps = config_maps(target).await?;
        create_objects(&maps, args.objects, args.clients, SMALL_OBJECT_BYTES, Some(printer)).await?;
        self.measure_gets(&maps, printer).await?;
        self.measure_lists(printer).await?;
        self.measure_watches(printer).await
    }

    async fn measure_gets(
        &self,
        maps: &Api<ConfigMap>,
        printer: &mut MeasurementPrinter<impl Write>,
    ) -> anyhow::Result<()> {
        let mut durations = Vec::with_capacity(self.args.gets);
        for nth in 0..self.args.gets {
            let name = config_map_name(nth * 7 % self.args.objects);
            let start = Instant::now();
            maps.get(&name).await?;
            durations.push(start.elapsed());
        }
        printer.print_percentiles("apiserver/get", durations)
    }

    /// Lists all objects, uncompressed and with gzip as Go clients request, and measures the growth of the server's
    /// memory.
    async fn measure_lists(&self, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
        let Self { target, server, args } = *self;
        let client = client(target).await?;
        let peak = || server.map(|server| super::peak_kib(&server.child)).transpose();
        let resident = server.map(|server| super::resident_kib(&server.child)).transpose()?;
        let before = resident.max(peak()?);
        for (encoding, name) in [("identity", ""), ("gzip", "-gzip")] {
            let mut durations = Vec::new();
            for _ in 0..LIST_RUNS {
                let start = Instant::now();
                let request = Request::get(format!("/api/v1/namespaces/{}/configmaps", target.namespace));
                let request = request.header(ACCEPT_ENCODING, encoding).body(kube::client::Body::empty())?;
                let mut body = client.send(request).await?.into_body();
                let mut bytes = 0;
                while let Some(frame) = body.frame().await {
                    bytes += frame?.data_ref().map_or(0, bytes::Bytes::len);
                }
                durations.push(start.elapsed());
                ensure!(encoding == "gzip" || bytes > args.objects * SMALL_OBJECT_BYTES, "a list has {bytes} bytes");
            }
            durations.sort_unstable();
            let median = durations.get(LIST_RUNS / 2).copied().unwrap_or_default();
            printer.print(&format!("apiserver/list-{}{name}", args.objects), median.as_secs_f64() * 1e3, "ms")?;
        }
        let (Some(before), Some(after)) = (before, peak()?) else { return Ok(()) };
        let growth = after.saturating_sub(before) as f64 / 1024.0;
        printer.print(&format!("apiserver/list-{}/peak-rss-grown", args.objects), growth, "MB")
    }

    /// Measures watches with a connection each, watches that share connections up to kube-apiserver's stream limit, and
    /// connections to a process without an API server.
    async fn measure_watches(&self, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
        let Self { target, args, .. } = *self;
        let endpoint = WatchEndpoint::load(target).await?;
        let opens = (0..args.watchers).map(async |_| endpoint.open().await);
        let streams =
            futures::stream::iter(opens).buffer_unordered(MAX_CONCURRENT_OPENS).try_collect::<Vec<_>>().await?;
        let watchers = streams.into_iter().map(|stream| event_latencies(ReaderStream::new(stream), args.writes));
        measure_watch(target, watchers, args.writes, &format!("apiserver/watch-{}", args.watchers), printer).await?;

        let path = watch_path(target).await?;
        let SharedWatches { streams, _clients } = open_shared_watches(target, &path, args.watchers).await?;
        let watchers = streams.into_iter().map(|stream| event_latencies(stream, args.writes));
        measure_watch(target, watchers, args.writes, &format!("apiserver/watch-{}-shared", args.watchers), printer)
            .await?;
        super::floor::measure(
            args.watchers,
            args.writes,
            SMALL_OBJECT_BYTES + EVENT_OVERHEAD_BYTES,
            WRITE_INTERVAL,
            printer,
        )
        .await
    }
}

async fn load_config(target: &Target) -> anyhow::Result<kube::Config> {
    let file = &target.kubeconfig;
    let mut config = kubeconfig::load_config(Some(file), None).await?;
    config.read_timeout = None;
    Ok(config)
}

/// A client with a connection per concurrent request.
async fn client(target: &Target) -> anyhow::Result<Client> {
    Ok(Client::try_from(load_config(target).await?)?)
}

/// A client whose requests share one HTTP/2 connection, as Go clients do.
async fn shared_connection_client(target: &Target) -> anyhow::Result<Client> {
    let config = load_config(target).await?;
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_only()
        .enable_http2()
        .build();
    let connection = hyper_util::client::legacy::Builder::new(TokioExecutor::new()).http2_only(true).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(connection);
    Ok(Client::new(service, config.default_namespace))
}

pub(super) async fn config_maps(target: &Target) -> anyhow::Result<Api<ConfigMap>> {
    Ok(Api::namespaced(client(target).await?, &target.namespace))
}

/// A ConfigMap of about this size with text that differs between objects and compresses like text.
pub(super) fn config_map(name: &str, bytes: usize, seed: usize) -> anyhow::Result<ConfigMap> {
    const WORDS: [&str; 12] = [
        "cluster",
        "namespace",
        "replicas=3",
        "0.0.0.0:8080",
        "true",
        "timeout",
        "/var/lib",
        "eu-west",
        "level",
        "10s",
        "\n",
        "=",
    ];
    let (mut text, mut state) = (String::with_capacity(bytes), seed as u64 + 1);
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (state >> 33) as usize % 4 {
            0 => text.push_str(&format!("{:x} ", state >> 40)),
            _ => text.push_str(WORDS[(state >> 50) as usize % WORDS.len()]),
        }
    }
    let object = json!({"metadata": {"name": name, "labels": {"app": "bench"}}, "data": {"config": text}});
    Ok(serde_json::from_value(object)?)
}

fn config_map_name(nth: usize) -> String {
    format!("map-{nth:06}")
}

/// Creates objects with this many concurrent clients.
async fn create_objects(
    maps: &Api<ConfigMap>,
    objects: usize,
    clients: usize,
    bytes: usize,
    printer: Option<&mut MeasurementPrinter<impl Write>>,
) -> anyhow::Result<()> {
    let (next, durations) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(objects)));
    let start = Instant::now();
    try_join_all((0..clients).map(|_| async {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= objects {
                return anyhow::Ok(());
            }
            let object = config_map(&config_map_name(nth), bytes, nth)?;
            let start = Instant::now();
            maps.create(&PostParams::default(), &object).await?;
            durations.lock().push(start.elapsed());
        }
    }))
    .await?;
    let Some(printer) = printer else { return Ok(()) };
    printer.print("apiserver/create/rate", objects as f64 / start.elapsed().as_secs_f64(), "objects/s")?;
    printer.print_percentiles("apiserver/create", durations.into_inner())
}

pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Watches that share HTTP/2 connections.
pub(super) struct SharedWatches {
    pub streams: Vec<BodyDataStream<kube::client::Body>>,
    /// Keep the connections open.
    pub _clients: Vec<Client>,
}

/// Opens watches that share connections up to kube-apiserver's stream limit.
pub(super) async fn open_shared_watches(target: &Target, path: &str, watchers: usize) -> anyhow::Result<SharedWatches> {
    let mut clients = Vec::with_capacity(watchers);
    while clients.len() < watchers {
        let client = shared_connection_client(target).await?;
        clients.extend(std::iter::repeat_n(client, MAX_STREAMS_PER_CONNECTION.min(watchers - clients.len())));
    }
    let opens = clients.iter().map(async |client| {
        let request = Request::get(path).body(kube::client::Body::empty())?;
        anyhow::Ok(client.send(request).await?.into_body().into_data_stream())
    });
    let streams = futures::stream::iter(opens).buffer_unordered(MAX_CONCURRENT_OPENS).try_collect::<Vec<_>>().await?;
    Ok(SharedWatches { streams, _clients: clients })
}

/// Path of a watch that starts from the current resourceVersion, as an informer's watch after its list.
pub(super) async fn watch_path(target: &Target) -> anyhow::Result<String> {
    let since =
        config_maps(target).await?.list_metadata(&ListParams::default().limit(1)).await?.metadata.resource_version;
    let since = since.context("a list has no version")?;
    Ok(format!(
        "/api/v1/namespaces/{}/configmaps?watch=true&labelSelector=bench%3Dwatched&resourceVersion={since}",
        target.namespace
    ))
}

/// A watch of one server that benchmarks open on connections of their own. A client library would use more CPU than the
/// server on shared cores.
pub(super) struct WatchEndpoint {
    host: String,
    port: u16,
    /// Authenticates with the kubeconfig's certificate.
    tls: TlsConnector,
    /// Path and query of the watch.
    path: String,
}

impl WatchEndpoint {
    /// The watch of the target's labelled objects, from now on.
    pub(super) async fn load(target: &Target) -> anyhow::Result<Self> {
        let config = load_config(target).await?;
        let host = config.cluster_url.host().context("the server has no host")?.to_owned();
        let port = config.cluster_url.port_u16().context("the server has no port")?;
        let tls = TlsConnector::from(Arc::new(config.rustls_client_config()?));
        Ok(Self { host, port, tls, path: watch_path(target).await? })
    }

    pub(super) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Opens a connection with a watch request.
    async fn open(&self) -> anyhow::Result<TlsStream<TcpStream>> {
        self.start(TcpStream::connect(self.address()).await?).await
    }

    /// Sends a watch request on a connection and reads the head of the response.
    pub(super) async fn start(&self, socket: TcpStream) -> anyhow::Result<TlsStream<TcpStream>> {
        let Self { host, port, tls, path } = self;
        socket.set_nodelay(true)?;
        let mut stream = tls.connect(ServerName::try_from(host.clone())?, socket).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n").as_bytes()).await?;
        // Buffered data must be sent before the response is read.
        stream.flush().await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        ensure!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
        Ok(stream)
    }
}

/// Measures the time from the start of each write until each watcher has received the whole event.
async fn measure_watch(
    target: &Target,
    watchers: impl Iterator<Item = impl Future<Output = anyhow::Result<Vec<Duration>>> + Send + 'static>,
    writes: usize,
    name: &str,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let maps = config_maps(target).await?;
    let mut watching: JoinSet<_> = watchers.collect();
    for nth in 0..writes {
        let mut object = config_map(&watched_name(nth), SMALL_OBJECT_BYTES, nth)?;
        object.metadata.labels = Some([("bench".to_owned(), "watched".to_owned())].into());
        object.metadata.annotations =
            Some([(WRITE_TIME_ANNOTATION.to_owned(), unix_time().as_nanos().to_string())].into());
        maps.create(&PostParams::default(), &object).await?;
        tokio::time::sleep(WRITE_INTERVAL).await;
    }
    let latencies = async {
        let mut durations = Vec::new();
        while let Some(result) = watching.join_next().await {
            durations.extend(result??);
        }
        anyhow::Ok(durations)
    };
    let durations = tokio::time::timeout(SETTLE_TIME * 12, latencies).await.context("not all events arrived")??;
    for nth in 0..writes {
        maps.delete(&watched_name(nth), &DeleteParams::default()).await?;
    }
    printer.print_percentiles(name, durations)
}

fn watched_name(nth: usize) -> String {
    format!("watched-{nth:05}")
}

/// Latency of each event, from the time in its annotation. Events are not decoded further.
pub(super) async fn event_latencies<E>(
    stream: impl Stream<Item = Result<Bytes, E>>,
    count: usize,
) -> anyhow::Result<Vec<Duration>>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let (mut stream, mut line, mut durations) = (pin!(stream), Vec::new(), Vec::with_capacity(count));
    while durations.len() < count {
        let bytes = stream.next().await.context("the watch ended")??;
        let mut rest = &bytes[..];
        while let Some(end) = memchr(b'\n', rest) {
            line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            if line.starts_with(b"{") {
                durations.push(unix_time().saturating_sub(write_time(&line).context("an event has no write time")?));
            }
            line.clear();
        }
        line.extend_from_slice(rest);
    }
    Ok(durations)
}

fn write_time(line: &[u8]) -> Option<Duration> {
    // Built once, because building it takes longer than a search.
    static FINDER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(WRITE_TIME_ANNOTATION));
    let after = &line[FINDER.find(line)? + WRITE_TIME_ANNOTATION.len()..];
    let digits = after.split(|byte| !byte.is_ascii_digit()).find(|digits| !digits.is_empty())?;
    Some(Duration::from_nanos(std::str::from_utf8(digits).ok()?.parse().ok()?))
}

/// Measures the memory of many objects, and how long a start with them takes.
async fn measure_stored_objects(
    args: &ApiserverArgs,
    dir: &Path,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let server = super::start_apiserver(dir).await?;
    create_objects(
        &config_maps(&Target::local(dir)).await?,
        args.stored,
        args.clients,
        LARGE_OBJECT_BYTES,
        None::<&mut MeasurementPrinter<std::io::Sink>>,
    )
    .await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let megabytes = |kib: u64| kib as f64 / 1024.0;
    let prefix = format!("apiserver/stored-{}", args.stored);
    printer.print(&format!("{prefix}/rss"), megabytes(super::resident_kib(&server.child)?), "MB")?;
    super::stop(server).await?;
    let restarted = super::start_apiserver(dir).await?;
    printer.print(&format!("{prefix}/restart"), restarted.ready.as_secs_f64() * 1e3, "ms")?;
    tokio::time::sleep(SETTLE_TIME).await;
    printer.print(&format!("{prefix}/restarted-rss"), megabytes(super::resident_kib(&restarted.child)?), "MB")?;
    super::stop(restarted).await
}
