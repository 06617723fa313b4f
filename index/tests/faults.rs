//! Fault test of the cache: after any process, network or data fault, the cache finally equals the members' objects
//! byte for byte, and text search finds exactly these.
//!
//! Members are real API servers in this process, each behind a network that can fail; the cache runs in a separate
//! process that is killed, stopped, suspended, or loses single workers. A round is a random series of writes with one
//! to three faults between them, followed by the comparison. `CROWSNEST_FAULT_ROUNDS` sets the number of rounds for
//! each store, `CROWSNEST_FAULT_SEED` repeats a series (timing differs, choices do not); the seed is printed.

#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "in a test a panic is the report")]

#[path = "faults/check.rs"]
mod check;
#[path = "faults/fault.rs"]
mod fault;
#[path = "faults/host.rs"]
mod host;
#[path = "support/members.rs"]
mod members;
#[path = "faults/network.rs"]
mod network;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "faults/process.rs"]
mod process;
#[path = "faults/test_member.rs"]
mod test_member;

use fault::Fault;
use host::Start;
use members::{Member, control_plane};
use postgres::Database;
use process::Host;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sqlx::Connection;
use std::time::{Duration, Instant};
use test_member::{Model, TestMember, Words, plan_writes, write_all};
use tokio::sync::watch;

const MEMBERS: usize = 3;
/// Writes to one member before, during and after each fault.
const WRITES: std::ops::Range<usize> = 1..9;
/// Polling interval; polling without a delay would starve the other process.
const POLL_INTERVAL: Duration = Duration::from_millis(30);
/// Numbers of rounds for SQLite and Postgres.
const DEFAULT_ROUNDS: [usize; 2] = [8, 3];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["host", start] => runtime.block_on(host::run(serde_json::from_str(start).unwrap())),
        // The output of the default test harness.
        arguments if arguments.contains(&"--list") => {
            println!("sqlite_survives_faults: test\npostgres_survives_faults: test");
        }
        arguments => {
            let is_selected = |test: &str| {
                let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
                filters.peek().is_none() || filters.any(|filter| test.contains(*filter))
            };
            // On CI, the seed is fixed, so that a change is tested with the same faults each time.
            let default_seed = || if std::env::var("CI").as_deref() == Ok("true") { 1 } else { rand::random() };
            let seed = read_number("CROWSNEST_FAULT_SEED").unwrap_or_else(default_seed);
            let chosen_rounds = read_number("CROWSNEST_FAULT_ROUNDS");
            let rounds = DEFAULT_ROUNDS.map(|default| chosen_rounds.map_or(default, |rounds| rounds as usize));
            if is_selected("sqlite_survives_faults") {
                runtime.block_on(run_rounds(Storage::Sqlite, seed, rounds[0]));
                println!("test sqlite_survives_faults ... ok");
            }
            if is_selected("postgres_survives_faults") {
                if let Some(database) = runtime.block_on(Database::create()) {
                    runtime.block_on(run_rounds(Storage::Postgres(database), seed, rounds[1]));
                }
                println!("test postgres_survives_faults ... ok");
            }
        }
    }
}

fn read_number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

/// Storage backend of the cache.
enum Storage {
    Sqlite,
    Postgres(Database),
}

impl Storage {
    fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }

    /// Terminates all connections to the database.
    async fn terminate_connections(&self) {
        self.query(
            "SELECT count(pg_terminate_backend(pid)) > -1 FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
            AND datname = current_database()",
        )
        .await;
    }

    /// True if no replica has renewed its lease for the duration of a lease.
    async fn is_lease_expired(&self) -> bool {
        self.query(
            "SELECT coalesce(max(heartbeat) < clock_timestamp() - interval '5.5 s', true) \
            FROM crowsnest_cache.replicas",
        )
        .await
    }

    async fn query(&self, sql: &'static str) -> bool {
        let Self::Postgres(database) = self else { return true };
        let mut connection = database.connect().await;
        let value = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        value
    }
}

/// Prints the current round and faults on a panic.
struct RoundReport {
    seed: u64,
    storage: &'static str,
    round: usize,
    faults: Vec<Fault>,
}

