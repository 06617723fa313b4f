//! Fault test of replicas: three processes with one Postgres database, and API servers in this process.
//!
//! One replica is killed, one is suspended past its lease, one is disconnected from the database. Each time, its
//! clusters move to others within ten seconds. In the end, every replica has published the same changes in the same
//! order without duplicates, and its cache equals the members' objects.

#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "in a test a panic is the report")]

#[path = "support/members.rs"]
mod members;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/stalling_proxy.rs"]
mod stalling_proxy;

use crowsnest_index::{CacheOptions, GlobalCache, ListQuery, PostgresOptions, Seq, StoreOptions};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_store::{Clusters, Interest, InterestReason, Interests, Namespaces};
use futures::TryStreamExt;
use kube::Client;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use members::{
    Member, TOKEN, api, config_map, config_maps, control_plane, create, name, namespace, register, start, within,
};
use postgres::Database;
use sqlx::Row;
use stalling_proxy::StallingProxy;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

/// Distributed over three replicas, so that each has some.
const MEMBERS: usize = 6;
/// Time limit for moving clusters after a fault.
const MOVE_TIMEOUT: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["replica", control_plane, database, id, directory] => {
            runtime.block_on(run_replica(control_plane, database, id, Path::new(directory)));
        }
        // The output of the default test harness.
        arguments if arguments.contains(&"--list") => println!("replicas_survive_each_others_faults: test"),
        _ => {
            runtime.block_on(replicas_survive_each_others_faults());
            println!("test replicas_survive_each_others_faults ... ok");
        }
    }
}

/// Polling interval; polling without a delay would starve the other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a replica: logs all changes to `<directory>/log` and answers `list <cluster>` and `ready` on a port that it
/// prints.
async fn run_replica(control_plane: &str, database: &str, id: &str, directory: &Path) {
    let mut config = kube::Config::new(control_plane.parse().unwrap());
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(TOKEN.to_owned().into());
    let fleet = Fleet::start(Client::try_from(config).unwrap(), FleetOptions::on_loopback()).await.unwrap();
    let mut options = CacheOptions::new(directory);
    (options.collect_everything, options.collect_control_plane) = (false, false);
    options.store =
        StoreOptions::Postgres(PostgresOptions { replica: Some(id.to_owned()), ..PostgresOptions::new(database) });
    let (clusters, namespaces) = (Clusters::All, Namespaces::All);
    let reason = InterestReason::Other("the test".to_owned());
    let declared = Interests::default();
    let _interest = declared.declare(Interest { clusters, resource: config_maps(), namespaces, reason });
    let cache = GlobalCache::open_with(fleet, options, declared).await.unwrap();
    let start = cache.seq();
    let mut changes = cache.follow(start);
    let mut log = tokio::fs::File::create(directory.join("log")).await.unwrap();
    log.write_all(format!("after {start}\n").as_bytes()).await.unwrap();
    tokio::spawn(async move {
        while let Some(changes) = changes.next().await {
            let mut text = String::new();
            for change in changes.unwrap() {
                let (record, previous) = (&change.object.record, change.previous.as_ref());
                let before = previous.map(|previous| (&previous.resource_version, previous.seq));
                let body = change.object.body.len();
                writeln!(text, "{} {:?} {} {} {body} {before:?}", change.seq, change.kind, record.key.cluster(), {
                    format!("{}/{} {}", record.key.namespace, record.key.name, record.resource_version)
                })
                .unwrap();
            }
            log.write_all(text.as_bytes()).await.unwrap();
            log.flush().await.unwrap();
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let cache = cache.clone();
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut command = String::new();
            stream.read_line(&mut command).await.unwrap();
            let response = execute_command(&cache, command.trim()).await;
            stream.get_mut().write_all(response.as_bytes()).await.unwrap();
        });
    }
}

async fn execute_command(cache: &GlobalCache, command: &str) -> String {
    match command.split_once(' ') {
        Some(("list", cluster)) => {
            let query = ListQuery::new(name(cluster), config_maps()).in_namespace("shop");
            match cache.list(query).try_collect::<Vec<_>>().await {
                Ok(objects) => {
                    let text = objects.iter().map(|o| format!("{} {}", o.record.key.name, o.record.resource_version));
                    text.collect::<Vec<_>>().join("\n")
                }
                Err(error) => format!("error {}", error.chain()),
            }
        }
        // True if every collection of the tested resource is followed by some replica.
        _ => {
            let states = cache.states();
            let tested = states.iter().filter(|(key, _)| key.resource == config_maps());
            let stale: Vec<String> = tested
                .clone()
                .filter(|(_, state)| !state.is_fresh())
                .map(|(key, state)| format!("{key}: {:?}", state.stale_reason))
                .collect();
            match cache.check_ready() {
                Ok(()) if stale.is_empty() && tested.count() == MEMBERS => format!("ready {}", cache.seq()),
                Ok(()) => format!("stale {}", stale.join(", ")),
                Err(reason) => reason,
            }
        }
    }
}

