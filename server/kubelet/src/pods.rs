//! The kubelet's view of pods: selecting containers, their runs, environment and volumes.
//!
//! The objects of the API are the only state. The member provides them through [`PodRuntime`].

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::unstructured::{list, text};
use jiff::Timestamp;
use serde_json::Value;

use super::image::{Invocation, SimulatedServer};
use super::probes::{Probe, ProbeKind};
use super::volumes::VolumeKey;

/// Objects and clock of the member, which the kubelet needs. Objects are complete and defaulted, as in the member's
/// API.
#[async_trait]
pub trait PodRuntime: Send + Sync + 'static {
    /// Gets one core/v1 object by plural (`pods`, `configmaps`, `secrets`, `services`, `persistentvolumeclaims`).
    async fn get(&self, resource: &str, namespace: &str, name: &str) -> ApiResult<Option<Arc<Value>>>;

    /// Lists the pods of a namespace.
    async fn list_pods(&self, namespace: &str) -> ApiResult<Vec<Arc<Value>>>;

    /// Returns the time of the member's clock.
    fn now(&self) -> Timestamp;
}

/// Namespace and name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
}

/// A port of a pod and the container that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub namespace: String,
    pub pod: String,
    pub node: String,
    pub ip: String,
    pub container: String,
    pub image: String,
    pub port: u16,
    pub hostname: String,
    pub server: SimulatedServer,
}

/// A volume mount of a container.
#[derive(Debug, Clone)]
pub struct Mount {
    pub path: String,
    /// Files from a ConfigMap or Secret.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Key of the shared file system, for volumes that containers can write to.
    pub shared: Option<VolumeKey>,
}

/// A pod object.
#[derive(Debug, Clone)]
pub struct Pod(Arc<Value>);

/// A container of a pod with its status.
#[derive(Debug, Clone)]
pub struct Container {
    pub pod: Pod,
    pub name: String,
    spec: Value,
    status: Value,
}

/// One run of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub started: Timestamp,
    /// End, exit code and reason of a finished run.
    pub finished: Option<(Timestamp, i64, String)>,
    pub restarts: i64,
}

fn parse_time(value: &Value, pointer: &str) -> Option<Timestamp> {
    text(value, pointer).parse().ok()
}

impl Pod {
    /// Reads a pod. Fails with NotFound if it does not exist.
    pub async fn get(runtime: &dyn PodRuntime, pod: &PodRef) -> ApiResult<Self> {
        let object = runtime.get("pods", &pod.namespace, &pod.name).await?;
        object.map(Pod).ok_or_else(|| ApiError::not_found("", "pods", &pod.name))
    }

    pub fn name(&self) -> &str {
        text(&self.0, "/metadata/name")
    }

    pub fn namespace(&self) -> &str {
        text(&self.0, "/metadata/namespace")
    }

    pub fn uid(&self) -> &str {
        text(&self.0, "/metadata/uid")
    }

    pub fn node(&self) -> &str {
        text(&self.0, "/spec/nodeName")
    }

    pub fn ip(&self) -> &str {
        text(&self.0, "/status/podIP")
    }

    /// Returns namespace and name.
    pub fn reference(&self) -> PodRef {
        PodRef { namespace: self.namespace().to_owned(), name: self.name().to_owned() }
    }

    fn restarts_always(&self) -> bool {
        !matches!(text(&self.0, "/spec/restartPolicy"), "Never" | "OnFailure")
    }

