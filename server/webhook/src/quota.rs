//! Reviews of bindings against quotas. A decision is based on stored objects: the usage of the namespace's bindings,
//! read from the API server for this review, not the values in the review or in the quota's status. The review writes
//! nothing. The quota controller updates the status from stored bindings.
//!
//! When two bindings are admitted concurrently, neither is stored yet when the other one is decided. Two mechanisms
//! prevent overuse. Our own controllers, which make almost all of these writes, serialize them by namespace
//! (`crowsnest_controllers::quota::binding_writes`). For other writers, an admitted binding is reserved in memory until it
//! is stored, for one second at most. Only callers authenticated as the API server create reservations, so forged
//! reviews take no quota.

use std::collections::HashMap;
use std::time::Duration;

use crowsnest_admission::{Refusal, Review};
use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_api::work::ResourceBinding;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_controllers::runtime::keyed_mutex::KeyedMutex;
use crowsnest_plan::quota::{self as plan, Usage};
use kube::api::{Api, ListParams};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::clients::Caller;
use super::{WebhookConfig, evaluate, list_all};

/// Time limit; an API server waits 3 s.
const REVIEW_TIMEOUT: Duration = Duration::from_millis(2500);
/// Lifetime of a reservation. After this time an admitted binding has been stored or refused by another admission step.
/// A binding that is stored and deleted within this time still counts until the end of it, except in the review of a
/// binding of the same name.
const RESERVATION_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum number of bindings per read.
const PAGE_SIZE: u32 = 500;

/// State shared by the reviews of one process.
#[derive(Default)]
pub(super) struct QuotaState {
    namespace_locks: KeyedMutex,
    reservations: Mutex<Reservations>,
}

/// Binding that was admitted and has not been seen in storage.
#[derive(Debug, Clone)]
struct Reservation {
    /// resourceVersion that the admitted write replaces; empty for a new binding.
    base_version: String,
    /// Usage in addition to that version.
    increase: Usage,
    expires: Instant,
}

/// Reservations by binding.
#[derive(Debug, Default)]
struct Reservations(HashMap<NamespacedName, Vec<Reservation>>);

/// Stored bindings of a namespace.
#[derive(Debug, Default)]
struct StoredBindings {
    used: Usage,
    /// resourceVersions by name.
    versions: HashMap<String, String>,
}

impl StoredBindings {
    fn add(&mut self, binding: ResourceBinding) {
        plan::add(&mut self.used, plan::usage(&binding.spec));
        let name = binding.metadata.name.unwrap_or_default();
        self.versions.insert(name, binding.metadata.resource_version.unwrap_or_default());
    }
}

impl Reservation {
    /// Usage of an admitted write in addition to the version that it replaces; `None` if its object is not a binding.
    fn from_request(request: &crowsnest_admission::Request, expires: Instant) -> Option<Self> {
        let new = ResourceBinding::deserialize(&request.object).ok()?;
        let old = ResourceBinding::deserialize(&request.old_object).ok();
        let increase = plan::increase(old.as_ref().map(|old| &old.spec), &new.spec);
        let base_version = old.and_then(|old| old.metadata.resource_version).unwrap_or_default();
        Some(Self { base_version, increase, expires })
    }
}

impl Reservations {
    fn reserve(&mut self, binding: NamespacedName, reservation: Reservation) {
        self.0.entry(binding).or_default().push(reservation);
    }

    /// Usage in the namespace of `reviewed` that is reserved for other bindings and not stored yet. Several attempts
    /// for one binding count once, with the largest usage. Earlier attempts for the reviewed binding do not count: at
    /// most one of several writes over the same version is stored, and each was admitted on its own.
    fn reserved_usage(&mut self, reviewed: &NamespacedName, stored: &StoredBindings, now: Instant) -> Usage {
        let namespace = &reviewed.namespace;
        let version = |name: &str| stored.versions.get(name).map(String::as_str).unwrap_or_default();
        self.0.retain(|binding, attempts| {
            let is_stored = |attempt: &Reservation| {
                binding.namespace == *namespace && attempt.base_version != version(&binding.name)
            };
            attempts.retain(|attempt| attempt.expires > now && !is_stored(attempt));
            !attempts.is_empty()
        });
        let mut sum = Usage::new();
        let others = self.0.iter().filter(|(binding, _)| binding.namespace == *namespace && *binding != reviewed);
        for (_, attempts) in others {
            let mut max_increase = Usage::new();
            attempts.iter().for_each(|attempt| plan::merge_maximum(&mut max_increase, attempt.increase.clone()));
            plan::add(&mut sum, max_increase);
        }
        sum
    }
}

/// A write of a binding that is reviewed against all quotas of its namespace.
pub(super) struct QuotaReview<'a> {
    pub config: &'a WebhookConfig,
    pub state: &'a QuotaState,
    pub path: &'a str,
    pub request: &'a crowsnest_admission::Request,
    pub caller: Caller,
}

impl QuotaReview<'_> {
    /// Decides within the time limit.
    pub(super) async fn decide(&self) -> Result<Option<Review>, kube::Error> {
        match tokio::time::timeout(REVIEW_TIMEOUT, self.decide_serialized()).await {
            Ok(review) => review,
            Err(_) => Ok(Some(Review::from(Err(Refusal::internal(format!(
                "failed to count the use of FederatedResourceQuotas for RB {}/{}: too many concurrent writes of bindings in the namespace",
                self.request.namespace, self.request.name
            )))))),
        }
    }

    async fn decide_serialized(&self) -> Result<Option<Review>, kube::Error> {
        let QuotaReview { config, state, path, request, caller } = *self;
        let client = || config.control_plane.clone();
        let mut quotas = list_all(Api::<FederatedResourceQuota>::namespaced(client(), &request.namespace)).await?;
        if quotas.is_empty() {
            return Ok(evaluate(config, path, request, &[], &[]));
        }
        let binding = NamespacedName::new(&request.namespace, &request.name);
        let _guard = state.namespace_locks.lock(&binding.namespace).await;
        let stored = list_bindings(&Api::namespaced(client(), &binding.namespace)).await?;
        let mut used = stored.used.clone();
        plan::add(&mut used, state.reservations.lock().reserved_usage(&binding, &stored, Instant::now()));
        for quota in &mut quotas {
            let tracked = used.iter().filter(|(name, _)| quota.spec.overall.contains_key(*name));
            let tracked: Usage = tracked.map(|(name, amount)| (name.clone(), *amount)).collect();
            quota.status.overall_used = plan::to_list(plan::in_status_formats(tracked));
        }
        let review = evaluate(config, path, request, &[], &quotas);
        let is_admitted = review.as_ref().is_some_and(|review| review.is_allowed() && !review.quota_usage.is_empty());
        if is_admitted
            && caller == Caller::ApiServer
            && !request.is_dry_run()
            && let Some(reservation) = Reservation::from_request(request, Instant::now() + RESERVATION_LIFETIME)
        {
            state.reservations.lock().reserve(binding, reservation);
        }
        Ok(review)
    }
}

/// Reads all bindings of a namespace, page by page.
async fn list_bindings(api: &Api<ResourceBinding>) -> Result<StoredBindings, kube::Error> {
    let mut stored = StoredBindings::default();
    let mut page = ListParams::default().limit(PAGE_SIZE);
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
