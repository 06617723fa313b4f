//! Tests of processes and probes of containers with in-memory objects.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::*;
use crate::pods::PodRuntime;
use crate::stream::CollectingSink;

const START: &str = "2026-01-01T00:00:00Z";

/// A runtime with one pod that was started a minute ago.
struct SinglePodRuntime(Mutex<Value>);

#[async_trait]
impl PodRuntime for SinglePodRuntime {
    async fn get(&self, resource: &str, _namespace: &str, _name: &str) -> ApiResult<Option<Arc<Value>>> {
        Ok((resource == "pods").then(|| Arc::new(self.0.lock().clone())))
    }

    async fn list_pods(&self, _namespace: &str) -> ApiResult<Vec<Arc<Value>>> {
        Ok(vec![Arc::new(self.0.lock().clone())])
    }

    fn now(&self) -> Timestamp {
        "2026-01-01T00:01:00Z".parse().unwrap()
    }
}

/// Creates a kubelet with one container, and a notification of changed observations.
fn kubelet(container: Value) -> (Arc<Kubelet>, Arc<SinglePodRuntime>, Arc<tokio::sync::Notify>) {
    let mut container = container;
    container["name"] = json!("main");
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"nodeName": "n", "restartPolicy": "OnFailure", "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "main", "restartCount": 0, "state": {"running": {"startedAt": START}}}]},
    });
    let runtime = Arc::new(SinglePodRuntime(Mutex::new(pod)));
    let kubelet = Kubelet::new(runtime.clone());
    let changed = Arc::new(tokio::sync::Notify::new());
    let notified = changed.clone();
    kubelet.on_observation(move |_| notified.notify_one());
    (kubelet, runtime, changed)
}

fn run(restarts: i64) -> ContainerRun {
    let pod = PodRef { namespace: "ns".into(), name: "p".into() };
    ContainerRun { pod, uid: "u".into(), container: "main".into(), restarts }
}

/// Waits until the observed state of a run meets a condition, and returns it.
async fn wait_until(
    kubelet: &Arc<Kubelet>,
    changed: &tokio::sync::Notify,
    restarts: i64,
    condition: impl Fn(&Observation) -> bool,
) -> Observation {
    loop {
        let observation = kubelet.observe(run(restarts));
        if condition(&observation) {
            return observation;
        }
        changed.notified().await;
    }
}

async fn log(kubelet: &Arc<Kubelet>) -> String {
    let pod = PodRef { namespace: "ns".into(), name: "p".into() };
    let request = http::Request::get("/?container=main").body(axum::body::Body::empty()).unwrap();
    let response = kubelet.connect(&pod, crate::Subresource::Log, request).await.unwrap();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[rstest::rstest]
#[case(json!({"image": "busybox", "command": ["sh", "-c", "echo hi; sleep 5; exit 3"]}), Some(3), 5, "hi\n")]
#[case(json!({"image": "busybox", "args": ["echo", "end"]}), Some(0), 0, "end\n")]
#[case(json!({"image": "busybox", "command": ["sh", "-c", "echo -n one; echo; echo -n end"]}), Some(0), 0, "one\nend\n")]
#[case(json!({"image": "app", "command": ["sh", "-c", "curl example.com; exit 3"]}), None, 0, "sh: curl: not found\n")]
#[tokio::test]
async fn exit_code_time_and_log_of_a_command_are_observed(
    #[case] container: Value,
    #[case] code: Option<i32>,
    #[case] second: i64,
    #[case] lines: &str,
) {
    let (kubelet, _, changed) = kubelet(container);
    let exit = wait_until(&kubelet, &changed, 0, |observation| observation.exit.is_some()).await.exit.unwrap();
    let at = exit.at.as_second() - START.parse::<Timestamp>().unwrap().as_second();
    assert_eq!((exit.code, at), (code, second));
    assert_eq!(log(&kubelet).await, lines);
    kubelet.stop().await;
}

#[tokio::test]
async fn an_empty_dir_is_kept_across_restarts_until_the_pod_is_deleted() {
    let script = "if [[ -r /data/f ]]; then exit 0; else touch /data/f; exit 1; fi";
    let (kubelet, runtime, changed) = kubelet(json!({"image": "busybox", "command": ["sh", "-c", script]}));
    let first = wait_until(&kubelet, &changed, 0, |observation| observation.exit.is_some()).await;
    assert_eq!(first.exit.unwrap().code, Some(1));
    runtime.0.lock()["status"]["containerStatuses"][0]["restartCount"] = json!(1);
    let second = wait_until(&kubelet, &changed, 1, |observation| observation.exit.is_some()).await;
    assert_eq!(second.exit.unwrap().code, Some(0));
    kubelet.remove_pod("u");
    let third = wait_until(&kubelet, &changed, 1, |observation| observation.exit.is_some()).await;
    assert_eq!(third.exit.unwrap().code, Some(1));
    kubelet.stop().await;
}

#[tokio::test]
async fn probes_use_the_files_of_the_container() {
    let probe = json!({"httpGet": {"path": "/index.html", "port": 80}, "periodSeconds": 1, "failureThreshold": 1});
    let (kubelet, _, changed) =
        kubelet(json!({"image": "httpd:2.4", "ports": [{"containerPort": 80}], "readinessProbe": probe}));
    wait_until(&kubelet, &changed, 0, |observation| observation.ready).await;
    let pod = Pod::get(&*kubelet.runtime, &run(0).pod).await.unwrap();
    let container = pod.container("main").unwrap();
    let current = container.current_run().unwrap();
    let state = kubelet.run_state(&container, &current).await.unwrap();
    for (script, ready) in [
        ("mv -v /usr/local/apache2/htdocs/index.html /tmp/", false),
        ("mv -v /tmp/index.html /usr/local/apache2/htdocs/", true),
    ] {
        let shell = kubelet.create_shell(&container, &current, &state).await.unwrap();
        let output = Arc::new(CollectingSink::default());
        let command = ["sh", "-c", script].map(str::to_owned);
        let outcome = shell.start(&command, Stdio::new(Input::empty(), output.clone(), output.clone())).await;
        assert!(matches!(outcome, StartOutcome::Code(0)), "{:?}", output.take());
        let observation = wait_until(&kubelet, &changed, 0, |observation| observation.ready == ready).await;
        let failure = observation.failure.map(|failure| failure.reason).unwrap_or_default();
        assert_eq!(failure, "HTTP probe failed with statuscode: 404");
    }
    kubelet.stop().await;
}

#[tokio::test]
async fn a_failed_liveness_probe_kills_the_container() {
    let probe = json!({"exec": {"command": ["cat", "/data/alive"]}, "periodSeconds": 1, "failureThreshold": 2});
    let (kubelet, _, changed) = kubelet(json!({"image": "app", "livenessProbe": probe}));
    let observation = wait_until(&kubelet, &changed, 0, |observation| observation.exit.is_some()).await;
    assert_eq!(observation.exit.unwrap().code, Some(137));
    let failure = observation.failure.unwrap();
    assert_eq!(
        (failure.kind, failure.reason.trim()),
        (ProbeKind::Liveness, "cat: /data/alive: No such file or directory")
    );
    kubelet.stop().await;
}
