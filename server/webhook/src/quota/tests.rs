//! Property tests of quota enforcement: random creations, updates and deletions of bindings by several writers, through
//! replicas of the webhook. They check that the limit is never exceeded, that no binding within the limit is denied,
//! that forged reviews have no effect, and that the webhook writes nothing.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crowsnest_admission::{Gates, Operation};
use kube::client::Body;
use parking_lot::Mutex as Lock;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const PATH: &str = "/validate-resourcebinding";
/// Requested CPU of one replica, and the limit of the quota, in millicores.
const REPLICA: i64 = 10;
const LIMIT: i64 = 200;

/// Simulated control plane: one quota with a wrong status, and the bindings.
#[derive(Default)]
struct Store {
    version: u64,
    /// Bindings by number. A write succeeds only if its writer has read the current version.
    bindings: BTreeMap<usize, BindingState>,
    /// Admitted usage whose write has neither succeeded nor failed yet.
    pending: i64,
    /// Maximum of stored and pending usage since the last reset.
    peak: i64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct BindingState {
    replicas: i64,
    version: u64,
}

impl Store {
    fn used(&self) -> i64 {
        self.bindings.values().map(|binding| binding.replicas * REPLICA).sum()
    }

    fn record_peak(&mut self) {
        self.peak = self.peak.max(self.used() + self.pending);
    }
}

/// Store that yields to other tasks before each request, a varying number of times.
struct SlowStore {
    store: Lock<Store>,
    pauses: Vec<usize>,
    next: AtomicUsize,
}

impl SlowStore {
    fn new(pauses: Vec<usize>) -> Arc<Self> {
        Arc::new(Self { store: Lock::default(), pauses, next: AtomicUsize::new(0) })
    }

    async fn pause(&self) {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        for _ in 0..self.pauses[nth % self.pauses.len()] {
            tokio::task::yield_now().await;
        }
    }

    async fn respond(&self, request: http::Request<Body>) -> http::Response<Body> {
        self.pause().await;
        let answer = match (request.method().as_str(), request.uri().path().rsplit('/').next()) {
            ("GET", Some("federatedresourcequotas")) => {
                list("policy.karmada.io/v1alpha1", "FederatedResourceQuota", vec![quota()])
            }
            ("GET", Some("resourcebindings")) => {
                let store = self.store.lock();
                let items = store.bindings.iter().map(|(number, state)| binding(*number, *state)).collect();
                list("work.karmada.io/v1alpha2", "ResourceBinding", items)
            }
            (method, _) => panic!("unexpected request {method} {}", request.uri()),
        };
        self.pause().await;
        let body = Body::from(serde_json::to_vec(&answer).unwrap());
        http::Response::builder().header("Content-Type", "application/json").body(body).unwrap()
    }

    fn read(&self, number: usize) -> Option<BindingState> {
        self.store.lock().bindings.get(&number).copied()
    }

    /// Stores or deletes a binding if it has not changed since it was read; returns whether it did.
    fn write_if_unchanged(&self, number: usize, read: Option<BindingState>, replicas: Option<i64>) -> bool {
        let mut store = self.store.lock();
        if store.bindings.get(&number).copied() != read {
            return false;
        }
        store.version += 1;
        let version = store.version;
        match replicas {
            Some(replicas) => drop(store.bindings.insert(number, BindingState { replicas, version })),
            None => drop(store.bindings.remove(&number)),
        }
        store.record_peak();
        true
    }

    fn webhook(self: &Arc<Self>) -> Replica {
        let slow = Arc::clone(self);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let slow = Arc::clone(&slow);
            async move { Ok::<_, Infallible>(slow.respond(request).await) }
        });
        let config = WebhookConfig {
            control_plane: kube::Client::new(service, "shop"),
            gates: Gates { federated_quota_enforcement: true, ..Gates::default() },
            allow_no_execute_taint_policy: false,
            allow_local_endpoints: false,
        };
        Replica { config, state: QuotaState::default() }
    }
}

fn list(api_version: &str, kind: &str, items: Vec<Value>) -> Value {
    json!({"apiVersion": api_version, "kind": format!("{kind}List"), "metadata": {"resourceVersion": "1"}, "items": items})
}

/// The quota, with a wrong status.
fn quota() -> Value {
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "FederatedResourceQuota",
        "metadata": {"name": "cpus", "namespace": "shop", "resourceVersion": "1"},
        "spec": {"overall": {"cpu": format!("{LIMIT}m")}}, "status": {"overallUsed": {"cpu": "9"}},
    })
}

