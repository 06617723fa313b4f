//! Rows of the report: the work, the figures published for other software, the target, and the line of a benchmark
//! that measures it.

use serde::Serialize;

/// A row of the report.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Row {
    /// Name for `--only`.
    pub id: &'static str,
    pub work: &'static str,
    /// Figure of other software for the same work; empty if there is none.
    pub peer: &'static str,
    #[serde(skip)]
    pub target: Target,
    /// Benchmark and its flags, after `crowsnest bench`.
    #[serde(skip)]
    pub command: &'static str,
    /// Line of its output that is compared with the target. The last one counts if it is printed several times.
    pub line: &'static str,
    /// True if the benchmark takes more than ten minutes or 10 GB of memory.
    #[serde(skip)]
    pub is_slow: bool,
}

/// Target value, in the unit of the line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Target {
    Maximum(f64),
    Minimum(f64),
    /// At most the value of another line of the same benchmark, times a factor.
    MaximumRatio(f64, &'static str),
}

use Target::{Maximum, MaximumRatio, Minimum};

const APISERVER: &str = "apiserver --stored 0";
const CACHE: &str = "cache";
const CACHE_OF_2M: &str = "cache --clusters 100 --pods 2000000 --reads 100 --seconds 15";
const DEFINITIONS: &str = "definitions";
const FAN_OUT: &str = "fan-out";
const GROWTH: &str = "growth";
const PROPAGATE: &str = "propagate --writes 0";
const SEARCH: &str = "search";
const SLOW_MEMBER: &str = "slow-member";
const WRITES: &str = "writes";
const WRITES_OF_500: &str = "writes --deployments 500 --members 3";

const KARMADA_LISTS: &str = "Karmada 324-444 ms";

const fn row(
    (id, work): (&'static str, &'static str),
    peer: &'static str,
    target: Target,
    (command, line): (&'static str, &'static str),
) -> Row {
    Row { id, work, peer, target, command, line, is_slow: false }
}

const fn slow(row: Row) -> Row {
    Row { is_slow: true, ..row }
}

