//! Container logs. They are generated from the container's specification, so that each request returns the same
//! lines.
//!
//! If the simulated shell supports the container's command, the log is its real output: the lines of its process
//! ([`super::process`]) or, for a run without a process, of a replay from the container's start whose clock skips
//! sleeps. Any other container logs its start, its ports, and then a line at a fixed interval. Lines that exec
//! writes to `/proc/1/fd/1` are merged in.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::clock::ProcessClock;
use super::pods::{Container, Pod, PodRef, PodRuntime, Run};
use super::shell::{Clock, Shell, Stdio};
use super::stream::{Input, Output, Sink};

/// Pod annotation with the seconds between log lines of containers that run no script. 0 stops after the start
/// lines.
pub const INTERVAL_ANNOTATION: &str = "sim.crowsnest.io/log-interval-seconds";
/// Default of the annotation.
const INTERVAL: i64 = 10;
/// Maximum lines kept per run, as with a rotated log file.
const KEPT: usize = 10_000;
/// How often a followed log checks that the container is still running.
const LIVENESS: Duration = Duration::from_secs(1);

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
        let mut bound = |field: &str, value: Option<i64>, least: i64, detail: &str| {
            if let Some(value) = value.filter(|v| *v < least) {
                errors.push(FieldError::invalid(field, &json!(value), detail));
            }
        };
        bound("tailLines", options.tail_lines, 0, "must be greater than or equal to 0");
        bound("limitBytes", options.limit_bytes, 1, "must be greater than 0");
        bound("sinceSeconds", options.since_seconds, 1, "must be greater than 0");
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
pub struct Written {
    lines: Mutex<VecDeque<LogLine>>,
    total: watch::Sender<u64>,
}

impl Default for Written {
    fn default() -> Self {
        Self { lines: Mutex::default(), total: watch::Sender::new(0) }
    }
}

impl Written {
    fn push(&self, line: LogLine) {
        let mut lines = self.lines.lock();
        lines.push_back(line);
        if lines.len() > KEPT {
            lines.pop_front();
        }
        self.total.send_modify(|total| *total += 1);
    }

    /// Returns the lines after the first `seen` lines ever written.
    fn after(&self, seen: u64) -> Vec<LogLine> {
        let lines = self.lines.lock();
        let new = usize::try_from(*self.total.borrow() - seen).unwrap_or(usize::MAX).min(lines.len());
        lines.range(lines.len() - new..).cloned().collect()
    }
}

/// A [`Sink`] that appends lines to [`Written`].
pub struct WrittenSink {
    pub written: Arc<Written>,
    pub runtime: Arc<dyn PodRuntime>,
}

#[async_trait]
impl Sink for WrittenSink {
    async fn send(&self, data: Bytes) -> io::Result<()> {
        for text in data.split(|b| *b == b'\n').filter(|t| !t.is_empty()) {
            self.written.push(LogLine { at: self.runtime.now(), text: Bytes::copy_from_slice(text) });
        }
        Ok(())
    }
}

enum Event {
    Line(LogLine),
    /// All lines up to the current time have been produced.
    CaughtUp,
}

/// Everything needed to produce the log of one run.
pub struct LogSource {
    pub runtime: Arc<dyn PodRuntime>,
    pub container: Container,
    pub run: Run,
    pub written: Arc<Written>,
    /// A shell as the container would start it.
    pub shell: Shell,
    /// The lines of the run are written by its process, so no replay is needed.
    pub has_process: bool,
}

/// Selects the current or previous run, with the error messages of the kubelet.
pub fn select_run(container: &Container, previous: bool) -> ApiResult<Run> {
    let (name, pod) = (&container.name, container.pod.name());
    if previous {
        return container.previous().ok_or_else(|| {
            ApiError::bad_request(format!("previous terminated container {name:?} in pod {pod:?} not found"))
        });
    }
    container.current().ok_or_else(|| {
        let reason = container.waiting_reason();
        ApiError::bad_request(format!("container {name:?} in pod {pod:?} is waiting to start: {reason}"))
    })
}

impl LogSource {
    /// Writes the log as requested by `options`, until it ends or the reader disconnects.
    pub async fn write(self, options: LogOptions, output: Output) -> io::Result<()> {
        let (events, received) = mpsc::channel(256);
        let producer = self.producer(events, options.follow);
        let writer = self.consume(options, received, output);
        tokio::select! {
            done = writer => done,
            () = async { producer.await; std::future::pending().await } => Ok(()),
        }
    }

