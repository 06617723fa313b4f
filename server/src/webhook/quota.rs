//! Reviews that quotas have a say in: what a binding uses is recorded in each quota of its namespace before it is let
//! through. One review of a namespace at a time in this process; between processes the quota's version decides.
//!
//! What is recorded for a binding that is not stored after all, the quota loop's next count takes back.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_api::work::ResourceBinding;
use crowsnest_controllers::admission::{self, Refusal, Review};
use crowsnest_controllers::plan::journal::Entry;
use crowsnest_controllers::plan::journal::workloads::quota_denied;
use jiff::Timestamp;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use rand::Rng;
use serde::Deserialize;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::{Webhooks, judge, listed};

/// An API server waits for 3 s.
const WITHIN: Duration = Duration::from_millis(2500);
/// The longest wait, in milliseconds, after somebody else wrote a quota.
const BREATH: u64 = 40;

type Turn = tokio::sync::Mutex<()>;

/// Whose turn it is, by namespace.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<String, Weak<Turn>>>);

impl Turns {
    async fn take(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.get(namespace).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(namespace.to_owned(), Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

/// A review with all quotas of the namespace; when it is allowed, and no dry run, they have it recorded. What a quota refuses
/// the journal is told.
pub(super) async fn decide(
    webhooks: &Webhooks,
    turns: &Turns,
    path: &str,
    request: &admission::Request,
) -> Result<Option<Review>, kube::Error> {
    let deadline = Instant::now() + WITHIN;
    let review = reviewed(webhooks, turns, path, request, deadline).await?;
    if let Some(entry) = review.as_ref().and_then(|review| denied(request, review, Timestamp::now())) {
        let id = entry.id.clone();
        // Whoever asked gets an answer in time, however full the journal is.
        if tokio::time::timeout_at(deadline, webhooks.journal.note(entry)).await.is_err() {
            tracing::warn!(entry = id, "the journal is full: what a quota refused is not told");
        }
    }
    Ok(review)
}

/// What is told of a refusal by a quota.
fn denied(request: &admission::Request, review: &Review, now: Timestamp) -> Option<Entry> {
    let refusal = review.outcome.as_ref().err().filter(|_| !request.is_dry_run())?;
    let exceeded = refusal.exceeded.as_ref()?;
    let mut binding = ResourceBinding::deserialize(&request.object).ok()?;
    if request.operation == admission::Operation::Create {
        // Each try would be another object.
        binding.metadata.uid = None;
    }
    Some(quota_denied(&binding, exceeded, &refusal.message, now))
}

async fn reviewed(
    webhooks: &Webhooks,
    turns: &Turns,
    path: &str,
    request: &admission::Request,
    deadline: Instant,
) -> Result<Option<Review>, kube::Error> {
    let Ok(_turn) = tokio::time::timeout_at(deadline, turns.take(&request.namespace)).await else {
        return Ok(Some(late(request, "too many changes of bindings of the namespace at once")));
    };
    let api = Api::<FederatedResourceQuota>::namespaced(webhooks.control_plane.clone(), &request.namespace);
    let quotas = listed(api.clone()).await?;
    let Some(review) = judge(webhooks, path, request, &[], &quotas) else { return Ok(None) };
    if request.is_dry_run() || !review.is_allowed() {
        return Ok(Some(review));
    }
    for quota in &review.quota_usage {
        let again = |quota| judge(webhooks, path, request, &[], &[quota]);
        if let Some(refused) = record(&api, quota, again, request, deadline).await? {
            return Ok(Some(refused));
        }
    }
    Ok(Some(review))
}

/// Records a use in one quota. When somebody else was faster that quota is read and asked `again`, it alone: the others
/// have it recorded or are still to come. An answer is a refusal.
async fn record(
    api: &Api<FederatedResourceQuota>,
    quota: &FederatedResourceQuota,
    again: impl Fn(FederatedResourceQuota) -> Option<Review>,
    request: &admission::Request,
    deadline: Instant,
) -> Result<Option<Review>, kube::Error> {
    let name = quota.metadata.name.as_deref().unwrap_or_default();
    let mut quota = quota.clone();
    loop {
        match api.replace_status(name, &PostParams::default(), &quota).await {
            Ok(_) => return Ok(None),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                if Instant::now() >= deadline {
                    return Ok(Some(late(request, &status.message)));
                }
            }
            // It limits nothing any more.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => return Err(error),
        }
        let breath = rand::rng().random_range(1..=BREATH);
        tokio::time::sleep(Duration::from_millis(breath)).await;
        let Some(fresh) = api.get_opt(name).await? else { return Ok(None) };
        let Some(review) = again(fresh) else { return Ok(None) };
        if !review.is_allowed() {
            return Ok(Some(review));
        }
        let Some(next) = review.quota_usage.into_iter().next() else { return Ok(None) };
        quota = next;
    }
}

fn late(request: &admission::Request, why: &str) -> Review {
    Review::from(Err(Refusal::internal(format!(
        "failed to apply FederatedResourceQuota updates after multiple retries for RB {}/{}: {why}",
        request.namespace, request.name
    ))))
}

#[cfg(test)]
mod tests;
