//! Responses must not disclose information: a member's objects to the control plane's account with the same name as the
//! member's, names of objects to a user with `get` only, clusters to a user without permissions, Secret values to any user,
//! and APIs to unauthenticated clients.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const MEMBER: &str = include_str!("disclosure/member.yaml");
const TENANT: &str = include_str!("disclosure/tenant.yaml");
const CLUSTER_ACCESS: &str = include_str!("disclosure/reach.yaml");
const SECRET_COPIES: &str = include_str!("disclosure/copies.yaml");
const SEARCH: &str = "/apis/search.crowsnest.io/v1alpha1";
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1";
/// Text in the restricted object and nowhere else.
const RESTRICTED_NAME: &str = "restricted-7d1c";
const RESTRICTED_OBJECT: &str =
    "cluster=member1&apiVersion=v1&resource=configmaps&namespace=vault&name=restricted-7d1c";
/// Password of the Secret that is copied.
const MARKER: &str = "marker-4b7e-copy";

fn percent_encode(query: &str) -> String {
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    query.bytes().map(encode).collect()
}

fn path(resource: &str, query: &str, parameters: &str) -> String {
    format!("{SEARCH}/{resource}?q={}{parameters}", percent_encode(query))
}

fn get_raw(kubectl: &Kubectl, path: &str) -> Result<String> {
    kubectl.run_ok(&["get", "--raw", path], "")
}

fn total(kubectl: &Kubectl, query: &str) -> Result<u64> {
    let response: Value = serde_json::from_str(&get_raw(kubectl, &path("count", query, ""))?)?;
    response["total"].as_u64().context("the response has no total")
}

/// Writes a kubeconfig for the same server with a service account's token only.
fn write_account_kubeconfig(kubectl: &Kubectl, namespace: &str, name: &str) -> Result<PathBuf> {
    let token = kubectl.run_ok(&["create", "token", name, "-n", namespace], "")?;
    let mut config: Value = serde_json::from_str(&kubectl.run_ok(&["config", "view", "--raw", "-o", "json"], "")?)?;
    for user in config["users"].as_array_mut().into_iter().flatten() {
        user["user"] = json!({"token": token.trim()});
    }
    let path = kubectl.folder.join(format!("{name}.kubeconfig"));
    fs::write(&path, config.to_string())?;
    Ok(path)
}

/// A client in this process, since hundreds of kubectl processes would take most of the test's time.
struct Reader {
    client: kube::Client,
    runtime: Runtime,
}

/// Response to a reader, or its refusal.
struct Response {
    status: http::StatusCode,
    body: String,
    warnings: String,
}

impl Reader {
    /// A client with the credentials of a kubeconfig, which impersonates a user with these groups if one is given.
    fn new(kubeconfig: &Path, user: Option<&str>, groups: &[&str]) -> Result<Self> {
        crate::use_ring();
        let runtime = Runtime::new()?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig)?;
            let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            config.default_retry = false;
            if let Some(user) = user {
                config.auth_info.impersonate = Some(user.to_owned());
                config.auth_info.impersonate_groups = Some(groups.iter().map(|group| (*group).to_owned()).collect());
            }
            anyhow::Ok(kube::Client::try_from(config)?)
        })?;
        Ok(Self { client, runtime })
    }

    fn get(&self, path: &str) -> Result<Response> {
        let request = http::Request::get(path).header("accept", "application/json, */*");
        let request = request.body(kube::client::Body::empty())?;
        let response = self.runtime.block_on(async {
            let response = self.client.send(request).await?;
            let headers = response.headers().get_all(http::header::WARNING);
            let warnings = format!("{:?}", headers.iter().collect::<Vec<_>>());
            let status = response.status();
            let body = String::from_utf8(response.into_body().collect_bytes().await?.to_vec())?;
            anyhow::Ok(Response { status, body, warnings })
        });
        response.with_context(|| path.to_owned())
    }

    fn total(&self, query: &str) -> Result<u64> {
        let response = self.get(&path("count", query, ""))?;
        let count: Value = serde_json::from_str(&response.body).with_context(|| response.body.clone())?;
        count["total"].as_u64().context("the response has no total")
    }
}

/// Paths of requests that need no object name. None of them contains the restricted name.
fn request_paths() -> Vec<String> {
    let queries = ["", "kind:configmap", "label:team", "restricted-7d1x", "region:*", "zone:*", "provider:*"];
    let mut paths: Vec<String> =
        queries.iter().map(|query| path("query", query, "&facets=cluster,name,region")).collect();
    paths.extend(queries.iter().map(|query| path("explain", query, "")));
    paths.extend(["", "is:deleted", "during:now-1h..now"].map(|query| path("export", query, "")));
    let inputs =
        ["name:r", "name:", "label:r", "ann:r", "kind:", "ns:", "cluster:", "region:", "zone:", "provider:", "r"];
    paths.extend(inputs.map(|input| path("suggest", input, "")));
    paths.extend([path("count", "", ""), path("logs", "kind:pod", "&tail=1"), format!("{SEARCH}/status")]);
    paths.extend(["*", "configmap%20--%3E%20*"].map(|pattern| format!("{SEARCH}/paths?p={pattern}")));
    paths.extend(["journal?about=x", "journal?about=clusters"].map(|journal| format!("{SEARCH}/{journal}")));
    paths
}