    fn producer(&self, events: mpsc::Sender<Event>, follow: bool) -> BoxFuture<'static, ()> {
        if self.has_process {
            return Box::pin(async move {
                if events.send(Event::CaughtUp).await.is_err() {
                    tracing::trace!("the log reader disconnected");
                }
            });
        }
        if let Some(command) = self.container.process() {
            return Box::pin(replay(
                self.shell.clone(),
                self.runtime.clone(),
                self.run.clone(),
                command,
                events,
                follow,
            ));
        }
        Box::pin(self.narrator().tell(events, follow))
    }

    fn narrator(&self) -> Narrator {
        let container = &self.container;
        let interval = container.pod.annotation(INTERVAL_ANNOTATION).and_then(|s| s.parse().ok()).unwrap_or(INTERVAL);
        let mut opening = vec![format!(
            "{} starting: image {}, pod {}/{}, node {}",
            container.name,
            container.image(),
            container.pod.namespace(),
            container.pod.name(),
            container.pod.node()
        )];
        opening.extend(
            container.ports().map(|(port, name)| format!("listening on port {port} {name}").trim_end().to_owned()),
        );
        opening.push("ready".to_owned());
        Narrator {
            runtime: self.runtime.clone(),
            run: self.run.clone(),
            opening,
            interval,
            serves: container.ports().next().is_some(),
        }
    }

    async fn consume(&self, options: LogOptions, mut events: mpsc::Receiver<Event>, output: Output) -> io::Result<()> {
        let mut writer = Writer { output, timestamps: options.timestamps, left: options.limit_bytes };
        let since = options.since(self.runtime.now());
        let mut wakes = self.written.total.subscribe();
        let mut backlog = VecDeque::new();
        while let Some(Event::Line(line)) = events.recv().await {
            if since.is_none_or(|since| line.at >= since) {
                backlog.push_back(line);
            }
            if backlog.len() > KEPT {
                backlog.pop_front();
            }
        }
        let mut seen = *wakes.borrow_and_update();
        let mut backlog = Vec::from(backlog);
        if !options.previous || self.has_process {
            let mut written = self.written.after(0);
            seen = seen.max(written.len() as u64);
            written.retain(|line| since.is_none_or(|since| line.at >= since));
            backlog.append(&mut written);
            backlog.sort_by_key(|line| line.at);
        }
        let kept = options.tail_lines.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        for line in backlog.iter().skip(backlog.len().saturating_sub(kept)) {
            if !writer.line(line).await? {
                return Ok(());
            }
        }
        if !options.follow || self.run.finished.is_some() {
            return Ok(());
        }
        let mut liveness = tokio::time::interval(LIVENESS);
        loop {
            tokio::select! {
                Some(event) = events.recv() => {
                    if let Event::Line(line) = event && !writer.line(&line).await? {
                        return Ok(());
                    }
                }
                Ok(()) = wakes.changed() => {
                    for line in self.written.after(seen) {
                        if !writer.line(&line).await? {
                            return Ok(());
                        }
                    }
                    seen = *wakes.borrow_and_update();
                }
                _ = liveness.tick() => if !self.still_runs().await {
                    for line in self.written.after(seen) {
                        writer.line(&line).await?;
                    }
                    return Ok(());
                },
            }
        }
    }

    /// Returns true while the pod exists and the container is in the same run.
    async fn still_runs(&self) -> bool {
        let pod = &self.container.pod;
        let reference = PodRef { namespace: pod.namespace().to_owned(), name: pod.name().to_owned() };
        match Pod::find(&*self.runtime, &reference).await {
            Ok(now) if now.uid() == pod.uid() => {
                now.container(&self.container.name).is_ok_and(|c| c.current().as_ref() == Some(&self.run))
            }
            _ => false,
        }
    }
}

struct Writer {
    output: Output,
    timestamps: bool,
    left: Option<i64>,
}

impl Writer {
    /// Writes a line. Returns false once the byte limit is reached.
    async fn line(&mut self, line: &LogLine) -> io::Result<bool> {
        let mut bytes = BytesMut::new();
        if self.timestamps {
            bytes.extend_from_slice(format!("{:.9} ", line.at).as_bytes());
        }
        bytes.extend_from_slice(&line.text);
        bytes.extend_from_slice(b"\n");
        if let Some(left) = &mut self.left {
            bytes.truncate(usize::try_from(*left).unwrap_or_default());
            *left -= bytes.len() as i64;
        }
        self.output.send(bytes.freeze()).await?;
        Ok(self.left != Some(0))
    }
}

/// Generates the log of a container that runs no script.
struct Narrator {
    runtime: Arc<dyn PodRuntime>,
    run: Run,
    opening: Vec<String>,
    interval: i64,
    serves: bool,
}

impl Narrator {
    /// Returns line `n`, counted from 0, with its timestamp.
    fn line(&self, n: i64) -> Option<LogLine> {
        if let Some(text) = usize::try_from(n).ok().and_then(|n| self.opening.get(n)) {
            let at = self.run.started.checked_add(SignedDuration::from_millis(n * 7)).ok()?;
            return Some(LogLine { at, text: Bytes::from(text.clone()) });
        }
        let beat = n - self.opening.len() as i64 + 1;
        let seconds = beat.checked_mul(Some(self.interval).filter(|i| *i > 0)?)?;
        let at = self.run.started.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        let text = if self.serves {
            format!("request {beat}: GET /healthz 200 {}ms", 1 + beat * 7919 % 23)
        } else {
            format!("heartbeat {beat}: {} items done", beat * 7919 % 1009)
        };
        Some(LogLine { at, text: Bytes::from(text) })
    }

