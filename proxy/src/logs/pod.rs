//! The parts of a pod needed to follow its logs: containers and their states. Has no side effects.

use serde::Deserialize;

use super::select::LogFilter;

/// The containers of a pod in manifest order: init, main, ephemeral.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    pub containers: Vec<Container>,
    /// True if no container runs or will run again.
    pub has_finished: bool,
    /// Creation time in Unix seconds.
    pub created_seconds: Option<i64>,
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
    pub is_running: bool,
    /// True if the container runs or has run, so that it has a log.
    pub has_started: bool,
    /// Container id of the current run.
    id: String,
}

impl Pod {
    /// Decodes a pod from JSON.
    pub fn parse(body: &[u8]) -> Result<Self, serde_json::Error> {
        let manifest: Manifest = serde_json::from_slice(body)?;
        let (spec, status) = (manifest.spec, manifest.status);
        let kinds = [
            (ContainerKind::Init, spec.init_containers, status.init_container_statuses),
            (ContainerKind::Main, spec.containers, status.container_statuses),
            (ContainerKind::Ephemeral, spec.ephemeral_containers, status.ephemeral_container_statuses),
        ];
        let mut containers = Vec::new();
        for (kind, specs, statuses) in kinds {
            containers.extend(specs.unwrap_or_default().into_iter().map(|ContainerSpec { name }| {
                let statuses = statuses.as_deref().unwrap_or_default();
                let state = statuses.iter().find(|status| status.name == name).map(Status::state);
                Container { name, kind, state: state.unwrap_or_default() }
            }));
        }
        let created_seconds = manifest.metadata.creation_timestamp.map(jiff::Timestamp::as_second);
        let has_finished = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        Ok(Self { containers, has_finished, created_seconds })
    }

    /// The containers whose logs are selected.
    pub fn selected_containers<'p>(&'p self, filter: &'p LogFilter) -> impl Iterator<Item = &'p Container> {
        self.containers.iter().filter(|container| filter.matches_container(container))
    }

    /// State of a container.
    pub fn state(&self, container: &str) -> State {
        let found = self.containers.iter().find(|candidate| candidate.name == container);
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
    init_containers: Option<Vec<ContainerSpec>>,
    containers: Option<Vec<ContainerSpec>>,
    ephemeral_containers: Option<Vec<ContainerSpec>>,
}

#[derive(Deserialize)]
struct ContainerSpec {
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
    state: StateFields,
    #[serde(default)]
    last_state: StateFields,
}

#[derive(Deserialize, Default)]
struct StateFields {
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<serde::de::IgnoredAny>,
}

impl Status {
    fn state(&self) -> State {
        let is_running = self.state.running.is_some();
        let has_ended = self.state.terminated.is_some() || self.last_state.terminated.is_some();
        State {
            restarts: self.restart_count,
            is_running,
            has_started: is_running || has_ended,
            id: self.container_id.clone(),
        }
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
        let pod = Pod::parse(pod.to_string().as_bytes()).unwrap();
        let describe = |container: &Container| {
            let State { restarts, is_running, has_started, .. } = &container.state;
            format!("{:?} {} {restarts} {is_running} {has_started}", container.kind, container.name)
        };
        let described: Vec<String> = pod.containers.iter().map(describe).collect();
        assert_eq!(described, ["Init first 0 false true", "Main web 0 true true", "Main side 2 false true"]);
        assert_eq!((pod.has_finished, pod.created_seconds), (false, Some(60)));
        assert!(!pod.state("missing").has_started);
        assert!(Pod::parse(b"{\"status\": {\"phase\": \"Failed\"}}").unwrap().has_finished);
    }
}
