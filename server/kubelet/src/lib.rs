//! The kubelet of a simulated member cluster: logs, exec, attach, port-forward and proxying to pods.
//!
//! Pods are read from the member's API ([`pods::PodRuntime`]). The kubelet adds the files of each container, its
//! process ([`process`]), streaming sessions, and log lines written by exec. Each member of `server/sim/` owns one
//! [`Kubelet`] and serves the subresources of its API server with it ([`connect`]). Nodes, scheduling and pod status
//! belong to the member.

mod clock;
pub mod connect;
mod containers;
pub mod filesystem;
pub mod idle;
pub mod image;
pub mod logs;
pub mod pods;
pub mod portforward;
pub mod probes;
pub mod process;
pub mod remotecommand;
mod responder;
mod runs;
pub mod shell;
pub mod spdy;
pub mod stream;
mod upgrade;
mod volumes;
pub mod websocket;

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::Query;
use bytes::Bytes;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Reason};
use http::{Request, Response, StatusCode, Uri, header};
use parking_lot::Mutex;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::idle::StreamTimeouts;
use self::logs::{LogOptions, LogSource, select_run};
use self::pods::{Container, Endpoint, Pod, PodRef, PodRuntime, Run};
use self::portforward::PortDialer;
use self::process::{Exit, Processes};
use self::remotecommand::{Options, Outcome, Session};
use self::responder::Server;
use self::runs::{RunCache, RunKey};
use self::shell::{Shell, run_interactive};
use self::stream::Output;
use self::upgrade::Upgrade;
use self::volumes::Volumes;

/// Number of log chunks that are buffered for a slow reader.
const MAX_BUFFERED_LOG_CHUNKS: usize = 64;
/// Buffer size of a connection to a container's server, in bytes.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// A pod subresource served by the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subresource {
    Log,
    Exec,
    Attach,
    PortForward,
}

/// Serves the streaming subresources of all pods of one member.
pub struct Kubelet {
    runtime: Arc<dyn PodRuntime>,
    timeouts: StreamTimeouts,
    runs: Mutex<RunCache>,
    processes: Processes,
    volumes: Volumes,
    sessions: TaskTracker,
    stopping: CancellationToken,
    /// Cancels the open sessions; replaced by [`Kubelet::close_sessions`].
    open_sessions: Mutex<CancellationToken>,
}

impl Kubelet {
    pub fn new(runtime: Arc<dyn PodRuntime>) -> Arc<Self> {
        Self::with_timeouts(runtime, StreamTimeouts::default())
    }

    pub fn with_timeouts(runtime: Arc<dyn PodRuntime>, timeouts: StreamTimeouts) -> Arc<Self> {
        let stopping = CancellationToken::new();
        Arc::new(Self {
            runtime,
            timeouts,
            runs: Mutex::default(),
            processes: Processes::default(),
            volumes: Volumes::default(),
            sessions: TaskTracker::new(),
            open_sessions: Mutex::new(stopping.child_token()),
            stopping,
        })
    }

    /// Ends the open sessions, as a loss of the network would. New sessions can be started.
    pub fn close_sessions(&self) {
        std::mem::replace(&mut *self.open_sessions.lock(), self.stopping.child_token()).cancel();
    }

    /// Ends all sessions and waits until they have finished.
    pub async fn stop(&self) {
        self.stopping.cancel();
        self.sessions.close();
        self.sessions.wait().await;
    }

    /// Serves `pods/{log,exec,attach,portforward}`. Streams continue after the response has been returned.
    pub async fn connect(
        self: &Arc<Self>,
        pod: &PodRef,
        subresource: Subresource,
        request: Request<Body>,
    ) -> ApiResult<Response<Body>> {
        let query = parse_query(request.uri());
        let pod = Pod::get(&*self.runtime, pod).await?;
        match subresource {
            Subresource::Log => self.log(&pod, &query).await,
            Subresource::Exec => self.exec(&pod, &query, request).await,
            Subresource::Attach => self.attach(&pod, &query, request).await,
            Subresource::PortForward => self.port_forward(&pod, &query, request),
        }
    }

