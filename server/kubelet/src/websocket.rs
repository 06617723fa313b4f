//! Kubernetes' channel protocols over WebSocket: the first byte of a message (a digit in the base64 variants) is the
//! channel number.
//!
//! [`Channels`] is used by `remotecommand` and `portforward`; [`tunnel`] turns a WebSocket into a byte stream for
//! SPDY.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt, future};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use crate::stream::Sink;

/// Maximum size of a received message. Clients send stdin and port-forward data in chunks of about 32 KiB.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum payload of a sent message, as in the kubelet. tungstenite moves the unsent rest of a message with every
/// write.
const MAX_SENT_BYTES: usize = 32 << 10;
/// Number of messages buffered for the reader of a channel.
const MAX_BUFFERED_MESSAGES: usize = 16;
/// v5: the channel whose messages close other channels.
const CLOSE_CHANNEL: u8 = 255;

/// Encoding of channel and payload in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Binary messages: channel byte, then payload.
    Binary,
    /// Text messages: channel digit, then payload in base64.
    Base64,
}

type Writer<T> = Arc<Mutex<SplitSink<WebSocketStream<T>, Message>>>;

/// The channels of a WebSocket: receivers, sinks, and the future that reads the socket.
pub struct Channels<T> {
    pub receivers: Vec<Option<mpsc::Receiver<Bytes>>>,
    pub driver: Driver<T>,
    writer: Writer<T>,
    encoding: Encoding,
}

/// Reads messages into channels until the peer closes the socket.
pub struct Driver<T> {
    reader: SplitStream<WebSocketStream<T>>,
    senders: Vec<Option<mpsc::Sender<Bytes>>>,
    encoding: Encoding,
}

/// The sending side of one channel.
pub struct ChannelSink<T> {
    channel: u8,
    encoding: Encoding,
    writer: Writer<T>,
}

