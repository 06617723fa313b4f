//! Rules of a CronFederatedHPA: when each is due, and its execution history. The controller keeps the timers in
//! memory; the status records the next run, which shows missed runs after a restart.

use crowsnest_api::autoscaling::{
    CronFederatedHPARule, CronFederatedHPASpec, CronFederatedHPAStatus, ExecutionHistory, FailedExecution,
    SuccessfulExecution,
};
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::cron::{Schedule, find_time_zone};

/// Default number of runs kept per outcome.
const DEFAULT_HISTORY_LIMIT: i32 = 3;
/// Delay up to which a run is executed even if the next run of its rule is due already.
const MAX_DELAY: SignedDuration = SignedDuration::from_mins(1);

/// Timers of one CronFederatedHPA.
#[derive(Debug, Default)]
pub struct Timers {
    target: Option<CrossVersionObjectReference>,
    timers: Vec<Timer>,
    /// Finished runs that are not in the status yet.
    unrecorded: Vec<FinishedRun>,
}

/// The timer of a rule that is not suspended.
#[derive(Debug)]
struct Timer {
    rule: CronFederatedHPARule,
    state: Result<ActiveTimer, String>,
}

#[derive(Debug)]
struct ActiveTimer {
    schedule: Schedule,
    next: Option<Timestamp>,
}

/// A rule that is due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueRule {
    pub rule: CronFederatedHPARule,
    pub at: Timestamp,
}

/// A finished run.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRun {
    pub due: DueRule,
    pub finished_at: Timestamp,
    /// Error of the run. `None` if it succeeded.
    pub error: Option<String>,
}

fn is_suspended(rule: &CronFederatedHPARule) -> bool {
    rule.suspend.unwrap_or_default()
}

fn parse_schedule(rule: &CronFederatedHPARule, local: &TimeZone) -> Result<Schedule, String> {
    let default_zone = match rule.time_zone.as_deref() {
        None => local.clone(),
        Some(name) => find_time_zone(name, local).ok_or_else(|| format!("unknown time zone {name}"))?,
    };
    Schedule::parse(&rule.schedule, default_zone, local)
        .map_err(|error| format!("cron expression failed to be parsed: {error}"))
}

impl Timers {
    /// Synchronizes the timers with the spec. Rules that are new or changed get new timers; if the target changed,
    /// all do. Returns the error of each invalid rule once. On the first call after a restart, a run that the status
    /// announced and that did not happen is due.
    pub fn synchronize(
        &mut self,
        spec: &CronFederatedHPASpec,
        status: &CronFederatedHPAStatus,
        local: &TimeZone,
        now: Timestamp,
    ) -> Vec<String> {
        let is_first_call = self.target.is_none();
        if self.target.as_ref() != Some(&spec.scale_target_ref) {
            self.timers.clear();
            self.target = Some(spec.scale_target_ref.clone());
        }
        let mut before = std::mem::take(&mut self.timers);
        let mut errors = Vec::new();
        for rule in spec.rules.iter().filter(|rule| !is_suspended(rule)) {
            let previous = before.iter().position(|timer| timer.rule == *rule).map(|index| before.swap_remove(index));
            let was_invalid = previous.as_ref().is_some_and(|timer| timer.state.is_err());
            let timer = match previous.filter(|timer| timer.state.is_ok()) {
                Some(timer) => timer,
                None => {
                    let state = parse_schedule(rule, local).map(|schedule| {
                        let missed =
                            if is_first_call { find_missed_run(&schedule, status, &rule.name, now) } else { None };
                        let next = missed.or_else(|| schedule.next(now));
                        ActiveTimer { schedule, next }
                    });
                    Timer { rule: rule.clone(), state }
                }
            };
            if let (Err(error), false) = (&timer.state, was_invalid) {
                errors.push(error.clone());
            }
            self.timers.push(timer);
        }
        errors
    }