    async fn log(self: &Arc<Self>, pod: &Pod, query: &[(String, String)]) -> ApiResult<Response<Body>> {
        let options = LogOptions::parse(pod.name(), query)?;
        let container = pod.container(&options.container)?;
        if pod.node().is_empty() {
            return Ok(plain_text(StatusCode::OK, Body::empty()));
        }
        let run = select_run(&container, options.previous)?;
        let source = self.log_source(container, run).await?;
        let (sender, receiver) = mpsc::channel::<Bytes>(MAX_BUFFERED_LOG_CHUNKS);
        self.spawn_session(async move {
            if let Err(error) = source.write(options, Arc::new(sender)).await {
                tracing::debug!(%error, "log reader disconnected");
            }
        });
        let chunks = futures::StreamExt::map(
            tokio_stream::wrappers::ReceiverStream::new(receiver),
            Ok::<_, std::convert::Infallible>,
        );
        Ok(plain_text(StatusCode::OK, Body::from_stream(chunks)))
    }

    async fn log_source(&self, container: Container, run: Run) -> ApiResult<LogSource> {
        let state = self.run_state(&container, &run).await?;
        let has_process =
            container.supported_command().is_some() && self.processes.writes_log(&RunKey::new(&container, &run), &run);
        let mut shell = self.create_shell(&container, &run, &state).await?;
        if !has_process {
            // A replay gets its own files, so that it does not repeat side effects on those of the container.
            shell.fs = Arc::new(self.create_file_system(&container, None).await?);
        }
        let (runtime, run_log) = (self.runtime.clone(), state.log.clone());
        Ok(LogSource { runtime, container, run, run_log, shell, has_process })
    }

    async fn exec(
        self: &Arc<Self>,
        pod: &Pod,
        query: &[(String, String)],
        request: Request<Body>,
    ) -> ApiResult<Response<Body>> {
        let container = pod.container(query_value(query, "container"))?;
        pod.require_node()?;
        let options = parse_stream_options(query)?;
        let Some(run) = container.current_run().filter(|_| container.is_running()) else {
            return Ok(container_not_found(&container));
        };
        let command: Vec<String> = query.iter().filter(|(k, _)| k == "command").map(|(_, v)| v.clone()).collect();
        let state = self.run_state(&container, &run).await?;
        let shell = self.create_shell(&container, &run, &state).await?;
        self.remote_command(request, options, async move |session| run_command(shell, command, session).await)
    }

    async fn attach(
        self: &Arc<Self>,
        pod: &Pod,
        query: &[(String, String)],
        request: Request<Body>,
    ) -> ApiResult<Response<Body>> {
        let container = match query_value(query, "container") {
            "" => pod.first_container()?,
            name => pod.container(name)?,
        };
        pod.require_node()?;
        let options = parse_stream_options(query)?;
        let Some(run) = container.current_run().filter(|_| container.is_running()) else {
            return Ok(container_not_found(&container));
        };
        if options.stdin && container.has_stdin() {
            let state = self.run_state(&container, &run).await?;
            let shell = self.create_shell(&container, &run, &state).await?;
            let command = Some(container.command_line()).filter(|c| !c.is_empty()).unwrap_or_else(|| vec!["sh".into()]);
            let (kubelet, key) = (self.clone(), RunKey::new(&container, &run));
            let pod = container.pod.reference();
            let ends_with_stdin = container.ends_with_stdin();
            return self.remote_command(request, options, async move |session| {
                let outcome = run_command(shell, command, session).await;
                if let (true, Outcome::Exited { code, .. }) = (ends_with_stdin, &outcome) {
                    kubelet.processes.record_exit(&pod, &key, Exit { code: Some(*code), at: kubelet.runtime.now() });
                }
                outcome
            });
        }
        let source = self.log_source(container, run).await?;
        let follow = LogOptions { follow: true, tail_lines: Some(0), ..LogOptions::default() };
        self.remote_command(request, options, async move |session| {
            let output: Output = session.stdout.unwrap_or_else(|| Arc::new(stream::DiscardingSink));
            match source.write(follow, output).await {
                Ok(()) => Outcome::Exited { code: 0, command: Vec::new() },
                Err(error) => Outcome::Failed(error.to_string()),
            }
        })
    }

    fn remote_command<F, R>(
        self: &Arc<Self>,
        request: Request<Body>,
        options: Options,
        process: F,
    ) -> ApiResult<Response<Body>>
    where
        F: FnOnce(Session) -> R + Send + 'static,
        R: Future<Output = Outcome> + Send,
    {
        let (response, upgrade) = upgrade::negotiate_remote_command(request, self.timeouts.idle)?;
        let timeouts = self.timeouts;
        self.spawn_upgraded_session("exec or attach", async move {
            match upgrade {
                Upgrade::None => std::io::Result::Ok(()),
                Upgrade::Spdy(io, version) => {
                    let served = remotecommand::serve_spdy(io.await?, version, options, timeouts, process).await;
                    served.map_err(std::io::Error::other)
                }
                Upgrade::WebSocket(io, protocol) => {
                    remotecommand::serve_websocket(io.await?, protocol, options, process).await
                }
            }
        });
        Ok(response)
    }

