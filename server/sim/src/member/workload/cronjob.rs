//! CronJob controller: creates a Job at each scheduled time.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::error::Result;
use crate::member::context::{MemberContext, SharedObject};
use crate::member::store::{Key, StoreObject};

use super::pods::WorkloadOwner;
use super::{enqueue_owners, new_change_queue, spawn_controller};

/// Maximum number of missed times, as in Kubernetes; beyond it, only the next time is used.
const MAX_MISSED_TIMES: usize = 100;

pub fn start(context: &Arc<MemberContext>) {
    let keys = new_change_queue(&context.cron_jobs);
    enqueue_owners(&context.jobs, "CronJob", &keys);
    spawn_controller(context, "cronjob", keys, 2, |context, key| async move { reconcile(&context, &key).await });
}

/// Finds the last scheduled time after `since` up to `now`, and the first one after `now`. `None` if the schedule or
/// the time zone is invalid.
pub fn find_scheduled_times(
    schedule: &str,
    zone: Option<&str>,
    since: Timestamp,
    now: Timestamp,
) -> Option<(Option<Timestamp>, Timestamp)> {
    let cron = Cron::from_str(schedule).ok()?;
    let zone = match zone {
        Some(name) => TimeZone::get(name).ok()?,
        None => TimeZone::UTC,
    };
    let next = |after: Timestamp| {
        cron.find_next_occurrence(&after.to_zoned(zone.clone()), false).ok().map(|at| at.timestamp())
    };
    let mut last = None;
    let mut at = next(since)?;
    for _ in 0..MAX_MISSED_TIMES {
        if at > now {
            return Some((last, at));
        }
        last = Some(at);
        at = next(at)?;
    }
    // Too many times were missed.
    Some((None, next(now)?))
}

/// True if a Job has succeeded, false if it has failed, `None` if it has not finished.
fn outcome(job: &Job) -> Option<bool> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_true = |kind: &str| conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True");
    if is_true("Complete") { Some(true) } else { is_true("Failed").then_some(false) }
}

async fn reconcile(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(cron) = context.cron_jobs.get_undeleted(key) else { return Ok(None) };
    let spec = &cron.spec;
    let owner = WorkloadOwner::new(&cron, "cronjob-controller");
    let now = Timestamp::now();
    let mut status = cron.status.clone().unwrap_or_default();
    let mut jobs = context.jobs.owned_by(cron.uid());
    delete_old_jobs(context, spec, &mut jobs).await?;
    let mut requeue_after = None;
    if spec.suspend != Some(true) {
        let since = last_considered_time(&cron, spec, now);
        let Some((last, next)) = find_scheduled_times(&spec.schedule, spec.time_zone.as_deref(), since, now) else {
            owner.record_event(
                context,
                true,
                "UnparseableSchedule",
                format!("unparseable schedule: {}", spec.schedule),
            );
            return Ok(None);
        };
        if let Some(at) = last
            && create_job(context, &owner, spec, &jobs, at).await?
        {
            status.last_schedule_time = Some(Time(at));
        }
        requeue_after = Duration::try_from(next.duration_since(now)).ok();
        jobs = context.jobs.owned_by(cron.uid());
    }
    let active: Vec<ObjectReference> = jobs.iter().filter(|job| outcome(job).is_none()).map(job_reference).collect();
    let succeeded = jobs.iter().filter(|job| outcome(job) == Some(true));
    let successful = succeeded.filter_map(|job| job.status.as_ref()?.completion_time.clone()).max_by_key(|time| time.0);
    let status = CronJobStatus {
        active: (!active.is_empty()).then_some(active),
        last_schedule_time: status.last_schedule_time,
        last_successful_time: successful.or(status.last_successful_time),
    };
    context.set_status(&context.cron_jobs, &cron, cron.status.as_ref(), &status).await?;
    Ok(requeue_after)
}

/// Start of the interval in which scheduled times are considered: the last scheduled time, or the starting deadline if
/// that is later.
fn last_considered_time(cron: &CronJob, spec: &CronJobSpec, now: Timestamp) -> Timestamp {
    let created = cron.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let last =
        cron.status.as_ref().and_then(|status| status.last_schedule_time.as_ref()).map_or(created, |time| time.0);
    match spec.starting_deadline_seconds {
        Some(seconds) => last.max(now - SignedDuration::from_secs(seconds)),
        None => last,
    }
}

