//! The corpus on the real binary: its clusters join as members, which serve the first versions of their objects, and
//! then their changes one by one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use crowsnest_tests::{Fleet, wait_for};
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::clock::Clock;
use super::fixtures::{Cluster, Corpus, Entry, name_of};
use super::member::{Change, Member, Resource, version};

const ROOT: &str = "/apis/search.crowsnest.io/v1alpha1";
/// The account of the queries. It may read the members' objects, not the control plane's own.
const READER: &str = "system:serviceaccount:default:corpus";
/// Kinds served without objects, because queries name them.
const EMPTY_KINDS: [(&str, &str); 2] =
    [("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"), ("apiextensions.k8s.io/v1", "CustomResourceDefinition")];

/// The running binary and the members.
pub struct TestEnv {
    pub fleet: Fleet,
    pub clock: Clock,
    /// The account's token.
    pub token: String,
    pub kubeconfig: PathBuf,
    admin: kube::Client,
    client: kube::Client,
    members: BTreeMap<String, Member>,
    runtime: Runtime,
}

impl TestEnv {
    /// Starts the binary without members, and creates the account.
    pub fn start(corpus: &Corpus, folder: &Path) -> Result<Self> {
        let runtime = Runtime::new()?;
        let clock = Clock::new(now(), corpus.cases.iter().map(|case| &case.query))?;
        let fleet = Fleet::start(&folder.join("data"), &["--no-members"])?;
        let cp = fleet.kubeconfig("cp");
        let admin = runtime.block_on(client(&cp))?;
        let token = runtime.block_on(create_reader(&admin))?;
        let kubeconfig = folder.join("reader.kubeconfig");
        std::fs::write(&kubeconfig, with_token(&std::fs::read_to_string(&cp)?, &token)?)?;
        let client = runtime.block_on(client(&kubeconfig))?;
        Ok(Self { fleet, clock, token, kubeconfig, admin, client, members: BTreeMap::new(), runtime })
    }

    /// Joins the members and applies all changes.
    pub fn replay(&mut self, corpus: &Corpus) -> Result<()> {
        // Members join one after another, because equal hits are ordered by the time at which the cache first received
        // them.
        for cluster in &corpus.clusters {
            self.join(corpus, cluster).with_context(|| format!("cannot join {}", cluster.name))?;
        }
        self.apply_changes(corpus)?;
        let stale = corpus.clusters.iter().filter(|cluster| cluster.stale).map(|cluster| cluster.name.as_str());
        let stale: Vec<&str> = stale.collect();
        for name in &stale {
            self.members.get(*name).context("unknown member")?.stop_serving();
        }
        wait_for("the cache to be complete, and only the stale clusters to be skipped", || {
            let response = self.query("", None)?;
            Ok(response["behind"] == 0 && skipped_clusters(&response) == stale)
        })
    }

