//! exec and attach: the streams of a process over SPDY (protocols v1 to v4) or WebSocket channels (v1, v4, v5).

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::idle::StreamTimeouts;
use super::spdy::{self, RstStatus};
use super::stream::{Input, Output, Sink};
use super::websocket::{Channels, Encoding};

/// Time within which the client must close the connection after the last byte.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Version of the remote command protocol. Each version extends the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// stdin, stdout, stderr; errors as text.
    V1,
    /// Fixes the closing of streams in clients; the server side is that of v1.
    V2,
    /// Adds the resize stream.
    V3,
    /// The error stream carries a `Status`.
    V4,
    /// WebSocket only: clients can close stdin.
    V5,
}

impl Version {
    /// Values of `X-Stream-Protocol-Version` for SPDY, newest first.
    pub const SPDY: &[(&str, Version)] = &[
        ("v4.channel.k8s.io", Version::V4),
        ("v3.channel.k8s.io", Version::V3),
        ("v2.channel.k8s.io", Version::V2),
        ("channel.k8s.io", Version::V1),
    ];

    /// WebSocket subprotocols.
    pub const WEBSOCKET: &[(&str, (Version, Encoding))] = &[
        ("v5.channel.k8s.io", (Version::V5, Encoding::Binary)),
        ("v4.channel.k8s.io", (Version::V4, Encoding::Binary)),
        ("v4.base64.channel.k8s.io", (Version::V4, Encoding::Base64)),
        ("channel.k8s.io", (Version::V1, Encoding::Binary)),
        ("base64.channel.k8s.io", (Version::V1, Encoding::Base64)),
    ];
}

/// Streams requested by the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub stdin: bool,
    pub stdout: bool,
    /// Never set together with `tty`: a terminal has a single output.
    pub stderr: bool,
    pub tty: bool,
}

/// Columns and rows of the client's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// The streams of a process.
pub struct Session {
    pub stdin: Input,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    pub resize: Option<mpsc::Receiver<TerminalSize>>,
    pub tty: bool,
}

/// Result of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and returned this exit code.
    Exited { code: i32, command: Vec<String> },
    /// It could not be run.
    Failed(String),
}

impl Outcome {
    /// Returns the `Status` that v4 and later send on the error stream.
    pub fn status(&self) -> Value {
        match self {
            Outcome::Exited { code: 0, .. } => json!({"metadata": {}, "status": "Success"}),
            Outcome::Exited { code, .. } => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: {}", self.error_text()),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Outcome::Failed(message) => crowsnest_apimachinery::status::ApiError::internal(message).to_status(),
        }
    }

    /// Returns the error text of v1 to v3.
    fn error_text(&self) -> String {
        match self {
            Outcome::Exited { code, command } => {
                format!("error executing command [{}], exit code {code}", command.join(" "))
            }
            Outcome::Failed(message) => message.clone(),
        }
    }

    /// Encodes the outcome for the error stream. v1 to v3 send nothing on success.
    fn encode(&self, version: Version) -> Bytes {
        match (version, self) {
            (Version::V4 | Version::V5, _) => Bytes::from(self.status().to_string()),
            (_, Outcome::Exited { code: 0, .. }) => Bytes::new(),
            _ => Bytes::from(self.error_text()),
        }
    }
}

/// Serves one exec or attach session over SPDY. Returns when the client has disconnected or received all output.
pub async fn serve_spdy<T, F, R>(
    io: T,
    version: Version,
    options: Options,
    timeouts: StreamTimeouts,
    process: F,
) -> Result<(), spdy::SpdyError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: FnOnce(Session) -> R,
    R: Future<Output = Outcome>,
{
    let (mut connection, driver) = spdy::Connection::new(io)?;
    let driver = driver.run();
    tokio::pin!(driver);
    let session_task = async {
        let streams = timeout(timeouts.stream_creation, accept_streams(&mut connection, version, &options)).await;
        let Ok(Some((error, session, size_parser))) = streams else { return connection.close().await };
        let (stdout, stderr) = (session.stdout.clone(), session.stderr.clone());
        let outcome = tokio::select! {
            outcome = process(session) => outcome,
            never = size_parser => match never {},
        };
        error.send(outcome.encode(version)).await?;
        for sink in [stdout, stderr].into_iter().flatten() {
            sink.finish().await?;
        }
        error.finish().await?;
        connection.close().await
    };
    tokio::select! {
        result = &mut driver => return result,
        result = session_task => result?,
    }
    // The client closes the connection once it has read everything.
    timeout(CLOSE_TIMEOUT, driver).await.unwrap_or(Ok(()))
}

