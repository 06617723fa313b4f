//! Queue and writer of the audit log: JSON lines in a rotated file or on standard output.
//!
//! Requests wait up to a second for a slot in the queue, so bursts are written completely. When the disk is too slow
//! for longer, events are dropped and counted: a full disk must not stop requests. One task owns the file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::event::Event;

/// Capacity of the queue in events, as in kube-apiserver.
const QUEUE: usize = 10_000;
/// Most events per write.
const BATCH: usize = 256;
/// Longest wait of a request for a slot in the queue.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time limit for writing the queued events on shutdown.
const DRAIN: Duration = Duration::from_secs(5);
/// Timestamp in the name of a rotated file.
const STAMP: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// Destination of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    StandardOutput,
    File(Files),
}

/// The log file and its rotation limits. Zero means unlimited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    pub path: PathBuf,
    pub max_bytes: u64,
    pub max_backups: usize,
    pub max_age_days: u32,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    ended: AtomicBool,
}

/// Event counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub written: u64,
    /// Dropped because the queue was full.
    pub dropped: u64,
    /// Dropped because the file could not be written.
    pub failed: u64,
}

/// Handle for queueing events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AuditLog {
    queue: mpsc::Sender<Event>,
    counts: Arc<Counts>,
}

/// A reserved slot in the queue.
pub(super) type QueuePermit = mpsc::OwnedPermit<Event>;

/// Owner of the writer task.
pub struct Writer {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl AuditLog {
    /// Opens the file and starts the writer task; fails if the file cannot be written.
    pub fn start(destination: Destination) -> io::Result<(Self, Writer)> {
        let sink = match destination {
            Destination::StandardOutput => Sink::StandardOutput,
            Destination::File(files) => Sink::File(Rotated::open(files)?),
        };
        let (queue, events) = mpsc::channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let stop = CancellationToken::new();
        let task = tokio::spawn(write(events, sink, Arc::clone(&counts), stop.clone()));
        Ok((Self { queue, counts }, Writer { task, stop }))
    }

    /// Reserves a slot in the queue; `None` if the writer does not keep up.
    pub(super) async fn reserve(&self) -> Option<QueuePermit> {
        let permit = tokio::time::timeout(PATIENCE, self.queue.clone().reserve_owned()).await;
        permit.ok().and_then(Result::ok)
    }

    /// Queues an event in its reserved slot, or in a free one; drops and counts it if there is none.
    pub(super) fn put(&self, permit: Option<QueuePermit>, event: Event) {
        match permit {
            Some(permit) => drop(permit.send(event)),
            None => {
                if self.queue.try_send(event).is_err() {
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The reason why the writer does not work, for health checks.
    pub fn problem(&self) -> Option<&'static str> {
        self.counts.ended.load(Ordering::Relaxed).then_some("the audit log writer stopped unexpectedly")
    }

    pub fn counted(&self) -> Counted {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { written, dropped, failed, .. } = &*self.counts;
        Counted { written: read(written), dropped: read(dropped), failed: read(failed) }
    }
}

impl Writer {
    /// Writes the queued events and stops.
    pub async fn stop(self) {
        self.stop.cancel();
        if tokio::time::timeout(DRAIN, self.task).await.is_err() {
            tracing::warn!("the last audit events were not written in time");
        }
    }
}

async fn write(mut events: mpsc::Receiver<Event>, mut sink: Sink, counts: Arc<Counts>, stop: CancellationToken) {
    let mut failing = false;
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        tokio::select! {
            biased;
            received = events.recv_many(&mut batch, BATCH) => if received == 0 { break },
            () = stop.cancelled(), if !events.is_closed() => {
                events.close();
                continue;
            }
        }
        let many = batch.len() as u64;
        let written = tokio::task::spawn_blocking(move || {
            let outcome = sink.write(&batch, Timestamp::now());
            (sink, outcome)
        });
        let outcome = match written.await {
            Ok((back, outcome)) => {
                sink = back;
                outcome
            }
            Err(error) => {
                tracing::error!(%error, "the audit log writer stopped unexpectedly");
                counts.ended.store(true, Ordering::Relaxed);
                return;
            }
        };
        match outcome {
            Ok(()) => {
                failing = false;
                counts.written.fetch_add(many, Ordering::Relaxed);
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!(%error, "cannot write audit events");
                }
                counts.failed.fetch_add(many, Ordering::Relaxed);
            }
        }
    }
}

enum Sink {
    StandardOutput,
    File(Rotated),
}

impl Sink {
    fn write(&mut self, events: &[Event], now: Timestamp) -> io::Result<()> {
        match self {
            Sink::StandardOutput => {
                let mut out = io::stdout().lock();
                for event in events {
                    out.write_all(&line(event)?)?;
                }
                out.flush()
            }
            Sink::File(file) => {
                for event in events {
                    file.write(&line(event)?, now)?;
                }
                file.out.flush()
            }
        }
    }
}

fn line(event: &Event) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

/// A file that is rotated when it reaches its size limit.
struct Rotated {
    files: Files,
    out: BufWriter<File>,
    bytes: u64,
}

impl Rotated {
    fn open(files: Files) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&files.path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { files, out: BufWriter::new(file), bytes })
    }

