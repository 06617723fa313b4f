//! Fixtures of the tests of leader election: a mock API of Leases, and a runtime whose only worker can be blocked.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::{Election, ElectionThread, Timings};

const LEASES: [&str; 3] = ["one", "two", "three"];

/// Leases by name, and the methods of the requests for them.
#[derive(Default)]
pub(crate) struct MockLeases {
    pub leases: BTreeMap<String, Value>,
    pub requests: Vec<String>,
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
    pub fn take_over(&mut self, name: &str) {
        let mut lease = self.leases[name].clone();
        lease["spec"]["holderIdentity"] = json!("other");
        self.store(name, &mut lease);
    }
}

/// Configuration of a candidate that uses the mock API. Requires a tokio runtime, which runs the client.
pub(crate) fn mock_election(mock: &Arc<Mutex<MockLeases>>, identity: &str, timings: Timings) -> Election {
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
    Election {
        control_plane: kube::Client::new(service, "default"),
        thread: Arc::new(ElectionThread::start().unwrap()),
        namespace: "karmada-system".to_owned(),
        leases: LEASES.map(str::to_owned).to_vec(),
        identity: identity.to_owned(),
        timings,
    }
}

pub(crate) fn single_worker() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).build().unwrap()
}

/// Blocks the worker until the returned sender is dropped.
pub(crate) fn block_worker(runtime: &Runtime) -> mpsc::Sender<()> {
    let (blocked, is_blocked) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    runtime.spawn(async move {
        blocked.send(()).unwrap();
        // Ends with an error when the sender is dropped.
        released.recv()
    });
    is_blocked.recv().unwrap();
    release
}

/// Waits until the worker has run all tasks that were spawned before.
pub(crate) fn run_spawned_tasks(runtime: &Runtime) {
    runtime.block_on(runtime.spawn(async {})).unwrap();
}
