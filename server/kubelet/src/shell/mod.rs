//! The shell of simulated containers.
//!
//! A script runs as a single future: the stages of a pipeline are polled together and connected by bounded channels,
//! so dropping the future stops everything. [`parse`] has the parser, [`expand`] word expansion, and [`commands`]
//! the programs of the image. Used by exec and attach, and for logs to produce the output of a container's script.

mod archive;
mod commands;
mod expand;
mod parse;
mod redirect;
mod terminal;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;

use self::parse::{Command, Word};
use self::terminal::SharedTerminalSize;
use super::filesystem::FileSystem;
use super::stream::{CollectingSink, DiscardingSink, Input, Output, pipe};

pub use self::commands::is_program;
pub use self::terminal::run_interactive;

/// The clock of a process: the current time for exec, replayed time for logs.
#[async_trait]
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
    async fn sleep(&self, duration: Duration);
    /// Called before every command, so that replayed time advances in loops without sleeps.
    async fn step(&self) {
        tokio::task::consume_budget().await;
    }
}

/// Identity of the container, as visible to its processes.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    pub hostname: String,
    pub node: String,
    pub ip: String,
    /// The container's own command, process 1 in `ps`.
    pub command: Vec<String>,
    pub started: Timestamp,
    /// Seed of `$RANDOM`, for repeatable runs.
    pub seed: u64,
}

/// State shared by a shell and its subshells.
#[derive(Debug, Default)]
struct Shared {
    random: AtomicU64,
    /// True once a script used a program or syntax that the simulation does not support.
    used_unknown_command: AtomicBool,
}

/// A shell or subshell.
#[derive(Clone)]
pub struct Shell {
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub fs: Arc<FileSystem>,
    pub identity: Arc<Identity>,
    pub clock: Arc<dyn Clock>,
    /// Output of process 1, for `/proc/1/fd/1` and `/proc/1/fd/2`.
    pub log: Output,
    /// `$0`, and the prefix of error messages.
    pub name: String,
    parameters: Vec<String>,
    status: i32,
    depth: usize,
    terminal: Option<Arc<SharedTerminalSize>>,
    errexit: bool,
    shared: Arc<Shared>,
}

/// File descriptors 0, 1 and 2.
#[derive(Clone)]
pub struct Stdio {
    pub stdin: Arc<tokio::sync::Mutex<Input>>,
    pub stdout: Output,
    pub stderr: Output,
}

/// Control flow that leaves a sequence of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Exit(i32),
    Break,
    Continue,
}

/// Maximum nesting of shells.
const MAX_DEPTH: usize = 24;
/// Exit code of a process whose output was closed (SIGPIPE).
const SIGPIPE_EXIT_CODE: i32 = 141;

impl Stdio {
    pub fn new(stdin: Input, stdout: Output, stderr: Output) -> Self {
        Self { stdin: Arc::new(tokio::sync::Mutex::new(stdin)), stdout, stderr }
    }

    /// Writes a line to stderr. A closed stderr is not an error: the exit code already reports the failure.
    async fn error(&self, message: &str) {
        if let Err(error) = self.stderr.send(Bytes::from(format!("{message}\n"))).await {
            tracing::trace!(%error, message, "stderr is closed");
        }
    }
}

/// Reports whether a script used a program or syntax that the simulation does not support.
pub struct UnknownCommands(Arc<Shared>);

impl UnknownCommands {
    pub fn was_used(&self) -> bool {
        self.0.used_unknown_command.load(Ordering::Relaxed)
    }
}

/// Outcome of starting a program directly, as a container runtime does.
pub enum StartOutcome {
    Code(i32),
    /// The image does not contain the program.
    NotFound,
}

impl Shell {
    pub fn new(
        fs: Arc<FileSystem>,
        identity: Arc<Identity>,
        clock: Arc<dyn Clock>,
        env: BTreeMap<String, String>,
    ) -> Self {
        let shared =
            Arc::new(Shared { random: AtomicU64::new(identity.seed), used_unknown_command: AtomicBool::new(false) });
        Self {
            env,
            cwd: "/".into(),
            fs,
            identity,
            shared,
            clock,
            log: Arc::new(DiscardingSink),
            name: "sh".into(),
            parameters: Vec::new(),
            status: 0,
            depth: 0,
            terminal: None,
            errexit: false,
        }
    }

    /// Returns a flag that is set when a script uses a program that the simulated images do not contain, or syntax
    /// that this shell cannot parse. Its exit code is meaningless then.
    pub fn unknown_commands(&self) -> UnknownCommands {
        UnknownCommands(self.shared.clone())
    }

