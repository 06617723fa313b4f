//! Scheduled writes of events: their kinds, classes and delays. Has no side effects.

use std::time::{Duration, Instant};

use crowsnest_api::constants::event;
use crowsnest_apimachinery::unstructured;

use super::Severity;
use super::correlator::{Entry, EventKey};

/// Delay of a success event, in which equal events are counted and a burst is recognized.
const SUCCESS_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay of a propagation step during a burst.
const BURST_DELAY: Duration = Duration::from_secs(60);
/// Interval between two writes of the count of a failure event.
const FAILURE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between two writes of the count of a success event.
const SUCCESS_INTERVAL: Duration = Duration::from_secs(300);

/// Reasons of the success events that every propagated template causes.
const PROPAGATION_STEPS: [&str; 10] = [
    event::APPLY_POLICY_SUCCEED,
    event::GET_REPLICAS_SUCCEED,
    event::GET_COMPONENTS_SUCCEED,
    event::SCHEDULE_BINDING_SUCCEED,
    event::SYNC_WORK_SUCCEED,
    event::SYNC_SUCCEED,
    event::WORK_DISPATCHING,
    event::REFLECT_STATUS_SUCCEED,
    event::INTERPRET_HEALTH_SUCCEED,
    event::AGGREGATE_STATUS_SUCCEED,
];

/// Prefix of the apiVersion of bindings and Works.
const WORK_GROUP: &str = "work.karmada.io/";

/// A scheduled write.
#[derive(Debug)]
pub(super) struct ScheduledWrite {
    pub key: EventKey,
    /// Hash of the reference to the object that the event is about.
    pub object: u64,
    pub kind: WriteKind,
    /// Time from which the delay of the write counts.
    pub delayed_since: Instant,
}

impl ScheduledWrite {
    /// Delay until the write is due. `burst` is the time until the current burst ends.
    pub fn delay(&self, now: Instant, burst: Option<Duration>) -> Duration {
        let full_delay = self.kind.delay(burst.is_some());
        let remaining = full_delay.saturating_sub(now.saturating_duration_since(self.delayed_since));
        burst.filter(|_| self.kind.is_step()).map_or(remaining, |burst_end| remaining.min(burst_end))
    }
}

/// Scheduled writes, in the order in which they were scheduled.
#[derive(Debug, Default)]
pub(super) struct ScheduledWrites {
    pub failures: Vec<ScheduledWrite>,
    pub successes: Vec<ScheduledWrite>,
    pub counts: Vec<ScheduledWrite>,
}

impl ScheduledWrites {
    /// Writes of the same class as this kind.
    pub fn class_mut(&mut self, kind: WriteKind) -> &mut Vec<ScheduledWrite> {
        match kind {
            WriteKind::Failure => &mut self.failures,
            WriteKind::Success | WriteKind::TemplateStep | WriteKind::WorkStep => &mut self.successes,
            WriteKind::Count(_) => &mut self.counts,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &ScheduledWrite> {
        self.failures.iter().chain(&self.successes).chain(&self.counts)
    }

    /// All writes, failures first.
    pub fn into_writes(self) -> impl Iterator<Item = ScheduledWrite> {
        self.failures.into_iter().chain(self.successes).chain(self.counts)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteKind {
    Failure,
    Success,
    /// A step of propagation, about the template.
    TemplateStep,
    /// A step of propagation, about the binding or a Work.
    WorkStep,
    /// An update of a count, after this interval.
    Count(Duration),
}

impl WriteKind {
    pub fn from_entry(entry: &Entry) -> Self {
        let is_step = PROPAGATION_STEPS.contains(&entry.reason);
        match entry.severity {
            Severity::Warning => WriteKind::Failure,
            Severity::Normal if !is_step => WriteKind::Success,
            Severity::Normal if unstructured::api_version(&entry.regarding).starts_with(WORK_GROUP) => {
                WriteKind::WorkStep
            }
            Severity::Normal => WriteKind::TemplateStep,
        }
    }

    /// The update of the count of an event of this kind.
    pub fn count_update(self) -> Self {
        match self {
            WriteKind::Failure => WriteKind::Count(FAILURE_INTERVAL),
            WriteKind::Count(interval) => WriteKind::Count(interval),
            WriteKind::Success | WriteKind::TemplateStep | WriteKind::WorkStep => WriteKind::Count(SUCCESS_INTERVAL),
        }
    }

    pub fn is_step(self) -> bool {
        matches!(self, WriteKind::TemplateStep | WriteKind::WorkStep)
    }

    /// True if the event is limited by the rate of successes.
    pub fn is_success(self) -> bool {
        self.is_step() || self == WriteKind::Success
    }

    /// Time between the scheduling of a write and its due time.
    pub fn delay(self, is_burst: bool) -> Duration {
        match self {
            WriteKind::Failure => Duration::ZERO,
            WriteKind::Count(interval) => interval,
            WriteKind::TemplateStep | WriteKind::WorkStep if is_burst => BURST_DELAY,
            WriteKind::Success | WriteKind::TemplateStep | WriteKind::WorkStep => SUCCESS_DELAY,
        }
    }
}
