//! Acts as the kubelet: runs the pods of the charts and of `register` as local processes, with their service accounts
//! and arguments.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crowsnest_tests::render_charts;

/// Threshold with which a certificate of any age is due for renewal.
const RENEWAL_DUE_FLAG: &str = "--cert-rotation-remaining-time-threshold=0.9999999999";

/// Objects that the charts install.
pub struct Charts {
    /// Objects of an agent that reports the member's tokens and renews its certificate, and of an estimator.
    pub agent: Vec<Value>,
    /// Objects of an agent that reports no tokens.
    pub agent_without_tokens: Vec<Value>,
    /// All accounts and permissions of an installation, and the list of credentials that the Job creates.
    pub credentials: Vec<Value>,
}

#[derive(Deserialize)]
struct RenderedChart {
    #[serde(default)]
    manifests: BTreeMap<String, String>,
    error: Option<String>,
}

impl Charts {
    /// `None` if Helm is not installed.
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
        let Some(output) = render_charts(&cases)? else { return Ok(None) };
        let rendered: Vec<RenderedChart> = serde_json::from_slice(&output)?;
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
        let [agent, agent_without_tokens, all] =
            <[Vec<Value>; 3]>::try_from(charts).map_err(|_| anyhow::anyhow!("expected three rendered charts"))?;
        // ServiceAccounts and RBAC objects, and the list of credentials that the Job creates.
        let credentials = all.into_iter().filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind == "ServiceAccount" || kind.contains("Role") || object.pointer("/data/credentials.yaml").is_some()
        });
        let credentials = credentials.collect();
        Ok(Some(Self { agent, agent_without_tokens, credentials }))
    }
}

/// A list of objects for kubectl.
pub fn object_list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// The arguments of a Deployment's container.
pub fn container_arguments(deployment: &Value) -> Result<Vec<String>> {
    let args =
        deployment.pointer("/spec/template/spec/containers/0/args").context("the Deployment has no arguments")?;
    Ok(serde_json::from_value(args.clone())?)
}

pub fn find_deployment<'a>(objects: &'a [Value], name: &str) -> Result<&'a Value> {
    let found = objects.iter().find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == name);
    found.with_context(|| format!("no Deployment {name}"))
}

/// Arguments of an agent as a local process: with local kubeconfigs, without ports that conflict, and with a
/// certificate that is due for renewal.
pub fn agent_arguments(args: &[String], control_plane: &Path, member: &Path) -> Vec<String> {
    const REPLACED_FLAGS: [&str; 4] = [
        "--control-plane-kubeconfig=",
        "--health-probe-bind-address=",
        "--metrics-bind-address=",
        "--cert-rotation-remaining-time-threshold=",
    ];
    let kept = args.iter().filter(|arg| !REPLACED_FLAGS.iter().any(|flag| arg.starts_with(flag)));
    let mut local: Vec<String> = kept.cloned().collect();
    local.push(format!("--control-plane-kubeconfig={}", control_plane.display()));
    local.push(format!("--kubeconfig={}", member.display()));
    if local.iter().any(|arg| arg.starts_with("--enable-cert-rotation")) {
        local.push(RENEWAL_DUE_FLAG.to_owned());
    }
    local
}

/// Arguments of an estimator as a local process.
pub fn estimator_arguments(args: &[String], member: &Path, port: u16) -> Vec<String> {
    let mut local = args.to_vec();
    local.push(format!("--kubeconfig={}", member.display()));
    local.push(format!("--server-port={port}"));
    local.extend(["--health-probe-bind-address=0", "--metrics-bind-address=0"].map(str::to_owned));
    local
}