    fn join(&mut self, corpus: &Corpus, cluster: &Cluster) -> Result<()> {
        let resources = resources(corpus)?;
        let (mut initial_objects, changes) = self.state_of(corpus, &cluster.name)?;
        let count = initial_objects.len();
        initial_objects.extend(reader_grants(corpus, &resources));
        let member = self.runtime.block_on(Member::start(resources, initial_objects, changes))?;
        let reference = json!({"namespace": "karmada-cluster", "name": cluster.name});
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": reference, "stringData": {"token": "any"}});
        let Cluster { name, region, zones, provider, labels, .. } = cluster;
        let joined = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "labels": labels},
            "spec": {"syncMode": "Push", "apiEndpoint": format!("https://127.0.0.1:{}", member.port),
                "insecureSkipTLSVerification": true,
                "secretRef": reference, "region": region, "zones": zones, "provider": provider}});
        self.members.insert(name.clone(), member);
        self.runtime.block_on(async {
            post(&self.admin, "/api/v1/namespaces/karmada-cluster/secrets", &secret).await?;
            post(&self.admin, "/apis/cluster.karmada.io/v1alpha1/clusters", &joined).await
        })?;
        wait_for(&format!("{name} to be read"), || {
            let response = self.query(&format!("cluster:{name}"), None)?;
            Ok(response["total"] == count && skipped_clusters(&response).is_empty())
        })
    }

    /// The first objects and the changes of a cluster, with times relative to now.
    fn state_of(&self, corpus: &Corpus, cluster: &str) -> Result<(Vec<Value>, Vec<Change>)> {
        let (mut initial_objects, mut changes): (Vec<Value>, Vec<Change>) = (Vec::new(), Vec::new());
        for Entry { at, object, deleted, .. } in corpus.entries.iter().filter(|entry| entry.cluster == cluster) {
            let before = || initial_objects.iter().chain(changes.iter().map(|change| &change.object));
            let last = |name: &str| before().rfind(|object| name_of(object) == name);
            let change = match (object, deleted) {
                (Some(object), None) => {
                    let mut object = object.clone();
                    self.clock.shift_times(&mut object)?;
                    let event_type = if last(&name_of(&object)).is_some() { "MODIFIED" } else { "ADDED" };
                    Change { event_type, object }
                }
                (None, Some(name)) => {
                    let mut object = last(name).with_context(|| format!("{name} did not exist before"))?.clone();
                    let newest = before().map(version).max().unwrap_or_default();
                    object["metadata"]["resourceVersion"] = (newest + 1).to_string().into();
                    Change { event_type: "DELETED", object }
                }
                _ => anyhow::bail!("an entry must have either an object or a deletion"),
            };
            match at {
                None => initial_objects.push(change.object),
                Some(_) => changes.push(change),
            }
        }
        Ok((initial_objects, changes))
    }

    /// Applies all changes, each after the cache has received the previous one, and at times that queries can
    /// distinguish.
    fn apply_changes(&mut self, corpus: &Corpus) -> Result<()> {
        let start: Timestamp = "2026-09-20T00:00:00Z".parse()?;
        self.clock.record(start.as_second(), now())?;
        for entry in &corpus.entries {
            let Some(at) = entry.at else { continue };
            let forbidden = self.clock.indistinguishable_second(at.as_second());
            wait_for("the next second", || Ok(forbidden.is_none_or(|forbidden| now() > forbidden)))?;
            let member = self.members.get(&entry.cluster).context("unknown member")?;
            let (change, resource) = member.apply_next_change()?;
            let (metadata, deleted) = (&change.object["metadata"], change.event_type == "DELETED");
            let text = |field: &str| metadata[field].as_str().unwrap_or_default();
            let path = format!(
                "history?cluster={}&apiVersion={}&resource={}&namespace={}&name={}",
                entry.cluster,
                resource.api_version,
                resource.plural,
                text("namespace"),
                text("name")
            );
            wait_for(&format!("the cache to receive {path}"), || {
                // New objects are not searchable before this.
                let Ok(history) = self.get(&path) else { return Ok(false) };
                let newest = &history["versions"][0];
                let is_newest = newest["resourceVersion"] == metadata["resourceVersion"];
                Ok(if deleted { newest["deleted"] == true } else { is_newest })
            })?;
            self.clock.record(at.as_second(), now())?;
        }
        Ok(())
    }

    /// Sends a request to the search API with the account.
    pub fn get(&self, path: &str) -> Result<Value> {
        let request = http::Request::get(format!("{ROOT}/{path}")).body(Vec::new())?;
        self.runtime.block_on(self.client.request(request)).with_context(|| path.to_owned())
    }

    pub fn query(&self, query: &str, summed_columns: Option<&str>) -> Result<Value> {
        let sums = summed_columns.map(|columns| format!("&sums={columns}")).unwrap_or_default();
        self.get(&format!("query?limit=1000&facets=kind{sums}&q={}", utf8_percent_encode(query, NON_ALPHANUMERIC)))
    }

    /// A query of the corpus with times relative to now.
    pub fn shift_query(&self, query: &str) -> Result<String> {
        self.clock.shift_query(query, now())
    }
}

fn now() -> i64 {
    Timestamp::now().as_second()
}

