//! Container logs. They are generated from the container's specification, so that each request returns the same
//! lines.
//!
//! If the simulated shell supports the container's command, the log is its real output: the lines of its process
//! ([`super::process`]) or, for a run without a process, of a replay from the container's start whose clock skips
//! sleeps. Any other container logs its start, its ports, and then a line at a fixed interval. Lines that exec
//! writes to `/proc/1/fd/1` are merged in.

mod generator;
mod replay;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_component_base::lines::LineBuffer;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use self::generator::LogGenerator;
use self::replay::replay;
use super::pods::{Container, Pod, PodRef, PodRuntime, Run};
use super::shell::{Clock, Shell};
use super::stream::{Output, Sink};

/// Pod annotation with the number of seconds between generated log lines, for containers without a supported command.
/// With 0, there are only start lines.
pub const INTERVAL_ANNOTATION: &str = "sim.crowsnest.io/log-interval-seconds";
/// Default of [`INTERVAL_ANNOTATION`].
const DEFAULT_INTERVAL_SECONDS: i64 = 10;
/// Maximum number of lines per run, like the size of a rotated log file.
const MAX_LINES: usize = 10_000;
/// Interval at which a followed log checks that the container is still running.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Query parameters of `pods/log`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub container: String,
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub tail_lines: Option<i64>,
    pub limit_bytes: Option<i64>,
    pub since_seconds: Option<i64>,
    pub since_time: Option<Timestamp>,
}

impl LogOptions {
    /// Parses and validates the query, with the error messages of kube-apiserver.
    pub fn parse(pod: &str, query: &[(String, String)]) -> ApiResult<Self> {
        let mut options = Self::default();
        let mut errors = Vec::new();
        for (key, value) in query.iter().filter(|(_, v)| !v.is_empty()) {
            let flag = !matches!(value.as_str(), "false" | "0");
            let number = || {
                value
                    .parse::<i64>()
                    .map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax")))
            };
            match key.as_str() {
                "container" => options.container.clone_from(value),
                "follow" => options.follow = flag,
                "previous" => options.previous = flag,
                "timestamps" => options.timestamps = flag,
                "tailLines" => options.tail_lines = Some(number()?),
                "limitBytes" => options.limit_bytes = Some(number()?),
                "sinceSeconds" => options.since_seconds = Some(number()?),
                "sinceTime" => {
                    let time = value
                        .parse()
                        .map_err(|_| ApiError::bad_request(format!("parsing time {value:?}: not RFC 3339")))?;
                    options.since_time = Some(time);
                }
                _ => {}
            }
        }
        let mut check_min = |field: &str, value: Option<i64>, min: i64, detail: &str| {
            if let Some(value) = value.filter(|v| *v < min) {
                errors.push(FieldError::invalid(field, &json!(value), detail));
            }
        };
        check_min("tailLines", options.tail_lines, 0, "must be greater than or equal to 0");
        check_min("limitBytes", options.limit_bytes, 1, "must be greater than 0");
        check_min("sinceSeconds", options.since_seconds, 1, "must be greater than 0");
        if options.since_seconds.is_some() && options.since_time.is_some() {
            errors.push(FieldError::forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
        }
        if errors.is_empty() { Ok(options) } else { Err(ApiError::invalid("", "PodLogOptions", pod, errors)) }
    }

    fn since(&self, now: Timestamp) -> Option<Timestamp> {
        self.since_time.or_else(|| now.checked_sub(SignedDuration::from_secs(self.since_seconds?)).ok())
    }
}

/// A log line without its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub at: Timestamp,
    pub text: Bytes,
}

/// Log lines of a process or exec. Followers are notified of new lines.
pub struct RunLog {
    lines: Mutex<VecDeque<LogLine>>,
    /// Number of lines written so far, including dropped ones.
    total: watch::Sender<u64>,
}

impl Default for RunLog {
    fn default() -> Self {
        Self { lines: Mutex::default(), total: watch::Sender::new(0) }
    }
}

impl RunLog {
    fn push(&self, line: LogLine) {
        let mut lines = self.lines.lock();
        lines.push_back(line);
        if lines.len() > MAX_LINES {
            lines.pop_front();
        }
        self.total.send_modify(|total| *total += 1);
    }

    /// Returns the kept lines after the first `seen` lines of the run.
    fn lines_after(&self, seen: u64) -> Vec<LogLine> {
        let lines = self.lines.lock();
        let new = usize::try_from(*self.total.borrow() - seen).unwrap_or(usize::MAX).min(lines.len());
        lines.range(lines.len() - new..).cloned().collect()
    }
}

