//! Runs real kubectl commands: once, repeatedly until a state is reached, in the background, and in a terminal.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{Fleet, WAIT_TIMEOUT, find_kubectl, wait_for};

/// kubectl versions under test: an old one (SPDY only), a common one, the newest (WebSocket first).
pub const KUBECTL_VERSIONS: [&str; 3] = ["1.20", "1.32", "1.36"];

/// A kubectl binary and the flags of all commands that are run with it.
#[derive(Debug, Clone)]
pub struct Kubectl {
    pub version: &'static str,
    program: PathBuf,
    flags: Vec<String>,
    /// Working directory and cache of kubectl.
    pub folder: PathBuf,
}

/// Exit code and output of a finished command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    /// Decodes the output of a process; fails if it is not UTF-8.
    pub fn parse(output: &Output) -> Result<Self> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
        Ok(Self { code: output.status.code(), out: text(&output.stdout)?, err: text(&output.stderr)? })
    }
}

impl Kubectl {
    pub fn new(version: &'static str, program: PathBuf, kubeconfig: &Path, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let flags = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
        Ok(Self { version, program, flags, folder: folder.to_owned() })
    }

    /// This kubectl with another kubeconfig.
    pub fn with_kubeconfig(&self, kubeconfig: &Path) -> Self {
        self.with_flags(&["--kubeconfig", &kubeconfig.display().to_string()])
    }

    /// This kubectl with additional flags.
    pub fn with_flags(&self, flags: &[&str]) -> Self {
        let mut kubectl = self.clone();
        kubectl.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        kubectl
    }

    /// This kubectl with only a bearer token, since servers ignore a token that is sent with a client certificate.
    pub fn with_token(&self, token: &str) -> Result<Self> {
        let mut config: Value = serde_json::from_str(&self.run_ok(&["config", "view", "--raw", "-o", "json"], "")?)?;
        for user in config["users"].as_array_mut().into_iter().flatten() {
            user["user"] = json!({"token": token});
        }
        let path = self.folder.join(format!("{}.kubeconfig", token.replace('/', "-")));
        std::fs::write(&path, config.to_string())?;
        Ok(self.with_kubeconfig(&path))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // kubectl passes arguments after `--` to the command in the container.
        command.args(args.iter().take_while(|arg| **arg != "--"));
        command.args(&self.flags).args(args.iter().skip_while(|arg| **arg != "--"));
        self.configure(&mut command);
        command
    }

