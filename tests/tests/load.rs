//! The load of ten users of a terminal UI: each concurrently lists and watches twenty kinds of the whole fleet, as
//! tables and as objects, while a member does not respond. All watches stay open and deliver changes of the other members,
//! and of this one after its recovery.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use futures::{AsyncBufReadExt, TryStreamExt};
use http::{Request, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const REGISTRY: &str = include_str!("load/registry.yaml");
const OBJECTS: &str = include_str!("load/objects.yaml");
const FLEET_PROXY: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const CLIENTS: usize = 10;
const ROUND: &str = "round";
/// Delay of the silent member for each request: requests that wait for it take at least as long.
const MEMBER_DELAY: Duration = Duration::from_secs(60);
/// Path below the proxy's address, and kubectl's name of the resource.
const KINDS: [(&str, &str); 20] = [
    ("/api/v1/configmaps", "configmaps"),
    ("/api/v1/endpoints", "endpoints"),
    ("/api/v1/events", "events"),
    ("/api/v1/limitranges", "limitranges"),
    ("/api/v1/namespaces", "namespaces"),
    ("/api/v1/nodes", "nodes"),
    ("/api/v1/persistentvolumes", "persistentvolumes"),
    ("/api/v1/persistentvolumeclaims", "persistentvolumeclaims"),
    ("/api/v1/pods", "pods"),
    ("/api/v1/podtemplates", "podtemplates"),
    ("/api/v1/replicationcontrollers", "replicationcontrollers"),
    ("/api/v1/resourcequotas", "resourcequotas"),
    ("/api/v1/secrets", "secrets"),
    ("/api/v1/services", "services"),
    ("/api/v1/serviceaccounts", "serviceaccounts"),
    ("/apis/apps/v1/daemonsets", "daemonsets"),
    ("/apis/apps/v1/deployments", "deployments"),
    ("/apis/apps/v1/statefulsets", "statefulsets"),
    ("/apis/batch/v1/cronjobs", "cronjobs"),
    ("/apis/rbac.authorization.k8s.io/v1/roles", "roles"),
];

/// State of a watch.
#[derive(Debug, Default)]
struct WatchState {
    /// Last round received from each member.
    rounds: BTreeMap<String, u32>,
    /// Error with which the watch ended.
    error: Option<String>,
}

/// All watches: client, resource, representation.
type Watches = Arc<Mutex<BTreeMap<(usize, &'static str, &'static str), WatchState>>>;

#[test]
fn ten_users_watch_everything_while_a_member_is_silent() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "3", "--load", "pods=60,churn=2/s"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    for member in ["member1", "member2", "member3"] {
        kubectl.with_kubeconfig(&fleet.kubeconfig(member)).run_ok(&["apply", "-f", "-"], OBJECTS)?;
    }
    let via_fleet = kubectl.with_flags(&["--server", &format!("{}{FLEET_PROXY}", fleet.server()?)]);
    for (_, kind) in KINDS {
        let is_complete = |out: &str| out.lines().filter(|line| line.ends_with("/watched")).count() == 3;
        via_fleet.run_until(&["get", kind, "-A", "-o", "name"], is_complete)?;
    }

    let runtime = Runtime::new()?;
    let watches = Watches::default();
    let mut users = runtime.block_on(start_users(&fleet, &watches))?;
    ensure!(watches.lock().len() == CLIENTS * KINDS.len() * 2, "{} watches", watches.lock().len());
    let wait_for_member =
        |member: &str, round: u32| wait_for_round(&watches, member, round).with_context(|| fleet.log());
    annotate(&fleet, &kubectl, "member1", 1)?;
    annotate(&fleet, &kubectl, "member3", 1)?;
    wait_for_member("member1", 1)?;
    wait_for_member("member3", 1)?;

    // The member delays requests beyond all timeouts, and closes open watches.
    let delay = MEMBER_DELAY.as_millis().to_string();
    for fault in [&["sim", "member3", "delay", &delay][..], &["sim", "member3", "drop-watches"]] {
        let output = fleet.crowsnest(fault)?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    annotate(&fleet, &kubectl, "member1", 2)?;
    annotate(&fleet, &kubectl, "member2", 2)?;
    wait_for_member("member1", 2)?;
    wait_for_member("member2", 2)?;
    kubectl.with_kubeconfig(&fleet.kubeconfig("member3")).expect_output(
        &["get", "nodes", "--request-timeout=1s"],
        "",
        1,
        "exceeded",
    )?;
    // No list waits for it.
    let newcomer = runtime.block_on(client(&fleet))?;
    let lists = async {
        for (path, _) in KINDS {
            let list = list(&newcomer, path, TABLE).await?;
            ensure!(list["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{path}: {list}");
        }
        Ok(())
    };
    runtime
        .block_on(async { tokio::time::timeout(MEMBER_DELAY, lists).await })
        .context("a list has waited for the silent member")??;

    let output = fleet.crowsnest(&["sim", "member3", "delay", "0"])?;
    ensure!(output.code == Some(0), "{output:?}");
    annotate(&fleet, &kubectl, "member3", 3)?;
    wait_for_member("member3", 3)?;
    users.abort_all();
    drop((users, newcomer, runtime));
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Annotates one object of each kind.
fn annotate(fleet: &Fleet, kubectl: &Kubectl, member: &str, round: u32) -> Result<()> {
    let objects: Vec<String> = KINDS.iter().map(|(_, kind)| format!("{kind}/watched")).collect();
    let round = format!("{ROUND}={round}");
    let mut args = vec!["annotate", "--overwrite"];
    args.extend(objects.iter().map(String::as_str));
    args.push(&round);
    kubectl.with_kubeconfig(&fleet.kubeconfig(member)).run_ok(&args, "").map(drop)
}

/// Waits until every watch has delivered a round of a member; none may have ended.
fn wait_for_round(watches: &Watches, member: &str, round: u32) -> Result<()> {
    let mut waiting = Vec::new();
    let result = wait_for(&format!("all watches to see round {round} of {member}"), || {
        let watches = watches.lock();
        if let Some((key, state)) = watches.iter().find(|(_, state)| state.error.is_some()) {
            bail!("the watch {key:?} has ended: {:?}", state.error);
        }
        let is_late = |state: &WatchState| state.rounds.get(member).is_none_or(|last| *last < round);
        waiting = watches.iter().filter(|(_, state)| is_late(state)).map(|(key, _)| *key).collect();
        Ok(waiting.is_empty())
    });
    result.with_context(|| format!("{} of {} watches wait: {:?}", waiting.len(), watches.lock().len(), waiting.first()))
}

/// A client with its own connections, as of a separate user.
async fn client(fleet: &Fleet) -> Result<kube::Client> {
    let file = Kubeconfig::read_from(fleet.kubeconfig("cp"))?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

/// Starts all lists of all users concurrently, and then their watches.
async fn start_users(fleet: &Fleet, watches: &Watches) -> Result<JoinSet<()>> {
    let (mut users, mut initial_lists) = (JoinSet::new(), JoinSet::new());
    for user in 0..CLIENTS {
        let client = client(fleet).await?;
        for (path, kind) in KINDS {
            for (form, accept) in [("table", TABLE), ("objects", "application/json")] {
                let client = client.clone();
                initial_lists.spawn(async move {
                    let list = list(&client, path, accept).await?;
                    let version = list["metadata"]["resourceVersion"]
                        .as_str()
                        .context("the list has no resource version")?
                        .to_owned();
                    anyhow::Ok((client, (user, kind, form), path, accept, version))
                });
            }
        }
    }
    while let Some(result) = initial_lists.join_next().await {
        let (client, key, path, accept, version) = result??;
        watches.lock().insert(key, WatchState::default());
        let watches = Arc::clone(watches);
        users.spawn(async move {
            let result = watch(&client, path, accept, &version, |member, round| {
                if let Some(state) = watches.lock().get_mut(&key) {
                    state.rounds.insert(member, round);
                }
            });
            let error = result.await.map_or_else(|error| format!("{error:#}"), |()| "its stream ended".to_owned());
            if let Some(state) = watches.lock().get_mut(&key) {
                state.error = Some(error);
            }
        });
    }
    Ok(users)
}

async fn list(client: &kube::Client, path: &str, accept: &str) -> Result<Value> {
    let request =
        Request::get(format!("{FLEET_PROXY}{path}?limit=500")).header(header::ACCEPT, accept).body(Vec::new())?;
    client.request(request).await.with_context(|| format!("cannot list {path}"))
}

async fn watch(
    client: &kube::Client,
    path: &str,
    accept: &str,
    version: &str,
    mut on_event: impl FnMut(String, u32),
) -> Result<()> {
    let path = format!("{FLEET_PROXY}{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
    let request = Request::get(path).header(header::ACCEPT, accept).body(Vec::new())?;
    let mut lines = client.request_stream(request).await?.lines();
    while let Some(line) = lines.try_next().await? {
        let event: Value = serde_json::from_str(&line).with_context(|| format!("cannot decode the event {line}"))?;
        ensure!(event["type"] != "ERROR", "{event}");
        let object = event.pointer("/object/rows/0/object").unwrap_or(&event["object"]);
        let metadata = &object["metadata"];
        let round = metadata["annotations"][ROUND].as_str().and_then(|round| round.parse().ok());
        let member = metadata["annotations"]["resource.karmada.io/cached-from-cluster"].as_str();
        if let (Some(round), Some(member), Some("watched")) = (round, member, metadata["name"].as_str()) {
            on_event(member.to_owned(), round);
        }
    }
    Ok(())
}
