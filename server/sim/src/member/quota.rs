//! ResourceQuotas: what a namespace uses of them. Enforcing them is admission's business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::quantity::Quantity as Exact;
use k8s_openapi::api::core::v1::{ConfigMap, ReplicationController, ResourceQuotaSpec, ResourceQuotaStatus, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::ListParams;

use crate::error::{Error, Result};

use super::pod::{PodState, Qos};
use super::queue::Queue;
use super::resources::{Resources, whole};
use super::store::{Index, Key, Stored};
use super::workload::{Keys, keys_of, spawn};
use super::world::World;

/// Changes of a namespace within this time are counted together.
const GATHER: Duration = Duration::from_millis(200);
/// Kinds without a store are counted again this often.
const RECOUNT: Duration = Duration::from_secs(30);

pub fn start(world: &Arc<World>) {
    let keys: Keys = keys_of(&world.quotas);
    follow(world, &keys, |world, wake| {
        world.pods.on_change(move |old, new| {
            if let Some(pod) = new.or(old)
                && old.map(|pod| pod.phase) != new.map(|pod| pod.phase)
            {
                wake(&pod.key.namespace);
            }
        })
    });
    follow(world, &keys, |world, wake| {
        world.services.on_change(move |old, new| {
            if let Some(object) = new.or(old) {
                wake(&object.key().namespace);
            }
        })
    });
    follow(world, &keys, |world, wake| {
        world.claims.on_change(move |old, new| {
            if let Some(object) = new.or(old) {
                wake(&object.key().namespace);
            }
        })
    });
    spawn(world, "resourcequota", keys, 2, |world, key| async move { reconcile(&world, &key).await });
}

type Wake = Box<dyn Fn(&Arc<str>) + Send + Sync>;

fn follow(world: &World, keys: &Arc<Queue<Key>>, register: impl FnOnce(&World, Wake)) {
    let (wanted, quotas) = (keys.clone(), Arc::downgrade(&world.quotas));
    register(
        world,
        Box::new(move |namespace| {
            let Some(quotas) = quotas.upgrade() else { return };
            for quota in quotas.by(&Index::Namespace(namespace.clone())) {
                wanted.add_after(quota.key(), GATHER);
            }
        }),
    );
}

async fn reconcile(world: &World, key: &Key) -> Result<Option<Duration>> {
    let Some(quota) = world.quotas.get(key) else { return Ok(None) };
    let Some(spec) = quota.spec.as_ref() else { return Ok(None) };
    let hard = spec.hard.clone().unwrap_or_default();
    let pods: Vec<_> = world.pods.namespace(&key.namespace).into_iter().filter(|pod| in_scope(spec, pod)).collect();
    let mut used = BTreeMap::new();
    let mut recount = None;
    for name in hard.keys() {
        let amount = match of_pods(name, &pods) {
            Some(amount) => amount,
            None => match of_stores(world, name, &key.namespace) {
                Some(count) => Quantity(count.to_string()),
                None => {
                    recount = Some(RECOUNT);
                    Quantity(listed(world, name, &key.namespace).await?.to_string())
                }
            },
        };
        used.insert(name.clone(), amount);
    }
    let status = ResourceQuotaStatus { hard: Some(hard), used: Some(used) };
    world.set_status(&world.quotas, &quota, quota.status.as_ref(), &status).await?;
    Ok(recount)
}

fn in_scope(spec: &ResourceQuotaSpec, pod: &PodState) -> bool {
    !pod.phase.is_terminal()
        && spec.scopes.iter().flatten().all(|scope| match scope.as_str() {
            "BestEffort" => pod.spec.qos == Qos::BestEffort,
            "NotBestEffort" => pod.spec.qos != Qos::BestEffort,
            _ => true,
        })
}

fn of_pods(name: &str, pods: &[Arc<PodState>]) -> Option<Quantity> {
    let mut total = Resources::default();
    for pod in pods {
        total.add(&pod.spec.requests);
    }
    let bytes =
        |amount: i64| Quantity(Exact::new(amount, crowsnest_apimachinery::quantity::Format::BinarySI).to_string());
    let units = |amount: i64| Quantity(amount.to_string());
    Some(match name {
        "pods" | "count/pods" => units(i64::try_from(pods.len()).unwrap_or(i64::MAX)),
        "cpu" | "requests.cpu" => Quantity(
            Exact::from_milli(total.cpu_milli, crowsnest_apimachinery::quantity::Format::DecimalSI).to_string(),
        ),
        "memory" | "requests.memory" => bytes(total.memory),
        "ephemeral-storage" | "requests.ephemeral-storage" => bytes(total.ephemeral),
        _ => {
            let extended =
                name.strip_prefix("requests.").filter(|rest| rest.contains('/') && !rest.contains("storageclass"))?;
            units(total.other.get(extended).copied().unwrap_or_default())
        }
    })
}

fn of_stores(world: &World, name: &str, namespace: &str) -> Option<i64> {
    let index = Index::Namespace(namespace.into());
    let services = |kind: Option<&str>| {
        let all = world.services.by(&index);
        let wanted = all.iter().filter(|service| {
            let kind_of = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
            kind.is_none_or(|kind| kind_of == Some(kind))
        });
        wanted.count()
    };
    let count = match name {
        "services" | "count/services" => services(None),
        "services.loadbalancers" => services(Some("LoadBalancer")),
        "services.nodeports" => services(Some("NodePort")) + services(Some("LoadBalancer")),
        "persistentvolumeclaims" | "count/persistentvolumeclaims" => world.claims.count(&index),
        "count/deployments.apps" => world.deployments.count(&index),
        "count/replicasets.apps" => world.replica_sets.count(&index),
        "count/statefulsets.apps" => world.stateful_sets.count(&index),
        "count/jobs.batch" => world.jobs.count(&index),
        "count/cronjobs.batch" => world.cron_jobs.count(&index),
        "resourcequotas" | "count/resourcequotas" => world.quotas.count(&index),
        "requests.storage" => {
            let claims = world.claims.by(&index);
            let asked = claims
                .iter()
                .filter_map(|claim| claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage"));
            return Some(asked.map(whole).sum());
        }
        // The limits of pods are not kept; nothing is ever limited here.
        "limits.cpu" | "limits.memory" | "limits.ephemeral-storage" => 0,
        _ => return None,
    };
    i64::try_from(count).ok()
}

/// Kinds that no store holds.
async fn listed(world: &World, name: &str, namespace: &str) -> Result<usize> {
    async fn count<K>(api: Api<K>, what: &str) -> Result<usize>
    where
        K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let list = api.list_metadata(&ListParams::default()).await;
        Ok(list.map_err(Error::api(format!("count {what}")))?.items.len())
    }
    match name {
        "configmaps" | "count/configmaps" => count(world.api::<ConfigMap>(namespace), name).await,
        "secrets" | "count/secrets" => count(world.api::<Secret>(namespace), name).await,
        "replicationcontrollers" => count(world.api::<ReplicationController>(namespace), name).await,
        _ => Ok(0),
    }
}
