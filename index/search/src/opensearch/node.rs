//! Real nodes of engines for tests, started by `.ci/engines`.

#![expect(clippy::unwrap_used, reason = "only tests use it, and in a test a panic is the report")]

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

/// A running node; it ends with this process or when it is dropped.
pub struct Node {
    port: u16,
    home: tempfile::TempDir,
}

fn engines() -> Command {
    Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.ci/engines"))
}

impl Node {
    /// Starts a node. `None` if the engine is not installed; on CI, this is an error.
    pub fn start(name: &str) -> Option<Self> {
        let is_installed = engines().args(["has", name]).status().is_ok_and(|status| status.success());
        if !is_installed {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{name} is not built: run .ci/engines build");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let home = tempfile::tempdir().unwrap();
        let mut start = engines();
        start.args(["start", name, &port.to_string()]).arg(home.path());
        start.env("CROWSNEST_ENGINE_OWNER", std::process::id().to_string());
        assert!(start.status().unwrap().success(), "{name} did not start");
        Some(Self { port, home })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Status and JSON of a response.
    pub fn send(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let kind = if path.contains("_bulk") { "application/x-ndjson" } else { "application/json" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        let response = String::from_utf8(response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = match head.to_lowercase().contains("transfer-encoding: chunked") {
            true => decode_chunked(body),
            false => body.to_owned(),
        };
        (status, serde_json::from_str(&body).unwrap())
    }

    /// The JSON of a response that succeeds.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, response) = self.send(method, path, body);
        assert!(status < 300, "{method} {path}: {status} {response}\n{}", body.chars().take(2_000).collect::<String>());
        response
    }
}

/// Decodes a body in chunked transfer encoding.
fn decode_chunked(mut body: &str) -> String {
    let mut decoded = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let (chunk, rest) = rest.split_at(usize::from_str_radix(length.trim(), 16).unwrap());
        decoded.push_str(chunk);
        body = rest.trim_start_matches("\r\n");
    }
    decoded
}

impl Drop for Node {
    fn drop(&mut self) {
        let stopped = engines().arg("stop").arg(self.home.path()).status();
        drop(stopped);
    }
}
