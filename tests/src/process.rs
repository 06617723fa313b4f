//! Processes of the binary that tests start, beside `crowsnest up`: killed when dropped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{fs, io};

use anyhow::{Context, Result, bail};

use crate::{binary, ground, signal, tail};

/// One that runs.
pub struct Process(Child);

impl Process {
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Sends it a signal by its name, as STOP and CONT.
    pub fn signal(&self, name: &str) -> Result<()> {
        signal(&self.0, name)
    }

    /// As a power cut would.
    pub fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Asks it to stop (SIGTERM) and waits.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal("TERM")?;
        Ok(self.0.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing can be done about a child that is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One that says in its first line that it serves. Its log is beside its data.
fn serving(mut command: Command, data: &Path) -> Result<Process> {
    let log = data.with_extension("log");
    let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(fs::File::create(&log)?))?;
    let out = process.0.stdout.take().context("no standard output")?;
    let mut first = String::new();
    BufReader::new(out).read_line(&mut first)?;
    if first.is_empty() {
        bail!("{command:?} ended with {}: {}", process.0.wait()?, tail(&log));
    }
    Ok(process)
}

/// A plain API server: `crowsnest apiserver`, or a real control plane (see [`ground`]).
pub struct Apiserver {
    _process: Process,
    audit_log: PathBuf,
    pub kubeconfig: PathBuf,
}

impl Apiserver {
    /// Returns once it serves.
    pub fn start(data: &Path) -> Result<Self> {
        Self::start_with(data, &[])
    }

    /// Starts the process with additional flags; returns when it serves requests.
    pub fn start_with(data: &Path, args: &[&str]) -> Result<Self> {
        if let Some(ground::Cluster { command, kubeconfig, audit_log }) = ground::control_plane(data, args)? {
            return Ok(Self { _process: serving(command, data)?, audit_log, kubeconfig });
        }
        let mut command = Command::new(binary()?);
        command.args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).args(args);
        let process = serving(command, data)?;
        let audit_log = data.join("audit/audit.log");
        Ok(Self { _process: process, audit_log, kubeconfig: data.join("kubeconfigs/cp.kubeconfig") })
    }

    /// Who asked for what: a line of JSON for each request.
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
    /// Returns once it serves.
    pub fn start(name: &str, data: &Path, args: &[&str]) -> Result<Self> {
        if let Some(ground::Cluster { command, kubeconfig, .. }) = ground::member(name, data, args)? {
            return Ok(Self { process: serving(command, data)?, kubeconfig });
        }
        let mut command = Command::new(binary()?);
        command.args(["member", name, "--data-dir"]).arg(data).args(args);
        let process = serving(command, data)?;
        Ok(Self { process, kubeconfig: data.join(format!("kubeconfigs/{name}.kubeconfig")) })
    }

    /// Sends it a signal by its name, as STOP and CONT.
    pub fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    /// Asks it to stop (SIGTERM) and waits.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.stop()
    }
}
