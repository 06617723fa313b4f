//! Tests of information disclosure, from outside: objects, to an account with the name of a member's account; names, to
//! a user with `get` only; clusters, to a user without rights; Secret values, to all users; APIs, to unauthenticated
//! clients.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Fleet, Kubectl, until};
use serde_json::{Value, json};

const MEMBER: &str = include_str!("knowledge/member.yaml");
const TENANT: &str = include_str!("knowledge/tenant.yaml");
const REACH: &str = include_str!("knowledge/reach.yaml");
const COPIES: &str = include_str!("knowledge/copies.yaml");
const SEARCH: &str = "/apis/search.crowsnest.io/v1alpha1";
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1";
/// Text in the restricted object and nowhere else.
const RESTRICTED: &str = "restricted-7d1c";
const OBJECT: &str = "cluster=member1&apiVersion=v1&resource=configmaps&namespace=vault&name=restricted-7d1c";
/// Password of the Secret that is copied.
const MARKER: &str = "marker-4b7e-copy";

fn encoded(query: &str) -> String {
    let one = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    query.bytes().map(one).collect()
}

fn path(resource: &str, query: &str, more: &str) -> String {
    format!("{SEARCH}/{resource}?q={}{more}", encoded(query))
}

fn raw(kubectl: &Kubectl, path: &str) -> Result<String> {
    kubectl.ok(&["get", "--raw", path], "")
}

fn total(kubectl: &Kubectl, query: &str) -> Result<u64> {
    let response: Value = serde_json::from_str(&raw(kubectl, &path("count", query, ""))?)?;
    response["total"].as_u64().context("a count")
}

/// The same server with this user's credentials only.
fn proving(kubectl: &Kubectl, name: &str, user: &Value) -> Result<Kubectl> {
    let mut config: Value = serde_json::from_str(&kubectl.ok(&["config", "view", "--raw", "-o", "json"], "")?)?;
    for one in config["users"].as_array_mut().into_iter().flatten() {
        one["user"] = user.clone();
    }
    let path = kubectl.folder.join(format!("{name}.kubeconfig"));
    fs::write(&path, config.to_string())?;
    Ok(kubectl.on(&path))
}

/// The same server with a service account's credentials.
fn as_account(kubectl: &Kubectl, namespace: &str, name: &str) -> Result<Kubectl> {
    let token = kubectl.ok(&["create", "token", name, "-n", namespace], "")?;
    proving(kubectl, name, &json!({"token": token.trim()}))
}

/// Requests of each kind that needs no object name. None of them contains the text that is searched for.
fn doors() -> Vec<String> {
    let queries = ["", "kind:configmap", "label:team", "restricted-7d1x", "region:*", "zone:*", "provider:*"];
    let mut doors: Vec<String> =
        queries.iter().map(|query| path("query", query, "&facets=cluster,name,region")).collect();
    doors.extend(queries.iter().map(|query| path("explain", query, "")));
    doors.extend(["", "is:deleted", "during:now-1h..now"].map(|query| path("export", query, "")));
    let written =
        ["name:r", "name:", "label:r", "ann:r", "kind:", "ns:", "cluster:", "region:", "zone:", "provider:", "r"];
    doors.extend(written.map(|written| path("suggest", written, "")));
    doors.extend([path("count", "", ""), path("logs", "kind:pod", "&tail=1"), format!("{SEARCH}/status")]);
    doors.extend(["*", "configmap%20--%3E%20*"].map(|pattern| format!("{SEARCH}/paths?p={pattern}")));
    doors.extend(["journal?about=x", "journal?about=clusters"].map(|journal| format!("{SEARCH}/{journal}")));
    doors
}

/// Checks that no response contains anything of the object, nor a cluster.
fn learns_nothing(reader: &Kubectl, version: &str) -> Result<()> {
    for door in doors() {
        // Responses that refuse the request are checked as well.
        let output = reader.run(&["get", "--raw", &door], "")?;
        let text = format!("{}{}", output.out, output.err);
        for word in [RESTRICTED, "member1", "member2", version] {
            ensure!(!text.contains(word), "{word} is disclosed at {door}: {text}");
        }
    }
    ensure!(total(reader, RESTRICTED)? == 0 && total(reader, "cluster:member1")? == 0);
    for one in ["history", "graph", "diff", "blastradius"] {
        reader.expect_output(&["get", "--raw", &format!("{SEARCH}/{one}?{OBJECT}")], "", 1, "not found")?;
    }
    Ok(())
}

