//! Aggregation layer: API groups of other servers, registered as APIServices.
//!
//! [`Aggregator`] keeps a table of remote services, checks their availability, proxies requests to them as the
//! authenticated user, and adds their groups to discovery and OpenAPI. It also registers the groups of this server
//! as local APIServices. Used by `http/` through [`crate::http::delegate::Delegate`].

pub mod authentication;
mod availability;
mod discovery;
mod local;
mod proxy;
pub mod service;

#[cfg(test)]
mod served_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::RequestPath;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::outbound::OutboundClients;
use crowsnest_component_base::retry::{Backoff, Delays};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::ResourceKey;
use crowsnest_registry::{Change, Edit, Registry};
use crowsnest_schema::openapi::PublishedDocument;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::availability::CheckResult;
use self::service::{GROUP, PLURAL, RemoteService};
use crate::crd::controller::loopback_context;
use crate::crd::definition;
use crate::crd::status::Condition;
use crate::http::delegate::{Delegate, RankedGroup};
use crate::http::respond;

/// Interval of checks of an available service.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Initial and maximum interval of checks of an unavailable service.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(15));

/// A remote service and its last known state.
#[derive(Debug, Clone)]
struct ServiceState {
    remote: RemoteService,
    is_available: bool,
    /// The version's entry in an `APIGroupDiscovery`, of the last successful check.
    discovery: Option<Value>,
    /// OpenAPI document of the last successful check.
    openapi: Option<PublishedDocument>,
}

/// The API group and version that a service serves. A group version has at most one service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ServiceKey {
    group: String,
    version: String,
}

impl ServiceKey {
    fn new(group: &str, version: &str) -> Self {
        Self { group: group.to_owned(), version: version.to_owned() }
    }
}

/// Remote services by group and version.
type Services = BTreeMap<ServiceKey, ServiceState>;

/// The aggregation layer.
pub struct Aggregator {
    registry: Arc<Registry>,
    outbound: Arc<OutboundClients>,
    services: ArcSwap<Services>,
    /// Tunnels of upgraded connections.
    tunnels: TaskTracker,
    stop: CancellationToken,
}

/// Time of a service's next check, and its backoff.
struct NextCheck {
    due: Instant,
    retry_delays: Delays,
}

impl Aggregator {
    /// Installs the strategy of APIServices. Tasks start with [`Self::run`].
    pub fn new(
        registry: Arc<Registry>,
        outbound: Arc<OutboundClients>,
        stop: CancellationToken,
    ) -> ApiResult<Arc<Self>> {
        let builtin = registry.resource(&Gvr::new(GROUP, "v1", PLURAL))?;
        registry.catalog.install(vec![service::resource(&builtin)]);
        let aggregator = Self { registry, outbound, services: ArcSwap::default(), tunnels: TaskTracker::new(), stop };
        aggregator.reload();
        Ok(Arc::new(aggregator))
    }

    /// Runs until cancelled, then waits for open tunnels to close.
    pub async fn run(self: Arc<Self>) {
        let table = ResourceKey::new(GROUP, PLURAL);
        let mut schedule: BTreeMap<ServiceKey, NextCheck> = BTreeMap::new();
        let mut checks: JoinSet<(ServiceKey, CheckResult)> = JoinSet::new();
        let mut running_checks: BTreeSet<ServiceKey> = BTreeSet::new();
        let mut catalog = self.registry.catalog.subscribe();
        let mut is_start = true;
        'restart: loop {
            let mut watcher = match self.registry.store.watch(&table, self.registry.store.revision()) {
                Ok(watcher) => watcher,
                Err(error) => {
                    tracing::error!(%error, "cannot watch APIServices");
                    break;
                }
            };
            self.register_local(is_start).await;
            is_start = false;
            self.plan_checks(&mut schedule);
            loop {
                let now = Instant::now();
                for (key, next) in &mut schedule {
                    if next.due > now || running_checks.contains(key) {
                        continue;
                    }
                    if let Some(service) = self.services.load().get(key).cloned() {
                        let (outbound, key) = (self.outbound.clone(), key.clone());
                        running_checks.insert(key.clone());
                        checks.spawn(async move { (key, availability::check(&outbound, &service.remote).await) });
                    }
                }
                let next_due =
                    schedule.iter().filter(|(key, _)| !running_checks.contains(*key)).map(|(_, next)| next.due).min();
                let timer = async {
                    match next_due {
                        Some(due) => tokio::time::sleep_until(due).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = self.stop.cancelled() => break 'restart,
                    changed = catalog.changed() => {
                        if changed.is_err() {
                            break 'restart;
                        }
                        self.register_local(false).await;
                    }
                    changes = watcher.next() => match changes {
                        Ok(_) => {
                            self.register_local(false).await;
                            self.plan_checks(&mut schedule);
                        }
                        Err(Error::Expired { .. }) => continue 'restart,
                        Err(error) => {
                            tracing::debug!(%error, "the watch of APIServices ended");
                            break 'restart;
                        }
                    },
                    Some(done) = checks.join_next(), if !checks.is_empty() => {
                        if let Ok((key, result)) = done {
                            running_checks.remove(&key);
                            self.record(&key, result, &mut schedule).await;
                        }
                    }
                    () = timer => {}
                }
            }
        }
        self.tunnels.close();
        self.tunnels.wait().await;
    }

