//! Crash tests: `crowsnest up` is killed repeatedly while templates, policies and overrides change, and while it
//! starts. Its members are separate processes and keep running. Each time the fleet must reach exactly the desired
//! state: no object is missing, left over or duplicated, and objects that no write moved are not recreated.
//!
//! `CROWSNEST_CRASH_ROUNDS` is the number of kills, `CROWSNEST_CRASH_OBJECTS` the number of propagations per round (20 and 1000 for
//! the full test; the defaults are for CI). `CROWSNEST_CRASH_SEED` repeats a series of choices (times differ); the seed is printed.

#![expect(clippy::print_stderr, reason = "the seed is printed")]

mod members;
mod model;
mod state;
pub mod write;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, PATIENCE, in_ci, launch};
use members::Members;
use model::Model;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use state::{ObservedState, StateReader};
use tokio::runtime::Runtime;
use tokio::sync::watch;

const USUAL_ROUNDS: u64 = 5;
const USUAL_OBJECTS: u64 = 80;
/// Approximate duration of the remaining work after the last write.
const AFTERMATH: Duration = Duration::from_millis(1500);
/// Lower bound of the duration of a start.
const STARTING: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Limit of the printed differences.
const MOST: usize = 12;

#[test]
fn the_fleet_reaches_the_desired_state_after_any_crash() -> Result<()> {
    let usual = if in_ci() { 1 } else { rand::random_range(0..1_000_000) };
    let seed = number("CROWSNEST_CRASH_SEED", usual)?;
    let rounds = number("CROWSNEST_CRASH_ROUNDS", USUAL_ROUNDS)?;
    let objects = number("CROWSNEST_CRASH_OBJECTS", USUAL_OBJECTS)?;
    let repeat =
        format!("CROWSNEST_CRASH_SEED={seed} CROWSNEST_CRASH_ROUNDS={rounds} CROWSNEST_CRASH_OBJECTS={objects}");
    eprintln!("{repeat}");
    let mut site = Site::new(seed, usize::try_from(objects)?)?;
    for round in 0..rounds {
        site.round(round).with_context(|| format!("round {round} of {repeat}"))?;
    }
    site.up.stop()
}

fn number(variable: &str, usual: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text} is no number")),
        Err(_) => Ok(usual),
    }
}

/// The control plane, started repeatedly.
struct Up {
    data: PathBuf,
    args: Vec<String>,
    running: Option<Fleet>,
}

impl Up {
    fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }

    fn start(&mut self) -> Result<()> {
        self.running = Some(Fleet::start(&self.data, &self.args())?);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        self.running.take().context("it does not run")?.kill()
    }

    fn kill_while_starting(&self, after: Duration) -> Result<()> {
        let mut starting = launch(&self.data, &self.args())?;
        std::thread::park_timeout(after);
        starting.kill()?;
        starting.wait().map(drop).context("waiting for its end")
    }

    fn stop(&mut self) -> Result<()> {
        let status = self.running.take().context("it does not run")?.stop()?;
        ensure!(status.success(), "it stopped with {status}");
        Ok(())
    }
}

/// One kill: after a number of acknowledged writes, and a delay.
struct Death {
    acknowledged: usize,
    then: Duration,
    /// Another kill before it is ready again.
    starting: Option<Duration>,
}

impl Death {
    fn choose(rng: &mut StdRng, writes: usize) -> Self {
        let acknowledged = rng.random_range(1..=writes);
        // The last moments are as likely as any.
        let then = AFTERMATH.mul_f64(rng.random());
        let starting = rng.random_bool(0.3).then(|| STARTING.mul_f64(rng.random()));
        Death { acknowledged, then, starting }
    }
}

struct Site {
    rng: StdRng,
    model: Model,
    up: Up,
    runtime: Runtime,
    reader: StateReader,
    /// State at the end of the last round.
    found: ObservedState,
    // Dropped last, with its data folder.
    _members: Members,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(seed: u64, objects: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let members = Members::start(dir.path())?;
        let runtime = Runtime::new()?;
        let data = dir.path().join("data");
        let reader = runtime.block_on(StateReader::new(&kubeconfig(&data), members.kubeconfig()))?;
        let file = members.kubeconfig().display().to_string();
        let args = ["--no-members", "--kubeconfig", &file, "--contexts", &model::MEMBERS.join(",")].map(str::to_owned);
        let mut up = Up { data, args: args.to_vec(), running: None };
        up.start()?;
        let rng = StdRng::seed_from_u64(seed);
        let model = Model::new(objects);
        Ok(Site { rng, model, up, runtime, reader, found: ObservedState::default(), _members: members, _dir: dir })
    }

    fn round(&mut self, round: u64) -> Result<()> {
        let began = Instant::now();
        let changes = self.model.turn(&mut self.rng);
        let writes = changes.count();
        let death = Death::choose(&mut self.rng, writes);
        self.write_and_die(changes.lanes(), &death)?;
        let written = began.elapsed();
        let found = self.settled(writes)?;
        let recreated = found.recreated(&self.found, |name| changes.may_replace(name));
        ensure!(recreated.is_empty(), "objects were recreated although no write moved them: {recreated:?}");
        self.found = found;
        let Death { acknowledged, then, starting } = death;
        let again = starting.map(|after| format!(", and {after:.1?} into its start")).unwrap_or_default();
        eprintln!(
            "round {round}: killed {then:.1?} after {acknowledged} of {writes} writes{again}; {written:.1?} and {:.1?}",
            began.elapsed() - written
        );
        Ok(())
    }

    /// Sends writes, and continues with them after the restart.
    fn write_and_die(&mut self, lanes: Vec<Vec<write::Write>>, death: &Death) -> Result<()> {
        let (file, runtime, up) = (kubeconfig(&self.up.data), &self.runtime, &mut self.up);
        let (done, mut acknowledged) = watch::channel(0);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| runtime.block_on(write::write_all(&file, lanes, done)));
            // A smaller number is reported below.
            let reached = runtime.block_on(acknowledged.wait_for(|count| *count >= death.acknowledged)).is_ok();
            if reached {
                std::thread::park_timeout(death.then);
                up.kill()?;
                if let Some(after) = death.starting {
                    up.kill_while_starting(after)?;
                }
                up.start()?;
            }
            writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Waits for the desired state.
    fn settled(&self, writes: usize) -> Result<ObservedState> {
        let desired = self.model.desired();
        let timeout = PATIENCE + Duration::from_millis(100) * u32::try_from(writes)?;
        let began = Instant::now();
        loop {
            let found = self.runtime.block_on(self.reader.read())?;
            let differences = found.differences(&desired);
            if differences.is_empty() {
                return Ok(found);
            }
            let few: Vec<&String> = differences.iter().take(MOST).collect();
            let log = || self.up.running.as_ref().map(Fleet::log).unwrap_or_default();
            ensure!(began.elapsed() < timeout, "{} differences: {few:#?}\n{}", differences.len(), log());
            std::thread::park_timeout(LOOK_EVERY);
        }
    }
}

/// The control plane's kubeconfig, rewritten by each start, because its port changes.
fn kubeconfig(data: &Path) -> PathBuf {
    data.join("kubeconfigs/cp.kubeconfig")
}
