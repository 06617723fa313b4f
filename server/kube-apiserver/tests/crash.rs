//! Acknowledged writes survive SIGKILL: the server is killed repeatedly during concurrent writes.
//!
//! The test executable runs itself as the process to be killed. This child writes ConfigMaps and prints each
//! acknowledged write.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use crowsnest_registry::storage::Durability;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

/// Environment variables for the child: data directory and round.
const DIRECTORY: &str = "CROWSNEST_CRASH_DIRECTORY";
const ROUND: &str = "CROWSNEST_CRASH_ROUND";
const ROUNDS: usize = 50;
const WRITERS: usize = 8;

async fn start(directory: &Path) -> ApiServer {
    let data = Data::Directory { path: directory.to_owned(), durability: Durability::Process };
    ApiServer::start(Config::new("crash", data)).await.unwrap()
}

/// A value from which truncation can be detected.
fn payload(name: &str, n: usize) -> String {
    format!("{name}/{n}/{}", name.repeat(n % 97 + 1))
}

fn config_map(name: &str, n: usize) -> ConfigMap {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name}, "data": {"n": n.to_string(), "payload": payload(name, n)},
    }))
    .unwrap()
}

/// Writes per object: create, two updates, delete.
const WRITES_PER_OBJECT: usize = 4;

fn is_deletion(n: usize) -> bool {
    n % WRITES_PER_OBJECT == WRITES_PER_OBJECT - 1
}

/// Entry point of the child: creates, updates and deletes objects until it is killed.
#[test]
fn writer() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let round = std::env::var(ROUND).unwrap();
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let server = start(Path::new(&directory)).await;
        let writers = (0..WRITERS).map(|writer| {
            let api: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
            let round = round.clone();
            async move {
                for n in 0.. {
                    let name = format!("r{round}-w{writer}-{}", n / WRITES_PER_OBJECT);
                    if n % WRITES_PER_OBJECT == 0 {
                        api.create(&PostParams::default(), &config_map(&name, n)).await.unwrap();
                    } else if is_deletion(n) {
                        api.delete(&name, &DeleteParams::default()).await.unwrap();
                    } else {
                        api.replace(&name, &PostParams::default(), &config_map(&name, n)).await.unwrap();
                    }
                    println!("ack {name} {n}");
                }
            }
        });
        futures::future::join_all(writers).await;
    });
}

fn spawn_writer(directory: &Path, round: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["writer", "--exact", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Starts a writer and kills it after `count` acknowledged writes. Returns the last acknowledged number per object.
fn kill_after(directory: &Path, round: usize, count: usize) -> HashMap<String, usize> {
    let mut child = spawn_writer(directory, round);
    let mut acknowledged: HashMap<String, usize> = HashMap::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut record_line = |line: String| {
        let mut words = line.split_whitespace().skip_while(|w| *w != "ack").skip(1);
        let (Some(name), Some(Ok(n))) = (words.next(), words.next().map(str::parse::<usize>)) else { return false };
        let latest = acknowledged.entry(name.to_owned()).or_default();
        *latest = (*latest).max(n);
        true
    };
    let mut seen = 0;
    while seen < count {
        seen += usize::from(record_line(lines.next().expect("the writer exited before it was killed").unwrap()));
    }
    child.kill().unwrap();
    // Lines in the pipe at the time of the kill count as acknowledged, unless they are truncated.
    for line in lines.map_while(Result::ok) {
        if line.split_whitespace().count() == 3 {
            record_line(line);
        }
    }
    child.wait().unwrap();
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let mut expected: HashMap<String, usize> = HashMap::new();
    for round in 0..ROUNDS {
        let path = directory.path().to_owned();
        let count = 1 + (round * 37) % 80;
        expected.extend(tokio::task::spawn_blocking(move || kill_after(&path, round, count)).await.unwrap());
        if round % 5 != 4 {
            continue;
        }
        let server = start(directory.path()).await;
        let api: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
        let listed = api.list(&ListParams::default()).await.unwrap().items;
        let stored: HashMap<String, ConfigMap> =
            listed.into_iter().map(|c| (c.metadata.name.clone().unwrap(), c)).collect();
        for (name, n) in &expected {
            let stored_number =
                stored.get(name).map(|object| object.data.as_ref().unwrap()["n"].parse::<usize>().unwrap());
            match stored_number {
                Some(stored) => {
                    assert!(!is_deletion(*n) && stored >= *n, "{name}: {n} was acknowledged, {stored} is stored")
                }
                // The next write may have been stored without being acknowledged.
                None => assert!(is_deletion(*n) || is_deletion(*n + 1), "{name} is lost after {n}"),
            }
        }
        for (name, object) in &stored {
            let Some(data) = &object.data else { continue };
            assert_eq!(data["payload"], payload(name, data["n"].parse().unwrap()), "{name} is truncated");
        }
        server.stop().await.unwrap();
    }
}

/// Size of all files in a directory in bytes.
fn size_bytes(directory: &Path) -> u64 {
    list_files(directory).iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| file.len()).sum()
}

/// All files in a directory and its subdirectories.
fn list_files(directory: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries
        .flat_map(|entry| if entry.path().is_dir() { list_files(&entry.path()) } else { [entry.path()].into() })
        .collect()
}

/// An interrupted first start is completed by the next start.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_first_starts_are_completed() {
    for bytes in [1, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let size = tokio::task::spawn_blocking(move || {
            let mut child = spawn_writer(&path, 0);
            while size_bytes(&path) < bytes && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            size_bytes(&path)
        });
        assert!(size.await.unwrap() >= bytes, "the writer exited before it was killed");
        let server = start(directory.path()).await;
        let api: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
        api.create(&PostParams::default(), &config_map("after", bytes as usize)).await.unwrap();
        server.stop().await.unwrap();
        let restarted = start(directory.path()).await;
        let api: Api<ConfigMap> = Api::namespaced(restarted.admin(), "default");
        assert_eq!(api.get("after").await.unwrap().data.unwrap()["n"], bytes.to_string());
        restarted.stop().await.unwrap();
    }
}
