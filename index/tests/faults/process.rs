//! The process under test: started, queried, signalled and restarted on the same data.

use crate::LOOK_EVERY;
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
    pub async fn up(&mut self) {
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
        self.freeze(false).await;
        if self.running.is_none() {
            return;
        }
        let _: Value = self.ask(&["stop"]).await;
        let mut running = self.running.take().unwrap();
        let ended = within("the end of the host", running.child.wait()).await.unwrap();
        assert!(ended.success(), "the host ended with {ended}");
    }

    /// SIGSTOP, SIGCONT.
    pub async fn freeze(&mut self, frozen: bool) {
        let Some(running) = self.running.as_mut().filter(|running| running.frozen != frozen) else { return };
        let signal = if frozen { "-STOP" } else { "-CONT" };
        let process = running.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().await.unwrap().success());
        running.frozen = frozen;
    }

    /// Aborts a worker and waits until the cache reports it.
    pub async fn abort(&mut self, worker: &str) {
        self.up().await;
        self.freeze(false).await;
        assert!(self.ask::<bool>(&["abort", worker]).await, "there is no worker {worker}");
        let dead = format!("worker {worker} of the cache failed:");
        within(&format!("unreadiness after the end of the {worker}"), async {
            while !self.status().await.unready.is_some_and(|reason| reason.contains(&dead)) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        })
        .await;
    }

    pub async fn status(&mut self) -> Status {
        self.ask(&["status"]).await
    }

    pub async fn ask<T: DeserializeOwned>(&mut self, question: &[&str]) -> T {
        let running = self.running.as_mut().expect("the host runs");
        let asking = async {
            let mut stream = TcpStream::connect(("127.0.0.1", running.port)).await?;
            stream.write_all(format!("{}\n", serde_json::to_string(question).unwrap()).as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = within(&format!("the answer to {question:?}"), asking).await;
        let ended = running.child.try_wait().unwrap();
        match answer.as_deref().map(serde_json::from_str) {
            Ok(Ok(answer)) => answer,
            _ => panic!("the host does not answer {question:?}: {answer:?}, it ended: {ended:?}"),
        }
    }
}
