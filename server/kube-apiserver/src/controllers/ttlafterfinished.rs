//! TTL-after-finished controller: deletes finished Jobs when their `ttlSecondsAfterFinished` has elapsed, as
//! kube-controller-manager's `ttlafterfinished` does.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::options::{DeleteOptions, DependentsPolicy, Preconditions, PropagationPolicy};
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::Registry;
use crowsnest_registry::authz::bootstrap::loopback;
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::run_with_restart;
use crate::ApiServer;

/// Longest interval between checks, in case the system clock is changed.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(600);
/// Delay before a Job is deleted again after an error.
const RETRY_DELAY: SignedDuration = SignedDuration::from_secs(5);
const MAX_CONCURRENT_DELETIONS: usize = 5;

/// Deletes expired Jobs until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "deletion of finished jobs", reconcile_changes).await;
}

async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let registry = server.registry();
    let (store, jobs) = (&registry.store, ResourceKey::new("batch", "jobs"));
    let mut changes = store.watch(&jobs, store.revision())?;
    let stored = store.objects(&jobs, "");
    let mut expirations: BTreeSet<(Timestamp, ObjectKey)> = stored.iter().filter_map(expiration_with_key).collect();
    loop {
        let wait = delete_expired(registry, &mut expirations, Timestamp::now()).await;
        tokio::select! {
            changes = changes.next() => {
                let changed: BTreeSet<ObjectKey> = changes?.iter().map(|change| change.key.clone()).collect();
                let changed = changed.iter().filter_map(|key| store.object(&jobs, key));
                expirations.extend(changed.filter_map(|job| expiration_with_key(&job)));
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn expiration_with_key(job: &Value) -> Option<(Timestamp, ObjectKey)> {
    Some((expiration(job)?, ObjectKey::new(job.namespace(), job.name())))
}

/// Time at which a finished Job expires: the transition time of its `Complete` or `Failed` condition and its TTL.
/// `None` for Jobs that are unfinished, being deleted or without a TTL.
fn expiration(job: &Value) -> Option<Timestamp> {
    let ttl = job["spec"]["ttlSecondsAfterFinished"].as_i64()?;
    if job.is_deleting() {
        return None;
    }
    let conditions = job["status"]["conditions"].as_array()?;
    let finished = conditions.iter().find(|condition| {
        condition["status"] == "True" && (condition["type"] == "Complete" || condition["type"] == "Failed")
    })?;
    let finished_at: Timestamp = finished["lastTransitionTime"].as_str()?.parse().ok()?;
    finished_at.checked_add(SignedDuration::from_secs(ttl)).ok()
}

/// Deletes the Jobs that have expired at `now`; returns the time until the next check. `expirations` contains when each
/// Job has to be checked.
async fn delete_expired(
    registry: &Registry,
    expirations: &mut BTreeSet<(Timestamp, ObjectKey)>,
    now: Timestamp,
) -> Duration {
    let later = expirations
        .split_off(&(now.saturating_add(SignedDuration::from_nanos(1)).unwrap_or(now), ObjectKey::new("", "")));
    let due = std::mem::replace(expirations, later);
    let checked =
        stream::iter(due).map(|(_, key)| check(registry, key, now)).buffer_unordered(MAX_CONCURRENT_DELETIONS);
    expirations.extend(checked.filter_map(std::future::ready).collect::<Vec<_>>().await);
    let next = expirations.first().and_then(|(time, _)| Duration::try_from(time.duration_since(now)).ok());
    next.unwrap_or(MAX_CHECK_INTERVAL).min(MAX_CHECK_INTERVAL)
}

/// Deletes a Job if it has expired. Returns when it has to be checked again, if at all: it may have been changed or
/// replaced since its expiration was read.
async fn check(registry: &Registry, key: ObjectKey, now: Timestamp) -> Option<(Timestamp, ObjectKey)> {
    let stored = || registry.store.object(&ResourceKey::new("batch", "jobs"), &key);
    let job = stored()?;
    let expires_at = expiration(&job)?;
    if expires_at > now {
        return Some((expires_at, key));
    }
    let error = delete(registry, &job).await.err()?;
    // A replacement has an expiration of its own.
    stored().filter(|current| current.uid() == job.uid() && !current.is_deleting())?;
    tracing::warn!(job = %key, %error, "cannot delete a finished job; retrying");
    Some((now.saturating_add(RETRY_DELAY).unwrap_or(now), key))
}

async fn delete(registry: &Registry, job: &Value) -> ApiResult<()> {
    let jobs = registry.resource(&Gvr::new("batch", "v1", "jobs"))?;
    let options = DeleteOptions {
        preconditions: Preconditions::for_uid(job.uid()),
        dependents: Some(DependentsPolicy::Propagation(PropagationPolicy::Foreground)),
        raw: json!({}),
        ..DeleteOptions::default()
    };
    registry.delete(&jobs, &loopback(job.namespace()), job.name(), &options, &mut Vec::new()).await?;
    tracing::info!(namespace = job.namespace(), job = job.name(), "deleted a finished job");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::complete(json!(60), "Complete", "True", Some("2026-01-01T00:01:00Z"))]
    #[case::failed(json!(0), "Failed", "True", Some("2026-01-01T00:00:00Z"))]
    #[case::running(json!(60), "Complete", "False", None)]
    #[case::suspended(json!(60), "Suspended", "True", None)]
    #[case::without_ttl(Value::Null, "Complete", "True", None)]
    #[case::beyond_the_calendar(json!(i64::MAX), "Complete", "True", None)]
    fn jobs_expire_after_their_ttl(
        #[case] ttl: Value,
        #[case] condition: &str,
        #[case] status: &str,
        #[case] expected: Option<&str>,
    ) {
        let job = json!({
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {"ttlSecondsAfterFinished": ttl},
            "status": {"conditions": [
                {"type": condition, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
            ]},
        });
        assert_eq!(expiration(&job).map(|time| time.to_string()).as_deref(), expected);
    }
}
