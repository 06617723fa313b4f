//! exec and attach: five streams of a process over SPDY (protocols v1 to v4) or WebSocket channels (v1, v4, v5).

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::idle::Limits;
use super::spdy::{self, RstStatus};
use super::stream::{Input, Output, Sink};
use super::websocket::{Channels, Encoding};

/// After the last byte the client has this long to close the connection.
const DRAIN: Duration = Duration::from_secs(10);

/// Version of the remote command protocol; each adds to the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// stdin, stdout, stderr; errors as text.
    V1,
    /// Fixes of v1's stream close; the same on the server.
    V2,
    /// Adds the resize stream.
    V3,
    /// The error stream carries a `Status`.
    V4,
    /// WebSocket only: clients can close stdin.
    V5,
}

impl Version {
    /// `X-Stream-Protocol-Version` values that SPDY clients send, newest first.
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

/// What the client asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub stdin: bool,
    pub stdout: bool,
    /// Never together with `tty`: a terminal has one output.
    pub stderr: bool,
    pub tty: bool,
}

/// Rows and columns of the client's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// The streams as a process sees them.
pub struct Session {
    pub stdin: Input,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    pub resize: Option<mpsc::Receiver<TerminalSize>>,
    pub tty: bool,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and left this code.
    Exited { code: i32, command: Vec<String> },
    /// It could not be run.
    Failed(String),
}

impl Outcome {
    /// The `Status` that v4 and later send on the error stream.
    pub fn status(&self) -> Value {
        match self {
            Outcome::Exited { code: 0, .. } => json!({"metadata": {}, "status": "Success"}),
            Outcome::Exited { code, .. } => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: {}", self.text()),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Outcome::Failed(why) => crowsnest_apimachinery::status::ApiError::internal(why).to_status(),
        }
    }

    /// The error text of v1 to v3.
    fn text(&self) -> String {
        match self {
            Outcome::Exited { code, command } => {
                format!("error executing command [{}], exit code {code}", command.join(" "))
            }
            Outcome::Failed(why) => why.clone(),
        }
    }

    /// Bytes for the error stream; v1 to v3 stay silent about success.
    fn report(&self, version: Version) -> Bytes {
        match (version, self) {
            (Version::V4 | Version::V5, _) => Bytes::from(self.status().to_string()),
            (_, Outcome::Exited { code: 0, .. }) => Bytes::new(),
            _ => Bytes::from(self.text()),
        }
    }
}

/// Serves one exec or attach over SPDY. Returns when the client is gone or has everything.
pub async fn serve_spdy<T, F, R>(
    io: T,
    version: Version,
    options: Options,
    limits: Limits,
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
    let work = async {
        let collected = timeout(limits.stream_creation, collect(&mut connection, version, &options)).await;
        let Ok(Some((error, session, pump))) = collected else { return connection.close().await };
        let (stdout, stderr) = (session.stdout.clone(), session.stderr.clone());
        let outcome = tokio::select! {
            outcome = process(session) => outcome,
            never = pump => match never {},
        };
        error.send(outcome.report(version)).await?;
        for sink in [stdout, stderr].into_iter().flatten() {
            sink.finish().await?;
        }
        error.finish().await?;
        connection.close().await
    };
    tokio::select! {
        ended = &mut driver => return ended,
        done = work => done?,
    }
    // The client closes once it has read everything.
    timeout(DRAIN, driver).await.unwrap_or(Ok(()))
}

/// A future that only moves bytes as long as the process runs.
type Pump = futures::future::BoxFuture<'static, std::convert::Infallible>;

async fn collect(
    connection: &mut spdy::Connection,
    version: Version,
    options: &Options,
) -> Option<(spdy::Sender, Session, Pump)> {
    let resizes = options.tty && version >= Version::V3;
    let wanted = 1 + [options.stdin, options.stdout, options.stderr, resizes].iter().filter(|w| **w).count();
    let mut session = Session { stdin: Input::empty(), stdout: None, stderr: None, resize: None, tty: options.tty };
    let (mut error, mut pump): (_, Pump) = (None, Box::pin(std::future::pending()));
    for _ in 0..wanted {
        let stream = connection.accept().await?;
        let kind = stream.header("streamtype").unwrap_or_default().to_owned();
        let (receiver, sender) = stream.split();
        match kind.as_str() {
            "error" => error = Some(sender),
            "stdin" => session.stdin = Input::new(receiver),
            "stdout" => session.stdout = Some(std::sync::Arc::new(sender)),
            "stderr" => session.stderr = Some(std::sync::Arc::new(sender)),
            "resize" => (session.resize, pump) = sizes(Input::new(receiver)),
            _ => {
                tracing::debug!(kind, "client opened an unknown stream");
                // The connection ends with the error: nothing to add.
                sender.reset(RstStatus::PROTOCOL_ERROR).await.ok()?;
            }
        }
    }
    Some((error?, session, pump))
}

/// Reads terminal sizes, one JSON object a line.
fn sizes(mut lines: Input) -> (Option<mpsc::Receiver<TerminalSize>>, Pump) {
    let (sender, receiver) = mpsc::channel(1);
    let pump = Box::pin(async move {
        while let Some(line) = lines.line().await {
            match serde_json::from_slice(&line) {
                Ok(size) => {
                    if sender.send(size).await.is_err() {
                        break;
                    }
                }
                Err(error) => tracing::debug!(%error, "not a terminal size"),
            }
        }
        std::future::pending().await
    });
    (Some(receiver), pump)
}

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// Serves one exec or attach over WebSocket channels.
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
    let stdin = channels.take(STDIN).filter(|_| options.stdin).map_or_else(Input::empty, Input::new);
    let output = |wanted: bool, channel| -> Option<Output> { wanted.then(|| channels.sink(channel) as Output) };
    let (stdout, stderr) = (output(options.stdout, STDOUT), output(options.stderr, STDERR));
    let error = channels.sink(ERROR);
    // Clients wait for a first, empty message as the sign that the streams stand.
    let first = if options.stdout {
        STDOUT
    } else if options.stderr {
        STDERR
    } else {
        ERROR
    };
    channels.sink(first).message(b"").await?;
    let (resize, pump) = match channels.take(RESIZE).filter(|_| options.tty) {
        Some(receiver) => sizes(Input::new(Lines(receiver))),
        None => (None, Box::pin(std::future::pending()) as Pump),
    };
    let session = Session { stdin, stdout, stderr, resize, tty: options.tty };
    let driver = channels.driver.run();
    tokio::pin!(driver);
    let work = async {
        let outcome = tokio::select! {
            outcome = process(session) => outcome,
            never = pump => match never {},
        };
        error.send(outcome.report(version)).await?;
        error.close_socket().await
    };
    tokio::select! {
        ended = &mut driver => return ended,
        done = work => done?,
    }
    timeout(DRAIN, driver).await.unwrap_or(Ok(()))
}

/// Ends every message with a newline: a WebSocket client may send sizes without one.
struct Lines(mpsc::Receiver<Bytes>);

#[async_trait::async_trait]
impl super::stream::Source for Lines {
    async fn recv(&mut self) -> Option<Bytes> {
        let mut message = self.0.recv().await?.to_vec();
        message.push(b'\n');
        Some(Bytes::from(message))
    }
}
