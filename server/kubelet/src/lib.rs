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
use self::portforward::Dial;
use self::process::{Exit, Processes};
use self::remotecommand::{Options, Outcome, Session};
use self::responder::Server;
use self::runs::{RunKey, Runs};
use self::shell::{Shell, interactive};
use self::stream::Output;
use self::upgrade::Upgrade;
use self::volumes::Volumes;

/// Log chunks buffered for a slow reader.
const LOG_CHUNKS: usize = 64;
/// Buffer size of a connection to a container's server, in bytes.
const CONNECTION: usize = 64 << 10;

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
    runs: Mutex<Runs>,
    processes: Processes,
    volumes: Volumes,
    sessions: TaskTracker,
    stopping: CancellationToken,
    /// Cancels the sessions that are open now.
    connected: Mutex<CancellationToken>,
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
            connected: Mutex::new(stopping.child_token()),
            stopping,
        })
    }

    /// Ends the open sessions as a lost network would. New sessions can be started.
    pub fn hang_up(&self) {
        std::mem::replace(&mut *self.connected.lock(), self.stopping.child_token()).cancel();
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
        let query = query(request.uri());
        let pod = Pod::find(&*self.runtime, pod).await?;
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
            return Ok(plain(StatusCode::OK, Body::empty()));
        }
        let run = select_run(&container, options.previous)?;
        let source = self.log_source(container, run).await?;
        let (sender, receiver) = mpsc::channel::<Bytes>(LOG_CHUNKS);
        self.session(async move {
            if let Err(error) = source.write(options, Arc::new(sender)).await {
                tracing::debug!(%error, "log reader disconnected");
            }
        });
        let chunks = futures::StreamExt::map(
            tokio_stream::wrappers::ReceiverStream::new(receiver),
            Ok::<_, std::convert::Infallible>,
        );
        Ok(plain(StatusCode::OK, Body::from_stream(chunks)))
    }

    async fn log_source(&self, container: Container, run: Run) -> ApiResult<LogSource> {
        let state = self.run_state(&container, &run).await?;
        let has_process =
            container.process().is_some() && self.processes.writes_log(&RunKey::new(&container, &run), &run);
        let mut shell = self.shell(&container, &run, &state).await?;
        if !has_process {
            // A replay gets its own files, so that it does not repeat side effects on those of the container.
            shell.fs = Arc::new(self.files(&container, None).await?);
        }
        let (runtime, written) = (self.runtime.clone(), state.written.clone());
        Ok(LogSource { runtime, container, run, written, shell, has_process })
    }

    async fn exec(
        self: &Arc<Self>,
        pod: &Pod,
        query: &[(String, String)],
        request: Request<Body>,
    ) -> ApiResult<Response<Body>> {
        let container = pod.container(value(query, "container"))?;
        pod.require_node()?;
        let options = stream_options(query)?;
        let Some(run) = container.current().filter(|_| container.is_running()) else {
            return Ok(not_found(&container));
        };
        let command: Vec<String> = query.iter().filter(|(k, _)| k == "command").map(|(_, v)| v.clone()).collect();
        let state = self.run_state(&container, &run).await?;
        let shell = self.shell(&container, &run, &state).await?;
        self.remote_command(request, options, async move |session| run_command(shell, command, session).await)
    }

    async fn attach(
        self: &Arc<Self>,
        pod: &Pod,
        query: &[(String, String)],
        request: Request<Body>,
    ) -> ApiResult<Response<Body>> {
        let container = match value(query, "container") {
            "" => pod.first_container()?,
            name => pod.container(name)?,
        };
        pod.require_node()?;
        let options = stream_options(query)?;
        let Some(run) = container.current().filter(|_| container.is_running()) else {
            return Ok(not_found(&container));
        };
        if options.stdin && container.wants_stdin() {
            let state = self.run_state(&container, &run).await?;
            let shell = self.shell(&container, &run, &state).await?;
            let command = Some(container.command_line()).filter(|c| !c.is_empty()).unwrap_or_else(|| vec!["sh".into()]);
            let (kubelet, key) = (self.clone(), RunKey::new(&container, &run));
            let pod = container.pod.reference();
            let ends = container.ends_with_stdin();
            return self.remote_command(request, options, async move |session| {
                let outcome = run_command(shell, command, session).await;
                if let (true, Outcome::Exited { code, .. }) = (ends, &outcome) {
                    kubelet.processes.end(&pod, &key, Exit { code: Some(*code), at: kubelet.runtime.now() });
                }
                outcome
            });
        }
        let source = self.log_source(container, run).await?;
        let follow = LogOptions { follow: true, tail_lines: Some(0), ..LogOptions::default() };
        self.remote_command(request, options, async move |session| {
            let output: Output = session.stdout.unwrap_or_else(|| Arc::new(stream::Discard));
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
        let (response, upgrade) = upgrade::remote_command(request, self.timeouts.idle)?;
        let timeouts = self.timeouts;
        self.session(async move {
            let ended = match upgrade {
                Upgrade::None => Ok(()),
                Upgrade::Spdy(io, version) => match io.await {
                    Ok(io) => remotecommand::serve_spdy(io, version, options, timeouts, process)
                        .await
                        .map_err(std::io::Error::other),
                    Err(error) => Err(error),
                },
                Upgrade::WebSocket(io, protocol) => match io.await {
                    Ok(io) => remotecommand::serve_websocket(io, protocol, options, process).await,
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "exec session ended");
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
        let dial: Arc<dyn Dial> = Arc::new(PodDial { pod: pod.clone(), kubelet: self.clone() });
        let (response, upgrade) = upgrade::port_forward(request, !ports.is_empty(), self.timeouts.idle)?;
        let timeouts = self.timeouts;
        self.session(async move {
            let ended = match upgrade {
                Upgrade::None => Ok(()),
                Upgrade::Spdy(io, tunnelled) => match io.await {
                    Ok(io) if tunnelled => portforward::serve_spdy(websocket::tunnel(io).await, timeouts, dial)
                        .await
                        .map_err(std::io::Error::other),
                    Ok(io) => portforward::serve_spdy(io, timeouts, dial).await.map_err(std::io::Error::other),
                    Err(error) => Err(error),
                },
                Upgrade::WebSocket(io, encoding) => match io.await {
                    Ok(io) => portforward::serve_websocket(io, encoding, ports, dial).await,
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "port-forward session ended");
            }
        });
        Ok(response)
    }

    /// Serves `pods/{[scheme:]name[:port]}/proxy/…`. The path of `request` is the one that the pod receives.
    pub async fn proxy_pod(&self, namespace: &str, target: &str, request: Request<Body>) -> ApiResult<Response<Body>> {
        let (name, port) = target_port(target);
        let pod = Pod::find(&*self.runtime, &PodRef { namespace: namespace.to_owned(), name: name.to_owned() }).await?;
        pod.require_node()?;
        self.respond(&pod, port, request).await
    }

    /// Serves `services/{[scheme:]name[:port]}/proxy/…` from the first ready pod that the service selects.
    pub async fn proxy_service(
        &self,
        namespace: &str,
        target: &str,
        request: Request<Body>,
    ) -> ApiResult<Response<Body>> {
        let (name, port) = target_port(target);
        let service = self.runtime.get("services", namespace, name).await?;
        let service = service.ok_or_else(|| ApiError::not_found("", "services", name))?;
        let ports = service.pointer("/spec/ports").and_then(serde_json::Value::as_array).map_or(&[][..], Vec::as_slice);
        let wanted = |p: &&serde_json::Value| {
            port.is_empty()
                || p["name"].as_str() == Some(port)
                || p["port"].as_u64().is_some_and(|n| n.to_string() == port)
        };
        let unavailable =
            || ApiError::new(Reason::ServiceUnavailable, format!("no endpoints available for service {target:?}"));
        let found = ports.iter().find(wanted).ok_or_else(unavailable)?;
        let target_port = match &found["targetPort"] {
            serde_json::Value::String(name) => name.clone(),
            serde_json::Value::Number(number) => number.to_string(),
            _ => found["port"].to_string(),
        };
        let selector =
            service.pointer("/spec/selector").and_then(serde_json::Value::as_object).filter(|s| !s.is_empty());
        let selector = selector.ok_or_else(unavailable)?;
        let pods = self.runtime.list_pods(namespace).await?;
        let backing = |pod: &Pod| pod.backs(selector) && pod.named_endpoint(&target_port).is_some();
        let pod = pods.into_iter().map(Pod::from_object).find(backing).ok_or_else(unavailable)?;
        self.respond(&pod, &target_port, request).await
    }

    /// Returns the server of an endpoint. A web server gets the files of its container.
    async fn server(&self, pod: &Pod, endpoint: Endpoint) -> ApiResult<Server> {
        let mut fs = None;
        if image::document_root(&endpoint.image).is_some() {
            let container = pod.container(&endpoint.container)?;
            if let Some(run) = container.current() {
                fs = Some(self.run_state(&container, &run).await?.fs.clone());
            }
        }
        Ok(Server { endpoint, fs })
    }

    async fn respond(&self, pod: &Pod, port: &str, request: Request<Body>) -> ApiResult<Response<Body>> {
        let Some(endpoint) = pod.named_endpoint(port) else {
            let address = if port.is_empty() { pod.ip().to_owned() } else { format!("{}:{port}", pod.ip()) };
            let message = format!("error trying to reach service: dial tcp {address}: connect: connection refused");
            return Err(ApiError::new(Reason::ServiceUnavailable, message));
        };
        Ok(self.server(pod, endpoint).await?.answer(&request).map(Body::new))
    }

    fn session(&self, work: impl Future<Output = ()> + Send + 'static) {
        let connected = self.connected.lock().clone();
        self.sessions.spawn(async move {
            tokio::select! {
                () = work => {}
                () = connected.cancelled() => {}
            }
        });
    }
}

/// Opens connections to the ports of a pod.
struct PodDial {
    pod: Pod,
    kubelet: Arc<Kubelet>,
}

#[async_trait]
impl Dial for PodDial {
    async fn dial(&self, port: u16) -> Result<DuplexStream, String> {
        let Some(endpoint) = self.pod.endpoint(port) else {
            return Err(format!(
                "error forwarding port {port} to pod {}, uid : failed to connect to localhost:{port} inside pod {}: connect: connection refused",
                self.pod.uid(),
                self.pod.name()
            ));
        };
        let server = self.kubelet.server(&self.pod, endpoint).await.map_err(|error| error.to_string())?;
        let (outer, inner) = tokio::io::duplex(CONNECTION);
        self.kubelet.session(responder::serve(server, inner));
        Ok(outer)
    }
}

/// Runs the command of an exec. A missing program is reported with the error of a container runtime.
async fn run_command(shell: Shell, command: Vec<String>, session: Session) -> Outcome {
    match interactive(shell, &command, session).await {
        Some(code) => Outcome::Exited { code, command },
        None => {
            let program = command.first().map_or("", String::as_str);
            let why = if program.contains('/') {
                format!("exec: {program:?}: stat {program}: no such file or directory")
            } else {
                format!("exec: {program:?}: executable file not found in $PATH")
            };
            Outcome::Failed(format!(
                "error executing command in container: failed to exec in container: failed to start exec {:?}: OCI runtime exec failed: exec failed: unable to start container process: {why}: unknown",
                uuid::Uuid::new_v4().simple().to_string()
            ))
        }
    }
}

/// Splits `[scheme:]name[:port]` into name and port.
fn target_port(target: &str) -> (&str, &str) {
    match target.split(':').collect::<Vec<_>>().as_slice() {
        [_, name, port] => (name, port),
        [name, port] => (name, port),
        _ => (target, ""),
    }
}

fn query(uri: &Uri) -> Vec<(String, String)> {
    Query::<Vec<(String, String)>>::try_from_uri(uri).map_or_else(|_| Vec::new(), |query| query.0)
}

fn value<'a>(query: &'a [(String, String)], key: &str) -> &'a str {
    query.iter().find(|(k, _)| k == key).map_or("", |(_, value)| value.as_str())
}

fn stream_options(query: &[(String, String)]) -> ApiResult<Options> {
    let flag = |key| matches!(value(query, key), "true" | "1" | "True" | "TRUE" | "t" | "T");
    let tty = flag("tty");
    let options = Options { stdin: flag("stdin"), stdout: flag("stdout"), stderr: flag("stderr") && !tty, tty };
    if !options.stdin && !options.stdout && !options.stderr {
        return Err(ApiError::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
    }
    Ok(options)
}

fn plain(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
    response
}

/// The kubelet's error for a container that is not running.
fn not_found(container: &Container) -> Response<Body> {
    plain(StatusCode::INTERNAL_SERVER_ERROR, Body::from(format!("container not found ({:?})", container.name)))
}

#[cfg(test)]
mod tests;
