//! Informers for the whole fleet (kube-rs, listing and streaming, and the Python client) while members change, lose
//! watches, stop, leave and return: each lists once, receives every event once, and never has to list again.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Stream, python, until};
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
const EVERYWHERE: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/";
const CACHED_FROM: &str = "resource.karmada.io/cached-from-cluster";
const MEMBERS: [&str; 2] = ["member1", "member2"];

/// Cluster, namespace and name of an object, and its data.
type Objects = BTreeMap<(String, String, String), String>;

/// State of one informer.
#[derive(Default)]
struct Told {
    objects: Objects,
    /// Objects of an initial list that is not complete.
    coming: Objects,
    beginnings: usize,
    errors: Vec<String>,
}

/// An informer with its received state.
enum Reader {
    Rust(Arc<Mutex<Told>>),
    /// An informer in this process.
    Python(Arc<Mutex<Stream>>, &'static str),
}

/// The Python client's variants.
const PYTHON: &str = include_str!("informers/readers.py");
const READERS: [&str; 2] = ["informer", "resuming"];

#[test]
fn informers_list_once_and_miss_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.ok(&["apply", "-f", "-"], REGISTRY)?;
    let runtime = Runtime::new()?;
    let members = MEMBERS.map(|name| config_maps(&runtime, &fleet, name, "/"));
    let members = members.into_iter().collect::<Result<Vec<_>>>()?;
    for (number, member) in members.iter().enumerate() {
        churn(&runtime, member, number, 0)?;
    }
    let of_fleet = config_maps(&runtime, &fleet, "cp", EVERYWHERE)?;
    let there = || truth(&runtime, &members);
    let listed = || -> Result<Objects> {
        Ok(runtime.block_on(of_fleet.list(&ListParams::default()))?.items.iter().map(entry).collect())
    };
    until("the fleet's ConfigMaps to be in the cache", || Ok(listed().is_ok_and(|l| there().is_ok_and(|t| l == t))))
        .with_context(|| format!("{:?} instead of {:?}\n{}", listed(), there(), fleet.log()))?;

    let configs = [watcher::Config::default(), watcher::Config::default().streaming_lists()];
    let informers = configs.map(|config| Reader::Rust(inform(&runtime, of_fleet.clone(), config)));
    let mut readers: Vec<(&str, Reader)> = ["listing", "streaming"].into_iter().zip(informers).collect();
    if let Some(process) = python_readers(dir.path(), &fleet)? {
        readers.extend(READERS.map(|name| (name, Reader::Python(Arc::clone(&process), name))));
    }
    let agree = |what: &str, expected: &dyn Fn() -> Result<Objects>| -> Result<()> {
        for (way, reader) in &readers {
            let mut seen = reader.seen()?;
            let agrees = until(&format!("the {way} one to agree after {what}"), || {
                // Before taking the lock: its holder may have to deliver the response.
                let expected = expected()?;
                seen = reader.seen()?;
                Ok(seen.0 == expected)
            });
            let (objects, beginnings, errors) = seen;
            agrees.with_context(|| format!("{objects:?}; errors: {errors:?}\n{}", fleet.log()))?;
            // A client that resumes each second may do so while a cluster leaves.
            ensure!(beginnings == 1 || *way == READERS[1], "after {what} the {way} one began again: {errors:?}");
            let is_python = matches!(reader, Reader::Python(..));
            ensure!(!is_python || errors.is_empty(), "after {what} the {way} informer has wrong objects: {errors:?}");
        }
        Ok(())
    };
    agree("its beginning", &there)?;
    churn(&runtime, &members[0], 0, 1)?;
    succeeds(&fleet, &["sim", "member2", "drop-watches"])?;
    churn(&runtime, &members[1], 1, 2)?;
    agree("watches were dropped", &there)?;
    succeeds(&fleet, &["sim", "member2", "stop"])?;
    churn(&runtime, &members[0], 0, 3)?;
    succeeds(&fleet, &["sim", "member2", "start"])?;
    churn(&runtime, &members[1], 1, 4)?;
    agree("a member stopped and started", &there)?;

