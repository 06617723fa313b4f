//! Objects that benchmarks of propagation create on the control plane: a namespace, a policy and Deployments.

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde_json::{Value, json};

/// Namespace of all templates.
pub(super) const NAMESPACE: &str = "bench";

pub(super) async fn create(client: &Client, path: &str, object: &Value) -> anyhow::Result<()> {
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(object)?)?;
    client.request::<Value>(request).await.with_context(|| format!("cannot create at {path}"))?;
    Ok(())
}

pub(super) async fn create_namespace(client: &Client) -> anyhow::Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    create(client, "/api/v1/namespaces", &namespace).await
}

/// Path of the policies of [`NAMESPACE`].
pub(super) fn policies_path() -> String {
    format!("/apis/policy.karmada.io/v1alpha1/namespaces/{NAMESPACE}/propagationpolicies")
}

/// Path of the Deployments of [`NAMESPACE`].
pub(super) fn deployments_path() -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
}

/// Creates a policy that propagates all objects of a kind in [`NAMESPACE`].
pub(super) async fn create_policy(
    client: &Client,
    api_version: &str,
    kind: &str,
    placement: &Value,
) -> anyhow::Result<()> {
    let policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": "all", "labels": {"propagationpolicy.karmada.io/permanent-id": "all"}},
        "spec": {"resourceSelectors": [{"apiVersion": api_version, "kind": kind}], "placement": placement},
    });
    create(client, &policies_path(), &policy).await
}

/// Creates a policy that divides the replicas of each Deployment over all clusters. `preference` is `Aggregated` or
/// `Weighted`.
pub(super) async fn create_dividing_policy(client: &Client, preference: &str) -> anyhow::Result<()> {
    let placement = json!({
        "clusterAffinity": {},
        "replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": preference},
    });
    create_policy(client, "apps/v1", "Deployment", &placement).await
}

/// Size of a set of Deployments.
pub(super) struct Deployments {
    pub count: usize,
    /// Replicas of each Deployment.
    pub replicas: usize,
    /// Maximum number of concurrent creates.
    pub max_concurrent_creates: usize,
}

impl Deployments {
    pub(super) async fn create(&self, client: &Client) -> anyhow::Result<()> {
        let path = deployments_path();
        let requests = (0..self.count).map(|number| {
            let path = &path;
            async move { create(client, path, &deployment(number, self.replicas)).await }
        });
        stream::iter(requests).buffer_unordered(self.max_concurrent_creates).try_collect::<()>().await
    }
}

fn deployment(number: usize, replicas: usize) -> Value {
    let name = format!("web-{number}");
    let app = json!({"app": name});
    let container = json!({"name": "web", "image": "nginx:1.27", "resources": {"requests": {"cpu": "1m"}}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": app},
            "template": {"metadata": {"labels": app}, "spec": {"containers": [container]}}},
    })
}