    fn write(&mut self, line: &[u8], now: Timestamp) -> io::Result<()> {
        let more = line.len() as u64;
        if self.files.max_bytes > 0 && self.bytes > 0 && self.bytes + more > self.files.max_bytes {
            self.rotate(now)?;
        }
        self.out.write_all(line)?;
        self.bytes += more;
        Ok(())
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        self.out.flush()?;
        let mut at = now;
        let mut aside = backup(&self.files.path, at);
        while aside.exists() {
            at += SignedDuration::from_millis(1);
            aside = backup(&self.files.path, at);
        }
        fs::rename(&self.files.path, aside)?;
        *self = Self::open(self.files.clone())?;
        let known = backups(&self.files.path)?;
        for gone in surplus(known, self.files.max_backups, self.files.max_age_days, now) {
            fs::remove_file(gone)?;
        }
        Ok(())
    }
}

/// Path of a rotated file: `audit.log` becomes `audit-2026-01-02T03-04-05.678.log`.
fn backup(path: &Path, at: Timestamp) -> PathBuf {
    let (stem, end) = stem(path);
    path.with_file_name(format!("{stem}-{}{end}", at.to_zoned(TimeZone::UTC).strftime(STAMP)))
}

fn stem(path: &Path) -> (String, String) {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
    (stem, end)
}

/// Rotated files with their timestamps.
fn backups(path: &Path) -> io::Result<Vec<(PathBuf, Timestamp)>> {
    let (stem, end) = stem(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let stamp = name.strip_prefix(&format!("{stem}-")).and_then(|rest| rest.strip_suffix(&end));
        let Some(Ok(at)) = stamp.map(|stamp| civil::DateTime::strptime(STAMP, stamp)) else { continue };
        if let Ok(at) = at.to_zoned(TimeZone::UTC) {
            found.push((entry.path(), at.timestamp()));
        }
    }
    Ok(found)
}

/// Rotated files beyond the count or age limit. Zero means unlimited.
fn surplus(mut known: Vec<(PathBuf, Timestamp)>, most: usize, max_age_days: u32, now: Timestamp) -> Vec<PathBuf> {
    known.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
    let old = |at: Timestamp| max_age_days > 0 && now.duration_since(at).as_hours() >= i64::from(max_age_days) * 24;
    let gone = known.into_iter().enumerate().filter(|(nth, (_, at))| (most > 0 && *nth >= most) || old(*at));
    gone.map(|(_, (path, _))| path).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::event;
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn surplus_and_expired_files_are_deleted() {
        let known =
            || ["2026-01-01", "2026-01-03", "2026-01-02"].map(|day| (day.into(), at(&format!("{day}T00:00:00Z"))));
        let cases =
            [(0, 0, vec![]), (1, 0, vec!["2026-01-02", "2026-01-01"]), (0, 2, vec!["2026-01-01"]), (5, 9, vec![])];
        for (most, days, expected) in cases {
            let gone = surplus(known().into(), most, days, at("2026-01-03T12:00:00Z"));
            assert_eq!(gone, expected.into_iter().map(PathBuf::from).collect::<Vec<_>>(), "{most} {days}");
        }
    }

    #[test]
    fn full_files_are_rotated_without_losing_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let files = Files { path: path.clone(), max_bytes: 1000, max_backups: 3, max_age_days: 0 };
        let mut sink = Sink::File(Rotated::open(files).unwrap());
        let now = at("2026-01-02T03:04:05.678Z");
        let one = line(&event("0")).unwrap().len() as u64;
        let in_a_file = 1000 / one;
        let events: Vec<Event> = (0..in_a_file * 3).map(|nth| event(&(nth % 10).to_string())).collect();
        sink.write(&events, now).unwrap();
        let mut lines = 0;
        let mut names = Vec::new();
        for entry in fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.metadata().unwrap().len() <= 1000);
            lines += fs::read_to_string(entry.path()).unwrap().lines().count() as u64;
            names.push(entry.file_name().into_string().unwrap());
        }
        names.sort();
        assert_eq!(names, ["audit-2026-01-02T03-04-05.678.log", "audit-2026-01-02T03-04-05.679.log", "audit.log"]);
        assert_eq!(lines, in_a_file * 3);
    }

    #[tokio::test]
    async fn stopping_drains_the_queue() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let files = Files { path: path.clone(), max_bytes: 0, max_backups: 0, max_age_days: 0 };
        let (log, writer) = AuditLog::start(Destination::File(files)).unwrap();
        for nth in 0..1000 {
            let permit = log.reserve().await;
            assert!(permit.is_some());
            log.put(permit, event(&nth.to_string()));
        }
        writer.stop().await;
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1000);
        assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
        // The writer has stopped: the event is counted as dropped at once.
        log.put(None, event("late"));
        assert_eq!(log.counted(), Counted { written: 1000, dropped: 1, failed: 0 });
    }
}
