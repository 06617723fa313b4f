//! A client that continuously writes in the member, and clients that watch through the common address. A watch that
//! ends or breaks resumes from the last resourceVersion, as informers do.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{WAIT_TIMEOUT, wait_for};
use futures::StreamExt;
use http::Request;
use kube::Client;
use kube::api::{DynamicObject, PostParams, WatchEvent};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::serve::readers::get_text;
use crate::serve::test_env::{FLEET_CONFIG_MAPS, TestEnv, object, objects};

/// Watched paths: fleet-wide from the cache, and of one cluster directly.
const WATCHED_PATHS: [&str; 2] =
    [FLEET_CONFIG_MAPS, "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default/configmaps"];
const WRITE_INTERVAL: Duration = Duration::from_millis(100);
/// Number of objects that are written one after another.
const OBJECTS: usize = 7;

/// Number of writes of each object, by name. Each write stores this number in the object.
type WriteCounts = BTreeMap<String, u64>;

fn object_name(number: usize) -> String {
    format!("watched-{number}")
}

/// Task that writes objects in the member.
pub struct Writer {
    is_stopped: Arc<AtomicBool>,
    task: JoinHandle<Result<WriteCounts>>,
}

impl Writer {
    pub fn start(env: &TestEnv) -> Result<Self> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let task = env.runtime.spawn(write(env.m1_client.clone(), Arc::clone(&is_stopped)));
        Ok(Self { is_stopped, task })
    }

    pub fn stop(self, env: &TestEnv) -> Result<WriteCounts> {
        self.is_stopped.store(true, Ordering::Relaxed);
        env.runtime.block_on(self.task).context("the writer panicked")?
    }
}

async fn write(member: Client, is_stopped: Arc<AtomicBool>) -> Result<WriteCounts> {
    let maps = objects(&member, "", "v1", "ConfigMap", Some("default"));
    let map = |name: &str, turn: u64| {
        object(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"turn": turn.to_string()}}),
        )
    };
    let mut counts = WriteCounts::new();
    let mut interval = tokio::time::interval(WRITE_INTERVAL);
    for number in (0..OBJECTS).cycle() {
        if is_stopped.load(Ordering::Relaxed) {
            break;
        }
        interval.tick().await;
        let name = object_name(number);
        let turn = counts.get(&name).map_or(1, |turn| turn + 1);
        match turn {
            1 => maps.create(&PostParams::default(), &map(&name, turn)?).await?,
            _ => maps.replace(&name, &PostParams::default(), &map(&name, turn)?).await?,
        };
        counts.insert(name, turn);
    }
    Ok(counts)
}

/// State of a watch.
#[derive(Debug, Clone, Default)]
struct WatchState {
    /// resourceVersion of the last event.
    resource_version: String,
    /// Numbers in the events of each object, by name, in the order of the events.
    turns: BTreeMap<String, Vec<u64>>,
    /// Number of resumptions.
    resumed: usize,
    /// Error after which the client cannot resume.
    error: Option<String>,
}

impl WatchState {
    /// The state after a list, from which a watch starts.
    fn from_list(list: &Value) -> Result<Self> {
        let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let version = version.context("the list has no resourceVersion")?;
        let mut state = Self { resource_version: version.to_owned(), ..Self::default() };
        for item in list["items"].as_array().into_iter().flatten() {
            if let Some(turn) = item.pointer("/data/turn").and_then(Value::as_str) {
                let name = item["metadata"]["name"].as_str().context("the object has no name")?;
                state.turns.entry(name.to_owned()).or_default().push(turn.parse()?);
            }
        }
        Ok(state)
    }

    fn apply(&mut self, event: WatchEvent<DynamicObject>) -> Result<()> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let name = object.metadata.name.context("the object has no name")?;
                if let Some(turn) = object.data.pointer("/data/turn").and_then(Value::as_str) {
                    self.turns.entry(name).or_default().push(turn.parse()?);
                }
                self.resource_version =
                    object.metadata.resource_version.context("the object has no resourceVersion")?;
            }
            WatchEvent::Bookmark(bookmark) => self.resource_version = bookmark.metadata.resource_version,
            WatchEvent::Deleted(object) => bail!("{:?} is reported as deleted", object.metadata),
            WatchEvent::Error(status) => bail!("the watch ends with {status:?}"),
        }
        Ok(())
    }
}

