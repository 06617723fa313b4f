//! Writes of users, each repeated until it is acknowledged, because a client does not know whether a crashed server received it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crowsnest_tests::PATIENCE;
use futures::future::try_join_all;
use http::{Request, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tokio::sync::watch;

/// Delay between attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// A killed server closes its socket; a starting one may be slow.
const ANSWER: Duration = Duration::from_secs(20);

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

/// Sends all lanes concurrently, each in order, and counts acknowledged writes.
pub async fn write_all(kubeconfig: &Path, lanes: Vec<Vec<Write>>, done: watch::Sender<usize>) -> Result<()> {
    let done = &done;
    let lanes = lanes.into_iter().map(|lane| async move {
        let mut current = None;
        for write in lane {
            insist(kubeconfig, &mut current, &write).await.with_context(|| format!("{write:?}"))?;
            done.send_modify(|count| *count += 1);
        }
        anyhow::Ok(())
    });
    try_join_all(lanes).await.map(drop)
}

async fn insist(kubeconfig: &Path, current: &mut Option<kube::Client>, write: &Write) -> Result<()> {
    let began = Instant::now();
    loop {
        let tried = tokio::time::timeout(ANSWER, attempt(kubeconfig, current, write)).await;
        let error = match tried.unwrap_or_else(|_| bail!("no answer within {ANSWER:?}")) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if is_final(&error) || began.elapsed() > PATIENCE {
            return Err(error);
        }
        // Another process listens at another port.
        *current = None;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn attempt(kubeconfig: &Path, current: &mut Option<kube::Client>, write: &Write) -> Result<()> {
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

/// True if the server refused the request.
fn is_final(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if [400, 405, 422].contains(&status.code))
}