    kubectl.ok(&["delete", "cluster", "member2", "--timeout=60s"], "")?;
    let without = || -> Result<Objects> { Ok(there()?.into_iter().filter(|(key, _)| key.0 != "member2").collect()) };
    agree("a member left", &without)?;
    let kubeconfig = fleet.kubeconfig("member2");
    succeeds(&fleet, &["join", "member2", "--cluster-kubeconfig", path(&kubeconfig)?])?;
    churn(&runtime, &members[1], 1, 5)?;
    agree("it returned", &there)?;
    drop((readers, runtime));
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

fn succeeds(fleet: &Fleet, args: &[&str]) -> Result<()> {
    let said = fleet.crowsnest(args)?;
    ensure!(said.code == Some(0), "{args:?}: {said:?}");
    Ok(())
}

fn config_maps(runtime: &Runtime, fleet: &Fleet, kubeconfig: &str, path: &'static str) -> Result<Api<ConfigMap>> {
    let file = Kubeconfig::read_from(fleet.kubeconfig(kubeconfig))?;
    let options = KubeConfigOptions::default();
    let mut config = runtime.block_on(kube::Config::from_custom_kubeconfig(file, &options))?;
    let mut parts = config.cluster_url.into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static(path));
    config.cluster_url = Uri::from_parts(parts)?;
    let _in = runtime.enter();
    Ok(Api::all(Client::try_from(config)?))
}

/// Creates, changes and deletes objects, different ones in each round.
fn churn(runtime: &Runtime, all: &Api<ConfigMap>, member: usize, round: usize) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(all.clone().into_client(), "default");
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
fn truth(runtime: &Runtime, members: &[Api<ConfigMap>]) -> Result<Objects> {
    let mut objects = Objects::new();
    for (cluster, member) in MEMBERS.into_iter().zip(members) {
        for object in runtime.block_on(member.list(&ListParams::default()))?.items {
            let ((_, namespace, name), said) = entry(&object);
            objects.insert((cluster.to_owned(), namespace, name), said);
        }
    }
    Ok(objects)
}

fn entry(object: &ConfigMap) -> ((String, String, String), String) {
    let cluster = object.annotations().get(CACHED_FROM).cloned().unwrap_or_default();
    let said = object.data.as_ref().and_then(|data| data.get("v")).cloned().unwrap_or_default();
    ((cluster, object.namespace().unwrap_or_default(), object.name_any()), said)
}

fn inform(runtime: &Runtime, api: Api<ConfigMap>, config: watcher::Config) -> Arc<Mutex<Told>> {
    let told = Arc::new(Mutex::new(Told::default()));
    let tells = Arc::clone(&told);
    runtime.spawn(async move {
        let mut events = pin!(watcher(api, config));
        loop {
            match events.try_next().await {
                Ok(Some(event)) => tells.lock().hear(event),
                Ok(None) => return,
                Err(error) => {
                    tells.lock().errors.push(error.to_string());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    told
}

/// The readers in Python; `None` without the Python client.
fn python_readers(folder: &Path, fleet: &Fleet) -> Result<Option<Arc<Mutex<Stream>>>> {
    let Some(program) = python()? else { return Ok(None) };
    let script = folder.join("readers.py");
    std::fs::write(&script, PYTHON)?;
    let mut command = Command::new(program);
    command.arg(script).arg(fleet.kubeconfig("cp")).arg(EVERYWHERE).env_remove("KUBECONFIG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(Some(Arc::new(Mutex::new(Stream::of(command, "readers.py".to_owned())?))))
}

impl Reader {
    /// Received objects, number of lists, and errors.
    fn seen(&self) -> Result<(Objects, usize, Vec<String>)> {
        match self {
            Self::Rust(told) => {
                let told = told.lock();
                Ok((told.objects.clone(), told.beginnings, told.errors.clone()))
            }
            Self::Python(process, name) => {
                let mut process = process.lock();
                process.type_in("tell\n")?;
                let mut told: Value = serde_json::from_str(&process.expect("\n")?)?;
                let told = told[name].take();
                let named = |(key, said): (&String, &Value)| {
                    let mut parts = key.splitn(3, '/').map(str::to_owned);
                    let mut part = || parts.next().unwrap_or_default();
                    ((part(), part(), part()), said.as_str().unwrap_or_default().to_owned())
                };
                let objects = told["objects"].as_object().context("objects")?.iter().map(named).collect();
                let beginnings = told["beginnings"].as_u64().unwrap_or_default();
                let problems = told["problems"].as_array().context("problems")?;
                Ok((objects, usize::try_from(beginnings)?, problems.iter().map(ToString::to_string).collect()))
            }
        }
    }
}

impl Told {
    fn hear(&mut self, event: Event<ConfigMap>) {
        match event {
            Event::Init => {
                self.beginnings += 1;
                self.coming.clear();
            }
            Event::InitApply(object) => self.coming.extend([entry(&object)]),
            Event::InitDone => self.objects = std::mem::take(&mut self.coming),
            Event::Apply(object) => self.objects.extend([entry(&object)]),
            Event::Delete(object) => {
                self.objects.remove(&entry(&object).0);
            }
        }
    }
}
