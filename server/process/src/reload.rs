//! Reloads files when they change: client CAs, serving certificates. A task polls all files until the server stops.
//! Changes are detected by content, because Kubernetes updates mounted Secrets by swapping a symbolic link.
//!
//! Invalid content is logged and counted, and the previous content stays in use.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use crowsnest_component_base::metrics::Series;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

type ApplyFn = Box<dyn Fn(&[String]) -> anyhow::Result<()> + Send + Sync>;

/// Polls watched files. Created at start-up; run by a single task.
pub struct Reloader {
    interval: Duration,
    watched: Vec<WatchedFiles>,
    counts: Arc<ReloadCounters>,
}

/// Files that are used together.
struct WatchedFiles {
    /// The flag that names the files.
    flag: &'static str,
    files: Vec<PathBuf>,
    apply: ApplyFn,
    /// The contents that were applied last.
    current: Vec<String>,
    /// The contents that were rejected last; the inner `None` means that the files could not be read.
    rejected: Option<Option<Vec<String>>>,
    stale: Arc<AtomicBool>,
}

/// Counters of reloads, for metrics.
#[derive(Default)]
pub struct ReloadCounters {
    succeeded: AtomicU64,
    failed: AtomicU64,
    /// Reads of serving certificates, as counted by controller-runtime.
    certificate_reads: AtomicU64,
    failed_certificate_reads: AtomicU64,
    stale: Mutex<Vec<(&'static str, Arc<AtomicBool>)>>,
}

impl ReloadCounters {
    /// Counts a read of a serving certificate, and whether it was valid.
    pub fn count_certificate_read(&self, is_valid: bool) {
        self.certificate_reads.fetch_add(1, Ordering::Relaxed);
        self.failed_certificate_reads.fetch_add(u64::from(!is_valid), Ordering::Relaxed);
    }

    pub fn series(&self) -> Vec<Series> {
        let count =
            |name, help, value: &AtomicU64| Series::without_labels(name, help, true, value.load(Ordering::Relaxed));
        let stale = self.stale.lock();
        let stale = stale.iter().map(|(flag, stale)| Series {
            name: "crowsnest_reload_stale",
            help: "Whether the files have invalid content, so that the previous content is used.",
            is_counter: false,
            labels: vec![("files", (*flag).to_owned())],
            value: u64::from(stale.load(Ordering::Relaxed)),
        });
        stale
            .chain([
                count("crowsnest_reloads_total", "Number of reloads of changed files.", &self.succeeded),
                count("crowsnest_reload_failures_total", "Number of failed reloads of changed files.", &self.failed),
                count(
                    "certwatcher_read_certificate_total",
                    "Number of reads of serving certificates.",
                    &self.certificate_reads,
                ),
                count(
                    "certwatcher_read_certificate_errors_total",
                    "Number of failed reads of serving certificates.",
                    &self.failed_certificate_reads,
                ),
            ])
            .collect()
    }
}

impl Reloader {
    pub fn new(interval: Duration) -> Self {
        Self { interval, watched: Vec::new(), counts: Arc::default() }
    }

    pub fn counts(&self) -> Arc<ReloadCounters> {
        Arc::clone(&self.counts)
    }

    /// Passes the content of the files to `apply`, now and whenever one of them changes. `flag` is the flag that names
    /// them.
    pub async fn watch(
        &mut self,
        flag: &'static str,
        files: Vec<PathBuf>,
        apply: impl Fn(&[String]) -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> anyhow::Result<()> {
        let current = read_files(&files).await.with_context(|| format!("--{flag}"))?;
        apply(&current).with_context(|| format!("--{flag}"))?;
        if is_certificate(flag) {
            self.counts.count_certificate_read(true);
        }
        let stale = Arc::new(AtomicBool::new(false));
        self.counts.stale.lock().push((flag, Arc::clone(&stale)));
        self.watched.push(WatchedFiles { flag, files, apply: Box::new(apply), current, rejected: None, stale });
        Ok(())
    }

    /// Polls all files until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(self.interval)).await.is_some() {
            self.poll().await;
        }
    }