    /// Reloads the table; schedules checks of new and changed services at once, and drops removed ones.
    fn plan_checks(&self, schedule: &mut BTreeMap<ServiceKey, NextCheck>) {
        let before = self.services.load_full();
        self.reload();
        let services = self.services.load();
        schedule.retain(|key, _| services.contains_key(key));
        for (key, service) in services.iter() {
            if before.get(key).is_none_or(|old| old.remote != service.remote) || !schedule.contains_key(key) {
                schedule.insert(key.clone(), NextCheck { due: Instant::now(), retry_delays: RETRY_BACKOFF.delays() });
            }
        }
    }

    /// Reloads the table from the stored APIServices; the state of unchanged ones is kept.
    fn reload(&self) {
        let before = self.services.load_full();
        let mut services = Services::new();
        for object in self.registry.store.objects(&ResourceKey::new(GROUP, PLURAL), "") {
            let Some(remote) = RemoteService::from_api_service(&object) else { continue };
            let key = ServiceKey::new(&remote.group, &remote.version);
            let old = before.get(&key).filter(|old| old.remote == remote);
            let new = || ServiceState { remote, is_available: false, discovery: None, openapi: None };
            let state = old.cloned().unwrap_or_else(new);
            services.insert(key, state);
        }
        self.services.store(Arc::new(services));
    }

    /// Writes the result of a check to the table and to the object's status.
    async fn record(&self, key: &ServiceKey, result: CheckResult, schedule: &mut BTreeMap<ServiceKey, NextCheck>) {
        let is_available = result.condition.status == "True";
        let mut name = None;
        self.services.rcu(|services| {
            let mut next = Services::clone(services);
            if let Some(service) = next.get_mut(key) {
                name = Some(service.remote.name.clone());
                service.is_available = is_available;
                if result.discovery.is_some() {
                    service.discovery.clone_from(&result.discovery);
                }
                if result.openapi.is_some() {
                    service.openapi.clone_from(&result.openapi);
                }
            }
            next
        });
        if let Some(next) = schedule.get_mut(key) {
            let delay = if is_available {
                next.retry_delays.reset();
                CHECK_INTERVAL
            } else {
                next.retry_delays.next_delay()
            };
            next.due = Instant::now() + delay;
        }
        if let Some(name) = name
            && let Err(error) = self.set_condition(&name, result.condition).await
            && !error.is(Reason::NotFound)
        {
            tracing::warn!(%error, service = name, "cannot write the availability of an APIService");
        }
    }

    async fn set_condition(&self, name: &str, condition: Condition) -> ApiResult<()> {
        let resource = self.registry.resource(&Gvr::new(GROUP, "v1", PLURAL))?;
        let current = self.registry.get(&resource, "", name).await?;
        let now = jiff::Timestamp::now();
        if !condition.set(&mut current.clone(), now) {
            return Ok(());
        }
        let edit = Edit(Arc::new(move |live: &mut Value| {
            condition.set(live, now);
            Ok(())
        }));
        let ctx = loopback_context("status");
        self.registry.update(&resource, &ctx, name, &Change::Edit(edit), &loopback_options(), &mut Vec::new()).await?;
        Ok(())
    }