    fn port_forward(
        self: &Arc<Self>,
        pod: &Pod,
        query: &[(String, String)],
        request: Request<Body>,
    ) -> ApiResult<Response<Body>> {
        pod.require_node()?;
        if pod.phase() != "Running" {
            let message = format!("unable to forward port because pod is not running. Current status={}", pod.phase());
            return Err(ApiError::bad_request(message));
        }
        let ports =
            query.iter().filter(|(key, _)| matches!(key.as_str(), "ports" | "port")).flat_map(|(_, v)| v.split(','));
        let ports: Result<Vec<u16>, _> = ports.filter(|p| !p.is_empty()).map(str::parse).collect();
        let ports = ports.map_err(|_| ApiError::bad_request("unable to parse a port"))?;
        let dialer: Arc<dyn PortDialer> = Arc::new(PodPortDialer { pod: pod.clone(), kubelet: self.clone() });
        let (response, upgrade) = upgrade::negotiate_port_forward(request, !ports.is_empty(), self.timeouts.idle)?;
        let timeouts = self.timeouts;
        self.spawn_upgraded_session("port-forward", async move {
            match upgrade {
                Upgrade::None => std::io::Result::Ok(()),
                Upgrade::Spdy(io, is_tunneled) => {
                    let io = io.await?;
                    let served = if is_tunneled {
                        portforward::serve_spdy(websocket::tunnel(io).await, timeouts, dialer).await
                    } else {
                        portforward::serve_spdy(io, timeouts, dialer).await
                    };
                    served.map_err(std::io::Error::other)
                }
                Upgrade::WebSocket(io, encoding) => {
                    portforward::serve_websocket(io.await?, encoding, ports, dialer).await
                }
            }
        });
        Ok(response)
    }

    /// Serves `pods/{[scheme:]name[:port]}/proxy/…`. The path of `request` is the one that the pod receives.
    pub async fn proxy_pod(&self, namespace: &str, target: &str, request: Request<Body>) -> ApiResult<Response<Body>> {
        let (name, port) = split_target(target);
        let pod = Pod::get(&*self.runtime, &PodRef { namespace: namespace.to_owned(), name: name.to_owned() }).await?;
        pod.require_node()?;
        self.proxy_to_pod(&pod, port, request).await
    }

    /// Serves `services/{[scheme:]name[:port]}/proxy/…` from the first ready pod that the service selects.
    pub async fn proxy_service(
        &self,
        namespace: &str,
        target: &str,
        request: Request<Body>,
    ) -> ApiResult<Response<Body>> {
        let (name, port) = split_target(target);
        let service = self.runtime.get("services", namespace, name).await?;
        let service = service.ok_or_else(|| ApiError::not_found("", "services", name))?;
        let ports = service.pointer("/spec/ports").and_then(serde_json::Value::as_array).map_or(&[][..], Vec::as_slice);
        let matches_port = |p: &&serde_json::Value| {
            port.is_empty()
                || p["name"].as_str() == Some(port)
                || p["port"].as_u64().is_some_and(|n| n.to_string() == port)
        };
        let unavailable =
            || ApiError::new(Reason::ServiceUnavailable, format!("no endpoints available for service {target:?}"));
        let service_port = ports.iter().find(matches_port).ok_or_else(unavailable)?;
        let target_port = match &service_port["targetPort"] {
            serde_json::Value::String(name) => name.clone(),
            serde_json::Value::Number(number) => number.to_string(),
            _ => service_port["port"].to_string(),
        };
        let selector =
            service.pointer("/spec/selector").and_then(serde_json::Value::as_object).filter(|s| !s.is_empty());
        let selector = selector.ok_or_else(unavailable)?;
        let pods = self.runtime.list_pods(namespace).await?;
        let is_backend = |pod: &Pod| pod.is_backend(selector) && pod.named_endpoint(&target_port).is_some();
        let pod = pods.into_iter().map(Pod::from_object).find(is_backend).ok_or_else(unavailable)?;
        self.proxy_to_pod(&pod, &target_port, request).await
    }

    /// Returns the server of an endpoint. A web server gets the files of its container.
    async fn create_server(&self, pod: &Pod, endpoint: Endpoint) -> ApiResult<Server> {
        let mut fs = None;
        if image::document_root(&endpoint.image).is_some() {
            let container = pod.container(&endpoint.container)?;
            if let Some(run) = container.current_run() {
                fs = Some(self.run_state(&container, &run).await?.fs.clone());
            }
        }
        Ok(Server { endpoint, fs })
    }

