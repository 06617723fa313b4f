//! Is a member there, and does it say it is well?

use crowsnest_component_base::body;
use http::{Request, StatusCode};
use kube::Client;
use kube::client::Body;
use std::time::{Duration, Instant};

/// How long a probe waits for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that are read of an answer.
const MAX_ANSWER: usize = 64 << 10;

/// What a member answered about its health, and to any other call. `online` without `healthy`: it answers, but not with 200.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub online: bool,
    pub healthy: bool,
    /// Empty when healthy.
    pub message: String,
    pub latency: Duration,
    /// What `/version` says. Empty where callers are not told.
    pub version: Result<String, String>,
}

impl Probe {
    /// Nothing answered.
    pub fn unreachable(message: String) -> Self {
        Self { online: false, healthy: false, version: Err(message.clone()), message, latency: Duration::ZERO }
    }
}

/// GET `/readyz`, or `/healthz` where the former isn't served; and `/version` at the same time, which says whether calls are answered.
pub async fn probe(client: &Client) -> Probe {
    let (health, version) = tokio::join!(health(client), version(client));
    Probe { version, ..health }
}

async fn health(client: &Client) -> Probe {
    let started = Instant::now();
    let mut answer = get(client, "/readyz").await;
    if matches!(answer, Ok((StatusCode::NOT_FOUND, _))) {
        answer = get(client, "/healthz").await;
    }
    let (latency, version) = (started.elapsed(), Ok(String::new()));
    match answer {
        Ok((StatusCode::OK, _)) => Probe { online: true, healthy: true, message: String::new(), latency, version },
        Ok((status, body)) => {
            let message = format!("{status}: {}", body.trim());
            Probe { online: true, healthy: false, message, latency, version }
        }
        Err(message) => Probe { latency, ..Probe::unreachable(message) },
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

async fn version(client: &Client) -> Result<String, String> {
    let (status, body) = get(client, "/version").await?;
    match status {
        StatusCode::OK => {
            let version: Version =
                serde_json::from_str(&body).map_err(|e| format!("its version cannot be read: {e}"))?;
            Ok(version.git_version)
        }
        // Who we are is not known there any more: nothing else is answered either.
        StatusCode::UNAUTHORIZED => Err(format!("{status}: {}", body.trim())),
        status if status.is_client_error() => Ok(String::new()),
        status => Err(format!("{status}: {}", body.trim())),
    }
}

async fn get(client: &Client, path: &str) -> Result<(StatusCode, String), String> {
    let request = Request::get(path).body(Body::empty()).map_err(|e| e.to_string())?;
    let exchange = async {
        let response = client.send(request).await.map_err(|e| describe(&e))?;
        let status = response.status();
        let body = body::collect(response.into_body(), MAX_ANSWER).await.map_err(|error| error.to_string())?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    match tokio::time::timeout(PROBE_TIMEOUT, exchange).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer to {path} within {} s", PROBE_TIMEOUT.as_secs())),
    }
}

/// The innermost cause says what happened (refused, timed out, certificate expired).
fn describe(error: &kube::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
