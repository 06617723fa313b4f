//! A client that continuously writes in the member, and clients that watch through the common address. A watch that ends or
//! breaks resumes from the last resourceVersion, as informers do.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{PATIENCE, until};
use futures::StreamExt;
use http::Request;
use kube::Client;
use kube::api::{DynamicObject, PostParams, WatchEvent};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::serve::reading::ask;
use crate::serve::world::{MAPS_EVERYWHERE, World, object, objects};

/// Fleet-wide from the cache, and of one cluster directly.
const WATCHED: [&str; 2] =
    [MAPS_EVERYWHERE, "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default/configmaps"];
const WRITE_EVERY: Duration = Duration::from_millis(100);
/// Number of objects that are written in turn.
const OBJECTS: usize = 7;

/// The last version of each object, and the number of its writes.
type Written = BTreeMap<String, u64>;

fn name(number: usize) -> String {
    format!("watched-{number}")
}

pub struct Writer {
    ends: Arc<AtomicBool>,
    writing: JoinHandle<Result<Written>>,
}

impl Writer {
    pub fn start(world: &World) -> Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let writing = world.runtime.spawn(write(world.to_m1.clone(), Arc::clone(&ends)));
        Ok(Self { ends, writing })
    }

    pub fn stop(self, world: &World) -> Result<Written> {
        self.ends.store(true, Ordering::Relaxed);
        world.runtime.block_on(self.writing).context("the writer died")?
    }
}

async fn write(member: Client, ends: Arc<AtomicBool>) -> Result<Written> {
    let maps = objects(&member, "", "v1", "ConfigMap", Some("default"));
    let map = |name: &str, turn: u64| {
        object(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"turn": turn.to_string()}}),
        )
    };
    let mut written = Written::new();
    let mut interval = tokio::time::interval(WRITE_EVERY);
    for number in (0..OBJECTS).cycle() {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        interval.tick().await;
        let name = name(number);
        let turn = written.get(&name).map_or(1, |turn| turn + 1);
        match turn {
            1 => maps.create(&PostParams::default(), &map(&name, turn)?).await?,
            _ => maps.replace(&name, &PostParams::default(), &map(&name, turn)?).await?,
        };
        written.insert(name, turn);
    }
    Ok(written)
}

/// State of a watch.
#[derive(Debug, Clone, Default)]
struct WatchState {
    version: String,
    /// Versions of each object, in the order of their events.
    versions: BTreeMap<String, Vec<u64>>,
    /// Number of resumptions.
    resumed: usize,
    broken: Option<String>,
}

impl WatchState {
    /// The state after a list, from which a watch starts.
    fn of(list: &Value) -> Result<Self> {
        let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let mut state = Self { version: version.context("a list of no version")?.to_owned(), ..Self::default() };
        for item in list["items"].as_array().into_iter().flatten() {
            if let Some(turn) = item.pointer("/data/turn").and_then(Value::as_str) {
                let name = item["metadata"]["name"].as_str().context("an object of no name")?;
                state.versions.entry(name.to_owned()).or_default().push(turn.parse()?);
            }
        }
        Ok(state)
    }

    fn apply(&mut self, event: WatchEvent<DynamicObject>) -> Result<()> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let name = object.metadata.name.context("an object of no name")?;
                if let Some(turn) = object.data.pointer("/data/turn").and_then(Value::as_str) {
                    self.versions.entry(name).or_default().push(turn.parse()?);
                }
                self.version = object.metadata.resource_version.context("an object of no version")?;
            }
            WatchEvent::Bookmark(bookmark) => self.version = bookmark.metadata.resource_version,
            WatchEvent::Deleted(object) => bail!("{:?} is reported as deleted", object.metadata),
            WatchEvent::Error(status) => bail!("the watch ends with {status:?}"),
        }
        Ok(())
    }
}

/// A watching client.
pub struct Watching {
    path: &'static str,
    state: watch::Receiver<WatchState>,
    task: JoinHandle<()>,
}

/// A disconnected client with its state.
pub struct Away {
    path: &'static str,
    state: WatchState,
}

