//! Controllers that every control plane needs: namespaces, garbage collection, service account tokens, certificates,
//! cluster information, finished Jobs.
//!
//! They run in the server's process and use its registry. [`start`] runs them until the server stops. Members enable
//! further ones (a `default` service account and the root certificate in every namespace, quotas, storage protection).

pub mod accounts;
pub mod certificates;
pub mod clusterinfo;
pub mod garbage;
pub mod namespaces;
pub mod protection;
pub mod quota;
pub mod tokencleaner;
pub mod tokens;
pub mod ttlafterfinished;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::Registry;
use crowsnest_registry::admission::Admission;
use crowsnest_registry::error::Error;
use crowsnest_registry::resource::ResourceRef;

use crate::ApiServer;
use crate::admission::accounts::ServiceAccounts;
use crate::admission::protection::StorageObjectInUseProtection;

/// Optional controllers, each enabled if its field is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Controllers {
    /// A `default` service account and the `kube-root-ca.crt` config map in every namespace, and the
    /// `ServiceAccount` admission plugin, which adds both to pods.
    pub service_accounts: bool,
    /// The `openshift-service-ca.crt` config map in every namespace.
    pub service_certificates: bool,
    /// The quota controller, which updates the status of ResourceQuotas.
    pub quotas: bool,
    /// Finalizers of claims and volumes while they are in use, and the `StorageObjectInUseProtection` admission plugin,
    /// which adds them.
    pub storage_protection: bool,
}

/// Starts the controllers as tasks of the server, and sets the admission plugins that belong to them.
pub fn start(server: &ApiServer, controllers: Controllers) {
    let registry = server.registry().clone();
    let stop_token = server.stop_token();
    server.spawn("deletion of namespaces", namespaces::run(server.clone()));
    server.spawn("garbage collection", garbage::run(registry.clone(), stop_token));
    server.spawn("tokens of service accounts", tokens::run(server.clone()));
    server.spawn("CertificateSigningRequests", certificates::run(server.clone()));
    server.spawn("signature of cluster-info", clusterinfo::run(server.clone()));
    server.spawn("expiry of bootstrap tokens", tokencleaner::run(server.clone()));
    server.spawn("deletion of finished jobs", ttlafterfinished::run(server.clone()));
    if controllers.quotas {
        server.spawn("usage of resource quotas", quota::run(server.clone()));
    }
    let mut admission: Vec<Arc<dyn Admission>> = Vec::new();
    if controllers.storage_protection {
        server.spawn("storage protection", protection::run(server.clone()));
        admission.push(Arc::new(StorageObjectInUseProtection));
    }
    if controllers.service_accounts {
        let mut config_maps = vec![accounts::ROOT_CA];
        config_maps.extend(controllers.service_certificates.then_some(accounts::SERVICE_CA));
        server.spawn("default service accounts", accounts::run(server.clone(), config_maps));
        admission.push(Arc::new(ServiceAccounts::new(&registry)));
    }
    if !admission.is_empty() {
        server.set_admission(admission);
    }
}

/// Delay before a controller restarts after an error.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Runs `reconcile` until the server stops; restarts it after errors, such as an expired watch. `name` is the
/// controller's name in logs.
async fn run_with_restart<F>(server: ApiServer, name: &'static str, reconcile: impl Fn(ApiServer) -> F)
where
    F: Future<Output = Result<Infallible, Error>>,
{
    let controller = async {
        loop {
            match reconcile(server.clone()).await {
                Err(Error::Closed) => return,
                Err(error) => tracing::warn!(controller = name, %error, "restarting a controller"),
            }
            tokio::time::sleep(RESTART_DELAY).await;
        }
    };
    server.stop_token().run_until_cancelled(controller).await;
}

/// A resource in version `v1` of the core group.
fn core_resource(registry: &Arc<Registry>, plural: &str) -> ApiResult<ResourceRef> {
    registry.resource(&Gvr::new("", "v1", plural))
}
