//! `cluster.karmada.io/v1alpha1`: clusters, their status, proxy and agents' tunnels.

mod attach;
mod clusters;
mod columns;
mod proxy;

use crate::resource::Resource;
use crate::resource::registry::Group;
use crowsnest_api::aggregated_groups;

pub const NAME: &str = aggregated_groups::CLUSTER.name;

const RESOURCES: &[&dyn Resource] =
    &[&clusters::CLUSTERS, &attach::AttachResource, &proxy::CLUSTER_PROXY, &clusters::STATUS];

pub const GROUP: Group = Group::new(&aggregated_groups::CLUSTER, RESOURCES);