/// Clusters that a response lists as skipped or lagging.
fn skipped_clusters(response: &Value) -> Vec<&str> {
    response["skipped"].as_array().into_iter().flatten().filter_map(|skipped| skipped["cluster"].as_str()).collect()
}

async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

async fn post(client: &kube::Client, path: &str, body: &Value) -> Result<Value> {
    let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
    client.request(request.body(serde_json::to_vec(body)?)?).await.with_context(|| format!("POST {path}"))
}

/// Creates the account; returns its token.
async fn create_reader(admin: &kube::Client) -> Result<String> {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    post(admin, accounts, &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "corpus"}}))
        .await?;
    // The account's permissions in members are effective only with access to clusters/proxy in the control plane.
    let (group, name) = ("rbac.authorization.k8s.io", "corpus-reaches-members");
    let rule = json!({"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "verbs": ["get"]});
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "corpus"}]});
    for (resource, object) in [("clusterroles", &role), ("clusterrolebindings", &binding)] {
        post(admin, &format!("/apis/{group}/v1/{resource}"), object).await?;
    }
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let response = post(admin, &format!("{accounts}/corpus/token"), &request).await?;
    Ok(response["status"]["token"].as_str().context("the response has no token")?.to_owned())
}

/// A kubeconfig with this token as its only credential.
fn with_token(kubeconfig: &str, token: &str) -> Result<String> {
    let mut kubeconfig: Value = serde_saphyr::from_str(kubeconfig)?;
    for user in kubeconfig["users"].as_array_mut().into_iter().flatten() {
        user["user"] = json!({"token": token});
    }
    Ok(kubeconfig.to_string())
}

/// Kinds that every member serves.
fn resources(corpus: &Corpus) -> Result<Vec<Resource>> {
    let objects = || corpus.entries.iter().filter_map(|entry| entry.object.as_ref());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let resource = |(kind, names): (&String, &Vec<String>)| {
        let is_kind = |name: &str| name.to_lowercase() == *kind;
        let objects_of_kind = || objects().filter(|object| object["kind"].as_str().is_some_and(is_kind));
        let defined = objects_of_kind().next().map(|object| (text(&object["apiVersion"]), text(&object["kind"])));
        let empty = EMPTY_KINDS.iter().find(|(_, kind)| is_kind(kind));
        let (api_version, kind) = defined
            .or_else(|| empty.map(|(api_version, kind)| ((*api_version).to_owned(), (*kind).to_owned())))
            .with_context(|| format!("no object defines {kind}"))?;
        let plural = names.iter().max_by_key(|name| name.len()).context("no plural")?.clone();
        let short_names = names.iter().filter(|name| **name != plural).cloned().collect();
        let namespaced = objects_of_kind().any(|object| object["metadata"]["namespace"].is_string());
        Ok(Resource { api_version, kind, plural, short_names, namespaced })
    };
    corpus.kinds.iter().map(resource).collect()
}

/// RBAC objects that let the account read the corpus in a member, except for other RBAC objects.
fn reader_grants(corpus: &Corpus, resources: &[Resource]) -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    let names_of = |kind: &str| {
        let objects = corpus.entries.iter().filter_map(|entry| entry.object.as_ref());
        let names = objects.filter(|object| object["kind"] == kind).map(|object| object["metadata"]["name"].clone());
        names.collect::<Vec<_>>()
    };
    let rules = resources.iter().filter(|resource| resource.kind != "ClusterRoleBinding").map(|resource| {
        let mut rule =
            json!({"apiGroups": [resource.group()], "resources": [resource.plural], "verbs": ["get", "list"]});
        if resource.kind == "ClusterRole" {
            rule["resourceNames"] = names_of("ClusterRole").into();
        }
        rule
    });
    let metadata = |uid: &str| json!({"name": "corpus-reader", "uid": uid, "resourceVersion": "1"});
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole",
        "metadata": metadata("c0000001-0000-4000-8000-000000000001"), "rules": rules.collect::<Vec<_>>()});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
        "metadata": metadata("c0000002-0000-4000-8000-000000000002"),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "corpus-reader"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": READER}]});
    [role, binding]
}
