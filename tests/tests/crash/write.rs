//! Requests that are repeated: writes of users until they are acknowledged, because a client does not know whether a crashed server
//! received them, and reads of tests.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use crowsnest_tests::WAIT_TIMEOUT;
use futures::future::try_join_all;
use http::{Request, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tokio::sync::watch;

/// Delay before a request is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Timeout for a response. A killed server closes its socket, but a starting one may be slow.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Repeats a read that fails, such as while a busy machine delays responses. Fails with the last error after [`WAIT_TIMEOUT`].
pub async fn retry<T, F: Future<Output = Result<T>>>(read: impl Fn() -> F) -> Result<T> {
    let started_at = Instant::now();
    loop {
        let result = tokio::time::timeout(RESPONSE_TIMEOUT, read()).await;
        match result.unwrap_or_else(|_| Err(anyhow!("no response within {RESPONSE_TIMEOUT:?}"))) {
            Err(_) if started_at.elapsed() < WAIT_TIMEOUT => tokio::time::sleep(RETRY_DELAY).await,
            result => return result,
        }
    }
}

/// An idempotent request.
#[derive(Debug, Clone)]
pub struct Write {
    pub path: String,
    /// The object to apply; `None` deletes the object.
    pub body: Option<Value>,
}

/// A client for one context of a kubeconfig, or for the current one.
pub async fn client(file: &Path, context: Option<&str>) -> Result<kube::Client> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?;
    Ok(kube::Client::try_from(config)?)
}

/// Sends the lanes concurrently and the writes of each lane in order. `acknowledged` is the number of acknowledged
/// writes.
pub async fn write_all(kubeconfig: &Path, lanes: Vec<Vec<Write>>, acknowledged: watch::Sender<usize>) -> Result<()> {
    let acknowledged = &acknowledged;
    let lanes = lanes.into_iter().map(|lane| async move {
        let mut current = None;
        for write in lane {
            write_until_acknowledged(kubeconfig, &mut current, &write).await.with_context(|| format!("{write:?}"))?;
            acknowledged.send_modify(|count| *count += 1);
        }
        anyhow::Ok(())
    });
    try_join_all(lanes).await.map(drop)
}

async fn write_until_acknowledged(kubeconfig: &Path, current: &mut Option<kube::Client>, write: &Write) -> Result<()> {
    let started_at = Instant::now();
    loop {
        let result = tokio::time::timeout(RESPONSE_TIMEOUT, try_write(kubeconfig, current, write)).await;
        let error = match result.unwrap_or_else(|_| bail!("no response within {RESPONSE_TIMEOUT:?}")) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if is_final(&error) || started_at.elapsed() > WAIT_TIMEOUT {
            return Err(error);
        }
        // A restarted control plane listens on another port.
        *current = None;
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn try_write(kubeconfig: &Path, current: &mut Option<kube::Client>, write: &Write) -> Result<()> {
    let client = match current {
        Some(client) => client.clone(),
        None => current.insert(client(kubeconfig, None).await?).clone(),
    };
    let request = match &write.body {
        Some(body) => Request::patch(format!("{}?fieldManager=crash&force=true", write.path))
            .header(header::CONTENT_TYPE, "application/apply-patch+yaml")
            .body(serde_json::to_vec(body)?)?,
        None => Request::delete(&write.path).body(Vec::new())?,
    };
    match client.request::<Value>(request).await {
        Err(kube::Error::Api(status)) if status.code == 404 && write.body.is_none() => Ok(()),
        result => result.map(drop).map_err(Into::into),
    }
}

/// True if the server rejected the request, so that repeating it cannot succeed.
fn is_final(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if [400, 405, 422].contains(&status.code))
}