/// All rows, in the order in which they are measured and printed.
pub(super) const ROWS: &[Row] = &[
    row(
        ("cold-start", "`up` with 3 empty members, first start → first answered get"),
        "",
        Maximum(2_000.0),
        ("up", "up/first-get"),
    ),
    row(
        ("config-maps", "500 ConfigMaps in 3 members, from the policy"),
        "Karmada, tuned 73 s",
        Maximum(17_000.0),
        (PROPAGATE, "propagate/applied"),
    ),
    row(("change", "change of a template → all members, p99"), "", Maximum(500.0), (PROPAGATE, "propagate/change-p99")),
    slow(row(
        ("deployments", "500 Deployments of 9 replicas divided over 3 members, until all statuses are complete"),
        "Karmada, tuned 205 s",
        Maximum(95.0),
        (WRITES_OF_500, "writes/complete"),
    )),
    row(
        ("writes", "writes of the control plane for each propagated and settled Deployment"),
        "Karmada, tuned 30",
        Maximum(12.0),
        (WRITES, "writes/all"),
    ),
    row(("events", "event writes among them"), "", Maximum(1.0), (WRITES, "writes/events")),
    row(
        ("conflicts", "requests refused with 409 for 150 Deployments"),
        "Karmada, tuned 1,334",
        Maximum(0.0),
        (WRITES, "writes/conflicts"),
    ),
    row(
        ("controllers-cpu", "CPU time of the controllers and their cache for 150 Deployments"),
        "Karmada 10 s",
        Maximum(4.0),
        (WRITES, "writes/controllers-cpu"),
    ),
    row(
        ("controllers-memory", "peak memory of the controllers and their cache for 150 Deployments"),
        "Karmada 635 MB plus estimators",
        Maximum(250.0),
        (WRITES, "writes/controllers-peak-rss"),
    ),
    row(("complete", "30,000 pods: last list complete"), "Karmada 212 s", Maximum(4_000.0), (CACHE, "cache/complete")),
    row(("ingest", "ingest from members"), "", Minimum(20_000.0), (CACHE, "cache/ingest")),
    row(
        ("list-500", "list of 500 pods through the fleet-wide proxy, p50"),
        KARMADA_LISTS,
        Maximum(8.0),
        (CACHE, "cache/list-500-p50"),
    ),
    row(
        ("list-label", "list of a namespace with a label, p50"),
        "Karmada 14-140 ms",
        Maximum(2.0),
        (CACHE, "cache/namespace-and-label-p50"),
    ),
    row(("list-all", "list of all 30,000 pods"), "Karmada 22 s", Maximum(300.0), (CACHE, "cache/list-all")),
    row(
        ("cache-memory", "memory with 30,000 pods of 9.5 KB, after lists and 500 changes/s"),
        "Karmada 6.6-16.6 GB",
        Maximum(200.0),
        (CACHE, "cache/rss-after-churn"),
    ),
    row(
        ("change-to-watch", "change in a member → watch at 500 changes/s, p99"),
        "",
        Maximum(50.0),
        (CACHE, "cache/churn/change-to-watch-p99"),
    ),
    row(
        ("change-to-text", "change in a member → text search at 500 changes/s, p99"),
        "",
        Maximum(800.0),
        (CACHE, "cache/churn/change-to-text-p99"),
    ),
    row(("search", "search with facets and permissions, p99"), "", Maximum(10.0), (SEARCH, "search/tenant-p99")),
    row(
        ("search-background", "the same while changes are indexed, segments merged and history pruned, p99"),
        "",
        MaximumRatio(2.0, "search/tenant-p99"),
        (SEARCH, "search/churn/tenant-p99"),
    ),
    row(
        ("create", "creates of 2 KB objects in the embedded API server"),
        "kube-apiserver with etcd 754/s",
        Minimum(3_000.0),
        (APISERVER, "apiserver/create/rate"),
    ),
    row(
        ("fan-out", "write → event at each of 1,000 watches at 500 changes/s, p99"),
        "",
        Maximum(100.0),
        (FAN_OUT, "fan-out/delivery-p99"),
    ),
    row(("fan-out-memory", "memory of the server for each watch"), "", Maximum(64.0), (FAN_OUT, "fan-out/memory-each")),
    row(
        ("fan-out-slow", "of 20 watches that stop reading, those that end with 410 Expired"),
        "",
        Minimum(20.0),
        (FAN_OUT, "fan-out/slow-expired"),
    ),
    row(
        ("plan", "scheduling decisions of the planner alone over 100 clusters"),
        "",
        Minimum(10_000.0),
        ("plan", "plan/decisions"),
    ),
    slow(row(
        ("schedule", "10,000 bindings scheduled over 100 clusters, embedded control plane"),
        "Karmada ~22/s",
        Minimum(300.0),
        ("schedule", "schedule/rate"),
    )),
    row(
        ("idle", "CPU of the controllers and their cache with 100 healthy idle clusters"),
        "",
        Maximum(1.0),
        ("failover", "failover/idle-cpu"),
    ),
    row(
        ("slow-member", "change of a template → three members while a fourth responds after 2 s, p99"),
        "",
        MaximumRatio(2.0, "slow-member/before-p99"),
        (SLOW_MEMBER, "slow-member/delayed-p99"),
    ),
    row(
        ("trickling-member", "the same while the fourth sends one byte per second, p99"),
        "",
        MaximumRatio(2.0, "slow-member/before-p99"),
        (SLOW_MEMBER, "slow-member/trickling-p99"),
    ),
    row(
        ("definitions", "memory of `up` with 280 definitions in the control plane and two members"),
        "one kube-apiserver 3.8 GB",
        Maximum(600.0),
        (DEFINITIONS, "definitions/rss"),
    ),
    row(
        ("openapi", "first read of the largest OpenAPI v3 document"),
        "kube-apiserver 10-50 ms",
        Maximum(50.0),
        (DEFINITIONS, "definitions/openapi-first"),
    ),
    slow(row(
        ("complete-2m", "2 million pods in 100 clusters: last list complete"),
        "",
        Maximum(150_000.0),
        (CACHE_OF_2M, "cache/complete"),
    )),
    slow(row(("searchable-2m", "all searchable"), "", Maximum(300_000.0), (CACHE_OF_2M, "cache/searchable"))),
    slow(row(
        ("memory-2m", "memory after searches and lists"),
        "Karmada 140 GB published",
        Maximum(1_000.0),
        (CACHE_OF_2M, "cache/rss-after-lists"),
    )),
    slow(row(
        ("growth-cpu", "CPU time for each change, in the largest fleet compared with the smallest"),
        "",
        Maximum(2.0),
        (GROWTH, "growth/change-cpu-ratio"),
    )),
    slow(row(
        ("growth-search", "search p99, in the largest fleet compared with the smallest"),
        "",
        Maximum(4.0),
        (GROWTH, "growth/search-p99-ratio"),
    )),
];