impl Watching {
    /// One client of each kind, after the first event.
    pub fn all(world: &World) -> Result<Vec<Self>> {
        let mut watching = Vec::new();
        for path in WATCHED {
            let mut known = None;
            // Impersonation in the member and the registered resources must be effective first.
            until(&format!("{path} to show what is written"), || {
                let listed = world.runtime.block_on(ask(&world.to_cp, path)).ok();
                known = listed.map(|list| WatchState::of(&serde_json::from_str(&list)?)).transpose()?;
                Ok(known.as_ref().is_some_and(|known| !known.versions.is_empty()))
            })?;
            watching.push(Self::from(world, path, known.context("no list")?));
        }
        for watch in &watching {
            let is_watched =
                || Ok(watch.state.borrow().versions.len() == OBJECTS || watch.state.borrow().broken.is_some());
            until(&format!("{} to be watched", watch.path), is_watched)?;
            let broken = watch.state.borrow().broken.clone();
            ensure!(broken.is_none(), "{broken:?}");
        }
        Ok(watching)
    }

    fn from(world: &World, path: &'static str, known: WatchState) -> Self {
        let (sender, state) = watch::channel(known);
        let task = world.runtime.spawn(follow(world.to_cp.clone(), path, sender));
        Self { path, state, task }
    }

    /// Disconnects.
    pub fn leave(self, world: &World) -> Result<Away> {
        self.task.abort();
        let ended = world.runtime.block_on(self.task);
        let state = self.state.borrow().clone();
        ensure!(ended.is_err_and(|error| error.is_cancelled()), "the watch of {} had ended: {state:?}", self.path);
        Ok(Away { path: self.path, state })
    }

    /// Waits for the last write, and checks that no event is missing or duplicated.
    pub fn expect_all_events(self, world: &World, written: &Written) -> Result<()> {
        let mut state = self.state.clone();
        let all = |state: &WatchState| {
            state.broken.is_some()
                || written
                    .iter()
                    .all(|(name, turn)| state.versions.get(name).and_then(|versions| versions.last()) == Some(turn))
        };
        let waiting =
            async { tokio::time::timeout(PATIENCE, state.wait_for(all)).await.map(|state| state.map(|_| ())) };
        let in_time = world.runtime.block_on(waiting);
        self.task.abort();
        let state = self.state.borrow().clone();
        let path = self.path;
        ensure!(state.broken.is_none() && matches!(in_time, Ok(Ok(()))), "{path}, of {written:?}: {state:?}");
        for (name, versions) in &state.versions {
            let each_once = versions.windows(2).all(|pair| pair[1] == pair[0] + 1);
            ensure!(each_once, "{path} tells {name} as {versions:?}, after {} resumptions", state.resumed);
        }
        ensure!(state.resumed > 0, "the watch of {path} never resumed at another replica");
        eprintln!(
            "{path}: {} events, gone on {} times",
            state.versions.values().map(Vec::len).sum::<usize>(),
            state.resumed
        );
        Ok(())
    }
}

impl Away {
    pub fn back(self, world: &World) -> Result<Watching> {
        let known = WatchState { resumed: self.state.resumed + 1, ..self.state };
        Ok(Watching::from(world, self.path, known))
    }
}

/// Runs until the client is dropped, or an event arrives from which no client could resume.
async fn follow(client: Client, path: &'static str, sender: watch::Sender<WatchState>) {
    loop {
        let version = sender.borrow().version.clone();
        if let Err(error) = watch(&client, path, &version, &sender).await {
            sender.send_modify(|state| state.broken = Some(format!("{error:#}")));
            return;
        }
        sender.send_modify(|state| state.resumed += 1);
    }
}

/// One watch, until it ends.
async fn watch(client: &Client, path: &str, version: &str, sender: &watch::Sender<WatchState>) -> Result<()> {
    let path = format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
    let request = Request::get(&path).body(Vec::new())?;
    let events = match client.request_events::<DynamicObject>(request).await {
        Ok(events) => events,
        // No replica responds for a moment.
        Err(kube::Error::Api(status)) if status.code == 503 => return Ok(()),
        Err(kube::Error::Api(status)) => bail!("{path}: {status:?}"),
        Err(_) => return Ok(()),
    };
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        // An interrupted watch is requested again.
        let Ok(event) = event else { return Ok(()) };
        let mut result = Ok(());
        sender.send_modify(|state| result = state.apply(event));
        result?;
    }
    Ok(())
}
