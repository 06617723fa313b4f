//! Crash tests: `crowsnest up` is killed repeatedly while templates, policies and overrides change, and while it
//! starts. Its members are separate processes and keep running. Each time the fleet must reach exactly the desired
//! state: no object is missing, left over or duplicated, and objects that no write moved are not recreated.
//!
//! `CROWSNEST_CRASH_ROUNDS` is the number of kills, `CROWSNEST_CRASH_OBJECTS` the number of propagations per round (20
//! and 1000 for the full test; the defaults are for CI). `CROWSNEST_CRASH_SEED` repeats a series of choices (times
//! differ); the seed is printed.

#![expect(clippy::print_stderr, reason = "the seed and each round are printed")]

mod members;
mod model;
mod state;
pub mod write;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, WAIT_TIMEOUT, in_ci, launch, pause};
use members::Members;
use model::Model;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use state::{ObservedState, StateReader};
use tokio::runtime::Runtime;
use tokio::sync::watch;

const DEFAULT_ROUNDS: u64 = 5;
const DEFAULT_OBJECTS: u64 = 80;
/// Maximum delay between a write and the kill: approximately the time until the effects of the last write are complete.
const MAX_KILL_DELAY: Duration = Duration::from_millis(1500);
/// Duration that every start of the control plane exceeds.
const MIN_START_DURATION: Duration = Duration::from_secs(3);
/// Maximum number of differences in an error message.
const MAX_PRINTED_DIFFERENCES: usize = 12;

#[test]
fn the_fleet_reaches_the_desired_state_after_any_crash() -> Result<()> {
    let default_seed = if in_ci() { 1 } else { rand::random_range(0..1_000_000) };
    let seed = number_from_env("CROWSNEST_CRASH_SEED", default_seed)?;
    let rounds = number_from_env("CROWSNEST_CRASH_ROUNDS", DEFAULT_ROUNDS)?;
    let objects = number_from_env("CROWSNEST_CRASH_OBJECTS", DEFAULT_OBJECTS)?;
    let repeat =
        format!("CROWSNEST_CRASH_SEED={seed} CROWSNEST_CRASH_ROUNDS={rounds} CROWSNEST_CRASH_OBJECTS={objects}");
    eprintln!("{repeat}");
    let mut env = TestEnv::new(seed, usize::try_from(objects)?)?;
    for round in 0..rounds {
        env.run_round(round).with_context(|| format!("round {round} of {repeat}"))?;
    }
    env.control_plane.stop()
}

fn number_from_env(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text} is not a number")),
        Err(_) => Ok(default),
    }
}

/// The control plane, which is started repeatedly with the same data.
struct ControlPlane {
    data_dir: PathBuf,
    args: Vec<String>,
    /// `None` while it is not running.
    fleet: Option<Fleet>,
}

impl ControlPlane {
    fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }

    fn start(&mut self) -> Result<()> {
        self.fleet = Some(Fleet::start(&self.data_dir, &self.args())?);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        self.fleet.take().context("the control plane is not running")?.kill()
    }

    /// Starts the process and kills it after a delay, at which it is not ready yet.
    fn kill_during_start(&self, delay: Duration) -> Result<()> {
        let mut process = launch(&self.data_dir, &self.args())?;
        std::thread::park_timeout(delay);
        process.kill()?;
        process.wait().map(drop).context("cannot wait for the killed process")
    }

    fn stop(&mut self) -> Result<()> {
        let status = self.fleet.take().context("the control plane is not running")?.stop()?;
        ensure!(status.success(), "the control plane stopped with {status}");
        Ok(())
    }
}

/// A kill of the control plane in one round.
struct Kill {
    /// Number of acknowledged writes before the kill.
    writes_before: usize,
    /// Delay after the last of these writes.
    delay: Duration,
    /// Delay of a second kill after the start of the restart, before the control plane is ready.
    second_kill_delay: Option<Duration>,
}

impl Kill {
    fn random(rng: &mut StdRng, writes: usize) -> Self {
        let writes_before = rng.random_range(1..=writes);
        let delay = MAX_KILL_DELAY.mul_f64(rng.random());
        let second_kill_delay = rng.random_bool(0.3).then(|| MIN_START_DURATION.mul_f64(rng.random()));
        Kill { writes_before, delay, second_kill_delay }
    }
}