/// A [`Sink`] that appends lines to a [`RunLog`].
pub struct RunLogSink {
    pub log: Arc<RunLog>,
    pub runtime: Arc<dyn PodRuntime>,
}

#[async_trait]
impl Sink for RunLogSink {
    async fn send(&self, data: Bytes) -> io::Result<()> {
        for text in data.split(|b| *b == b'\n').filter(|t| !t.is_empty()) {
            self.log.push(LogLine { at: self.runtime.now(), text: Bytes::copy_from_slice(text) });
        }
        Ok(())
    }
}

enum LogEvent {
    Line(LogLine),
    /// All lines up to the current time have been produced.
    CaughtUp,
}

/// Inputs of the log of one run.
pub struct LogSource {
    pub runtime: Arc<dyn PodRuntime>,
    pub container: Container,
    pub run: Run,
    pub run_log: Arc<RunLog>,
    /// Shell with the container's environment.
    pub shell: Shell,
    /// True if the process of the run writes its log, so that no replay is needed.
    pub has_process: bool,
}

/// Selects the current or previous run, with the error messages of the kubelet.
pub fn select_run(container: &Container, previous: bool) -> ApiResult<Run> {
    let (name, pod) = (&container.name, container.pod.name());
    if previous {
        return container.previous_run().ok_or_else(|| {
            ApiError::bad_request(format!("previous terminated container {name:?} in pod {pod:?} not found"))
        });
    }
    container.current_run().ok_or_else(|| {
        let reason = container.waiting_reason();
        ApiError::bad_request(format!("container {name:?} in pod {pod:?} is waiting to start: {reason}"))
    })
}

impl LogSource {
    /// Writes the log as requested by `options`, until it ends or the reader disconnects.
    pub async fn write(self, options: LogOptions, output: Output) -> io::Result<()> {
        let (events, receiver) = mpsc::channel(256);
        let producer = self.produce(events, options.follow);
        let writer = self.consume(options, receiver, output);
        tokio::select! {
            result = writer => result,
            () = async { producer.await; std::future::pending().await } => Ok(()),
        }
    }

    /// Returns the future that produces the lines which are not in the run's log.
    fn produce(&self, events: mpsc::Sender<LogEvent>, follow: bool) -> BoxFuture<'static, ()> {
        if self.has_process {
            return Box::pin(async move {
                if events.send(LogEvent::CaughtUp).await.is_err() {
                    tracing::trace!("the log reader disconnected");
                }
            });
        }
        if let Some(command) = self.container.supported_command() {
            return Box::pin(replay(
                self.shell.clone(),
                self.runtime.clone(),
                self.run.clone(),
                command,
                events,
                follow,
            ));
        }
        Box::pin(self.log_generator().generate(events, follow))
    }

    fn log_generator(&self) -> LogGenerator {
        let container = &self.container;
        let interval = container
            .pod
            .annotation(INTERVAL_ANNOTATION)
            .and_then(|s| s.parse().ok())
            .unwrap_or(DEFAULT_INTERVAL_SECONDS);
        let mut start_lines = vec![format!(
            "{} starting: image {}, pod {}/{}, node {}",
            container.name,
            container.image(),
            container.pod.namespace(),
            container.pod.name(),
            container.pod.node()
        )];
        start_lines.extend(
            container.ports().map(|(port, name)| format!("listening on port {port} {name}").trim_end().to_owned()),
        );
        start_lines.push("ready".to_owned());
        LogGenerator {
            runtime: self.runtime.clone(),
            run: self.run.clone(),
            start_lines,
            interval_seconds: interval,
            has_ports: container.ports().next().is_some(),
        }
    }

    async fn consume(
        &self,
        options: LogOptions,
        mut events: mpsc::Receiver<LogEvent>,
        output: Output,
    ) -> io::Result<()> {
        let mut writer = LineWriter { output, timestamps: options.timestamps, remaining_bytes: options.limit_bytes };
        let since = options.since(self.runtime.now());
        let mut new_lines = self.run_log.total.subscribe();
        let mut backlog = VecDeque::new();
        while let Some(LogEvent::Line(line)) = events.recv().await {
            if since.is_none_or(|since| line.at >= since) {
                backlog.push_back(line);
            }
            if backlog.len() > MAX_LINES {
                backlog.pop_front();
            }
        }
        let mut seen = *new_lines.borrow_and_update();
        let mut backlog = Vec::from(backlog);
        if !options.previous || self.has_process {
            let mut run_lines = self.run_log.lines_after(0);
            seen = seen.max(run_lines.len() as u64);
            run_lines.retain(|line| since.is_none_or(|since| line.at >= since));
            backlog.append(&mut run_lines);
            backlog.sort_by_key(|line| line.at);
        }
        let tail_lines = options.tail_lines.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        for line in backlog.iter().skip(backlog.len().saturating_sub(tail_lines)) {
            if !writer.write_line(line).await? {
                return Ok(());
            }
        }
        if !options.follow || self.run.finished.is_some() {
            return Ok(());
        }
        let mut liveness = tokio::time::interval(LIVENESS_CHECK_INTERVAL);
        loop {
            tokio::select! {
                Some(event) = events.recv() => {
                    if let LogEvent::Line(line) = event && !writer.write_line(&line).await? {
                        return Ok(());
                    }
                }
                Ok(()) = new_lines.changed() => {
                    for line in self.run_log.lines_after(seen) {
                        if !writer.write_line(&line).await? {
                            return Ok(());
                        }
                    }
                    seen = *new_lines.borrow_and_update();
                }
                _ = liveness.tick() => if !self.is_still_running().await {
                    for line in self.run_log.lines_after(seen) {
                        writer.write_line(&line).await?;
                    }
                    return Ok(());
                },
            }
        }
    }

    /// Returns true while the pod exists and the container is in the same run.
    async fn is_still_running(&self) -> bool {
        let pod = &self.container.pod;
        let reference = PodRef { namespace: pod.namespace().to_owned(), name: pod.name().to_owned() };
        match Pod::get(&*self.runtime, &reference).await {
            Ok(now) if now.uid() == pod.uid() => {
                now.container(&self.container.name).is_ok_and(|c| c.current_run().as_ref() == Some(&self.run))
            }
            _ => false,
        }
    }
}