    pub fn phase(&self) -> &str {
        text(&self.0, "/status/phase")
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.0.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    /// Returns the host name of the pod's containers.
    pub fn hostname(&self) -> &str {
        Some(text(&self.0, "/spec/hostname")).filter(|h| !h.is_empty()).unwrap_or_else(|| self.name())
    }

    fn container_names(&self, field: &str) -> Vec<&str> {
        list(&self.0, &format!("/spec/{field}")).iter().map(|c| text(c, "/name")).collect()
    }

    /// Selects a container by name or the default one, with the error messages of kube-apiserver.
    pub fn container(&self, requested: &str) -> ApiResult<Container> {
        let (containers, inits) = (self.container_names("containers"), self.container_names("initContainers"));
        let name = match (requested, containers.as_slice()) {
            ("", [only]) => (*only).to_owned(),
            ("", _) => {
                let mut message = format!("a container name must be specified for pod {}", self.name());
                if !containers.is_empty() {
                    message.push_str(&format!(", choose one of: [{}]", containers.join(" ")));
                }
                if !inits.is_empty() {
                    message.push_str(&format!(" or one of the init containers: [{}]", inits.join(" ")));
                }
                return Err(ApiError::bad_request(message));
            }
            (name, _) => name.to_owned(),
        };
        for (field, statuses) in [
            ("containers", "containerStatuses"),
            ("initContainers", "initContainerStatuses"),
            ("ephemeralContainers", "ephemeralContainerStatuses"),
        ] {
            let has_name = |c: &&Value| text(c, "/name") == name;
            if let Some(spec) = list(&self.0, &format!("/spec/{field}")).iter().find(has_name) {
                let status = list(&self.0, &format!("/status/{statuses}")).iter().find(has_name);
                return Ok(Container {
                    pod: self.clone(),
                    spec: spec.clone(),
                    status: status.cloned().unwrap_or(Value::Null),
                    name,
                });
            }
        }
        Err(ApiError::bad_request(format!("container {name} is not valid for pod {}", self.name())))
    }

    /// Returns the first container, the default of attach.
    pub fn first_container(&self) -> ApiResult<Container> {
        self.container(self.container_names("containers").first().copied().unwrap_or_default())
    }

    /// Fails for pods without a node, as required by streaming subresources.
    pub fn require_node(&self) -> ApiResult<()> {
        if self.node().is_empty() {
            return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", self.name())));
        }
        Ok(())
    }

    /// Returns the endpoint of a container port, `None` if no container listens on it.
    pub fn endpoint(&self, port: u16) -> Option<Endpoint> {
        self.endpoints().find(|e| e.port == port)
    }

    /// Returns the endpoint of a port in a `name:port` path: a number, a name, or empty for the first declared port.
    pub fn named_endpoint(&self, port: &str) -> Option<Endpoint> {
        if let Ok(number) = port.parse() {
            return self.endpoint(number);
        }
        let mut ports = list(&self.0, "/spec/containers").iter().flat_map(|c| list(c, "/ports"));
        if port.is_empty() {
            return self.endpoints().next();
        }
        let port = ports.find(|p| text(p, "/name") == port)?;
        self.endpoint(u16::try_from(port.get("containerPort")?.as_u64()?).ok()?)
    }

    fn endpoints(&self) -> impl Iterator<Item = Endpoint> + '_ {
        list(&self.0, "/spec/containers").iter().flat_map(move |container| {
            list(container, "/ports").iter().filter_map(move |port| {
                Some(Endpoint {
                    namespace: self.namespace().to_owned(),
                    pod: self.name().to_owned(),
                    node: self.node().to_owned(),
                    ip: self.ip().to_owned(),
                    container: text(container, "/name").to_owned(),
                    image: text(container, "/image").to_owned(),
                    port: u16::try_from(port.get("containerPort")?.as_u64()?).ok()?,
                    hostname: self.hostname().to_owned(),
                    server: SimulatedServer::from_image(
                        text(container, "/image"),
                        list(container, "/args").first().and_then(Value::as_str),
                    ),
                })
            })
        })
    }

    /// Returns true if the pod matches the selector of a Service and is ready.
    pub fn is_backend(&self, selector: &serde_json::Map<String, Value>) -> bool {
        let labels = self.0.pointer("/metadata/labels");
        let is_ready = list(&self.0, "/status/conditions")
            .iter()
            .any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True");
        is_ready && selector.iter().all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value))
    }

    pub fn from_object(object: Arc<Value>) -> Self {
        Self(object)
    }

    /// Value of a `fieldRef`.
    fn field(&self, path: &str) -> String {
        match path.split_once('[') {
            Some((map, key)) => {
                let key = key.trim_end_matches(']').trim_matches('\'');
                let map = self.0.pointer(&format!("/{}", map.replace('.', "/")));
                map.and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or_default().to_owned()
            }
            None => text(&self.0, &format!("/{}", path.replace('.', "/"))).to_owned(),
        }
    }

    /// Returns a volume by name.
    fn volume(&self, name: &str) -> Option<&Value> {
        list(&self.0, "/spec/volumes").iter().find(|v| text(v, "/name") == name)
    }
}

impl Container {
    pub fn image(&self) -> &str {
        text(&self.spec, "/image")
    }

    pub fn working_dir(&self) -> &str {
        Some(text(&self.spec, "/workingDir")).filter(|d| !d.is_empty()).unwrap_or("/")
    }