    /// Returns the rules that are due now, earliest first, and advances their timers. A run is skipped if it is more
    /// than a minute late (after a clock change or downtime) and the next run of the rule is due already.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<DueRule> {
        let mut due_rules = Vec::new();
        for timer in &mut self.timers {
            let Ok(active) = &mut timer.state else { continue };
            let following = active.schedule.next(now);
            let Some(next) = active.next else { continue };
            if next > now {
                // The next run can only become earlier if the clock was set back.
                active.next = following.map_or(Some(next), |sooner| Some(sooner.min(next)));
                continue;
            }
            let in_time = active.schedule.next(next).is_none_or(|second| now < second);
            if in_time || now.duration_since(next) <= MAX_DELAY {
                due_rules.push(DueRule { rule: timer.rule.clone(), at: next });
            }
            active.next = following;
        }
        due_rules.sort_by_key(|rule| rule.at);
        due_rules
    }

    /// Time of the earliest next run.
    pub fn next(&self) -> Option<Timestamp> {
        self.timers.iter().filter_map(|timer| timer.state.as_ref().ok()?.next).min()
    }

    /// True if any rule has an invalid schedule.
    pub fn has_invalid_rules(&self) -> bool {
        self.timers.iter().any(|timer| timer.state.is_err())
    }

    fn next_run_of(&self, rule: &str) -> Option<Timestamp> {
        let timer = self.timers.iter().find(|timer| timer.rule.name == rule)?;
        timer.state.as_ref().ok()?.next
    }

    /// Keeps a finished run until [`Timers::clear_recorded`].
    pub fn add_run(&mut self, run: FinishedRun) {
        self.unrecorded.push(run);
    }

    /// Drops the finished runs; called after the status with them was written.
    pub fn clear_recorded(&mut self) {
        self.unrecorded.clear();
    }

    pub fn has_unrecorded(&self) -> bool {
        !self.unrecorded.is_empty()
    }

    /// The status with the finished runs, for rules that exist. A rule that was never valid has no entry.
    pub fn status(&self, spec: &CronFederatedHPASpec, before: &CronFederatedHPAStatus) -> CronFederatedHPAStatus {
        let mut histories = before.execution_histories.clone();
        histories.retain(|history| spec.rules.iter().any(|rule| rule.name == history.rule_name));
        for rule in &spec.rules {
            let is_invalid = self.timers.iter().any(|timer| timer.rule.name == rule.name && timer.state.is_err());
            let next = self.next_run_of(&rule.name).map(Time);
            match histories.iter_mut().find(|history| history.rule_name == rule.name) {
                Some(history) => history.next_execution_time = next,
                None if is_invalid => {}
                None => histories.push(ExecutionHistory {
                    rule_name: rule.name.clone(),
                    next_execution_time: next,
                    ..ExecutionHistory::default()
                }),
            }
        }
        for run in &self.unrecorded {
            if let Some(history) = histories.iter_mut().find(|history| history.rule_name == run.due.rule.name) {
                record(history, run);
            }
        }
        CronFederatedHPAStatus { execution_histories: histories }
    }
}

/// The missed run of a rule: the next run in the status, if it is past and the schedule agrees.
fn find_missed_run(
    schedule: &Schedule,
    status: &CronFederatedHPAStatus,
    rule: &str,
    now: Timestamp,
) -> Option<Timestamp> {
    let history = status.execution_histories.iter().find(|history| history.rule_name == rule)?;
    let announced = history.next_execution_time.as_ref()?.0;
    let before = announced.checked_sub(SignedDuration::from_secs(1)).ok()?;
    let agrees = matches!(schedule, Schedule::At(_)) && schedule.next(before) == Some(announced);
    (announced <= now && agrees).then_some(announced)
}

/// Adds a run at the front of its history, and truncates the history to the limits.
fn record(history: &mut ExecutionHistory, run: &FinishedRun) {
    let rule = &run.due.rule;
    let (schedule_time, execution_time) = (Some(Time(run.due.at)), Some(Time(run.finished_at)));
    let max_entries = |limit: Option<i32>| usize::try_from(limit.unwrap_or(DEFAULT_HISTORY_LIMIT)).unwrap_or_default();
    match &run.error {
        None => {
            let execution = SuccessfulExecution {
                schedule_time,
                execution_time,
                applied_replicas: rule.target_replicas,
                applied_max_replicas: rule.target_max_replicas,
                applied_min_replicas: rule.target_min_replicas,
            };
            history.successful_executions.insert(0, execution);
            history.successful_executions.truncate(max_entries(rule.successful_history_limit));
        }
        Some(message) => {
            let execution = FailedExecution { schedule_time, execution_time, message: message.clone() };
            history.failed_executions.insert(0, execution);
            history.failed_executions.truncate(max_entries(rule.failed_history_limit));
        }
    }
}
