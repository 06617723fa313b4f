//! File systems and shells of containers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use jiff::Timestamp;

use super::filesystem::{Entry, FileSystem, FsError, Node, resolve};
use super::logs::RunLogSink;
use super::pods::{Container, PodRuntime, Run};
use super::runs::{RunKey, RunState};
use super::shell::{Clock, Identity, Shell};
use super::volumes::Volumes;
use super::{Kubelet, image, responder};

impl Kubelet {
    /// Returns the files and log of a run, created on first use.
    pub(super) async fn run_state(&self, container: &Container, run: &Run) -> ApiResult<Arc<RunState>> {
        let key = RunKey::new(container, run);
        if let Some(state) = self.processes.state(&key) {
            return Ok(state);
        }
        if let Some(state) = self.runs.lock().get(&key) {
            return Ok(state);
        }
        let fs = Arc::new(self.create_file_system(container, Some(&self.volumes)).await?);
        Ok(self.runs.lock().insert_if_absent(key, Arc::new(RunState { fs, log: Arc::default() })))
    }

    /// Creates the initial file system of a container. Without `volumes`, its mounts are empty directories.
    pub(super) async fn create_file_system(
        &self,
        container: &Container,
        volumes: Option<&Volumes>,
    ) -> ApiResult<FileSystem> {
        let now = self.runtime.now();
        let mut fs = FileSystem::new(now);
        let pod = &container.pod;
        let mut files = vec![
            ("/etc/hostname".to_owned(), format!("{}\n", pod.hostname()).into_bytes()),
            ("/etc/hosts".to_owned(), format!("127.0.0.1\tlocalhost\n{}\t{}\n", pod.ip(), pod.hostname()).into_bytes()),
            ("/etc/os-release".to_owned(), b"NAME=\"Simulated\"\nID=simulated\n".to_vec()),
            ("/etc/passwd".to_owned(), b"root:x:0:0:root:/root:/bin/sh\n".to_vec()),
            (
                "/etc/resolv.conf".to_owned(),
                format!("search {}.svc.cluster.local svc.cluster.local cluster.local\n", pod.namespace()).into_bytes(),
            ),
            ("/var/run/secrets/kubernetes.io/serviceaccount/namespace".to_owned(), pod.namespace().as_bytes().to_vec()),
        ];
        let mut directories: Vec<String> =
            ["/bin", "/dev", "/proc", "/root", "/tmp", "/usr", "/var/log"].map(str::to_owned).into();
        directories.push(container.working_dir().to_owned());
        if let Some(root) = image::document_root(container.image()) {
            let page = responder::default_page(pod.namespace(), pod.name());
            files.push((format!("{root}/{}", image::DEFAULT_PAGE), page.into_bytes()));
        }
        let mut shared = Vec::new();
        for mount in container.read_mounts(&*self.runtime).await? {
            files.extend(mount.files.into_iter().map(|(name, bytes)| (resolve(&mount.path, &name), bytes)));
            if let (Some(volumes), Some(volume)) = (volumes, mount.shared) {
                shared.push((mount.path.clone(), volumes.file_system(volume, now)));
            }
            directories.push(mount.path);
        }
        let build = || -> Result<(), FsError> {
            for directory in &directories {
                fs.make_dir(directory, true, now)?;
            }
            for (path, bytes) in files {
                fs.make_dir(path.rsplit_once('/').map_or("/", |(parent, _)| parent), true, now)?;
                fs.put(&path, Entry { node: Node::File(bytes.into()), mode: 0o644, modified: now })?;
            }
            Ok(())
        };
        build().map_err(|error| {
            ApiError::internal(format!("cannot create the file system of container {}: {error}", container.name))
        })?;
        for (path, volume) in shared {
            fs.mount(&path, volume);
        }
        Ok(fs)
    }

    /// Creates a shell with the container's environment on the files of a run.
    pub(super) async fn create_shell(&self, container: &Container, run: &Run, state: &RunState) -> ApiResult<Shell> {
        let identity = Identity {
            hostname: container.pod.hostname().to_owned(),
            node: container.pod.node().to_owned(),
            ip: container.pod.ip().to_owned(),
            command: container.command_line(),
            started: run.started,
            seed: RunKey::new(container, run).seed(),
        };
        let clock = Arc::new(MemberClock(self.runtime.clone()));
        let env = container.read_environment(&*self.runtime).await?;
        let mut shell = Shell::new(state.fs.clone(), Arc::new(identity), clock, env);
        shell.cwd = resolve("/", container.working_dir());
        shell.log = Arc::new(RunLogSink { log: state.log.clone(), runtime: self.runtime.clone() });
        Ok(shell)
    }
}

/// The clock of the member as a [`Clock`].
struct MemberClock(Arc<dyn PodRuntime>);

#[async_trait]
impl Clock for MemberClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
