//! Processes of a site: plain API servers, replicas of `crowsnest serve`, and the addresses in front of them.

use std::io::{BufRead, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io, thread};

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::binary;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Whoever takes longer is said to have not answered, so that the test says who that was.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// What a call of the CLI said.
#[derive(Debug)]
pub struct Said {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

pub fn run(args: &[&str]) -> Result<Said> {
    let output = Command::new(binary()?).args(args).env_remove("KUBECONFIG").output()?;
    Ok(Said {
        ok: output.status.success(),
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
    })
}

/// The CLI against a control plane.
pub fn crowsnest(kubeconfig: &Path, args: &[&str]) -> Result<Said> {
    run(&[args, &["--kubeconfig", &kubeconfig.display().to_string()]].concat())
}

pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    // A second one would be of no matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    // Tests count how often is asked.
    config.default_retry = false;
    config.read_timeout = Some(ANSWERS_WITHIN);
    Ok(kube::Client::try_from(config)?)
}

/// One that nobody listens on.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing can be done about a child that is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A plain API server.
pub struct Apiserver {
    _process: Process,
    pub kubeconfig: PathBuf,
}

/// Returns once it serves.
pub fn apiserver(data: &Path) -> Result<Apiserver> {
    let log = data.with_extension("log");
    let mut child = Command::new(binary()?)
        .args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log)?)
        .spawn()?;
    let out = child.stdout.take().context("no standard output")?;
    let mut first = String::new();
    BufReader::new(out).read_line(&mut first)?;
    if first.is_empty() {
        bail!("it ended with {}: {}", child.wait()?, fs::read_to_string(&log)?);
    }
    Ok(Apiserver { _process: Process(child), kubeconfig: data.join("kubeconfigs/cp.kubeconfig") })
}

/// A replica of `crowsnest serve`.
pub struct Replica {
    process: Process,
    pub name: &'static str,
    pub port: u16,
    health: u16,
    metrics: u16,
    log: PathBuf,
    /// Its way to the control plane.
    pub cable: Relay,
}

impl Replica {
    pub fn start(name: &'static str, control_plane: &Path, database: &str, folder: &Path) -> Result<Self> {
        let [port, health, metrics] = [free_port()?, free_port()?, free_port()?];
        let at = |port: u16| format!("127.0.0.1:{port}");
        let log = folder.join(format!("{name}.log"));
        let kubeconfig = folder.join(format!("{name}.kubeconfig"));
        let cable = cable(control_plane, &kubeconfig)?;
        let child = Command::new(binary()?)
            .args(["-v", "serve", "--replica", name, "--ui-listen", "0", "--audit-log-path", "none"])
            .args(["--listen", &at(port), "--health-probe-bind-address", &at(health)])
            .args(["--metrics-bind-address", &at(metrics)])
            .args(["--leader-elect-lease-duration", "6s", "--leader-elect-renew-deadline", "4s"])
            .args(["--leader-elect-retry-period", "1s", "--cluster-status-update-frequency", "2s"])
            .args(["--cluster-success-threshold", "1s"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--data-dir")
            .arg(folder.join(name))
            .env("CROWSNEST_DB", database)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()?;
        Ok(Self { process: Process(child), name, port, health, metrics, log, cable })
    }

    pub fn is_ready(&self) -> Result<bool> {
        Ok(get(self.health, "/readyz")?.is_some_and(|answer| answer.starts_with("HTTP/1.1 200")))
    }

    pub fn leads(&self) -> Result<bool> {
        let metrics = get(self.metrics, "/metrics")?.unwrap_or_default();
        let wanted = "leader_election_master_status{name=\"karmada-controller-manager\"} 1";
        Ok(metrics.lines().any(|line| line == wanted))
    }

    /// The last lines it logged.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("log of {}:\n{}\n", self.name, lines[lines.len().saturating_sub(30)..].join("\n"))
    }

    /// As a power cut would.
    pub fn kill(mut self) -> Result<()> {
        self.process.0.kill()?;
        self.process.0.wait()?;
        Ok(())
    }

    pub fn signal(&self, name: &str) -> Result<()> {
        let told = Command::new("kill").args([&format!("-{name}"), &self.process.0.id().to_string()]).status()?;
        ensure!(told.success(), "kill ended with {told}");
        Ok(())
    }

    pub fn stop(mut self) -> Result<(ExitStatus, String)> {
        self.signal("TERM")?;
        let status = self.process.0.wait()?;
        Ok((status, self.log()))
    }
}

/// A way of its own to a control plane, and the kubeconfig that takes it.
fn cable(control_plane: &Path, file: &Path) -> Result<Relay> {
    let text = fs::read_to_string(control_plane)?;
    let clusters = Kubeconfig::from_yaml(&text)?.clusters;
    let server = clusters.into_iter().find_map(|named| named.cluster?.server).context("a kubeconfig of no server")?;
    let (host, port) = server.rsplit_once(':').context("a server without a port")?;
    let relay = Relay::start(0, vec![port.parse()?])?;
    fs::write(file, text.replace(&server, &format!("{host}:{}", relay.port)))?;
    Ok(relay)
}

/// An answer with its head; none where nobody listens.
fn get(port: u16, path: &str) -> Result<Option<String>> {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return Ok(None) };
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    io::Write::write_all(
        &mut stream,
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = String::new();
    // One that dies meanwhile has not answered.
    Ok(io::Read::read_to_string(&mut stream, &mut answer).ok().map(|_| answer))
}

/// One address: each connection goes to the next of those behind it that takes it.
pub struct Relay {
    port: u16,
    gate: Arc<Gate>,
    ends: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

/// Whether bytes come through. Those that do not wait, and nobody is told, as where a cable is cut.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap_or_else(PoisonError::into_inner) = shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        while *shut {
            shut = self.opened.wait(shut).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Relay {
    pub fn start(port: u16, behind: Vec<u16>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let (ends, gate) = (Arc::new(AtomicBool::new(false)), Arc::<Gate>::default());
        let (ended, through, next) = (Arc::clone(&ends), Arc::clone(&gate), AtomicUsize::new(0));
        let accepting = thread::spawn(move || {
            for incoming in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(incoming) = incoming else { continue };
                let first = next.fetch_add(1, Ordering::Relaxed);
                let taken = (0..behind.len())
                    .find_map(|at| TcpStream::connect(("127.0.0.1", behind[(first + at) % behind.len()])).ok());
                if let Some(taken) = taken {
                    join(incoming, taken, &through);
                }
            }
        });
        Ok(Self { port, gate, ends, accepting: Some(accepting) })
    }

    pub fn cut(&self) {
        self.gate.set(true);
    }

    pub fn mend(&self) {
        self.gate.set(false);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.mend();
        self.ends.store(true, Ordering::Relaxed);
        // Wakes it.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
    }
}

/// Carries bytes both ways until one side is done.
fn join(one: TcpStream, other: TcpStream, gate: &Arc<Gate>) {
    for (from, to) in [(one.try_clone(), other.try_clone()), (Ok(other), Ok(one))] {
        let (Ok(mut from), Ok(mut to)) = (from, to) else { return };
        let gate = Arc::clone(gate);
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            // A side that is gone ends the other.
            while let Ok(read @ 1..) = io::Read::read(&mut from, &mut bytes) {
                gate.pass();
                if io::Write::write_all(&mut to, &bytes[..read]).is_err() {
                    break;
                }
            }
            gate.pass();
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}