fn binding(number: usize, state: BindingState) -> Value {
    let name = format!("web-{number}");
    json!({
        "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
        "metadata": {"name": format!("{name}-deployment"), "namespace": "shop", "resourceVersion": state.version.to_string()},
        "spec": {
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": name},
            "replicas": state.replicas, "clusters": [{"name": "m1", "replicas": state.replicas}],
            "replicaRequirements": {"resourceRequest": {"cpu": format!("{REPLICA}m")}},
        },
    })
}

struct Replica {
    config: WebhookConfig,
    state: QuotaState,
}

impl Replica {
    async fn decide(&self, request: &crowsnest_admission::Request, caller: Caller) -> Review {
        let review = QuotaReview { config: &self.config, state: &self.state, path: PATH, request, caller };
        review.decide().await.unwrap().unwrap()
    }
}

fn request(number: usize, old: Option<BindingState>, replicas: i64, dry_run: bool) -> crowsnest_admission::Request {
    let version = old.map(|old| old.version).unwrap_or_default();
    crowsnest_admission::Request {
        uid: "u".to_owned(),
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        name: format!("web-{number}-deployment"),
        namespace: "shop".to_owned(),
        object: binding(number, BindingState { replicas, version }),
        old_object: old.map_or(Value::Null, |old| binding(number, old)),
        dry_run: Some(dry_run),
    }
}

/// Action of a writer: sets the replicas of a binding, or deletes it.
#[derive(Debug, Clone)]
struct Action {
    binding: usize,
    replicas: Option<i64>,
    review: ReviewKind,
}

/// Kind of the review that an action causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReviewKind {
    /// A review by the API server, followed by the write.
    Write,
    /// A dry run, which must have no effect.
    DryRun,
    /// A review from a client other than the API server, which must have no effect.
    Forged,
}

/// Generates actions. `ineffective` is the probability of a dry run or a forged review, `deletions` the number of
/// deletions per ten actions.
fn action(ineffective: f64, deletions: u32) -> impl Strategy<Value = Action> {
    let replicas = (1..9_i64, 0..10_u32).prop_map(move |(replicas, number)| (number >= deletions).then_some(replicas));
    let review = proptest::option::weighted(ineffective, any::<bool>()).prop_map(|is_dry_run| match is_dry_run {
        None => ReviewKind::Write,
        Some(true) => ReviewKind::DryRun,
        Some(false) => ReviewKind::Forged,
    });
    (0..9_usize, replicas, review).prop_map(|(binding, replicas, review)| Action { binding, replicas, review })
}

async fn apply_action(slow: &SlowStore, replica: &Replica, action: &Action, caller: Caller) {
    let read = slow.read(action.binding);
    let Some(replicas) = action.replicas else {
        if action.review == ReviewKind::Write {
            slow.write_if_unchanged(action.binding, read, None);
        }
        return;
    };
    let increase = (replicas - read.map(|read| read.replicas).unwrap_or_default()) * REPLICA;
    if action.review != ReviewKind::Write {
        let dry_run = action.review == ReviewKind::DryRun;
        let caller = if dry_run { caller } else { Caller::Unauthenticated };
        replica.decide(&request(action.binding, read, replicas, dry_run), caller).await;
        return;
    }
    slow.store.lock().peak = 0;
    slow.store.lock().record_peak();
    let review = replica.decide(&request(action.binding, read, replicas, false), caller).await;
    match review.outcome {
        Ok(_) => {
            slow.store.lock().pending += increase.max(0);
            slow.store.lock().record_peak();
            slow.pause().await;
            slow.store.lock().pending -= increase.max(0);
            slow.write_if_unchanged(action.binding, read, Some(replicas));
        }
        Err(refusal) => {
            assert_eq!(refusal.reason, Some("QuotaExceeded"), "{}", refusal.message);
            assert!(slow.store.lock().peak + increase > LIMIT, "{action:?} was refused: {}", refusal.message);
        }
    }
    let used = slow.store.lock().used();
    assert!(used <= LIMIT, "bindings use {used} of {LIMIT}");
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, rng_seed: proptest::test_runner::RngSeed::Fixed(31), ..ProptestConfig::default() })]

    /// Concurrent reviews of an authenticated API server. Nothing is deleted, because a binding created and deleted
    /// between two reviews counts for the lifetime of its reservation.
    #[test]
    fn many_writers_keep_within_the_limit(
        writers in proptest::collection::vec(proptest::collection::vec(action(0.3, 0), 1..6), 1..6),
        pauses in proptest::collection::vec(0..20_usize, 1..50),
    ) {
        block_on(async {
            let slow = SlowStore::new(pauses);
            let replica = slow.webhook();
            let write = |actions: &Vec<Action>| {
                let (slow, replica, actions) = (&slow, &replica, actions.clone());
                async move {
                    for action in &actions {
                        apply_action(slow, replica, action, Caller::ApiServer).await;
                    }
                }
            };
            futures::future::join_all(writers.iter().map(write)).await;
        });
    }

    /// Reviews of unauthenticated clients through several replicas, with forged reviews among them. The writers act one
    /// after the other, so that each decision is based on the stored bindings only.
    #[test]
    fn sequential_writers_need_no_reservations(
        actions in proptest::collection::vec(action(0.4, 2), 1..30),
        replicas in 1..4_usize,
        pauses in proptest::collection::vec(0..20_usize, 1..50),
    ) {
        block_on(async {
            let slow = SlowStore::new(pauses);
            let replicas: Vec<Replica> = (0..replicas).map(|_| slow.webhook()).collect();
            for (nth, action) in actions.iter().enumerate() {
                apply_action(&slow, &replicas[nth % replicas.len()], action, Caller::Unauthenticated).await;
            }
        });
    }
}

