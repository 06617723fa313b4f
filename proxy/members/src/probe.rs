//! Health probe of a member.

use crowsnest_component_base::body;
use http::{Request, StatusCode};
use kube::Client;
use kube::client::Body;
use std::time::{Duration, Instant};

/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes read from a response.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Health and reachability of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// True if the member responds with any status.
    pub is_online: bool,
    /// True if the member responds with 200.
    pub is_healthy: bool,
    /// Reason why the member is not healthy; empty if it is.
    pub message: String,
    pub latency: Duration,
    /// The Kubernetes version from `/version`, or the reason why authenticated requests fail. Empty if the client's
    /// account is not permitted to read it.
    pub version: Result<String, String>,
}

impl Probe {
    /// The result for a member that did not respond.
    pub fn unreachable(message: String) -> Self {
        Self { is_online: false, is_healthy: false, version: Err(message.clone()), message, latency: Duration::ZERO }
    }
}

/// Requests `/readyz`, or `/healthz` if the former is not served, and concurrently `/version`, which shows whether
/// authenticated calls succeed.
pub async fn probe(client: &Client) -> Probe {
    let (health, version) = tokio::join!(probe_health(client), read_version(client));
    Probe { version, ..health }
}

async fn probe_health(client: &Client) -> Probe {
    let started_at = Instant::now();
    let mut response = get(client, "/readyz").await;
    if matches!(response, Ok((StatusCode::NOT_FOUND, _))) {
        response = get(client, "/healthz").await;
    }
    let (latency, version) = (started_at.elapsed(), Ok(String::new()));
    match response {
        Ok((StatusCode::OK, _)) => {
            Probe { is_online: true, is_healthy: true, message: String::new(), latency, version }
        }
        Ok((status, body)) => {
            let message = format!("{status}: {}", body.trim());
            Probe { is_online: true, is_healthy: false, message, latency, version }
        }
        Err(message) => Probe { latency, ..Probe::unreachable(message) },
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

async fn read_version(client: &Client) -> Result<String, String> {
    let (status, body) = get(client, "/version").await?;
    match status {
        StatusCode::OK => {
            let version: Version = serde_json::from_str(&body).map_err(|e| format!("cannot parse its version: {e}"))?;
            Ok(version.git_version)
        }
        // The credentials are no longer accepted, so all other calls fail as well.
        StatusCode::UNAUTHORIZED => Err(format!("{status}: {}", body.trim())),
        status if status.is_client_error() => Ok(String::new()),
        status => Err(format!("{status}: {}", body.trim())),
    }
}

async fn get(client: &Client, path: &str) -> Result<(StatusCode, String), String> {
    let request = Request::get(path).body(Body::empty()).map_err(|e| e.to_string())?;
    let exchange = async {
        let response = client.send(request).await.map_err(|e| root_cause(&e))?;
        let status = response.status();
        let body = body::collect(response.into_body(), MAX_RESPONSE_BYTES).await.map_err(|error| error.to_string())?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    match tokio::time::timeout(PROBE_TIMEOUT, exchange).await {
        Ok(result) => result,
        Err(_) => Err(format!("no response to {path} within {} s", PROBE_TIMEOUT.as_secs())),
    }
}

/// Message of the innermost cause, which is the most specific one (refused, timed out, certificate expired).
fn root_cause(error: &kube::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
