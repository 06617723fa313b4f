//! A server under test: sends requests and returns the comparable parts of the responses.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use http_body_util::BodyExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::definition::{Definition, Version};
use super::sequence::{APPLY, JSON, RESOURCE_VERSION, Request, UID};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Maximum number of polls, at intervals of 50 ms, until the resources of a definition are served.
const POLLS: usize = 2_400;
/// Name of the object whose creation is tried; rules of definitions may expect names of seeds.
const PROBE: &str = "seed-probe";

#[derive(Debug)]
pub struct Response {
    pub code: u16,
    pub content_type: String,
    pub warnings: Vec<String>,
    pub body: Value,
}

/// Values that each server chooses.
#[derive(Debug, Default)]
pub struct Identity {
    pub uid: String,
    pub resource_version: String,
}

impl Identity {
    fn update(&mut self, body: &Value) {
        let metadata = &body["metadata"];
        if let (Some(uid), Some(version)) = (metadata["uid"].as_str(), metadata["resourceVersion"].as_str()) {
            (self.uid, self.resource_version) = (uid.to_owned(), version.to_owned());
        }
    }
}

pub struct Server {
    pub name: &'static str,
    client: kube::Client,
}

impl Server {
    pub async fn connect(name: &'static str, kubeconfig: &Path) -> Result<Self> {
        let config = Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Self { name, client: kube::Client::try_from(config)? })
    }

    pub async fn send(&self, request: &Request, identity: &mut Identity) -> Result<Response> {
        let body = request.body.replace(RESOURCE_VERSION, &identity.resource_version).replace(UID, &identity.uid);
        let built = http::Request::builder()
            .method(request.method)
            .uri(&request.path)
            .header("Content-Type", request.content_type)
            .header("Accept", request.accept)
            .body(kube::client::Body::from(body.into_bytes()))?;
        let (parts, body) = self.client.send(built).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let body = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
        if !request.path.contains("dryRun") {
            identity.update(&body);
        }
        Ok(Response {
            code: parts.status.as_u16(),
            content_type: parts.headers.get("content-type").map(text).unwrap_or_default(),
            warnings: parts.headers.get_all("warning").iter().map(text).collect(),
            body,
        })
    }

    async fn call(&self, method: &'static str, path: String, body: &Value) -> Result<Response> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(&Request { method, path, content_type: JSON, accept: JSON, body }, &mut Identity::default()).await
    }

    /// Creates a definition, after deleting an existing one of the same name, and waits until its resources are served.
    pub async fn define(&self, definition: &Definition) -> Result<()> {
        let own = format!("{DEFINITIONS}/{}", definition.name);
        self.call("DELETE", own.clone(), &Value::Null).await?;
        let mut created = self.call("POST", DEFINITIONS.to_owned(), &definition.body).await?;
        // The previous one may still be terminating.
        for _ in 0..POLLS {
            if created.code != 409 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            created = self.call("POST", DEFINITIONS.to_owned(), &definition.body).await?;
        }
        ensure!(created.code == 201, "{}: {} was refused: {}", self.name, definition.name, created.body);
        let mut last = String::new();
        for _ in 0..POLLS {
            let found = self.call("GET", own.clone(), &Value::Null).await?;
            let is_established =
                |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
            let conditions = found.body["status"]["conditions"].as_array();
            if conditions.is_some_and(|all| all.iter().any(is_established)) {
                let Some(refusal) = self.refusal(definition).await? else { return Ok(()) };
                last = format!("{} {}", refusal.code, refusal.body);
            } else {
                last = found.body["status"].to_string();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("{}: {} is not served: {last}", self.name, definition.name)
    }

    /// The first response which shows that a version cannot be listed or written yet; `None` if all can.
    async fn refusal(&self, definition: &Definition) -> Result<Option<Response>> {
        for version in &definition.versions {
            let listed = self.call("GET", definition.collection(version), &Value::Null).await?;
            if listed.code != 200 {
                return Ok(Some(listed));
            }
            let applied = self.send(&probe(definition, version), &mut Identity::default()).await?;
            // A server that validates the object serves its version, also if the schema requires fields.
            if !matches!(applied.code, 201 | 422) {
                return Ok(Some(applied));
            }
        }
        Ok(None)
    }
}

/// A server-side apply that creates an object without storing it: it needs the schema, the storage and the managed
/// fields of the version.
fn probe(definition: &Definition, version: &Version) -> Request {
    let group_version = format!("{}/{}", definition.group, version.name);
    let object = json!({"apiVersion": group_version, "kind": definition.kind, "metadata": {"name": PROBE}});
    Request {
        method: "PATCH",
        path: format!("{}/{PROBE}?fieldManager=probe&dryRun=All", definition.collection(version)),
        content_type: APPLY,
        accept: JSON,
        body: object.to_string(),
    }
}