/// Writes lines in the requested format, up to the byte limit.
struct LineWriter {
    output: Output,
    timestamps: bool,
    remaining_bytes: Option<i64>,
}

impl LineWriter {
    /// Writes a line. Returns false once the byte limit is reached.
    async fn write_line(&mut self, line: &LogLine) -> io::Result<bool> {
        let mut bytes = BytesMut::new();
        if self.timestamps {
            bytes.extend_from_slice(format!("{:.9} ", line.at).as_bytes());
        }
        bytes.extend_from_slice(&line.text);
        bytes.extend_from_slice(b"\n");
        if let Some(remaining) = &mut self.remaining_bytes {
            bytes.truncate(usize::try_from(*remaining).unwrap_or_default());
            *remaining -= bytes.len() as i64;
        }
        self.output.send(bytes.freeze()).await?;
        Ok(self.remaining_bytes != Some(0))
    }
}

/// Destination of the output lines of a process.
enum LineDestination {
    Events(mpsc::Sender<LogEvent>),
    RunLog(Arc<RunLog>),
}

/// Splits the output of a script into lines with timestamps of its clock.
///
/// The length of lines is unlimited: a kubelet stores a long line in parts of 16 KiB, but serves it as one line.
struct LineSink {
    clock: Arc<dyn Clock>,
    destination: LineDestination,
    buffer: Mutex<LineBuffer>,
}

/// Returns an output that stores the lines of a running process as the log of its run.
pub fn process_output(clock: Arc<dyn Clock>, log: Arc<RunLog>) -> Output {
    Arc::new(LineSink::new(clock, LineDestination::RunLog(log)))
}

impl LineSink {
    fn new(clock: Arc<dyn Clock>, destination: LineDestination) -> Self {
        Self { clock, destination, buffer: Mutex::new(LineBuffer::new(usize::MAX)) }
    }

    async fn write_line(&self, text: Bytes) -> io::Result<()> {
        let line = LogLine { at: self.clock.now(), text };
        match &self.destination {
            LineDestination::Events(events) => {
                events.send(LogEvent::Line(line)).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
            }
            LineDestination::RunLog(log) => {
                log.push(line);
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Sink for LineSink {
    async fn send(&self, data: Bytes) -> io::Result<()> {
        let lines = {
            let mut buffer = self.buffer.lock();
            buffer.push(&data);
            let mut lines = Vec::new();
            while let Some(line) = buffer.next_line().map_err(io::Error::other)? {
                lines.push(line);
            }
            lines
        };
        for text in lines {
            self.write_line(text).await?;
        }
        Ok(())
    }

    async fn finish(&self) -> io::Result<()> {
        let rest = self.buffer.lock().take_rest();
        if rest.is_empty() { Ok(()) } else { self.write_line(rest).await }
    }
}
