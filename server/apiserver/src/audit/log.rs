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
const QUEUE_CAPACITY: usize = 10_000;
/// Maximum number of events per write.
const MAX_BATCH: usize = 256;
/// Time limit for a request to get a slot in the queue.
const ENQUEUE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for writing the queued events on shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Format of the timestamp in the name of a rotated file.
const TIMESTAMP_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// Destination of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    StandardOutput,
    File(LogFile),
}

/// The log file and its rotation limits. Zero means unlimited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    pub path: PathBuf,
    pub max_bytes: u64,
    pub max_backups: usize,
    pub max_age_days: u32,
}

#[derive(Debug, Default)]
struct EventCounters {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    has_stopped: AtomicBool,
}

/// Event counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventCounts {
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
    counters: Arc<EventCounters>,
}

/// A reserved slot in the queue.
pub(super) type QueuePermit = mpsc::OwnedPermit<Event>;

/// Handle of the writer task, to stop it.
pub struct Writer {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl AuditLog {
    /// Opens the file and starts the writer task; fails if the file cannot be written.
    pub fn start(destination: Destination) -> io::Result<(Self, Writer)> {
        let sink = match destination {
            Destination::StandardOutput => Sink::StandardOutput,
            Destination::File(log_file) => Sink::File(RotatedFile::open(log_file)?),
        };
        let (queue, events) = mpsc::channel(QUEUE_CAPACITY);
        let counters = Arc::new(EventCounters::default());
        let stop = CancellationToken::new();
        let task = tokio::spawn(run_writer(events, sink, Arc::clone(&counters), stop.clone()));
        Ok((Self { queue, counters }, Writer { task, stop }))
    }

    /// Reserves a slot in the queue; `None` if the writer does not keep up.
    pub(super) async fn reserve(&self) -> Option<QueuePermit> {
        let permit = tokio::time::timeout(ENQUEUE_TIMEOUT, self.queue.clone().reserve_owned()).await;
        permit.ok().and_then(Result::ok)
    }

    /// Queues an event in its reserved slot, or in a free one; drops and counts it if there is none.
    pub(super) fn enqueue(&self, permit: Option<QueuePermit>, event: Event) {
        match permit {
            Some(permit) => drop(permit.send(event)),
            None => {
                if self.queue.try_send(event).is_err() {
                    self.counters.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The reason why the writer does not work, for health checks.
    pub fn failure(&self) -> Option<&'static str> {
        self.counters.has_stopped.load(Ordering::Relaxed).then_some("the audit log writer stopped unexpectedly")
    }

    pub fn event_counts(&self) -> EventCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let EventCounters { written, dropped, failed, .. } = &*self.counters;
        EventCounts { written: read(written), dropped: read(dropped), failed: read(failed) }
    }
}

impl Writer {
    /// Writes the queued events and stops.
    pub async fn stop(self) {
        self.stop.cancel();
        if tokio::time::timeout(DRAIN_TIMEOUT, self.task).await.is_err() {
            tracing::warn!("the last audit events were not written in time");
        }
    }
}

async fn run_writer(
    mut events: mpsc::Receiver<Event>,
    mut sink: Sink,
    counters: Arc<EventCounters>,
    stop: CancellationToken,
) {
    let mut is_failing = false;
    loop {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        tokio::select! {
            biased;
            received = events.recv_many(&mut batch, MAX_BATCH) => if received == 0 { break },
            () = stop.cancelled(), if !events.is_closed() => {
                events.close();
                continue;
            }
        }
        let batch_size = batch.len() as u64;
        let written = tokio::task::spawn_blocking(move || {
            let outcome = sink.write(&batch, Timestamp::now());
            (sink, outcome)
        });
        let outcome = match written.await {
            Ok((returned, outcome)) => {
                sink = returned;
                outcome
            }
            Err(error) => {
                tracing::error!(%error, "the audit log writer stopped unexpectedly");
                counters.has_stopped.store(true, Ordering::Relaxed);
                return;
            }
        };
        match outcome {
            Ok(()) => {
                is_failing = false;
                counters.written.fetch_add(batch_size, Ordering::Relaxed);
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(%error, "cannot write audit events");
                }
                counters.failed.fetch_add(batch_size, Ordering::Relaxed);
            }
        }
    }
}

enum Sink {
    StandardOutput,
    File(RotatedFile),
}

impl Sink {
    fn write(&mut self, events: &[Event], now: Timestamp) -> io::Result<()> {
        match self {
            Sink::StandardOutput => {
                let mut out = io::stdout().lock();
                for event in events {
                    out.write_all(&encode_line(event)?)?;
                }
                out.flush()
            }
            Sink::File(file) => {
                for event in events {
                    file.write(&encode_line(event)?, now)?;
                }
                file.out.flush()
            }
        }
    }
}

fn encode_line(event: &Event) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

/// A file that is rotated when it reaches its size limit.
struct RotatedFile {
    log_file: LogFile,
    out: BufWriter<File>,
    bytes: u64,
}

impl RotatedFile {
    fn open(log_file: LogFile) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&log_file.path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { log_file, out: BufWriter::new(file), bytes })
    }