    async fn proxy_to_pod(&self, pod: &Pod, port: &str, request: Request<Body>) -> ApiResult<Response<Body>> {
        let Some(endpoint) = pod.named_endpoint(port) else {
            let address = if port.is_empty() { pod.ip().to_owned() } else { format!("{}:{port}", pod.ip()) };
            let message = format!("error trying to reach service: dial tcp {address}: connect: connection refused");
            return Err(ApiError::new(Reason::ServiceUnavailable, message));
        };
        Ok(self.create_server(pod, endpoint).await?.respond(&request).map(Body::new))
    }

    /// Runs a session of a kind over an upgraded connection as a task.
    fn spawn_upgraded_session(
        &self,
        kind: &'static str,
        session: impl Future<Output = std::io::Result<()>> + Send + 'static,
    ) {
        self.spawn_session(async move {
            if let Err(error) = session.await {
                tracing::debug!(%error, kind, "a session over an upgraded connection ended with an error");
            }
        });
    }

    /// Runs a session as a task, until it ends or all sessions are closed.
    fn spawn_session(&self, session: impl Future<Output = ()> + Send + 'static) {
        let close_token = self.open_sessions.lock().clone();
        self.sessions.spawn(async move {
            tokio::select! {
                () = session => {}
                () = close_token.cancelled() => {}
            }
        });
    }
}

/// Opens connections to the ports of a pod.
struct PodPortDialer {
    pod: Pod,
    kubelet: Arc<Kubelet>,
}

#[async_trait]
impl PortDialer for PodPortDialer {
    async fn dial(&self, port: u16) -> Result<DuplexStream, String> {
        let Some(endpoint) = self.pod.endpoint(port) else {
            return Err(format!(
                "error forwarding port {port} to pod {}, uid : failed to connect to localhost:{port} inside pod {}: connect: connection refused",
                self.pod.uid(),
                self.pod.name()
            ));
        };
        let server = self.kubelet.create_server(&self.pod, endpoint).await.map_err(|error| error.to_string())?;
        let (outer, inner) = tokio::io::duplex(CONNECTION_BUFFER_BYTES);
        self.kubelet.spawn_session(responder::serve(server, inner));
        Ok(outer)
    }
}

/// Runs the command of an exec. A missing program is reported with the error of a container runtime.
async fn run_command(shell: Shell, command: Vec<String>, session: Session) -> Outcome {
    match run_interactive(shell, &command, session).await {
        Some(code) => Outcome::Exited { code, command },
        None => {
            let program = command.first().map_or("", String::as_str);
            let cause = if program.contains('/') {
                format!("exec: {program:?}: stat {program}: no such file or directory")
            } else {
                format!("exec: {program:?}: executable file not found in $PATH")
            };
            Outcome::Failed(format!(
                "error executing command in container: failed to exec in container: failed to start exec {:?}: OCI runtime exec failed: exec failed: unable to start container process: {cause}: unknown",
                uuid::Uuid::new_v4().simple().to_string()
            ))
        }
    }
}

/// Splits `[scheme:]name[:port]` into name and port.
fn split_target(target: &str) -> (&str, &str) {
    match target.split(':').collect::<Vec<_>>().as_slice() {
        [_, name, port] => (name, port),
        [name, port] => (name, port),
        _ => (target, ""),
    }
}

fn parse_query(uri: &Uri) -> Vec<(String, String)> {
    Query::<Vec<(String, String)>>::try_from_uri(uri).map_or_else(|_| Vec::new(), |query| query.0)
}

fn query_value<'a>(query: &'a [(String, String)], key: &str) -> &'a str {
    query.iter().find(|(k, _)| k == key).map_or("", |(_, value)| value.as_str())
}

fn parse_stream_options(query: &[(String, String)]) -> ApiResult<Options> {
    let flag = |key| matches!(query_value(query, key), "true" | "1" | "True" | "TRUE" | "t" | "T");
    let tty = flag("tty");
    let options = Options { stdin: flag("stdin"), stdout: flag("stdout"), stderr: flag("stderr") && !tty, tty };
    if !options.stdin && !options.stdout && !options.stderr {
        return Err(ApiError::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
    }
    Ok(options)
}

fn plain_text(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
    response
}

/// The kubelet's error for a container that is not running.
fn container_not_found(container: &Container) -> Response<Body> {
    plain_text(StatusCode::INTERNAL_SERVER_ERROR, Body::from(format!("container not found ({:?})", container.name)))
}

#[cfg(test)]
mod tests;
