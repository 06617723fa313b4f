//! A sink whose connection or database is killed at pseudo-random points: after each recovery, the graph equals the cache.
//!
//! | variable | meaning |
//! |---|---|
//! | `CROWSNEST_GRAPH_KILLS` | number of points (default 12) |
//! | `CROWSNEST_GRAPH_SEED` | seed of the points and of the changes in the cache (default 1) |

use crate::cache::{Cache, node, pod, pods, replica_set, secret, service, workload};
use crate::database::Database;
use crate::relay::{Direction, Relay};
use crate::running_sink::{Access, RunningSink};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

const KILLS: u64 = 12;
const SEED: u64 = 1;
const PODS: u64 = 200;
/// The database is killed at each point with a multiple of this number, and the connection at all points.
const DATABASE_KILL_INTERVAL: u64 = 4;
/// Changes of the cache before a point, and after it.
const CHANGES: usize = 6;
/// A load sends at most this many times as many bytes as these changes.
const LOAD_TO_CHANGES_RATIO: usize = 10;

fn number_from_env(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |number| number.parse().unwrap())
}

/// Pseudo-random points and changes.
struct Random {
    numbers: StdRng,
    /// Resource version of the latest change.
    version: u64,
}

impl Random {
    /// Direction and number of bytes before a kill. Without a load, only changes are written.
    fn point(&mut self, load: [(Direction, usize); 2], is_load: bool) -> (Direction, usize) {
        let (direction, bytes) = load[self.numbers.random_range(0..load.len())];
        let limit = if is_load { bytes } else { bytes / LOAD_TO_CHANGES_RATIO };
        (direction, self.numbers.random_range(0..limit.max(1)))
    }

    /// Changes, deletes and creates objects.
    async fn change(&mut self, cache: &Cache) {
        for _ in 0..CHANGES {
            self.version += 1;
            let version = self.version;
            let first = self.numbers.random_range(0..PODS);
            let numbers = first..first + self.numbers.random_range(1..=20);
            match self.numbers.random_range(0..8) {
                0 | 1 => cache.delete("m1", &pods("m1", numbers)).await,
                2 | 3 => {
                    let status = if version.is_multiple_of(2) { "Failed" } else { "Running" };
                    let changed: Vec<_> =
                        numbers.map(|number| pod("m1", &format!("p{number}"), status, version)).collect();
                    cache.put("m1", &changed).await;
                }
                4 => {
                    let mut changed = service("m1", "web", version);
                    let selected = if version.is_multiple_of(2) { "web" } else { "other" };
                    changed["spec"]["selector"] = json!({"app": selected});
                    cache.put("m1", &[changed]).await;
                }
                5 => {
                    let mut recreated = replica_set("m1", version);
                    recreated["metadata"]["uid"] = json!(format!("m1-rs-{}", version % 2));
                    cache.put("m1", &[recreated]).await;
                }
                6 => cache.delete("m1", &[secret("m1"), node("n1")]).await,
                _ => cache.put("m1", &[secret("m1"), node("n1")]).await,
            }
        }
    }
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn the_graph_equals_the_cache_after_kills_at_random_points() {
    let Some(database) = Database::start_empty().await else { return };
    let kills = number_from_env("CROWSNEST_GRAPH_KILLS", KILLS);
    let seed = number_from_env("CROWSNEST_GRAPH_SEED", SEED);
    let relay = Relay::start(database.port()).await;
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", PODS)).await;
    let start = |load: u64| {
        let access = Access { batch_size: 20, ..Access::default() };
        RunningSink::start_as(&cache, &database, access, |config| {
            config.target = relay.target(database.target());
            // Another selection is loaded in another generation.
            config.selection = format!("load {load}");
        })
    };
    let sink = start(0);
    sink.wait_until_equal(&cache, &database).await;
    sink.stop().await;
    let counters = relay.counters();
    let load_bytes = [(Direction::Requests, counters.request_bytes), (Direction::Responses, counters.response_bytes)];
    let mut random = Random { numbers: StdRng::seed_from_u64(seed), version: 1 };
    for kill in 1..=kills {
        // Each second sink continues the graph of the one before it.
        let is_load = kill % 2 == 1;
        let (direction, bytes) = random.point(load_bytes, is_load);
        let kills_database = kill.is_multiple_of(DATABASE_KILL_INTERVAL);
        eprintln!(
            "kill {kill} of seed {seed}: {direction:?} after {bytes} bytes, load: {is_load}, database: {kills_database}"
        );
        let cuts = relay.counters().cuts;
        relay.cut_after(direction, bytes);
        let sink = start(kill.div_ceil(2));
        random.change(&cache).await;
        tokio::select! {
            () = relay.wait_for_cuts(cuts + 1) => {}
            // Fewer bytes than before the point were sent.
            () = sink.wait_until_equal(&cache, &database) => {}
        }
        relay.clear_cut();
        if kills_database {
            database.kill();
        }
        random.change(&cache).await;
        if kills_database {
            database.start();
        }
        sink.wait_until_equal(&cache, &database).await;
        sink.stop().await;
    }
    assert!(kills == 0 || relay.counters().cuts > 0, "no point was reached");
}