#[rstest::rstest]
#[case::of_the_api_server(Caller::ApiServer, false, false)]
#[case::forged(Caller::Unauthenticated, false, true)]
#[case::a_dry_run(Caller::ApiServer, true, true)]
fn only_authenticated_reviews_reserve_quota(#[case] caller: Caller, #[case] dry_run: bool, #[case] fits: bool) {
    block_on(async {
        let replica = SlowStore::new(vec![0]).webhook();
        assert!(replica.decide(&request(1, None, 20, dry_run), caller).await.is_allowed());
        let next = replica.decide(&request(2, None, 20, false), Caller::ApiServer).await;
        assert_eq!(next.is_allowed(), fits);
    });
}

/// A client that deletes a binding and creates it again is not charged twice.
#[test]
fn recreated_bindings_are_charged_once() {
    block_on(async {
        let replica = SlowStore::new(vec![0]).webhook();
        for _ in 0..2 {
            assert!(replica.decide(&request(1, None, 20, false), Caller::ApiServer).await.is_allowed());
        }
    });
}

#[test]
fn a_reservation_ends_when_its_binding_is_stored_or_its_lifetime_ends() {
    let (now, cpu) = (Instant::now(), |milli: i64| plan::usage(&spec(milli / REPLICA)));
    let reservation = |base_version: &str, milli: i64| Reservation {
        base_version: base_version.to_owned(),
        increase: cpu(milli),
        expires: now + RESERVATION_LIFETIME,
    };
    let mut reservations = Reservations::default();
    reservations.reserve(NamespacedName::new("shop", "new"), reservation("", 50));
    reservations.reserve(NamespacedName::new("shop", "changed"), reservation("7", 30));
    reservations.reserve(NamespacedName::new("shop", "changed"), reservation("7", 20));
    reservations.reserve(NamespacedName::new("other", "new"), reservation("", 90));
    let stored = |versions: &[(&str, &str)]| StoredBindings {
        used: Usage::new(),
        versions: versions.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect(),
    };
    let milli = |usage: Usage| usage.get("cpu").map_or(0, |cpu| cpu.milli_value());
    assert_eq!(
        milli(reservations.reserved_usage(&NamespacedName::new("shop", "web"), &stored(&[("changed", "7")]), now)),
        80
    );
    assert_eq!(
        milli(reservations.reserved_usage(&NamespacedName::new("shop", "new"), &stored(&[("changed", "7")]), now)),
        30
    );
    assert_eq!(
        milli(reservations.reserved_usage(&NamespacedName::new("shop", "web"), &stored(&[("changed", "8")]), now)),
        50
    );
    assert_eq!(
        milli(reservations.reserved_usage(
            &NamespacedName::new("shop", "web"),
            &stored(&[("changed", "8"), ("new", "9")]),
            now
        )),
        0
    );
    assert_eq!(
        milli(reservations.reserved_usage(
            &NamespacedName::new("other", "web"),
            &stored(&[]),
            now + RESERVATION_LIFETIME
        )),
        0
    );
    assert!(reservations.0.is_empty());
}

fn spec(replicas: i64) -> crowsnest_api::work::ResourceBindingSpec {
    ResourceBinding::deserialize(binding(0, BindingState { replicas, version: 1 })).unwrap().spec
}