/// A watching client.
pub struct WatchClient {
    path: &'static str,
    state: watch::Receiver<WatchState>,
    task: JoinHandle<()>,
}

/// A disconnected client with its state.
pub struct DisconnectedClient {
    path: &'static str,
    state: WatchState,
}

impl WatchClient {
    /// Starts one client for each path, and waits until it has received events of all objects.
    pub fn start_all(env: &TestEnv) -> Result<Vec<Self>> {
        let mut clients = Vec::new();
        for path in WATCHED_PATHS {
            let mut state = None;
            // The caller's permissions in the member and the registered resources take effect after some time.
            wait_for(&format!("{path} to return written objects"), || {
                let listed = env.runtime.block_on(get_text(&env.cp_client, path)).ok();
                state = listed.map(|list| WatchState::from_list(&serde_json::from_str(&list)?)).transpose()?;
                Ok(state.as_ref().is_some_and(|state| !state.turns.is_empty()))
            })?;
            clients.push(Self::start(env, path, state.context("the objects were not listed")?));
        }
        for client in &clients {
            let is_watched =
                || Ok(client.state.borrow().turns.len() == OBJECTS || client.state.borrow().error.is_some());
            wait_for(&format!("{} to be watched", client.path), is_watched)?;
            let error = client.state.borrow().error.clone();
            ensure!(error.is_none(), "{error:?}");
        }
        Ok(clients)
    }

    /// Starts a watch from a state.
    fn start(env: &TestEnv, path: &'static str, initial: WatchState) -> Self {
        let (sender, state) = watch::channel(initial);
        let task = env.runtime.spawn(watch_repeatedly(env.cp_client.clone(), path, sender));
        Self { path, state, task }
    }

    pub fn disconnect(self, env: &TestEnv) -> Result<DisconnectedClient> {
        self.task.abort();
        let result = env.runtime.block_on(self.task);
        let state = self.state.borrow().clone();
        ensure!(result.is_err_and(|error| error.is_cancelled()), "the watch of {} had ended: {state:?}", self.path);
        Ok(DisconnectedClient { path: self.path, state })
    }

    /// Waits for the event of the last write, and checks that no event is missing or duplicated and that the watch was
    /// resumed at least once.
    pub fn expect_all_events(self, env: &TestEnv, counts: &WriteCounts) -> Result<()> {
        let mut state = self.state.clone();
        let is_complete = |state: &WatchState| {
            state.error.is_some()
                || counts
                    .iter()
                    .all(|(name, count)| state.turns.get(name).and_then(|turns| turns.last()) == Some(count))
        };
        let waiting = async {
            tokio::time::timeout(WAIT_TIMEOUT, state.wait_for(is_complete)).await.map(|state| state.map(|_| ()))
        };
        let in_time = env.runtime.block_on(waiting);
        self.task.abort();
        let state = self.state.borrow().clone();
        let path = self.path;
        ensure!(state.error.is_none() && matches!(in_time, Ok(Ok(()))), "{path}, after {counts:?}: {state:?}");
        for (name, turns) in &state.turns {
            let each_once = turns.windows(2).all(|pair| pair[1] == pair[0] + 1);
            ensure!(each_once, "{path} returned {turns:?} for {name}, after {} resumptions", state.resumed);
        }
        ensure!(state.resumed > 0, "the watch of {path} never resumed at another replica");
        eprintln!(
            "{path}: {} events, {} resumptions",
            state.turns.values().map(Vec::len).sum::<usize>(),
            state.resumed
        );
        Ok(())
    }
}

impl DisconnectedClient {
    /// Resumes the watch where it was disconnected.
    pub fn reconnect(self, env: &TestEnv) -> Result<WatchClient> {
        let state = WatchState { resumed: self.state.resumed + 1, ..self.state };
        Ok(WatchClient::start(env, self.path, state))
    }
}

/// Runs until the client is dropped, or an event arrives from which no client could resume.
async fn watch_repeatedly(client: Client, path: &'static str, sender: watch::Sender<WatchState>) {
    loop {
        let version = sender.borrow().resource_version.clone();
        if let Err(error) = watch(&client, path, &version, &sender).await {
            sender.send_modify(|state| state.error = Some(format!("{error:#}")));
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