    /// Isolates a command from the user's own configuration and pipes its streams.
    fn configure(&self, command: &mut Command) {
        command.env_remove("KUBECONFIG").env("HOME", &self.folder).current_dir(&self.folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// Runs a command with `input` as standard input and returns its result, even if it fails.
    pub fn run(&self, args: &[&str], input: &str) -> Result<CommandOutput> {
        let mut child =
            self.command(args).spawn().with_context(|| format!("cannot start {}", self.program.display()))?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        let write_result = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = CommandOutput::parse(&child.wait_with_output()?)?;
        write_result.with_context(|| format!("kubectl {args:?} did not read its input: {output:?}"))?;
        Ok(output)
    }

    /// Runs a command that must succeed; returns its standard output.
    pub fn run_ok(&self, args: &[&str], input: &str) -> Result<String> {
        let output = self.run(args, input)?;
        if output.code != Some(0) {
            bail!("kubectl-{} {args:?}: {output:?}", self.version);
        }
        Ok(output.out)
    }

    /// Runs a command that must exit with this code and print this text on either stream.
    pub fn expect_output(&self, args: &[&str], input: &str, code: i32, text: &str) -> Result<CommandOutput> {
        let output = self.run(args, input)?;
        if output.code != Some(code) || !(output.out.contains(text) || output.err.contains(text)) {
            bail!("kubectl-{} {args:?} should exit with {code} and print {text:?}: {output:?}", self.version);
        }
        Ok(output)
    }

    /// Repeats a command until it succeeds with output that satisfies `accept`.
    pub fn run_until(&self, args: &[&str], accept: impl Fn(&str) -> bool) -> Result<String> {
        let mut last = None;
        let ready = wait_for(&format!("kubectl-{} {args:?}", self.version), || {
            let output = self.run(args, "")?;
            let done = output.code == Some(0) && accept(&output.out);
            last = Some(output);
            Ok(done)
        });
        ready.with_context(|| format!("last: {last:?}"))?;
        Ok(last.map(|output| output.out).unwrap_or_default())
    }

    /// Starts a long-running command; its standard output is read as it arrives.
    pub fn stream(&self, args: &[&str]) -> Result<RunningCommand> {
        RunningCommand::start(self.command(args), format!("kubectl-{} {args:?}", self.version))
    }

    /// Starts a command in a pseudo-terminal, created by script(1).
    pub fn terminal(&self, args: &[&str]) -> Result<RunningCommand> {
        let program = [&[self.program.display().to_string()], self.flags.as_slice()].concat().join(" ");
        let mut command = Command::new("script");
        command.args(["-qec", &format!("{program} {}", args.join(" ")), "/dev/null"]);
        self.configure(&mut command);
        RunningCommand::start(command, format!("kubectl-{} {args:?} in a terminal", self.version))
    }
}

/// A running command whose output is read as it arrives. Killed when dropped.
pub struct RunningCommand {
    /// Text of the command, for error messages.
    description: String,
    child: Child,
    stdin: Option<ChildStdin>,
    chunks: Receiver<Vec<u8>>,
    /// Output after the last match.
    output: String,
}

impl RunningCommand {
    /// Starts a command with pipes as input and output.
    pub fn start(mut command: Command, description: String) -> Result<Self> {
        let mut child = command.stderr(Stdio::null()).spawn().with_context(|| format!("cannot start {description}"))?;
        let mut out = child.stdout.take().context("no standard output")?;
        let (sender, chunks) = channel();
        // Ends with the child's output, or when the receiver is dropped.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = out.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Ok(Self { description, child, stdin, chunks, output: String::new() })
    }

    /// Writes to standard input.
    pub fn write_input(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("no standard input")?;
        stdin.write_all(text.as_bytes())?;
        Ok(stdin.flush()?)
    }

    /// Waits for text after the last match; returns the output before it.
    pub fn expect(&mut self, text: &str) -> Result<String> {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            if let Some(at) = self.output.find(text) {
                let rest = self.output.split_off(at + text.len());
                let mut before = std::mem::replace(&mut self.output, rest);
                before.truncate(at);
                return Ok(before);
            }
            match self.chunks.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(chunk) => self.output.push_str(&String::from_utf8_lossy(&chunk)),
                Err(error) => {
                    bail!("{} did not print {text:?} ({error}); last output: {:?}", self.description, self.output)
                }
            }
        }
    }

    /// Closes the input and waits for the exit; returns the exit code and the remaining output.
    pub fn close_input(mut self) -> Result<(Option<i32>, String)> {
        drop(self.stdin.take());
        self.wait_for_exit()
    }

    /// Waits for the exit without closing the input; returns the exit code and the remaining output. The server must end
    /// the command.
    pub fn wait_for_exit(mut self) -> Result<(Option<i32>, String)> {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            match self.chunks.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(chunk) => self.output.push_str(&String::from_utf8_lossy(&chunk)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} is still running; last output: {:?}", self.description, self.output)
                }
            }
        }
        Ok((self.child.wait()?.code(), std::mem::take(&mut self.output)))
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // The child may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a function concurrently with each available kubectl, against the control plane.
pub fn with_each_kubectl(fleet: &Fleet, test: impl Fn(&Kubectl) -> Result<()> + Sync) -> Result<()> {
    let mut kubectls = Vec::new();
    for version in KUBECTL_VERSIONS {
        if let Some(program) = find_kubectl(version)? {
            let folder = fleet.data_dir.with_extension(version);
            kubectls.push(Kubectl::new(version, program, &fleet.kubeconfig("cp"), &folder)?);
        }
    }
    std::thread::scope(|scope| {
        let runs: Vec<_> = kubectls.iter().map(|kubectl| (kubectl, scope.spawn(|| test(kubectl)))).collect();
        let mut failures = Vec::new();
        for (kubectl, run) in runs {
            let result = run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            failures.extend(result.err().map(|error| format!("with kubectl {}: {error:#}", kubectl.version)));
        }
        if !failures.is_empty() {
            bail!("{}\n{}", failures.join("\n"), fleet.log());
        }
        Ok(())
    })
}
