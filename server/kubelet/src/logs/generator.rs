//! Simulated log of a container without a supported command: lines at the start, then one line per interval.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::SignedDuration;
use tokio::sync::mpsc;

use super::{LogEvent, LogLine, MAX_LINES};
use crate::pods::{PodRuntime, Run};

/// Generates the log of a container without a supported command.
pub(super) struct LogGenerator {
    pub runtime: Arc<dyn PodRuntime>,
    pub run: Run,
    pub start_lines: Vec<String>,
    pub interval_seconds: i64,
    pub has_ports: bool,
}

impl LogGenerator {
    /// Returns line `n`, counted from 0, with its timestamp.
    fn line(&self, n: i64) -> Option<LogLine> {
        if let Some(text) = usize::try_from(n).ok().and_then(|n| self.start_lines.get(n)) {
            let at = self.run.started.checked_add(SignedDuration::from_millis(n * 7)).ok()?;
            return Some(LogLine { at, text: Bytes::from(text.clone()) });
        }
        let number = n - self.start_lines.len() as i64 + 1;
        let seconds = number.checked_mul(Some(self.interval_seconds).filter(|i| *i > 0)?)?;
        let at = self.run.started.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        let text = if self.has_ports {
            format!("request {number}: GET /healthz 200 {}ms", 1 + number * 7919 % 23)
        } else {
            format!("heartbeat {number}: {} items done", number * 7919 % 1009)
        };
        Some(LogLine { at, text: Bytes::from(text) })
    }

    pub async fn generate(self, events: mpsc::Sender<LogEvent>, follow: bool) {
        let end = self.run.finished.as_ref().map_or_else(|| self.runtime.now(), |(at, ..)| *at);
        let last_number = (end.as_second() - self.run.started.as_second()) / self.interval_seconds.max(1);
        let mut n = (last_number - MAX_LINES as i64).max(0);
        while let Some(line) = self.line(n).filter(|line| line.at <= end) {
            n += 1;
            if events.send(LogEvent::Line(line)).await.is_err() {
                return;
            }
        }
        if let Some((at, code, reason)) = &self.run.finished {
            let text = Bytes::from(format!("exiting with code {code} ({reason})"));
            if events.send(LogEvent::Line(LogLine { at: *at, text })).await.is_err() {
                return;
            }
        }
        if events.send(LogEvent::CaughtUp).await.is_err() || !follow || self.run.finished.is_some() {
            return;
        }
        while let Some(line) = self.line(n) {
            let wait = line.at.duration_since(self.runtime.now());
            tokio::time::sleep(Duration::try_from(wait).unwrap_or_default()).await;
            n += 1;
            if events.send(LogEvent::Line(line)).await.is_err() {
                return;
            }
        }
    }
}
