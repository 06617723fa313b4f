//! `crowsnest up` with an OpenSearch server: searches use it, and responses report when it is unavailable. Objects are
//! exported to it for dashboards made for Karmada.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_api::search::ResourceRegistry;
use crowsnest_tests::{Fleet, in_ci, wait_for};
use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// A search engine started by `.ci/engines`; it is stopped when dropped.
struct EngineNode {
    port: u16,
    folder: tempfile::TempDir,
}

fn engines_script() -> Command {
    Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.ci/engines"))
}

impl EngineNode {
    /// `None` if the engine is not built outside CI.
    fn start(name: &str) -> Result<Option<Self>> {
        if !engines_script().args(["has", name]).status()?.success() {
            ensure!(!in_ci(), "{name} is not built: run .ci/engines build {name}");
            writeln!(std::io::stderr(), "skipped: {name} is not built (.ci/engines build {name})")?;
            return Ok(None);
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let node = Self { port, folder: tempfile::tempdir()? };
        node.run(name)?;
        Ok(Some(node))
    }

    fn run(&self, name: &str) -> Result<()> {
        let mut start = engines_script();
        start.args(["start", name, &self.port.to_string()]).arg(self.folder.path());
        start.env("CROWSNEST_ENGINE_OWNER", std::process::id().to_string());
        ensure!(start.status()?.success(), "{name} did not start");
        Ok(())
    }

    /// Status and JSON of a response.
    fn send(&self, method: &str, path: &str) -> Result<(u16, Value)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        let (head, body) = response.split_once("\r\n\r\n").context("incomplete response")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        Ok((status, serde_json::from_str(body)?))
    }

    /// Documents of Karmada's indices.
    fn exported_documents(&self) -> Result<Vec<Value>> {
        self.send("POST", "/kubernetes-*/_refresh")?;
        let (_, response) = self.send("GET", "/kubernetes-*/_search?size=1000")?;
        Ok(response["hits"]["hits"].as_array().cloned().unwrap_or_default())
    }

    fn stop(folder: &Path) -> Result<()> {
        ensure!(engines_script().arg("stop").arg(folder).status()?.success(), "the node did not stop");
        Ok(())
    }
}

impl Drop for EngineNode {
    fn drop(&mut self) {
        drop(Self::stop(self.folder.path()));
    }
}

fn wait_until_nodes_are_found(fleet: &Fleet) -> Result<()> {
    wait_for("the nodes to be found", || {
        let output = fleet.crowsnest(&["search", "kind:node", "-o", "name"])?;
        Ok(output.code == Some(0) && output.out.contains("member1/nodes/"))
    })
}

/// Sends a request to the search engine with curl; returns the response.
fn query_engine(url: &str, options: &[&str]) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["--noproxy", "*", "--silent", "--fail", "-H", "Content-Type: application/json"]);
    let response = curl.args(options).arg(url).output()?;
    ensure!(response.status.success(), "{url}: {response:?}");
    Ok(serde_json::from_slice(&response.stdout)?)
}

const DASHBOARDS: &str = include_str!("../../docs/DASHBOARDS.md");

