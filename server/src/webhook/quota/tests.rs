//! Random creations, updates and deletions of bindings by many writers, through several replicas of the webhook, against what
//! would be if each was judged alone: nobody passes the limit, nobody is refused what would have fitted, no use is lost. Writers
//! share bindings, and what is let through may never be stored: what is recorded is never less than what bindings use.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use crowsnest_api::policy::FederatedResourceQuotaSpec;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec};
use crowsnest_controllers::act::journal::Journal;
use crowsnest_controllers::act::objects::Objects;
use crowsnest_controllers::admission::{Gates, Operation};
use crowsnest_controllers::plan::quota as plan;
use crowsnest_controllers::plan::reference::Reference;
use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex as Lock;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;

const PATH: &str = "/validate-resourcebinding";
/// Thousandths of a CPU that a replica asks for, and that all may have.
const REPLICA: i64 = 10;
const LIMIT: i64 = 200;

/// The control plane: one quota, guarded by its version, and the bindings.
struct Store {
    quota: Value,
    version: u64,
    /// Replicas by number; each is written by whoever read it last.
    bindings: BTreeMap<usize, Bound>,
    /// Every use that was ever recorded, in order.
    recorded: Vec<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Bound {
    replicas: i64,
    version: u64,
}

/// A store that lets others go first, more of them or fewer with each request.
struct Slow {
    store: Lock<Store>,
    pauses: Vec<usize>,
    next: AtomicUsize,
}

fn milli(quota: &Value) -> i64 {
    let used = serde_json::from_value(quota["status"]["overallUsed"].clone()).unwrap_or_default();
    plan::amounts(&used).get("cpu").map_or(0, |cpu| cpu.milli_value())
}

impl Slow {
    fn new(pauses: Vec<usize>) -> Arc<Self> {
        let quota = json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "FederatedResourceQuota",
            "metadata": {"name": "cpus", "namespace": "shop", "resourceVersion": "1"},
            "spec": {"overall": {"cpu": format!("{LIMIT}m")}},
        });
        let store = Store { quota, version: 1, bindings: BTreeMap::new(), recorded: vec![0] };
        Arc::new(Self { store: Lock::new(store), pauses, next: AtomicUsize::new(0) })
    }

    async fn pause(&self) {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        for _ in 0..self.pauses[nth % self.pauses.len()] {
            tokio::task::yield_now().await;
        }
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let (parts, body) = request.into_parts();
        let sent = body.collect().await.unwrap().to_bytes();
        self.pause().await;
        let (code, answer) = match (parts.method.as_str(), parts.uri.path().rsplit('/').next()) {
            ("PUT", Some("status")) => self.put(&serde_json::from_slice(&sent).unwrap()),
            ("GET", Some("cpus")) => (200, self.store.lock().quota.clone()),
            ("GET", _) => (
                200,
                json!({
                    "apiVersion": "policy.karmada.io/v1alpha1", "kind": "FederatedResourceQuotaList", "metadata": {},
                    "items": [self.store.lock().quota],
                }),
            ),
            (method, _) => panic!("nobody should {method} {}", parts.uri),
        };
        self.pause().await;
        let body = Body::from(serde_json::to_vec(&answer).unwrap());
        http::Response::builder().status(code).header("Content-Type", "application/json").body(body).unwrap()
    }

    fn put(&self, sent: &Value) -> (u16, Value) {
        let mut store = self.store.lock();
        if sent["metadata"]["resourceVersion"] != store.quota["metadata"]["resourceVersion"] {
            let message = "the object has been modified";
            return (
                409,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict",
                "code": 409, "message": message}),
            );
        }
        store.version += 1;
        let version = store.version.to_string();
        store.quota["status"] = sent["status"].clone();
        store.quota["metadata"]["resourceVersion"] = version.into();
        let used = milli(&store.quota);
        store.recorded.push(used);
        (200, store.quota.clone())
    }

    /// What the quota loop does when all is quiet: what bindings use is what is recorded.
    fn count(&self) {
        let mut store = self.store.lock();
        let mut sum = plan::Usage::new();
        for binding in store.bindings.values() {
            plan::add(&mut sum, plan::usage(&spec(binding.replicas)));
        }
        let limits: FederatedResourceQuotaSpec = serde_json::from_value(store.quota["spec"].clone()).unwrap();
        let status = plan::status(&limits, Vec::new(), Some(sum));
        store.quota["status"] = serde_json::to_value(status).unwrap();
        let used = milli(&store.quota);
        store.recorded.push(used);
    }

    fn used(&self) -> i64 {
        self.store.lock().bindings.values().map(|binding| binding.replicas * REPLICA).sum()
    }

    /// Stores a binding, or deletes it, if it is still what was read; whether it was.
    fn keep(&self, number: usize, read: Option<Bound>, replicas: Option<i64>) -> bool {
        let mut store = self.store.lock();
        if store.bindings.get(&number).copied() != read {
            return false;
        }
        store.version += 1;
        let version = store.version;
        match replicas {
            Some(replicas) => drop(store.bindings.insert(number, Bound { replicas, version })),
            None => drop(store.bindings.remove(&number)),
        }
        true
    }

    fn read(&self, number: usize) -> Option<Bound> {
        self.store.lock().bindings.get(&number).copied()
    }
}

