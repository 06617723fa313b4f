//! The parts of a pod needed to follow its logs: containers and their states. Pure.

use serde::Deserialize;

use super::select::LogFilter;

/// The containers of a pod in manifest order: init, main, ephemeral.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    pub containers: Vec<Container>,
    /// No container runs or will run again.
    pub finished: bool,
    /// Unix seconds.
    pub created: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub kind: ContainerKind,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    Init,
    Main,
    Ephemeral,
}

/// State of a container. When it changes, there may be more log lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    pub restarts: i64,
    pub running: bool,
    /// The container runs or has run, so it has a log.
    pub started: bool,
    /// Container id of the current run.
    id: String,
}

impl Pod {
    /// Decodes a pod from JSON.
    pub fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let manifest: Manifest = serde_json::from_slice(body)?;
        let (spec, status) = (manifest.spec, manifest.status);
        let kinds = [
            (ContainerKind::Init, spec.init_containers, status.init_container_statuses),
            (ContainerKind::Main, spec.containers, status.container_statuses),
            (ContainerKind::Ephemeral, spec.ephemeral_containers, status.ephemeral_container_statuses),
        ];
        let mut containers = Vec::new();
        for (kind, named, statuses) in kinds {
            containers.extend(named.unwrap_or_default().into_iter().map(|Named { name }| {
                let statuses = statuses.as_deref().unwrap_or_default();
                let state = statuses.iter().find(|status| status.name == name).map(Status::state);
                Container { name, kind, state: state.unwrap_or_default() }
            }));
        }
        let created = manifest.metadata.creation_timestamp.map(jiff::Timestamp::as_second);
        Ok(Self { containers, finished: matches!(status.phase.as_str(), "Succeeded" | "Failed"), created })
    }

    /// The containers whose logs are selected.
    pub fn wanted<'p>(&'p self, wanted: &'p LogFilter) -> impl Iterator<Item = &'p Container> {
        self.containers.iter().filter(|container| wanted.matches_container(container))
    }

    /// State of a container.
    pub fn state(&self, container: &str) -> State {
        let found = self.containers.iter().find(|known| known.name == container);
        found.map(|container| container.state.clone()).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    creation_timestamp: Option<jiff::Timestamp>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    init_containers: Option<Vec<Named>>,
    containers: Option<Vec<Named>>,
    ephemeral_containers: Option<Vec<Named>>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    init_container_statuses: Option<Vec<Status>>,
    container_statuses: Option<Vec<Status>>,
    ephemeral_container_statuses: Option<Vec<Status>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    name: String,
    #[serde(default)]
    restart_count: i64,
    #[serde(default, rename = "containerID")]
    container_id: String,
    #[serde(default)]
    state: States,
    #[serde(default)]
    last_state: States,
}

#[derive(Deserialize, Default)]
struct States {
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<serde::de::IgnoredAny>,
}

impl Status {
    fn state(&self) -> State {
        let running = self.state.running.is_some();
        let ended = self.state.terminated.is_some() || self.last_state.terminated.is_some();
        State { restarts: self.restart_count, running, started: running || ended, id: self.container_id.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_are_decoded() {
        let pod = json!({
            "metadata": {"creationTimestamp": "1970-01-01T00:01:00Z"},
            "spec": {"containers": [{"name": "web"}, {"name": "side"}], "initContainers": [{"name": "first", "image": "x"}]},
            "status": {
                "phase": "Running",
                "initContainerStatuses": [{"name": "first", "state": {"terminated": {"exitCode": 0}}}],
                "containerStatuses": [
                    {"name": "side", "restartCount": 2, "state": {"waiting": {}}, "lastState": {"terminated": {}}},
                    {"name": "web", "restartCount": 0, "containerID": "c://1", "state": {"running": {}}},
                ],
            },
        });
        let pod = Pod::read(pod.to_string().as_bytes()).unwrap();
        let describe = |container: &Container| {
            let State { restarts, running, started, .. } = &container.state;
            format!("{:?} {} {restarts} {running} {started}", container.kind, container.name)
        };
        let described: Vec<String> = pod.containers.iter().map(describe).collect();
        assert_eq!(described, ["Init first 0 false true", "Main web 0 true true", "Main side 2 false true"]);
        assert_eq!((pod.finished, pod.created), (false, Some(60)));
        assert!(!pod.state("nobody").started);
        assert!(Pod::read(b"{\"status\": {\"phase\": \"Failed\"}}").unwrap().finished);
    }
}