/// Creates the Job of a scheduled time, unless the concurrency policy forbids it. Returns true if the Job exists.
async fn create_job(
    context: &MemberContext,
    owner: &WorkloadOwner,
    spec: &CronJobSpec,
    jobs: &[SharedObject<Job>],
    at: Timestamp,
) -> Result<bool> {
    let running: Vec<_> = jobs.iter().filter(|job| outcome(job).is_none()).collect();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !running.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            owner.record_event(context, false, "JobAlreadyActive", message);
            return Ok(false);
        }
        Some("Replace") => {
            for job in running {
                context.delete(&context.jobs, job).await?;
                owner.record_event(context, false, "SuccessfulDelete", format!("Deleted job {}", job.key().name));
            }
        }
        _ => {}
    }
    let Key { namespace, name } = &owner.subject.key;
    let template = spec.job_template.clone();
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(
        "batch.kubernetes.io/cronjob-scheduled-timestamp".into(),
        crate::member::pod_lifecycle::format_time(at),
    );
    let job = Job {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{}", at.as_second() / 60)),
            namespace: Some(namespace.to_string()),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner.owner_reference()]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    };
    match context.create(&context.jobs, &job).await {
        Ok(job) => {
            owner.record_event(context, false, "SuccessfulCreate", format!("Created job {}", job.key().name));
            Ok(true)
        }
        Err(error) if error.is_conflict() => Ok(true),
        Err(error) => {
            owner.record_event(context, true, "FailedCreate", format!("Error creating job: {error}"));
            Err(error)
        }
    }
}

fn job_reference(job: &SharedObject<Job>) -> ObjectReference {
    let key = job.key();
    ObjectReference {
        api_version: Some("batch/v1".into()),
        kind: Some("Job".into()),
        name: Some(key.name.to_string()),
        namespace: Some(key.namespace.to_string()),
        uid: Some(job.uid().to_owned()),
        resource_version: job.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

/// Deletes the oldest finished Jobs above the history limits.
async fn delete_old_jobs(context: &MemberContext, spec: &CronJobSpec, jobs: &mut Vec<SharedObject<Job>>) -> Result<()> {
    let limits =
        [(true, spec.successful_jobs_history_limit.unwrap_or(3)), (false, spec.failed_jobs_history_limit.unwrap_or(1))];
    for (successful, limit) in limits {
        let mut old: Vec<_> = jobs.iter().filter(|job| outcome(job) == Some(successful)).cloned().collect();
        old.sort_by_key(|job| (job.metadata.creation_timestamp.as_ref().map(|time| time.0), job.key()));
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or_default());
        for job in old.into_iter().take(surplus) {
            context.delete(&context.jobs, &job).await?;
            jobs.retain(|candidate| candidate.uid() != job.uid());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(
        "*/5 * * * *",
        None,
        "2026-01-01T00:03:00Z",
        "2026-01-01T00:16:00Z",
        "2026-01-01T00:15:00Z 2026-01-01T00:20:00Z"
    )]
    #[case(
        "0 12 * * *",
        Some("Europe/Berlin"),
        "2026-07-01T00:00:00Z",
        "2026-07-01T00:00:01Z",
        "- 2026-07-01T10:00:00Z"
    )]
    #[case("* * * * *", None, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "- 2026-01-02T00:01:00Z")]
    #[case(
        "*/1 * * * ?",
        None,
        "2026-01-01T00:03:00Z",
        "2026-01-01T00:04:30Z",
        "2026-01-01T00:04:00Z 2026-01-01T00:05:00Z"
    )]
    #[case("@hourly", None, "2026-01-01T00:03:00Z", "2026-01-01T00:04:30Z", "- 2026-01-01T01:00:00Z")]
    #[case("nonsense", None, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "never")]
    fn scheduled_times_are_found_in_the_time_zone(
        #[case] schedule: &str,
        #[case] zone: Option<&str>,
        #[case] since: &str,
        #[case] now: &str,
        #[case] expected: &str,
    ) {
        let actual = match find_scheduled_times(schedule, zone, since.parse().unwrap(), now.parse().unwrap()) {
            None => "never".to_owned(),
            Some((last, next)) => format!("{} {next}", last.map_or("-".into(), |last| last.to_string())),
        };
        assert_eq!(actual, expected);
    }
}