async fn server_socket<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> WebSocketStream<T> {
    let config =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Channels<T> {
    /// Creates `count` channels on a connection whose handshake is complete.
    pub async fn new(io: T, count: usize, encoding: Encoding) -> Self {
        let (sink, reader) = server_socket(io).await.split();
        let (senders, receivers) = (0..count)
            .map(|_| {
                let (sender, receiver) = mpsc::channel(MAX_BUFFERED_MESSAGES);
                (Some(sender), Some(receiver))
            })
            .unzip();
        let driver = Driver { reader, senders, encoding };
        Self { receivers, driver, writer: Arc::new(Mutex::new(sink)), encoding }
    }

    pub fn sink(&self, channel: u8) -> Arc<ChannelSink<T>> {
        Arc::new(ChannelSink { channel, encoding: self.encoding, writer: self.writer.clone() })
    }

    /// Takes the receiver of a channel. Returns `None` the second time.
    pub fn take_receiver(&mut self, channel: u8) -> Option<mpsc::Receiver<Bytes>> {
        self.receivers.get_mut(usize::from(channel))?.take()
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ChannelSink<T> {
    /// Sends one message, even if it is empty.
    pub async fn send_message(&self, data: &[u8]) -> io::Result<()> {
        let message = match self.encoding {
            Encoding::Binary => {
                let mut bytes = BytesMut::with_capacity(data.len() + 1);
                bytes.put_u8(self.channel);
                bytes.extend_from_slice(data);
                Message::Binary(bytes.freeze())
            }
            Encoding::Base64 => Message::text(format!("{}{}", self.channel, STANDARD.encode(data))),
        };
        self.writer.lock().await.send(message).await.map_err(io::Error::other)
    }

    /// Closes the WebSocket with a close frame.
    pub async fn close_socket(&self) -> io::Result<()> {
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        match self.writer.lock().await.send(Message::Close(Some(frame))).await {
            Ok(()) | Err(WsError::ConnectionClosed | WsError::AlreadyClosed) => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

#[async_trait]
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Sink for ChannelSink<T> {
    async fn send(&self, data: Bytes) -> io::Result<()> {
        for chunk in data.chunks(MAX_SENT_BYTES) {
            self.send_message(chunk).await?;
        }
        Ok(())
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Driver<T> {
    /// Reads until the peer closes the socket; then all channels end.
    pub async fn run(mut self) -> io::Result<()> {
        while let Some(message) = self.reader.next().await {
            let message = match message {
                Ok(message) => message,
                Err(WsError::ConnectionClosed | WsError::AlreadyClosed) => break,
                Err(error) => return Err(io::Error::other(error)),
            };
            let payload = match message {
                Message::Binary(bytes) => bytes,
                Message::Text(text) => text.into(),
                // tungstenite handles pings and close frames.
                _ => continue,
            };
            self.deliver(payload).await?;
        }
        Ok(())
    }

    async fn deliver(&mut self, payload: Bytes) -> io::Result<()> {
        let Some((channel, data)) = decode(self.encoding, &payload)? else { return Ok(()) };
        if channel == CLOSE_CHANNEL {
            if let Some(sender) = data.first().and_then(|closed| self.senders.get_mut(usize::from(*closed))) {
                *sender = None;
            }
            return Ok(());
        }
        if let Some(Some(sender)) = self.senders.get(usize::from(channel)) {
            // Messages to a channel whose reader was dropped are discarded.
            if !data.is_empty() && sender.send(data).await.is_err() {
                self.senders[usize::from(channel)] = None;
            }
        }
        Ok(())
    }
}

/// Decodes channel and payload of a message. Returns `None` for an empty message.
fn decode(encoding: Encoding, payload: &Bytes) -> io::Result<Option<(u8, Bytes)>> {
    let Some(first) = payload.first().copied() else { return Ok(None) };
    match encoding {
        Encoding::Binary => Ok(Some((first, payload.slice(1..)))),
        Encoding::Base64 => {
            let data = STANDARD.decode(&payload[1..]).map_err(io::Error::other)?;
            Ok(first.is_ascii_digit().then(|| (first - b'0', Bytes::from(data))))
        }
    }
}

/// Turns the payload of binary messages into a byte stream in both directions.
pub async fn tunnel<T>(io: T) -> impl AsyncRead + AsyncWrite + Send + Unpin + 'static
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sink, stream) = server_socket(io).await.split();
    let bytes = stream.filter_map(|message| {
        future::ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(_) | Err(WsError::ConnectionClosed | WsError::AlreadyClosed) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    let sink = sink
        .with(|bytes: Bytes| future::ready(Ok::<_, WsError>(Message::Binary(bytes))))
        .sink_map_err(io::Error::other);
    tokio::io::join(StreamReader::new(bytes), SinkWriter::new(CopyToBytes::new(sink)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(Encoding::Binary, b"\x01hello", Some((1, "hello")))]
    #[case(Encoding::Binary, b"\xff\x00", Some((255, "\0")))]
    #[case(Encoding::Binary, b"", None)]
    #[case(Encoding::Base64, b"0aGVsbG8=", Some((0, "hello")))]
    #[case(Encoding::Base64, b"x", None)]
    fn messages_are_decoded(
        #[case] encoding: Encoding,
        #[case] payload: &'static [u8],
        #[case] expected: Option<(u8, &'static str)>,
    ) {
        let decoded = decode(encoding, &Bytes::from_static(payload)).unwrap();
        assert_eq!(decoded, expected.map(|(channel, data)| (channel, Bytes::from(data))));
    }

    #[tokio::test]
    async fn large_payloads_are_split_into_messages() {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let channels = Channels::new(ours, 3, Encoding::Binary).await;
        let sent: Vec<u8> = (0..=250).cycle().take(2 * MAX_SENT_BYTES + 1).collect();
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        let (sink, large) = (channels.sink(1), Bytes::from(sent.clone()));
        sink.send(large).await.unwrap();
        sink.close_socket().await.unwrap();
        let (mut received, mut sizes) = (Vec::new(), Vec::new());
        while let Some(Ok(Message::Binary(message))) = client.next().await {
            assert_eq!(message[0], 1);
            sizes.push(message.len() - 1);
            received.extend_from_slice(&message[1..]);
        }
        assert_eq!((sizes, received), (vec![MAX_SENT_BYTES, MAX_SENT_BYTES, 1], sent));
    }
}
