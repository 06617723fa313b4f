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

use crate::serve::relay::{Backend, Relay};

/// Request timeout; the failure names the replica that did not respond.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Success and output of a CLI call.
#[derive(Debug)]
pub struct CommandOutput {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

pub fn run(args: &[&str]) -> Result<CommandOutput> {
    run_with(args, &[])
}

/// The same with environment variables.
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

pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    crate::use_ring();
    let config = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    // Tests count requests.
    config.default_retry = false;
    config.read_timeout = Some(ANSWERS_WITHIN);
    Ok(kube::Client::try_from(config)?)
}

/// Configuration of replicas.
#[derive(Debug, Clone)]
pub struct Site {
    pub control_plane: PathBuf,
    /// Including its password.
    pub database: String,
    /// Folder of logs and data.
    pub folder: PathBuf,
    /// Flags in addition to those of all replicas.
    pub flags: Vec<String>,
}

/// A replica of `crowsnest serve`. A restarted one has another name, as another pod would.
pub struct Replica {
    process: Process,
    pub name: String,
    station: &'static str,
    starts: usize,
    site: Site,
    port: u16,
    health: u16,
    metrics: u16,
    kubeconfig: PathBuf,
    /// Its link to the control plane.
    pub cable: Relay,
}

impl Replica {
    pub fn start(station: &'static str, site: &Site) -> Result<Self> {
        let [port, health, metrics] = [free_port()?, free_port()?, free_port()?];
        let kubeconfig = site.folder.join(format!("{station}.kubeconfig"));
        let cable = cable(&site.control_plane, &kubeconfig)?;
        let process = serve(site, station, [port, health, metrics], &kubeconfig)?;
        let (name, site) = (station.to_owned(), site.clone());
        Ok(Self { process, name, station, starts: 1, site, port, health, metrics, kubeconfig, cable })
    }

    /// Starts another process at the same addresses, in place of one that has ended.
    pub fn start_again(&mut self) -> Result<()> {
        self.starts += 1;
        self.name = format!("{}-{}", self.station, self.starts);
        let ports = [self.port, self.health, self.metrics];
        self.process = serve(&self.site, &self.name, ports, &self.kubeconfig)?;
        Ok(())
    }

    /// The ports for a load balancer.
    pub fn backend(&self) -> Backend {
        Backend { port: self.port, health: self.health }
    }

    pub fn is_ready(&self) -> Result<bool> {
        Ok(get(self.health, "/readyz", ANSWERS_WITHIN)?.is_some_and(|response| response.starts_with("HTTP/1.1 200")))
    }

    /// A response with its head.
    pub fn metrics(&self) -> Result<String> {
        Ok(get(self.metrics, "/metrics", ANSWERS_WITHIN)?.unwrap_or_default())
    }

    pub fn leads(&self) -> Result<bool> {
        let metrics = self.metrics()?;
        let wanted = "leader_election_master_status{name=\"karmada-controller-manager\"} 1";
        Ok(metrics.lines().any(|line| line == wanted))
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(log(&self.site, &self.name)).unwrap_or_default();
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

    pub fn stop(&mut self) -> Result<(ExitStatus, String)> {
        Ok((self.process.stop()?, self.log()))
    }
}

fn log(site: &Site, name: &str) -> PathBuf {
    site.folder.join(format!("{name}.log"))
}

fn serve(site: &Site, name: &str, ports: [u16; 3], kubeconfig: &Path) -> Result<Process> {
    let [port, health, metrics] = ports.map(|port| format!("127.0.0.1:{port}"));
    let mut command = Command::new(binary()?);
    command
        .args(["-v", "serve", "--replica", name, "--audit-log-path", "none"])
        .args(["--listen", &port, "--health-probe-bind-address", &health, "--metrics-bind-address", &metrics])
        // Members in tests are simulated on this host.
        .args(["--shutdown-delay-duration", "1s", "--allow-local-endpoints"])
        .args(&site.flags)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--data-dir")
        .arg(site.folder.join(name))
        .env("CROWSNEST_DB", &site.database)
        .stdout(Stdio::null())
        .stderr(fs::File::create(log(site, name))?);
    if !site.flags.iter().any(|flag| flag.starts_with("--ui-listen")) {
        command.args(["--ui-listen", "0"]);
    }
    Ok(Process::spawn(&mut command)?)
}

/// A separate link to a control plane, and a kubeconfig that uses it.
fn cable(control_plane: &Path, file: &Path) -> Result<Relay> {
    let text = fs::read_to_string(control_plane)?;
    let clusters = Kubeconfig::from_yaml(&text)?.clusters;
    let server = clusters.into_iter().find_map(|named| named.cluster?.server).context("a kubeconfig of no server")?;
    let (host, port) = server.rsplit_once(':').context("a server without a port")?;
    let relay = Relay::start(port.parse()?)?;
    fs::write(file, text.replace(&server, &format!("{host}:{}", relay.port())))?;
    Ok(relay)
}

/// A response with its head; `None` if nothing listens or responds.
pub fn get(port: u16, path: &str, within: Duration) -> Result<Option<String>> {
    ask(port, &format!("GET {path}"), "", "", within)
}

/// The same for any method, with additional headers and a body.
pub fn ask(port: u16, what: &str, head: &str, body: &str, within: Duration) -> Result<Option<String>> {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return Ok(None) };
    stream.set_read_timeout(Some(within))?;
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n{body}"
    );
    let sent = stream.write_all(request.as_bytes());
    let mut response = String::new();
    // A replica that dies meanwhile has not responded.
    Ok(sent.and_then(|()| io::Read::read_to_string(&mut stream, &mut response)).ok().map(|_| response))
}
