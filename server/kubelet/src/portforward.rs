//! Port forwarding: connections to ports of a pod over SPDY streams (directly or inside a WebSocket) or WebSocket
//! channels.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

use super::idle::StreamTimeouts;
use super::spdy::{self, RstStatus, Stream};
use super::stream::{Input, Sink};
use super::websocket::{Channels, Encoding};

/// Name of the port-forward protocol, for SPDY and as WebSocket subprotocol.
pub const PROTOCOL: &str = "portforward.k8s.io";
/// WebSocket subprotocol that carries SPDY frames.
pub const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// WebSocket subprotocols with two channels per port.
pub const CHANNEL_PROTOCOLS: &[(&str, Encoding)] =
    &[("v4.channel.k8s.io", Encoding::Binary), ("v4.base64.channel.k8s.io", Encoding::Base64)];

/// Buffer size of a forwarded connection, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of streams waiting for their counterpart.
const MAX_UNPAIRED_STREAMS: usize = 512;
/// Time within which the client must close the connection after the last byte.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a port of a pod. The error is shown to the user.
#[async_trait]
pub trait PortDialer: Send + Sync {
    async fn dial(&self, port: u16) -> Result<DuplexStream, String>;
}

/// Copies data in both directions until both sides have finished.
async fn copy_both_ways(mut inbound: Input, outbound: &dyn Sink, target: DuplexStream) -> io::Result<()> {
    let (mut read, mut write) = tokio::io::split(target);
    let to_target = async {
        while let Some(chunk) = inbound.read_chunk().await {
            if write.write_all(&chunk).await.is_err() {
                // The target closed its receiving side; its remaining output is still forwarded.
                return;
            }
        }
        if let Err(error) = write.shutdown().await {
            tracing::debug!(%error, "target of a forwarded port disconnected");
        }
    };
    let to_client = async {
        let mut buffer = vec![0u8; BUFFER_BYTES / 2];
        loop {
            match read.read(&mut buffer).await? {
                0 => return outbound.finish().await,
                n => outbound.send(Bytes::copy_from_slice(&buffer[..n])).await?,
            }
        }
    };
    tokio::pin!(to_target, to_client);
    // Client data after the target has closed is dropped.
    tokio::select! {
        result = &mut to_client => result,
        () = &mut to_target => to_client.await,
    }
}

/// Serves port-forward over a SPDY connection: each forwarded connection has an error and a data stream.
pub async fn serve_spdy<T>(io: T, timeouts: StreamTimeouts, dialer: Arc<dyn PortDialer>) -> Result<(), spdy::SpdyError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut connection, driver) = spdy::Connection::new(io)?;
    let driver = driver.run();
    tokio::pin!(driver);
    let mut unpaired: HashMap<String, Stream> = HashMap::new();
    let mut forwards = FuturesUnordered::new();
    let mut pair_timeouts = FuturesUnordered::new();
    loop {
        tokio::select! {
            result = &mut driver => return result,
            Some(()) = forwards.next(), if !forwards.is_empty() => {}
            Some(id) = pair_timeouts.next(), if !pair_timeouts.is_empty() => reset_unpaired(&mut unpaired, id).await?,
            stream = connection.accept() => {
                let Some(stream) = stream else { continue };
                let id = stream.id;
                match pair(&mut unpaired, stream) {
                    Ok(Some((error, data))) => forwards.push(forward(error, data, dialer.clone())),
                    Ok(None) => pair_timeouts.push(async move {
                        tokio::time::sleep(timeouts.stream_creation).await;
                        id
                    }),
                    Err(stream) => stream.split().1.reset(RstStatus::PROTOCOL_ERROR).await?,
                }
            }
        }
    }
}

/// Resets a stream whose counterpart was not opened in time. An error stream reports the timeout first.
async fn reset_unpaired(unpaired: &mut HashMap<String, Stream>, id: u32) -> Result<(), spdy::SpdyError> {
    let Some(key) = unpaired.iter().find(|(_, stream)| stream.id == id).map(|(key, _)| key.clone()) else {
        return Ok(());
    };
    let Some(stream) = unpaired.remove(&key) else { return Ok(()) };
    let is_error = stream.header("streamtype") == Some("error");
    let (_, sender) = stream.split();
    let text = Bytes::from(format!("(request={key}) timed out waiting for streams"));
    if is_error && let Err(error) = sender.send(text).await {
        tracing::debug!(%error, "cannot report timeout of port-forward stream");
    }
    sender.reset(RstStatus::CANCEL).await
}

