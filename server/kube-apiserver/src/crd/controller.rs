//! CRD controller: accepts names, installs the served resources, and deletes custom resources before their
//! definition is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::resource::{ResourceInfo, ResourceRef};
use crowsnest_registry::storage::ResourceKey;
use crowsnest_registry::strategy::RequestContext;
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::custom_schema;
use super::definition::{CLEANUP_FINALIZER, Definition, GROUP, PLURAL};
use super::definition_cache::{DefinitionCache, group_of};
use super::resources::{self, DefinitionStrategy};
use super::status::{self, Condition};
use crate::admission::WebhookClient;

/// Interval at which CRDs are reconciled again after an error, and while their objects wait for finalizers.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the memory of idle schemas is freed.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Reconciles CustomResourceDefinitions.
pub struct CrdController {
    registry: Arc<Registry>,
    client: Arc<WebhookClient>,
    /// CRDs whose resources are installed, by name.
    installed: BTreeMap<String, InstalledResource>,
    /// Names of the CRDs to be reconciled again after [`RETRY_INTERVAL`].
    retries: BTreeSet<String>,
    cache: DefinitionCache,
}

/// The installed resource of a CRD.
struct InstalledResource {
    group: String,
    plural: String,
    fingerprint: Fingerprint,
}

/// SHA-256 of the parts of a CRD that determine its served resources.
type Fingerprint = [u8; 32];

/// The fingerprint of a CRD.
fn fingerprint(crd: Definition<'_>) -> Fingerprint {
    let Definition(definition) = crd;
    let mut hasher = Sha256::new();
    for part in [&definition["spec"], &definition["status"]["acceptedNames"], &definition["metadata"]["uid"]] {
        // JSON texts contain no newline.
        hasher.update(format!("{part}\n"));
    }
    hasher.update([u8::from(crd.is_condition_true("Established")), u8::from(crd.is_deleting())]);
    hasher.finalize().into()
}

/// The resource of CRDs, which replaces the generic built-in one.
pub fn crd_resource(builtin: &ResourceInfo) -> ResourceInfo {
    ResourceInfo { strategy: Arc::new(DefinitionStrategy), ..builtin.clone() }
}

impl CrdController {
    /// Installs the strategy of CRDs and the resources of all stored CRDs.
    pub async fn start(registry: Arc<Registry>, client: Arc<WebhookClient>) -> ApiResult<Self> {
        let resource = registry.resource(&Gvr::new(GROUP, "v1", PLURAL))?;
        registry.catalog.install(vec![crd_resource(&resource)]);
        let mut controller = Self {
            registry,
            client,
            installed: BTreeMap::new(),
            retries: BTreeSet::new(),
            cache: DefinitionCache::default(),
        };
        for definition in controller.list_definitions() {
            controller.install(&definition);
        }
        Ok(controller)
    }

    /// Runs until cancelled or the store closes.
    pub async fn run(mut self, stop: CancellationToken) {
        let table = ResourceKey::new(GROUP, PLURAL);
        let mut idle_check = tokio::time::interval(IDLE_CHECK_INTERVAL);
        loop {
            // The watch starts before all CRDs are reconciled, so no change is missed.
            let mut watcher = match self.registry.store.watch(&table, self.registry.store.revision()) {
                Ok(watcher) => watcher,
                Err(error) => {
                    tracing::error!(%error, "cannot watch CRDs");
                    return;
                }
            };
            self.reconcile_all().await;
            loop {
                let retry = async {
                    match self.retries.is_empty() {
                        true => std::future::pending().await,
                        false => tokio::time::sleep(RETRY_INTERVAL).await,
                    }
                };
                let changes = tokio::select! {
                    () = stop.cancelled() => return,
                    _ = idle_check.tick() => {
                        custom_schema::drop_idle();
                        continue;
                    }
                    () = retry => None,
                    changes = watcher.next() => Some(changes),
                };
                match changes {
                    None => {
                        for name in std::mem::take(&mut self.retries) {
                            self.reconcile(&name).await;
                        }
                    }
                    Some(Ok(changes)) => {
                        let names: BTreeSet<String> = changes.iter().map(|c| c.key.name().to_owned()).collect();
                        self.reconcile_groups(names).await;
                    }
                    Some(Err(Error::Expired { .. })) => break,
                    Some(Err(error)) => {
                        tracing::debug!(%error, "the watch of CRDs ended");
                        return;
                    }
                }
            }
        }
    }

    fn list_definitions(&self) -> Vec<Value> {
        self.registry.store.objects(&ResourceKey::new(GROUP, PLURAL), "")
    }

    /// Reconciles the stored CRDs and those that are still installed.
    async fn reconcile_all(&mut self) {
        let records = self.registry.store.records(&ResourceKey::new(GROUP, PLURAL), "");
        let stored = records.iter().map(|r| r.key.name().to_owned());
        let names: BTreeSet<String> = stored.chain(self.installed.keys().cloned()).collect();
        for name in names {
            self.reconcile(&name).await;
        }
    }

    /// Reconciles the changed CRDs and the others in their groups, whose names may have become free.
    async fn reconcile_groups(&mut self, names: BTreeSet<String>) {
        for name in &names {
            self.reconcile(name).await;
        }
        let groups: BTreeSet<&str> = names.iter().map(|name| group_of(name)).collect();
        for group in groups {
            self.cache.refresh(&self.registry.store, group);
            for name in self.cache.newly_acceptable(group, jiff::Timestamp::now()) {
                self.reconcile(&name).await;
            }
        }
    }

    async fn reconcile(&mut self, name: &str) {
        if let Err(error) = self.try_reconcile(name).await
            && !error.is(Reason::NotFound)
        {
            tracing::warn!(%error, definition = name, "cannot reconcile a CRD, retrying");
            self.retries.insert(name.to_owned());
        }
    }