    async fn poll(&mut self) {
        for watched in &mut self.watched {
            watched.poll(&self.counts).await;
            if is_certificate(watched.flag) {
                self.counts.count_certificate_read(watched.rejected.is_none());
            }
        }
    }
}

impl WatchedFiles {
    async fn poll(&mut self, counts: &ReloadCounters) {
        let flag = self.flag;
        let read_result = read_files(&self.files).await;
        if read_result.as_ref().is_ok_and(|contents| *contents == self.current) {
            self.set_rejected(None);
            return;
        }
        let contents = read_result.as_ref().ok().cloned();
        if self.rejected.as_ref() == Some(&contents) {
            return;
        }
        match read_result.and_then(|contents| (self.apply)(&contents).map(|()| contents)) {
            Ok(applied_contents) => {
                tracing::info!(flag, "reloaded changed files");
                counts.succeeded.fetch_add(1, Ordering::Relaxed);
                self.current = applied_contents;
                self.set_rejected(None);
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(flag, error, "cannot use changed files; keeping their previous content");
                counts.failed.fetch_add(1, Ordering::Relaxed);
                self.set_rejected(Some(contents));
            }
        }
    }

    fn set_rejected(&mut self, rejected: Option<Option<Vec<String>>>) {
        self.stale.store(rejected.is_some(), Ordering::Relaxed);
        self.rejected = rejected;
    }
}

/// True for flags that name a serving certificate and its key.
fn is_certificate(flag: &str) -> bool {
    ["tls-cert-file", "grpc-auth-cert-file", "tls-sni-cert-key"].contains(&flag)
}

async fn read_files(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut contents = Vec::with_capacity(files.len());
    for path in files {
        contents.push(tokio::fs::read_to_string(path).await.with_context(|| path.display().to_string())?);
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    /// Mounts a version of the files as a kubelet does: creates a new folder, then swaps the symbolic link to it.
    fn mount(folder: &Path, version: &str, content: &str) {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("ca.crt"), content).unwrap();
        symlink(version, folder.join("..next")).unwrap();
        fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
    }

    #[tokio::test]
    async fn valid_changes_are_applied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.crt");
        mount(folder.path(), "v1", "one");
        symlink("..data/ca.crt", &path).unwrap();
        let applied = Arc::new(Mutex::new(Vec::new()));
        let mut reloader = Reloader::new(Duration::from_secs(1));
        let counts = reloader.counts();
        let apply = {
            let applied = Arc::clone(&applied);
            move |found: &[String]| {
                anyhow::ensure!(!found.iter().any(|text| text.contains("bad")), "not a certificate");
                applied.lock().extend_from_slice(found);
                Ok(())
            }
        };
        reloader.watch("client-ca-file", vec![path.clone()], apply).await.unwrap();
        let state = || {
            let stale = counts.series()[0].value;
            (
                applied.lock().join(" "),
                counts.succeeded.load(Ordering::Relaxed),
                counts.failed.load(Ordering::Relaxed),
                stale,
            )
        };
        let mut poll = async || {
            reloader.poll().await;
            // A second poll finds no change.
            reloader.poll().await;
            state()
        };
        assert_eq!(poll().await, ("one".into(), 0, 0, 0));
        mount(folder.path(), "v2", "two");
        assert_eq!(poll().await, ("one two".into(), 1, 0, 0));
        mount(folder.path(), "v3", "bad");
        assert_eq!(poll().await, ("one two".into(), 1, 1, 1));
        fs::remove_file(folder.path().join("..data")).unwrap();
        assert_eq!(poll().await, ("one two".into(), 1, 2, 1));
        mount(folder.path(), "v4", "two");
        assert_eq!(poll().await, ("one two".into(), 1, 2, 0));
        mount(folder.path(), "v5", "five");
        assert_eq!(poll().await, ("one two five".into(), 2, 2, 0));
    }

    #[tokio::test]
    async fn unusable_files_fail_the_start() {
        let mut reloader = Reloader::new(Duration::from_secs(1));
        let missing = reloader.watch("client-ca-file", vec!["/missing/ca.crt".into()], |_| Ok(())).await.unwrap_err();
        assert!(format!("{missing:#}").starts_with("--client-ca-file: /missing/ca.crt: "), "{missing:#}");
        assert!(reloader.watched.is_empty());
    }
}
