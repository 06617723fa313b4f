//! Plays the kubelet: runs here what pods of the charts and of `register` would run, as their service accounts and with their arguments.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::helm::render;

/// A certificate is due at any age.
const DUE: &str = "--cert-rotation-remaining-time-threshold=0.9999999999";

/// What the charts install.
pub struct Charts {
    /// An agent that reports the member's tokens and renews its certificate, and an estimator.
    pub agent: Vec<Value>,
    /// An agent that reports nothing.
    pub quiet: Vec<Value>,
    /// All accounts and rights of an installation, and the list of what the Job makes.
    pub credentials: Vec<Value>,
}

#[derive(Deserialize)]
struct Rendered {
    #[serde(default)]
    manifests: BTreeMap<String, String>,
    error: Option<String>,
}

impl Charts {
    /// None where Helm is missing.
    pub fn render() -> Result<Option<Self>> {
        let cases = [
            json!({"chart": "deploy/agent-chart", "release": "crowsnest-agent", "values": {
                "clusterName": "west", "clusterRegion": "north",
                "estimator": {"enabled": true, "featureGates": "ResourceQuotaEstimate=true"}}}),
            json!({"chart": "deploy/agent-chart", "release": "quiet", "values": {
                "fullnameOverride": "quiet", "clusterName": "west", "reportSecrets": ["None"],
                "certRotation": {"enabled": false}}}),
            json!({"chart": "deploy/chart", "release": "crowsnest", "values": {
                "replicas": 3, "postgres": {"mode": "included"}, "etcd": {"replicas": 3}}}),
        ];
        let Some(output) = render(&cases)? else { return Ok(None) };
        let rendered: Vec<Rendered> = serde_json::from_slice(&output)?;
        let mut charts = Vec::new();
        for one in rendered {
            if let Some(error) = one.error {
                bail!("a chart does not render: {error}");
            }
            let mut objects = Vec::new();
            for text in one.manifests.values() {
                objects.extend(serde_saphyr::from_multiple::<Option<Value>>(text)?.into_iter().flatten());
            }
            charts.push(objects);
        }
        let [agent, quiet, all] = <[Vec<Value>; 3]>::try_from(charts).map_err(|_| anyhow::anyhow!("three charts"))?;
        // All that has to do with rights, and the list of what the Job makes.
        let credentials = all.into_iter().filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind == "ServiceAccount" || kind.contains("Role") || object.pointer("/data/credentials.yaml").is_some()
        });
        let credentials = credentials.collect();
        Ok(Some(Self { agent, quiet, credentials }))
    }
}

/// As kubectl takes them.
pub fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// The arguments of a Deployment's container.
pub fn arguments(deployment: &Value) -> Result<Vec<String>> {
    let args = deployment.pointer("/spec/template/spec/containers/0/args").context("a Deployment without arguments")?;
    Ok(serde_json::from_value(args.clone())?)
}

pub fn deployment<'a>(objects: &'a [Value], name: &str) -> Result<&'a Value> {
    let found = objects.iter().find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == name);
    found.with_context(|| format!("no Deployment {name}"))
}

/// An agent's arguments here: where its kubeconfigs are, without ports that others have; and its certificate is due.
pub fn agent(args: &[String], control_plane: &Path, member: &Path) -> Vec<String> {
    const ELSEWHERE: [&str; 4] = [
        "--control-plane-kubeconfig=",
        "--health-probe-bind-address=",
        "--metrics-bind-address=",
        "--cert-rotation-remaining-time-threshold=",
    ];
    let same = args.iter().filter(|arg| !ELSEWHERE.iter().any(|flag| arg.starts_with(flag)));
    let mut here: Vec<String> = same.cloned().collect();
    here.push(format!("--control-plane-kubeconfig={}", control_plane.display()));
    here.push(format!("--kubeconfig={}", member.display()));
    if here.iter().any(|arg| arg.starts_with("--enable-cert-rotation")) {
        here.push(DUE.to_owned());
    }
    here
}

/// The same of an estimator.
pub fn estimator(args: &[String], member: &Path, port: u16) -> Vec<String> {
    let mut here = args.to_vec();
    here.push(format!("--kubeconfig={}", member.display()));
    here.push(format!("--server-port={port}"));
    here.extend(["--health-probe-bind-address=0", "--metrics-bind-address=0"].map(str::to_owned));
    here
}