    pub(super) fn record_unknown_command(&self) {
        self.shared.used_unknown_command.store(true, Ordering::Relaxed);
    }

    /// Returns the next value of `$RANDOM`: 0 to 32767.
    pub(super) fn random(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        // SplitMix64
        let mut mixed = self.shared.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) >> 49
    }

    /// Runs a program with its arguments, without a shell.
    pub async fn start(mut self, arguments: &[String], io: Stdio) -> StartOutcome {
        let Some(program) = arguments.first() else { return StartOutcome::NotFound };
        if !is_program(program) {
            return StartOutcome::NotFound;
        }
        let flow = self.run_program(arguments, &io).await;
        StartOutcome::Code(match flow {
            Ok(code) | Err(Flow::Exit(code)) => code,
            Err(Flow::Break | Flow::Continue) => 0,
        })
    }

    /// Runs a script and returns its exit code.
    pub(super) async fn run_script(&mut self, script: &str, io: &Stdio) -> i32 {
        match self.try_run_script(script, io).await {
            Ok(code) | Err(Flow::Exit(code)) => code,
            Err(Flow::Break | Flow::Continue) => self.status,
        }
    }

    /// Runs a script. `exit` in it is returned as [`Flow::Exit`].
    pub(super) async fn try_run_script(&mut self, script: &str, io: &Stdio) -> Result<i32, Flow> {
        match parse::parse(script) {
            Ok(command) => self.run(&command, io).await,
            Err(error) => {
                // A real shell may support this syntax.
                self.record_unknown_command();
                io.error(&format!("{}: {error}", self.name)).await;
                self.status = 2;
                Ok(2)
            }
        }
    }

    pub(super) fn run<'a>(&'a mut self, command: &'a Command, io: &'a Stdio) -> BoxFuture<'a, Result<i32, Flow>> {
        Box::pin(async move {
            self.depth += 1;
            let result = if self.depth > MAX_DEPTH * 4 {
                io.error(&format!("{}: nesting too deep", self.name)).await;
                Err(Flow::Exit(2))
            } else {
                self.run_redirected(command, io).await
            };
            self.depth -= 1;
            self.status = match result {
                Ok(code) | Err(Flow::Exit(code)) => code,
                Err(Flow::Break | Flow::Continue) => self.status,
            };
            result
        })
    }

    /// Opens the redirects of a command, runs it, and closes the files.
    async fn run_redirected(&mut self, command: &Command, io: &Stdio) -> Result<i32, Flow> {
        let redirects = command.redirects();
        if redirects.is_empty() {
            return self.run_unredirected(command, io).await;
        }
        let mut stdio = io.clone();
        let mut opened = Vec::new();
        for redirect in redirects {
            if let Err(message) = self.open_redirect(redirect, &mut stdio, &mut opened).await? {
                io.error(&format!("{}: {message}", self.name)).await;
                return Ok(1);
            }
        }
        let result = self.run_unredirected(command, &stdio).await;
        for file in opened {
            if let Err(error) = file.finish().await {
                io.error(&format!("{}: {error}", self.name)).await;
                return Ok(1);
            }
        }
        result
    }

    async fn run_unredirected(&mut self, command: &Command, io: &Stdio) -> Result<i32, Flow> {
        match command {
            Command::Simple { assignments, words, .. } => {
                let code = self.run_simple(assignments, words, io).await?;
                if self.errexit && code != 0 { Err(Flow::Exit(code)) } else { Ok(code) }
            }
            Command::Pipeline { stages, negate } => {
                let code = self.run_pipeline(stages, io).await?;
                Ok(if *negate { i32::from(code == 0) } else { code })
            }
            Command::AndOr(first, rest) => {
                // A failure in a condition does not end the script under `set -e`.
                let errexit = std::mem::take(&mut self.errexit);
                let mut code = self.run(first, io).await;
                for (and, next) in rest {
                    match code {
                        Ok(status) if (status == 0) == *and => code = self.run(next, io).await,
                        Ok(_) => {}
                        Err(_) => break,
                    }
                }
                self.errexit = errexit;
                code
            }
            Command::Sequence(commands) => {
                let mut code = 0;
                for command in commands {
                    code = self.run(command, io).await?;
                }
                Ok(code)
            }
            Command::Subshell(body, _) => self.clone().run(body, io).await.into_status(),
            Command::Group(body, _) => self.run(body, io).await,
            Command::If { branches, otherwise, .. } => {
                for (condition, body) in branches {
                    if self.run_condition(condition, io).await? {
                        return self.run(body, io).await;
                    }
                }
                match otherwise {
                    Some(body) => self.run(body, io).await,
                    None => Ok(0),
                }
            }
            Command::While { until, condition, body, .. } => {
                let mut code = 0;
                while self.run_condition(condition, io).await? != *until {
                    match self.run_iteration(body, io).await? {
                        Some(status) => code = status,
                        None => break,
                    }
                }
                Ok(code)
            }
            Command::For { name, words, body, .. } => {
                let values = match words {
                    Some(words) => self.expand_words(words, io).await?,
                    None => self.parameters.clone(),
                };
                let mut code = 0;
                for value in values {
                    self.env.insert(name.clone(), value);
                    match self.run_iteration(body, io).await? {
                        Some(status) => code = status,
                        None => break,
                    }
                }
                Ok(code)
            }
        }
    }

    /// Runs one iteration of a loop. Returns `None` after `break`.
    async fn run_iteration(&mut self, body: &Command, io: &Stdio) -> Result<Option<i32>, Flow> {
        self.clock.step().await;
        match self.run(body, io).await {
            Ok(status) => Ok(Some(status)),
            Err(Flow::Continue) => Ok(Some(self.status)),
            Err(Flow::Break) => Ok(None),
            Err(exit) => Err(exit),
        }
    }

    /// Runs a condition. Returns true if it succeeds.
    async fn run_condition(&mut self, condition: &Command, io: &Stdio) -> Result<bool, Flow> {
        let errexit = std::mem::take(&mut self.errexit);
        let code = self.run(condition, io).await;
        self.errexit = errexit;
        Ok(code? == 0)
    }

    /// Runs the stages of a pipeline concurrently. Returns the exit code of the last one.
    async fn run_pipeline(&mut self, stages: &[Command], io: &Stdio) -> Result<i32, Flow> {
        if let [only] = stages {
            return self.run(only, io).await;
        }
        let mut running = Vec::with_capacity(stages.len());
        let mut stdin = io.stdin.clone();
        for (index, stage) in stages.iter().enumerate() {
            let mut shell = self.clone();
            let mut stdio = Stdio { stdin: stdin.clone(), ..io.clone() };
            if index + 1 < stages.len() {
                let (output, input) = pipe();
                stdio.stdout = output;
                stdin = Arc::new(tokio::sync::Mutex::new(input));
            }
            // Each stage owns its pipe ends, which are closed when it finishes.
            running.push(async move { shell.run(stage, &stdio).await.into_status().unwrap_or(1) });
        }
        drop(stdin);
        Ok(join_all(running).await.pop().unwrap_or_default())
    }

    /// Runs a command without control flow: assignments and a program with its arguments.
    async fn run_simple(&mut self, assignments: &[(String, Word)], words: &[Word], io: &Stdio) -> Result<i32, Flow> {
        self.clock.step().await;
        let arguments = self.expand_words(words, io).await?;
        if arguments.is_empty() {
            // An assignment without a command substitution succeeds.
            self.status = 0;
        }
        let mut values = Vec::with_capacity(assignments.len());
        for (name, word) in assignments {
            let value = self.expand_word(word, io).await?;
            if arguments.is_empty() {
                self.env.insert(name.clone(), value);
            } else {
                values.push((name.clone(), value));
            }
        }
        if arguments.is_empty() {
            return Ok(self.status);
        }
        // Assignments before a command apply only to that command.
        let previous_values: Vec<_> =
            values.iter().map(|(name, _)| (name.clone(), self.env.get(name).cloned())).collect();
        self.env.extend(values);
        let result = self.run_program(&arguments, io).await;
        for (name, value) in previous_values {
            match value {
                Some(value) => self.env.insert(name, value),
                None => self.env.remove(&name),
            };
        }
        result
    }

    /// Returns the output of `$(…)` without trailing newlines.
    pub(super) async fn substitute(&mut self, script: &Command, io: &Stdio) -> Result<String, Flow> {
        let output = Arc::new(CollectingSink::default());
        let stdio = Stdio { stdout: output.clone(), ..io.clone() };
        let mut subshell = self.clone();
        self.status = subshell.run(script, &stdio).await.into_status()?;
        Ok(String::from_utf8_lossy(&output.take()).trim_end_matches('\n').to_owned())
    }
}

/// Converts the result of a subshell: an exit becomes its status.
trait ExitStatus {
    fn into_status(self) -> Result<i32, Flow>;
}

impl ExitStatus for Result<i32, Flow> {
    fn into_status(self) -> Result<i32, Flow> {
        match self {
            Err(Flow::Exit(code)) => Ok(code),
            Err(Flow::Break | Flow::Continue) => Ok(0),
            ok => ok,
        }
    }
}

#[cfg(test)]
mod tests;