/// A future that parses terminal sizes while the process runs and never completes.
type SizeParser = futures::future::BoxFuture<'static, std::convert::Infallible>;

/// Accepts the requested streams. Returns `None` if the connection ends or there is no error stream.
async fn accept_streams(
    connection: &mut spdy::Connection,
    version: Version,
    options: &Options,
) -> Option<(spdy::Sender, Session, SizeParser)> {
    let has_resize = options.tty && version >= Version::V3;
    let stream_count = 1 + [options.stdin, options.stdout, options.stderr, has_resize].iter().filter(|w| **w).count();
    let mut session = Session { stdin: Input::empty(), stdout: None, stderr: None, resize: None, tty: options.tty };
    let (mut error, mut size_parser): (_, SizeParser) = (None, Box::pin(std::future::pending()));
    for _ in 0..stream_count {
        let stream = connection.accept().await?;
        let kind = stream.header("streamtype").unwrap_or_default().to_owned();
        let (receiver, sender) = stream.split();
        match kind.as_str() {
            "error" => error = Some(sender),
            "stdin" => session.stdin = Input::new(receiver),
            "stdout" => session.stdout = Some(std::sync::Arc::new(sender)),
            "stderr" => session.stderr = Some(std::sync::Arc::new(sender)),
            "resize" => (session.resize, size_parser) = parse_terminal_sizes(Input::new(receiver)),
            _ => {
                tracing::debug!(kind, "client opened a stream of unknown type");
                // A failed write also ends the driver, which reports the error.
                sender.reset(RstStatus::PROTOCOL_ERROR).await.ok()?;
            }
        }
    }
    Some((error?, session, size_parser))
}

/// Parses terminal sizes, one JSON object per line.
fn parse_terminal_sizes(mut lines: Input) -> (Option<mpsc::Receiver<TerminalSize>>, SizeParser) {
    let (sender, receiver) = mpsc::channel(1);
    let size_parser = Box::pin(async move {
        while let Some(line) = lines.read_line().await {
            match serde_json::from_slice(&line) {
                Ok(size) => {
                    if sender.send(size).await.is_err() {
                        break;
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot parse terminal size"),
            }
        }
        std::future::pending().await
    });
    (Some(receiver), size_parser)
}

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// Serves one exec or attach session over WebSocket channels.
pub async fn serve_websocket<T, F, R>(
    io: T,
    (version, encoding): (Version, Encoding),
    options: Options,
    process: F,
) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: FnOnce(Session) -> R,
    R: Future<Output = Outcome>,
{
    let mut channels = Channels::new(io, 5, encoding).await;
    let stdin = channels.take_receiver(STDIN).filter(|_| options.stdin).map_or_else(Input::empty, Input::new);
    let output =
        |is_requested: bool, channel| -> Option<Output> { is_requested.then(|| channels.sink(channel) as Output) };
    let (stdout, stderr) = (output(options.stdout, STDOUT), output(options.stderr, STDERR));
    let error = channels.sink(ERROR);
    // Clients wait for an initial empty message before they use the channels.
    let first_channel = if options.stdout {
        STDOUT
    } else if options.stderr {
        STDERR
    } else {
        ERROR
    };
    channels.sink(first_channel).send_message(b"").await?;
    let (resize, size_parser) = match channels.take_receiver(RESIZE).filter(|_| options.tty) {
        Some(receiver) => parse_terminal_sizes(Input::new(NewlineSource(receiver))),
        None => (None, Box::pin(std::future::pending()) as SizeParser),
    };
    let session = Session { stdin, stdout, stderr, resize, tty: options.tty };
    let driver = channels.driver.run();
    tokio::pin!(driver);
    let session_task = async {
        let outcome = tokio::select! {
            outcome = process(session) => outcome,
            never = size_parser => match never {},
        };
        error.send(outcome.encode(version)).await?;
        error.close_socket().await
    };
    tokio::select! {
        result = &mut driver => return result,
        result = session_task => result?,
    }
    timeout(CLOSE_TIMEOUT, driver).await.unwrap_or(Ok(()))
}

/// Appends a newline to each message: WebSocket clients may send terminal sizes without one.
struct NewlineSource(mpsc::Receiver<Bytes>);

#[async_trait::async_trait]
impl super::stream::Source for NewlineSource {
    async fn recv(&mut self) -> Option<Bytes> {
        let mut message = self.0.recv().await?.to_vec();
        message.push(b'\n');
        Some(Bytes::from(message))
    }
}