/// Checks that no response to this user contains the restricted object's name, a cluster or a cluster's version.
fn ensure_nothing_is_disclosed(reader: &Reader, version: &str) -> Result<()> {
    for path in request_paths() {
        // Refusals are also checked.
        let response = reader.get(&path)?;
        let text = format!("{}{}", response.body, response.warnings);
        for word in [RESTRICTED_NAME, "member1", "member2", version] {
            ensure!(!text.contains(word), "{word} is disclosed at {path}: {text}");
        }
    }
    ensure!(reader.total(RESTRICTED_NAME)? == 0 && reader.total("cluster:member1")? == 0);
    for resource in ["history", "graph", "diff", "blastradius"] {
        let response = reader.get(&format!("{SEARCH}/{resource}?{RESTRICTED_OBJECT}"))?;
        let is_refused = response.status.is_client_error() && response.body.contains("not found");
        ensure!(is_refused, "{resource}: {} {}", response.status, response.body);
    }
    Ok(())
}

#[test]
fn responses_disclose_only_what_the_caller_may_read() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    member.run_ok(&["apply", "-f", "-"], MEMBER)?;
    member.run_ok(&["create", "-f", "-"], SECRET_COPIES)?;
    kubectl.run_ok(&["apply", "-f", "-"], TENANT)?;
    wait_for("the object to be found", || Ok(total(&kubectl, &format!("name:{RESTRICTED_NAME}"))? == 1))?;
    let version = kubectl.run_until(&["get", "--raw", &format!("{CLUSTERS}/clusters/member1")], |out| {
        out.contains("kubernetesVersion")
    })?;
    let version: Value = serde_json::from_str(&version)?;
    let version = version["status"]["kubernetesVersion"].as_str().context("the Cluster has no Kubernetes version")?;

    let admin = fleet.kubeconfig("cp");
    check_account_without_permissions(&admin, &kubectl, version)?;
    check_account_of_same_name(&admin, &kubectl, &member, version)?;
    check_get_without_list(&admin, &kubectl)?;
    check_discovery(&kubectl)?;
    check_secret_copies(&fleet, &kubectl)?;
    ensure!(fleet.stop()?.success());
    ensure_no_values_are_stored(&data)
}

/// An account without any grants learns nothing; a user who may list clusters learns only of clusters.
fn check_account_without_permissions(admin: &Path, kubectl: &Kubectl, version: &str) -> Result<()> {
    kubectl.run_ok(&["create", "serviceaccount", "stranger"], "")?;
    let account = write_account_kubeconfig(kubectl, "default", "stranger")?;
    ensure_nothing_is_disclosed(&Reader::new(&account, None, &[])?, version)?;
    let eve = Reader::new(admin, Some("eve"), &["system:authenticated"])?;
    ensure_nothing_is_disclosed(&eve, version)?;
    // A user who may list clusters sees them, but none of their objects.
    kubectl.run_ok(
        &["create", "clusterrole", "lists-clusters", "--verb=list", "--resource=clusters.cluster.karmada.io"],
        "",
    )?;
    kubectl.run_ok(
        &["create", "clusterrolebinding", "lists-clusters", "--clusterrole=lists-clusters", "--user=liz"],
        "",
    )?;
    let liz = kubectl.with_flags(&["--as", "liz", "--as-group", "system:authenticated"]);
    liz.run_until(&["get", "--raw", &format!("{SEARCH}/status")], |out| {
        out.contains("member1") && out.contains(version)
    })?;
    ensure!(total(&liz, RESTRICTED_NAME)? == 0);
    Ok(())
}

/// The control plane's account `monitoring/prometheus` is not the member's account.
fn check_account_of_same_name(admin: &Path, kubectl: &Kubectl, member: &Kubectl, version: &str) -> Result<()> {
    let account = write_account_kubeconfig(kubectl, "monitoring", "prometheus")?;
    let (account, reader) = (kubectl.with_kubeconfig(&account), Reader::new(&account, None, &[])?);
    let change = |level: &str| {
        let patch = json!({"data": {"level": level}}).to_string();
        member
            .run_ok(&["patch", "configmap", RESTRICTED_NAME, "-n", "vault", "--type=merge", "-p", &patch], "")
            .map(drop)
    };
    ensure_nothing_is_disclosed(&reader, version)?;
    let mut stream = account.stream(&["get", "--raw", &path("query", "", "&watch=true")])?;
    stream.expect("event: done")?;
    change("confidential-change")?;
    wait_for("the change to be found", || Ok(total(kubectl, "content:confidential-change")? == 1))?;
    // The event with counts follows changes, so no later event can reveal the object.
    let event = stream.expect("event: counts")?;
    ensure!(!event.contains(RESTRICTED_NAME) && !event.contains("event: changed"), "{event}");
    drop(stream);
    // Another user with the account's groups is treated like the account.
    let groups = ["system:serviceaccounts", "system:serviceaccounts:monitoring", "system:authenticated"];
    ensure_nothing_is_disclosed(&Reader::new(admin, Some("ann"), &groups)?, version)?;

    kubectl.run_ok(&["apply", "-f", "-"], CLUSTER_ACCESS)?;
    wait_for("the account to see the object", || Ok(total(&account, RESTRICTED_NAME)? == 1))?;
    let status = get_raw(&account, &format!("{SEARCH}/status"))?;
    ensure!(status.contains("member1") && !status.contains("member2"), "{status}");
    ensure!(total(&account, "cluster:member2")? == 0);
    kubectl.run_ok(&["delete", "clusterrolebinding", "reaches-member1"], "")?;
    wait_for("the account to see nothing", || Ok(total(&account, RESTRICTED_NAME)? == 0))?;
    ensure_nothing_is_disclosed(&reader, version)
}