#[test]
fn readers_learn_what_they_may() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let member = kubectl.on(&fleet.kubeconfig("member1"));
    member.ok(&["apply", "-f", "-"], MEMBER)?;
    member.ok(&["create", "-f", "-"], COPIES)?;
    kubectl.ok(&["apply", "-f", "-"], TENANT)?;
    until("the object to be found", || Ok(total(&kubectl, &format!("name:{RESTRICTED}"))? == 1))?;
    let version = kubectl
        .until(&["get", "--raw", &format!("{CLUSTERS}/clusters/member1")], |out| out.contains("kubernetesVersion"))?;
    let version: Value = serde_json::from_str(&version)?;
    let version = version["status"]["kubernetesVersion"].as_str().context("a version")?;

    strangers(&kubectl, version)?;
    namesakes(&kubectl, &member, version)?;
    names(&kubectl, version)?;
    discovery(&kubectl)?;
    copies(&fleet, &kubectl)?;
    ensure!(fleet.stop()?.success());
    nothing_is_stored(&data)
}

/// An account without any grants.
fn strangers(kubectl: &Kubectl, version: &str) -> Result<()> {
    kubectl.ok(&["create", "serviceaccount", "stranger"], "")?;
    let account = as_account(kubectl, "default", "stranger")?;
    learns_nothing(&account, version)?;
    let eve = kubectl.with(&["--as", "eve", "--as-group", "system:authenticated"]);
    learns_nothing(&eve, version)?;
    // A user who may list clusters sees them, but none of their objects.
    kubectl.ok(
        &["create", "clusterrole", "lists-clusters", "--verb=list", "--resource=clusters.cluster.karmada.io"],
        "",
    )?;
    kubectl
        .ok(&["create", "clusterrolebinding", "lists-clusters", "--clusterrole=lists-clusters", "--user=liz"], "")?;
    let liz = kubectl.with(&["--as", "liz", "--as-group", "system:authenticated"]);
    liz.until(&["get", "--raw", &format!("{SEARCH}/status")], |out| out.contains("member1") && out.contains(version))?;
    ensure!(total(&liz, RESTRICTED)? == 0);
    Ok(())
}

/// The control plane's account `monitoring/prometheus` is not the member's account.
fn namesakes(kubectl: &Kubectl, member: &Kubectl, version: &str) -> Result<()> {
    let account = as_account(kubectl, "monitoring", "prometheus")?;
    let changed = |level: &str| {
        let patch = json!({"data": {"level": level}}).to_string();
        member.ok(&["patch", "configmap", RESTRICTED, "-n", "vault", "--type=merge", "-p", &patch], "").map(drop)
    };
    learns_nothing(&account, version)?;
    let mut live = account.stream(&["get", "--raw", &path("query", "", "&watch=true")])?;
    live.expect("event: done")?;
    changed("seen-by-nobody")?;
    until("the change to be found", || Ok(total(kubectl, "content:seen-by-nobody")? == 1))?;
    // The event with counts follows changes, so no later event can reveal the object.
    let event = live.expect("event: counts")?;
    ensure!(!event.contains(RESTRICTED) && !event.contains("event: changed"), "{event}");
    drop(live);
    // Another user with the account's groups is treated like the account.
    let groups = ["system:serviceaccounts", "system:serviceaccounts:monitoring", "system:authenticated"];
    let flags: Vec<&str> = groups.iter().flat_map(|group| ["--as-group", *group]).chain(["--as", "ann"]).collect();
    learns_nothing(&kubectl.with(&flags), version)?;

    kubectl.ok(&["apply", "-f", "-"], REACH)?;
    until("the account to see what it may read", || Ok(total(&account, RESTRICTED)? == 1))?;
    let status = raw(&account, &format!("{SEARCH}/status"))?;
    ensure!(status.contains("member1") && !status.contains("member2"), "{status}");
    ensure!(total(&account, "cluster:member2")? == 0);
    kubectl.ok(&["delete", "clusterrolebinding", "reaches-member1"], "")?;
    until("the account to see nothing", || Ok(total(&account, RESTRICTED)? == 0))?;
    learns_nothing(&account, version)
}