    /// Reconciles the local APIServices with the catalog. `is_start` is true for the first call after the start of the
    /// server.
    async fn register_local(&self, is_start: bool) {
        let resource = match self.registry.resource(&Gvr::new(GROUP, "v1", PLURAL)) {
            Ok(resource) => resource,
            Err(error) => {
                tracing::error!(%error, "the APIService resource is not served");
                return;
            }
        };
        let served = self.registry.catalog.snapshot();
        let crd_groups = self.crd_groups();
        let desired = local::desired_services(served.iter().map(|r| (&*r.gvr.group, &*r.gvr.version)), &crd_groups);
        let existing = self.registry.store.objects(&ResourceKey::new(GROUP, PLURAL), "");
        let plan = local::plan(&desired, &existing, is_start);
        let options = loopback_options();
        for object in plan.create {
            let created = self.registry.create(&resource, &loopback(""), object, &options, &mut Vec::new()).await;
            if let Err(error) = created.map(drop)
                && !error.is(Reason::AlreadyExists)
            {
                tracing::warn!(%error, "cannot register a local APIService");
            }
        }
        for object in plan.restore {
            let (name, change) = (object.name().to_owned(), Change::Replace(object));
            let updated =
                self.registry.update(&resource, &loopback(""), &name, &change, &options, &mut Vec::new()).await;
            if let Err(error) = updated.map(drop)
                && !error.is(Reason::NotFound)
                && !error.is(Reason::Conflict)
            {
                tracing::warn!(%error, service = name, "cannot restore a local APIService");
            }
        }
        for name in plan.delete {
            let deleted =
                self.registry.delete(&resource, &loopback(""), &name, &Default::default(), &mut Vec::new()).await;
            if let Err(error) = deleted.map(drop)
                && !error.is(Reason::NotFound)
            {
                tracing::warn!(%error, service = name, "cannot remove a local APIService");
            }
        }
    }

    /// Groups of CRDs, whose APIServices are removed with their last CRD.
    fn crd_groups(&self) -> BTreeSet<String> {
        let table = ResourceKey::new(definition::GROUP, definition::PLURAL);
        let objects = self.registry.store.objects(&table, "");
        objects.iter().map(|o| definition::Definition(o).group().to_owned()).collect()
    }
}

#[async_trait]
impl Delegate for Aggregator {
    fn claims(&self, group: &str, version: &str) -> bool {
        self.services.load().contains_key(&ServiceKey::new(group, version))
    }

    async fn serve(&self, user: &UserInfo, request: http::Request<Body>) -> http::Response<Body> {
        let path = match RequestPath::parse(request.uri().path()) {
            Ok(path) => path,
            // The extension server could interpret the path differently from the authorization check.
            Err(error) => return respond::error(&ApiError::bad_request(error.to_string())),
        };
        let key = path.group_version().map(|(group, version)| ServiceKey::new(group, version));
        let service = key.and_then(|key| self.services.load().get(&key).cloned());
        match service {
            Some(service) if service.is_available => {
                proxy::serve(&self.outbound, &self.tunnels, &self.stop, &service.remote, user, request).await
            }
            _ => proxy::unavailable_response("service unavailable"),
        }
    }

    fn discovery(&self) -> Vec<RankedGroup> {
        discovery::rank_groups(self.services.load().values().map(|service| {
            let stale = json!({"version": service.remote.version, "freshness": "Stale"});
            let entry = match (&service.discovery, service.is_available) {
                (Some(entry), true) => entry.clone(),
                (Some(entry), false) => {
                    let mut entry = entry.clone();
                    entry["freshness"] = "Stale".into();
                    entry
                }
                (None, _) => stale,
            };
            (&service.remote, entry)
        }))
    }

    fn openapi(&self) -> Vec<PublishedDocument> {
        self.services.load().values().filter_map(|service| service.openapi.clone()).collect()
    }
}
