//! Tests of a campaign against a mock API of Leases: the requests of a renewal, and the outcome of a conflict.

use std::collections::BTreeMap;

use kube::client::Body;
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const LEASES: [&str; 3] = ["one", "two", "three"];
const TIMINGS: Timings = Timings {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// Leases by name, and the methods of the requests for them.
#[derive(Default)]
struct MockLeases {
    leases: BTreeMap<String, Value>,
    requests: Vec<String>,
    version: u64,
}

impl MockLeases {
    fn respond(&mut self, method: &http::Method, name: &str, body: &[u8]) -> (u16, Value) {
        self.requests.push(method.to_string());
        let current = self.leases.get(name).cloned();
        let version = |lease: &Value| lease.pointer("/metadata/resourceVersion").cloned();
        match (method.as_str(), current) {
            ("GET", Some(lease)) => (200, lease),
            ("GET", None) => (404, json!({"code": 404, "reason": "NotFound", "message": "no such lease"})),
            (_, current) => {
                let mut sent: Value = serde_json::from_slice(body).expect("a Lease");
                if current.is_some_and(|current| version(&sent) != version(&current)) {
                    return (409, json!({"code": 409, "reason": "Conflict", "message": "it has changed"}));
                }
                let name = sent.pointer("/metadata/name").and_then(Value::as_str).expect("a name").to_owned();
                self.store(&name, &mut sent);
                (200, sent)
            }
        }
    }

    fn store(&mut self, name: &str, lease: &mut Value) {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.leases.insert(name.to_owned(), lease.clone());
    }

    /// Makes another process the holder of a Lease.
    fn take_over(&mut self, name: &str) {
        let mut lease = self.leases[name].clone();
        lease["spec"]["holderIdentity"] = json!("other");
        self.store(name, &mut lease);
    }
}

fn campaign(mock: &Arc<Mutex<MockLeases>>) -> Campaign {
    let mock = Arc::clone(mock);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let mock = Arc::clone(&mock);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.map_err(|error| error.to_string())?;
            let name = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
            let (code, mut object) = mock.lock().respond(&head.method, &name, &body);
            if code >= 400 {
                object["kind"] = json!("Status");
                object["apiVersion"] = json!("v1");
                object["status"] = json!("Failure");
            }
            let response_body = serde_json::to_vec(&object).map_err(|error| error.to_string())?;
            let response = http::Response::builder().status(code).body(Body::from(response_body));
            response.map_err(|error| error.to_string())
        }
    });
    let election = Election {
        control_plane: kube::Client::new(service, "default"),
        thread: Arc::new(ElectionThread::start().unwrap()),
        namespace: "karmada-system".to_owned(),
        leases: LEASES.map(str::to_owned).to_vec(),
        identity: "me".to_owned(),
        timings: TIMINGS,
    };
    Campaign::new(&election)
}

#[tokio::test]
async fn held_leases_are_renewed_by_one_update_each() {
    let mock = Arc::new(Mutex::new(MockLeases::default()));
    let mut campaign = campaign(&mock);
    assert_eq!(campaign.try_acquire_or_renew().await.unwrap(), ElectionOutcome::Holder { term: 0 });
    for _ in 0..3 {
        mock.lock().requests.clear();
        assert_eq!(campaign.try_acquire_or_renew().await.unwrap(), ElectionOutcome::Holder { term: 0 });
        assert_eq!(mock.lock().requests, ["PUT"; 3]);
    }
}

#[rstest]
#[case("one")]
#[case("two")]
#[case("three")]
#[tokio::test]
async fn lost_leases_are_noticed_at_the_next_renewal(#[case] name: &str) {
    let mock = Arc::new(Mutex::new(MockLeases::default()));
    let mut campaign = campaign(&mock);
    campaign.try_acquire_or_renew().await.unwrap();
    mock.lock().take_over(name);
    let lost = ElectionOutcome::OtherHolder { lease: name.to_owned(), holder: "other".to_owned() };
    assert_eq!(campaign.try_acquire_or_renew().await.unwrap(), lost);
    assert_eq!(campaign.try_acquire_or_renew().await.unwrap(), lost);
    assert_eq!(mock.lock().leases[name]["spec"]["holderIdentity"], "other");
}

#[rstest]
#[case("a fast response", 0, 2_000)]
#[case("a slow response", 1_200, 800)]
#[case("a response after the retry period", 4_000, 500)]
fn attempts_start_one_retry_period_after_each_other(#[case] _name: &str, #[case] elapsed: u64, #[case] delay: u64) {
    let elapsed = Duration::from_millis(elapsed);
    assert_eq!(retry_delay(&TIMINGS, elapsed, 0.5), Duration::from_millis(delay));
}

/// The test occupies the only worker of its runtime until the task has run.
#[tokio::test]
async fn tasks_of_the_thread_run_while_the_workers_of_the_caller_are_occupied() {
    let thread = ElectionThread::start().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let create_client = async {
        tokio::spawn(async move { sender.send(std::thread::current().name().map(str::to_owned)) });
    };
    thread.wrap(create_client).await;
    assert_eq!(receiver.recv().unwrap().as_deref(), Some("leader-election"));
}
