//! Client configurations from kubeconfig files. Errors name the file, the cause and the next step.

use std::io;
use std::path::{Path, PathBuf};

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Reasons why there is no client configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the kubeconfig {path:?}: {cause}; pass the path of a readable file")]
    Unreadable { path: PathBuf, cause: String },
    #[error("cannot parse the kubeconfig {path:?}: {cause}; check it with \"kubectl config view --kubeconfig {}\"", path.display())]
    Malformed { path: PathBuf, cause: String },
    #[error("the kubeconfig {path:?} has no current context; name one of its contexts ({})", available.join(", "))]
    NoContext { path: PathBuf, available: Vec<String> },
    #[error("the kubeconfig {path:?} has no context {context:?}; its contexts are {}", available.join(", "))]
    UnknownContext { path: PathBuf, context: String, available: Vec<String> },
    #[error("cannot use context {context:?} of the kubeconfig {path:?}: {cause}")]
    Unusable { path: PathBuf, context: String, cause: KubeconfigError },
    #[error("cannot use $KUBECONFIG or ~/.kube/config: {0}")]
    Default(KubeconfigError),
    #[error("cannot read the pod's service account; outside of a pod, use --kubeconfig")]
    InCluster(#[source] InClusterError),
}

/// A kubeconfig file and one of its contexts.
#[derive(Debug, Clone)]
pub struct KubeconfigContext {
    pub file: PathBuf,
    /// `None` for the file's current context.
    pub context: Option<String>,
}

impl KubeconfigContext {
    /// The context of `file`; `None` without a file.
    pub fn from_flags(file: Option<PathBuf>, context: Option<String>) -> Option<Self> {
        file.map(|file| Self { file, context })
    }

    /// Loads the client configuration.
    pub async fn load(&self) -> Result<kube::Config, Error> {
        load_config(Some(&self.file), self.context.as_deref()).await
    }
}

/// A kubeconfig file in memory. Relative paths in it refer to its folder.
#[derive(Debug, Clone)]
pub struct KubeconfigFile {
    path: PathBuf,
    content: Kubeconfig,
}

impl KubeconfigFile {
    pub fn read(path: &Path) -> Result<Self, Error> {
        let content = Kubeconfig::read_from(path).map_err(|error| read_error(path.to_owned(), error))?;
        Ok(Self { path: path.to_owned(), content })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn contexts(&self) -> impl Iterator<Item = &str> {
        self.content.contexts.iter().map(|context| context.name.as_str())
    }

    pub fn into_content(self) -> Kubeconfig {
        self.content
    }

    /// Client configuration of `context`, by default of the file's current context.
    pub async fn config(&self, context: Option<&str>) -> Result<kube::Config, Error> {
        let path = || self.path.clone();
        let available = || self.contexts().map(str::to_owned).collect();
        let Some(context) = context.or(self.content.current_context.as_deref()) else {
            return Err(Error::NoContext { path: path(), available: available() });
        };
        if !self.contexts().any(|available| available == context) {
            return Err(Error::UnknownContext { path: path(), context: context.to_owned(), available: available() });
        }
        let config = kube::Config::from_custom_kubeconfig(self.content.clone(), &options(Some(context))).await;
        config.map_err(|cause| Error::Unusable { path: path(), context: context.to_owned(), cause })
    }
}

/// Loads the client configuration of `context`, by default of the current context. Without a file, reads `$KUBECONFIG`
/// or `~/.kube/config`.
pub async fn load_config(file: Option<&Path>, context: Option<&str>) -> Result<kube::Config, Error> {
    match file {
        Some(file) => KubeconfigFile::read(file)?.config(context).await,
        None => kube::Config::from_kubeconfig(&options(context)).await.map_err(Error::Default),
    }
}

/// Loads the client configuration of a kubeconfig; without one, that of the pod's service account.
pub async fn load_or_in_cluster(kubeconfig: Option<&KubeconfigContext>) -> Result<kube::Config, Error> {
    match kubeconfig {
        Some(kubeconfig) => kubeconfig.load().await,
        None => kube::Config::incluster().map_err(Error::InCluster),
    }
}

/// Client configuration of the current context of a kubeconfig that is in memory.
pub async fn config_from_content(content: Kubeconfig) -> Result<kube::Config, KubeconfigError> {
    kube::Config::from_custom_kubeconfig(content, &options(None)).await
}

fn options(context: Option<&str>) -> KubeConfigOptions {
    KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() }
}

fn read_error(path: PathBuf, error: KubeconfigError) -> Error {
    match error {
        KubeconfigError::ReadConfig(error, _) => Error::Unreadable { path, cause: io_cause(&error) },
        KubeconfigError::Parse(error) => {
            // The first line of the parser's message is the cause; further lines show the position.
            let cause = error.to_string().lines().next().unwrap_or_default().to_owned();
            Error::Malformed { path, cause }
        }
        other => Error::Malformed { path, cause: other.to_string() },
    }
}

fn io_cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const FILE: &str = "{apiVersion: v1, kind: Config, \
        clusters: [{name: a, cluster: {server: 'https://a'}}, {name: b, cluster: {}}], \
        contexts: [{name: a, context: {cluster: a, user: u}}, {name: b, context: {cluster: b, user: u}}], \
        users: [{name: u, user: {}}]}";

    #[rstest]
    #[case(FILE, Some("a"), "https://a/")]
    #[case(FILE, None, "the kubeconfig PATH has no current context; name one of its contexts (a, b)")]
    #[case(FILE, Some("c"), "the kubeconfig PATH has no context \"c\"; its contexts are a, b")]
    #[case(
        FILE,
        Some("b"),
        "cannot use context \"b\" of the kubeconfig PATH: cluster url is missing on selected cluster"
    )]
    #[tokio::test]
    async fn configs_are_loaded_for_the_selected_context(
        #[case] text: &str,
        #[case] context: Option<&str>,
        #[case] expected: &str,
    ) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let kubeconfig = KubeconfigContext { file: file.path().to_owned(), context: context.map(str::to_owned) };
        let loaded = load_or_in_cluster(Some(&kubeconfig)).await;
        let actual = loaded.map_or_else(|error| error.to_string(), |config| config.cluster_url.to_string());
        assert_eq!(actual.replace(&format!("{:?}", file.path()), "PATH"), expected);
    }

    #[tokio::test]
    async fn errors_for_unusable_files_name_path_and_cause() {
        let folder = tempfile::tempdir().unwrap();
        let malformed = folder.path().join("malformed");
        std::fs::write(&malformed, "clusters: [").unwrap();
        for (path, start, end) in [
            (
                folder.path().join("none"),
                "cannot read the kubeconfig",
                ": no such file; pass the path of a readable file",
            ),
            (
                folder.path().to_owned(),
                "cannot read the kubeconfig",
                ": it is a directory; pass the path of a readable file",
            ),
            (malformed, "cannot parse the kubeconfig", "malformed\""),
        ] {
            let error = KubeconfigFile::read(&path).unwrap_err().to_string();
            assert!(
                error.starts_with(start) && error.ends_with(end) && error.contains(&format!("{path:?}")),
                "{error}"
            );
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
