//! Client libraries against the embedded API server: programs with the Python and JavaScript clients, and
//! a kube-rs controller whose reflector is compared with the API while objects are created, changed and deleted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Apiserver, CommandOutput, find_node_client, find_python, wait_for};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::runtime::Runtime;

const PYTHON: &str = include_str!("clients/client.py");
const JAVASCRIPT: &str = include_str!("clients/client.mjs");
/// Selector of the reconciled objects.
const SOURCES: &str = "of=source";
const SOURCE_COUNT: usize = 40;
const ROUNDS: usize = 5;

#[test]
fn client_libraries_work_with_the_api_server() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut server = Apiserver::start(&dir.path().join("data"))?;
    let kubeconfig = server.kubeconfig.clone();
    if let Some(program) = find_python()? {
        let script = dir.path().join("client.py");
        std::fs::write(&script, PYTHON)?;
        run_client(Command::new(program).arg(script).arg(&kubeconfig).arg("python-client"))?;
    }
    if let Some(modules) = find_node_client()? {
        let script = dir.path().join("client.mjs");
        std::fs::write(&script, JAVASCRIPT)?;
        run_client(Command::new("node").arg(script).arg(modules).arg(&kubeconfig).arg("javascript-client"))?;
    }
    let runtime = Runtime::new()?;
    for (list_method, config) in [
        ("listing", watcher::Config::default().labels(SOURCES)),
        ("streaming", watcher::Config::default().labels(SOURCES).streaming_lists()),
    ] {
        check_controller(&runtime, &kubeconfig, config).with_context(|| format!("{list_method}\n{}", server.log()))?;
    }
    drop(runtime);
    ensure!(server.stop()?.success());
    Ok(())
}

/// Runs a client program, which must print `ok`.
fn run_client(command: &mut Command) -> Result<()> {
    let output = CommandOutput::parse(&command.env_remove("KUBECONFIG").output()?)?;
    ensure!(output.code == Some(0) && output.out.trim() == "ok", "{}{}", output.out, output.err);
    Ok(())
}

/// Reconciles a source: creates an owned copy.
async fn copy(source: Arc<ConfigMap>, maps: Arc<Api<ConfigMap>>) -> Result<Action, kube::Error> {
    let owner = source.controller_owner_ref(&());
    let name = format!("copy-of-{}", source.name_any());
    let copy = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"of": "copy"}, "ownerReferences": [owner]}, "data": source.data,
    });
    maps.patch(&name, &PatchParams::apply("copier").force(), &Patch::Apply(&copy)).await?;
    Ok(Action::await_change())
}

/// Data of objects by name.
type Contents = BTreeMap<String, BTreeMap<String, String>>;

fn check_controller(runtime: &Runtime, kubeconfig: &Path, config: watcher::Config) -> Result<()> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let client = runtime.block_on(async {
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        anyhow::Ok(Client::try_from(config)?)
    })?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let controller =
        Controller::new(maps.clone(), config).owns(maps.clone(), watcher::Config::default().labels("of=copy"));
    let sources = controller.store();
    let retry = |_: Arc<ConfigMap>, _: &kube::Error, _: Arc<Api<ConfigMap>>| Action::requeue(Duration::from_millis(50));
    let controller_task = runtime.spawn(controller.run(copy, retry, Arc::new(maps.clone())).for_each(|_| async {}));
    for round in 0..ROUNDS {
        runtime.block_on(churn(&maps, round))?;
    }
    let listed = |selector: &str| -> Result<Contents> {
        let list = runtime.block_on(maps.list(&ListParams::default().labels(selector)))?;
        Ok(list.into_iter().map(|map| (map.name_any(), map.data.unwrap_or_default())).collect())
    };
    let expected = listed(SOURCES)?;
    ensure!(expected.len() > SOURCE_COUNT / 2, "{} sources are left", expected.len());
    wait_for("every source to have one copy, and no other copies", || {
        let copies = listed("of=copy")?;
        Ok(copies == expected.iter().map(|(name, data)| (format!("copy-of-{name}"), data.clone())).collect())
    })?;
    let reflector_state = || -> Contents {
        let state = sources.state();
        state.iter().map(|map| (map.name_any(), map.data.clone().unwrap_or_default())).collect()
    };
    wait_for("the reflector to contain all sources", || Ok(reflector_state() == expected))?;
    controller_task.abort();
    runtime.block_on(async {
        maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels(SOURCES)).await
    })?;
    wait_for("the copies of deleted sources to be collected", || Ok(listed("of=copy")?.is_empty()))
}

/// Creates and changes all sources, and deletes some of them, concurrently.
async fn churn(maps: &Api<ConfigMap>, round: usize) -> Result<()> {
    let writes = (0..SOURCE_COUNT).map(|n| async move {
        let name = format!("source-{n}");
        let source = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"of": "source"}},
            "data": {"round": round.to_string()},
        });
        maps.patch(&name, &PatchParams::apply("churn").force(), &Patch::Apply(&source)).await?;
        if (n + round).is_multiple_of(7) {
            maps.delete(&name, &DeleteParams::default()).await?;
        }
        Ok::<_, kube::Error>(())
    });
    Ok(futures::future::try_join_all(writes).await.map(drop)?)
}