    async fn tell(self, events: mpsc::Sender<Event>, follow: bool) {
        let end = self.run.finished.as_ref().map_or_else(|| self.runtime.now(), |(at, ..)| *at);
        let beats = (end.as_second() - self.run.started.as_second()) / self.interval.max(1);
        let mut n = (beats - KEPT as i64).max(0);
        while let Some(line) = self.line(n).filter(|line| line.at <= end) {
            n += 1;
            if events.send(Event::Line(line)).await.is_err() {
                return;
            }
        }
        if let Some((at, code, reason)) = &self.run.finished {
            let text = Bytes::from(format!("exiting with code {code} ({reason})"));
            if events.send(Event::Line(LogLine { at: *at, text })).await.is_err() {
                return;
            }
        }
        if events.send(Event::CaughtUp).await.is_err() || !follow || self.run.finished.is_some() {
            return;
        }
        while let Some(line) = self.line(n) {
            let wait = line.at.duration_since(self.runtime.now());
            tokio::time::sleep(Duration::try_from(wait).unwrap_or_default()).await;
            n += 1;
            if events.send(Event::Line(line)).await.is_err() {
                return;
            }
        }
    }
}

/// Runs a container's command from its start. Only sleeps that end in the future wait.
async fn replay(
    mut shell: Shell,
    runtime: Arc<dyn PodRuntime>,
    run: Run,
    command: Vec<String>,
    events: mpsc::Sender<Event>,
    follow: bool,
) {
    let clock = Arc::new(ReplayClock {
        process: ProcessClock::new(run.started, runtime.clone()),
        end: run.finished.map(|(at, ..)| at),
        runtime,
        events: events.clone(),
        follow,
    });
    shell.clock = clock.clone();
    let lines: Output = Arc::new(LineSink { clock, lines: Lines::Events(events), partial: Mutex::default() });
    // The exit code is ignored: the pod's status already says how the container ended.
    shell.start(&command, Stdio::new(Input::empty(), lines.clone(), lines.clone())).await;
    if let Err(error) = lines.finish().await {
        tracing::trace!(%error, "the log reader disconnected");
    }
}

/// The clock of a replay. It reports when it reaches the current time or the end of the run.
struct ReplayClock {
    process: ProcessClock,
    end: Option<Timestamp>,
    runtime: Arc<dyn PodRuntime>,
    events: mpsc::Sender<Event>,
    follow: bool,
}

impl ReplayClock {
    async fn reach(&self, at: Timestamp) {
        let now = self.runtime.now();
        let present = self.end.map_or(now, |end| end.min(now));
        if at > present {
            // When the reader disconnects, the surrounding `select!` drops this future.
            if self.events.send(Event::CaughtUp).await.is_err() || !self.follow || self.end.is_some() {
                return std::future::pending().await;
            }
        }
        self.process.wait(at).await;
    }
}

#[async_trait]
impl Clock for ReplayClock {
    fn now(&self) -> Timestamp {
        self.process.now()
    }

    async fn sleep(&self, duration: Duration) {
        self.reach(self.process.advance(duration)).await;
    }

    async fn step(&self) {
        self.reach(self.process.advance_step()).await;
    }
}

/// Destination of a process' output lines.
enum Lines {
    Events(mpsc::Sender<Event>),
    Written(Arc<Written>),
}

/// Splits the output of a script into lines with timestamps of its clock.
struct LineSink {
    clock: Arc<dyn Clock>,
    lines: Lines,
    partial: Mutex<BytesMut>,
}

/// Returns an output that stores the lines of a running process as the log of its run.
pub fn process_output(clock: Arc<dyn Clock>, written: Arc<Written>) -> Output {
    Arc::new(LineSink { clock, lines: Lines::Written(written), partial: Mutex::default() })
}

impl LineSink {
    async fn line(&self, text: Bytes) -> io::Result<()> {
        let line = LogLine { at: self.clock.now(), text };
        match &self.lines {
            Lines::Events(events) => {
                events.send(Event::Line(line)).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
            }
            Lines::Written(written) => {
                written.push(line);
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Sink for LineSink {
    async fn send(&self, data: Bytes) -> io::Result<()> {
        let lines = {
            let mut partial = self.partial.lock();
            partial.extend_from_slice(&data);
            let mut lines = Vec::new();
            while let Some(at) = partial.iter().position(|b| *b == b'\n') {
                let mut line = partial.split_to(at + 1);
                line.truncate(at);
                lines.push(line.freeze());
            }
            lines
        };
        for text in lines {
            self.line(text).await?;
        }
        Ok(())
    }

    async fn finish(&self) -> io::Result<()> {
        let rest = self.partial.lock().split().freeze();
        if rest.is_empty() { Ok(()) } else { self.line(rest).await }
    }
}