fn body(number: usize, replicas: i64) -> Value {
    let name = format!("web-{number}");
    json!({
        "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
        "metadata": {"name": format!("{name}-deployment"), "namespace": "shop"},
        "spec": {
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": name},
            "replicas": replicas, "clusters": [{"name": "m1", "replicas": replicas}],
            "replicaRequirements": {"resourceRequest": {"cpu": format!("{REPLICA}m")}},
        },
    })
}

fn spec(replicas: i64) -> ResourceBindingSpec {
    serde_json::from_value::<ResourceBinding>(body(0, replicas)).unwrap().spec
}

/// What a writer does: gives a binding so many replicas, or deletes it.
#[derive(Debug, Clone)]
struct Deed {
    binding: usize,
    replicas: Option<i64>,
    /// It is let through, and then not stored: another webhook denies it, or the API server dies. What is recorded for it stays
    /// until the next count.
    lost: bool,
}

fn deed() -> impl Strategy<Value = Deed> {
    let replicas = proptest::option::weighted(0.8, 1..9_i64);
    (0..9_usize, replicas, proptest::bool::weighted(0.2)).prop_map(|(binding, replicas, lost)| Deed {
        binding,
        replicas,
        lost,
    })
}

/// What more has been let through, over what was before it.
type Admitted = Lock<i64>;

async fn act(slow: &Slow, (webhooks, turns): &(Webhooks, Arc<Turns>), deed: &Deed, admitted: &Admitted) {
    let key = deed.binding;
    let read = slow.read(key);
    let Some(replicas) = deed.replicas else {
        slow.keep(key, read, None);
        return;
    };
    let old = read.map(|binding| binding.replicas);
    let request = admission::Request {
        uid: "u".to_owned(),
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        name: format!("web-{key}-deployment"),
        namespace: "shop".to_owned(),
        object: body(key, replicas),
        old_object: old.map_or(Value::Null, |replicas| body(key, replicas)),
        dry_run: None,
    };
    let more = (replicas - old.unwrap_or_default()) * REPLICA;
    let since = slow.store.lock().recorded.len() - 1;
    let review = decide(webhooks, turns, PATH, &request).await.unwrap().unwrap();
    let seen = slow.store.lock().recorded[since..].to_vec();
    match review.outcome {
        Ok(_) => {
            assert!(more == 0 || seen.iter().any(|used| used + more <= LIMIT), "{deed:?} of {seen:?} was let through");
            *admitted.lock() += more.max(0);
            slow.pause().await;
            if !deed.lost {
                slow.keep(key, read, Some(replicas));
            }
        }
        Err(refusal) => {
            assert_eq!(refusal.reason, Some("QuotaExceeded"), "{}", refusal.message);
            assert!(seen.iter().any(|used| used + more > LIMIT), "{deed:?} of {seen:?} was refused");
        }
    }
    let (used, recorded) = (slow.used(), milli(&slow.store.lock().quota));
    assert!(used <= recorded && used <= LIMIT, "bindings use {used} of {LIMIT}, {recorded} are recorded");
}