impl Drop for RoundReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, storage, round, faults } = self;
            eprintln!("{storage}, round {round} of CROWSNEST_FAULT_SEED={seed}: {faults:?}");
        }
    }
}

struct TestEnv {
    control_plane: Member,
    members: Vec<TestMember>,
    models: Vec<Model>,
    words: Words,
    storage: Storage,
    host: Host,
    rng: StdRng,
    directories: tempfile::TempDir,
}

impl TestEnv {
    async fn new(storage: Storage, seed: u64) -> Self {
        let control_plane = control_plane().await;
        let admin = control_plane.server.admin();
        let directories = tempfile::tempdir().unwrap();
        let mut members = Vec::new();
        for nth in 0..MEMBERS {
            let member = TestMember::start(&format!("member{nth}"), directories.path(), nth == MEMBERS - 1).await;
            member.register(&admin).await;
            members.push(member);
        }
        let database = match &storage {
            Storage::Sqlite => None,
            Storage::Postgres(database) => Some(database.url()),
        };
        let start = Start {
            control_plane: control_plane.config.cluster_url.to_string(),
            database,
            replica: Some("host".to_owned()),
            directory: directories.path().join("host"),
            skew_ms: 0,
        };
        let (models, rng) = (vec![Model::new(); MEMBERS], StdRng::seed_from_u64(seed));
        let host = Host::new(start);
        Self { control_plane, members, models, words: Words::default(), storage, host, rng, directories }
    }

    /// Writes to every member, and runs `action` starting at a random write.
    async fn write_during<T>(&mut self, action: impl AsyncFnOnce(&mut Host, &[TestMember], &Storage) -> T) -> T {
        let Self { members, models, words, storage, host, rng, .. } = self;
        let mut writes = Vec::new();
        for model in models {
            let number = rng.random_range(WRITES);
            writes.push(plan_writes(model, words, rng, number));
        }
        let start_at = rng.random_range(0..=writes.iter().map(Vec::len).sum::<usize>());
        let done = watch::Sender::new(0);
        let mut write_count = done.subscribe();
        let (_, done) = tokio::join!(write_all(members, writes, &done), async {
            write_count.wait_for(|done| *done >= start_at).await.unwrap();
            action(host, members, storage).await
        });
        done
    }

    /// Returns the durations of the parts of the round.
    async fn run_round(&mut self, report: &mut RoundReport) -> String {
        let started_at = Instant::now();
        self.words.start_round();
        for _ in 0..self.rng.random_range(1..=3) {
            let fault = Fault::choose(&mut self.rng, &self.storage, MEMBERS);
            report.faults.push(fault.clone());
            self.write_during(async |host, members, storage| fault.begin(host, members, storage).await).await;
        }
        let faults = &report.faults;
        self.write_during(async |host, members, storage| {
            for fault in faults {
                fault.end(host, members, storage).await;
            }
        })
        .await;
        let markers = check::write_markers(&self.members, &mut self.words).await;
        let fault_time = started_at.elapsed();
        let status = check::wait_until_settled(&mut self.host, &markers).await;
        let settling_time = started_at.elapsed() - fault_time;
        let differences = check::differences(&mut self.host, &self.members, &self.words).await;
        assert!(differences.is_empty(), "the cache differs from the members:\n{differences}");
        let comparison_time = started_at.elapsed() - fault_time - settling_time;
        format!("{fault_time:.1?} + {settling_time:.1?} + {comparison_time:.1?}, {} lists", status.lists)
    }
}

async fn run_rounds(storage: Storage, seed: u64, rounds: usize) {
    let name = storage.name();
    println!("{name}: {rounds} rounds with CROWSNEST_FAULT_SEED={seed}");
    let started_at = Instant::now();
    let mut env = TestEnv::new(storage, seed).await;
    env.host.ensure_running().await;
    for round in 0..rounds {
        let mut report = RoundReport { seed, storage: name, round, faults: Vec::new() };
        let durations = env.run_round(&mut report).await;
        println!("{name}, round {round}: {durations}, {:?}", report.faults);
    }
    env.host.stop().await;
    for member in env.members {
        member.shut_down().await;
    }
    env.control_plane.shut_down().await;
    drop(env.directories);
    println!("{name}: {rounds} rounds in {:.1?}", started_at.elapsed());
}