/// `get` does not include `list`: a user who knows the name can read the object, but no response reveals the name.
fn check_get_without_list(admin: &Path, kubectl: &Kubectl) -> Result<()> {
    let fay = kubectl.with_flags(&["--as", "fay", "--as-group", "system:authenticated"]);
    let history = format!("{SEARCH}/history?{RESTRICTED_OBJECT}");
    wait_for("fay to get the object by name", || Ok(fay.run(&["get", "--raw", &history], "")?.code == Some(0)))?;
    let reader = Reader::new(admin, Some("fay"), &["system:authenticated"])?;
    for path in request_paths() {
        let response = reader.get(&path)?;
        let text = format!("{}{}", response.body, response.warnings);
        // The user has a permission in member1 and none in member2.
        for word in [RESTRICTED_NAME, "member2"] {
            ensure!(!text.contains(word), "{word} is disclosed at {path}: {text}");
        }
    }
    ensure!(reader.total("kind:configmap")? == 0 && reader.total("name:restricted*")? == 0, "fay lists objects");
    Ok(())
}

/// Only authenticated users may use discovery.
fn check_discovery(kubectl: &Kubectl) -> Result<()> {
    let port = ["get", "apiservice", "v1alpha1.cluster.karmada.io", "-o", "jsonpath={.spec.service.port}"];
    let server = format!("https://127.0.0.1:{}", kubectl.run_ok(&port, "")?);
    let authenticated = kubectl.with_flags(&["--server", &server, "--as", "eve", "--as-group", "system:authenticated"]);
    let paths = ["/apis", CLUSTERS, "/apis/cluster.karmada.io", "/openapi/v2", "/openapi/v3"];
    for path in paths {
        authenticated.run_ok(&["get", "--raw", path], "")?;
    }
    // kubectl would prompt for a user name.
    let mut config = kube::Config::new(server.parse()?);
    config.accept_invalid_certs = true;
    Runtime::new()?.block_on(async {
        let anonymous = kube::Client::try_from(config)?;
        for (path, expected) in paths.map(|path| (path, 403)).into_iter().chain([("/healthz", 200)]) {
            let response = anonymous.send(http::Request::get(path).body(kube::client::Body::empty())?).await?;
            ensure!(response.status() == expected, "{path} returned {}", response.status());
        }
        Ok(())
    })
}

/// No response contains a Secret's values, neither for the Secret nor for objects that contain copies of them.
fn check_secret_copies(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    wait_for("the copied Secret to be found", || {
        Ok(total(kubectl, "name:copied kind:secret")? == 1 && total(kubectl, "content:embedding-9a0d")? == 1)
    })?;
    let base64 = STANDARD.encode(MARKER);
    for query in [MARKER, base64.as_str(), &format!("content:{MARKER}"), &format!("ann:*{MARKER}*")] {
        ensure!(total(kubectl, query)? == 0, "{query} has hits");
    }
    let responses = [
        get_raw(kubectl, &path("export", "kind:secret name:copied", ""))?,
        get_raw(kubectl, &path("export", "kind:configmap name:embedding", ""))?,
        get_raw(kubectl, &path("suggest", "ann:", "&limit=50"))?,
        get_raw(
            kubectl,
            &format!("{SEARCH}/history?cluster=member1&apiVersion=v1&resource=secrets&namespace=default&name=copied"),
        )?,
        fleet.crowsnest(&["search", "name:copied"])?.out,
    ];
    for text in &responses {
        ensure!(!text.contains(MARKER) && !text.contains(&base64), "{text}");
    }
    ensure!(responses[0].contains("payments-3f2e"), "values that are not confidential are missing: {}", responses[0]);
    Ok(())
}

/// Checks that the cache's files contain no values of the Secret. The storage of members and of the control plane is
/// not checked.
fn ensure_no_values_are_stored(data: &Path) -> Result<()> {
    let mut file_count = 0;
    let mut folders = vec![data.join("cache")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let bytes = fs::read(entry.path())?;
            file_count += 1;
            for word in [MARKER, &STANDARD.encode(MARKER)] {
                let found = bytes.windows(word.len()).any(|window| window == word.as_bytes());
                ensure!(!found, "{word} is in {}", entry.path().display());
            }
        }
    }
    ensure!(file_count > 1, "the cache has no files in {}", data.display());
    Ok(())
}
