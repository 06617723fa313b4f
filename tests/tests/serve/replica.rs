//! Replicas of `crowsnest serve`, each with its own ports and its own link to the control plane.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result};
pub use crowsnest_tests::free_port;
use crowsnest_tests::{Process, binary};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::serve::network::{Backend, Link};

/// Request timeout; the failure names the replica that did not respond.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Success and output of a CLI call.
#[derive(Debug)]
pub struct CommandOutput {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

/// Runs the CLI without environment variables.
pub fn run(args: &[&str]) -> Result<CommandOutput> {
    run_with(args, &[])
}

/// Runs the CLI with environment variables.
pub fn run_with(args: &[&str], environment: &[(&str, &str)]) -> Result<CommandOutput> {
    let mut command = Command::new(binary()?);
    command.args(args).env_remove("KUBECONFIG").envs(environment.iter().copied());
    let output = command.output()?;
    Ok(CommandOutput {
        ok: output.status.success(),
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
    })
}

/// Runs the CLI against a control plane.
pub fn crowsnest(kubeconfig: &Path, args: &[&str]) -> Result<CommandOutput> {
    run(&[args, &["--kubeconfig", &kubeconfig.display().to_string()]].concat())
}

/// Client that sends each request once.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    crate::use_ring();
    let config = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    // Tests count requests, so they are not repeated.
    config.default_retry = false;
    config.read_timeout = Some(REQUEST_TIMEOUT);
    Ok(kube::Client::try_from(config)?)
}

/// Configuration of replicas.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Kubeconfig of the control plane.
    pub control_plane: PathBuf,
    /// URL of the cache's database, including its password.
    pub database: String,
    /// Folder of logs and data.
    pub folder: PathBuf,
    /// Additional flags.
    pub flags: Vec<String>,
}

/// A replica of `crowsnest serve`. A restarted one has another name, as another pod would.
pub struct Replica {
    process: Process,
    pub name: String,
    /// Name of the first process.
    base_name: &'static str,
    /// Number of processes started so far.
    starts: usize,
    config: ReplicaConfig,
    port: u16,
    health: u16,
    metrics: u16,
    kubeconfig: PathBuf,
    /// Its link to the control plane.
    pub link: Link,
}

impl Replica {
    pub fn start(base_name: &'static str, config: &ReplicaConfig) -> Result<Self> {
        let [port, health, metrics] = [free_port()?, free_port()?, free_port()?];
        let kubeconfig = config.folder.join(format!("{base_name}.kubeconfig"));
        let link = create_link(&config.control_plane, &kubeconfig)?;
        let process = start_process(config, base_name, [port, health, metrics], &kubeconfig)?;
        let (name, config) = (base_name.to_owned(), config.clone());
        Ok(Self { process, name, base_name, starts: 1, config, port, health, metrics, kubeconfig, link })
    }

    /// Starts another process at the same addresses, in place of one that has ended.
    pub fn restart(&mut self) -> Result<()> {
        self.starts += 1;
        self.name = format!("{}-{}", self.base_name, self.starts);
        let ports = [self.port, self.health, self.metrics];
        self.process = start_process(&self.config, &self.name, ports, &self.kubeconfig)?;
        Ok(())
    }

    /// The ports for a load balancer.
    pub fn backend(&self) -> Backend {
        Backend { port: self.port, health: self.health }
    }

    pub fn is_ready(&self) -> Result<bool> {
        Ok(get(self.health, "/readyz", REQUEST_TIMEOUT)?.is_some_and(|response| response.starts_with("HTTP/1.1 200")))
    }

    /// The response with all metrics, including its head.
    pub fn metrics(&self) -> Result<String> {
        Ok(get(self.metrics, "/metrics", REQUEST_TIMEOUT)?.unwrap_or_default())
    }

    pub fn is_leader(&self) -> Result<bool> {
        let metrics = self.metrics()?;
        let sample = "leader_election_master_status{name=\"karmada-controller-manager\"} 1";
        Ok(metrics.lines().any(|line| line == sample))
    }

    /// The last lines of the log, for error messages.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(log_path(&self.config, &self.name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("log of {}:\n{}\n", self.name, lines[lines.len().saturating_sub(30)..].join("\n"))
    }

    /// Kills the process, as a power cut would.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    pub fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    /// Stops the process with SIGTERM; returns its exit status and the end of its log.
    pub fn stop(&mut self) -> Result<(ExitStatus, String)> {
        Ok((self.process.stop()?, self.log()))
    }
}

fn log_path(config: &ReplicaConfig, name: &str) -> PathBuf {
    config.folder.join(format!("{name}.log"))
}

fn start_process(config: &ReplicaConfig, name: &str, ports: [u16; 3], kubeconfig: &Path) -> Result<Process> {
    let [port, health, metrics] = ports.map(|port| format!("127.0.0.1:{port}"));
    let mut command = Command::new(binary()?);
    command
        .args(["-v", "serve", "--replica", name, "--audit-log-path", "none"])
        .args(["--listen", &port, "--health-probe-bind-address", &health, "--metrics-bind-address", &metrics])
        // Members in tests are simulated on this host.
        .args(["--shutdown-delay-duration", "1s", "--allow-local-endpoints"])
        .args(&config.flags)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--data-dir")
        .arg(config.folder.join(name))
        .env("CROWSNEST_DB", &config.database)
        .stdout(Stdio::null())
        .stderr(fs::File::create(log_path(config, name))?);
    if !config.flags.iter().any(|flag| flag.starts_with("--ui-listen")) {
        command.args(["--ui-listen", "0"]);
    }
    Ok(Process::spawn(&mut command)?)
}

/// Creates a separate link to a control plane, and writes a kubeconfig that uses it to `file`.
fn create_link(control_plane: &Path, file: &Path) -> Result<Link> {
    let text = fs::read_to_string(control_plane)?;
    let clusters = Kubeconfig::from_yaml(&text)?.clusters;
    let server =
        clusters.into_iter().find_map(|named| named.cluster?.server).context("the kubeconfig has no server")?;
    let (host, port) = server.rsplit_once(':').context("the server has no port")?;
    let link = Link::start(port.parse()?)?;
    fs::write(file, text.replace(&server, &format!("{host}:{}", link.port())))?;
    Ok(link)
}

/// Sends a GET request; returns the response with its head, or `None` if no process listens or responds.
pub fn get(port: u16, path: &str, timeout: Duration) -> Result<Option<String>> {
    send_request(port, &format!("GET {path}"), "", "", timeout)
}

/// Sends a request; `what` is its method and path, `head` contains additional header lines. Returns the response with
/// its head, or `None` if no process listens or responds.
pub fn send_request(port: u16, what: &str, head: &str, body: &str, timeout: Duration) -> Result<Option<String>> {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return Ok(None) };
    stream.set_read_timeout(Some(timeout))?;
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n{body}"
    );
    let sent = stream.write_all(request.as_bytes());
    let mut response = String::new();
    // A replica that ends during the request has not responded.
    Ok(sent.and_then(|()| io::Read::read_to_string(&mut stream, &mut response)).ok().map(|_| response))
}