/// Some rounds; in each all writers are at work at once, then it is quiet.
async fn run(rounds: &[Vec<Vec<Deed>>], replicas: usize, pauses: Vec<usize>) {
    let slow = Slow::new(pauses);
    let service = {
        let slow = Arc::clone(&slow);
        tower::service_fn(move |request: http::Request<Body>| {
            let slow = Arc::clone(&slow);
            async move { Ok::<_, Infallible>(slow.answer(request).await) }
        })
    };
    let control_plane = kube::Client::new(service, "shop");
    let webhooks = || Webhooks {
        control_plane: control_plane.clone(),
        gates: Gates { federated_quota_enforcement: true, ..Gates::default() },
        allow_no_execute_taint_policy: false,
        local_endpoints: false,
        // Nobody writes it here.
        journal: {
            let (objects, stop) = (Objects::new(control_plane.clone()), CancellationToken::new());
            Journal::new(objects, "test", Arc::default(), stop.clone(), stop).0
        },
    };
    let replicas: Vec<_> = (0..replicas).map(|_| (webhooks(), Arc::<Turns>::default())).collect();
    for writers in rounds {
        slow.count();
        let before = milli(&slow.store.lock().quota);
        let admitted = Admitted::new(before);
        let write = |(nth, deeds): (usize, &Vec<Deed>)| {
            let (slow, replica, admitted) = (&slow, &replicas[nth % replicas.len()], &admitted);
            let deeds = deeds.clone();
            async move {
                for deed in &deeds {
                    act(slow, replica, deed, admitted).await;
                }
            }
        };
        futures::future::join_all(writers.iter().enumerate().map(write)).await;
        // Nobody's record was overwritten by another's.
        assert_eq!(milli(&slow.store.lock().quota), *admitted.lock());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn many_writers_do_what_one_could(
        rounds in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(deed(), 1..5), 1..6), 1..4,
        ),
        replicas in 1..4_usize,
        pauses in proptest::collection::vec(0..20_usize, 1..50),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        runtime.block_on(run(&rounds, replicas, pauses));
    }
}

#[test]
fn what_a_quota_refuses_is_told_once() {
    let quota = Reference::named("policy.karmada.io/v1alpha1", "FederatedResourceQuota", "shop", "cpus");
    let quantity = |text: &str| text.parse().unwrap();
    let exceeded = plan::Exceeded {
        quota: quota.clone(),
        resource: "cpu".to_owned(),
        requested: quantity("260m"),
        limit: quantity("200m"),
    };
    let refused = Review::from(Err(Refusal::quota_exceeded(exceeded, "too much")));
    let asked = |operation: Operation, uid: &str, dry_run: bool| {
        let mut object = body(0, 8);
        object["metadata"]["uid"] = uid.into();
        let request = admission::Request {
            uid: "u".to_owned(),
            operation,
            name: "web-0-deployment".to_owned(),
            namespace: "shop".to_owned(),
            object,
            old_object: Value::Null,
            dry_run: Some(dry_run),
        };
        denied(&request, &refused, Timestamp::UNIX_EPOCH)
    };
    assert_eq!(asked(Operation::Update, "1", true), None);
    let [first, again, other] = [(Operation::Create, "1"), (Operation::Create, "2"), (Operation::Update, "1")]
        .map(|(operation, uid)| asked(operation, uid, false).expect("it is told"));
    assert_eq!((first.id == again.id, first.id == other.id), (true, false));
    assert_eq!((first.subject.name.as_str(), first.cause.reference), ("web-0", Some(quota)));
    assert_eq!((&first.effect["requested"], &first.effect["limit"]), (&json!(0.26), &json!(0.2)));
}