/// Pairs an error stream with its data stream. Old clients send no request ID; their next data stream belongs to the
/// error stream.
fn pair(unpaired: &mut HashMap<String, Stream>, stream: Stream) -> Result<Option<(Stream, Stream)>, Stream> {
    let is_error = match stream.header("streamtype") {
        Some("error") => true,
        Some("data") => false,
        _ => return Err(stream),
    };
    let key = match stream.header("requestid") {
        Some(id) => id.to_owned(),
        None if is_error => stream.id.to_string(),
        None => stream.id.saturating_sub(2).to_string(),
    };
    let Some(other) = unpaired.remove(&key) else {
        if unpaired.len() >= MAX_UNPAIRED_STREAMS {
            return Err(stream);
        }
        unpaired.insert(key, stream);
        return Ok(None);
    };
    match (is_error, other.header("streamtype")) {
        (true, Some("data")) => Ok(Some((stream, other))),
        (false, Some("error")) => Ok(Some((other, stream))),
        _ => Err(stream),
    }
}

async fn forward(error: Stream, data: Stream, dialer: Arc<dyn PortDialer>) {
    let port = data.header("port").and_then(|p| p.parse().ok());
    let (_, error) = error.split();
    let (inbound, outbound) = data.split();
    let error_text = match port {
        None => Some("missing or invalid \"port\" header".to_owned()),
        Some(port) => match dialer.dial(port).await {
            Ok(target) => match copy_both_ways(Input::new(inbound), &outbound, target).await {
                Ok(()) => None,
                Err(error) => Some(error.to_string()),
            },
            Err(error) => Some(error),
        },
    };
    let closing = async {
        if let Some(text) = error_text {
            error.send(Bytes::from(text)).await?;
        }
        error.finish().await?;
        outbound.finish().await
    };
    if let Err(error) = closing.await {
        tracing::debug!(%error, "port-forward client disconnected");
    }
}

/// Serves port-forward over WebSocket channels: two channels per port, each of which starts with the port number.
pub async fn serve_websocket<T>(
    io: T,
    encoding: Encoding,
    ports: Vec<u16>,
    dialer: Arc<dyn PortDialer>,
) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut channels = Channels::new(io, ports.len() * 2, encoding).await;
    let mut forwards = FuturesUnordered::new();
    let mut first_sink = None;
    for (index, port) in ports.into_iter().enumerate() {
        let channel = u8::try_from(index * 2).map_err(io::Error::other)?;
        let (data, error) = (channels.sink(channel), channels.sink(channel + 1));
        data.send_message(&port.to_le_bytes()).await?;
        error.send_message(&port.to_le_bytes()).await?;
        first_sink.get_or_insert_with(|| data.clone());
        let inbound = channels.take_receiver(channel).map_or_else(Input::empty, Input::new);
        let dialer = dialer.clone();
        forwards.push(async move {
            let result = match dialer.dial(port).await {
                Ok(target) => copy_both_ways(inbound, &*data, target).await,
                Err(message) => error.send_message(message.as_bytes()).await,
            };
            if let Err(error) = result {
                tracing::debug!(%error, "port-forward client disconnected");
            }
        });
    }
    let driver = channels.driver.run();
    tokio::pin!(driver);
    loop {
        tokio::select! {
            result = &mut driver => return result,
            Some(()) = forwards.next(), if !forwards.is_empty() => {}
            else => break,
        }
        if forwards.is_empty() {
            break;
        }
    }
    // WebSocket channels cannot be closed one by one, so the socket is closed with the last connection.
    if let Some(sink) = first_sink {
        sink.close_socket().await?;
    }
    timeout(CLOSE_TIMEOUT, driver).await.unwrap_or(Ok(()))
}
