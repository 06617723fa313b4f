//! `crowsnest bench fan-out`: measures the delivery of many changes to many watches of the embedded API server in its
//! own process, the memory of a watch, and whether watches that stop reading end with 410 Expired.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use memchr::memmem;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use super::apiserver::{
    Target, WRITE_TIME_ANNOTATION, WatchEndpoint, config_map, config_maps, event_latencies, open_shared_watches,
    unix_time, watch_path,
};
use super::cache::MeasurementPrinter;
use super::scratch::ScratchArgs;

#[derive(Debug, Clone, Args)]
pub(super) struct FanOutArgs {
    /// Number of watches
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// Changes per second, each of which all watches receive
    #[arg(long, default_value_t = 500.0, value_name = "N")]
    churn: f64,
    /// Duration of the changes, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Size of the text in each object, in bytes
    #[arg(long, default_value_t = 200, value_name = "BYTES")]
    object_bytes: usize,
    /// Number of watches that stop reading
    #[arg(long, default_value_t = 20)]
    slow: usize,
}

/// Maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 64;
/// Time for which the server runs before its memory is read.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Time limit for the delivery of all events after the last write.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Size of a large object in bytes, below the limit of ConfigMaps.
const LARGE_OBJECT_BYTES: usize = 900_000;
/// Number of writes of large objects; several times as many bytes as the server keeps as history.
const LARGE_WRITES: usize = 150;
/// Receive buffer of the connections that stop reading, in bytes.
const SLOW_BUFFER_BYTES: u32 = 64 << 10;
/// Time limit for reading the rest of a watch that stopped reading.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(30);
/// The text in an event that ends a watch whose position has expired.
const EXPIRED: &[u8] = b"\"code\":410";

pub(super) async fn run(args: &FanOutArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(
        args.watchers > 0 && args.churn > 0.0 && args.seconds > 0,
        "--watchers, --churn and --seconds must be above 0"
    );
    let scratch = scratch.create()?;
    let server = super::start_apiserver(scratch.path()).await?;
    let target = Target::local(scratch.path());
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    measure_delivery(&target, &server, args, &mut printer).await?;
    if args.slow > 0 {
        measure_slow_watches(&target, &server, args.slow, &mut printer).await?;
    }
    super::stop(server).await
}

/// Measures the time from the start of each write until each watch has received the whole event.
async fn measure_delivery(
    target: &Target,
    server: &super::RunningProcess,
    args: &FanOutArgs,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let writes = (args.churn * f64::from(args.seconds)).round() as usize;
    let path = watch_path(target).await?;
    let before = super::resident_kib(&server.child)?;
    let watches = open_shared_watches(target, &path, args.watchers).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let growth = super::resident_kib(&server.child)?.saturating_sub(before) * 1024;
    printer.print("fan-out/memory-each", growth as f64 / 1e3 / args.watchers as f64, "KB")?;

    let mut readers: JoinSet<_> = watches.streams.into_iter().map(|stream| event_latencies(stream, writes)).collect();
    let start = Instant::now();
    write_at_rate(&config_maps(target).await?, writes, args).await?;
    printer.print("fan-out/changes", writes as f64 / start.elapsed().as_secs_f64(), "changes/s")?;
    let deliveries = async {
        let mut durations = Vec::with_capacity(writes * args.watchers);
        while let Some(result) = readers.join_next().await {
            durations.extend(result??);
        }
        anyhow::Ok(durations)
    };
    let durations = tokio::time::timeout(DELIVERY_TIMEOUT, deliveries).await.context("not all events arrived")??;
    printer.print("fan-out/delivered", durations.len() as f64 / start.elapsed().as_secs_f64(), "events/s")?;
    printer.print_percentiles("fan-out/delivery", durations)?;
    printer.print("fan-out/rss", super::resident_kib(&server.child)? as f64 / 1024.0, "MB")
}

