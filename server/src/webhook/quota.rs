//! Reviews that quotas have a say in. A review is decided by what is stored: what the namespace's bindings use by a read of the API
//! server that is as new as the review, not by what the review or the quota's status claims. It writes nothing. The status is the
//! count of the quota controller, which sees what became stored.
//!
//! Of two bindings that are admitted at once neither is stored when the other is decided about. That is met in two ways. The writes of
//! our own controllers, which make nearly all of them, take turns by namespace (`act::over_quota`). For all other writers an
//! admitted binding is reserved in memory until it is seen stored, a second at most; only callers that have proved to be
//! the API server reserve anything, so a forged review takes nothing from anybody.

use std::collections::HashMap;
use std::time::Duration;

use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_api::work::ResourceBinding;
use crowsnest_controllers::act::turns::Turns;
use crowsnest_controllers::admission::{self, Refusal, Review};
use crowsnest_controllers::plan::quota::{self as plan, Usage};
use kube::api::{Api, ListParams};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::clients::Caller;
use super::{Webhooks, judge, listed};

/// An API server waits for 3 s.
const WITHIN: Duration = Duration::from_millis(2500);
/// After this an admitted binding is stored or was refused by another admission step. One that was stored and deleted within it counts
/// until then.
const RESERVED: Duration = Duration::from_secs(1);
/// Bindings read at once.
const PAGE: u32 = 500;

/// What reviews of one process share.
#[derive(Default)]
pub(super) struct Quotas {
    turns: Turns,
    reservations: Mutex<Reservations>,
}

/// A binding that was admitted and has not been seen stored.
#[derive(Debug, Clone)]
struct Reservation {
    /// The version it was admitted over; empty for a new one.
    over: String,
    /// What it uses more than that version.
    more: Usage,
    until: Instant,
}

/// By namespace and name.
#[derive(Debug, Default)]
struct Reservations(HashMap<(String, String), Vec<Reservation>>);

/// What is stored of the bindings of a namespace.
#[derive(Debug, Default)]
struct Stored {
    used: Usage,
    /// Versions by name.
    versions: HashMap<String, String>,
}

impl Stored {
    fn add(&mut self, binding: ResourceBinding) {
        plan::add(&mut self.used, plan::usage(&binding.spec));
        let name = binding.metadata.name.unwrap_or_default();
        self.versions.insert(name, binding.metadata.resource_version.unwrap_or_default());
    }
}

impl Reservations {
    fn reserve(&mut self, namespace: &str, name: &str, reservation: Reservation) {
        self.0.entry((namespace.to_owned(), name.to_owned())).or_default().push(reservation);
    }

    /// What is reserved in a namespace and not stored. Several tries of one binding are one use, the largest.
    fn open(&mut self, namespace: &str, stored: &Stored, now: Instant) -> Usage {
        let version = |name: &str| stored.versions.get(name).map(String::as_str).unwrap_or_default();
        self.0.retain(|(of, name), tries| {
            tries.retain(|one| one.until > now && (of != namespace || one.over == version(name)));
            !tries.is_empty()
        });
        let mut sum = Usage::new();
        for (_, tries) in self.0.iter().filter(|((of, _), _)| of == namespace) {
            let mut most = Usage::new();
            tries.iter().for_each(|one| plan::raise(&mut most, one.more.clone()));
            plan::add(&mut sum, most);
        }
        sum
    }
}

/// A review with all quotas of the namespace.
pub(super) async fn decide(
    webhooks: &Webhooks,
    quotas: &Quotas,
    path: &str,
    request: &admission::Request,
    caller: Caller,
) -> Result<Option<Review>, kube::Error> {
    match tokio::time::timeout(WITHIN, decide_in_turn(webhooks, quotas, path, request, caller)).await {
        Ok(review) => review,
        Err(_) => Ok(Some(Review::from(Err(Refusal::internal(format!(
            "failed to count the use of FederatedResourceQuotas for RB {}/{}: too many changes of bindings of the namespace at once",
            request.namespace, request.name
        )))))),
    }
}

async fn decide_in_turn(
    webhooks: &Webhooks,
    quotas: &Quotas,
    path: &str,
    request: &admission::Request,
    caller: Caller,
) -> Result<Option<Review>, kube::Error> {
    let client = || webhooks.control_plane.clone();
    let mut limits = listed(Api::<FederatedResourceQuota>::namespaced(client(), &request.namespace)).await?;
    if limits.is_empty() {
        return Ok(judge(webhooks, path, request, &[], &[]));
    }
    let _turn = quotas.turns.take(&request.namespace).await;
    let stored = stored(&Api::namespaced(client(), &request.namespace)).await?;
    let mut used = stored.used.clone();
    plan::add(&mut used, quotas.reservations.lock().open(&request.namespace, &stored, Instant::now()));
    for limit in &mut limits {
        let tracked = used.iter().filter(|(name, _)| limit.spec.overall.contains_key(*name));
        let tracked: Usage = tracked.map(|(name, amount)| (name.clone(), *amount)).collect();
        limit.status.overall_used = plan::to_list(plan::recorded(tracked));
    }
    let review = judge(webhooks, path, request, &[], &limits);
    let admits = review.as_ref().is_some_and(|review| review.is_allowed() && !review.quota_usage.is_empty());
    if admits && caller == Caller::ApiServer && !request.is_dry_run() {
        reserve(quotas, request, Instant::now() + RESERVED);
    }
    Ok(review)
}

fn reserve(quotas: &Quotas, request: &admission::Request, until: Instant) {
    let Ok(new) = ResourceBinding::deserialize(&request.object) else { return };
    let old = ResourceBinding::deserialize(&request.old_object).ok();
    let more = plan::increase(old.as_ref().map(|old| &old.spec), &new.spec);
    let over = old.and_then(|old| old.metadata.resource_version).unwrap_or_default();
    quotas.reservations.lock().reserve(&request.namespace, &request.name, Reservation { over, more, until });
}

/// Reads all bindings of a namespace, as new as the read.
async fn stored(api: &Api<ResourceBinding>) -> Result<Stored, kube::Error> {
    let mut stored = Stored::default();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = api.list(&page).await?;
        list.items.into_iter().for_each(|binding| stored.add(binding));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(stored),
        }
    }
}

#[cfg(test)]
mod tests;