    pub fn has_stdin(&self) -> bool {
        self.spec.get("stdin").and_then(Value::as_bool).unwrap_or_default()
    }

    /// Returns true for `stdinOnce`: only the first attached session provides stdin, and the process ends with it.
    pub fn ends_with_stdin(&self) -> bool {
        self.spec.get("stdinOnce").and_then(Value::as_bool).unwrap_or_default()
    }

    fn string_list(&self, field: &str) -> Vec<String> {
        list(&self.spec, field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Returns `command` followed by `args`; empty if the image determines the command.
    pub fn command_line(&self) -> Vec<String> {
        [self.string_list("/command"), self.string_list("/args")].concat()
    }

    /// Returns true if the container is restarted after success: sidecars, and main containers of pods with
    /// `restartPolicy: Always`.
    fn restarts_always(&self) -> bool {
        match self.pod.container_names("initContainers").contains(&self.name.as_str()) {
            true => text(&self.spec, "/restartPolicy") == "Always",
            false => self.pod.restarts_always(),
        }
    }

    /// Returns the command line that the simulated shell runs for the container, if it supports it.
    pub fn supported_command(&self) -> Option<Vec<String>> {
        let invocation = Invocation {
            image: self.image(),
            command: &self.string_list("/command"),
            args: &self.string_list("/args"),
            has_stdin: self.has_stdin(),
            restarts_always: self.restarts_always(),
        };
        invocation.command_line()
    }

    pub fn probe(&self, kind: ProbeKind) -> Option<Probe> {
        Probe::from_container(&self.spec, kind)
    }

    pub fn ports(&self) -> impl Iterator<Item = (u64, &str)> {
        list(&self.spec, "/ports").iter().filter_map(|p| Some((p.get("containerPort")?.as_u64()?, text(p, "/name"))))
    }

    /// Returns the current run, or the last one if the container has terminated.
    pub fn current_run(&self) -> Option<Run> {
        let restarts = self.status.get("restartCount").and_then(Value::as_i64).unwrap_or_default();
        if let Some(started) = parse_time(&self.status, "/state/running/startedAt") {
            return Some(Run { started, finished: None, restarts });
        }
        self.terminated_run("/state/terminated", restarts).or_else(|| {
            // While the container waits for its next start, the terminated run is the current one.
            self.terminated_run("/lastState/terminated", restarts)
        })
    }

    /// Returns the run before the current one, if its status is known.
    pub fn previous_run(&self) -> Option<Run> {
        let restarts = self.status.get("restartCount").and_then(Value::as_i64).unwrap_or_default();
        // `restartCount` does not yet include a restart that the container is waiting for.
        let is_waiting = self.status.pointer("/state/waiting").is_some();
        self.terminated_run("/lastState/terminated", if is_waiting { restarts } else { restarts - 1 })
    }

    fn terminated_run(&self, state: &str, restarts: i64) -> Option<Run> {
        let state = self.status.pointer(state)?;
        let finished = parse_time(state, "/finishedAt")?;
        let code = state.get("exitCode").and_then(Value::as_i64).unwrap_or_default();
        Some(Run {
            started: parse_time(state, "/startedAt").unwrap_or(finished),
            finished: Some((finished, code, text(state, "/reason").to_owned())),
            restarts,
        })
    }

    pub fn is_running(&self) -> bool {
        self.status.pointer("/state/running").is_some()
    }

    /// Returns the reason for waiting, `ContainerCreating` without a status.
    pub fn waiting_reason(&self) -> &str {
        Some(text(&self.status, "/state/waiting/reason")).filter(|r| !r.is_empty()).unwrap_or("ContainerCreating")
    }

    /// Returns the environment of the process: image defaults, `envFrom` and `env`, with references resolved in the
    /// member.
    pub async fn read_environment(&self, runtime: &dyn PodRuntime) -> ApiResult<BTreeMap<String, String>> {
        let mut env = BTreeMap::from([
            ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOSTNAME".to_owned(), self.pod.hostname().to_owned()),
            ("HOME".to_owned(), "/root".to_owned()),
        ]);
        for source in list(&self.spec, "/envFrom") {
            let prefix = text(source, "/prefix");
            for (resource, reference) in [("configmaps", "/configMapRef/name"), ("secrets", "/secretRef/name")] {
                for (key, value) in self.read_data(runtime, resource, text(source, reference)).await? {
                    env.insert(format!("{prefix}{key}"), String::from_utf8_lossy(&value).into_owned());
                }
            }
        }
        for variable in list(&self.spec, "/env") {
            let value = match variable.get("valueFrom") {
                Some(from) => self.read_value_from(runtime, from).await?,
                None => Some(expand_variables(text(variable, "/value"), &env)),
            };
            if let Some(value) = value {
                env.insert(text(variable, "/name").to_owned(), value);
            }
        }
        Ok(env)
    }

    async fn read_value_from(&self, runtime: &dyn PodRuntime, from: &Value) -> ApiResult<Option<String>> {
        if let Some(field) = from.pointer("/fieldRef/fieldPath").and_then(Value::as_str) {
            return Ok(Some(self.pod.field(field)));
        }
        if let Some(resource) = from.pointer("/resourceFieldRef/resource").and_then(Value::as_str) {
            let (list, name) = resource.split_once('.').unwrap_or((resource, ""));
            return Ok(self
                .spec
                .pointer(&format!("/resources/{list}/{name}"))
                .and_then(Value::as_str)
                .map(str::to_owned));
        }
        for (resource, reference) in [("configmaps", "configMapKeyRef"), ("secrets", "secretKeyRef")] {
            if let Some(reference) = from.get(reference) {
                let mut data = self.read_data(runtime, resource, text(reference, "/name")).await?;
                return Ok(data.remove(text(reference, "/key")).map(|v| String::from_utf8_lossy(&v).into_owned()));
            }
        }
        Ok(None)
    }

    /// Returns the data of a ConfigMap or Secret; empty if the name is empty or the object does not exist.
    async fn read_data(
        &self,
        runtime: &dyn PodRuntime,
        resource: &str,
        name: &str,
    ) -> ApiResult<BTreeMap<String, Vec<u8>>> {
        use base64::Engine;
        let decode = |text: &str| base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default();
        let mut data = BTreeMap::new();
        if name.is_empty() {
            return Ok(data);
        }
        let Some(object) = runtime.get(resource, self.pod.namespace(), name).await? else { return Ok(data) };
        let entries = |field: &str| object.get(field).and_then(Value::as_object).into_iter().flatten();
        for (key, value) in entries("data") {
            let value = value.as_str().unwrap_or_default();
            data.insert(key.clone(), if resource == "secrets" { decode(value) } else { value.as_bytes().to_vec() });
        }
        for (key, value) in entries("binaryData") {
            data.insert(key.clone(), decode(value.as_str().unwrap_or_default()));
        }
        Ok(data)
    }

    /// Returns the volume mounts.
    pub async fn read_mounts(&self, runtime: &dyn PodRuntime) -> ApiResult<Vec<Mount>> {
        let mut mounts = Vec::new();
        for mount in list(&self.spec, "/volumeMounts") {
            let Some(volume) = self.pod.volume(text(mount, "/name")) else { continue };
            let mut files = self.read_data(runtime, "configmaps", text(volume, "/configMap/name")).await?;
            files.append(&mut self.read_data(runtime, "secrets", text(volume, "/secret/secretName")).await?);
            let shared = match text(mount, "/subPath") {
                "" => self.shared_volume(runtime, volume).await?,
                // A `subPath` is simulated as a separate file system.
                sub_path => self.shared_volume(runtime, volume).await?.map(|volume| volume.with_sub_path(sub_path)),
            };
            mounts.push(Mount { path: text(mount, "/mountPath").to_owned(), files, shared });
        }
        Ok(mounts)
    }

    /// Returns the key of a volume that containers can write to.
    async fn shared_volume(&self, runtime: &dyn PodRuntime, volume: &Value) -> ApiResult<Option<VolumeKey>> {
        let pod = &self.pod;
        if volume.get("emptyDir").is_some() {
            return Ok(Some(VolumeKey::Pod(pod.uid().to_owned(), text(volume, "/name").to_owned())));
        }
        if let Some(path) = volume.pointer("/hostPath/path").and_then(Value::as_str) {
            return Ok(Some(VolumeKey::Node(pod.node().to_owned(), path.to_owned())));
        }
        let Some(claim) = volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str) else {
            return Ok(None);
        };
        let claim = runtime.get("persistentvolumeclaims", pod.namespace(), claim).await?;
        Ok(claim.map(|claim| VolumeKey::Claim(text(&claim, "/metadata/uid").to_owned())))
    }
}

/// Expands `$(NAME)` to a previously defined variable and `$$` to a dollar sign. References to unknown variables are
/// kept.
fn expand_variables(value: &str, env: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = value;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match env.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded + rest
}