/// A replica process.
struct Process {
    id: String,
    child: Child,
    port: u16,
    directory: PathBuf,
}

impl Process {
    async fn start(id: &str, control_plane: &Member, database: &str, directories: &Path) -> Self {
        let directory = directories.join(id);
        tokio::fs::create_dir_all(&directory).await.unwrap();
        let url = control_plane.config.cluster_url.to_string();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["replica", &url, database, id]).arg(&directory).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        within("the start of a replica", out.read_line(&mut line)).await.unwrap();
        let port = line.trim().parse().unwrap_or_else(|_| panic!("{id} did not start: {line}"));
        Self { id: id.to_owned(), child, port, directory }
    }

    async fn request(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(format!("{command}\n").as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok(response)
    }

    async fn signal(&self, signal: &str) {
        let process = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().await.unwrap().success());
    }

    /// Waits until all collections are followed.
    async fn wait_until_ready(&self) {
        let mut last = String::new();
        let waiting = async {
            loop {
                last = self.request("ready").await.unwrap();
                if last.starts_with("ready") {
                    return;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(60), waiting).await.is_err() {
            panic!("{} is not ready: {last}", self.id);
        }
    }

    /// The first seq and the logged changes with all observable properties.
    fn log(&self) -> (u64, Vec<(u64, String)>) {
        let text = std::fs::read_to_string(self.directory.join("log")).unwrap();
        let mut lines = text.lines();
        let start = lines.next().unwrap().strip_prefix("after ").unwrap().parse().unwrap();
        // A killed process may have written an incomplete line.
        let complete_lines = if text.ends_with('\n') { usize::MAX } else { text.lines().count() - 2 };
        let seq = |line: &str| line.split_once(' ').unwrap().0.parse().unwrap();
        (start, lines.take(complete_lines).map(|line| (seq(line), line.to_owned())).collect())
    }
}

struct TestEnv {
    members: Vec<Member>,
    database: Database,
}

impl TestEnv {
    /// The replica that holds each cluster.
    async fn holders(&self) -> BTreeMap<String, Option<String>> {
        let mut connection = self.database.connect().await;
        let rows = sqlx::query("SELECT cluster, replica FROM crowsnest_cache.claims").fetch_all(&mut connection).await;
        rows.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn clusters_of(&self, replica: &str) -> BTreeSet<String> {
        let holders = self.holders().await;
        holders
            .into_iter()
            .filter(|(_, holder)| holder.as_deref() == Some(replica))
            .map(|(cluster, _)| cluster)
            .collect()
    }

    /// Waits until other replicas hold the clusters, within the time limit, and until `witness` has published
    /// changes from them.
    async fn wait_until_moved(&self, from: &Process, lost_clusters: &BTreeSet<String>, witness: &Process, fault: &str) {
        assert!(!lost_clusters.is_empty(), "{} had nothing to lose", from.id);
        let started_at = Instant::now();
        let marker = format!("after-{fault}");
        for cluster in lost_clusters {
            if let Some(number) = cluster.strip_prefix("member") {
                let member = &self.members[number.parse::<usize>().unwrap()];
                member.create(config_map("shop", &marker, fault)).await;
            }
        }
        let moving = async {
            loop {
                let holders = self.holders().await;
                let has_moved = |cluster: &String| holders[cluster].as_deref().is_some_and(|holder| holder != from.id);
                if lost_clusters.iter().all(has_moved) {
                    return;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let result = tokio::time::timeout(MOVE_TIMEOUT, moving).await;
        let claimed = started_at.elapsed();
        assert!(
            result.is_ok(),
            "{fault}: after {claimed:?}, {lost_clusters:?} of {} are held by {:?}",
            from.id,
            self.holders().await
        );
        within("changes of the moved clusters", async {
            for cluster in lost_clusters.iter().filter(|cluster| cluster.starts_with("member")) {
                while !witness.request(&format!("list {cluster}")).await.unwrap().contains(&marker) {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        })
        .await;
        let elapsed = started_at.elapsed();
        println!(
            "{fault}: {} clusters were claimed in {claimed:.1?} and their changes published in {elapsed:.1?}",
            lost_clusters.len()
        );
    }
}

/// Adds, changes and deletes objects continuously until stopped.
async fn churn(clients: Vec<Client>, stop: CancellationToken) -> usize {
    let mut rounds = 0;
    let mut interval = tokio::time::interval(CHANGE_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        interval.tick().await;
        for client in &clients {
            let object = config_map("shop", &format!("churn-{}", rounds % 7), &rounds.to_string());
            let objects = api(client, &object);
            let key = format!("churn-{}", rounds % 7);
            if rounds % 5 == 4 {
                // The object may not exist.
                drop(objects.delete(&key, &DeleteParams::default()).await);
            } else {
                let patch = PatchParams::apply("test").force();
                objects.patch(&key, &patch, &Patch::Apply(&object)).await.unwrap();
            }
        }
        rounds += 1;
    }
    rounds
}

async fn replicas_survive_each_others_faults() {
    let Some(database) = Database::create().await else { return };
    let control_plane = control_plane().await;
    let admin = control_plane.server.admin();
    let mut members = Vec::new();
    for number in 0..MEMBERS {
        let member = start(&format!("member{number}")).await;
        member.create(namespace("shop")).await;
        for n in 0..20 {
            create(&member.server.admin(), config_map("shop", &format!("app-{n}"), "hello")).await;
        }
        register(&admin, &format!("member{number}"), &member).await;
        members.push(member);
    }
    let clients: Vec<Client> = members.iter().map(|member| member.server.admin()).collect();
    let env = TestEnv { members, database };
    let directories = tempfile::tempdir().unwrap();
    let network = StallingProxy::start(env.database.port()).await;
    let direct = env.database.url();
    let through = env.database.url_at(network.port());

    // All replicas start while objects change.
    let stop = CancellationToken::new();
    let churning = tokio::spawn(churn(clients.clone(), stop.clone()));
    let one = Process::start("one", &control_plane, &direct, directories.path()).await;
    let two = Process::start("two", &control_plane, &direct, directories.path()).await;
    let three = Process::start("three", &control_plane, &through, directories.path()).await;
    for replica in [&one, &two, &three] {
        replica.wait_until_ready().await;
    }
    within("an even share", async {
        while [&one, &two, &three].len() != {
            let holders = env.holders().await;
            holders.values().flatten().collect::<BTreeSet<_>>().len()
        } {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;

    // Killed without releasing its claims.
    let lost_clusters = env.clusters_of("one").await;
    one.signal("-KILL").await;
    env.wait_until_moved(&one, &lost_clusters, &two, "killed").await;
    let four = Process::start("four", &control_plane, &direct, directories.path()).await;
    four.wait_until_ready().await;

    // Suspended past its lease; after it resumes, others hold its claims.
    let lost_clusters = env.clusters_of("two").await;
    two.signal("-STOP").await;
    env.wait_until_moved(&two, &lost_clusters, &three, "stopped").await;
    two.signal("-CONT").await;
    two.wait_until_ready().await;

    // Disconnected: its connections stay open without traffic.
    let lost_clusters = env.clusters_of("three").await;
    network.set_stalled(true);
    env.wait_until_moved(&three, &lost_clusters, &four, "cut-off").await;
    network.set_stalled(false);
    three.wait_until_ready().await;

    // After the changes end, the caches of all replicas equal the members' objects.
    stop.cancel();
    let rounds = churning.await.unwrap();
    let alive = [&two, &three, &four];
    for (number, client) in clients.iter().enumerate() {
        create(client, config_map("shop", "last", "word")).await;
        let objects = api(client, &config_map("shop", "", "")).list(&ListParams::default()).await.unwrap();
        let text = |object: &DynamicObject| {
            let metadata = &object.metadata;
            format!("{} {}", metadata.name.as_deref().unwrap(), metadata.resource_version.as_deref().unwrap())
        };
        let expected = objects.items.iter().map(text).collect::<Vec<_>>().join("\n");
        for replica in alive {
            let mut last = String::new();
            let waiting = async {
                while last != expected {
                    last = replica.request(&format!("list member{number}")).await.unwrap();
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            };
            let result = tokio::time::timeout(Duration::from_secs(60), waiting).await;
            assert!(result.is_ok(), "{} of member{number}\n{last}\nis not\n{expected}", replica.id);
        }
    }
    let mut connection = env.database.connect().await;
    let row = sqlx::query("SELECT seq FROM crowsnest_cache.counter").fetch_one(&mut connection).await.unwrap();
    let newest = Seq(row.get::<i64, _>(0) as u64);
    for replica in alive {
        within("the end of the log", async {
            while replica.log().1.last().is_none_or(|(seq, _)| *seq < newest.0) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        })
        .await;
    }

    // Every replica published the same changes in order, each once; the killed one up to its end.
    let logs: Vec<(&str, u64, Vec<(u64, String)>)> = [&one, &two, &three, &four]
        .into_iter()
        .map(|replica| {
            let (start, log) = replica.log();
            (replica.id.as_str(), start, log)
        })
        .collect();
    let mut all: BTreeMap<u64, &str> = BTreeMap::new();
    for (id, start, log) in &logs {
        for (nth, (seq, line)) in log.iter().enumerate() {
            assert_eq!(*seq, start + nth as u64 + 1, "{id} published {line}");
            assert_eq!(*all.entry(*seq).or_insert(line), line, "{id} published a different change");
        }
    }
    println!("{rounds} rounds, {} changes, published equally by all", all.len());
    drop((one, two, three, four));
    for member in env.members {
        member.shut_down().await;
    }
    control_plane.shut_down().await;
}