/// The control plane with its members, and the desired state.
struct TestEnv {
    rng: StdRng,
    model: Model,
    control_plane: ControlPlane,
    runtime: Runtime,
    reader: StateReader,
    /// State at the end of the previous round.
    previous_state: ObservedState,
    // Dropped last, with its data folder.
    _members: Members,
    _dir: tempfile::TempDir,
}

impl TestEnv {
    fn new(seed: u64, objects: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let members = Members::start(dir.path())?;
        let runtime = Runtime::new()?;
        let data_dir = dir.path().join("data");
        let reader = runtime.block_on(StateReader::new(&kubeconfig(&data_dir), members.kubeconfig()))?;
        let file = members.kubeconfig().display().to_string();
        let args = ["--no-members", "--kubeconfig", &file, "--contexts", &model::MEMBERS.join(",")].map(str::to_owned);
        let mut control_plane = ControlPlane { data_dir, args: args.to_vec(), fleet: None };
        control_plane.start()?;
        let rng = StdRng::seed_from_u64(seed);
        let model = Model::new(objects);
        let previous_state = ObservedState::default();
        Ok(TestEnv { rng, model, control_plane, runtime, reader, previous_state, _members: members, _dir: dir })
    }

    fn run_round(&mut self, round: u64) -> Result<()> {
        let started_at = Instant::now();
        let changes = self.model.next_changes(&mut self.rng);
        let writes = changes.count();
        let kill = Kill::random(&mut self.rng, writes);
        self.write_and_kill(changes.lanes(), &kill)?;
        let write_duration = started_at.elapsed();
        let state = self.wait_until_settled(writes)?;
        let recreated = state.recreated_objects(&self.previous_state, |name| changes.may_replace(name));
        ensure!(recreated.is_empty(), "objects were recreated although no write moved them: {recreated:?}");
        self.previous_state = state;
        let Kill { writes_before, delay, second_kill_delay } = kill;
        let second =
            second_kill_delay.map(|delay| format!(", again {delay:.1?} after the restart began")).unwrap_or_default();
        eprintln!(
            "round {round}: killed {delay:.1?} after {writes_before} of {writes} writes{second}; writing took \
             {write_duration:.1?}, settling {:.1?}",
            started_at.elapsed() - write_duration
        );
        Ok(())
    }

    /// Kills and restarts the control plane while writes are sent, and sends the remaining writes.
    fn write_and_kill(&mut self, lanes: Vec<Vec<write::Write>>, kill: &Kill) -> Result<()> {
        let (file, runtime) = (kubeconfig(&self.control_plane.data_dir), &self.runtime);
        let control_plane = &mut self.control_plane;
        let (sender, mut acknowledged) = watch::channel(0);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| runtime.block_on(write::write_all(&file, lanes, sender)));
            // If the writer fails earlier, its error is returned below.
            let is_reached = runtime.block_on(acknowledged.wait_for(|count| *count >= kill.writes_before)).is_ok();
            if is_reached {
                std::thread::park_timeout(kill.delay);
                control_plane.kill()?;
                if let Some(delay) = kill.second_kill_delay {
                    control_plane.kill_during_start(delay)?;
                }
                control_plane.start()?;
            }
            writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Waits until the fleet is in the desired state and returns that state.
    fn wait_until_settled(&self, writes: usize) -> Result<ObservedState> {
        let desired = self.model.desired_state();
        let timeout = WAIT_TIMEOUT + Duration::from_millis(100) * u32::try_from(writes)?;
        let started_at = Instant::now();
        loop {
            let read_at = Instant::now();
            let state = self.runtime.block_on(write::retry(|| self.reader.read()))?;
            let differences = state.differences(&desired);
            if differences.is_empty() {
                return Ok(state);
            }
            let first: Vec<&String> = differences.iter().take(MAX_PRINTED_DIFFERENCES).collect();
            let log = || self.control_plane.fleet.as_ref().map(Fleet::log).unwrap_or_default();
            ensure!(started_at.elapsed() < timeout, "{} differences: {first:#?}\n{}", differences.len(), log());
            std::thread::park_timeout(pause(started_at.elapsed(), read_at.elapsed()));
        }
    }
}

/// Path of the control plane's kubeconfig. Each start rewrites the file, because the port changes.
fn kubeconfig(data_dir: &Path) -> PathBuf {
    data_dir.join("kubeconfigs/cp.kubeconfig")
}
