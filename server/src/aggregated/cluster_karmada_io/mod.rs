//! `cluster.karmada.io/v1alpha1`: clusters, their status, proxy and agents' tunnels.

mod attach;
mod clusters;
mod columns;
mod proxy;

use crowsnest_api::aggregated_groups;
use crate::aggregated::resource::Resource;
use crate::aggregated::resource::registry::Group;

pub(crate) const NAME: &str = aggregated_groups::CLUSTER.name;

const RESOURCES: &[&dyn Resource] = &[&clusters::CLUSTERS, &attach::Attach, &proxy::ClusterProxy, &clusters::STATUS];

pub(crate) const GROUP: Group = Group::new(&aggregated_groups::CLUSTER, RESOURCES);