/// Creates watched objects at the rate of `--churn`.
async fn write_at_rate(maps: &Api<ConfigMap>, writes: usize, args: &FanOutArgs) -> anyhow::Result<()> {
    let start = Instant::now();
    let creates = (0..writes).map(|nth| async move {
        tokio::time::sleep_until(start + Duration::from_secs_f64(nth as f64 / args.churn)).await;
        let mut object = config_map(&format!("fan-out-{nth:06}"), args.object_bytes, nth)?;
        object.metadata.labels = Some([("bench".to_owned(), "watched".to_owned())].into());
        object.metadata.annotations =
            Some([(WRITE_TIME_ANNOTATION.to_owned(), unix_time().as_nanos().to_string())].into());
        maps.create(&PostParams::default(), &object).await?;
        anyhow::Ok(())
    });
    stream::iter(creates).buffer_unordered(MAX_CONCURRENT_WRITES).try_collect::<()>().await
}

/// Opens watches that do not read, writes more than the server keeps, and counts the watches that then end with 410.
async fn measure_slow_watches(
    target: &Target,
    server: &super::RunningProcess,
    count: usize,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let endpoint = WatchEndpoint::load(target).await?;
    let mut watches = Vec::with_capacity(count);
    for _ in 0..count {
        watches.push(open_slow_watch(&endpoint).await?);
    }
    let before = super::resident_kib(&server.child)?;
    write_large_objects(&config_maps(target).await?).await?;
    let growth = super::resident_kib(&server.child)?.saturating_sub(before) as f64 / 1024.0;
    printer.print("fan-out/slow-memory", growth, "MB")?;
    let mut expired = 0;
    for watch in watches {
        let result = tokio::time::timeout(EXPIRY_TIMEOUT, ends_with_expired(watch)).await;
        expired += usize::from(result.is_ok_and(|is_expired| is_expired));
    }
    printer.print("fan-out/slow-expired", expired as f64, "watches")
}

/// Opens a watch on a connection with a small receive buffer.
async fn open_slow_watch(endpoint: &WatchEndpoint) -> anyhow::Result<TlsStream<TcpStream>> {
    let address: SocketAddr = tokio::net::lookup_host(endpoint.address())
        .await?
        .find(SocketAddr::is_ipv4)
        .context("the server has no IPv4 address")?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(SLOW_BUFFER_BYTES)?;
    endpoint.start(socket.connect(address).await?).await
}

/// Writes one object again and again, with text that hardly compresses.
async fn write_large_objects(maps: &Api<ConfigMap>) -> anyhow::Result<()> {
    const NAME: &str = "large";
    for nth in 0..LARGE_WRITES {
        let mut text = String::with_capacity(LARGE_OBJECT_BYTES);
        while text.len() < LARGE_OBJECT_BYTES {
            text.push_str(&format!("{:032x}", rand::random::<u128>()));
        }
        let object = json!({"metadata": {"name": NAME, "labels": {"bench": "watched"}}, "data": {"text": text}});
        let object: ConfigMap = serde_json::from_value(object)?;
        match nth {
            0 => maps.create(&PostParams::default(), &object).await?,
            _ => maps.replace(NAME, &PostParams::default(), &object).await?,
        };
    }
    Ok(())
}

/// Reads a watch until an event reports that its position has expired. False if it ends without that event.
async fn ends_with_expired(mut watch: impl AsyncRead + Unpin) -> bool {
    let (mut buffer, mut kept) = (vec![0; 64 << 10], 0);
    while let Ok(length) = watch.read(&mut buffer[kept..]).await {
        if length == 0 {
            return false;
        }
        let end = kept + length;
        if memmem::find(&buffer[..end], EXPIRED).is_some() {
            return true;
        }
        // The text may continue in the next read.
        kept = end.min(EXPIRED.len() - 1);
        buffer.copy_within(end - kept..end, 0);
    }
    false
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::whole(&["{\"type\":\"ADDED\"}\n", "{\"type\":\"ERROR\",\"object\":{\"code\":410}}\n"], true)]
    #[case::divided(&["{\"type\":\"ERROR\",\"object\":{\"cod", "e\":4", "10}}\n"], true)]
    #[case::other_code(&["{\"type\":\"ERROR\",\"object\":{\"code\":500}}\n"], false)]
    #[case::empty(&[], false)]
    #[tokio::test]
    async fn expired_watches_are_recognized(#[case] reads: &[&str], #[case] expected: bool) {
        let (mut server, client) = tokio::io::duplex(1 << 10);
        let reading = ends_with_expired(client);
        let writing = async {
            for text in reads {
                tokio::io::AsyncWriteExt::write_all(&mut server, text.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(server);
        };
        assert_eq!(tokio::join!(reading, writing).0, expected);
    }
}