    async fn try_reconcile(&mut self, name: &str) -> ApiResult<()> {
        let resource = self.registry.resource(&Gvr::new(GROUP, "v1", PLURAL))?;
        let definition = match self.registry.get(&resource, "", name).await {
            Ok(definition) => definition,
            Err(error) if error.is(Reason::NotFound) => {
                if let Some(installed) = self.installed.remove(name) {
                    self.registry.catalog.remove(&installed.group, &installed.plural);
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let crd = Definition(&definition);
        if crd.is_deleting() {
            self.install(&definition);
            return self.finalize(&resource, &definition).await;
        }
        self.cache.refresh(&self.registry.store, crd.group());
        let decision = status::decide(crd, &self.cache.others_in_group(crd.group(), crd.name()));
        let now = jiff::Timestamp::now();
        if status::apply(&definition, &decision, now).is_none() {
            self.install(&definition);
            return Ok(());
        }
        let edit = move |live: &mut Value| {
            if let Some(updated) = status::apply(live, &decision, now) {
                *live = updated;
            }
            Ok(())
        };
        let updated = self.edit(&resource, name, "status", edit).await?;
        self.install(&updated);
        Ok(())
    }

    /// Installs the served resources of a CRD if they have changed.
    fn install(&mut self, definition: &Value) {
        let crd = Definition(definition);
        let fingerprint = fingerprint(crd);
        if self.installed.get(crd.name()).is_some_and(|installed| installed.fingerprint == fingerprint) {
            return;
        }
        let served = resources::served_resources(definition, &self.client);
        let (group, plural) = (crd.group().to_owned(), crd.plural().to_owned());
        if !served.is_empty() || self.installed.contains_key(crd.name()) {
            self.registry.catalog.replace(&group, &plural, served);
            let installed = InstalledResource { group, plural, fingerprint };
            self.installed.insert(crd.name().to_owned(), installed);
        }
    }

    /// Deletes the custom resources of a CRD that is being deleted, then removes its finalizer.
    async fn finalize(&mut self, resource: &ResourceRef, definition: &Value) -> ApiResult<()> {
        let crd = Definition(definition);
        let finalizers = definition.pointer("/metadata/finalizers").and_then(Value::as_array);
        if !finalizers.is_some_and(|f| f.iter().any(|f| f == CLEANUP_FINALIZER)) {
            return Ok(());
        }
        let progress = match self.delete_objects(crd).await {
            Ok(0) => None,
            Ok(_) => Some(("InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned())),
            Err(message) => Some(("InstanceDeletionFailed", message)),
        };
        if let Some((reason, message)) = progress {
            self.retries.insert(crd.name().to_owned());
            let condition = Condition::new("Terminating", "True", reason, message);
            let now = jiff::Timestamp::now();
            self.edit(resource, crd.name(), "status", move |live| {
                condition.set(live, now);
                Ok(())
            })
            .await?;
            return Ok(());
        }
        self.edit(resource, crd.name(), "", |live| {
            if let Some(finalizers) = live.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
                finalizers.retain(|f| f != CLEANUP_FINALIZER);
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Deletes all custom resources of a CRD without admission; returns the number of those that remain, or the message of
    /// a condition. As in kube-apiserver, nothing is deleted if an object cannot be converted to the storage version.
    async fn delete_objects(&self, crd: Definition<'_>) -> Result<usize, String> {
        let table = ResourceKey::new(crd.group(), crd.plural());
        let records = self.registry.store.records(&table, "");
        let served = self.registry.catalog.snapshot().by_table(&table).cloned();
        let stored = served.filter(|resource| *resource.gvr.version == *resource.storage.version);
        let stored = stored.or_else(|| resources::storage_resource(crd, &self.client));
        let Some(resource) = stored else { return Ok(records.len()) };
        let readiness = self.registry.check_cache_readiness(&resource).await;
        readiness.map_err(|error| format!("could not list instances: {error}"))?;
        // The first error in each namespace.
        let mut errors: Vec<(&str, String)> = Vec::new();
        for record in &records {
            let namespace = record.key.namespace();
            match self.registry.delete_raw(&resource, &loopback(namespace), record.key.name()).await {
                Ok(_) => {}
                Err(error) if error.is(Reason::NotFound) => {}
                Err(error) => {
                    tracing::warn!(%error, key = %record.key, "cannot delete a custom resource of a CRD that is being deleted");
                    if errors.last().is_none_or(|(last, _)| *last != namespace) {
                        errors.push((namespace, error.to_string()));
                    }
                }
            }
        }
        let errors: BTreeSet<String> = errors.into_iter().map(|(_, error)| error).collect();
        match errors.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => Ok(self.registry.store.count(&table)),
            [error] => Err(format!("could not issue all deletes: {error}")),
            errors => Err(format!("could not issue all deletes: [{}]", errors.join(", "))),
        }
    }

    /// Updates a CRD by a function that edits its current state.
    async fn edit(
        &self,
        resource: &ResourceRef,
        name: &str,
        subresource: &str,
        edit: impl Fn(&mut Value) -> ApiResult<()> + Send + Sync + 'static,
    ) -> ApiResult<Value> {
        let change = Change::Edit(Edit(Arc::new(edit)));
        let (ctx, options) = (loopback_context(subresource), loopback_options());
        let updated = self.registry.update(resource, &ctx, name, &change, &options, &mut Vec::new()).await?;
        tracing::debug!(definition = name, subresource, "updated a CRD");
        Ok(updated.0)
    }
}

/// Request context of the server's own writes of a subresource of a cluster-scoped object.
pub(crate) fn loopback_context(subresource: &str) -> RequestContext {
    RequestContext { subresource: subresource.into(), ..loopback("") }
}
