//! Support for whole-system tests: starts the real binary, kubectl and Chromium, and waits for states.

use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use anyhow::{Context, Result, bail};

mod charts;
mod documentation;
pub mod ground;
mod kubectl;
mod process;

pub use charts::{render_charts, repository_root, run_release_script};
pub use documentation::{fenced_blocks, run_shell_blocks};
pub use kubectl::{CommandOutput, KUBECTL_VERSIONS, Kubectl, RunningCommand, with_each_kubectl};
pub use process::{Apiserver, Member, Process};

/// Timeout for a state to be reached on a loaded two-core machine.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// Ports below the ephemeral ranges of common operating systems.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A free loopback port, for servers that need their address before they start. Each call in a process returns a
/// different port. The port is not ephemeral, because the system could assign an ephemeral one to a connection in the
/// meantime.
pub fn free_port() -> Result<u16> {
    static OFFSET: AtomicU16 = AtomicU16::new(0);
    // Tests in concurrent processes start at different ports.
    let begin = (std::process::id() % 1_000) as u16 * 12;
    for _ in PORTS {
        let nth = OFFSET.fetch_add(1, Ordering::Relaxed).wrapping_add(begin);
        let port = PORTS.start + nth % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port of {PORTS:?} is free")
}

/// True in CI, where a missing tool is an error. Elsewhere the test is skipped with a note.
pub fn in_ci() -> bool {
    env::var("CI").is_ok_and(|v| v == "true")
}

/// The binary, which cargo builds before these tests.
pub fn binary() -> Result<PathBuf> {
    let test_binary = env::current_exe()?;
    let built = test_binary
        .parent()
        .and_then(Path::parent)
        .context("the test binary has no target directory")?
        .join("crowsnest");
    if !built.is_file() {
        bail!("{} is missing: run this test with `cargo test`", built.display());
    }
    Ok(built)
}

/// Folder of the tools that `.ci/tools` installs; `None` if the user has no home directory.
fn tools_folder() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    Some(cache.or_else(|| env::home_dir().map(|home| home.join(".cache")))?.join("crowsnest"))
}

/// Path of the kubectl binary of a version (`1.20`, `1.32`, `1.36`), or of any version if `version` is empty. Outside CI,
/// returns `None` if it is missing.
pub fn find_kubectl(version: &str) -> Result<Option<PathBuf>> {
    let cached = env::var_os("CROWSNEST_KUBECTL").map(PathBuf::from).or_else(|| Some(tools_folder()?.join("kubectl")));
    let versions: &[&str] = if version.is_empty() { &["1.32", "1.36", "1.20"] } else { &[version] };
    let found = cached
        .into_iter()
        .flat_map(|dir| versions.iter().map(move |version| dir.join(format!("kubectl-{version}"))))
        .find(|p| p.is_file());
    let found = found.or_else(|| (version.is_empty()).then(|| find_on_path("kubectl")).flatten());
    require_tool(found, &format!("kubectl {version}"), "tests/fetch-kubectl")
}

/// Path of Chromium. Outside CI, returns `None` if it is missing.
pub fn find_chromium() -> Result<Option<PathBuf>> {
    let configured = env::var_os("CROWSNEST_CHROMIUM").map(PathBuf::from).filter(|p| p.is_file());
    require_tool(configured.or_else(|| find_on_path("chromium")), "Chromium", "apt-get install chromium")
}

/// Folder for screenshots of browser scripts, in the build folder.
pub fn screenshot_folder() -> Result<PathBuf> {
    let binary = binary()?;
    let target = binary.parent().and_then(Path::parent).context("the binary has no target directory")?;
    let pictures = target.join("tmp/pictures");
    fs::create_dir_all(&pictures)?;
    Ok(pictures)
}

/// Runs a script of `web/e2e` in a real browser and returns its output. Outside CI, returns `None` if
/// Chromium is missing.
pub fn run_browser_script(script: &str, args: &[&OsStr], environment: &[(&str, OsString)]) -> Result<Option<String>> {
    let Some(chromium) = find_chromium()? else { return Ok(None) };
    let output = Command::new("node")
        .arg(format!("e2e/{script}.mjs"))
        .args(args)
        .env("CROWSNEST_CHROMIUM", chromium)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../web"))
        .output()
        .context("cannot run node")?;
    let output = CommandOutput::parse(&output)?;
    if output.code != Some(0) {
        bail!("the browser script {script} failed: {}{}", output.out, output.err);
    }
    Ok(Some(output.out))
}

