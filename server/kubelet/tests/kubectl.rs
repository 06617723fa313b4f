//! kubectl 1.20, 1.32 and 1.36 against the kubelet of a simulated member: exec, logs, cp, port-forward, proxy.
//!
//! The binaries are located as in the end-to-end tests: a missing one is reported and skipped, and fails the test in
//! CI.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;

use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use crowsnest_kubelet::Kubelet;
use crowsnest_kubelet::connect::{self, RegistryRuntime};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// Starts a member with one running pod and returns the path of its kubeconfig.
async fn start_member(folder: &Path, stopped: &CancellationToken) -> PathBuf {
    let server = ApiServer::start(Config::new("member1", Data::Memory)).await.unwrap();
    let kubelet = Kubelet::new(Arc::new(RegistryRuntime::new(server.registry().clone())));
    connect::install(server.registry(), &kubelet);
    let client = server.admin();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if namespaces.get_opt("default").await.unwrap().is_none() {
        let default = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        namespaces.create(&PostParams::default(), &default).await.unwrap();
    }
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "web", "image": "nginx:1.25", "ports": [{"containerPort": 80}]}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let status = json!({"status": {
        "phase": "Running", "podIP": "10.1.0.5", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "web", "image": "nginx:1.25", "imageID": "", "ready": true, "restartCount": 0,
                               "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
    }});
    pods.patch_status("web", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let path = folder.join("kubeconfig");
    std::fs::write(&path, server.kubeconfig("admin", &["system:masters".to_owned()], &url).unwrap()).unwrap();
    let stopped = stopped.clone();
    tokio::spawn(async move { server.serve(listener, stopped).await });
    path
}

struct Kubectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
    folder: PathBuf,
}

impl Kubectl {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).env("HOME", &self.folder);
        command.current_dir(&self.folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str], stdin: &[u8]) -> Output {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(stdin).await.unwrap();
        drop(input);
        child.wait_with_output().await.unwrap()
    }

    /// Runs kubectl and checks its exit code and that its output contains a text.
    async fn check_run(&self, arguments: &[&str], stdin: &[u8], code: i32, expected: &str) {
        let output = self.run(arguments, stdin).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let text = if code == 0 { &out } else { &err };
        assert!(
            output.status.code() == Some(code) && text.contains(expected),
            "{:?} {arguments:?}: {:?}\nstdout: {out}\nstderr: {err}",
            self.binary,
            output.status.code()
        );
    }

    async fn check_port_forwarding(&self) {
        let mut child = self.command(&["port-forward", "pod/web", ":80"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let port: u16 = line.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        for _ in 0..3 {
            let mut connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            connection.write_all(b"GET /x HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains("Hello from pod default/web on node node-1"), "{:?}: {answer}", self.binary);
        }
        child.kill().await.unwrap();
    }

    /// Runs an interactive session in the pseudo-terminal of script(1).
    async fn check_terminal_session(&self) {
        let line = format!("{} --kubeconfig {} exec -it web -- sh", self.binary.display(), self.kubeconfig.display());
        let mut command = Command::new("script");
        command
            .args(["-qec", &line, "/dev/null"])
            .env("HOME", &self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().expect("script(1) of util-linux runs");
        let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut seen = String::new();
        for (typed, expected) in [
            ("", "web:/ # "),
            ("cd /tmp; echo $((40+2))\r", "42\r\nweb:/tmp # "),
            ("sleep 1000\r", "sleep 1000\r\n"),
            ("\x03", "web:/tmp # "),
        ] {
            keys.write_all(typed.as_bytes()).await.unwrap();
            seen.clear();
            while !seen.ends_with(expected) {
                let mut buffer = [0; 1024];
                let read = screen.read(&mut buffer).await.unwrap();
                assert!(read > 0, "{:?}: ended after {seen:?}", self.binary);
                seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        }
        keys.write_all(b"exit 5\r").await.unwrap();
        assert_eq!(child.wait().await.unwrap().code(), Some(5), "{:?}", self.binary);
    }

    async fn check_copy(&self) {
        let bytes: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(self.folder.join("sent"), &bytes).unwrap();
        self.check_run(&["cp", "sent", "web:/tmp/there"], b"", 0, "").await;
        self.check_run(&["exec", "web", "--", "wc", "-c", "/tmp/there"], b"", 0, "1200000 /tmp/there").await;
        self.check_run(&["cp", "web:/tmp/there", "back"], b"", 0, "").await;
        assert_eq!(std::fs::read(self.folder.join("back")).unwrap(), bytes, "{:?}", self.binary);
    }
}

#[tokio::test]
async fn supported_kubectl_versions_can_stream() {
    let folder = tempfile::tempdir().unwrap();
    let stopped = CancellationToken::new();
    let kubeconfig = start_member(folder.path(), &stopped).await;
    for generation in ["1.20", "1.32", "1.36"] {
        let Some(binary) = crowsnest_tests::find_kubectl(generation).unwrap() else { continue };
        let home = folder.path().join(binary.file_name().unwrap());
        std::fs::create_dir(&home).unwrap();
        let kubectl = Kubectl { binary, kubeconfig: kubeconfig.clone(), folder: home };
        kubectl.check_run(&["exec", "web", "--", "sh", "-c", "echo $HOSTNAME"], b"", 0, "web\n").await;
        kubectl.check_run(&["exec", "-i", "web", "--", "cat"], b"typed", 0, "typed").await;
        kubectl
            .check_run(&["exec", "web", "--", "sh", "-c", "exit 3"], b"", 3, "command terminated with exit code 3")
            .await;
        kubectl.check_run(&["exec", "web", "--", "nosuch"], b"", 1, "executable file not found in $PATH").await;
        kubectl.check_run(&["logs", "web", "-c", "other"], b"", 1, "container other is not valid for pod web").await;
        kubectl.check_run(&["logs", "web", "--tail", "1"], b"", 0, "GET /healthz 200").await;
        let missing = "previous terminated container \"web\" in pod \"web\" not found";
        kubectl.check_run(&["logs", "web", "--previous"], b"", 1, missing).await;
        kubectl.check_copy().await;
        kubectl.check_port_forwarding().await;
        kubectl.check_terminal_session().await;
        for path in ["pods/web/proxy/x", "pods/web:80/proxy/x"] {
            let path = format!("/api/v1/namespaces/default/{path}");
            kubectl.check_run(&["get", "--raw", &path], b"", 0, "request: GET /x").await;
        }
    }
    stopped.cancel();
}