    fn write(&mut self, line: &[u8], now: Timestamp) -> io::Result<()> {
        let line_bytes = line.len() as u64;
        if self.log_file.max_bytes > 0 && self.bytes > 0 && self.bytes + line_bytes > self.log_file.max_bytes {
            self.rotate(now)?;
        }
        self.out.write_all(line)?;
        self.bytes += line_bytes;
        Ok(())
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        self.out.flush()?;
        let mut at = now;
        let mut backup = backup_path(&self.log_file.path, at);
        while backup.exists() {
            at += SignedDuration::from_millis(1);
            backup = backup_path(&self.log_file.path, at);
        }
        fs::rename(&self.log_file.path, backup)?;
        *self = Self::open(self.log_file.clone())?;
        let backups = list_backups(&self.log_file.path)?;
        for path in select_surplus(backups, self.log_file.max_backups, self.log_file.max_age_days, now) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// Path of a rotated file: `audit.log` becomes `audit-2026-01-02T03-04-05.678.log`.
fn backup_path(path: &Path, at: Timestamp) -> PathBuf {
    let (stem, extension) = split_file_name(path);
    path.with_file_name(format!("{stem}-{}{extension}", at.to_zoned(TimeZone::UTC).strftime(TIMESTAMP_FORMAT)))
}

fn split_file_name(path: &Path) -> (String, String) {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    (stem, extension)
}

/// Rotated files with their timestamps.
fn list_backups(path: &Path) -> io::Result<Vec<(PathBuf, Timestamp)>> {
    let (stem, extension) = split_file_name(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let stamp = name.strip_prefix(&format!("{stem}-")).and_then(|rest| rest.strip_suffix(&extension));
        let Some(Ok(at)) = stamp.map(|stamp| civil::DateTime::strptime(TIMESTAMP_FORMAT, stamp)) else { continue };
        if let Ok(at) = at.to_zoned(TimeZone::UTC) {
            found.push((entry.path(), at.timestamp()));
        }
    }
    Ok(found)
}

/// Rotated files beyond the count or age limit. Zero means unlimited.
fn select_surplus(
    mut backups: Vec<(PathBuf, Timestamp)>,
    max_backups: usize,
    max_age_days: u32,
    now: Timestamp,
) -> Vec<PathBuf> {
    backups.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
    let is_expired =
        |at: Timestamp| max_age_days > 0 && now.duration_since(at).as_hours() >= i64::from(max_age_days) * 24;
    let surplus = backups
        .into_iter()
        .enumerate()
        .filter(|(nth, (_, at))| (max_backups > 0 && *nth >= max_backups) || is_expired(*at));
    surplus.map(|(_, (path, _))| path).collect()
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
        let backups =
            || ["2026-01-01", "2026-01-03", "2026-01-02"].map(|day| (day.into(), at(&format!("{day}T00:00:00Z"))));
        let cases =
            [(0, 0, vec![]), (1, 0, vec!["2026-01-02", "2026-01-01"]), (0, 2, vec!["2026-01-01"]), (5, 9, vec![])];
        for (max_backups, days, expected) in cases {
            let surplus = select_surplus(backups().into(), max_backups, days, at("2026-01-03T12:00:00Z"));
            assert_eq!(surplus, expected.into_iter().map(PathBuf::from).collect::<Vec<_>>(), "{max_backups} {days}");
        }
    }

    #[test]
    fn full_files_are_rotated_without_losing_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let log_file = LogFile { path: path.clone(), max_bytes: 1000, max_backups: 3, max_age_days: 0 };
        let mut sink = Sink::File(RotatedFile::open(log_file).unwrap());
        let now = at("2026-01-02T03:04:05.678Z");
        let line_bytes = encode_line(&event("0")).unwrap().len() as u64;
        let lines_per_file = 1000 / line_bytes;
        let events: Vec<Event> = (0..lines_per_file * 3).map(|nth| event(&(nth % 10).to_string())).collect();
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
        assert_eq!(lines, lines_per_file * 3);
    }

    #[tokio::test]
    async fn stopping_drains_the_queue() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let log_file = LogFile { path: path.clone(), max_bytes: 0, max_backups: 0, max_age_days: 0 };
        let (log, writer) = AuditLog::start(Destination::File(log_file)).unwrap();
        for nth in 0..1000 {
            let permit = log.reserve().await;
            assert!(permit.is_some());
            log.enqueue(permit, event(&nth.to_string()));
        }
        writer.stop().await;
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1000);
        assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
        // Events that are queued after the writer has stopped are counted as dropped.
        log.enqueue(None, event("late"));
        assert_eq!(log.event_counts(), EventCounts { written: 1000, dropped: 1, failed: 0 });
    }
}