/// Path of a Python interpreter that can import the Kubernetes client. Outside CI, returns `None` if it is
/// missing.
pub fn find_python() -> Result<Option<PathBuf>> {
    let configured = env::var_os("CROWSNEST_PYTHON").map(PathBuf::from).filter(|p| p.is_file());
    require_tool(configured, "Python with the Kubernetes client (CROWSNEST_PYTHON)", ".ci/tools")
}

/// Folder with the JavaScript client in its `node_modules`. Outside CI, returns `None` if it or Node is
/// missing.
pub fn find_node_client() -> Result<Option<PathBuf>> {
    let has_client =
        |dir: &PathBuf| dir.join("node_modules/@kubernetes/client-node").is_dir() && find_on_path("node").is_some();
    let configured = env::var_os("CROWSNEST_NODE_CLIENT").map(PathBuf::from).filter(has_client);
    require_tool(configured, "Node with the Kubernetes client (CROWSNEST_NODE_CLIENT)", ".ci/tools")
}

fn find_on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// Fails in CI if a tool is missing; elsewhere reports that the test is skipped and returns `None`. `installer` is the
/// command that installs the tool.
fn require_tool(path: Option<PathBuf>, tool: &str, installer: &str) -> Result<Option<PathBuf>> {
    if path.is_none() {
        if in_ci() {
            bail!("{tool} is missing; run {installer}");
        }
        // Skipped tests are reported on standard error.
        io::Write::write_fmt(
            &mut io::stderr(),
            format_args!("skipped: {tool} is missing ({installer} installs it); CI runs this test\n"),
        )?;
    }
    Ok(path)
}

/// Starts `crowsnest up` on free ports, without waiting until it is ready. It prints its banner on standard output.
pub fn launch(data_dir: &Path, args: &[&str]) -> Result<Child> {
    launch_with_env(data_dir, args, &[])
}

