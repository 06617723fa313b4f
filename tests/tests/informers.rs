//! Informers for the whole fleet (kube-rs, listing and streaming, and the Python client) while members change, lose
//! watches, stop, leave and return: each lists once, receives every event once, and never has to list again.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, RunningCommand, find_python, wait_for};
use futures::TryStreamExt;
use http::Uri;
use http::uri::PathAndQuery;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const REGISTRY: &str = include_str!("informers/registry.yaml");
const FLEET_PROXY: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/";
const CACHED_FROM: &str = "resource.karmada.io/cached-from-cluster";
const MEMBERS: [&str; 2] = ["member1", "member2"];

/// Cluster, namespace and name of an object, and its data.
type Objects = BTreeMap<(String, String, String), String>;

/// State of one informer.
#[derive(Default)]
struct InformerState {
    objects: Objects,
    /// Objects of an initial list that is not complete.
    initial_list: Objects,
    /// Number of lists.
    lists: usize,
    errors: Vec<String>,
}

/// An informer with its received state.
enum Reader {
    Rust(Arc<Mutex<InformerState>>),
    /// An informer in the Python process, by name.
    Python(Arc<Mutex<RunningCommand>>, &'static str),
}

/// Program with the informers of the Python client.
const PYTHON: &str = include_str!("informers/readers.py");
/// Names of the informers in the Python program.
const READERS: [&str; 2] = ["informer", "resuming"];

#[test]
fn informers_list_once_and_miss_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    let runtime = Runtime::new()?;
    let members = MEMBERS.map(|name| config_maps(&runtime, &fleet, name, "/"));
    let members = members.into_iter().collect::<Result<Vec<_>>>()?;
    for (number, member) in members.iter().enumerate() {
        churn(&runtime, member, number, 0)?;
    }
    let fleet_api = config_maps(&runtime, &fleet, "cp", FLEET_PROXY)?;
    let in_members = || member_objects(&runtime, &members);
    let listed = || -> Result<Objects> {
        Ok(runtime.block_on(fleet_api.list(&ListParams::default()))?.items.iter().map(entry).collect())
    };
    wait_for("the fleet's ConfigMaps to be in the cache", || {
        Ok(listed().is_ok_and(|listed| in_members().is_ok_and(|objects| listed == objects)))
    })
    .with_context(|| format!("{:?} instead of {:?}\n{}", listed(), in_members(), fleet.log()))?;

    let configs = [watcher::Config::default(), watcher::Config::default().streaming_lists()];
    let informers = configs.map(|config| Reader::Rust(start_informer(&runtime, fleet_api.clone(), config)));
    let mut readers: Vec<(&str, Reader)> = ["listing", "streaming"].into_iter().zip(informers).collect();
    if let Some(process) = start_python_readers(dir.path(), &fleet)? {
        readers.extend(READERS.map(|name| (name, Reader::Python(Arc::clone(&process), name))));
    }
    let check_agreement = |what: &str, expected: &dyn Fn() -> Result<Objects>| -> Result<()> {
        for (reader_name, reader) in &readers {
            let mut state = reader.state()?;
            let result = wait_for(&format!("the {reader_name} informer to agree after {what}"), || {
                // Before taking the lock: its holder may have to deliver the response.
                let expected = expected()?;
                state = reader.state()?;
                Ok(state.0 == expected)
            });
            let (objects, lists, errors) = state;
            result.with_context(|| format!("{objects:?}; errors: {errors:?}\n{}", fleet.log()))?;
            // The client that resumes its watch each second may have to list again while a cluster leaves.
            ensure!(
                lists == 1 || *reader_name == READERS[1],
                "after {what} the {reader_name} informer listed again: {errors:?}"
            );
            let is_python = matches!(reader, Reader::Python(..));
            ensure!(
                !is_python || errors.is_empty(),
                "after {what} the {reader_name} informer has wrong objects: {errors:?}"
            );
        }
        Ok(())
    };
    check_agreement("the start", &in_members)?;
    churn(&runtime, &members[0], 0, 1)?;
    run_crowsnest(&fleet, &["sim", "member2", "drop-watches"])?;
    churn(&runtime, &members[1], 1, 2)?;
    check_agreement("watches were dropped", &in_members)?;
    run_crowsnest(&fleet, &["sim", "member2", "stop"])?;
    churn(&runtime, &members[0], 0, 3)?;
    run_crowsnest(&fleet, &["sim", "member2", "start"])?;
    churn(&runtime, &members[1], 1, 4)?;
    check_agreement("a member stopped and started", &in_members)?;

    kubectl.run_ok(&["delete", "cluster", "member2", "--timeout=240s"], "")?;
    let without_member2 =
        || -> Result<Objects> { Ok(in_members()?.into_iter().filter(|(key, _)| key.0 != "member2").collect()) };
    check_agreement("a member left", &without_member2)?;
    let kubeconfig = fleet.kubeconfig("member2");
    run_crowsnest(&fleet, &["join", "member2", "--cluster-kubeconfig", path(&kubeconfig)?])?;
    churn(&runtime, &members[1], 1, 5)?;
    check_agreement("the member was joined again", &in_members)?;
    drop((readers, runtime));
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("the path is not UTF-8")
}