/// Objects of the control plane, where no kubelet changes them, that match every query of docs/DASHBOARDS.md.
async fn create_dashboard_objects(client: kube::Client) -> Result<()> {
    let create = PostParams::default();
    let pod = json!({"metadata": {"name": "web-1", "labels": {"app": "web"}}, "spec": {"containers": [{"name": "web",
        "image": "registry.example.com/web:latest", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}]}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&create, &serde_json::from_value(pod)?).await?;
    let waiting = json!({"status": {"phase": "Running", "containerStatuses": [{"name": "web", "ready": false,
        "image": "registry.example.com/web:latest", "imageID": "", "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}});
    pods.patch_status("web-1", &PatchParams::default(), &Patch::Merge(waiting)).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&create, &serde_json::from_value(json!({"metadata": {"name": "down"}}))?).await?;
    let down = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}});
    nodes.patch_status("down", &PatchParams::default(), &Patch::Strategic(down)).await?;
    let event = json!({"metadata": {"name": "web-1.1"}, "type": "Warning", "reason": "BackOff",
        "message": "Back-off restarting failed container web", "source": {"component": "kubelet"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web-1"}});
    let events: Api<Event> = Api::namespaced(client, "default");
    events.create(&create, &serde_json::from_value(event)?).await?;
    Ok(())
}

/// True if a response contains hits, the requested fields, and a count in each aggregation.
fn has_results(response: &Value) -> bool {
    fn counts(aggregation: &Value) -> bool {
        match (aggregation["buckets"].as_array(), aggregation["value"].as_f64()) {
            (Some(buckets), _) => {
                let nested = |bucket: &Value| {
                    let parts = bucket.as_object().into_iter().flat_map(|parts| parts.values());
                    parts.filter(|part| part.is_object()).all(counts)
                };
                buckets.iter().any(nested)
            }
            (None, value) => value.is_some_and(|value| value > 0.0),
        }
    }
    let mut aggregations = response["aggregations"].as_object().into_iter().flat_map(|all| all.values());
    let fields = response["hits"]["hits"].as_array().into_iter().flatten().filter_map(|hit| hit.get("fields"));
    let has_hits = response["hits"]["hits"].as_array().is_some_and(|hits| !hits.is_empty());
    response["hits"]["total"]["value"].as_u64() > Some(0)
        && aggregations.all(counts)
        && (!has_hits || fields.count() > 0)
}

/// Checks that each query of docs/DASHBOARDS.md has results.
fn check_documented_queries(fleet: &Fleet, url: &str) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async { create_dashboard_objects(client(fleet).await?).await })?;
    let blocks = DASHBOARDS.split("```json\n").skip(1).filter_map(|block| block.split("```").next());
    let queries: Vec<&str> = blocks.filter(|block| block.contains("\"size\"")).collect();
    ensure!(queries.len() == 10, "{} queries", queries.len());
    for query in queries {
        wait_for(&format!("results of {query}"), || {
            let response = query_engine(&format!("{url}/crowsnest/_search"), &["-d", query])?;
            ensure!(response["_shards"]["failed"] == 0 && response["timed_out"] == false, "{query}: {response}");
            Ok(has_results(&response))
        })?;
    }
    Ok(())
}

/// Checks that `crowsnest index verify` detects a document that was deleted from the engine.
fn check_verification_and_rebuild(fleet: &Fleet, url: &str) -> Result<()> {
    let is_equal = || {
        let output = fleet.crowsnest(&["index", "verify", "--samples", "100"])?;
        Ok(output.code == Some(0) && output.out.ends_with("equal\n"))
    };
    wait_for("the index to equal the cache", is_equal)?;
    let status = fleet.crowsnest(&["index", "status"])?;
    ensure!(status.out.contains("opensearch: ") && status.out.contains("index crowsnest-000001"), "{status:?}");

    let node =
        query_engine(&format!("{url}/crowsnest/_search"), &["-d", r#"{"query": {"term": {"w.kind": "node"}}}"#])?;
    let id = node["hits"]["hits"][0]["_id"].as_str().context("the index contains no node")?;
    query_engine(&format!("{url}/crowsnest/_doc/{id}?refresh=true"), &["-X", "DELETE"])?;
    let output = fleet.crowsnest(&["index", "verify", "--samples", "100"])?;
    ensure!(output.code == Some(1) && output.out.contains("differs: member1 Node: "), "{output:?}");

    let output = fleet.crowsnest(&["index", "rebuild", "--wait"])?;
    ensure!(output.code == Some(0) && output.out.contains("index crowsnest-000002"), "{output:?}");
    wait_for("the new index to be equal", is_equal)
}

#[test]
#[ignore = "starts search engines: run .ci/engines test"]
fn a_fleet_is_searched_in_opensearch() -> Result<()> {
    let Some(node) = EngineNode::start("opensearch-2")? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let url = format!("http://127.0.0.1:{}", node.port);
    let backend = ["--members", "1", "--index-backend", "opensearch", "--opensearch-url", &url];
    let fleet = Fleet::start(&dir.path().join("data"), &backend)?;
    wait_until_nodes_are_found(&fleet)?;
    ensure!(!dir.path().join("data/cache/text").exists(), "the text index is not used");
    check_verification_and_rebuild(&fleet, &url)?;
    check_documented_queries(&fleet, &url)?;

    EngineNode::stop(node.folder.path())?;
    let output = fleet.crowsnest(&["search", "kind:node", "-o", "name"])?;
    ensure!(output.out.is_empty() && output.err.contains("the search engine does not respond"), "{output:?}");
    // Lists are served without the engine.
    let output = fleet.crowsnest(&["get", "nodes"])?;
    ensure!(output.code == Some(0) && output.out.contains("member1"), "{output:?}");

    node.run("opensearch-2")?;
    wait_until_nodes_are_found(&fleet)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Names of the clusters in the annotations of exported documents.
fn clusters(documents: &[Value]) -> BTreeSet<&str> {
    let annotations = documents.iter().map(|hit| &hit["_source"]["metadata"]["annotations"]);
    annotations.filter_map(|annotations| annotations["resource.karmada.io/cached-from-cluster"].as_str()).collect()
}

async fn client(fleet: &Fleet) -> Result<kube::Client> {
    let file = kube::config::Kubeconfig::read_from(fleet.kubeconfig("cp"))?;
    let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

async fn registries(fleet: &Fleet) -> Result<Api<ResourceRegistry>> {
    Ok(Api::all(client(fleet).await?))
}

/// A ResourceRegistry for Nodes and Namespaces of these clusters.
fn registry(addresses: &[&str], clusters: &[&str]) -> Value {
    json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "dashboards"},
        "spec": {"targetCluster": {"clusterNames": clusters},
            "resourceSelectors": [{"apiVersion": "v1", "kind": "Node"}, {"apiVersion": "v1", "kind": "Namespace"}],
            "backendStore": {"openSearch": {"addresses": addresses, "secretRef": {"namespace": "", "name": ""}}}}})
}

/// Type, status and reason of the conditions.
async fn conditions(registries: &Api<ResourceRegistry>) -> Result<Vec<String>> {
    let conditions = registries.get("dashboards").await?.status.conditions;
    Ok(conditions
        .iter()
        .map(|condition| format!("{}={} {}", condition.type_, condition.status, condition.reason))
        .collect())
}

#[test]
#[ignore = "starts search engines: run .ci/engines test"]
fn objects_are_exported_in_karmadas_layout() -> Result<()> {
    let Some(node) = EngineNode::start("opensearch-2")? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let runtime = tokio::runtime::Runtime::new()?;
    let registries = runtime.block_on(registries(&fleet))?;
    let current_conditions = || runtime.block_on(conditions(&registries));
    let (url, other_url) = (format!("http://127.0.0.1:{}", node.port), format!("http://localhost:{}", node.port));
    let synced_conditions = ["Connected=True EngineAnswers", "Synced=True UpToDate"];

    let new_registry = serde_json::from_value(registry(&[&url], &["member1"]))?;
    runtime.block_on(registries.create(&PostParams::default(), &new_registry))?;
    wait_for("documents of member1", || {
        Ok(clusters(&node.exported_documents()?) == BTreeSet::from(["member1"])
            && current_conditions()? == synced_conditions)
    })?;
    let documents = node.exported_documents()?;
    let document = documents.iter().find(|hit| hit["_index"] == "kubernetes-node").context("no node is exported")?;
    ensure!(document["_source"]["spec"].is_string() && document["_source"]["status"].is_string(), "{document}");
    let fields: Vec<&String> = document["_source"]["metadata"].as_object().context("no metadata")?.keys().collect();
    ensure!(
        fields == ["annotations", "creationTimestamp", "deletionTimestamp", "labels", "name", "namespace"],
        "{fields:?}"
    );

    // More clusters, and the same engine at another address: the export reconnects, and all documents stay.
    let patch = |change: Value| {
        let (params, change) = (PatchParams::default(), Patch::Merge(change));
        runtime.block_on(registries.patch("dashboards", &params, &change))
    };
    patch(registry(&[&other_url], &["member1", "member2"]))?;
    let both = BTreeSet::from(["member1", "member2"]);
    wait_for("documents of both members", || {
        Ok(clusters(&node.exported_documents()?) == both && current_conditions()? == synced_conditions)
    })?;

    // While the Secret does not exist, the documents stay.
    let mut with_secret = registry(&[&other_url], &["member1", "member2"]);
    with_secret["spec"]["backendStore"]["openSearch"]["secretRef"] = json!({"namespace": "default", "name": "engine"});
    patch(with_secret)?;
    wait_for("the conditions to report the missing Secret", || {
        Ok(current_conditions()? == ["Connected=False SecretUnreadable", "Synced=False SecretUnreadable"])
    })?;
    ensure!(clusters(&node.exported_documents()?) == both);
    let secrets: Api<Secret> = Api::namespaced(registries.clone().into_client(), "default");
    let secret = json!({"metadata": {"name": "engine"}, "stringData": {"username": "crow", "password": "nest"}});
    runtime.block_on(secrets.create(&PostParams::default(), &serde_json::from_value(secret)?))?;
    wait_for("the Secret to be used", || Ok(current_conditions()? == synced_conditions))?;
    ensure!(clusters(&node.exported_documents()?) == both);

    // The export resumes after a restart, and metrics report it.
    ensure!(fleet.stop()?.success());
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let registries = runtime.block_on(self::registries(&fleet))?;
    let current_conditions = || runtime.block_on(conditions(&registries));
    let metrics = || -> Result<String> {
        let request = http::Request::get("/apis/search.crowsnest.io/v1alpha1/metrics").body(Vec::new())?;
        Ok(runtime.block_on(registries.clone().into_client().request_text(request))?)
    };
    let connected = "crowsnest_backend_store_connected{registry=\"dashboards\"} 1";
    wait_for("the metrics", || Ok(metrics()?.contains(connected)))?;
    wait_for("documents of both members after the restart", || {
        Ok(clusters(&node.exported_documents()?) == both && current_conditions()? == synced_conditions)
    })?;
    let patch = |change: Value| {
        let (params, change) = (PatchParams::default(), Patch::Merge(change));
        runtime.block_on(registries.patch("dashboards", &params, &change))
    };

    // If the new engine does not respond, the conditions state this. The documents in the previous engine are deleted.
    patch(registry(&["http://127.0.0.1:9"], &["member1"]))?;
    wait_for("the conditions to report the error", || {
        Ok(current_conditions()? == ["Connected=False EngineUnreachable", "Synced=False EngineUnreachable"])
    })?;
    wait_for("the documents in the previous engine to be deleted", || Ok(node.exported_documents()?.is_empty()))?;
    patch(registry(&[&url], &["member2"]))?;
    wait_for("documents of member2", || {
        Ok(clusters(&node.exported_documents()?) == BTreeSet::from(["member2"])
            && current_conditions()? == synced_conditions)
    })?;
    runtime.block_on(registries.delete("dashboards", &DeleteParams::default()))?;
    wait_for("all documents to be deleted", || Ok(node.exported_documents()?.is_empty()))?;
    wait_for("the aliases to be removed", || Ok(node.send("GET", "/_alias/kubernetes-*-crowsnest")?.1 == json!({})))?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
