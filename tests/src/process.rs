//! Processes other than `crowsnest up` that tests start. They are killed when dropped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{fs, io};

use anyhow::{Context, Result, bail};

use crate::{binary, ground, read_log_end, signal};

/// A running process.
pub struct Process(Child);

impl Process {
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Sends a signal by name, such as STOP or CONT.
    pub fn signal(&self, name: &str) -> Result<()> {
        signal(&self.0, name)
    }

    /// Kills the process, as a power cut would.
    pub fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Stops the process with SIGTERM and waits.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal("TERM")?;
        Ok(self.0.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The child may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server and waits for its first line of output, which it prints when it serves requests. Its log is the data
/// folder's path with the extension `log`.
fn start_server(mut command: Command, data: &Path) -> Result<Process> {
    let log = data.with_extension("log");
    let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(fs::File::create(&log)?))?;
    let out = process.0.stdout.take().context("no standard output")?;
    let mut first = String::new();
    BufReader::new(out).read_line(&mut first)?;
    if first.is_empty() {
        bail!("{command:?} ended with {}: {}", process.0.wait()?, read_log_end(&log));
    }
    Ok(process)
}

/// A plain API server: `crowsnest apiserver`, or a real control plane (see [`ground`]).
pub struct Apiserver {
    process: Process,
    log: PathBuf,
    audit_log: PathBuf,
    pub kubeconfig: PathBuf,
}

impl Apiserver {
    /// Starts the process; returns when it serves requests.
    pub fn start(data: &Path) -> Result<Self> {
        Self::start_with(data, &[])
    }

    /// Starts the process with additional flags; returns when it serves requests.
    pub fn start_with(data: &Path, args: &[&str]) -> Result<Self> {
        let log = data.with_extension("log");
        if let Some(ground::Cluster { command, kubeconfig, audit_log }) = ground::control_plane(data, args)? {
            return Ok(Self { process: start_server(command, data)?, log, audit_log, kubeconfig });
        }
        let mut command = Command::new(binary()?);
        command.args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).args(args);
        let process = start_server(command, data)?;
        let audit_log = data.join("audit/audit.log");
        Ok(Self { process, log, audit_log, kubeconfig: data.join("kubeconfigs/cp.kubeconfig") })
    }

    /// The last lines of the process's log, for error messages.
    pub fn log(&self) -> String {
        format!("log: {}", read_log_end(&self.log))
    }

    /// Stops the process with SIGTERM and waits.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.stop()
    }

    /// The audit log: one line of JSON for each request.
    pub fn audit_log(&self) -> PathBuf {
        self.audit_log.clone()
    }
}

/// A member: simulated by `crowsnest member`, or a real cluster (see [`ground`]).
pub struct Member {
    process: Process,
    pub kubeconfig: PathBuf,
}

impl Member {
    /// Starts the process; returns when it serves requests.
    pub fn start(name: &str, data: &Path, args: &[&str]) -> Result<Self> {
        match ground::member(name, data, args)? {
            Some(cluster) => Self::start_real(cluster, data),
            None => Self::start_simulated(name, data, args),
        }
    }

    /// Like [`Self::start`], for tests that run commands in pods or read logs of pods. If [`ground::uses_real_clusters`],
    /// tests may run only commands that [`ground::member_with_exec`] supports.
    pub fn start_with_exec(name: &str, data: &Path) -> Result<Self> {
        match ground::member_with_exec(name, data)? {
            Some(cluster) => Self::start_real(cluster, data),
            None => Self::start_simulated(name, data, &[]),
        }
    }

    fn start_real(cluster: ground::Cluster, data: &Path) -> Result<Self> {
        let ground::Cluster { command, kubeconfig, .. } = cluster;
        Ok(Self { process: start_server(command, data)?, kubeconfig })
    }

    fn start_simulated(name: &str, data: &Path, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command.args(["member", name, "--data-dir"]).arg(data).args(args);
        let process = start_server(command, data)?;
        Ok(Self { process, kubeconfig: data.join(format!("kubeconfigs/{name}.kubeconfig")) })
    }

    /// Sends a signal by name, such as STOP or CONT.
    pub fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    /// Stops the process with SIGTERM and waits.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.stop()
    }
}