fn run_crowsnest(fleet: &Fleet, args: &[&str]) -> Result<()> {
    let output = fleet.crowsnest(args)?;
    ensure!(output.code == Some(0), "{args:?}: {output:?}");
    Ok(())
}

fn config_maps(runtime: &Runtime, fleet: &Fleet, kubeconfig: &str, path: &'static str) -> Result<Api<ConfigMap>> {
    let file = Kubeconfig::read_from(fleet.kubeconfig(kubeconfig))?;
    let options = KubeConfigOptions::default();
    let mut config = runtime.block_on(kube::Config::from_custom_kubeconfig(file, &options))?;
    let mut parts = config.cluster_url.into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static(path));
    config.cluster_url = Uri::from_parts(parts)?;
    let _guard = runtime.enter();
    Ok(Api::all(Client::try_from(config)?))
}

/// Creates, changes and deletes objects, different ones in each round.
fn churn(runtime: &Runtime, config_maps: &Api<ConfigMap>, member: usize, round: usize) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(config_maps.clone().into_client(), "default");
    runtime.block_on(async {
        for nth in 0..30 {
            // Names in both members, and names in one member.
            let name = format!("c{}", (nth * 7 + round * 5 + member * 3) % 40);
            if (nth + round) % 3 == 2 {
                match api.delete(&name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    deleted => drop(deleted?),
                }
                continue;
            }
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
                "data": {"v": format!("{round}.{nth}")}});
            api.patch(&name, &PatchParams::apply("churn").force(), &Patch::Apply(object)).await?;
        }
        anyhow::Ok(())
    })
}

/// The members' own objects.
fn member_objects(runtime: &Runtime, members: &[Api<ConfigMap>]) -> Result<Objects> {
    let mut objects = Objects::new();
    for (cluster, member) in MEMBERS.into_iter().zip(members) {
        for object in runtime.block_on(member.list(&ListParams::default()))?.items {
            let ((_, namespace, name), value) = entry(&object);
            objects.insert((cluster.to_owned(), namespace, name), value);
        }
    }
    Ok(objects)
}

/// Key and value of an object.
fn entry(object: &ConfigMap) -> ((String, String, String), String) {
    let cluster = object.annotations().get(CACHED_FROM).cloned().unwrap_or_default();
    let value = object.data.as_ref().and_then(|data| data.get("v")).cloned().unwrap_or_default();
    ((cluster, object.namespace().unwrap_or_default(), object.name_any()), value)
}

fn start_informer(runtime: &Runtime, api: Api<ConfigMap>, config: watcher::Config) -> Arc<Mutex<InformerState>> {
    let state = Arc::new(Mutex::new(InformerState::default()));
    let writer = Arc::clone(&state);
    runtime.spawn(async move {
        let mut events = pin!(watcher(api, config));
        loop {
            match events.try_next().await {
                Ok(Some(event)) => writer.lock().handle(event),
                Ok(None) => return,
                Err(error) => {
                    writer.lock().errors.push(error.to_string());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    state
}

/// Starts the program with the readers in Python; returns `None` without the Python client.
fn start_python_readers(folder: &Path, fleet: &Fleet) -> Result<Option<Arc<Mutex<RunningCommand>>>> {
    let Some(program) = find_python()? else { return Ok(None) };
    let script = folder.join("readers.py");
    std::fs::write(&script, PYTHON)?;
    let mut command = Command::new(program);
    command.arg(script).arg(fleet.kubeconfig("cp")).arg(FLEET_PROXY).env_remove("KUBECONFIG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(Some(Arc::new(Mutex::new(RunningCommand::start(command, "readers.py".to_owned())?))))
}

impl Reader {
    /// Received objects, number of lists, and errors.
    fn state(&self) -> Result<(Objects, usize, Vec<String>)> {
        match self {
            Self::Rust(state) => {
                let state = state.lock();
                Ok((state.objects.clone(), state.lists, state.errors.clone()))
            }
            Self::Python(process, name) => {
                let mut process = process.lock();
                process.write_input("report\n")?;
                let mut state: Value = serde_json::from_str(&process.expect("\n")?)?;
                let state = state[name].take();
                let parse_entry = |(key, value): (&String, &Value)| {
                    let mut parts = key.splitn(3, '/').map(str::to_owned);
                    let mut part = || parts.next().unwrap_or_default();
                    ((part(), part(), part()), value.as_str().unwrap_or_default().to_owned())
                };
                let objects =
                    state["objects"].as_object().context("the state has no objects")?.iter().map(parse_entry).collect();
                let lists = state["lists"].as_u64().unwrap_or_default();
                let problems = state["problems"].as_array().context("the state has no problems")?;
                Ok((objects, usize::try_from(lists)?, problems.iter().map(ToString::to_string).collect()))
            }
        }
    }
}

impl InformerState {
    fn handle(&mut self, event: Event<ConfigMap>) {
        match event {
            Event::Init => {
                self.lists += 1;
                self.initial_list.clear();
            }
            Event::InitApply(object) => self.initial_list.extend([entry(&object)]),
            Event::InitDone => self.objects = std::mem::take(&mut self.initial_list),
            Event::Apply(object) => self.objects.extend([entry(&object)]),
            Event::Delete(object) => {
                self.objects.remove(&entry(&object).0);
            }
        }
    }
}