fn launch_with_env(data_dir: &Path, args: &[&str], environment: &[(&str, OsString)]) -> Result<Child> {
    let up = Command::new(binary()?)
        .args(["-v", "up", "--listen", "127.0.0.1:0", "--ui-listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .args(args)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(fs::File::create(data_dir.with_extension("log"))?)
        .spawn();
    up.context("cannot start crowsnest up")
}

/// A running `crowsnest up`; killed when dropped.
pub struct Fleet {
    child: Option<Child>,
    pub data_dir: PathBuf,
    pub ui_url: String,
}

impl Fleet {
    /// Starts the process and waits for its ready line.
    pub fn start(data_dir: &Path, args: &[&str]) -> Result<Self> {
        Self::start_with_env(data_dir, args, &[])
    }

    /// Starts the process with environment variables and waits for its ready line.
    pub fn start_with_env(data_dir: &Path, args: &[&str], environment: &[(&str, OsString)]) -> Result<Self> {
        let log = data_dir.with_extension("log");
        let mut child = launch_with_env(data_dir, args, environment)?;
        let out = child.stdout.take().context("no standard output")?;
        let mut lines = io::BufRead::lines(io::BufReader::new(out));
        let mut ui_url = None;
        // The banner ends with example commands and contains the UI's address.
        for line in lines.by_ref() {
            let line = line?;
            if let Some(at) = line.find("http://") {
                ui_url = Some(line[at..].trim().to_owned());
            }
            if line.trim().starts_with("crowsnest search") {
                break;
            }
        }
        let Some(ui_url) = ui_url else {
            let status = child.wait()?;
            bail!("crowsnest up ended with {status}: {}", read_log_end(&log));
        };
        // Few lines follow, but a full pipe would block the fleet.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { child: Some(child), data_dir: data_dir.to_owned(), ui_url })
    }

    /// Path of a kubeconfig; `name` is `cp`, `fleet` or a member's name.
    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.data_dir.join("kubeconfigs").join(format!("{name}.kubeconfig"))
    }

    /// Runs the CLI against this fleet.
    pub fn crowsnest(&self, args: &[&str]) -> Result<CommandOutput> {
        CommandOutput::parse(&self.with_fleet_env(Command::new(binary()?)).args(args).output()?)
    }

    /// Starts a long-running CLI command; its standard output is read as it arrives.
    pub fn crowsnest_stream(&self, args: &[&str]) -> Result<RunningCommand> {
        let mut command = self.with_fleet_env(Command::new(binary()?));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        RunningCommand::start(command, format!("crowsnest {args:?}"))
    }

    /// Starts a CLI command in a pseudo-terminal, created by script(1), without a pager.
    pub fn crowsnest_terminal(&self, args: &[&str]) -> Result<RunningCommand> {
        self.crowsnest_terminal_with_env(args, &[("CROWSNEST_PAGER", "")])
    }

    /// Starts a CLI command in a pseudo-terminal with environment variables.
    pub fn crowsnest_terminal_with_env(&self, args: &[&str], environment: &[(&str, &str)]) -> Result<RunningCommand> {
        let mut command = self.with_fleet_env(Command::new("script"));
        command.args(["-qec", &format!("{} {}", binary()?.display(), args.join(" ")), "/dev/null"]);
        // A terminal with colours, independent of the one in which the tests run.
        command.env("TERM", "xterm").env_remove("NO_COLOR").envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        RunningCommand::start(command, format!("crowsnest {args:?} in a terminal"))
    }

    /// Makes a command use this fleet.
    fn with_fleet_env(&self, mut command: Command) -> Command {
        command.env("CROWSNEST_DATA_DIR", &self.data_dir).env("KUBECONFIG", self.kubeconfig("cp"));
        command
    }

    /// Any available kubectl, with the control plane's kubeconfig. Outside CI, returns `None` if no
    /// kubectl is installed.
    pub fn any_kubectl(&self) -> Result<Option<Kubectl>> {
        let Some(program) = find_kubectl("")? else { return Ok(None) };
        Ok(Some(Kubectl::new("any", program, &self.kubeconfig("cp"), &self.data_dir.with_extension("kubectl"))?))
    }

    /// The last lines of the process's log, for error messages.
    pub fn log(&self) -> String {
        format!("log: {}", read_log_end(&self.data_dir.with_extension("log")))
    }

    /// `https://host:port` of the control plane.
    pub fn server(&self) -> Result<String> {
        let kubeconfig = fs::read_to_string(self.kubeconfig("cp"))?;
        let server = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server:"));
        Ok(server.context("cp.kubeconfig names no server")?.trim().trim_matches(['"', '\'']).to_owned())
    }

    pub fn run_kubectl(&self, program: &Path, kubeconfig: &str, args: &[&str]) -> Result<Output> {
        self.run_kubectl_with_input(program, kubeconfig, args, "")
    }

    pub fn run_kubectl_with_input(
        &self,
        program: &Path,
        kubeconfig: &str,
        args: &[&str],
        input: &str,
    ) -> Result<Output> {
        let mut child = Command::new(program)
            .arg("--kubeconfig")
            .arg(self.kubeconfig(kubeconfig))
            .args(args)
            .env_remove("KUBECONFIG")
            .env("KUBECACHEDIR", self.data_dir.with_extension("kubectl-cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        io::Write::write_all(&mut stdin, input.as_bytes())?;
        drop(stdin);
        Ok(child.wait_with_output()?)
    }

    /// Runs kubectl, which must succeed; returns its standard output.
    pub fn kubectl_ok(&self, program: &Path, kubeconfig: &str, args: &[&str], input: &str) -> Result<String> {
        let output = self.run_kubectl_with_input(program, kubeconfig, args, input)?;
        if !output.status.success() {
            bail!("kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Repeats kubectl until its output satisfies `accept`.
    pub fn kubectl_until(
        &self,
        program: &Path,
        kubeconfig: &str,
        args: &[&str],
        accept: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let mut last = String::new();
        wait_for(&format!("kubectl {args:?} on {kubeconfig}"), || {
            let output = self.run_kubectl(program, kubeconfig, args)?;
            last = String::from_utf8_lossy(&output.stdout).into_owned();
            let ok = output.status.success() && accept(&last);
            if !output.status.success() {
                last.push_str(&String::from_utf8_lossy(&output.stderr));
            }
            Ok(ok)
        })
        .with_context(|| format!("last output: {last}; log: {}", read_log_end(&self.data_dir.with_extension("log"))))?;
        Ok(last)
    }

    /// Stops the process with SIGTERM and waits.
    pub fn stop(mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("the process has already been stopped")?;
        signal(&child, "TERM")?;
        Ok(child.wait()?)
    }

    /// Sends a signal by name, such as STOP or CONT.
    pub fn signal(&self, name: &str) -> Result<()> {
        signal(self.child.as_ref().context("the process has already been stopped")?, name)
    }

    /// Kills the process, as a power cut would.
    pub fn kill(mut self) -> Result<()> {
        let mut child = self.child.take().context("the process has already been stopped")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The child may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signal(child: &Child, name: &str) -> Result<()> {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status()?;
    if !status.success() {
        bail!("kill -{name} ended with {status}");
    }
    Ok(())
}

/// CPU time of the current thread. Unlike wall-clock time, it excludes the time in which other processes run.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}

/// Polls until `ready` returns true. Fails after [`WAIT_TIMEOUT`] with `what`, a noun phrase such as `the pods to run`,
/// or with the first error of `ready`.
pub fn wait_for(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let started_at = Instant::now();
    loop {
        let polled_at = Instant::now();
        if ready()? {
            return Ok(());
        }
        if started_at.elapsed() > WAIT_TIMEOUT {
            bail!("timed out after {} s waiting for {what}", WAIT_TIMEOUT.as_secs());
        }
        std::thread::park_timeout(pause(started_at.elapsed(), polled_at.elapsed()));
    }
}

/// Pause before the next poll, given the time waited so far and the duration of the last poll: the larger of a tenth of
/// the wait and twice the poll, at least 50 ms and at most two seconds. Most polls start a process or read many objects.
/// With these pauses, polls take at most a third of the time (unless one takes more than a second), and are less frequent
/// on a busy machine.
pub fn pause(waited: Duration, poll: Duration) -> Duration {
    (waited / 10).max(poll * 2).clamp(Duration::from_millis(50), Duration::from_secs(2))
}

/// Splits a line at whitespace, for example into the arguments of a command or the cells of a table row. Quotes have no
/// meaning.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Runs a CLI command that must exit with this code and print this text on either stream.
pub fn expect_output(fleet: &Fleet, args: &[&str], code: i32, text: &str) -> Result<CommandOutput> {
    let output = fleet.crowsnest(args)?;
    if output.code != Some(code) || !(output.out.contains(text) || output.err.contains(text)) {
        bail!("crowsnest {args:?} should exit with {code} and print {text:?}: {output:?}");
    }
    Ok(output)
}

/// Repeats a CLI command until its result is accepted.
pub fn wait_for_output(fleet: &Fleet, args: &[&str], accept: impl Fn(&CommandOutput) -> bool) -> Result<CommandOutput> {
    let mut last = None;
    let accepted = wait_for(&format!("crowsnest {args:?}"), || {
        let output = fleet.crowsnest(args)?;
        let done = accept(&output);
        last = Some(output);
        Ok(done)
    });
    accepted.with_context(|| format!("last: {last:?}"))?;
    last.context("the command did not run")
}

/// The end of a log, for error messages.
fn read_log_end(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_follow_the_duration_of_polls_and_of_the_wait() {
        // Milliseconds: waited, last poll, pause.
        let cases = [(0, 1, 50), (400, 300, 600), (6_000, 100, 600), (60_000, 100, 2_000), (9_000, 5_000, 2_000)];
        for (waited, poll, expected) in cases {
            let found = pause(Duration::from_millis(waited), Duration::from_millis(poll));
            assert_eq!(found, Duration::from_millis(expected), "waited {waited} ms, polled for {poll} ms");
        }
    }
}
