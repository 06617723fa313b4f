//! The process under test: started, queried, signalled and restarted on the same data.

use crate::POLL_INTERVAL;
use crate::host::{Start, Status};
use crate::members::within;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

pub struct Host {
    pub start: Start,
    running: Option<Running>,
}

struct Running {
    child: Child,
    port: u16,
    frozen: bool,
}

impl Host {
    pub fn new(start: Start) -> Self {
        Self { start, running: None }
    }

    /// Starts the process unless it runs.
    pub async fn ensure_running(&mut self) {
        if self.running.is_some() {
            return;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("host").arg(serde_json::to_string(&self.start).unwrap());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        within("the start of the host", out.read_line(&mut line)).await.unwrap();
        let port = line.trim().parse().unwrap_or_else(|_| panic!("the host did not start: {line}"));
        self.running = Some(Running { child, port, frozen: false });
    }

    /// SIGKILL, without a shutdown.
    pub async fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.child.start_kill().unwrap();
            running.child.wait().await.unwrap();
        }
    }

    /// Requests a shutdown and waits for it.
    pub async fn stop(&mut self) {
        self.set_frozen(false).await;
        if self.running.is_none() {
            return;
        }
        let _: Value = self.request(&["stop"]).await;
        let mut running = self.running.take().unwrap();
        let ended = within("the end of the host", running.child.wait()).await.unwrap();
        assert!(ended.success(), "the host ended with {ended}");
    }

    /// SIGSTOP, SIGCONT.
    pub async fn set_frozen(&mut self, frozen: bool) {
        let Some(running) = self.running.as_mut().filter(|running| running.frozen != frozen) else { return };
        let signal = if frozen { "-STOP" } else { "-CONT" };
        let process = running.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().await.unwrap().success());
        running.frozen = frozen;
    }

    /// Aborts a worker and waits until the cache reports it.
    pub async fn abort(&mut self, worker: &str) {
        self.ensure_running().await;
        self.set_frozen(false).await;
        assert!(self.request::<bool>(&["abort", worker]).await, "there is no worker {worker}");
        let dead = format!("cache component {worker:?} failed:");
        within(&format!("unreadiness after the end of the {worker}"), async {
            while !self.status().await.unready.is_some_and(|reason| reason.contains(&dead)) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        })
        .await;
    }

    pub async fn status(&mut self) -> Status {
        self.request(&["status"]).await
    }

    /// Sends a command to the host and returns its response.
    pub async fn request<T: DeserializeOwned>(&mut self, command: &[&str]) -> T {
        let running = self.running.as_mut().expect("the host runs");
        let exchange = async {
            let mut stream = TcpStream::connect(("127.0.0.1", running.port)).await?;
            stream.write_all(format!("{}\n", serde_json::to_string(command).unwrap()).as_bytes()).await?;
            let mut response = String::new();
            stream.read_to_string(&mut response).await?;
            Ok::<_, std::io::Error>(response)
        };
        let response = within(&format!("the response to {command:?}"), exchange).await;
        let ended = running.child.try_wait().unwrap();
        match response.as_deref().map(serde_json::from_str) {
            Ok(Ok(response)) => response,
            _ => panic!("the host does not respond to {command:?}: {response:?}, its exit status: {ended:?}"),
        }
    }
}