/// `get` does not include `list`: a user who knows the name can read the object, but no response reveals the name.
fn names(kubectl: &Kubectl, version: &str) -> Result<()> {
    let fay = kubectl.with(&["--as", "fay", "--as-group", "system:authenticated"]);
    let known = format!("{SEARCH}/history?{OBJECT}");
    until("fay to get what she knows", || Ok(fay.run(&["get", "--raw", &known], "")?.code == Some(0)))?;
    for door in doors() {
        let output = fay.run(&["get", "--raw", &door], "")?;
        let text = format!("{}{}", output.out, output.err);
        // The user has a right in member1 and none in member2.
        for word in [RESTRICTED, "member2"] {
            ensure!(!text.contains(word), "{word} is disclosed at {door}: {text}");
        }
    }
    ensure!(total(&fay, "kind:configmap")? == 0 && total(&fay, "name:restricted*")? == 0, "{version}");
    Ok(())
}

/// Only authenticated users may use discovery.
fn discovery(kubectl: &Kubectl) -> Result<()> {
    let port = ["get", "apiservice", "v1alpha1.cluster.karmada.io", "-o", "jsonpath={.spec.service.port}"];
    let own = format!("https://127.0.0.1:{}", kubectl.ok(&port, "")?);
    let authenticated = kubectl.with(&["--server", &own, "--as", "eve", "--as-group", "system:authenticated"]);
    let paths = ["/apis", CLUSTERS, "/apis/cluster.karmada.io", "/openapi/v2", "/openapi/v3"];
    for path in paths {
        authenticated.ok(&["get", "--raw", path], "")?;
    }
    // kubectl would prompt for a user name.
    let mut config = kube::Config::new(own.parse()?);
    config.accept_invalid_certs = true;
    tokio::runtime::Runtime::new()?.block_on(async {
        let nobody = kube::Client::try_from(config)?;
        for (path, expected) in paths.map(|path| (path, 403)).into_iter().chain([("/healthz", 200)]) {
            let response = nobody.send(http::Request::get(path).body(kube::client::Body::empty())?).await?;
            ensure!(response.status() == expected, "{path} answers {}", response.status());
        }
        Ok(())
    })
}

/// No response contains values of Secrets, for any object with a copy of them.
fn copies(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    until("the copied Secret to be found", || {
        Ok(total(kubectl, "name:copied kind:secret")? == 1 && total(kubectl, "content:embedding-9a0d")? == 1)
    })?;
    let base64 = STANDARD.encode(MARKER);
    for query in [MARKER, base64.as_str(), &format!("content:{MARKER}"), &format!("ann:*{MARKER}*")] {
        ensure!(total(kubectl, query)? == 0, "{query} finds something");
    }
    let everything = [
        raw(kubectl, &path("export", "kind:secret name:copied", ""))?,
        raw(kubectl, &path("export", "kind:configmap name:embedding", ""))?,
        raw(kubectl, &path("suggest", "ann:", "&limit=50"))?,
        raw(
            kubectl,
            &format!("{SEARCH}/history?cluster=member1&apiVersion=v1&resource=secrets&namespace=default&name=copied"),
        )?,
        fleet.crowsnest(&["search", "name:copied"])?.out,
    ];
    for text in &everything {
        ensure!(!text.contains(MARKER) && !text.contains(&base64), "{text}");
    }
    ensure!(everything[0].contains("payments-3f2e"), "what is harmless stays: {}", everything[0]);
    Ok(())
}

/// The cache's files contain no values either. The storage of members and of the control plane is not checked.
fn nothing_is_stored(data: &Path) -> Result<()> {
    let mut looked_at = 0;
    let mut folders = vec![data.join("cache")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let bytes = fs::read(entry.path())?;
            looked_at += 1;
            for word in [MARKER, &STANDARD.encode(MARKER)] {
                let found = bytes.windows(word.len()).any(|window| window == word.as_bytes());
                ensure!(!found, "{word} is in {}", entry.path().display());
            }
        }
    }
    ensure!(looked_at > 1, "the cache has no files in {}", data.display());
    Ok(())
}
